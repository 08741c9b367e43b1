//! The immutable snapshot of every tool that is offered, and the choice of those that apply to a request.
//!
//! A catalog is built when a server's tools change, never when a request comes: names are given, schemas
//! translated and validators compiled then. Nothing here talks to a server.

use std::{collections::HashMap, sync::Arc};

use crate::translate::{
    calls::Validator,
    names::{self, Assigned},
    schema,
    tools::{self, MAX_DESCRIPTION},
};
use toolway_protocol::tool::{FunctionName, ServerId, Tool};

mod feature_index;
mod features;
mod filter;
mod page;
mod risk;
mod select;
mod selection;
mod suggest;

pub use self::{
    feature_index::{FeatureIndex, IndexedFeature},
    features::ServerFeatures,
    filter::ToolFilter,
    page::{InvalidCursor, PAGE, page},
    risk::{Risk, ServerRisk, ToolRisk},
    select::{LeftOut, LeftOutReason, Selected},
    selection::{Selection, label_of, matches},
};
use self::{select::Memo, suggest::suggest};

/// The tools of one server, as it listed them.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTools {
    /// Which server.
    pub server: ServerId,
    /// Calls on it must run one after another, in order.
    pub stateful: bool,
    /// How dangerous its tools are.
    pub risk: ServerRisk,
    /// Its tools, in its own order.
    pub tools: Vec<Tool>,
    /// What it listed and could not be read, one by one.
    pub dropped: Vec<DroppedTool>,
}

/// A tool that a server listed and that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedTool {
    /// The server's own name for it, or its place in the list where it has none.
    pub name: String,
    /// What is wrong with it, for the person who configured the server.
    pub reason: String,
}

/// A tool as it is offered to models.
#[derive(Debug)]
pub struct Offered {
    /// The name it is offered under.
    pub name: FunctionName,
    /// The server that has it.
    pub server: ServerId,
    /// Calls on that server must run one after another, in order.
    pub stateful: bool,
    /// How dangerous it is, if the configuration says so.
    pub risk: Option<ToolRisk>,
    /// The tool as the server describes it; calls use its own name.
    pub tool: Tool,
    /// Its entry in OpenAI's `tools`.
    pub json: Box<str>,
    /// Checks its arguments; `None` where its schema cannot be compiled, then only the server does.
    pub validator: Option<Validator>,
    /// It is not offered as just `server__tool`.
    pub renamed: bool,
    /// What the offered form does not say, and why arguments are not checked, if so; for the person who
    /// configured the server.
    pub notes: Vec<String>,
}

/// Every tool of every server at one time.
#[derive(Debug, Default)]
pub struct Catalog {
    /// By server, then by the tool's own name.
    offered: Vec<Arc<Offered>>,
    by_name: HashMap<Box<str>, usize>,
    servers: Vec<ServerId>,
    dropped: Vec<(ServerId, DroppedTool)>,
    memo: Memo,
}

impl Catalog {
    /// A catalog without tools.
    pub fn empty() -> Catalog {
        Catalog::default()
    }

    /// Takes up the tools of these servers, in the order of their names and not of their arrival.
    ///
    /// A tool that no upstream would take is dropped alone: one without a name, with a broken schema, or
    /// listed twice (the first stays).
    pub fn build(servers: &[ServerTools]) -> Catalog {
        Catalog::empty().rebuild(servers)
    }

    /// Like [`Catalog::build`], but takes over from this catalog what has not changed, so that one server's
    /// new list does not compile the schemas of all others again.
    pub fn rebuild(&self, servers: &[ServerTools]) -> Catalog {
        let mut dropped = Vec::new();
        let listed = listed(servers, &mut dropped);
        let before: HashMap<(&ServerId, &str), &Arc<Offered>> = self
            .offered
            .iter()
            .map(|it| ((&it.server, it.tool.name.as_str()), it))
            .collect();
        let names = names::assign(
            listed
                .iter()
                .map(|(from, tool)| (&from.server, &*tool.name)),
        );
        let offer = |((from, tool), assigned): ((&ServerTools, &Tool), Assigned)| {
            let before = before.get(&(&from.server, tool.name.as_str()));
            let same = before.filter(|it| it.is_still(assigned.name.as_str(), from, tool));
            same.map_or_else(
                || Arc::new(Offered::new(from, tool, assigned)),
                |it| Arc::clone(it),
            )
        };
        let offered: Vec<Arc<Offered>> = listed.into_iter().zip(names).map(offer).collect();
        let by_name = by_name(&offered);
        let mut servers: Vec<ServerId> = servers.iter().map(|it| it.server.clone()).collect();
        servers.sort();
        Catalog {
            memo: Memo::new(&offered),
            offered,
            by_name,
            servers,
            dropped,
        }
    }

    /// The same with those tools only that `shows` shows.
    pub fn restricted(&self, shows: impl Fn(&Offered) -> bool) -> Catalog {
        let offered = self.offered.iter().filter(|it| shows(it));
        let offered: Vec<Arc<Offered>> = offered.cloned().collect();
        // A server all of whose tools are hidden is not known at all.
        let is_hidden = |server: &ServerId| {
            let is_of = |it: &Arc<Offered>| it.server == *server;
            self.offered.iter().any(is_of) && !offered.iter().any(is_of)
        };
        let servers = self.servers.iter().filter(|it| !is_hidden(it));
        let dropped = self.dropped.iter().filter(|(it, _)| !is_hidden(it));
        Catalog {
            memo: Memo::new(&offered),
            by_name: by_name(&offered),
            servers: servers.cloned().collect(),
            dropped: dropped.cloned().collect(),
            offered,
        }
    }

    /// Every tool, by server and then by the tool's own name.
    pub fn offered(&self) -> &[Arc<Offered>] {
        &self.offered
    }

    /// The tool that is offered under this name.
    pub fn find(&self, name: &str) -> Option<&Arc<Offered>> {
        self.offered.get(*self.by_name.get(name)?)
    }

    /// The tool that its server knows by this name.
    pub fn find_own(&self, server: &ServerId, own: &str) -> Option<&Arc<Offered>> {
        let key = |it: &Arc<Offered>| {
            (it.server.as_str(), it.tool.name.as_str()).cmp(&(server.as_str(), own))
        };
        let at = self.offered.binary_search_by(key).ok()?;
        self.offered.get(at)
    }

    /// Up to three offered names that look like this one, the closest first.
    pub fn suggest(&self, name: &str) -> Vec<String> {
        suggest(name, &self.offered)
    }

    /// The servers it was built from, those without a tool included, by name.
    pub fn servers(&self) -> &[ServerId] {
        &self.servers
    }

    /// What servers listed and is not offered.
    pub fn dropped(&self) -> &[(ServerId, DroppedTool)] {
        &self.dropped
    }

    /// The tools whose name is not just `server__tool`.
    pub fn renamed(&self) -> impl Iterator<Item = &Arc<Offered>> {
        self.offered.iter().filter(|it| it.renamed)
    }
}

fn by_name(offered: &[Arc<Offered>]) -> HashMap<Box<str>, usize> {
    let places = offered.iter().enumerate();
    places
        .map(|(at, it)| (it.name.as_str().into(), at))
        .collect()
}

impl Offered {
    fn new(from: &ServerTools, tool: &Tool, Assigned { name, changed }: Assigned) -> Offered {
        let mut notes = Vec::new();
        let function = tools::to_openai(&name, tool);
        if !function.lost.is_empty() {
            let lost = function.lost.join(", ");
            notes.push(format!(
                "OpenAI takes no {lost} at the top of a schema; the model is told the properties only"
            ));
        }
        if function.is_cut {
            notes.push(format!(
                "its description is longer than {MAX_DESCRIPTION} bytes and is cut there for models"
            ));
        }
        let validator = Validator::compile(&tool.input_schema)
            .map_err(|reason| notes.push(format!("its arguments are not checked: {reason}")))
            .ok();
        Offered {
            name,
            server: from.server.clone(),
            stateful: from.stateful,
            risk: from.risk.of(&tool.name),
            json: function.json,
            validator,
            tool: tool.clone(),
            renamed: changed,
            notes,
        }
    }

    /// A call of it runs after the calls of its server that the model wrote before it, and that run in order as well:
    /// the server is stateful, or the tool says that it changes things.
    pub fn runs_in_order(&self) -> bool {
        self.stateful || self.tool.annotations.changes_things()
    }

    /// It says that it changes nothing, so that a call may be made early, or once for several that ask the same.
    pub fn is_read_only(&self) -> bool {
        self.tool.annotations.read_only == Some(true)
    }

    fn is_still(&self, name: &str, from: &ServerTools, tool: &Tool) -> bool {
        self.name.as_str() == name
            && self.stateful == from.stateful
            && self.risk == from.risk.of(&tool.name)
            && self.tool == *tool
    }
}

/// The tools that can be offered, by server and then by name; the others go to `dropped`.
fn listed<'s>(
    servers: &'s [ServerTools],
    dropped: &mut Vec<(ServerId, DroppedTool)>,
) -> Vec<(&'s ServerTools, &'s Tool)> {
    let mut listed: Vec<(&ServerTools, &Tool)> = Vec::new();
    for from in servers {
        dropped.extend(
            from.dropped
                .iter()
                .map(|it| (from.server.clone(), it.clone())),
        );
        for tool in &from.tools {
            match fault(tool) {
                None => listed.push((from, tool)),
                Some(reason) => dropped.push(drop_tool(from, tool, reason)),
            }
        }
    }
    // The sort is stable: of two with one name the first listed comes first, and stays.
    listed.sort_by(|(a, x), (b, y)| (&a.server, &x.name).cmp(&(&b.server, &y.name)));
    let mut last = None;
    listed.retain(|(from, tool)| {
        let key = Some((&from.server, &tool.name));
        let comes_again = last == key;
        if comes_again {
            dropped.push(drop_tool(
                from,
                tool,
                "the server lists it more than once".to_owned(),
            ));
        }
        last = key;
        !comes_again
    });
    dropped.sort_by(|(a, x), (b, y)| (a, &x.name, &x.reason).cmp(&(b, &y.name, &y.reason)));
    listed
}

fn fault(tool: &Tool) -> Option<String> {
    match tool.name.trim().is_empty() {
        true => Some("it has no name".to_owned()),
        false => schema::fault(&tool.input_schema),
    }
}

fn drop_tool(from: &ServerTools, tool: &Tool, reason: String) -> (ServerId, DroppedTool) {
    (
        from.server.clone(),
        DroppedTool {
            name: tool.name.clone(),
            reason,
        },
    )
}

#[cfg(test)]
mod tests;
