//! What is behind `/mcp/NAME`: the `[profiles.NAME]` tables.

use std::collections::BTreeMap;

use super::{check::Check, raw::RawProfile};
use crate::gateway::mcp::{Profile, ProfileShows};
use toolway_core::catalog::Selection;
use toolway_protocol::tool::ServerId;

/// Names that are paths of their own below `/mcp`.
const RESERVED: [&str; 1] = ["s"];

impl Check<'_> {
    /// All profiles; `known` are the names of servers and of groups of functions, `switched_off` those that are not used.
    pub(super) fn profiles(
        &mut self,
        written: BTreeMap<String, RawProfile>,
        known: &[ServerId],
        switched_off: &[ServerId],
    ) -> Vec<Profile> {
        let checked = written
            .into_iter()
            .filter_map(|(name, raw)| self.profile(name, raw, known, switched_off));
        checked.collect()
    }

    fn profile(
        &mut self,
        name: String,
        raw: RawProfile,
        known: &[ServerId],
        switched_off: &[ServerId],
    ) -> Option<Profile> {
        let path = format!("profiles.{name}");
        if let Err(error) = ServerId::parse(&name) {
            self.problem(&path, error);
            return None;
        }
        if RESERVED.contains(&name.as_str()) {
            self.problem(
                &path,
                format_args!("`/mcp/{name}` is where lent functions are; choose another name"),
            );
            return None;
        }
        let shows = match (raw.server, raw.tools) {
            (Some(server), None) => {
                let at = format!("{path}.server");
                let is_it = |it: &&ServerId| it.as_str() == server;
                let used = known.iter().find(is_it);
                let Some(found) = used.or_else(|| switched_off.iter().find(is_it)) else {
                    let message =
                        format!("there is no server or group of functions named `{server}`");
                    self.problem(at, message);
                    return None;
                };
                if used.is_none() {
                    let message = format!("shows nothing, because `{server}` is switched off");
                    self.warn(at, message);
                }
                ProfileShows::Server(found.clone())
            }
            (None, Some(tools)) => {
                let odd = tools
                    .iter()
                    .position(|it| it.trim().is_empty() || it.contains(','));
                if let Some(at) = odd {
                    self.problem(
                        format_args!("{path}.tools[{at}]"),
                        "must be one pattern, such as `files__*` or `!files__delete`",
                    );
                    return None;
                }
                match Selection::parse(Some(&tools.join(",")), None, &[], &[]) {
                    Ok(selection) => ProfileShows::Tools(selection),
                    Err(error) => {
                        self.problem(format_args!("{path}.tools"), error.message);
                        return None;
                    }
                }
            }
            (Some(_), Some(_)) => {
                self.problem(&path, "has both `server` and `tools`; give one of them");
                return None;
            }
            (None, None) => {
                let message = "needs either `server` (all of one server, under its own names) or `tools` (patterns)";
                self.problem(&path, message);
                return None;
            }
        };
        Some(Profile { name, shows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    #[track_caller]
    fn check(toml: &str, expected: Result<ProfileShows, &str>) {
        let environment = Environment {
            env: &|_| None,
            read: &|_| Err(std::io::ErrorKind::NotFound.into()),
            folder: "/".into(),
        };
        let raw: RawProfile = toml::from_str(toml).unwrap();
        let mut checker = Check::new(&environment);
        let known = [ServerId::parse("files").unwrap()];
        let profiles = checker.profiles([("p".to_owned(), raw)].into(), &known, &[]);
        let problem = checker.problems.first().map(ToString::to_string);
        match expected {
            Ok(shows) => assert_eq!(profiles[0].shows, shows),
            Err(message) => assert_eq!(problem.as_deref(), Some(message)),
        }
    }

    #[test]
    fn a_profile_is_a_server_or_a_choice_of_tools() {
        let files = ServerId::parse("files").unwrap();
        check("server = 'files'", Ok(ProfileShows::Server(files)));
        let selection = Selection::parse(Some("files__*,!x"), None, &[], &[]).unwrap();
        check(
            "tools = ['files__*', '!x']",
            Ok(ProfileShows::Tools(selection)),
        );
    }

    #[test]
    fn what_it_cannot_be_is_said() {
        check(
            "server = 'nobody'",
            Err("profiles.p.server: there is no server or group of functions named `nobody`"),
        );
        let either = "profiles.p: needs either `server` (all of one server, under its own names) or `tools` (patterns)";
        check("", Err(either));
        let both = "profiles.p: has both `server` and `tools`; give one of them";
        check("server = 'files'\ntools = []", Err(both));
        check(
            "tools = ['a,b']",
            Err("profiles.p.tools[0]: must be one pattern, such as `files__*` or `!files__delete`"),
        );
    }
}
