//! Ids that the gateway makes up, where a model gave none or one that cannot stay.
//!
//! They follow from a seed; the caller brings the chance in.

const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The end of a client call's id, as the client is shown it, where calls of the gateway are parked beside it.
/// It tells a process that does not have them any more that they are missing. The model never sees it.
pub const MARK: &str = "-toolway";

/// The note for the model in the result of a call, where the turn that the call belongs to is not known any more.
pub const MISSING_NOTE: &str = "[toolway: in the same turn as this call, other tools were called by toolway. Their \
                                results are missing, and the calls may have run. Check before you call them again.]";

/// The id as a client is shown it, with the mark.
pub fn marked(id: &str) -> String {
    format!("{id}{MARK}")
}

/// A source of ids. The same seed gives the same ids in the same order.
#[derive(Clone, Debug)]
pub struct Ids {
    state: u64,
}

impl Ids {
    /// A source that starts at `seed`.
    pub fn new(seed: u64) -> Ids {
        Ids { state: seed }
    }

    /// An id for a tool call: 9 of `A-Z a-z 0-9`, the one form that every known upstream takes
    /// (Mistral takes no other).
    pub fn call(&mut self) -> String {
        self.letters(9)
    }

    /// An id for a chat completion.
    pub fn completion(&mut self) -> String {
        format!("chatcmpl-{}", self.letters(24))
    }

    fn letters(&mut self, count: usize) -> String {
        (0..count)
            .map(|_| char::from(ALPHABET[(self.next() % 62) as usize]))
            .collect()
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ids_are_nine_letters_and_digits() {
        let mut ids = Ids::new(7);
        for _ in 0..1000 {
            let id = ids.call();
            assert!(
                id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()),
                "{id}"
            );
        }
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(Ids::new(1).call(), Ids::new(1).call());
        assert_ne!(Ids::new(1).call(), Ids::new(2).call());
        let mut ids = Ids::new(1);
        assert_ne!(ids.call(), ids.call());
        assert!(ids.completion().starts_with("chatcmpl-"));
    }
}
