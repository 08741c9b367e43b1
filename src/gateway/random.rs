//! Texts that cannot be guessed.

use rustls::crypto::GetRandomFailed;

/// Letters that a URL carries as they are; 64, so that each stands for six bits.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// As many letters as 192 bits need.
const LENGTH: usize = 32;

/// 192 bits of the operating system's randomness, as 32 of `A-Z a-z 0-9 - _`.
///
/// # Errors
/// When the operating system has none.
pub(in crate::gateway) fn unguessable() -> Result<String, GetRandomFailed> {
    let mut bytes = [0_u8; LENGTH];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)?;
    let letter = |byte: u8| char::from(LETTERS[usize::from(byte & 63)]);
    Ok(bytes.into_iter().map(letter).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_the_same_and_all_letters_come() {
        let all: HashSet<String> = (0..1000).map(|_| unguessable().unwrap()).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|one| one.len() == LENGTH));
        let letters: HashSet<char> = all.iter().flat_map(|one| one.chars()).collect();
        assert_eq!(letters.len(), LETTERS.len());
    }
}
