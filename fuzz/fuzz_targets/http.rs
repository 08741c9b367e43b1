//! Answers of an HTTP/1.1 server: never a panic, the same answer however the bytes are cut, and the same as hyper's.

#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use toolway::upstream::differential::{deliberate, hypers, ours};

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, is_head, bytes) = input;
    let method = if is_head { Method::HEAD } else { Method::POST };
    let whole = ours(std::iter::once(bytes), &method);
    for size in [1, usize::from(size) + 1] {
        let cut = ours(bytes.chunks(size), &method);
        assert_eq!(cut, whole, "in pieces of {size}");
    }
    let ours = whole.map(|(verdict, _)| verdict);
    let hypers = hypers(bytes, &method);
    if ours != hypers && deliberate(bytes, &method, ours.as_ref(), hypers.as_ref()).is_none() {
        panic!("{ours:?} here, {hypers:?} with hyper");
    }
});
