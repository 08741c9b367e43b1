//! Framing: no panic, and the same events however the bytes are cut.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use toolway_protocol::sse::Framer;

fn framed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Result<Bytes, String>> {
    let mut framer = Framer::new(1 << 12);
    let mut events = Vec::new();
    for piece in pieces {
        framer.push(Bytes::copy_from_slice(piece));
        events.extend(std::iter::from_fn(|| framer.next()));
    }
    events.extend(framer.finish());
    let raw = |event: toolway_protocol::sse::Event| {
        let _ = (event.data(), event.name(), event.is_comment());
        event.raw().clone()
    };
    events.into_iter().map(|event| event.map(raw).map_err(|error| error.to_string())).collect()
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = framed(std::iter::once(bytes));
    assert_eq!(framed(bytes.chunks(usize::from(size) + 1)), whole);
    assert_eq!(framed(bytes.chunks(1)), whole);
});
