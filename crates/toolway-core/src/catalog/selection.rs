//! Which tools a request wants, as its headers and its body say.

use std::{collections::HashMap, sync::Arc};

use super::Offered;
use crate::translate::names::SEPARATOR;
use toolway_protocol::{
    openai::request::{AllowedTools, McpChoice, McpTool, RequestError, RequireApproval},
    tool::{FunctionName, ServerId},
};

/// Most patterns of one request, headers and body together: each is tried on every tool.
const MAX_PATTERNS: usize = 1024;

/// Labels of an `mcp` entry that stand for every server, unless a server has that name.
const EVERY_SERVER: [&str; 2] = ["toolway", "*"];

/// A choice among the offered tools. It can only narrow: headers and body must both agree to a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    tools: Option<Patterns>,
    servers: Option<Patterns>,
    entries: Vec<SelectionEntry>,
    /// Offered names that a limit leaves out after others.
    kept: HashMap<String, Closeness>,
}

/// How closely a request named a tool; what was named the least is left out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closeness {
    /// It was not excluded.
    Default,
    /// A pattern or its server was named.
    Pattern,
    /// Its name is somewhere in the conversation.
    Mentioned,
    /// It was named.
    Name,
}

impl Selection {
    /// Every tool.
    pub fn everything() -> Selection {
        Selection::default()
    }

    /// Reads the headers `X-Toolway-Tools` and `X-Toolway-Servers` and the `mcp` entries of the body.
    ///
    /// A header is a list of patterns separated by commas, in which `*` stands for anything. A pattern for
    /// tools matches the offered name, by `server/tool`, and the server's own name for the tool.
    /// `!pattern` takes out what it matches; a list of such patterns alone begins with everything. An empty
    /// list and `none` select nothing. Patterns in headers may match nothing. All patterns together are at
    /// most 1024.
    ///
    /// Where there are `mcp` entries, only what they name is selected. `server_label` is the name of one
    /// of the `known` servers, a pattern that matches one, or `toolway` or `*` for all; everything else is
    /// refused. `allowed_tools` holds patterns for tools.
    pub fn parse(
        tools: Option<&str>,
        servers: Option<&str>,
        entries: &[McpTool],
        known: &[ServerId],
    ) -> Result<Selection, RequestError> {
        let selection = Selection {
            tools: tools.map(Patterns::parse),
            servers: servers.map(Patterns::parse),
            entries: entries
                .iter()
                .map(|entry| SelectionEntry::read(entry, known))
                .collect::<Result<_, _>>()?,
            ..Selection::default()
        };
        match selection.patterns() <= MAX_PATTERNS {
            true => Ok(selection),
            false => Err(RequestError::body(format!(
                "The request selects tools with more than {MAX_PATTERNS} patterns."
            ))),
        }
    }

    fn patterns(&self) -> usize {
        let lists = self.tools.iter().chain(&self.servers);
        let in_headers: usize = lists
            .map(|list| list.includes.len() + list.excludes.len())
            .sum();
        let in_entry = |entry: &SelectionEntry| 1 + entry.tools.as_ref().map_or(0, Vec::len);
        in_headers + self.entries.iter().map(in_entry).sum::<usize>()
    }

    /// These offered names count as named, so that a limit does not leave them out before others; for
    /// those that `tool_choice` names. It selects nothing that is not selected otherwise.
    pub fn prefer(&mut self, names: impl IntoIterator<Item = String>) {
        self.kept
            .extend(names.into_iter().map(|name| (name, Closeness::Name)));
    }

    /// These offered names are somewhere in the conversation, so that a limit leaves out others first.
    pub fn mention(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.kept.entry(name).or_insert(Closeness::Mentioned);
        }
    }

    /// Nothing was said: every tool, none before another.
    pub fn is_everything(&self) -> bool {
        self.tools.is_none() && self.servers.is_none() && self.entries.is_empty()
    }

    /// The request asks for tools, rather than leaving some out of what it would be offered anyway.
    pub fn asks_for_tools(&self) -> bool {
        let mut lists = self.tools.iter().chain(&self.servers);
        !self.entries.is_empty() || lists.any(|list| !list.includes.is_empty())
    }

    /// A header selects nothing, whatever the tools are.
    pub fn is_nothing(&self) -> bool {
        let mut lists = self.tools.iter().chain(&self.servers);
        lists.any(|list| list.includes.is_empty() && !list.only_excludes)
    }

    /// Some names are to be kept before others.
    pub(super) fn has_preferred(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(super) fn is_preferred(&self, name: &FunctionName) -> bool {
        self.kept.contains_key(name.as_str())
    }

    /// A tool of this server may be selected, as far as its name tells before its tools are known.
    pub fn may_select_of(&self, server: &ServerId) -> bool {
        let server = server.as_str();
        let by_tools = self.tools.as_ref();
        let by_servers = self.servers.as_ref();
        let matches_entry = |entry: &SelectionEntry| matches(&entry.servers, server);
        by_tools.is_none_or(|list| list.may_match_tools_of(server))
            && by_servers.is_none_or(|list| list.closeness(|it| matches(it, server)).is_some())
            && (self.entries.is_empty() || self.entries.iter().any(matches_entry))
    }

    /// The patterns for tools that match none of these, nor may match one of these servers, as they were written.
    pub fn unmatched(&self, tools: &[Arc<Offered>], others: &[ServerId]) -> Vec<String> {
        let is_unmatched = |pattern: &&String| {
            let alone = Patterns::parse(pattern);
            !tools.iter().any(|tool| names_tool(pattern, tool))
                && !others
                    .iter()
                    .any(|it| alone.may_match_tools_of(it.as_str()))
        };
        let lists = || self.tools.iter();
        let shown = lists().flat_map(|list| list.includes.iter().filter(is_unmatched).cloned());
        let hidden = lists().flat_map(|list| list.excludes.iter().filter(is_unmatched));
        shown.chain(hidden.map(|it| format!("!{it}"))).collect()
    }

    /// The tool is selected.
    pub fn selects(&self, tool: &Offered) -> bool {
        self.closeness(tool).is_some()
    }

    /// The request wants to be asked before this tool runs: one of the `mcp` entries that name it says so, or says nothing.
    pub fn asks_before(&self, tool: &Offered) -> bool {
        let mut naming = self
            .entries
            .iter()
            .filter(|entry| entry.closeness(tool).is_some());
        naming.any(|entry| entry.asks_before(tool))
    }

    /// How closely the request named this tool; `None` if it is not selected.
    pub(super) fn closeness(&self, tool: &Offered) -> Option<Closeness> {
        let by_tools = self
            .tools
            .as_ref()
            .map(|list| list.closeness(|it| names_tool(it, tool)));
        // A server that is named is still only a way to name many tools.
        let by_servers = self.servers.as_ref().map(|list| {
            let closeness = list.closeness(|it| matches(it, tool.server.as_str()))?;
            Some(closeness.min(Closeness::Pattern))
        });
        let by_entries = (!self.entries.is_empty()).then(|| {
            self.entries
                .iter()
                .filter_map(|entry| entry.closeness(tool))
                .max()
        });
        let mut closest = Closeness::Default;
        for said in [by_tools, by_servers, by_entries].into_iter().flatten() {
            closest = closest.max(said?);
        }
        let kept = self.kept.get(tool.name.as_str()).copied();
        Some(kept.map_or(closest, |kept| closest.max(kept)))
    }
}

/// A list of patterns as a header has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Patterns {
    includes: Vec<String>,
    excludes: Vec<String>,
    /// There is no include: begin with everything.
    only_excludes: bool,
}

impl Patterns {
    fn parse(list: &str) -> Patterns {
        let words: Vec<&str> = list
            .split(',')
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect();
        let excluded = |word: &&str| word.strip_prefix('!').map(|it| it.trim().to_owned());
        let excludes: Vec<String> = words.iter().filter_map(excluded).collect();
        let includes = words
            .iter()
            .filter(|it| !it.starts_with('!') && **it != "none");
        let includes: Vec<String> = includes.map(|it| (*it).to_owned()).collect();
        let only_excludes = !words.is_empty() && words.len() == excludes.len();
        Patterns {
            includes,
            excludes,
            only_excludes,
        }
    }

    /// The tools of this server are not known yet; a pattern that names another server matches none of them.
    fn may_match_tools_of(&self, server: &str) -> bool {
        let of_server = |pattern: &String| match pattern.split_once('/') {
            Some((named, _)) => matches(named, server),
            None => {
                let mut ends = pattern.match_indices(SEPARATOR).map(|(at, _)| at);
                !pattern.contains(SEPARATOR) || ends.any(|end| matches(&pattern[..end], server))
            }
        };
        self.only_excludes || self.includes.iter().any(of_server)
    }

    fn closeness(&self, is_match: impl Fn(&str) -> bool) -> Option<Closeness> {
        if self.excludes.iter().any(|pattern| is_match(pattern)) {
            return None;
        }
        let by_default = self.only_excludes.then_some(Closeness::Default);
        let matching = self.includes.iter().filter(|pattern| is_match(pattern));
        matching
            .map(|pattern| by_pattern_or_name(pattern))
            .max()
            .or(by_default)
    }
}

fn by_pattern_or_name(pattern: &str) -> Closeness {
    if pattern.contains('*') {
        Closeness::Pattern
    } else {
        Closeness::Name
    }
}

/// An `mcp` entry of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SelectionEntry {
    servers: String,
    tools: Option<Vec<String>>,
    read_only: bool,
    require_approval: Option<RequireApproval>,
}

impl SelectionEntry {
    fn read(entry: &McpTool, known: &[ServerId]) -> Result<SelectionEntry, RequestError> {
        let label = entry.server_label.as_str();
        let is_known = known.iter().any(|server| matches(label, server.as_str()));
        let servers = match is_known {
            true => label,
            false if EVERY_SERVER.contains(&label) => "*",
            false => return Err(unknown(entry, known)),
        };
        let allowed = entry.allowed_tools.clone().unwrap_or_default();
        Ok(SelectionEntry {
            servers: servers.to_owned(),
            tools: allowed.names,
            read_only: allowed.read_only,
            require_approval: entry.require_approval.clone(),
        })
    }

    /// The client is to be asked before this tool runs; OpenAI's default is that it is.
    fn asks_before(&self, tool: &Offered) -> bool {
        let is_in =
            |list: &Option<AllowedTools>| list.as_ref().is_some_and(|list| is_of(list, tool));
        match &self.require_approval {
            None | Some(RequireApproval::Always) => true,
            Some(RequireApproval::Never) => false,
            Some(RequireApproval::Lists(always, never)) => {
                is_in(always) || (always.is_none() && !is_in(never))
            }
        }
    }

    fn closeness(&self, tool: &Offered) -> Option<Closeness> {
        let is_out = self.read_only && tool.tool.annotations.read_only != Some(true);
        if is_out || !matches(&self.servers, tool.server.as_str()) {
            return None;
        }
        let Some(tools) = &self.tools else {
            return Some(Closeness::Pattern);
        };
        let matching = tools.iter().filter(|pattern| names_tool(pattern, tool));
        matching.map(|pattern| by_pattern_or_name(pattern)).max()
    }
}

fn unknown(entry: &McpTool, known: &[ServerId]) -> RequestError {
    let param = format!("{}.server_label", entry.param);
    let label = super::suggest::shortened(&entry.server_label);
    let known: Vec<&str> = known.iter().map(ServerId::as_str).collect();
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    let message = format!(
        "Invalid value for '{param}': there is no server '{label}'. Servers of this gateway: {known}."
    );
    RequestError::value(param, message)
}

/// The tool is one that an `mcp` entry of `tool_choice` means.
pub(super) fn is_chosen(choice: &McpChoice, tool: &Offered) -> bool {
    let label = choice.server_label.as_str();
    let is_named = |name: &str| names_tool(name, tool);
    (EVERY_SERVER.contains(&label) || matches(label, tool.server.as_str()))
        && choice.name.as_deref().is_none_or(is_named)
}

/// The label among those of `mcp` entries that names a server: its own name before a pattern.
pub fn label_of<'l>(server: &ServerId, labels: &'l [String]) -> Option<&'l str> {
    let server = server.as_str();
    let names = |label: &&String| EVERY_SERVER.contains(&label.as_str()) || matches(label, server);
    let own = labels.iter().find(|label| *label == server);
    own.or_else(|| labels.iter().find(names))
        .map(String::as_str)
}

/// The tool is one of the list.
fn is_of(list: &AllowedTools, tool: &Offered) -> bool {
    let is_named = |names: &Vec<String>| names.iter().any(|name| names_tool(name, tool));
    list.names.as_ref().is_none_or(is_named)
        && (!list.read_only || tool.tool.annotations.read_only == Some(true))
}

/// The pattern matches the tool's offered name, its own name, or `server/tool`.
fn names_tool(pattern: &str, tool: &Offered) -> bool {
    let own = tool.tool.name.as_str();
    let both = |(server, rest)| matches(server, tool.server.as_str()) && matches(rest, own);
    matches(pattern, tool.name.as_str())
        || matches(pattern, own)
        || pattern.split_once('/').is_some_and(both)
}

/// The pattern, in which `*` stands for any characters, or none, matches the text.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Each part in its first place leaves the most for those after it.
    for part in middle.split('*') {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        yes.iter()
            .for_each(|text| assert!(matches(pattern, text), "{pattern} matches {text}"));
        no.iter()
            .for_each(|text| assert!(!matches(pattern, text), "{pattern} does not match {text}"));
    }

    #[track_caller]
    fn check_may_select(tools: Option<&str>, servers: Option<&str>, may: bool) {
        let selection = Selection::parse(tools, servers, &[], &[]).unwrap();
        let server = ServerId::parse("a__b").unwrap();
        assert_eq!(
            selection.may_select_of(&server),
            may,
            "{tools:?} {servers:?}"
        );
    }

    #[test]
    fn a_server_without_known_tools_is_wanted_unless_its_name_says_no() {
        for tools in ["*", "act", "a__b__act", "a__b/*", "a*__x", "!x"] {
            check_may_select(Some(tools), None, true);
        }
        for tools in ["none", "", "c__act", "c/*"] {
            check_may_select(Some(tools), None, false);
        }
        check_may_select(None, None, true);
        check_may_select(None, Some("a*"), true);
        check_may_select(None, Some("!a*"), false);
        check_may_select(Some("*"), Some("c"), false);
    }

    #[test]
    fn a_star_stands_for_anything_and_for_nothing() {
        check("a", &["a"], &["", "aa", "b"]);
        check("*", &["", "a", "ab"], &[]);
        check("a*", &["a", "ab"], &["", "ba"]);
        check("*a", &["a", "ba"], &["", "ab"]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("a*b*c", &["abc", "axbxc", "abbc"], &["ac", "acb"]);
        check("*b*b*", &["bb", "abcbd"], &["b"]);
        check("a**b", &["ab", "axb"], &["a"]);
        check("é*", &["é", "éa"], &["e"]);
    }
}
