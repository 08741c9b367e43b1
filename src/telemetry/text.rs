//! A line of the log for people, without colours: `TIME LEVEL SPAN{FIELDS}: MESSAGE FIELDS`.
//!
//! It is what tracing-subscriber writes where there are no colours, and a test holds the two together; but every value
//! with a space is in quotes, and no value can begin a line of its own or command a terminal, for what upstreams and
//! clients say stands in some.
//! That one goes through a formatter for each word, to leave out its colour, and two lines and a span were a seventh
//! of all instructions of a tool call.

use std::{
    fmt::{self, Debug, Write as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime as FullTime},
    },
    registry::LookupSpan,
};

/// Room for a line or for the fields of a span, in bytes; most need no more.
const ROOM: usize = 256;

/// Writes events and the fields of spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextFormat;

impl<S> FormatEvent<S, TextFormat> for TextFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, TextFormat>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // A writer goes through two virtual calls for each piece.
        let mut line = String::with_capacity(ROOM);
        write_time(&mut line, SystemTime::now())?;
        line.push_str(level(*event.metadata().level()));
        if let Some(scope) = context.event_scope() {
            for span in scope.from_root() {
                line.push_str(span.metadata().name());
                if let Some(fields) = span.extensions().get::<FormattedFields<TextFormat>>()
                    && !fields.is_empty()
                {
                    line.push('{');
                    line.push_str(fields);
                    line.push('}');
                }
                line.push(':');
            }
            line.push(' ');
        }
        let mut line = Fields::append(line, event, writer.has_ansi_escapes())?;
        line.push('\n');
        writer.write_str(&line)
    }
}

impl<'w> FormatFields<'w> for TextFormat {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let text = String::with_capacity(ROOM);
        writer.write_str(&Fields::append(text, fields, writer.has_ansi_escapes())?)
    }
}

/// The time of a line in the other formats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write_time(writer, SystemTime::now())
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::TRACE => " TRACE ",
        Level::DEBUG => " DEBUG ",
        Level::INFO => "  INFO ",
        Level::WARN => "  WARN ",
        Level::ERROR => " ERROR ",
    }
}

/// `MESSAGE NAME=VALUE …`, in the order in which they were given.
struct Fields {
    text: String,
    in_colour: bool,
    is_empty: bool,
    result: fmt::Result,
}

impl Fields {
    /// The text with these fields behind it.
    fn append(
        text: String,
        fields: impl RecordFields,
        in_colour: bool,
    ) -> Result<String, fmt::Error> {
        let mut line = Fields {
            text,
            in_colour,
            is_empty: true,
            result: Ok(()),
        };
        fields.record(&mut line);
        line.result.map(|()| line.text)
    }

    fn field(&mut self, field: &Field, write: impl FnOnce(&mut String, bool) -> fmt::Result) {
        let (name, is_first) = (field.name(), self.is_empty);
        // Said of an event of another log, and nothing to read.
        if self.result.is_err() || name.starts_with("log.") {
            return;
        }
        self.is_empty = false;
        let text = &mut self.text;
        if !is_first {
            text.push(' ');
        }
        let is_message = name == "message";
        if !is_message {
            let name = name.strip_prefix("r#").unwrap_or(name);
            let (before, after) = match self.in_colour {
                true => ("\x1b[3m", "\x1b[0m\x1b[2m=\x1b[0m"),
                false => ("", "="),
            };
            text.push_str(before);
            text.push_str(name);
            text.push_str(after);
        }
        self.result = write(text, is_message);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, |text, is_message| {
            let is_name = is_message || write!(NoSpaces, "{value:?}").is_ok();
            match is_name {
                true => write!(Escaped(text), "{value:?}"),
                false => write!(text, "{:?}", format!("{value:?}")),
            }
        });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, |text, is_message| match is_message {
            true => Escaped(text).write_str(value),
            // Quoted and escaped; most need no escape.
            false if value.bytes().all(is_plain) => {
                text.push('"');
                text.push_str(value);
                text.push('"');
                Ok(())
            }
            false => write!(text, "{value:?}"),
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, |text, _| write_number(text, value));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        // With what it comes from.
        let mut whole = value.to_string();
        let mut source = value.source();
        while let Some(error) = source {
            let _ = write!(whole, ": {error}");
            source = error.source();
        }
        self.record_str(field, &whole);
    }
}

/// Takes texts without a space: names, not sentences.
struct NoSpaces;

impl fmt::Write for NoSpaces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match text.contains(' ') {
            true => Err(fmt::Error),
            false => Ok(()),
        }
    }
}

/// A character that `Debug` writes as it is.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')
}

/// Writes what may come from anywhere in one line, and so that no terminal takes it for a command.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return self.0.write_str(text);
        }
        for character in text.chars() {
            match character {
                '\t' => self.0.write_char('\t'),
                '\n' => self.0.write_str("\\n"),
                '\r' => self.0.write_str("\\r"),
                '\0'..='\x1f' | '\x7f' => write!(self.0, "\\x{:02x}", u32::from(character)),
                '\u{80}'..='\u{9f}' => write!(self.0, "\\u{{{:x}}}", u32::from(character)),
                _ => self.0.write_char(character),
            }?;
        }
        Ok(())
    }
}

/// Writes a number; the standard library's way goes through a formatter.
fn write_number(writer: &mut impl fmt::Write, mut number: u64) -> fmt::Result {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] += (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    writer.write_str(str::from_utf8(&digits[at..]).unwrap_or_default())
}

/// RFC 3339 in UTC, with microseconds.
fn write_time(writer: &mut impl fmt::Write, now: SystemTime) -> fmt::Result {
    const YEAR_9999: u64 = 253_402_300_800;
    match now.duration_since(UNIX_EPOCH) {
        Ok(since) if since.as_secs() < YEAR_9999 => {
            let text = timestamp(since);
            writer.write_str(str::from_utf8(&text).unwrap_or_default())
        }
        _ => FullTime.format_time(&mut Writer::new(writer)),
    }
}

/// A time in milliseconds since 1970, before the year 10000, as RFC 3339 has it.
pub fn rfc3339(millis: u64) -> String {
    String::from_utf8_lossy(&timestamp(Duration::from_millis(millis))).into_owned()
}

/// So long after the beginning of 1970, and before the year 10000.
fn timestamp(since: Duration) -> [u8; 24] {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut put = |at: usize, length: usize, mut number: u64| {
        for digit in text[at..at + length].iter_mut().rev() {
            *digit += (number % 10) as u8;
            number /= 10;
        }
    };
    put(0, 4, year);
    put(5, 2, month);
    put(8, 2, day);
    put(11, 2, second / 3600);
    put(14, 2, second / 60 % 60);
    put(17, 2, second % 60);
    put(20, 3, u64::from(since.subsec_millis()));
    text
}

/// The year, month and day so many days after the first of 1970, in the Gregorian calendar.
///
/// Years are counted from March, so that a leap day is a year's last, and in spans of 400 years, which are alike.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // From 1 March of the year 0.
    let (span, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // From March, as 0.
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (span * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use proptest::prelude::*;
    use tracing_subscriber::{Layer, Registry, fmt::MakeWriter, layer::SubscriberExt};

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Output {
        type Writer = Output;

        fn make_writer(&self) -> Output {
            self.clone()
        }
    }

    impl Output {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    /// What is logged, written by us and by tracing-subscriber, without the times.
    fn both(log: impl FnOnce()) -> [Vec<String>; 2] {
        let (ours, theirs) = (Output::default(), Output::default());
        let layer = tracing_subscriber::fmt::layer().with_ansi(false);
        let layer = layer.with_target(false).with_writer(theirs.clone());
        let subscriber = Registry::default().with(layer).with(
            tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_writer(ours.clone())
                .fmt_fields(TextFormat)
                .event_format(TextFormat)
                .boxed(),
        );
        tracing::subscriber::with_default(subscriber, log);
        [ours, theirs].map(|kept| {
            let text = kept.text();
            assert!(text.ends_with('\n'));
            let lines = text.split_terminator("\n2");
            lines
                .map(|line| line.split_once('Z').unwrap().1.to_owned())
                .collect()
        })
    }

    #[test]
    fn fields_have_their_colours_and_bring_none() {
        let [ours, theirs] = [Output::default(), Output::default()];
        let theirs_first = tracing_subscriber::fmt::layer().with_ansi(true);
        let ours_second = tracing_subscriber::fmt::layer().with_ansi(true);
        let subscriber = Registry::default()
            .with(theirs_first.without_time().with_writer(theirs.clone()))
            .with(
                ours_second
                    .without_time()
                    .with_writer(ours.clone())
                    .fmt_fields(TextFormat),
            );
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(r#type = "a", n = 1, shown = %"b", "first");
            assert_eq!(ours.text(), theirs.text());
            tracing::info!(shown = %"\u{1b}[31m\n", "second");
        });
        assert!(ours.text().ends_with("\\x1b[31m\\n\n"), "{}", ours.text());
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer \u{1b}[31m")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_line_is_what_tracing_subscriber_writes_without_colours() {
        let [ours, theirs] = both(|| {
            let outer = tracing::info_span!("request", id = "req_1", path = "/\"é\u{7f}", n = 7);
            let _outer = outer.enter();
            let empty = tracing::info_span!("empty");
            let _empty = empty.enter();
            let (name, status) = ("api__echo", 200u16);
            tracing::info!(tool.name = %name, status, duration_ms = u64::MAX, "Called `{name}`");
            tracing::warn!(
                ok = true,
                n = -3,
                ratio = 0.5,
                big = u128::MAX,
                "é\u{1b}\u{9b}\u{7f}\t"
            );
            tracing::error!(r#type = ?Some("x"), message = "first");
            tracing::debug!("");
            tracing::trace!(text = "a\\b\n", empty = "");
        });
        assert_eq!(ours, theirs);
        assert_eq!(ours.len(), 5);
    }

    #[test]
    fn a_value_of_several_words_is_in_quotes_however_it_is_given() {
        let [ours, _] = both(|| {
            let outer = Outer(io::Error::other("inner"));
            let error = &outer as &(dyn std::error::Error + 'static);
            tracing::info!(error, "first");
            tracing::info!(error = %outer, "second");
            tracing::info!(error = outer.to_string(), "third");
            tracing::info!(why = ?io::ErrorKind::NotFound, id = %"a\"b\n", "fourth");
        });
        let expected = [
            "  INFO first error=\"outer \\u{1b}[31m: inner\"",
            "  INFO second error=\"outer \\u{1b}[31m\"",
            "  INFO third error=\"outer \\u{1b}[31m\"",
            "  INFO fourth why=NotFound id=a\"b\\n\n",
        ];
        assert_eq!(ours, expected);
    }

    #[test]
    fn a_line_without_a_span_has_no_place_for_one() {
        let [ours, theirs] = both(|| tracing::info!(zero = 0, "Listening"));
        assert_eq!(
            (&ours, ours[0].as_str()),
            (&theirs, "  INFO Listening zero=0\n")
        );
    }

    #[track_caller]
    fn check(seconds: u64, millis: u32, expected: &str) {
        let since = Duration::new(seconds, millis * 1_000_000 + 999_999);
        assert_eq!(str::from_utf8(&timestamp(since)).unwrap(), expected);
    }

    #[test]
    fn a_time_is_written_as_rfc_3339() {
        check(0, 0, "1970-01-01T00:00:00.000Z");
        check(951_782_399, 999, "2000-02-28T23:59:59.999Z");
        check(951_782_400, 0, "2000-02-29T00:00:00.000Z");
        check(4_107_542_399, 1, "2100-02-28T23:59:59.001Z");
        check(4_107_542_400, 1, "2100-03-01T00:00:00.001Z");
        check(253_402_300_799, 0, "9999-12-31T23:59:59.000Z");
    }

    proptest! {
        #[test]
        fn any_day_is_the_day_after_the_one_before(days in 1u64..2_900_000) {
            let (before, after) = (date(days - 1), date(days));
            let is_leap = |year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match before.1 {
                2 => 28 + u64::from(is_leap(before.0)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match before {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == length => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
            prop_assert_eq!(after, expected);
        }

        #[test]
        fn any_text_is_written_as_tracing_subscriber_does(text in "\\PC{0,40}") {
            let word = text.replace(' ', "");
            let [ours, theirs] = both(|| tracing::info!(text, shown = %word, "said {text}"));
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn no_text_begins_a_line_or_commands_a_terminal(text: String) {
            let ours = Output::default();
            let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(ours.clone());
            let subscriber = Registry::default().with(lines.fmt_fields(TextFormat).event_format(TextFormat));
            tracing::subscriber::with_default(subscriber, || {
                let text = format!("\n{text}");
                let span = tracing::info_span!("request", text, shown = %text);
                let error = &io::Error::other(text.clone()) as &(dyn std::error::Error + 'static);
                span.in_scope(|| tracing::info!(text, shown = %text, error, "said {text}"));
            });
            let ours = ours.text();
            let line = ours.strip_suffix('\n').expect("a line ends");
            prop_assert!(!line.contains(|it: char| it.is_control() && it != '\t'), "{:?}", line);
        }
    }
}
