//! Answers of an HTTP/1.1 server: never a panic, and the same answer however the bytes are cut. That it is hyper's answer
//! as well is tried in `wire/differential.rs`: beyond what its inputs reach, the two differ in chunk extensions.

#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use toolway::upstream::differential::ours;

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, is_head, bytes) = input;
    let method = if is_head { Method::HEAD } else { Method::POST };
    let whole = ours(std::iter::once(bytes), &method);
    for size in [1, usize::from(size) + 1] {
        let cut = ours(bytes.chunks(size), &method);
        assert_eq!(cut, whole, "in pieces of {size}");
    }
});
