//! The state of a check: the problems so far, and the small rules that all parts share.

use std::{
    collections::BTreeMap,
    fmt::Display,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::{
    Keys, duration,
    environment::Environment,
    problem::Problem,
    raw::{RawConfig, RawDuration},
};

/// Collects all problems while a configuration is being read.
pub(super) struct Check<'a> {
    /// The environment and the files.
    pub(super) environment: &'a Environment<'a>,
    /// The folder that relative paths in the configuration file start from.
    pub(super) base: PathBuf,
    /// The problems.
    pub(super) problems: Vec<Problem>,
    /// Probable mistakes.
    pub(super) warnings: Vec<Problem>,
    /// Notes.
    pub(super) notes: Vec<Problem>,
    /// Missing values of the part that is being read.
    pub(super) missing: Vec<Problem>,
    /// Missing values that are no problem, because of `keys`: of `api_keys` and of upstreams.
    pub(super) unset: Vec<Problem>,
    /// Which keys must be there.
    pub(super) keys: Keys,
}

/// The longest time that may be configured: a day.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The shortest; anything less is probably a wrong unit.
const SHORTEST: Duration = Duration::from_millis(1);

impl<'a> Check<'a> {
    pub(super) fn new(environment: &'a Environment<'a>) -> Check<'a> {
        let base = environment.folder.clone();
        Check {
            environment,
            base,
            problems: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            missing: Vec::new(),
            unset: Vec::new(),
            keys: Keys::default(),
        }
    }

    pub(super) fn problem(&mut self, path: impl Display, message: impl Display) {
        self.problems.push(Problem {
            path: path.to_string(),
            message: message.to_string(),
        });
    }

    pub(super) fn warn(&mut self, path: impl Display, message: impl Display) {
        self.warnings.push(Problem {
            path: path.to_string(),
            message: message.to_string(),
        });
    }

    /// Notes a missing value; [`Check::settle_missing`] decides the consequence.
    pub(super) fn missing(&mut self, path: impl Display, message: impl Display) {
        self.missing.push(Problem {
            path: path.to_string(),
            message: message.to_string(),
        });
    }

    /// Missing values become problems of the part that was read, unless its keys are not required.
    pub(super) fn settle_missing(&mut self) {
        let missing = std::mem::take(&mut self.missing);
        match self.keys {
            Keys::All => self.problems.extend(missing),
            Keys::Used => self.unset.extend(missing),
        }
    }

    /// Reads one part; also returns the required values that are missing.
    pub(super) fn reading<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> (T, Vec<Problem>) {
        let before = std::mem::take(&mut self.missing);
        let part = read(self);
        (part, std::mem::replace(&mut self.missing, before))
    }

    /// Reads the text of a configuration file, table by table and key by key.
    pub(super) fn read_toml(&mut self, file: &Path, text: &str) -> RawConfig {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut top = match text.parse::<Table>() {
            Ok(top) => top,
            Err(error) => {
                let place = format!("{}: {}", file.display(), place(text, &error));
                self.problem(place, error.message());
                return RawConfig::default();
            }
        };
        let parts = [
            "upstreams",
            "loop",
            "servers",
            "profiles",
            "functions",
            "models",
            "keys",
            "policy",
            "approvals",
            "audit",
        ];
        let [
            upstreams,
            limits,
            servers,
            profiles,
            functions,
            models,
            keys,
            policy,
            approvals,
            audit,
        ] = parts.map(|key| top.remove(key));
        let mut raw: RawConfig = self.table("", top);
        raw.upstreams = self.tables_of_list("upstreams", upstreams);
        if let Some(table) = limits.and_then(|value| self.expect_table("loop", value)) {
            raw.limits = self.table("loop", table);
        }
        raw.servers = self.tables_by_name("servers", servers);
        raw.profiles = self.tables_by_name("profiles", profiles);
        raw.models = self.tables_by_name("models", models);
        raw.functions = self.tables_by_name("functions", functions);
        raw.client_keys = self.tables_by_name("keys", keys);
        if let Some(table) = approvals.and_then(|value| self.expect_table("approvals", value)) {
            raw.approvals = self.table("approvals", table);
        }
        if let Some(table) = audit.and_then(|value| self.expect_table("audit", value)) {
            raw.audit = self.table("audit", table);
        }
        if let Some(mut table) = policy.and_then(|value| self.expect_table("policy", value)) {
            let rules = table.remove("rules");
            raw.policy = self.table("policy", table);
            raw.policy.rules = self.tables_of_list("policy.rules", rules);
        }
        raw
    }

    fn tables_by_name<T: DeserializeOwned + Default>(
        &mut self,
        key: &str,
        value: Option<Value>,
    ) -> BTreeMap<String, T> {
        let tables = value.and_then(|value| self.expect_table(key, value));
        let tables = tables.unwrap_or_default().into_iter();
        let read = |(name, one)| {
            let path = format!("{key}.{name}");
            let table = self.expect_table(&path, one)?;
            Some((name, self.table(&path, table)))
        };
        tables.filter_map(read).collect()
    }

    fn tables_of_list<T: DeserializeOwned + Default>(
        &mut self,
        key: &str,
        value: Option<Value>,
    ) -> Vec<T> {
        let list = self.list(key, value).into_iter().enumerate();
        let read = |(i, one)| {
            let path = format!("{key}[{i}]");
            let table = self.expect_table(&path, one)?;
            Some(self.table(&path, table))
        };
        list.filter_map(read).collect()
    }

    fn list(&mut self, path: &str, value: Option<Value>) -> Vec<Value> {
        match value {
            None => Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.problem(
                    path,
                    format_args!("must be a list; write `[[{path}]]` above each"),
                );
                Vec::new()
            }
        }
    }

    /// A whole number within its bounds, or the default.
    pub(super) fn number<N: TryFrom<i64>>(
        &mut self,
        path: impl Display,
        written: Option<i64>,
        bounds: RangeInclusive<i64>,
        default: N,
    ) -> N {
        let Some(written) = written else {
            return default;
        };
        if !bounds.contains(&written) {
            let (low, high) = (bounds.start(), bounds.end());
            self.problem(
                path,
                format_args!("must be between {low} and {high}, not {written}"),
            );
            return default;
        }
        N::try_from(written).unwrap_or(default)
    }

    /// A duration within the general bounds, or the default.
    pub(super) fn time(
        &mut self,
        path: impl Display,
        written: Option<RawDuration>,
        default: Duration,
    ) -> Duration {
        let Some(RawDuration(written)) = written else {
            return default;
        };
        if written < SHORTEST {
            self.problem(path, "must be longer than nothing");
            return default;
        }
        if written > LONGEST {
            let (longest, written) = (duration::show(LONGEST), duration::show(written));
            self.problem(
                path,
                format_args!("must be at most {longest}, not {written}"),
            );
            return default;
        }
        written
    }
}

/// Where the `toml` crate stopped reading, as `line 3, column 5`.
fn place(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}")
}
