//! What a server lists: `tools/list`, page by page, tool by tool.
//!
//! A tool that cannot be used costs itself and never its neighbours. Whether a schema compiles is not asked here.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    deep::UNREADABLE,
    pages::{PageFault, Pages},
};
use crate::tool::{Annotations, JsonObject, Tool};

/// Most tools that are read of one list.
pub const MAX_TOOLS: usize = super::pages::MAX_ENTRIES;

/// A tool that was listed and cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenTool {
    /// The server's own name for it, or `#` and its place in the list (from 1) where it has none.
    pub name: String,
    /// What is wrong with it, for the person who configured the server.
    pub reason: String,
}

/// What is wrong with a whole page of a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The result holds no `tools` array.
    #[error("the answer to tools/list has no `tools` array")]
    NoTools,
    /// The server repeats a cursor, so its list would never end.
    #[error("the pages of tools/list run in a circle")]
    Circle,
}

/// A list being read, page by page.
#[derive(Debug, Default)]
pub struct Listing {
    /// The tools that can be offered, in the server's order.
    pub tools: Vec<Tool>,
    /// Those that cannot.
    pub broken: Vec<BrokenTool>,
    names: HashSet<String>,
    pages: Pages,
    listed: usize,
}

impl From<PageFault> for ListError {
    fn from(fault: PageFault) -> ListError {
        match fault {
            PageFault::NoEntries => ListError::NoTools,
            PageFault::Circle => ListError::Circle,
        }
    }
}

impl Listing {
    /// Adds the result of one `tools/list` and returns the cursor of the next page, if there is one that is to be read.
    pub fn add_page(&mut self, page: &Value) -> Result<Option<String>, ListError> {
        let (tools, cursor) = self.pages.turn(page, "tools")?;
        for raw in tools {
            self.add_tool(raw);
        }
        if let Some(cut) = self.pages.cut() {
            self.broken.push(BrokenTool {
                name: format!("#{} and all after it", self.listed + 1),
                reason: cut.to_string(),
            });
        }
        Ok(cursor)
    }

    fn add_tool(&mut self, raw: &Value) {
        let place = self.listed;
        self.listed += 1;
        match read_tool(raw, place) {
            Ok(tool) if self.names.contains(&tool.name) => self.broken.push(BrokenTool {
                name: tool.name,
                reason: "another tool of this server has the same name".to_owned(),
            }),
            Ok(tool) => {
                self.names.insert(tool.name.clone());
                self.tools.push(tool);
            }
            Err(broken) => self.broken.push(broken),
        }
    }
}

/// Reads one listed tool; `place` is its index in the list, used to speak of it where it has no name.
pub fn read_tool(raw: &Value, place: usize) -> Result<Tool, BrokenTool> {
    let broken = |name: Option<&str>, reason: &str| BrokenTool {
        name: name.map_or_else(|| format!("#{}", place + 1), str::to_owned),
        reason: reason.to_owned(),
    };
    let Some(object) = raw.as_object() else {
        return Err(broken(None, "it is not a JSON object"));
    };
    let Some(name) = object
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return Err(broken(None, "it has no name"));
    };
    if let Some(why) = object.get(UNREADABLE).and_then(Value::as_str) {
        return Err(broken(Some(name), why));
    }
    let input_schema = read_input_schema(object)
        .map_err(|reason| broken(Some(name), reason))?
        .clone();
    Ok(Tool {
        name: name.to_owned(),
        title: read_title(object),
        description: text(object, "description"),
        input_schema,
        output_schema: object
            .get("outputSchema")
            .filter(|schema| schema.is_object())
            .cloned(),
        annotations: read_annotations(object),
        extra: read_extra(object),
    })
}

/// The members of a tool that have a place of their own in [`Tool`].
const OWN_MEMBERS: [&str; 5] = [
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
];

fn read_extra(tool: &JsonObject) -> JsonObject {
    tool.iter()
        .filter(|(member, _)| !OWN_MEMBERS.contains(&member.as_str()))
        .map(|(member, value)| (member.clone(), value.clone()))
        .collect()
}

/// Writes a tool as `tools/list` has it, under this name, with everything that its server said.
pub fn write_tool(tool: &Tool, name: &str) -> JsonObject {
    let mut object = JsonObject::new();
    let mut say = |key: &str, value: Value| object.insert(key.to_owned(), value);
    say("name", name.into());
    if let Some(title) = &tool.title {
        say("title", title.as_str().into());
    }
    if let Some(description) = &tool.description {
        say("description", description.as_str().into());
    }
    say("inputSchema", Value::Object(tool.input_schema.clone()));
    if let Some(schema) = &tool.output_schema {
        say("outputSchema", schema.clone());
    }
    if !tool.extra.contains_key("annotations") && tool.annotations != Annotations::default() {
        say("annotations", write_annotations(tool.annotations));
    }
    object.extend(tool.extra.clone());
    object
}

/// In MCP's words; what a tool does not say is not there.
pub fn write_annotations(annotations: Annotations) -> Value {
    let Annotations {
        read_only,
        destructive,
        idempotent,
        open_world,
    } = annotations;
    let hints = [
        ("readOnlyHint", read_only),
        ("destructiveHint", destructive),
        ("idempotentHint", idempotent),
        ("openWorldHint", open_world),
    ];
    let said = hints
        .into_iter()
        .filter_map(|(name, hint)| Some((name.to_owned(), Value::Bool(hint?))));
    Value::Object(said.collect())
}

/// The schema of the arguments. A missing `type` or `properties` is fine: neither changes what is accepted here.
fn read_input_schema(tool: &JsonObject) -> Result<&JsonObject, &'static str> {
    let schema = match tool.get("inputSchema") {
        None | Some(Value::Null) => return Err("it has no inputSchema"),
        Some(Value::Object(schema)) => schema,
        Some(_) => return Err("its inputSchema is not an object"),
    };
    match schema.get("type") {
        None => Ok(schema),
        Some(Value::String(kind)) if kind == "object" => Ok(schema),
        Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "object") => Ok(schema),
        Some(_) => Err("its inputSchema does not describe an object"),
    }
}

/// The title stands beside the name (2025-06-18) or among the annotations (2025-03-26).
fn read_title(tool: &JsonObject) -> Option<String> {
    let among_annotations = || {
        tool.get("annotations")
            .and_then(Value::as_object)
            .and_then(|a| text(a, "title"))
    };
    text(tool, "title").or_else(among_annotations)
}

fn read_annotations(tool: &JsonObject) -> Annotations {
    let hint = |name| {
        tool.get("annotations")
            .and_then(|a| a.get(name))
            .and_then(Value::as_bool)
    };
    Annotations {
        read_only: hint("readOnlyHint"),
        destructive: hint("destructiveHint"),
        idempotent: hint("idempotentHint"),
        open_world: hint("openWorldHint"),
    }
}

fn text(object: &JsonObject, name: &str) -> Option<String> {
    object.get(name).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::pages::{MAX_ENTRIES, MAX_PAGES};

    #[track_caller]
    fn check_broken(raw: Value, name: &str, reason: &str) {
        let broken = read_tool(&raw, 2).expect_err("the tool should be broken");
        assert_eq!(
            (broken.name.as_str(), broken.reason.as_str()),
            (name, reason)
        );
    }

    fn named(name: &str) -> Value {
        json!({"name": name, "inputSchema": {"type": "object"}})
    }

    #[test]
    fn a_tool_without_a_usable_schema_is_broken_and_says_why() {
        check_broken(json!({"name": "a"}), "a", "it has no inputSchema");
        check_broken(
            json!({"name": "a", "inputSchema": null}),
            "a",
            "it has no inputSchema",
        );
        check_broken(
            json!({"name": "a", "inputSchema": true}),
            "a",
            "its inputSchema is not an object",
        );
        check_broken(
            json!({"name": "a", "inputSchema": []}),
            "a",
            "its inputSchema is not an object",
        );
        check_broken(
            json!({"name": "a", "inputSchema": {"type": "string"}}),
            "a",
            "its inputSchema does not describe an object",
        );
    }

    #[test]
    fn a_tool_without_a_name_is_spoken_of_by_its_place() {
        check_broken(json!({"inputSchema": {}}), "#3", "it has no name");
        check_broken(
            json!({"name": "", "inputSchema": {}}),
            "#3",
            "it has no name",
        );
        check_broken(
            json!({"name": 7, "inputSchema": {}}),
            "#3",
            "it has no name",
        );
        check_broken(json!("x"), "#3", "it is not a JSON object");
    }

    #[test]
    fn a_schema_without_type_or_properties_is_fine() {
        assert!(read_tool(&json!({"name": "a", "inputSchema": {}}), 0).is_ok());
        assert!(
            read_tool(
                &json!({"name": "a", "inputSchema": {"type": ["object", "null"]}}),
                0
            )
            .is_ok()
        );
    }

    #[test]
    fn everything_a_tool_says_about_itself_is_read() {
        let tool = read_tool(
            &json!({
                "name": "a.b/c", "title": "A", "description": "does a", "x-unknown": 1,
                "inputSchema": {"type": "object", "required": ["q"], "$defs": {}},
                "outputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": true, "destructiveHint": "no", "idempotentHint": false, "other": 1},
                "execution": {"taskSupport": "optional"},
            }),
            0,
        )
        .unwrap();
        assert_eq!(tool.name, "a.b/c");
        assert_eq!(tool.title.as_deref(), Some("A"));
        assert_eq!(tool.description.as_deref(), Some("does a"));
        assert_eq!(
            Value::Object(tool.input_schema),
            json!({"type": "object", "required": ["q"], "$defs": {}})
        );
        assert_eq!(tool.output_schema, Some(json!({"type": "object"})));
        let expected = Annotations {
            read_only: Some(true),
            idempotent: Some(false),
            ..Annotations::default()
        };
        assert_eq!(tool.annotations, expected);
        let extra = json!({
            "x-unknown": 1,
            "annotations": {"readOnlyHint": true, "destructiveHint": "no", "idempotentHint": false, "other": 1},
            "execution": {"taskSupport": "optional"},
        });
        assert_eq!(Value::Object(tool.extra), extra);
    }

    #[test]
    fn a_title_among_the_annotations_is_found() {
        let raw = json!({"name": "a", "inputSchema": {}, "annotations": {"title": "T"}});
        assert_eq!(read_tool(&raw, 0).unwrap().title.as_deref(), Some("T"));
    }

    #[test]
    fn a_wrongly_typed_description_is_left_out() {
        let raw = json!({"name": "a", "inputSchema": {}, "description": 5, "outputSchema": 5});
        let tool = read_tool(&raw, 0).unwrap();
        assert_eq!((tool.description, tool.output_schema), (None, None));
    }

    #[test]
    fn one_broken_tool_costs_only_itself() {
        let mut listing = Listing::default();
        let page = json!({"tools": [named("a"), {"name": "b"}, named("c"), named("a")]});
        assert_eq!(listing.add_page(&page), Ok(None));
        let names: Vec<_> = listing
            .tools
            .iter()
            .map(|tool| tool.name.as_str())
            .collect();
        assert_eq!(names, ["a", "c"]);
        let broken: Vec<_> = listing
            .broken
            .iter()
            .map(|tool| tool.name.as_str())
            .collect();
        assert_eq!(broken, ["b", "a"]);
    }

    #[test]
    fn pages_follow_their_cursor() {
        let mut listing = Listing::default();
        let first = json!({"tools": [named("a")], "nextCursor": "2"});
        assert_eq!(listing.add_page(&first), Ok(Some("2".to_owned())));
        assert_eq!(
            listing.add_page(&json!({"tools": [named("b")], "nextCursor": null})),
            Ok(None)
        );
        assert_eq!(listing.tools.len(), 2);
    }

    #[test]
    fn a_cursor_that_comes_twice_ends_the_list() {
        let mut listing = Listing::default();
        let page = json!({"tools": [], "nextCursor": "x"});
        assert_eq!(listing.add_page(&page), Ok(Some("x".to_owned())));
        assert_eq!(listing.add_page(&page), Err(ListError::Circle));
    }

    #[test]
    fn a_list_without_end_is_read_to_its_bound() {
        let mut listing = Listing::default();
        let page =
            |n: usize| json!({"tools": [named(&n.to_string())], "nextCursor": n.to_string()});
        let read = (1..).find(|n| listing.add_page(&page(*n)) == Ok(None));
        assert_eq!(read, Some(MAX_PAGES));
        assert_eq!(listing.tools.len(), MAX_PAGES);
        let cut = listing.broken.last().unwrap();
        assert_eq!(cut.name, "#201 and all after it");
        assert_eq!(
            cut.reason,
            "the list goes on after 200 pages; the rest is left out"
        );
    }

    #[test]
    fn of_too_many_tools_the_first_are_kept() {
        let mut listing = Listing::default();
        let many: Vec<_> = (0..MAX_ENTRIES + 9)
            .map(|n| named(&n.to_string()))
            .collect();
        assert_eq!(
            listing.add_page(&json!({"tools": many, "nextCursor": "2"})),
            Ok(None)
        );
        assert_eq!(listing.tools.len(), MAX_ENTRIES);
        let cut = listing.broken.last().unwrap();
        assert_eq!(cut.name, "#5001 and all after it");
        assert_eq!(
            cut.reason,
            "the list has more than 5000 entries; the rest is left out"
        );
    }

    #[test]
    fn a_tool_that_could_not_be_read_says_why() {
        let raw = json!({"name": "a", UNREADABLE: "it is too deep"});
        check_broken(raw, "a", "it is too deep");
        check_broken(
            json!({UNREADABLE: "it is too deep"}),
            "#3",
            "it has no name",
        );
    }

    #[test]
    fn an_answer_without_tools_is_an_error() {
        assert_eq!(
            Listing::default().add_page(&json!({})),
            Err(ListError::NoTools)
        );
        assert_eq!(
            Listing::default().add_page(&json!(null)),
            Err(ListError::NoTools)
        );
    }
}
