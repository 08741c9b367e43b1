//! The body that goes to the model: the client's own, with tools, messages and tool choice put in.

use serde_json::Value;

use crate::catalog::Selected;
use toolway_protocol::{
    openai::request::{Change, ChatRequest, splice_messages},
    segmented_body::SegmentedBody,
    tool::JsonObject,
};

use super::{
    choice::{Offer, tool_choice},
    cut_results::read_more_tool,
};

/// The members of a message in which providers give thoughts; those of calls are in `extra_content`.
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "reasoning_details"];

/// One question to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// It is the first of its request.
    pub first: bool,
    /// Messages added to the conversation, as JSON objects with commas between them.
    pub appended: String,
    /// The tools that go with it.
    pub offer: Offer,
    /// What `tool_choice` forces is forced; if not, it becomes `auto`, or the loop would never end.
    pub forces_choice: bool,
    /// The model may read on in a cut result.
    pub read_more: bool,
}

impl Ask {
    /// The first question of a request: the client's own.
    pub fn first() -> Ask {
        Ask {
            first: true,
            appended: String::new(),
            offer: Offer::All,
            forces_choice: true,
            read_more: false,
        }
    }

    /// The same without the thoughts in the first `len` bytes of what is added: another provider's, which the one that is
    /// asked now would not take.
    pub fn without_reasoning(&self, len: usize) -> Ask {
        let (before, after) = self.appended.split_at_checked(len).unwrap_or_default();
        let messages = serde_json::from_str::<Vec<JsonObject>>(&format!("[{before}]"));
        let messages = messages.unwrap_or_default().into_iter().map(|mut message| {
            message.retain(|name, _| !REASONING.contains(&name.as_str()));
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
                call.shift_remove("extra_content");
            }
            Value::Object(message).to_string()
        });
        let messages: Vec<String> = messages.collect();
        Ask {
            appended: messages.join(",") + after,
            ..self.clone()
        }
    }
}

/// Writes the body of a question. `history`, a JSON array, replaces the client's messages where parked calls were
/// restored; `model`, a JSON text, the model where its upstream calls it otherwise than the client.
pub fn compose<'c>(
    request: &ChatRequest<'c>,
    ask: &'c Ask,
    selected: &'c Selected,
    history: Option<&'c str>,
    model: Option<&str>,
) -> SegmentedBody<'c> {
    let is_changed = history.is_some() || !ask.appended.is_empty();
    let messages = history.unwrap_or(request.messages().get());
    let messages = is_changed.then(|| splice_messages(messages, &ask.appended));
    let read_more = if ask.read_more { read_more_tool() } else { "" };
    let tools = match ask.offer {
        Offer::All => request.tools_with(&[&*selected.json, read_more]),
        Offer::Own => request.tools_with(&[]),
        Offer::None => None,
    };
    let choice = tool_choice(request, ask.offer, ask.forces_choice, selected);
    let mut changes = vec![("toolway", Change::Remove)];
    changes.extend(model.map(|model| ("model", Change::Set(model))));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::catalog::{Catalog, Selection, ServerTools};
    use toolway_protocol::tool::{Annotations, ServerId, Tool};

    const MESSAGES: &str = r#"[ {"role":"user", "content":"\u00e9"} ]"#;

    /// `files` has `read` and `stat`, `web` has `get`.
    fn selected() -> Arc<Selected> {
        let server = |name: &str, tools: &[&str]| ServerTools {
            server: ServerId::parse(name).unwrap(),
            stateful: false,
            risk: Default::default(),
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
            forces_choice: false,
            ..Ask::first()
        }
    }

    /// The body that goes out for a request with these members besides `model` and `messages`.
    fn composed(members: &str, ask: &Ask, selected: &Selected, history: Option<&str>) -> String {
        let body = format!(r#"{{"model": "m", "messages": {MESSAGES}{members}}}"#);
        let request = ChatRequest::parse(body.as_bytes(), 32).unwrap();
        let body = compose(&request, ask, selected, history, None).to_bytes();
        String::from_utf8(body.into()).unwrap()
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
            offer: Offer::None,
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
    fn thoughts_of_another_provider_are_left_out() {
        let before = r#"{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c","extra_content":{"x":1}}]}"#;
        let after = r#",{"role":"assistant","reasoning_content":"own"}"#;
        let ask = Ask {
            appended: [before, after].concat(),
            ..later()
        };
        let expected = r#"{"role":"assistant","tool_calls":[{"id":"c"}]}"#;
        let appended = ask.without_reasoning(before.len()).appended;
        assert_eq!(appended, [expected, after].concat());
        assert_eq!(Ask::first().without_reasoning(0), Ask::first());
    }

    #[test]
    fn restored_messages_take_the_place_of_the_clients() {
        let with = |history: &str, ask: &Ask| {
            let history = format!("[{history}]");
            let body = composed("", ask, &Selected::default(), Some(&history));
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
