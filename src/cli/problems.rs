//! The problems of a configuration, as text and as JSON.

use serde_json::json;

use super::terminal;
use crate::config::Problem;

/// One line each.
pub(super) fn text(problems: &[Problem]) -> String {
    let mut out = String::new();
    for Problem { path, message } in problems {
        out.push_str(&format!(
            "{} {}: {}\n",
            terminal::bad("error:"),
            terminal::bold(path),
            terminal::safe(message)
        ));
    }
    out.push_str(&format!(
        "{} in the configuration; nothing was started\n",
        terminal::count(problems.len(), "problem")
    ));
    out
}

/// What is odd, in one line.
pub(super) fn warning(Problem { path, message }: &Problem) -> String {
    let (warning, message) = (terminal::odd("warning:"), terminal::safe(message));
    format!("{warning} {path}: {message}\n")
}

/// One object.
pub(super) fn json(problems: &[Problem]) -> serde_json::Result<String> {
    let all: Vec<_> = problems.iter().map(as_json).collect();
    Ok(serde_json::to_string_pretty(&json!({"ok": false, "problems": all}))? + "\n")
}

/// A problem or a warning as an object.
pub(super) fn as_json(problem: &Problem) -> serde_json::Value {
    json!({"path": problem.path, "message": problem.message})
}
