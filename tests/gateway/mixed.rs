//! Mixed turns: the model calls a tool of the gateway and one of the client's own in one turn
//! (design.md, "What the client sees", point 5).

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, own_function, toolway},
    model::{Model, Reply, call, raw, say, say_and_call},
    tools::{Does, tools},
};

const QUESTION: &str = "add and look up";

/// The id of the client's call in a mixed turn, as the client is shown it: with the mark of a parked turn.
const SHOWN: &str = "call_own-toolway";

fn user() -> Value {
    json!({"role": "user", "content": QUESTION})
}

fn mixed() -> Reply {
    call(&[
        ("call_gate", "calc__add", json!({"a": 1, "b": 2})),
        ("call_own", "lookup", json!({"key": "x"})),
    ])
}

async fn start(script: impl IntoIterator<Item = Reply>) -> Toolway {
    let model = Model::start(script).await;
    toolway(model).server("calc", tools().add()).start().await
}

fn request(messages: Value) -> Value {
    json!({"messages": messages, "tools": [own_function("lookup")]})
}

/// What a client sends when it comes back with its answer.
fn come_back(id: &str, content: Value) -> Value {
    json!([
        user(),
        {"role": "assistant", "content": content, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "lookup", "arguments": "{\"key\": \"x\"}"}}]},
        {"role": "tool", "tool_call_id": id, "content": "found"},
    ])
}

/// The conversation as the model sees it: role, ids of calls or of the answered call, and content.
fn seen(messages: &[Value]) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ids = |message: &Value| match message["tool_calls"].as_array() {
        Some(calls) => calls
            .iter()
            .map(|call| text(&call["id"]))
            .collect::<Vec<_>>()
            .join("+"),
        None => text(&message["tool_call_id"]),
    };
    messages
        .iter()
        .map(|message| {
            (
                text(&message["role"]),
                ids(message),
                text(&message["content"]),
            )
        })
        .collect()
}

#[track_caller]
fn check(messages: &[Value], expected: &[(&str, &str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(role, ids, text)| ((*role).to_owned(), (*ids).to_owned(), (*text).to_owned()))
        .collect();
    assert_eq!(seen(messages), expected);
}

const PUT_BACK: [(&str, &str, &str); 4] = [
    ("user", "", QUESTION),
    ("assistant", "call_gate+call_own", ""),
    ("tool", "call_gate", "3"),
    ("tool", "call_own", "found"),
];

#[tokio::test]
async fn a_streamed_mixed_turn_shows_the_clients_call_only_and_puts_the_other_back() {
    let gw = start([mixed(), say("both done")]).await;
    let answer = gw.streamed(request(json!([user()]))).await;
    assert_eq!(
        answer.calls(),
        [(
            SHOWN.to_owned(),
            "lookup".to_owned(),
            r#"{"key":"x"}"#.to_owned()
        )]
    );
    assert_eq!(answer.finishes(), ["tool_calls"]);
    assert_eq!(
        gw.servers[0].calls().len(),
        1,
        "the gateway's call ran before the client was asked"
    );
    let answer = gw.streamed(request(come_back(SHOWN, Value::Null))).await;
    assert_eq!(answer.text(), "both done");
    check(&gw.model.messages(1), &PUT_BACK);
    assert_eq!(gw.servers[0].calls().len(), 1, "and did not run again");
    gw.join().await;
}

#[tokio::test]
async fn a_plain_mixed_turn_shows_the_clients_call_only_and_puts_the_other_back() {
    let gw = start([mixed(), say("both done")]).await;
    let answer = gw.plain(request(json!([user()]))).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(message["tool_calls"][0]["id"], SHOWN);
    assert_eq!(message["content"], Value::Null);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let answer = gw.plain(request(come_back(SHOWN, json!("")))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "both done");
    check(&gw.model.messages(1), &PUT_BACK);
    gw.join().await;
}

#[tokio::test]
async fn what_was_parked_is_put_back_again_in_every_later_turn() {
    let gw = start([mixed(), say("both done"), say("later")]).await;
    gw.streamed(request(json!([user()]))).await;
    let mut messages = come_back(SHOWN, Value::Null);
    gw.streamed(request(messages.clone())).await;
    let list = messages.as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": "both done"}));
    list.push(json!({"role": "user", "content": "and now?"}));
    gw.streamed(request(messages)).await;
    let mut expected = PUT_BACK.to_vec();
    expected.extend([("assistant", "", "both done"), ("user", "", "and now?")]);
    check(&gw.model.messages(2), &expected);
    gw.join().await;
}

#[tokio::test]
async fn rounds_before_the_clients_call_are_put_back_too() {
    let first = say_and_call(
        "First. ",
        &[("call_1st", "calc__add", json!({"a": 0, "b": 3}))],
    );
    let gw = start([first, mixed(), say("done")]).await;
    let answer = gw.streamed(request(json!([user()]))).await;
    assert_eq!(answer.text(), "First. ");
    assert_eq!(answer.calls().len(), 1);
    gw.streamed(request(come_back(SHOWN, json!("First. "))))
        .await;
    let mut expected = vec![
        PUT_BACK[0],
        ("assistant", "call_1st", "First. "),
        ("tool", "call_1st", "3"),
    ];
    expected.extend(&PUT_BACK[1..]);
    check(&gw.model.messages(2), &expected);
    gw.join().await;
}

#[tokio::test]
async fn a_turn_that_was_never_parked_goes_on_without_it() {
    let gw = start([say("fine")]).await;
    let answer = gw
        .streamed(request(come_back("call_lost", Value::Null)))
        .await;
    assert_eq!(answer.text(), "fine");
    assert_eq!(gw.model.messages(0).len(), 3);
    gw.join().await;
}

/// The client's answer with the note that the results of toolway's calls are missing.
#[track_caller]
fn check_lost(messages: &[Value]) {
    let answer = messages[2]["content"].as_str().unwrap();
    let note = answer.strip_prefix("found").expect(answer);
    assert!(note.contains("may have run"), "{note}");
    let mut messages = messages.to_vec();
    messages[2]["content"] = json!("found");
    check(
        &messages,
        &[
            PUT_BACK[0],
            ("assistant", "call_own", ""),
            ("tool", "call_own", "found"),
        ],
    );
}

#[tokio::test]
async fn with_a_data_folder_a_mixed_turn_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir = '{}'", folder.path().display());
    let start = async |reply| {
        let model = Model::start([reply]).await;
        let gw = toolway(model).server("calc", tools().add()).config(&data);
        gw.start().await
    };
    for stream in [true, false] {
        let gw = start(mixed()).await;
        let mut body = request(json!([user()]));
        body["stream"] = json!(stream);
        gw.send(body, &[]).await.bytes().await.unwrap();
        gw.join().await;

        let gw = start(say("both done")).await;
        assert_eq!(
            json!(gw.gateway.store()),
            json!({"kind": "sqlite", "state": "ready", "reason": null})
        );
        let mut body = request(come_back(SHOWN, Value::Null));
        body["stream"] = json!(stream);
        let response = gw.send(body, &[]).await;
        assert_eq!(response.status(), 200);
        response.bytes().await.unwrap();
        check(&gw.model.messages(0), &PUT_BACK);
        assert!(gw.servers[0].calls().is_empty(), "nothing runs again");
        gw.join().await;
    }
}

#[tokio::test]
async fn another_clients_key_does_not_find_a_stored_turn() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir = '{}'", folder.path().display());
    let model = Model::start([mixed(), say("go on"), say("both done")]).await;
    let gw = toolway(model).server("calc", tools().add()).config(&data);
    let gw = gw.start().await;
    let own = [("authorization", "Bearer own")];
    let others = [("authorization", "Bearer another")];
    let body = request(json!([user()]));
    gw.send(body, &own).await.bytes().await.unwrap();
    for key in [others, own] {
        let body = request(come_back(SHOWN, Value::Null));
        gw.send(body, &key).await.bytes().await.unwrap();
    }
    check_lost(&gw.model.messages(1));
    check(&gw.model.messages(2), &PUT_BACK);
    gw.join().await;
}

#[tokio::test]
async fn after_a_restart_the_model_is_told_that_a_turn_is_lost_and_sees_its_own_ids() {
    for stream in [true, false] {
        let gw = start([mixed()]).await;
        let mut body = request(json!([user()]));
        body["stream"] = json!(stream);
        gw.send(body, &[]).await.bytes().await.unwrap();
        gw.join().await;
        let mut body = request(come_back(SHOWN, Value::Null));
        body["stream"] = json!(stream);
        // With the gateway's tools, and where there are none any more.
        let with_tools = start([say("go on")]).await;
        let without = toolway(Model::start([say("go on")]).await).start().await;
        for gw in [with_tools, without] {
            let response = gw.send(body.clone(), &[]).await;
            assert_eq!(response.status(), 200);
            response.bytes().await.unwrap();
            check_lost(&gw.model.messages(0));
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn every_call_of_the_clients_after_a_round_of_the_gateways_carries_the_mark() {
    let first = call(&[("call_1st", "calc__add", json!({"a": 0, "b": 3}))]);
    let own = call(&[("123456789", "lookup", json!({}))]);
    for stream in [true, false] {
        let gw = start([first.clone(), own.clone()]).await;
        let id = if stream {
            let answer = gw.streamed(request(json!([user()]))).await;
            answer.calls().remove(0).0
        } else {
            let answer = gw.plain(request(json!([user()]))).await;
            let id = &answer["choices"][0]["message"]["tool_calls"][0]["id"];
            id.as_str().unwrap().to_owned()
        };
        assert_eq!(id, "123456789-toolway");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_parked_turn_is_never_put_into_another_conversation() {
    let gw = start([mixed(), say("other"), say("other")]).await;
    gw.streamed(request(json!([user()]))).await;
    // Another question before the same id, as upstreams that count their ids would have it.
    let mut messages = come_back(SHOWN, Value::Null);
    messages[0]["content"] = json!("something else");
    gw.streamed(request(messages)).await;
    assert_eq!(gw.model.messages(1).len(), 3);
    // Another client with the same words.
    let mut body = request(come_back(SHOWN, Value::Null));
    body["stream"] = json!(true);
    let response = gw
        .send(body, &[("authorization", "Bearer somebody-else")])
        .await;
    assert_eq!(response.status(), 200);
    response.text().await.unwrap();
    assert_eq!(gw.model.messages(2).len(), 3);
    gw.join().await;
}

#[tokio::test]
async fn an_id_that_another_conversation_is_waiting_with_is_changed() {
    let gw = start([mixed(), mixed()]).await;
    gw.streamed(request(json!([user()]))).await;
    let other = gw
        .streamed(request(
            json!([{"role": "user", "content": "somebody else asks"}]),
        ))
        .await;
    let (id, name, _) = other.calls().remove(0);
    assert_eq!(name, "lookup");
    assert!(!id.starts_with("call_own"), "{id}");
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_the_client_left_unanswered_is_answered_for_it() {
    let gw = start([mixed(), say("go on")]).await;
    gw.streamed(request(json!([user()]))).await;
    let mut messages = come_back(SHOWN, Value::Null);
    messages[2] = json!({"role": "user", "content": "never mind"});
    gw.streamed(request(messages)).await;
    let messages = gw.model.messages(1);
    assert_eq!(messages[3]["tool_call_id"], "call_own");
    assert!(
        messages[3]["content"]
            .as_str()
            .unwrap()
            .contains("cancelled")
    );
    assert_eq!(messages[4]["content"], "never mind");
    gw.join().await;
}

#[tokio::test]
async fn only_own_calls_park_nothing_and_leave_the_history_as_it_is() {
    let gw = start([
        call(&[("call_own", "lookup", json!({"key": "x"}))]),
        say("done"),
    ])
    .await;
    gw.streamed(request(json!([user()]))).await;
    gw.streamed(request(come_back("call_own", Value::Null)))
        .await;
    assert_eq!(gw.model.messages(1).len(), 3);
    gw.join().await;
}

#[tokio::test]
async fn two_conversations_that_ask_the_same_at_the_same_time_keep_their_results_apart() {
    let answer = |marker: &str| {
        call(&[
            ("call_0", "calc__echo", json!({"marker": marker})),
            ("call_1", "lookup", json!({})),
            ("call_2", "calc__wait", json!({})),
        ])
    };
    let model = Model::start([answer("one"), answer("two"), say("done"), say("done")]).await;
    let tools = tools().tool("echo", Does::Echoes).tool("wait", Does::Holds);
    let gw = toolway(model).server("calc", tools).start().await;
    let ask = async |history: &str| {
        let messages = json!([{"role": "assistant", "content": history}, user()]);
        gw.streamed(request(messages)).await.calls().remove(0).0
    };
    let ids = async { tokio::join!(ask("mine"), ask("yours")) };
    let go = async {
        gw.servers[0].was_called(4).await;
        gw.servers[0].let_go();
    };
    let ((one, other), ()) = tokio::join!(ids, go);
    assert_ne!(one, other);
    gw.join().await;
}

#[tokio::test]
async fn a_clients_custom_tool_takes_part_in_a_mixed_turn() {
    let gate = r#"{"index":0,"id":"g","type":"function","function":{"name":"calc__add","arguments":"{\"a\":1,\"b\":2}"}}"#;
    let own = r#"{"index":1,"id":"c","type":"custom","custom":{"name":"code","input":"print(1)"}}"#;
    let turn = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{gate},{own}]}},\"finish_reason\":\"tool_calls\"}}]}}\n\ndata: [DONE]\n\n"
    );
    let gw = start([raw(200, "text/event-stream", turn), say("done")]).await;
    let custom = json!({"type": "custom", "custom": {"name": "code"}});
    gw.streamed(json!({"messages": [user()], "tools": [custom]}))
        .await;
    let back = json!([
        user(),
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]);
    gw.streamed(json!({"messages": back, "tools": [custom]}))
        .await;
    let expected = [
        ("user", "", QUESTION),
        ("assistant", "g+c", ""),
        ("tool", "g", "3"),
        ("tool", "c", "1"),
    ];
    check(&gw.model.messages(1), &expected);
    gw.join().await;
}

#[tokio::test]
async fn a_client_may_write_one_message_for_each_of_its_calls() {
    let turn = call(&[
        ("own_1", "lookup", json!({})),
        ("gate", "calc__add", json!({"a": 1, "b": 2})),
        ("own_2", "lookup", json!({})),
    ]);
    let gw = start([turn, say("done")]).await;
    gw.streamed(request(json!([user()]))).await;
    let mut messages = come_back("own_1", Value::Null);
    let second = come_back("own_2", Value::Null);
    for message in messages.as_array_mut().unwrap().iter_mut().skip(1) {
        if let Some(call) = message.get_mut("tool_calls") {
            call[0]["function"]["arguments"] = json!("{}");
        }
    }
    for mut message in second.as_array().unwrap().iter().skip(1).cloned() {
        if let Some(call) = message.get_mut("tool_calls") {
            call[0]["function"]["arguments"] = json!("{}");
        }
        messages.as_array_mut().unwrap().push(message);
    }
    gw.streamed(request(messages)).await;
    let expected = [
        ("user", "", QUESTION),
        ("assistant", "own_1+gate+own_2", ""),
        ("tool", "own_1", "found"),
        ("tool", "gate", "3"),
        ("tool", "own_2", "found"),
    ];
    check(&gw.model.messages(1), &expected);
    gw.join().await;
}
