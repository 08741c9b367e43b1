//! Framing: no panic, and the same events however the bytes are cut.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use toolway_protocol::sse::{FrameError, Framer, SseEvent};

fn framed<'a>(
    mut framer: Framer,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Vec<Result<Bytes, FrameError>> {
    let mut events = Vec::new();
    for piece in pieces {
        framer.push(Bytes::copy_from_slice(piece));
        events.extend(std::iter::from_fn(|| framer.next()));
    }
    events.extend(framer.finish());
    let raw = |event: SseEvent| {
        let _ = (event.data(), event.name(), event.is_comment());
        event.raw().clone()
    };
    events.into_iter().map(|event| event.map(raw)).collect()
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let max = usize::from(size) * 16;
    let whole = framed(Framer::resuming(max), std::iter::once(bytes));
    for size in [1, usize::from(size) + 1] {
        assert_eq!(framed(Framer::resuming(max), bytes.chunks(size)), whole);
    }
    // What a framer gives before it gives up; how much it has read by then depends on the pieces.
    let events = |events: Vec<Result<Bytes, FrameError>>| {
        let kinds = events.into_iter().map(|event| event.map_err(|error| error.to_string()));
        kinds.collect::<Vec<_>>()
    };
    let whole = events(framed(Framer::new(max), std::iter::once(bytes)));
    for size in [1, usize::from(size) + 1] {
        assert_eq!(events(framed(Framer::new(max), bytes.chunks(size))), whole);
    }
});
