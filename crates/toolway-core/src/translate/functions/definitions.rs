//! A definitions document: OpenAI's `tools`, in each of the forms that are about, as [`Tool`]s.
//!
//! **Invariant:** what cannot be read is named in [`Definitions::faults`], never left out silently. Whoever
//! loads a document decides what a fault costs; a configuration with one is refused as a whole.

use std::{collections::HashMap, fmt};

use serde_json::{Value, json};

use crate::translate::{calls::Validator, schema};
use toolway_protocol::{
    mcp::tools::MAX_TOOLS,
    tool::{Annotations, JsonObject, ServerId, Tool},
};

/// What a document defines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definitions {
    /// The functions that can be offered, in the order of the document; at most [`MAX_TOOLS`].
    pub tools: Vec<Tool>,
    /// What is wrong with the others.
    pub faults: Vec<DocumentFault>,
}

/// Something that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentFault {
    /// Where: `tools[3].function.parameters`; empty for the whole document.
    pub path: String,
    /// What, for the person who wrote the document.
    pub reason: String,
}

impl fmt::Display for DocumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.reason),
            path => write!(f, "{path}: {}", self.reason),
        }
    }
}

/// Reads the text of a document.
pub fn read(text: &str) -> Definitions {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match serde_json::from_str(text) {
        Ok(document) => from_value(&document),
        Err(error) => Definitions {
            faults: vec![DocumentFault {
                path: String::new(),
                reason: format!("is not JSON: {error}"),
            }],
            ..Definitions::default()
        },
    }
}

/// Reads a document: an array of functions, an object with `tools` or `functions`, or one function alone.
///
/// A function is `{"type": "function", "function": {…}}` (chat completions), the same without the inner
/// object (responses), or bare `{"name", "description", "parameters"}` (the legacy `functions`).
pub fn from_value(document: &Value) -> Definitions {
    let mut reading = DefinitionsReader::default();
    match document {
        Value::Array(entries) => reading.add_all("", entries),
        Value::Object(members) => {
            let lists = ["tools", "functions"].map(|key| (key, members.get(key)));
            let is_list = lists.iter().any(|(_, list)| list.is_some());
            for (key, list) in lists {
                match list {
                    None | Some(Value::Null) => {}
                    Some(Value::Array(entries)) => reading.add_all(key, entries),
                    Some(_) => reading.fault(key, "is not an array"),
                }
            }
            if !is_list && (members.contains_key("function") || members.contains_key("name")) {
                reading.add("", document);
            } else if !is_list {
                reading.fault(
                    "",
                    "has neither `tools` nor `functions`; expected is an OpenAI `tools` array",
                );
            }
        }
        _ => reading.fault("", "is not an OpenAI `tools` array"),
    }
    reading.found
}

#[derive(Default)]
struct DefinitionsReader {
    found: Definitions,
    /// Where each name was defined first.
    names: HashMap<String, String>,
}

impl DefinitionsReader {
    fn add_all(&mut self, key: &str, entries: &[Value]) {
        let before = self.names.len();
        if before + entries.len() > MAX_TOOLS {
            let there = before + entries.len();
            return self.fault(
                key,
                format!("holds {there} functions, and at most {MAX_TOOLS} are taken; write several groups"),
            );
        }
        for (place, entry) in entries.iter().enumerate() {
            self.add(&format!("{key}[{place}]"), entry);
        }
    }

    fn add(&mut self, path: &str, entry: &Value) {
        let Some((path, function)) = self.function(path, entry) else {
            return;
        };
        let at = |member: &str| join(&path, member);
        let name = match function.get("name") {
            None | Some(Value::Null) => return self.fault(&path, "has no `name`"),
            Some(Value::String(name)) => name,
            Some(_) => return self.fault(at("name"), "is not a text"),
        };
        // OpenAI's alphabet for functions is that of a server's name; a first letter is not asked for.
        if let Err(error) = ServerId::parse(name) {
            return self.fault(at("name"), format!("`{}`: {error}", brief(name)));
        }
        if let Some(first) = self.names.get(name) {
            let reason = format!("`{name}` is already defined at {first}");
            return self.fault(at("name"), reason);
        }
        self.names.insert(name.clone(), path.clone());
        let description = match function.get("description") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => return self.fault(at("description"), "is not a text"),
        };
        let input_schema = match parameters(function) {
            Ok(schema) => schema,
            Err(reason) => return self.fault(at("parameters"), reason),
        };
        self.found.tools.push(Tool {
            name: name.clone(),
            title: None,
            description,
            input_schema,
            output_schema: None,
            annotations: Annotations::default(),
            extra: JsonObject::new(),
        });
    }

    /// The object that has the name and the parameters, and where it stands.
    fn function<'v>(&mut self, path: &str, entry: &'v Value) -> Option<(String, &'v JsonObject)> {
        let Some(members) = entry.as_object() else {
            self.fault(path, "is not a JSON object");
            return None;
        };
        match members.get("type") {
            None | Some(Value::Null) => {}
            Some(kind) if kind == "function" => {}
            Some(kind) => {
                self.fault(
                    join(path, "type"),
                    format!(
                        "is {}, and only functions can be called",
                        brief(&kind.to_string())
                    ),
                );
                return None;
            }
        }
        match members.get("function") {
            None => Some((path.to_owned(), members)),
            Some(Value::Object(function)) => Some((join(path, "function"), function)),
            Some(_) => {
                self.fault(join(path, "function"), "is not a JSON object");
                None
            }
        }
    }

    fn fault(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.found.faults.push(DocumentFault {
            path: path.into(),
            reason: reason.into(),
        });
    }
}

/// The schema of the arguments; without `parameters` a function takes none.
fn parameters(function: &JsonObject) -> Result<JsonObject, String> {
    let schema = match function.get("parameters") {
        None | Some(Value::Null) => {
            for other in ["inputSchema", "input_schema"] {
                if function.contains_key(other) {
                    return Err(format!(
                        "is missing; `{other}` is what OpenAI calls `parameters`"
                    ));
                }
            }
            json!({"type": "object", "properties": {}})
        }
        Some(schema) => schema.clone(),
    };
    let Value::Object(schema) = schema else {
        return Err("is not a JSON object".to_owned());
    };
    if let Some(fault) = schema::fault(&schema) {
        return Err(fault);
    }
    Validator::compile(&schema).map_err(|reason| format!("is no valid JSON Schema: {reason}"))?;
    Ok(schema)
}

fn join(path: &str, member: &str) -> String {
    match path {
        "" => member.to_owned(),
        path => format!("{path}.{member}"),
    }
}

/// A name or type that may be anything, short enough for a message.
fn brief(text: &str) -> String {
    super::super::cut::bounded(text, 80)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use super::*;

    fn names(document: &Value) -> Vec<String> {
        let found = from_value(document);
        assert_eq!(found.faults, [], "{document}");
        found.tools.into_iter().map(|tool| tool.name).collect()
    }

    /// The one fault of a document.
    #[track_caller]
    fn check_fault(document: Value, fault: &str) {
        let found = from_value(&document);
        let faults: Vec<String> = found.faults.iter().map(DocumentFault::to_string).collect();
        assert_eq!(faults, [fault], "{document}");
    }

    #[test]
    fn every_form_that_is_about_is_read() {
        let bare = json!({"name": "a", "description": null, "parameters": {"type": "object"}});
        let nested = json!({"type": "function", "function": {"name": "b", "strict": true}});
        let flat = json!({"type": "function", "name": "c", "parameters": null, "strict": null});
        assert_eq!(names(&json!([bare, nested, flat])), ["a", "b", "c"]);
        assert_eq!(
            names(&json!({"tools": [nested], "functions": [bare]})),
            ["b", "a"]
        );
        assert_eq!(names(&json!({"functions": [bare], "tools": null})), ["a"]);
        assert_eq!(names(&nested), ["b"]);
        assert_eq!(names(&bare), ["a"]);
        assert_eq!(names(&json!([])), [] as [&str; 0]);
    }

    #[test]
    fn a_function_without_parameters_takes_none() {
        let found = from_value(&json!([{"name": "a"}]));
        let schema = Value::Object(found.tools[0].input_schema.clone());
        assert_eq!(schema, json!({"type": "object", "properties": {}}));
    }

    #[test]
    fn a_duplicate_says_where_the_first_is() {
        check_fault(
            json!({"tools": [{"name": "a"}, {"type": "function", "function": {"name": "a"}}]}),
            "tools[1].function.name: `a` is already defined at tools[0]",
        );
    }

    #[test]
    fn each_fault_has_its_place_and_costs_nobody_else() {
        check_fault(json!(["x"]), "[0]: is not a JSON object");
        check_fault(
            json!([{"type": "web_search"}]),
            "[0].type: is \"web_search\", and only functions can be called",
        );
        check_fault(
            json!([{"type": "function", "function": 1}]),
            "[0].function: is not a JSON object",
        );
        check_fault(json!([{"function": {}}]), "[0].function: has no `name`");
        check_fault(json!([{"name": 1}]), "[0].name: is not a text");
        check_fault(
            json!([{"name": "a b"}]),
            "[0].name: `a b`: ` ` is not allowed in a name; allowed are letters, digits, `_` and `-`",
        );
        check_fault(
            json!([{"name": "a", "description": 1}]),
            "[0].description: is not a text",
        );
        check_fault(
            json!([{"name": "a", "parameters": []}]),
            "[0].parameters: is not a JSON object",
        );
        check_fault(
            json!([{"name": "a", "parameters": {"type": "array"}}]),
            "[0].parameters: its input schema has type \"array\", not \"object\"",
        );
        check_fault(
            json!([{"name": "a", "inputSchema": {}}]),
            "[0].parameters: is missing; `inputSchema` is what OpenAI calls `parameters`",
        );
        check_fault(json!({"tools": {}}), "tools: is not an array");
        check_fault(json!(1), "is not an OpenAI `tools` array");

        let found = from_value(&json!([{"name": "a"}, 1, {"name": "b"}, {"name": "a"}]));
        assert_eq!((found.tools.len(), found.faults.len()), (2, 2));
    }

    #[test]
    fn a_schema_that_is_none_says_why() {
        let broken = json!({"type": "object", "properties": {"x": {"type": "strin"}}});
        let found = from_value(&json!([{"name": "a", "parameters": broken}]));
        let fault = found.faults[0].to_string();
        assert!(
            fault.starts_with("[0].parameters: is no valid JSON Schema: "),
            "{fault}"
        );
        assert!(fault.contains("strin"), "{fault}");
        assert_eq!(found.tools, []);
    }

    #[test]
    fn a_text_that_is_no_json_says_where() {
        let found = read("[\n{,");
        assert_eq!(
            found.faults[0].to_string(),
            "is not JSON: key must be a string at line 2 column 2"
        );
        assert_eq!(read("\u{feff}[{\"name\": \"a\"}]").tools.len(), 1);
    }

    #[test]
    fn as_many_as_are_taken_are_read_and_one_more_is_not() {
        let parameters = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let all = |count: usize| -> Value {
            (0..count)
                .map(|i| json!({"name": format!("f{i}"), "parameters": parameters}))
                .collect()
        };
        assert_eq!(from_value(&all(MAX_TOOLS)).tools.len(), MAX_TOOLS);
        check_fault(
            all(MAX_TOOLS + 1),
            "holds 5001 functions, and at most 5000 are taken; write several groups",
        );
    }
}
