//! What the Open Responses suite checks (openresponses.org), whole, streamed and on a WebSocket: the response has every
//! member, the events are those of the specification, and the gateway's own calls do not show.
//!
//! `scripts/open-responses` runs the suite itself.

use serde_json::{Value, json};

use crate::{
    dialects::{over, plain, streamed},
    harness::Toolway,
    model::{Reply, call, say, say_and_call},
    websocket::connect,
};

/// The client's side of a request.
#[derive(Clone, Copy, Debug)]
enum Transport {
    Whole,
    Streamed,
    WebSocket,
}

const TRANSPORTS: [Transport; 3] = [Transport::Whole, Transport::Streamed, Transport::WebSocket];

const IMAGE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// What a member may be.
type Check = fn(&Value) -> bool;

fn text_or_null(value: &Value) -> bool {
    value.is_string() || value.is_null()
}

fn object_or_null(value: &Value) -> bool {
    value.is_object() || value.is_null()
}

fn count_or_null(value: &Value) -> bool {
    value.is_u64() || value.is_null()
}

/// The members of a response, all of which are there.
const RESPONSE: [(&str, Check); 32] = [
    ("id", Value::is_string),
    ("object", |it| it == "response"),
    ("created_at", Value::is_u64),
    ("completed_at", count_or_null),
    ("status", Value::is_string),
    ("incomplete_details", object_or_null),
    ("model", Value::is_string),
    ("previous_response_id", text_or_null),
    ("instructions", text_or_null),
    ("output", Value::is_array),
    ("error", object_or_null),
    ("tools", Value::is_array),
    ("tool_choice", |it| it.is_string() || it.is_object()),
    ("truncation", |it| it == "auto" || it == "disabled"),
    ("parallel_tool_calls", Value::is_boolean),
    ("text", |it| it["format"]["type"].is_string()),
    ("top_p", Value::is_number),
    ("presence_penalty", Value::is_number),
    ("frequency_penalty", Value::is_number),
    ("top_logprobs", Value::is_u64),
    ("temperature", Value::is_number),
    ("reasoning", object_or_null),
    ("usage", object_or_null),
    ("max_output_tokens", count_or_null),
    ("max_tool_calls", count_or_null),
    ("store", Value::is_boolean),
    ("background", Value::is_boolean),
    ("service_tier", Value::is_string),
    ("metadata", Value::is_object),
    ("safety_identifier", text_or_null),
    ("prompt_cache_key", text_or_null),
    ("user", text_or_null),
];

#[track_caller]
fn check_members(value: &Value, members: &[(&str, Check)]) {
    for (name, is_valid) in members {
        let member = value.get(*name);
        let member = member.unwrap_or_else(|| panic!("no `{name}` in {value:#}"));
        assert!(is_valid(member), "`{name}` is {member}");
    }
}

#[track_caller]
fn check_response(response: &Value) {
    check_members(response, &RESPONSE);
    for tool in response["tools"].as_array().unwrap() {
        let members: [(&str, Check); 4] = [
            ("name", Value::is_string),
            ("description", text_or_null),
            ("parameters", object_or_null),
            ("strict", |it| it.is_boolean() || it.is_null()),
        ];
        check_members(tool, &members);
    }
    response["output"]
        .as_array()
        .unwrap()
        .iter()
        .for_each(check_item);
    if response["status"] == "completed" {
        let usage = &response["usage"];
        for name in ["input_tokens", "output_tokens", "total_tokens"] {
            assert!(usage[name].is_u64(), "{usage}");
        }
        assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
        assert!(usage["output_tokens_details"]["reasoning_tokens"].is_u64());
        assert!(response["completed_at"].is_u64());
    }
}

#[track_caller]
fn check_item(item: &Value) {
    check_members(item, &[("id", Value::is_string)]);
    match item["type"].as_str().unwrap() {
        "message" => {
            assert_eq!(item["role"], "assistant");
            for part in item["content"].as_array().unwrap() {
                check_part(part);
            }
        }
        "function_call" => {
            for name in ["call_id", "name", "arguments", "status"] {
                assert!(item[name].is_string(), "{item}");
            }
        }
        "reasoning" => assert!(item["summary"].is_array()),
        other => panic!("the specification has no item `{other}`"),
    }
}

#[track_caller]
fn check_part(part: &Value) {
    assert_eq!(part["type"], "output_text");
    let members: [(&str, Check); 2] =
        [("text", Value::is_string), ("annotations", Value::is_array)];
    check_members(part, &members);
}

/// The last event's response.
#[track_caller]
fn check_events(events: &[Value]) -> Value {
    let place: [(&str, Check); 2] = [
        ("item_id", Value::is_string),
        ("output_index", Value::is_u64),
    ];
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
        match event["type"].as_str().unwrap() {
            "response.created" | "response.in_progress" | "response.completed" => {
                check_response(&event["response"]);
            }
            "response.output_item.added" | "response.output_item.done" => {
                check_members(event, &place[1..]);
                check_item(&event["item"]);
            }
            "response.content_part.added" | "response.content_part.done" => {
                check_members(event, &place);
                check_members(event, &[("content_index", Value::is_u64)]);
                check_part(&event["part"]);
            }
            "response.output_text.delta" => {
                check_members(event, &place);
                check_members(
                    event,
                    &[("delta", Value::is_string), ("logprobs", Value::is_array)],
                );
            }
            "response.output_text.done" => {
                check_members(event, &place);
                check_members(
                    event,
                    &[("text", Value::is_string), ("logprobs", Value::is_array)],
                );
            }
            "response.function_call_arguments.delta" => {
                check_members(event, &place);
                check_members(event, &[("delta", Value::is_string)]);
            }
            "response.function_call_arguments.done" => {
                check_members(event, &place);
                check_members(event, &[("arguments", Value::is_string)]);
            }
            other => panic!("the specification has no event `{other}`"),
        }
    }
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    last["response"].clone()
}

/// The response to a body, checked.
async fn respond(gw: &Toolway, transport: Transport, mut body: Value) -> Value {
    body["model"] = "m".into();
    let response = match transport {
        Transport::Whole => plain(gw, "/v1/responses", body).await,
        Transport::Streamed => check_events(&streamed(gw, "/v1/responses", body).await),
        Transport::WebSocket => {
            let mut client = connect(gw).await;
            client.send(body).await;
            check_events(&client.events().await)
        }
    };
    check_response(&response);
    assert_eq!(response["status"], "completed");
    response
}

/// A round with a call of the gateway's own, and one that ends.
fn after_a_hidden_call(last: Reply) -> Vec<Reply> {
    vec![call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]), last]
}

/// Each transport, over a model that makes a call of the gateway's first: the types of the items that come.
async fn check(body: Value, last: Reply, expected: &[&str]) {
    for transport in TRANSPORTS {
        let gw = over("chat", after_a_hidden_call(last.clone())).await;
        let response = respond(&gw, transport, body.clone()).await;
        let items = response["output"].as_array().unwrap().iter();
        let kinds: Vec<&str> = items.map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, expected, "{transport:?}");
        gw.join().await;
    }
}

async fn check_text(input: Value) {
    let body = json!({"input": input, "store": false});
    check(body, say("Here you are."), &["message"]).await;
}

fn message(role: &str, content: Value) -> Value {
    json!({"type": "message", "role": role, "content": content})
}

#[tokio::test]
async fn a_text_is_answered() {
    check_text(json!([message("user", "Say hello.".into())])).await;
    check_text("Say hello.".into()).await;
}

#[tokio::test]
async fn phases_and_earlier_turns_are_taken() {
    let mut turns = vec![message("user", "How much is it?".into())];
    for phase in ["commentary", "final_answer"] {
        let mut said = message("assistant", "four".into());
        said["phase"] = phase.into();
        turns.push(said);
    }
    turns.push(message("user", "Only the number.".into()));
    check_text(turns.into()).await;
}

#[tokio::test]
async fn instructions_are_taken_as_messages_and_as_a_member() {
    check_text(json!([
        message("system", "Be short.".into()),
        message("user", "Hi".into())
    ]))
    .await;
    let body = json!({"input": "Hi", "instructions": "Be short."});
    check(body, say("Hi."), &["message"]).await;
}

#[tokio::test]
async fn pictures_and_files_are_taken() {
    let picture = json!({"type": "input_image", "image_url": IMAGE});
    let file = json!({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="});
    for part in [picture, file] {
        let question = json!({"type": "input_text", "text": "What is it?"});
        check_text(json!([message("user", json!([question, part]))])).await;
    }
}

#[tokio::test]
async fn a_function_of_the_clients_is_called_and_its_output_taken() {
    let tool = json!({"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}});
    let calls = [("w", "get_weather", json!({}))];
    let body = json!({"input": "How is the weather?", "tools": [tool]});
    check(body, call(&calls), &["function_call"]).await;
    check(
        json!({"input": "How is the weather?", "tools": [tool]}),
        say_and_call("Let me see.", &calls),
        &["message", "function_call"],
    )
    .await;
    let asked =
        json!({"type": "function_call", "call_id": "w", "name": "get_weather", "arguments": "{}"});
    let told = json!({"type": "function_call_output", "call_id": "w", "output": "sunny"});
    check_text(json!([message("user", "How is it?".into()), asked, told])).await;
}

#[tokio::test]
async fn a_response_is_continued_by_its_id() {
    for transport in TRANSPORTS {
        let gw = over("chat", vec![say("four"), say("five")]).await;
        let first = respond(&gw, transport, json!({"input": "two and two"})).await;
        let next = json!({"input": "and one", "previous_response_id": first["id"]});
        let second = respond(&gw, transport, next).await;
        assert_eq!(second["previous_response_id"], first["id"]);
        assert_eq!(gw.model.messages(1).len(), 3);
        gw.join().await;
    }
}

#[tokio::test]
async fn what_was_made_shorter_begins_a_conversation() {
    let short = json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "short"});
    check_text(json!([short, message("user", "Go on.".into())])).await;
}
