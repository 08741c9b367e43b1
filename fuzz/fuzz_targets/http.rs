//! Answers of an HTTP/1.1 server: never a panic, and the same answer however the bytes are cut.

#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use toolway::upstream::read_http_answer;

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, is_head, bytes) = input;
    let method = if is_head { Method::HEAD } else { Method::POST };
    let whole = read_http_answer(std::iter::once(bytes), &method);
    for size in [1, usize::from(size) + 1] {
        let cut = read_http_answer(bytes.chunks(size), &method);
        assert_eq!(cut, whole, "in pieces of {size}");
    }
});
