//! Base64 as MCP and OpenAI have it: the standard alphabet, padded, without line breaks (RFC 4648, § 4).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes bytes as base64.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            if at <= group.len() {
                let six = (bits >> (18 - 6 * at)) & 63;
                text.push(char::from(ALPHABET[six as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Base64 without line breaks and with the padding that some leave out, in the standard alphabet.
pub(super) fn tidy(text: &str) -> String {
    let mut tidy: String = text
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .map(|c| match c {
            '-' => '+',
            '_' => '/',
            c => c,
        })
        .collect();
    while !tidy.len().is_multiple_of(4) {
        tidy.push('=');
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc_come_out() {
        let check = |bytes: &str, text: &str| assert_eq!(encode(bytes.as_bytes()), text);
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foo", "Zm9v");
        check("foob", "Zm9vYg==");
        check("fooba", "Zm9vYmE=");
        check("foobar", "Zm9vYmFy");
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn what_is_written_otherwise_is_tidied() {
        assert_eq!(tidy("Zm9v\nYg"), "Zm9vYg==");
        assert_eq!(tidy("-__-"), "+//+");
    }
}
