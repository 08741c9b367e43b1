//! Which tools models are offered, and which not, as JSON: the output of `/tools` and of `toolway tools --json`.

use serde::Serialize;
use serde_json::{Value, json};

use crate::upstream::model::{Models, Upstream};
use toolway_core::catalog::{Catalog, Offered, Selection};
use toolway_protocol::mcp::tools::write_annotations;

/// The tools of a catalog, those that were dropped, and those that some upstream cannot take.
pub fn listing(catalog: &Catalog, models: &Models) -> Value {
    let dropped = catalog.dropped().iter().map(|(server, tool)| {
        json!({"server": server.as_str(), "tool": tool.name, "reason": tool.reason})
    });
    json!({
        "tools": catalog.offered().iter().map(|offered| tool(offered)).collect::<Vec<_>>(),
        "dropped": dropped.collect::<Vec<_>>(),
        "left_out": everywhere_left_out(catalog, models),
        "next": null,
    })
}

fn tool(offered: &Offered) -> Value {
    let entry: Value = serde_json::from_str(&offered.json).unwrap_or_default();
    let mut listed = json!({
        "name": offered.name.as_str(),
        "server": offered.server.as_str(),
        "tool": offered.tool.name,
        "title": offered.tool.title,
        "description": entry["function"]["description"],
        "parameters": entry["function"]["parameters"],
        "annotations": write_annotations(offered.tool.annotations),
        "renamed": offered.renamed,
    });
    if !offered.notes.is_empty() {
        listed["notes"] = json!(offered.notes);
    }
    listed
}

/// A tool that does not fit into the number of tools that an upstream takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SurplusTool {
    /// Its offered name.
    pub name: String,
    /// The upstream.
    pub upstream: String,
    /// Why.
    pub reason: String,
}

/// The tools that an upstream is not offered when a request does not select tools.
pub fn left_out(catalog: &Catalog, upstream: &Upstream) -> Vec<SurplusTool> {
    let max_tools = upstream.config.max_tools;
    let selected = catalog.select(&Selection::everything(), &[], max_tools);
    let named = selected.left_out.iter().map(|left| SurplusTool {
        name: left.name.to_string(),
        upstream: upstream.config.name.clone(),
        reason: format!("this upstream takes {max_tools} tools (`max_tools`)"),
    });
    named.collect()
}

/// The same for every upstream.
pub fn everywhere_left_out(catalog: &Catalog, models: &Models) -> Vec<SurplusTool> {
    models
        .all()
        .iter()
        .flat_map(|upstream| left_out(catalog, upstream))
        .collect()
}
