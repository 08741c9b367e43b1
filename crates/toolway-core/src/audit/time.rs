//! Times as people and records write them.

/// Milliseconds since 1970 of a time: RFC 3339, a date of it, or so long before `now`, such as `90s`, `30m`, `1h`, `7d`.
pub fn parse(text: &str, now: u64) -> Option<u64> {
    let text = text.trim();
    let ago = |number: &str, unit: u64| {
        let number: u64 = number.parse().ok()?;
        Some(now.saturating_sub(number.checked_mul(unit)?))
    };
    let (number, unit) = text.split_at(text.len() - text.chars().next_back()?.len_utf8());
    match unit {
        "s" => ago(number, 1000),
        "m" => ago(number, 60_000),
        "h" => ago(number, 3_600_000),
        "d" => ago(number, 86_400_000),
        _ => rfc3339(text),
    }
}

/// Milliseconds since 1970 of a time in RFC 3339, from then on; without a time of day it is midnight in UTC.
pub fn rfc3339(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00:00Z"),
    };
    let [year, month, day] = numbers(date, '-')?;
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month);
    if !is_date || !(1..=31).contains(&day) {
        return None;
    }
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    if hour > 23 || minute > 59 || second > 60 || !fraction.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let thousandths: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let offset = match zone {
        "Z" | "z" => 0,
        zone => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let minutes = number(hours)? * 60 + number(minutes)?;
            if zone.starts_with('-') {
                -minutes
            } else {
                minutes
            }
        }
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + (minute - offset) * 60 + second;
    u64::try_from(seconds * 1000 + thousandths).ok()
}

fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let mut parts = text.split(between).map(number);
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

fn number(text: &str) -> Option<i64> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Days since 1970 in the Gregorian calendar, counted from March, so that the leap day is the last of a year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let of_years = 365 * year + year / 4 - year / 100 + year / 400;
    of_years + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, millis: Option<u64>) {
        assert_eq!(parse(text, 1_000_000_000), millis, "{text}");
    }

    #[test]
    fn times_of_rfc_3339_are_read() {
        check("1970-01-01T00:00:00Z", Some(0));
        check("2000-02-29T12:30:15.25Z", Some(951_827_415_250));
        check("2026-11-23T18:00:00.123Z", Some(1_795_456_800_123));
        check("2026-11-23T19:30:00.123456+01:30", Some(1_795_456_800_123));
        check("2026-11-23T10:00:00-08:00", Some(1_795_456_800_000));
        check("2026-11-23", Some(1_795_392_000_000));
    }

    #[test]
    fn times_ago_are_read() {
        check("90s", Some(1_000_000_000 - 90_000));
        check("1h", Some(1_000_000_000 - 3_600_000));
        check("7d", Some(1_000_000_000 - 604_800_000));
        check("99999d", Some(0));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "h",
            "x",
            "1w",
            "-1h",
            "2026-13-01",
            "2026-11-23T25:00:00Z",
            "2026-11-23T18:00:00",
            "2026-11-23T18:00:00.xZ",
            "99999999999999999999d",
            "ü",
        ] {
            check(text, None);
        }
    }
}
