//! What is noted of a request for the line that the log gets when it ends. Who made the request writes that line;
//! what is noted here is what only the gateway knows.

use std::sync::{Mutex, MutexGuard, PoisonError};

use toolway_core::translate::usage::Counts;

use super::failure::{Failure, Outcome};

/// Longest warning, in characters.
const MAX_WARNING: usize = 400;

/// What is known of one request, filled in while it is answered.
#[derive(Debug, Default)]
pub struct Record(Mutex<Option<Box<Details>>>);

/// See [`Record`]. Each is absent where it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The model that was asked for.
    pub model: Option<String>,
    /// The name of the upstream.
    pub upstream: Option<String>,
    /// The method of a request of MCP.
    pub method: Option<String>,
    /// How often the model was asked.
    pub rounds: Option<u32>,
    /// How many tools were called.
    pub calls: Option<u32>,
    /// Tokens, summed over all rounds.
    pub usage: Counts,
    /// What the client should know about its request; each is ASCII and goes into a header of the response.
    pub warnings: Vec<String>,
    /// Why the answer failed after it began.
    pub failure: Option<(Outcome, String)>,
}

impl Record {
    /// Adds to what is known.
    pub fn note(&self, note: impl FnOnce(&mut Details)) {
        note(self.details().get_or_insert_default());
    }

    /// Counts tool calls, beside those that are counted already.
    pub fn add_calls(&self, calls: usize) {
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        self.note(|details| {
            details.calls = Some(details.calls.unwrap_or(0).saturating_add(calls));
        });
    }

    /// Warns the client with a header `X-Toolway-Warning`; to be said before the response begins. Characters that a
    /// header cannot hold are sent as `?`. What was said before is not said again.
    pub fn warn(&self, warning: &str) {
        let fits = |c: char| c.is_ascii_graphic() || c == ' ';
        let warning = warning.chars().take(MAX_WARNING);
        let warning = warning.map(|c| if fits(c) { c } else { '?' }).collect();
        self.note(|details| {
            if !details.warnings.contains(&warning) {
                details.warnings.push(warning);
            }
        });
    }

    /// What the client should know.
    pub fn warnings(&self) -> Vec<String> {
        let details = self.details();
        details
            .as_ref()
            .map_or_else(Vec::new, |it| it.warnings.clone())
    }

    /// Notes why an answer failed that had begun.
    pub fn fail(&self, failure: &Failure) {
        self.note(|details| details.failure = Some((failure.outcome(), failure.to_string())));
    }

    /// What is known; afterwards nothing is.
    pub fn take(&self) -> Details {
        self.details().take().map(|it| *it).unwrap_or_default()
    }

    fn details(&self) -> MutexGuard<'_, Option<Box<Details>>> {
        // A thread that panicked with it has set whole members.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_plain_ascii_and_bounded() {
        let record = Record::default();
        record.warn("n is 2: gateway tools were not offered");
        record.warn("server not ready: dä\nta");
        record.warn(&"x".repeat(MAX_WARNING + 1));
        let expected = [
            "n is 2: gateway tools were not offered",
            "server not ready: d??ta",
            &"x".repeat(MAX_WARNING),
        ]
        .map(str::to_owned);
        assert_eq!(record.warnings(), expected);
    }
}
