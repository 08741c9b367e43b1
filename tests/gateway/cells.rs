//! Every client API over every model API, as files: `golden/cells/FACE.in.json` is what a client sends, and
//! `FACE_over_API.out.json` what the model is asked and what the client gets, whole and streamed.
//!
//! The model says a text and calls a tool of the gateway and one of the client; the client answers its own, and the model
//! ends. `UPDATE_GOLDEN=1` writes the files anew; the difference is to be reviewed like code.

use std::{collections::HashMap, env, fs, path::PathBuf};

use serde_json::{Value, json};

use crate::{
    dialects::{over, post},
    model::{say, say_and_call},
};

/// What the ids begin with that differ from run to run.
const RANDOM: [&str; 5] = ["chatcmpl-", "resp_", "msg_", "fc_", "rs_"];

/// What differs from run to run besides.
const TIMES: [&str; 3] = ["created", "created_at", "completed_at"];

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/cells");
    folder.join(format!("{name}.json"))
}

/// The answer to a request: its body, or the events of its stream.
async fn answer(gw: &crate::harness::Toolway, path: &str, body: &Value) -> Value {
    let response = post(gw, path, body).await;
    let status = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(status, 200, "{text}");
    if body["stream"] != true {
        return serde_json::from_str(&text).unwrap();
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str::<Value>(data).unwrap_or_else(|_| data.into()))
        .collect()
}

/// The same request after the first answer, with the result of the client's own call.
fn next(face: &str, mut request: Value, answer: &Value) -> Value {
    let said: Vec<Value> = match face {
        "chat" => {
            let said = answer["choices"][0]["message"].clone();
            let id = said["tool_calls"][0]["id"].clone();
            vec![
                said,
                json!({"role": "tool", "tool_call_id": id, "content": "mine"}),
            ]
        }
        "responses" => {
            let mut items = answer["output"].as_array().unwrap().clone();
            let id = items.last().unwrap()["call_id"].clone();
            items.push(json!({"type": "function_call_output", "call_id": id, "output": "mine"}));
            items
        }
        _ => {
            let blocks = &answer["content"];
            let id = blocks.as_array().unwrap().last().unwrap()["id"].clone();
            let result = json!({"type": "tool_result", "tool_use_id": id, "content": "mine"});
            vec![
                json!({"role": "assistant", "content": blocks}),
                json!({"role": "user", "content": [result]}),
            ]
        }
    };
    let list = if face == "responses" {
        "input"
    } else {
        "messages"
    };
    request[list].as_array_mut().unwrap().extend(said);
    request
}

/// Puts a name in the place of each id that differs from run to run, and 0 in that of each time.
fn settle(value: &mut Value, names: &mut HashMap<String, String>) {
    match value {
        Value::String(id) if RANDOM.iter().any(|it| id.starts_with(it)) => {
            let number = names.len() + 1;
            let prefix = RANDOM.iter().find(|it| id.starts_with(**it)).unwrap();
            let name = names
                .entry(id.clone())
                .or_insert_with(|| format!("{prefix}{number}"));
            id.clone_from(name);
        }
        Value::Array(items) => items.iter_mut().for_each(|it| settle(it, names)),
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                match TIMES.contains(&name.as_str()) && member.is_number() {
                    true => *member = json!(0),
                    false => settle(member, names),
                }
            }
        }
        _ => {}
    }
}

/// A line for each message, item or event.
fn readable(value: &Value, depth: usize) -> String {
    let (pad, end) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    let compact = value.to_string();
    match value {
        Value::Object(members)
            if depth < 4 && compact.len() > 100 && !members.contains_key("type") =>
        {
            let line = |(name, it): (&String, &Value)| {
                format!(
                    "{pad}{}: {}",
                    Value::from(name.as_str()),
                    readable(it, depth + 1)
                )
            };
            let lines: Vec<String> = members.iter().map(line).collect();
            format!("{{\n{}\n{end}}}", lines.join(",\n"))
        }
        Value::Array(items) if depth < 4 && compact.len() > 100 => {
            let line = |it: &Value| match it["object"] == "chat.completion.chunk" {
                true => format!("{pad}{it}"),
                false => format!("{pad}{}", readable(it, depth + 1)),
            };
            let lines: Vec<String> = items.iter().map(line).collect();
            format!("[\n{}\n{end}]", lines.join(",\n"))
        }
        _ => compact,
    }
}

#[track_caller]
fn compare(name: &str, mut actual: Value) {
    settle(&mut actual, &mut HashMap::new());
    let (path, actual) = (file(name), readable(&actual, 0) + "\n");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{}: got\n{actual}", path.display());
}

async fn check(face: &str, api: &str) {
    let given = fs::read_to_string(file(&format!("{face}.in"))).unwrap();
    let given: Value = serde_json::from_str(&given).unwrap();
    let path = given["path"].as_str().unwrap();
    let mut cell = json!({});
    // What the client sends after the first answer, which it has whole.
    let mut following = Value::Null;
    for (way, is_streamed) in [("whole", false), ("streamed", true)] {
        let both = [
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "own", json!({"x": 1})),
        ];
        let gw = over(api, vec![say_and_call("Look. ", &both), say("It is done.")]).await;
        let asking = |mut request: Value| {
            if is_streamed {
                request["stream"] = json!(true);
            }
            request
        };
        let first = answer(&gw, path, &asking(given["request"].clone())).await;
        if !is_streamed {
            following = next(face, given["request"].clone(), &first);
        }
        let second = answer(&gw, path, &asking(following.clone())).await;
        let asked = gw.model.asked().into_iter();
        let asked: Vec<Value> = asked
            .map(|it| json!({"path": it.path, "body": it.body}))
            .collect();
        let calls = gw.servers[0].calls();
        assert_eq!(
            calls,
            [("add".to_owned(), json!({"a": 1, "b": 2}))],
            "{face} over {api}"
        );
        cell[way] = json!({"asked": asked, "first": first, "second": second});
        gw.join().await;
    }
    compare(&format!("{face}_over_{api}.out"), cell);
}

macro_rules! cells {
    ($($name:ident: $face:literal over $api:literal;)*) => {
        $(#[tokio::test]
        async fn $name() {
            check($face, $api).await;
        })*
    };
}

cells! {
    chat_over_chat_is_as_written_down: "chat" over "chat";
    chat_over_responses_is_as_written_down: "chat" over "responses";
    chat_over_messages_is_as_written_down: "chat" over "anthropic";
    chat_over_gemini_is_as_written_down: "chat" over "gemini";
    responses_over_chat_are_as_written_down: "responses" over "chat";
    responses_over_responses_are_as_written_down: "responses" over "responses";
    responses_over_messages_are_as_written_down: "responses" over "anthropic";
    responses_over_gemini_are_as_written_down: "responses" over "gemini";
    messages_over_chat_are_as_written_down: "messages" over "chat";
    messages_over_responses_are_as_written_down: "messages" over "responses";
    messages_over_messages_are_as_written_down: "messages" over "anthropic";
    messages_over_gemini_are_as_written_down: "messages" over "gemini";
}
