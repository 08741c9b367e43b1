//! Where a body names its model: JSON objects and multipart forms, whole or cut off behind the name.

use std::ops::Range;

use serde::Deserialize;

/// The body begins like a JSON object or a form; the model cannot be found in anything else.
pub(super) fn may_be_there(start: &[u8]) -> bool {
    matches!(start.trim_ascii_start().first(), None | Some(b'{' | b'-'))
}

/// The model's name.
pub(super) fn find(start: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ModelMember {
        model: String,
    }
    if let Ok(body) = serde_json::from_slice::<ModelMember>(start) {
        return Some(body.model);
    }
    let place = place(start)?;
    let name = start.get(place)?;
    match name.first() {
        Some(b'"') => serde_json::from_slice(name).ok(),
        _ => Some(String::from_utf8_lossy(name).into_owned()),
    }
}

/// Where it stands: in JSON a text with its quotes.
pub(super) fn place(start: &[u8]) -> Option<Range<usize>> {
    match start.trim_ascii_start().first()? {
        b'{' => in_json(start),
        _ => in_form(start),
    }
}

/// The value of the member `model` at the top of an object.
fn in_json(start: &[u8]) -> Option<Range<usize>> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(start.get(..error.valid_up_to())?).ok()?,
    };
    let mut depth = 0;
    let mut at = 0;
    loop {
        match text.as_bytes().get(at)? {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                let (string, end) = string_at(text, at)?;
                let after = text.get(end..)?;
                let value = after.trim_start().strip_prefix(':').map(str::trim_start);
                if let Some(value) = value.filter(|_| depth == 1 && string == "model") {
                    let begin = text.len() - value.len();
                    return Some(begin..string_at(text, begin)?.1);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

/// The JSON string that begins there, and where it ends.
fn string_at(text: &str, begin: usize) -> Option<(String, usize)> {
    let mut strings = serde_json::Deserializer::from_str(text.get(begin..)?).into_iter::<String>();
    let string = strings.next()?.ok()?;
    Some((string, begin + strings.byte_offset()))
}

/// The value of the field `model`, without space around it.
fn in_form(start: &[u8]) -> Option<Range<usize>> {
    let begin = start.len() - start.trim_ascii_start().len();
    let boundary = start.get(begin..begin + position(start.get(begin..)?, b"\r\n")?)?;
    if boundary.len() <= 2 {
        return None;
    }
    let mut at = begin;
    loop {
        at += boundary.len();
        let rest = start.get(at..)?;
        let part = rest.get(..position(rest, boundary).unwrap_or(rest.len()))?;
        if let Some(head) = position(part, b"\r\n\r\n") {
            let value = part.get(head + 4..)?;
            if is_model(part.get(..head)?) {
                let value = value.get(..position(value, b"\r\n")?)?;
                let begin = at + head + 4 + (value.len() - value.trim_ascii_start().len());
                return Some(begin..begin + value.trim_ascii().len());
            }
        }
        at += part.len();
    }
}

/// The head of a part of a form is that of the field `model`.
fn is_model(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let mut words = head.split(['\r', ';']);
    words.any(|word| matches!(word.trim(), "name=\"model\"" | "name=model"))
}

fn position(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|it| it == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: &str, expected: Option<&str>) {
        assert_eq!(find(start.as_bytes()).as_deref(), expected);
        let place = place(start.as_bytes());
        let named = place.map(|place| start[place].trim_matches('"').to_owned());
        assert_eq!(named.as_deref(), expected, "the place of the name");
    }

    #[test]
    fn the_model_is_found_in_a_whole_object() {
        check(r#"{"input": {"model": "no"}, "model": "m"}"#, Some("m"));
        check(r#"{"é": "é", "model" : "m" }"#, Some("m"));
        check(r#"{"input": "x"}"#, None);
    }

    #[test]
    fn the_model_is_found_in_an_object_that_goes_on() {
        check(
            r#"{"a": [{"model": "no"}], "model": "m", "input": "lo"#,
            Some("m"),
        );
        check(r#"{"a": "model", "mod"#, None);
        check(r#"{"model": "m"#, None);
    }

    #[test]
    fn the_model_is_found_in_a_form() {
        let form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--b";
        check(form, Some("whisper-1"));
        let behind = "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nname=\"model\"\r\n\r\nno\r\n\
            --b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--";
        check(behind, Some("m"));
        check(
            "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhis",
            None,
        );
    }

    #[test]
    fn the_model_is_found_behind_the_bytes_of_a_file() {
        let file = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\xff\xfe\r\n";
        let model = b"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--";
        let form = [&file[..], &model[..]].concat();
        assert_eq!(form.get(place(&form).unwrap()), Some(&b"m"[..]));
    }
}
