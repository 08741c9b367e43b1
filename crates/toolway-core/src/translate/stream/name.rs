//! The name of a call as models mangle it.

/// A name without what some models put around it: space, the prefix `functions.`, and control tokens from
/// the first `<|` on (gpt-oss). What is left must be the exact name of a tool; nothing is guessed.
pub fn mend_name(name: &str) -> &str {
    let name = name.trim();
    let name = name.strip_prefix("functions.").unwrap_or(name);
    name.split("<|").next().unwrap_or(name).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, expected: &str) {
        assert_eq!(mend_name(given), expected);
    }

    #[test]
    fn a_clean_name_stays() {
        check("get_weather", "get_weather");
        check("functions_x", "functions_x");
        check("files__read.txt", "files__read.txt");
    }

    #[test]
    fn space_prefix_and_control_tokens_go() {
        check(" functions.get_weather ", "get_weather");
        check("get_weather<|channel|>commentary", "get_weather");
        check("functions.get_weather <|constrain|>json", "get_weather");
        check("<|x|>", "");
        check("", "");
    }
}
