//! Times as they are written: `500ms`, `30s`, `10m`, `1h`.

use std::time::Duration;

/// Reads a time with its unit; the number may have a fraction (`1.5s`).
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim_start() {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "" => {
            return Err(format!(
                "`{text}` has no unit; write for example `{number}s`"
            ));
        }
        unit => {
            return Err(format!(
                "`{unit}` is no unit of time; known are ms, s, m and h"
            ));
        }
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` does not begin with a number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("`{text}` is too long"))
}

/// Formats a duration as in the configuration.
pub(super) fn show(time: Duration) -> String {
    let ms = time.as_millis();
    match ms {
        0 => "0s".into(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, milliseconds: u64) {
        assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)));
    }

    #[track_caller]
    fn refused(text: &str, message: &str) {
        assert_eq!(parse(text).unwrap_err(), message);
    }

    #[test]
    fn times_are_read_with_their_unit() {
        check("500ms", 500);
        check("30s", 30_000);
        check("10m", 600_000);
        check("1h", 3_600_000);
        check(" 1.5 s ", 1500);
    }

    #[test]
    fn a_bare_number_asks_for_a_unit() {
        refused("30", "`30` has no unit; write for example `30s`");
    }

    #[test]
    fn nonsense_is_named() {
        refused(
            "30 parsecs",
            "`parsecs` is no unit of time; known are ms, s, m and h",
        );
        refused("s", "`s` does not begin with a number");
        refused("1.2.3s", "`1.2.3s` does not begin with a number");
        refused(
            "999999999999999999999h",
            "`999999999999999999999h` is too long",
        );
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["500ms", "30s", "10m", "1h", "90s"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
    }
}
