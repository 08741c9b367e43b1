//! The tools of one request: what was selected, less the client's own names, as many as the upstream takes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use super::{
    Catalog, Offered, Selection,
    selection::{Closeness, is_chosen},
    suggest::suggest,
};
use toolway_protocol::{
    openai::request::McpChoice,
    tool::{FunctionName, ServerId},
};

/// Most limits for which the choice is kept.
const MAX_KEPT: usize = 32;

/// The tools that a request offers.
#[derive(Debug, Default)]
pub struct Selected {
    /// The tools, in the catalog's order.
    pub tools: Vec<Arc<Offered>>,
    /// Their entries in OpenAI's `tools`, joined by commas; empty if there are none.
    pub json: Box<str>,
    /// What was selected and is not offered, in the catalog's order.
    pub left_out: Vec<LeftOut>,
}

/// A selected tool that a request does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its offered name.
    pub name: FunctionName,
    /// Why.
    pub reason: LeftOutReason,
}

/// Why a selected tool is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutReason {
    /// The client has a tool of its own with this name.
    ClientsOwn,
    /// The upstream takes so many tools in one request, the client's own included.
    TooMany {
        /// How many.
        max: usize,
    },
}

/// What requests that select nothing in particular are given, made once per limit.
#[derive(Debug, Default)]
pub(super) struct Memo {
    everything: Arc<Selected>,
    by_limit: RwLock<BTreeMap<Limit, Arc<Selected>>>,
}

/// How many tools the upstream takes, and how many of them are the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Limit {
    max: usize,
    clients: usize,
}

impl Limit {
    fn room(self) -> usize {
        self.max.saturating_sub(self.clients)
    }
}

impl Memo {
    pub(super) fn new(offered: &[Arc<Offered>]) -> Memo {
        let everything = Arc::new(Selected::new(offered.to_vec(), Vec::new()));
        Memo {
            everything,
            by_limit: RwLock::default(),
        }
    }
}

impl Catalog {
    /// The tools for a request that has tools of its own with these names (one each, empty for a tool
    /// without a name), for an upstream that takes at most `max_tools`.
    ///
    /// The client's own come first: a tool with the same name is left out, and the limit is for both
    /// together. Over the limit the least closely named are left out: those that are there by default, then
    /// those named by a pattern, then those mentioned in the conversation, then those named themselves; among these the server with the most tools
    /// gives up its last. The same request always gets the same tools in the same order.
    ///
    /// A request that selects nothing in particular costs no more with a thousand tools than with one.
    pub fn select(
        &self,
        selection: &Selection,
        client_names: &[&str],
        max_tools: usize,
    ) -> Arc<Selected> {
        let limit = Limit {
            max: max_tools,
            clients: client_names.len(),
        };
        if selection.is_nothing() {
            return Arc::default();
        }
        let names_collide = client_names.iter().any(|name| self.find(name).is_some());
        if !selection.is_everything() || names_collide {
            return Arc::new(self.choose(selection, client_names, limit));
        }
        let shared = self.everything(limit);
        let is_asked_for = |it: &LeftOut| selection.is_preferred(&it.name);
        if selection.has_preferred() && shared.left_out.iter().any(is_asked_for) {
            return Arc::new(self.choose(selection, client_names, limit));
        }
        shared
    }

    /// The choice among all tools, kept for the next request with this limit.
    fn everything(&self, limit: Limit) -> Arc<Selected> {
        if limit.room() >= self.offered().len() {
            return Arc::clone(&self.memo.everything);
        }
        // A thread that panicked with the lock has left whole entries behind.
        let kept = self
            .memo
            .by_limit
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(selected) = kept.get(&limit) {
            return Arc::clone(selected);
        }
        drop(kept);
        let selected = Arc::new(self.choose(&Selection::everything(), &[], limit));
        let mut kept = self
            .memo
            .by_limit
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_KEPT {
            kept.insert(limit, Arc::clone(&selected));
        }
        selected
    }

    fn choose(&self, selection: &Selection, client_names: &[&str], limit: Limit) -> Selected {
        let client_names: HashSet<&str> = client_names.iter().copied().collect();
        let mut left_out: HashMap<&FunctionName, LeftOutReason> = HashMap::new();
        let mut chosen: Vec<(&Arc<Offered>, Closeness)> = Vec::new();
        for tool in self.offered() {
            let Some(closeness) = selection.closeness(tool) else {
                continue;
            };
            if client_names.contains(tool.name.as_str()) {
                left_out.insert(&tool.name, LeftOutReason::ClientsOwn);
            } else {
                chosen.push((tool, closeness));
            }
        }
        for name in surplus(&chosen, limit.room()) {
            left_out.insert(name, LeftOutReason::TooMany { max: limit.max });
        }
        let tools = chosen.iter().map(|(tool, _)| *tool);
        let tools = tools
            .filter(|tool| !left_out.contains_key(&tool.name))
            .cloned()
            .collect();
        let in_order = self.offered().iter().filter_map(|tool| {
            let reason = *left_out.get(&tool.name)?;
            Some(LeftOut {
                name: tool.name.clone(),
                reason,
            })
        });
        Selected::new(tools, in_order.collect())
    }
}

/// The names of those that must go so that at most `room` stay.
fn surplus<'c>(chosen: &[(&'c Arc<Offered>, Closeness)], room: usize) -> Vec<&'c FunctionName> {
    let mut gone = Vec::new();
    let mut too_many = chosen.len().saturating_sub(room);
    let least_first = [
        Closeness::Default,
        Closeness::Pattern,
        Closeness::Mentioned,
        Closeness::Name,
    ];
    for closeness in least_first {
        let mut servers: BTreeMap<&ServerId, Vec<&FunctionName>> = BTreeMap::new();
        for (tool, _) in chosen.iter().filter(|(_, it)| *it == closeness) {
            servers.entry(&tool.server).or_default().push(&tool.name);
        }
        while too_many > 0 {
            // Of servers with equally many tools the last one gives.
            let biggest = servers.values_mut().max_by_key(|names| names.len());
            let Some(name) = biggest.and_then(Vec::pop) else {
                break;
            };
            gone.push(name);
            too_many -= 1;
        }
    }
    gone
}

impl Selected {
    fn new(tools: Vec<Arc<Offered>>, left_out: Vec<LeftOut>) -> Selected {
        let json: Vec<&str> = tools.iter().map(|tool| &*tool.json).collect();
        Selected {
            json: json.join(",").into(),
            tools,
            left_out,
        }
    }

    /// How many were left out because the upstream takes no more.
    pub fn surplus(&self) -> usize {
        let is_surplus = |it: &&LeftOut| matches!(it.reason, LeftOutReason::TooMany { .. });
        self.left_out.iter().filter(is_surplus).count()
    }

    /// The tool that the request offers under this name.
    pub fn find(&self, name: &str) -> Option<&Arc<Offered>> {
        self.tools.iter().find(|tool| tool.name.as_str() == name)
    }

    /// The tool that a model means by this name, and whether this request offers it. One that is not offered may be the name that a server has for its tool,
    /// where only one server has it: models drop prefixes, and programs that knew the tool before it was behind toolway
    /// do not have them.
    pub fn meant<'a>(
        &'a self,
        name: &str,
        catalog: &'a Catalog,
    ) -> Option<(&'a Arc<Offered>, bool)> {
        let shown = self.find(name).map(|tool| (tool, true));
        let offered = shown.or_else(|| Some((catalog.find(name)?, false)));
        offered.or_else(|| Some((self.find_own(name)?, true)))
    }

    /// The tool that its server calls by this name, if it is the only one.
    pub fn find_own(&self, own: &str) -> Option<&Arc<Offered>> {
        let mut found = self.tools.iter().filter(|tool| tool.tool.name == own);
        found.next().filter(|_| found.next().is_none())
    }

    /// The tools that an `mcp` entry of `tool_choice` means: of that server, all or the one with that name.
    pub fn chosen(&self, choice: &McpChoice) -> Vec<&Arc<Offered>> {
        self.tools
            .iter()
            .filter(|tool| is_chosen(choice, tool))
            .collect()
    }

    /// Up to three names this request offers that look like this one, the closest first.
    pub fn suggest(&self, name: &str) -> Vec<String> {
        suggest(name, &self.tools)
    }
}
