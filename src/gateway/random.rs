//! Texts that cannot be guessed.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

/// 192 bits of the operating system's randomness, as 32 of `A-Z a-z 0-9 - _`.
///
/// # Errors
/// When the operating system has none.
pub(crate) fn unguessable() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; 24];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_the_same_and_all_letters_come() {
        let all: HashSet<String> = (0..1000).map(|_| unguessable().unwrap()).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|one| one.len() == 32));
        let letters: HashSet<char> = all.iter().flat_map(|one| one.chars()).collect();
        assert_eq!(letters.len(), 64);
    }
}
