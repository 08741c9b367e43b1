//! Stands in for `translate::functions` until it is there.
pub(super) mod definitions {
    use crate::tool::{Annotations, Tool};
    use crate::translate::calls::Validator;
    use serde_json::{Value, json};
    pub struct Definitions {
        pub tools: Vec<Tool>,
        pub faults: Vec<Fault>,
    }
    pub struct Fault {
        pub path: String,
        pub reason: String,
    }
    impl std::fmt::Display for Fault {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{}: {}", self.path, self.reason)
        }
    }
    pub fn from_value(document: &Value) -> Definitions {
        let mut d = Definitions {
            tools: vec![],
            faults: vec![],
        };
        for key in ["tools", "functions"] {
            for (i, entry) in document[key].as_array().into_iter().flatten().enumerate() {
                let mut path = format!("{key}[{i}]");
                if !entry.is_object() {
                    d.faults.push(Fault {
                        path,
                        reason: "is not a JSON object".into(),
                    });
                    continue;
                }
                let f = if entry["function"].is_object() {
                    path += ".function";
                    &entry["function"]
                } else {
                    entry
                };
                let name = f["name"].as_str().unwrap_or_default().to_owned();
                if d.tools.iter().any(|t| t.name == name) {
                    d.faults.push(Fault {
                        path: path + ".name",
                        reason: format!("`{name}` is already defined at tools[0]"),
                    });
                    continue;
                }
                let schema = if f["parameters"].is_object() {
                    f["parameters"].clone()
                } else {
                    json!({"type": "object", "properties": {}})
                };
                let schema = schema.as_object().cloned().unwrap_or_default();
                if Validator::compile(&schema).is_err() {
                    d.faults.push(Fault {
                        path: path + ".parameters",
                        reason: "no".into(),
                    });
                    continue;
                }
                d.tools.push(Tool {
                    name,
                    title: None,
                    description: f["description"].as_str().map(str::to_owned),
                    input_schema: schema,
                    output_schema: None,
                    annotations: Annotations::default(),
                });
            }
        }
        d
    }
}
pub(super) mod output {
    use crate::tool::ToolResult;
    use serde_json::Value;
    pub fn read(v: Value) -> ToolResult {
        match v {
            Value::Null => ToolResult::default(),
            Value::String(s) => ToolResult::text(s),
            v => ToolResult {
                structured_content: Some(v.clone()),
                ..ToolResult::text(v.to_string())
            },
        }
    }
    pub fn failure(m: impl Into<String>) -> ToolResult {
        ToolResult {
            is_error: true,
            ..ToolResult::text(m)
        }
    }
    pub fn error_text(e: &Value) -> Option<String> {
        match e {
            Value::String(s) => Some(s.clone()),
            Value::Object(o) => Some(o.get("message")?.as_str()?.to_owned()),
            _ => None,
        }
    }
}
