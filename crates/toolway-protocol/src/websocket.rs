//! Frames of WebSocket connections (RFC 6455), as a server reads and writes them.
//!
//! Only their heads and their masks: the caller moves the payloads and puts the pieces of a message together.

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A further piece of a message.
    Continuation,
    /// The first piece of a text.
    Text,
    /// The first piece of a message of bytes.
    Binary,
    /// The sender closes the connection.
    Close,
    /// Asks for a pong with the same payload.
    Ping,
    /// The answer to a ping.
    Pong,
}

impl Opcode {
    fn read(number: u8) -> Option<Opcode> {
        Some(match number {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    fn number(self) -> u8 {
        match self {
            Opcode::Continuation => 0,
            Opcode::Text => 1,
            Opcode::Binary => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        }
    }

    /// It is about the connection, and may come between the pieces of a message.
    pub fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }
}

/// What the head of a client's frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// What the frame carries.
    pub opcode: Opcode,
    /// It is the last piece of its message.
    pub is_last: bool,
    /// The key of the payload's mask.
    pub mask: [u8; 4],
    /// The length of the payload, in bytes. At most [`MAX_CONTROL`] for a control frame.
    pub length: u64,
}

/// Longest payload of a control frame, in bytes.
pub const MAX_CONTROL: usize = 125;

/// Why a frame breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A reserved bit is set, or the opcode is reserved.
    #[error("the frame is of an extension that was not agreed on")]
    Reserved,
    /// Clients mask what they send.
    #[error("the frame is not masked")]
    Unmasked,
    /// A control frame is longer than [`MAX_CONTROL`] or in pieces.
    #[error("the control frame is too long or in pieces")]
    Control,
    /// The length has more bytes than it needs, or more than 63 bits.
    #[error("the length of the frame is not valid")]
    Length,
}

impl FrameHead {
    /// Reads the head at the beginning of these bytes, and its length in bytes; `None` if it is not complete.
    ///
    /// # Errors
    /// When it breaks the protocol.
    pub fn read(bytes: &[u8]) -> Result<Option<(FrameHead, usize)>, FrameError> {
        let Some((&[first, second], rest)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(FrameError::Reserved);
        }
        let opcode = Opcode::read(first & 0x0f).ok_or(FrameError::Reserved)?;
        let is_last = first & 0x80 != 0;
        if second & 0x80 == 0 {
            return Err(FrameError::Unmasked);
        }
        let short = second & 0x7f;
        if opcode.is_control() && (!is_last || usize::from(short) > MAX_CONTROL) {
            return Err(FrameError::Control);
        }
        let (length, least, rest) = match short {
            126 => match rest.split_first_chunk() {
                Some((long, rest)) => (u64::from(u16::from_be_bytes(*long)), 126, rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk() {
                Some((long, rest)) => (u64::from_be_bytes(*long), 1 << 16, rest),
                None => return Ok(None),
            },
            short => (u64::from(short), 0, rest),
        };
        if length < least || length >> 63 != 0 {
            return Err(FrameError::Length);
        }
        let Some((mask, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let head = FrameHead {
            opcode,
            is_last,
            mask: *mask,
            length,
        };
        Ok(Some((head, bytes.len() - rest.len())))
    }

    /// Takes the mask off a piece of the payload that begins at this offset.
    pub fn unmask(&self, piece: &mut [u8], offset: usize) {
        for (at, byte) in piece.iter_mut().enumerate() {
            *byte ^= self.mask[(offset + at) % 4];
        }
    }
}

/// Appends a frame with this payload. Servers do not mask.
pub fn write_frame(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    out.push(0x80 | opcode.number());
    let length = payload.len();
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => out.push(short),
        (_, Ok(long)) => {
            out.push(126);
            out.extend(long.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Option<(Opcode, bool, u64, usize)>, FrameError>) {
        let read = FrameHead::read(bytes);
        let read = read.map(|read| {
            read.map(|(head, length)| (head.opcode, head.is_last, head.length, length))
        });
        assert_eq!(read, expected, "{bytes:x?}");
    }

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let short = [0x81, 0x85, 1, 2, 3, 4, b'x'];
        check(&short, Ok(Some((Opcode::Text, true, 5, 6))));
        let long = [0x02, 0xfe, 0x01, 0x00, 1, 2, 3, 4];
        check(&long, Ok(Some((Opcode::Binary, false, 256, 8))));
        let longest = [0x80, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4];
        check(&longest, Ok(Some((Opcode::Continuation, true, 65536, 14))));
        for (head, length) in [(&short[..], 6), (&long, 8), (&longest, 14)] {
            for cut in 0..length {
                check(&head[..cut], Ok(None));
            }
        }
    }

    #[test]
    fn what_breaks_the_protocol_is_refused() {
        check(&[0xc1, 0x80], Err(FrameError::Reserved));
        check(&[0x83, 0x80], Err(FrameError::Reserved));
        check(&[0x81, 0x05], Err(FrameError::Unmasked));
        check(&[0x89, 0xfe], Err(FrameError::Control));
        check(&[0x08, 0x80], Err(FrameError::Control));
        check(&[0x81, 0xfe, 0, 125], Err(FrameError::Length));
        let huge = [0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0];
        check(&huge, Err(FrameError::Length));
    }

    #[test]
    fn the_mask_goes_on_from_piece_to_piece() {
        let (head, _) = FrameHead::read(&[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d])
            .unwrap()
            .unwrap();
        // The example of RFC 6455, 5.7.
        let mut payload = [0x7f, 0x9f, 0x4d, 0x51, 0x58];
        let (first, rest) = payload.split_at_mut(3);
        head.unmask(first, 0);
        head.unmask(rest, 3);
        assert_eq!(&payload, b"Hello");
    }

    #[test]
    fn a_frame_says_its_length() {
        for (length, head) in [
            (0, &[0x81, 0][..]),
            (125, &[0x81, 125]),
            (126, &[0x81, 126, 0, 126]),
            (65535, &[0x81, 126, 0xff, 0xff]),
            (65536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            write_frame(Opcode::Text, &vec![b'x'; length], &mut out);
            assert_eq!(&out[..out.len() - length], head);
        }
    }
}
