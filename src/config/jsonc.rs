//! JSON with comments, trailing commas and a byte-order mark, as some editors write it.

/// Plain JSON of the same length: everything that is not JSON becomes spaces, so that the line and column of an error
/// stay right.
pub(super) fn to_json(text: &str) -> String {
    let mut out: Vec<char> = text.chars().collect();
    if out.first() == Some(&'\u{feff}') {
        out[0] = ' ';
    }
    let mut comma = None;
    let mut i = 0;
    while i < out.len() {
        match out[i] {
            '"' => {
                i = end_of_string(&out, i);
                comma = None;
                continue;
            }
            '/' if matches!(out.get(i + 1), Some('/' | '*')) => {
                i = blank_comment(&mut out, i);
                continue;
            }
            ',' => comma = Some(i),
            '}' | ']' => {
                if let Some(comma) = comma.take() {
                    out[comma] = ' ';
                }
            }
            c if c.is_whitespace() => {}
            _ => comma = None,
        }
        i += 1;
    }
    out.into_iter().collect()
}

fn end_of_string(text: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < text.len() && text[i] != '"' {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn blank_comment(text: &mut [char], start: usize) -> usize {
    let rest = &text[start + 2..];
    let length = match text[start + 1] {
        '/' => rest.iter().position(|c| *c == '\n'),
        _ => rest
            .windows(2)
            .position(|two| two == ['*', '/'])
            .map(|at| at + 2),
    };
    let end = start + 2 + length.unwrap_or(rest.len());
    text[start..end]
        .iter_mut()
        .filter(|c| **c != '\n')
        .for_each(|c| *c = ' ');
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(text: &str, value: &Value) {
        let plain = to_json(text);
        assert_eq!(plain.matches('\n').count(), text.matches('\n').count());
        assert_eq!(serde_json::from_str::<Value>(&plain).expect(&plain), *value);
    }

    #[test]
    fn comments_are_left_out() {
        check(
            "{// a\n\"a\": 1 /* b */, /* c\n */ \"b\": 2}",
            &json!({"a": 1, "b": 2}),
        );
        check("[/**/1/***/]", &json!([1]));
        check("[1] // the end", &json!([1]));
        check("[/* a * b ** c */ 1]", &json!([1]));
    }

    #[test]
    fn trailing_commas_are_left_out() {
        check("{\"a\": [1, 2,], }", &json!({"a": [1, 2]}));
        check("[1, // one\n]", &json!([1]));
    }

    #[test]
    fn what_stands_in_a_text_is_kept() {
        check(
            r#"["http://x", "/* a */", ",]", "\"//", "\\"]"#,
            &json!(["http://x", "/* a */", ",]", "\"//", "\\"]),
        );
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        check("\u{feff}[1]", &json!([1]));
    }

    #[test]
    fn broken_texts_end() {
        for text in ["\"", "\"\\", "/*", "/", "//", "/*/", ",", "[,", "\"a\\"] {
            to_json(text);
        }
    }
}
