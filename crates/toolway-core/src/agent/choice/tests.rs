//! What each `tool_choice` becomes in the first, a later and the last question.

use serde_json::{Value, json};

use super::*;
use crate::{
    agent::{Bounds, Effect, Event, Turn, ask::compose, cut_results::CutResults},
    catalog::{Catalog, Selection, ServerTools},
    policy::ClientPolicy,
    route::Order,
    translate::{
        results::Media,
        stream::{CallKind, Owner, Round, RoundCall},
    },
};
use toolway_protocol::{
    openai::FinishReason,
    tool::{Annotations, JsonObject, ServerId, Tool, ToolCall, ToolResult},
};

/// `files` has `read` and `stat`, `web` has `get`.
fn catalog() -> Catalog {
    let tool = |name: &&str| Tool {
        name: (*name).to_owned(),
        title: None,
        description: None,
        input_schema: serde_json::Map::new(),
        output_schema: None,
        annotations: Annotations::default(),
        extra: serde_json::Map::new(),
    };
    let server = |name: &str, tools: &[&str]| ServerTools {
        server: ServerId::parse(name).unwrap(),
        stateful: false,
        risk: Default::default(),
        tools: tools.iter().map(tool).collect(),
        dropped: Vec::new(),
    };
    Catalog::build(&[server("files", &["read", "stat"]), server("web", &["get"])])
}

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

fn custom(name: &str) -> Value {
    json!({"type": "custom", "custom": {"name": name}})
}

fn server(label: &str) -> Value {
    json!({"type": "mcp", "server_label": label})
}

fn tool_of(label: &str, name: &str) -> Value {
    json!({"type": "mcp", "server_label": label, "name": name})
}

fn allowed(mode: &str, tools: &[Value]) -> Value {
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
}

/// A model's answer that calls these, each under its name for an id. The client's functions begin with `own`.
fn calls(names: &[&str]) -> Round {
    let call = |name: &&str| RoundCall {
        call: ToolCall {
            id: (*name).to_owned(),
            name: (*name).to_owned(),
            arguments: "{}".to_owned(),
        },
        owner: match name.starts_with("own") {
            true => Owner::Client,
            false => Owner::Gateway,
        },
        kind: CallKind::Function,
        extra: JsonObject::new(),
    };
    Round {
        calls: names.iter().map(call).collect(),
        ..Round::without_a_word(FinishReason::ToolCalls)
    }
}

/// Takes in a round, with every call of the gateway's answered.
fn go(turn: &mut Turn, round: Round) -> Effect {
    let mut effect = turn.on(Event::Answered(round));
    if let Some(Effect::Run(lanes)) = &effect {
        let jobs: Vec<_> = lanes.iter().flatten().map(|job| job.place).collect();
        for place in jobs {
            effect = turn.on(Event::Finished {
                place,
                outcome: Ok(ToolResult::text("done")),
                duration_ms: 0,
            });
        }
    }
    effect.unwrap()
}

/// A question as the model gets it: `tool_choice` (null if there is none), and the names of its tools.
type Question = (Value, Vec<String>);

/// The questions to a model that calls these in each round, with two rounds before the last one, and the calls
/// that are handed over to the client in the end.
fn play(choice: &Value, own: &[&str], rounds: &[&[&str]]) -> (Vec<Question>, Vec<String>) {
    let tools: Vec<Value> = own.iter().map(|name| function(name)).collect();
    let body = match choice {
        Value::Null => json!({"model": "m", "messages": [], "tools": tools}),
        choice => json!({"model": "m", "messages": [], "tools": tools, "tool_choice": choice}),
    };
    let body = body.to_string();
    let request = ChatRequest::parse(body.as_bytes(), 32).unwrap();
    let catalog = Arc::new(catalog());
    let selected = catalog.select(&Selection::everything(), own, 128);
    let bounds = Bounds {
        max_rounds: 2,
        max_calls: 8,
        max_all_calls: None,
        max_result_bytes: 200,
        media: Media {
            images: false,
            audio: false,
        },
        send_reasoning: false,
        order: Order::Parallel,
        forces_own_call: forces_own_call(&request),
        sees_calls: false,
    };
    let mut turn = Turn::new(
        bounds,
        catalog,
        selected.clone(),
        ClientPolicy::default(),
        CutResults::default(),
    );
    let mut ask = turn.begin();
    let mut questions = Vec::new();
    let mut rounds = rounds.iter();
    loop {
        let body = compose(&request, &ask, &selected, None, None).to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
        let tools = body["tools"].as_array().map(Vec::as_slice);
        let tools = tools.unwrap_or_default().iter().map(name).collect();
        questions.push((body["tool_choice"].clone(), tools));
        let Some(names) = rounds.next() else {
            return (questions, Vec::new());
        };
        match go(&mut turn, calls(names)) {
            Effect::Ask(next) => ask = next,
            Effect::Finish(finish) => {
                let names = finish.client_calls.into_iter().map(|call| call.call.name);
                return (questions, names.collect());
            }
            Effect::NoAnswer => return (questions, Vec::new()),
            Effect::Run(_) => panic!("all calls were answered"),
        }
    }
}

const GATEWAYS: [&str; 3] = ["files__read", "files__stat", "web__get"];
const OWN: [&str; 2] = ["own_a", "own_b"];

/// `tool_choice` in the first, the second and the last question to a model that only calls the gateway's tools.
/// `None` for a last question without tools.
#[track_caller]
fn check(choice: &Value, own: &[&str], first: &Value, later: &Value, last: Option<&Value>) {
    let (questions, _) = play(choice, own, &[&["web__get"], &["files__stat", "web__get"]]);
    let all = own.iter().chain(&GATEWAYS).map(|name| (*name).to_owned());
    let all: Vec<String> = all.collect();
    let own: Vec<String> = own.iter().map(|name| (*name).to_owned()).collect();
    let last = match last {
        Some(choice) => (choice.clone(), own),
        None => (Value::Null, Vec::new()),
    };
    let expected = [(first.clone(), all.clone()), (later.clone(), all), last];
    assert_eq!(questions, expected, "{choice}");
}

#[test]
fn what_forces_nothing_stays_as_it_is_and_the_last_question_has_no_tools() {
    for own in [&[][..], &OWN] {
        for choice in [json!("auto"), json!({"type": "new"}), Value::Null] {
            check(&choice, own, &choice, &choice, None);
        }
        let files = [function("files__read"), function("files__stat")];
        let auto = allowed("auto", &[server("files")]);
        let named = allowed("auto", &files);
        check(&auto, own, &named, &named, None);
    }
}

#[test]
fn required_holds_for_the_first_question_where_the_client_has_no_functions() {
    for choice in [json!("required"), json!("any")] {
        check(&choice, &[], &choice, &json!("auto"), None);
    }
}

#[test]
fn required_holds_until_one_of_the_clients_functions_is_called() {
    for choice in [json!("required"), json!("any")] {
        check(&choice, &OWN, &choice, &choice, Some(&choice));
    }
}

#[test]
fn a_forced_function_of_the_clients_holds_until_it_is_called() {
    for choice in [function("own_a"), custom("own_b")] {
        check(&choice, &OWN, &choice, &choice, Some(&choice));
    }
}

#[test]
fn a_forced_tool_of_the_gateways_holds_for_the_first_question() {
    let auto = json!("auto");
    for own in [&[][..], &OWN] {
        let get = function("web__get");
        check(&get, own, &get, &auto, None);
        check(&tool_of("web", "get"), own, &get, &auto, None);
        check(&server("web"), own, &get, &auto, None);
        // One of several cannot be said in any other way that every upstream takes.
        check(&server("files"), own, &json!("required"), &auto, None);
        let nobodys = function("nobodys");
        check(&nobodys, own, &nobodys, &auto, None);
    }
}

#[test]
fn required_among_allowed_tools_holds_as_long_as_the_clients_functions_are_among_them() {
    let files = [function("files__read"), function("files__stat")];
    let own = function("own_a");
    let with_own = |more: &[Value]| {
        let tools: Vec<Value> = [own.clone()].into_iter().chain(more.to_vec()).collect();
        allowed("required", &tools)
    };
    let only_own = with_own(&[]);
    check(&only_own, &OWN, &only_own, &only_own, Some(&only_own));
    for mixed in [with_own(&files), with_own(&[server("files")])] {
        let named = with_own(&files);
        check(&mixed, &OWN, &named, &named, Some(&only_own));
        // The client has no such function.
        let relaxed = allowed("auto", &[std::slice::from_ref(&own), &files[..]].concat());
        check(&mixed, &[], &named, &relaxed, None);
    }
    let gateways = allowed("required", &files);
    check(&gateways, &OWN, &gateways, &allowed("auto", &files), None);
}

#[test]
fn a_call_of_the_clients_function_ends_the_request_whatever_else_is_called() {
    let choices = [
        json!("required"),
        function("own_a"),
        allowed("required", &[function("own_a"), function("web__get")]),
    ];
    for choice in choices {
        let (questions, handed_over) = play(&choice, &OWN, &[&["own_a"]]);
        assert_eq!(
            (questions.len(), &handed_over[..]),
            (1, &["own_a".to_owned()][..])
        );
        let mixed: &[&str] = &["web__get", "own_a"];
        let gateways: &[&str] = &["web__get"];
        for rounds in [
            &[mixed][..],
            &[gateways, mixed],
            &[gateways, gateways, mixed],
        ] {
            let (questions, handed_over) = play(&choice, &OWN, rounds);
            assert_eq!(questions.len(), rounds.len());
            assert_eq!(handed_over, ["own_a"], "{choice}, {rounds:?}");
        }
    }
}

#[test]
fn a_model_that_calls_a_tool_of_the_gateways_in_the_last_round_ends_the_request() {
    let rounds: [&[&str]; 3] = [&["web__get"], &["web__get"], &["web__get"]];
    let (questions, handed_over) = play(&json!("required"), &OWN, &rounds);
    assert_eq!(questions.len(), 3);
    assert!(handed_over.is_empty());
}
