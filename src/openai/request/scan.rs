//! How deep a text is nested, told without parsing it.

use memchr::memchr2;

use super::RequestError;

/// Refuses a text whose objects and arrays are nested more than `max_depth` levels.
///
/// Brackets in strings do not count. The text need not be JSON: whatever it is, this ends and does not panic.
pub(super) fn check_depth(text: &str, max_depth: usize) -> Result<(), RequestError> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = after_string(bytes, at),
            b'{' | b'[' => {
                depth += 1;
                if depth > max_depth {
                    return Err(RequestError::body(format!(
                        "The request body is nested more than {max_depth} levels deep."
                    )));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Where the string that begins at `at` (after its quote) has ended.
fn after_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(rest) = bytes.get(at..) {
        match memchr2(b'"', b'\\', rest) {
            None => return bytes.len(),
            Some(step) if rest[step] == b'"' => return at + step + 1,
            Some(step) => at += step + 2,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, depth: usize) {
        assert!(
            check_depth(text, depth).is_ok(),
            "{text} is at most {depth} deep"
        );
        if depth > 0 {
            assert!(
                check_depth(text, depth - 1).is_err(),
                "{text} is deeper than {}",
                depth - 1
            );
        }
    }

    #[test]
    fn objects_and_arrays_count_alike() {
        check("1", 0);
        check("{}", 1);
        check(r#"{"a":[{}]}"#, 3);
        check("[[],[],[[]]]", 3);
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        check(r#""[[[[""#, 0);
        check(r#"["\"[[", "\\", []]"#, 2);
    }

    #[test]
    fn a_text_that_is_no_json_does_no_harm() {
        check("]]]}[", 1);
        check(r#"["abc\"#, 1);
        check(r#"""#, 0);
    }
}
