//! The log: set up once by `cli`, written to by everything from row 6 up.
//!
//! It goes to standard error, so that standard output holds results only. Arguments, results and tokens
//! are never logged. Panics go the same way.
//!
//! Where the lines go is [`lines`], and what they look like `text`, which leaves colours to tracing-subscriber.

pub mod lines;
mod text;

use std::{
    fmt,
    panic::{self, PanicHookInfo},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};

pub use self::text::rfc3339;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    layer::{Context, SubscriberExt},
    util::SubscriberInitExt,
};

/// What is logged, and how.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Which messages. Default: `info`.
    pub filter: LogFilter,
    /// For whom. Default: text.
    pub format: Format,
    /// Colours in text. Default: false.
    pub colours: bool,
}

/// For whom the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One line each, for people.
    #[default]
    Text,
    /// One JSON object each, for machines.
    Json,
}

/// Which messages are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Why a text is no [`LogFilter`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no level (error, warn, info, debug, trace) and no list of TARGET=LEVEL")]
pub struct FilterError {
    text: String,
}

impl Default for LogFilter {
    fn default() -> LogFilter {
        LogFilter::level(Level::INFO)
    }
}

impl LogFilter {
    /// A level for toolway itself; what it is built on logs warnings and errors only.
    pub fn level(level: Level) -> LogFilter {
        LogFilter(match level {
            // What rmcp says below that holds whole messages, with arguments and results.
            Level::TRACE => "warn,toolway=trace".into(),
            Level::DEBUG => "warn,toolway=debug".into(),
            Level::INFO => "warn,toolway=info".into(),
            level => level.to_string().to_lowercase(),
        })
    }

    /// Reads a level, `off`, or a list such as `info,toolway::upstream=debug`.
    pub fn parse(text: &str) -> Result<LogFilter, FilterError> {
        let text = text.trim();
        let refused = || FilterError {
            text: text.to_owned(),
        };
        if let Ok(level) = text.parse::<Level>() {
            return Ok(LogFilter::level(level));
        }
        let is_level = |level: &str| level == "off" || level.parse::<Level>().is_ok();
        let mut parts = text.split(',').map(str::trim);
        let knows_a_level = parts.all(|part| is_level(part.rsplit('=').next().unwrap_or_default()));
        if !knows_a_level || EnvFilter::try_new(text).is_err() {
            return Err(refused());
        }
        Ok(LogFilter(text.to_owned()))
    }
}

/// Starts the log. A second start in one process changes nothing.
///
/// # Errors
/// When the thread that writes it cannot be started.
pub fn start(config: &Config) -> std::io::Result<()> {
    lines::start()?;
    panic::set_hook(Box::new(log_panic));
    let filter = EnvFilter::new(&config.filter.0);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(lines::Lines {
            json: config.format == Format::Json,
        })
        .with_timer(text::Clock)
        .log_internal_errors(false);
    let lines: Box<dyn Layer<_> + Send + Sync> = match (config.format, config.colours) {
        (Format::Text, true) => {
            let lines = lines.with_ansi(true).with_target(false);
            lines.fmt_fields(text::TextFormat).boxed()
        }
        (Format::Text, false) => {
            let lines = lines.with_ansi(false).fmt_fields(text::TextFormat);
            lines.event_format(text::TextFormat).boxed()
        }
        (Format::Json, _) => lines.json().flatten_event(true).boxed(),
    };
    _ = Registry::default()
        .with(lines)
        .with(filter)
        .with(WithoutNoise)
        .try_init();
    Ok(())
}

/// Logs a panic. The standard library's hook would wait for a reader of standard error that has stalled.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or_default();
    let at = panic.location().map(ToString::to_string);
    if tracing::enabled!(Level::ERROR) {
        tracing::error!(panic = text, at, "A thread panicked");
    } else {
        lines::say(&format!(
            "a thread panicked at {}: {text}\n",
            at.unwrap_or_default()
        ));
    }
    lines::flush();
}

/// Messages that sound like trouble and are none, or say again what we say ourselves.
///
/// rmcp reports an error for every stateless request that a server has finished (3.8.0, `service.rs`), and
/// for every connection that ends (`transport/worker.rs`), which `upstream::mcp` tells with the server's name. It
/// writes out what a server is refused, too, with whatever the client put into it.
const NOISE: [(&str, &str); 3] = [
    (
        "rmcp::service",
        "failed to send pending response during drain",
    ),
    ("rmcp::transport::worker", "worker quit with fatal"),
    ("rmcp::service", "response error"),
];

/// Leaves out [`NOISE`].
struct WithoutNoise;

impl<S: Subscriber> Layer<S> for WithoutNoise {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let target = event.metadata().target();
        let mut noise = NOISE.iter().filter(|(from, _)| *from == target).peekable();
        if noise.peek().is_none() {
            return true;
        }
        let mut message = LogMessage(String::new());
        event.record(&mut message);
        noise.all(|(_, text)| !message.0.contains(text))
    }
}

/// The message of an event.
struct LogMessage(String);

impl Visit for LogMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[track_caller]
    fn check(text: &str, filter: &str) {
        assert_eq!(LogFilter::parse(text), Ok(LogFilter(filter.into())));
    }

    #[test]
    fn a_level_is_toolways_own() {
        check("info", "warn,toolway=info");
        check("DEBUG", "warn,toolway=debug");
        check("error", "error");
        check("trace", "warn,toolway=trace");
    }

    #[test]
    fn a_list_is_taken_as_it_is() {
        check(
            "info,toolway::upstream=debug",
            "info,toolway::upstream=debug",
        );
        check("off", "off");
    }

    #[test]
    fn nonsense_is_no_filter() {
        for text in ["loud", "", "toolway=loud", "info,,"] {
            assert!(LogFilter::parse(text).is_err(), "{text}");
        }
    }

    /// Keeps the messages that reach it.
    #[derive(Clone, Default)]
    struct Events(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Events {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut message = LogMessage(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(message.0);
        }
    }

    #[test]
    fn only_the_noise_is_left_out() {
        let kept = Events::default();
        let log = Registry::default().with(kept.clone()).with(WithoutNoise);
        tracing::subscriber::with_default(log, || {
            let error = "closed";
            tracing::error!(target: "rmcp::service", %error, "failed to send pending response during drain");
            tracing::warn!(target: "rmcp::service", ?error, "response error");
            tracing::error!(target: "rmcp::transport::worker", "worker quit with fatal: {error}, when connecting");
            tracing::error!(target: "rmcp::service", "fail to response message");
            tracing::error!(target: "toolway", "failed to send pending response during drain");
        });
        assert_eq!(
            *kept.0.lock().unwrap(),
            [
                "fail to response message",
                "failed to send pending response during drain"
            ]
        );
    }
}
