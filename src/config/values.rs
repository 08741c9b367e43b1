//! Texts that refer to other texts: `env:NAME`, `file:PATH`, and `${NAME}` within a text.
//!
//! The value may be a secret, so no message repeats it; messages name the variable or the file.

use std::{
    fmt::Display,
    path::{MAIN_SEPARATOR_STR, Path},
};

use super::check::Check;
use crate::secret::Secret;

/// Where a value was written, which decides what it may refer to.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// In `toolway.toml`: a whole value may be `env:NAME` or `file:PATH`.
    Toml,
    /// In the file of another MCP client: only `${…}` means something.
    McpFile {
        /// What `${workspaceFolder}` stands for.
        workspace: std::path::PathBuf,
        /// What `${input:NAME}` asks for, by name.
        inputs: Vec<(String, String)>,
    },
}

impl Check<'_> {
    /// A key that should not be written in the file in plain text.
    pub(super) fn key(&mut self, path: &str, written: &str) -> Option<Secret> {
        if !written.starts_with("env:") && !written.starts_with("file:") && !written.contains("${")
        {
            self.warn(
                path,
                "a key in plain text; better write `env:NAME` or `file:PATH`",
            );
        }
        let text = self.value(path, written, &Origin::Toml)?;
        if text.trim().is_empty() {
            self.problem(path, "is empty");
            return None;
        }
        Some(Secret::new(text))
    }

    /// A value that may stand for another as a whole or in parts.
    pub(super) fn value(&mut self, path: &str, written: &str, origin: &Origin) -> Option<String> {
        if matches!(origin, Origin::Toml) {
            if let Some(name) = written.strip_prefix("env:") {
                let found = self.variable(name.trim());
                return self.noted(path, found);
            }
            if let Some(file) = written.strip_prefix("file:") {
                return self.file(path, file.trim(), origin);
            }
        }
        self.text(path, written, origin)
    }

    /// A text in which each `${…}` stands for another; `$${` is a plain `${`.
    pub(super) fn text(&mut self, path: &str, written: &str, origin: &Origin) -> Option<String> {
        let mut out = String::new();
        let mut rest = written;
        let mut whole = true;
        while let Some(at) = rest.find("${") {
            if rest[..at].ends_with('$') {
                out.push_str(&rest[..at]);
                out.push('{');
                rest = &rest[at + 2..];
                continue;
            }
            let Some(end) = rest[at..].find('}') else {
                break;
            };
            out.push_str(&rest[..at]);
            match self.reference(path, &rest[at + 2..at + end], origin) {
                Some(text) => out.push_str(&text),
                None => whole = false,
            }
            rest = &rest[at + end + 1..];
        }
        out.push_str(rest);
        whole.then_some(out)
    }

    /// What one `${…}` stands for. Claude Code writes `${NAME}` and `${NAME:-default}`, Cursor and VS Code
    /// `${env:NAME}` and names of folders, Windsurf also `${file:PATH}`.
    fn reference(&mut self, path: &str, inner: &str, origin: &Origin) -> Option<String> {
        if let Some(file) = inner.strip_prefix("file:") {
            return self.file(path, file, origin);
        }
        let found = if let Some(name) = inner.strip_prefix("env:") {
            self.variable_or_default(name)
        } else if let Some(input) = inner.strip_prefix("input:") {
            Err(NoValue::Missing(ask_for_input(input, origin)))
        } else {
            match inner {
                "workspaceFolder" => Ok(self.folder_of(origin).display().to_string()),
                "workspaceFolderBasename" => Ok(last_part(self.folder_of(origin))),
                "userHome" => self.variable("HOME"),
                "pathSeparator" | "/" => Ok(MAIN_SEPARATOR_STR.to_owned()),
                _ => self.variable_or_default(inner),
            }
        };
        self.noted(path, found)
    }

    fn variable_or_default(&self, inner: &str) -> Result<String, NoValue> {
        match inner.split_once(":-") {
            Some((name, default)) => {
                let found = (self.environment.env)(name).filter(|text| !text.is_empty());
                Ok(found.unwrap_or_else(|| default.to_owned()))
            }
            None => self.variable(inner),
        }
    }

    fn variable(&self, name: &str) -> Result<String, NoValue> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(fits) {
            let message = format!("`{name}` is no name of an environment variable");
            return Err(NoValue::Wrong(message));
        }
        let missing = || format!("the environment variable `{name}` is not set");
        (self.environment.env)(name).ok_or_else(|| NoValue::Missing(missing()))
    }

    /// Where relative paths start.
    pub(super) fn folder_of<'o>(&'o self, origin: &'o Origin) -> &'o Path {
        match origin {
            Origin::Toml => &self.base,
            Origin::McpFile { workspace, .. } => workspace,
        }
    }

    /// The text of a file without the final line end that editors and `echo` add.
    pub(super) fn file(&mut self, path: &str, file: &str, origin: &Origin) -> Option<String> {
        let name = match (file.strip_prefix("~/"), (self.environment.env)("HOME")) {
            (Some(rest), Some(home)) => Path::new(&home).join(rest),
            _ => self.folder_of(origin).join(file),
        };
        match (self.environment.read)(&name) {
            Ok(found) => {
                if found.open_to_all {
                    let advice = format!("`{file}` can be read by every user of this machine");
                    self.warn(path, format_args!("{advice}; `chmod 600` closes it"));
                }
                Some(found.text.trim_end_matches(['\r', '\n']).to_owned())
            }
            Err(error) => {
                self.missing(path, format_args!("`{file}` cannot be read: {error}"));
                None
            }
        }
    }

    fn noted<T>(&mut self, path: impl Display, found: Result<T, NoValue>) -> Option<T> {
        match found {
            Ok(value) => return Some(value),
            Err(NoValue::Wrong(message)) => self.problem(path, message),
            Err(NoValue::Missing(message)) => self.missing(path, message),
        }
        None
    }
}

/// Why a reference has no value.
enum NoValue {
    /// The reference is invalid.
    Wrong(String),
    /// The value does not exist.
    Missing(String),
}

fn ask_for_input(input: &str, origin: &Origin) -> String {
    let about = match origin {
        Origin::McpFile { inputs, .. } => inputs.iter().find(|(id, _)| id == input),
        Origin::Toml => None,
    };
    let about = about
        .map(|(_, text)| format!(" ({text})"))
        .unwrap_or_default();
    let variable: String = input
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    format!(
        "`${{input:{input}}}`{about} is asked for by the editor, and toolway has nobody to ask; \
         put it into the environment and write `${{env:{variable}}}`"
    )
}

fn last_part(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
