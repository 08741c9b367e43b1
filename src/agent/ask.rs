//! The body that goes to the model: the client's own, with tools, messages and tool choice put in.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    catalog::{Offered, Selected},
    openai::request::{Change, ChatRequest, McpChoice, Raw, ToolChoice, splice_messages},
    pieces::Pieces,
};

use super::kept::read_more_tool;

/// One question to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The client's own `tool_choice` holds; later a forced choice becomes `auto`, or the loop would never end.
    pub first: bool,
    /// Messages added to the conversation, as JSON objects with commas between them.
    pub appended: String,
    /// Tools are offered; not in the last question, which wants an answer.
    pub with_tools: bool,
    /// The model may read on in a cut result.
    pub read_more: bool,
}

impl Ask {
    /// The first question of a request: the client's own.
    pub fn first() -> Ask {
        Ask {
            first: true,
            appended: String::new(),
            with_tools: true,
            read_more: false,
        }
    }
}

/// Writes the body of a question. `history` replaces the client's messages where parked calls were put back;
/// it holds messages with commas between them.
pub fn compose<'c>(
    request: &ChatRequest<'c>,
    ask: &'c Ask,
    selected: &'c Selected,
    history: Option<&'c str>,
) -> Pieces<'c> {
    let messages = match history {
        Some(history) => Some(joined(history, &ask.appended)),
        None if ask.appended.is_empty() => None,
        None => Some(splice_messages(request.messages(), &ask.appended)),
    };
    let read_more = if ask.read_more { read_more_tool() } else { "" };
    let offered = [&*selected.json, read_more];
    let tools = ask.with_tools.then(|| request.tools_with(&offered));
    let tools = tools.flatten();
    let choice = tool_choice(request, ask.first, selected);
    let mut changes = vec![("toolway", Change::Remove)];
    changes.extend(
        messages
            .as_ref()
            .map(|messages| ("messages", Change::Lend(messages))),
    );
    match &tools {
        None => changes.extend(
            ["tools", "tool_choice", "parallel_tool_calls"].map(|name| (name, Change::Remove)),
        ),
        Some(tools) => {
            changes.push(("tools", Change::Lend(tools)));
            changes.extend(
                choice
                    .as_deref()
                    .map(|choice| ("tool_choice", Change::Set(choice))),
            );
        }
    }
    request.compose(&changes)
}

/// What `tool_choice` becomes, where it cannot stay as the client wrote it. What is forced is forced for the
/// first question only.
fn tool_choice(request: &ChatRequest<'_>, first: bool, selected: &Selected) -> Option<String> {
    let choice = match request.tool_choice() {
        ToolChoice::Absent | ToolChoice::Auto | ToolChoice::None | ToolChoice::Other(_) => {
            return None;
        }
        ToolChoice::AllowedTools { mcp, .. } if first && mcp.is_empty() => return None,
        ToolChoice::AllowedTools { .. } => {
            allowed_tools(request.member("tool_choice")?, first, selected)?
        }
        ToolChoice::Mcp(choice) if first => match selected.chosen(choice).as_slice() {
            [one] => named(one),
            _ => json!("required"),
        },
        ToolChoice::Required | ToolChoice::Function(_) | ToolChoice::Custom(_) if first => {
            return None;
        }
        ToolChoice::Required
        | ToolChoice::Function(_)
        | ToolChoice::Custom(_)
        | ToolChoice::Mcp(_) => json!("auto"),
    };
    Some(choice.to_string())
}

/// `allowed_tools` with the gateway's tools under their offered names, and not forced after the first question.
fn allowed_tools(raw: Raw<'_>, first: bool, selected: &Selected) -> Option<Value> {
    let mut choice: Value = serde_json::from_str(raw.get()).ok()?;
    let allowed = choice.get_mut("allowed_tools")?.as_object_mut()?;
    if !first {
        allowed.insert("mode".into(), "auto".into());
    }
    let tools = allowed.get_mut("tools")?.as_array_mut()?;
    *tools = std::mem::take(tools)
        .into_iter()
        .flat_map(|tool| match mcp_choice(&tool) {
            Some(choice) => selected.chosen(&choice).into_iter().map(named).collect(),
            None => vec![tool],
        })
        .collect();
    Some(choice)
}

/// An element of `allowed_tools` that means tools of a server.
fn mcp_choice(tool: &Value) -> Option<McpChoice> {
    let text = |name: &str| tool.get(name)?.as_str().map(str::to_owned);
    let server_label = text("server_label").filter(|_| tool["type"] == "mcp")?;
    let name = text("name");
    Some(McpChoice { server_label, name })
}

/// A tool as `tool_choice` names a function.
fn named(offered: &Arc<Offered>) -> Value {
    json!({"type": "function", "function": {"name": offered.name.as_str()}})
}

fn joined<'c>(history: &'c str, appended: &'c str) -> Vec<&'c str> {
    let has_both = !history.is_empty() && !appended.is_empty();
    vec!["[", history, if has_both { "," } else { "" }, appended, "]"]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::{Catalog, Selection, ServerTools},
        tool::{Annotations, ServerId, Tool},
    };

    const MESSAGES: &str = r#"[ {"role":"user", "content":"\u00e9"} ]"#;

    /// `files` has `read` and `stat`, `web` has `get`.
    fn selected() -> Arc<Selected> {
        let server = |name: &str, tools: &[&str]| ServerTools {
            server: ServerId::parse(name).unwrap(),
            stateful: false,
            tools: tools
                .iter()
                .map(|name| Tool {
                    name: (*name).to_owned(),
                    title: None,
                    description: None,
                    input_schema: serde_json::Map::new(),
                    output_schema: None,
                    annotations: Annotations::default(),
                    extra: serde_json::Map::new(),
                })
                .collect(),
            dropped: Vec::new(),
        };
        let catalog =
            Catalog::build(&[server("files", &["read", "stat"]), server("web", &["get"])]);
        catalog.select(&Selection::everything(), &[], 128)
    }

    fn later() -> Ask {
        Ask {
            first: false,
            appended: r#"{"role":"tool"}"#.to_owned(),
            ..Ask::first()
        }
    }

    /// The body that goes out for a request with these members besides `model` and `messages`.
    fn composed(members: &str, ask: &Ask, selected: &Selected, history: Option<&str>) -> String {
        let body = format!(r#"{{"model": "m", "messages": {MESSAGES}{members}}}"#);
        let request = ChatRequest::parse(body.as_bytes(), 32).unwrap();
        let body = compose(&request, ask, selected, history).to_bytes();
        String::from_utf8(body.into()).unwrap()
    }

    #[track_caller]
    fn check_choice(choice: &str, first: &str, later_on: &str) {
        let members = format!(r#","tool_choice":{choice}"#);
        for (ask, expected) in [(Ask::first(), first), (later(), later_on)] {
            let body = composed(&members, &ask, &selected(), None);
            let body: Value = serde_json::from_str(&body).unwrap();
            let expected: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(body["tool_choice"], expected, "first: {}", ask.first);
        }
    }

    #[test]
    fn what_is_not_forced_stays() {
        check_choice(r#""auto""#, r#""auto""#, r#""auto""#);
        check_choice(r#""none""#, r#""none""#, r#""none""#);
        check_choice(
            r#"{"type":"new"}"#,
            r#"{"type":"new"}"#,
            r#"{"type":"new"}"#,
        );
    }

    #[test]
    fn what_is_forced_is_forced_once() {
        let function = r#"{"type":"function","function":{"name":"web__get"}}"#;
        check_choice(r#""required""#, r#""required""#, r#""auto""#);
        check_choice(r#""any""#, r#""any""#, r#""auto""#);
        check_choice(function, function, r#""auto""#);
        let custom = r#"{"type":"custom","custom":{"name":"own"}}"#;
        check_choice(custom, custom, r#""auto""#);
    }

    #[test]
    fn a_servers_tool_is_forced_by_its_offered_name() {
        let function = r#"{"type":"function","function":{"name":"web__get"}}"#;
        let mcp =
            |label: &str, name: &str| format!(r#"{{"type":"mcp","server_label":"{label}"{name}}}"#);
        check_choice(&mcp("web", r#","name":"get""#), function, r#""auto""#);
        check_choice(&mcp("web", ""), function, r#""auto""#);
        check_choice(&mcp("toolway", r#","name":"get""#), function, r#""auto""#);
        // One of several cannot be said in any other way that every upstream takes.
        check_choice(&mcp("files", ""), r#""required""#, r#""auto""#);
    }

    #[test]
    fn allowed_tools_name_functions_and_are_not_forced_later() {
        let function =
            |name: &str| format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#);
        let allowed = |mode: &str, tools: &[String]| {
            let tools = tools.join(",");
            format!(
                r#"{{"type":"allowed_tools","allowed_tools":{{"mode":"{mode}","tools":[{tools}]}}}}"#
            )
        };
        let own = [function("own")];
        check_choice(
            &allowed("required", &own),
            &allowed("required", &own),
            &allowed("auto", &own),
        );
        let whole_server = [
            function("own"),
            r#"{"type":"mcp","server_label":"files"}"#.to_owned(),
            r#"{"type":"mcp","server_label":"nobody"}"#.to_owned(),
        ];
        let by_name = [
            function("own"),
            function("files__read"),
            function("files__stat"),
        ];
        check_choice(
            &allowed("required", &whole_server),
            &allowed("required", &by_name),
            &allowed("auto", &by_name),
        );
    }

    #[test]
    fn the_clients_tools_come_first_and_read_more_comes_last() {
        let own = r#"{"type":"function","function":{"name":"own"}, "x": 1.0}"#;
        let ask = Ask {
            read_more: true,
            ..Ask::first()
        };
        let members = format!(r#","tools": [{{"type":"mcp","server_label":"web"}}, {own}]"#);
        let body = composed(&members, &ask, &selected(), None);
        assert!(body.contains(&format!(r#""tools":[{own},"#)), "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let names = body["tools"].as_array().unwrap().iter();
        let names: Vec<&str> = names
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "own",
                "files__read",
                "files__stat",
                "web__get",
                "toolway__read_more"
            ]
        );
    }

    #[test]
    fn read_more_alone_is_offered_too() {
        let ask = Ask {
            read_more: true,
            ..Ask::first()
        };
        let body = composed("", &ask, &Selected::default(), None);
        assert!(
            body.contains(r#""tools":[{"type":"function","function":{"name":"toolway__read_more""#)
        );
    }

    #[test]
    fn the_last_question_has_no_tools_and_nothing_that_speaks_of_them() {
        let members = r#","tools":[{"type":"function","function":{"name":"own"}}],"tool_choice":"required","parallel_tool_calls":true,"seed":1"#;
        let ask = Ask {
            with_tools: false,
            ..later()
        };
        let body = composed(members, &ask, &selected(), None);
        let expected = r#"{"model":"m","messages":[ {"role":"user", "content":"\u00e9"} ,{"role":"tool"}],"seed":1}"#;
        assert_eq!(body, expected);
    }

    #[test]
    fn everything_else_stays_byte_for_byte() {
        let members = r#", "toolway": {"progress": "on"}, "logit_bias": {"50256": -1e2}, "metadata":{ "a" :"\/" }"#;
        let body = composed(members, &Ask::first(), &Selected::default(), None);
        assert_eq!(
            body,
            format!(
                r#"{{"model":"m","messages":{MESSAGES},"logit_bias":{{"50256": -1e2}},"metadata":{{ "a" :"\/" }}}}"#
            )
        );
    }

    #[test]
    fn restored_messages_take_the_place_of_the_clients() {
        let with = |history: &str, ask: &Ask| {
            let body = composed("", ask, &Selected::default(), Some(history));
            let body: Value = serde_json::from_str(&body).unwrap();
            body["messages"].to_string()
        };
        let user = r#"{"role":"user"}"#;
        assert_eq!(with(user, &Ask::first()), format!("[{user}]"));
        assert_eq!(
            with(user, &later()),
            format!(r#"[{user},{{"role":"tool"}}]"#)
        );
        assert_eq!(with("", &later()), r#"[{"role":"tool"}]"#);
    }
}
