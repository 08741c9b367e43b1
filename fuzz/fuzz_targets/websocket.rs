//! Heads of frames: no panic, and what is written is read back but for the mask.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolway_protocol::websocket::{FrameHead, Opcode, write_frame};

fuzz_target!(|input: &[u8]| {
    let read = FrameHead::read(input);
    if let Ok(Some((head, length))) = read {
        assert!(length <= 14 && length <= input.len());
        for cut in 0..length {
            assert_eq!(FrameHead::read(&input[..cut]), Ok(None));
        }
        let mut payload = input[length..].to_vec();
        let half = payload.len() / 2;
        head.unmask(&mut payload[..half], 0);
        head.unmask(&mut payload[half..], half);
        head.unmask(&mut payload, 0);
        assert_eq!(payload, input[length..]);
    }
    let mut frame = Vec::new();
    write_frame(Opcode::Text, input, &mut frame);
    // As a client sends it: with a mask that changes nothing.
    let at = frame.len() - input.len();
    frame[1] |= 0x80;
    frame.splice(at..at, [0; 4]);
    let (head, length) = FrameHead::read(&frame).unwrap().unwrap();
    assert_eq!((head.length as usize, length), (input.len(), at + 4));
});
