//! Conversations: lists of items with names, which requests of `/v1/responses` name and add to.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    dialects::{over, plain, post, streamed, upstream},
    harness::{Toolway, toolway},
    model::{HOLD, Model, Reply, Then, call, events, say},
    websocket::connect,
};

async fn create(gw: &Toolway, body: Value) -> Value {
    plain(gw, "/v1/conversations", body).await
}

async fn new(gw: &Toolway) -> String {
    let created = create(gw, json!({})).await;
    created["id"].as_str().unwrap().to_owned()
}

/// The status and the answer.
async fn ask(gw: &Toolway, method: Method, path: &str) -> (u16, Value) {
    let request = gw.http.request(method, format!("{}{path}", gw.base));
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

/// What was said, the first first.
async fn said(gw: &Toolway, id: &str) -> Vec<String> {
    let page = gw
        .json(&format!("/v1/conversations/{id}/items?order=asc&limit=100"))
        .await;
    let items = page["data"].as_array().unwrap().iter();
    let texts = items.map(|item| match &item["content"][0]["text"] {
        Value::String(text) => text.clone(),
        _ => item["type"].as_str().unwrap().to_owned(),
    });
    texts.collect()
}

fn message(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": text})
}

#[tokio::test]
async fn a_conversation_is_created_shown_changed_and_deleted() {
    let gw = over("chat", vec![]).await;
    let items = [message("a"), json!({"role": "assistant", "content": "b"})];
    let metadata = json!({"topic": "x"});
    let created = create(&gw, json!({"items": items, "metadata": metadata})).await;
    let id = created["id"].as_str().unwrap();
    assert!(id.starts_with("conv_"));
    assert!(created["created_at"].is_u64());
    let expected = json!({"id": id, "object": "conversation", "created_at": created["created_at"], "metadata": metadata});
    assert_eq!(created, expected);
    let path = format!("/v1/conversations/{id}");
    assert_eq!(gw.json(&path).await, created);
    assert_eq!(said(&gw, id).await, ["a", "b"]);

    let changed = plain(&gw, &path, json!({"metadata": {"topic": "y"}})).await;
    assert_eq!(changed["metadata"], json!({"topic": "y"}));
    assert_eq!(gw.json(&path).await, changed);

    let (_, deleted) = ask(&gw, Method::DELETE, &path).await;
    let expected = json!({"id": id, "object": "conversation.deleted", "deleted": true});
    assert_eq!(deleted, expected);
    // Now it is the upstream's, if anybody's: 201 is the answer of the model to what it does not know.
    assert_eq!(gw.get(&path).await.status(), 201);
    gw.join().await;
}

#[tokio::test]
async fn items_are_added_listed_by_pages_and_removed() {
    let gw = over("chat", vec![]).await;
    let id = new(&gw).await;
    let path = format!("/v1/conversations/{id}/items");
    let items = ["a", "b", "c"].map(message);
    let added = plain(&gw, &path, json!({"items": items})).await;
    let added = added["data"].as_array().unwrap();
    let content = json!([{"type": "input_text", "text": "a"}]);
    assert_eq!(
        (&added[0]["content"], &added[0]["status"]),
        (&content, &json!("completed"))
    );

    let page = gw.json(&format!("{path}?limit=2")).await;
    assert_eq!(page["data"], json!([added[2], added[1]]));
    assert_eq!(page["has_more"], true);
    let after = page["last_id"].as_str().unwrap();
    let page = gw.json(&format!("{path}?limit=2&after={after}")).await;
    assert_eq!(
        (&page["data"], &page["has_more"]),
        (&json!([added[0]]), &json!(false))
    );

    let item = format!("{path}/{}", added[1]["id"].as_str().unwrap());
    assert_eq!(gw.json(&item).await, added[1]);
    let (status, conversation) = ask(&gw, Method::DELETE, &item).await;
    assert_eq!(
        (status, &conversation["object"]),
        (200, &json!("conversation"))
    );
    assert_eq!(said(&gw, &id).await, ["a", "c"]);
    for method in [Method::GET, Method::DELETE] {
        let (status, error) = ask(&gw, method, &item).await;
        assert_eq!(
            (status, &error["error"]["code"]),
            (400, &json!("item_not_found"))
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn what_cannot_be_added_is_refused_by_name() {
    let gw = over("chat", vec![]).await;
    let id = new(&gw).await;
    let path = format!("/v1/conversations/{id}/items");
    let item = plain(&gw, &path, json!({"items": [message("a")]})).await;
    for (body, param) in [
        (json!({"items": vec![message("x"); 21]}), "items"),
        (json!({"items": "x"}), "items"),
        (json!({"items": item["data"]}), "items"),
    ] {
        let refused = post(&gw, &path, &body).await;
        assert_eq!(refused.status(), 400, "{body}");
        let error: Value = refused.json().await.unwrap();
        assert_eq!(error["error"]["param"], param);
    }
    let refused = post(&gw, "/v1/conversations", &json!({"metadata": {"a": 1}})).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(said(&gw, &id).await, ["a"]);
    gw.join().await;
}

#[tokio::test]
async fn a_response_continues_its_conversation_and_is_added_to_it() {
    let script = || {
        vec![
            call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
            say("one"),
            say("two"),
            say("three"),
        ]
    };
    for api in ["chat", "responses", "anthropic"] {
        let gw = over(api, script()).await;
        let created = create(&gw, json!({"items": [message("first")]})).await;
        let id = created["id"].as_str().unwrap();
        let body =
            json!({"model": "m", "input": "a", "conversation": id, "instructions": "be short"});
        let response = plain(&gw, "/v1/responses", body).await;
        assert_eq!(response["conversation"], json!({"id": id}), "{api}");
        // As an object, in a stream, and not stored as a response.
        let body = json!({"model": "m", "input": "b", "conversation": {"id": id}, "store": false});
        let events = streamed(&gw, "/v1/responses", body).await;
        assert_eq!(events[0]["response"]["conversation"], json!({"id": id}));
        let mut client = connect(&gw).await;
        client.send(json!({"input": "c", "conversation": id})).await;
        client.events().await;
        drop(client);
        let all = said(&gw, id).await;
        let all: Vec<&str> = all
            .iter()
            .map(String::as_str)
            .filter(|it| *it != "reasoning")
            .collect();
        assert_eq!(
            all,
            ["first", "a", "one", "b", "two", "c", "three"],
            "{api}"
        );
        let asked = gw.model.asked()[3].body.to_string();
        assert!(asked.contains("first") && asked.contains("two"), "{asked}");
        assert!(
            !asked.contains("be short"),
            "instructions are not inherited"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_response_in_a_conversation_is_continued_by_its_id() {
    let gw = over(
        "chat",
        vec![say("one"), say("two"), say("three"), say("four")],
    )
    .await;
    let created = create(&gw, json!({"items": [message("first")]})).await;
    let id = created["id"].as_str().unwrap();
    let body = |input: &str| json!({"model": "m", "input": input});
    let mut last = Value::Null;
    for (n, (name, value)) in [
        ("conversation", json!(id)),
        ("conversation", json!(id)),
        ("previous_response_id", Value::Null),
        ("previous_response_id", Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = body("x");
        body[name] = if value.is_null() { last } else { value };
        last = plain(&gw, "/v1/responses", body).await["id"].clone();
        assert_eq!(gw.model.messages(n).len(), 2 + 2 * n);
    }
    // Only the first two belong to it.
    assert_eq!(said(&gw, id).await.len(), 5);
    gw.join().await;
}

/// A model that begins to answer and never ends.
fn unending() -> Reply {
    let chunk = r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"so far"}}]}"#;
    events(&[&format!("{chunk}\n\n")], Then::Silence)
}

#[tokio::test]
async fn a_conversation_has_one_response_at_a_time() {
    let gw = over("chat", vec![unending(), say("two")]).await;
    let id = new(&gw).await;
    let body = json!({"model": "m", "input": "a", "conversation": id, "stream": true});
    let mut first = post(&gw, "/v1/responses", &body).await;
    first.chunk().await.unwrap();
    let path = format!("/v1/conversations/{id}");
    for (path, body) in [
        ("/v1/responses", body.clone()),
        (&format!("{path}/items"), json!({"items": [message("b")]})),
        (&path, json!({"metadata": {}})),
    ] {
        let refused = post(&gw, path, &body).await;
        assert_eq!(refused.status(), 400);
        let error: Value = refused.json().await.unwrap();
        assert_eq!(error["error"]["code"], "conversation_locked");
    }
    assert_eq!(ask(&gw, Method::DELETE, &path).await.0, 400);
    assert_eq!(said(&gw, &id).await, [""; 0]);
    drop(first);
    gw.model.was_dropped().await;
    plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "input": "c", "conversation": id}),
    )
    .await;
    assert_eq!(said(&gw, &id).await, ["c", "two"]);
    gw.join().await;
}

#[tokio::test]
async fn a_response_in_the_background_is_added_when_it_has_ended() {
    let gw = over("chat", vec![say("one"), unending(), say("three")]).await;
    let id = new(&gw).await;
    let body =
        |input: &str| json!({"model": "m", "input": input, "conversation": id, "background": true});
    streamed(&gw, "/v1/responses", body("a")).await;
    assert_eq!(said(&gw, &id).await, ["a", "one"]);
    let running = plain(&gw, "/v1/responses", body("b")).await;
    let cancel = format!("/v1/responses/{}/cancel", running["id"].as_str().unwrap());
    plain(&gw, &cancel, json!({})).await;
    streamed(&gw, "/v1/responses", body("c")).await;
    assert_eq!(said(&gw, &id).await, ["a", "one", "c", "three"]);
    gw.join().await;
}

#[tokio::test]
async fn a_conversation_survives_a_restart_and_is_its_clients_only() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "data_dir = '{}'\n{}",
        folder.path().display(),
        upstream("chat")
    );
    let mut id = String::new();
    for n in ["one", "two"] {
        let gw = toolway(Model::start([say(n)]).await)
            .config(&config)
            .start()
            .await;
        if id.is_empty() {
            id = new(&gw).await;
        }
        let body = json!({"model": "m", "input": n, "conversation": id});
        plain(&gw, "/v1/responses", body.clone()).await;
        let request = gw.http.post(format!("{}/v1/responses", gw.base));
        let other = request.bearer_auth("another").body(body.to_string());
        let refused = other.send().await.unwrap();
        assert_eq!(refused.status(), 400);
        let error: Value = refused.json().await.unwrap();
        assert_eq!(error["error"]["code"], "conversation_not_found");
        gw.join().await;
    }
    let gw = toolway(Model::start([]).await)
        .config(&config)
        .start()
        .await;
    assert_eq!(said(&gw, &id).await, ["one", "one", "two", "two"]);
    gw.join().await;
}

#[tokio::test]
async fn a_conversation_and_a_previous_response_exclude_each_other() {
    let gw = over("chat", vec![say("one")]).await;
    let id = new(&gw).await;
    let first = plain(&gw, "/v1/responses", json!({"model": "m", "input": "a"})).await;
    let body = json!({"model": "m", "input": "b", "conversation": id, "previous_response_id": first["id"]});
    let refused = post(&gw, "/v1/responses", &body).await;
    assert_eq!(refused.status(), 400);
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["code"], "mutually_exclusive_parameters");
    gw.join().await;
}

/// Reads a response until this is in it.
async fn read_until(response: &mut reqwest::Response, text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        let piece = response.chunk().await.unwrap();
        let piece = piece.unwrap_or_else(|| panic!("it ended with {read}"));
        read.push_str(&String::from_utf8_lossy(&piece));
    }
}

/// A request for a stream.
fn streaming(id: &str, background: bool) -> Value {
    json!({"model": "m", "input": "a", "conversation": id, "stream": true, "background": background})
}

#[tokio::test]
async fn a_client_that_has_read_the_end_of_a_response_can_continue_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "data_dir = '{}'\n{}",
        folder.path().display(),
        upstream("chat")
    );
    let script: Vec<Reply> = (0..12).map(|_| say("one")).collect();
    let gw = toolway(Model::start(script).await)
        .config(&config)
        .start()
        .await;
    let id = new(&gw).await;
    for n in 0..12 {
        let mut response = post(&gw, "/v1/responses", &streaming(&id, n % 2 == 0)).await;
        read_until(&mut response, "event: response.completed").await;
    }
    assert_eq!(said(&gw, &id).await.len(), 24);
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_has_read_of_a_failure_can_try_again_at_once() {
    let failing = || {
        let chunk = r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"so far"}}]}"#;
        let error = r#"data: {"error":{"message":"broken","type":"server_error"}}"#;
        let pieces = [&format!("{chunk}\n\n"), HOLD, &format!("{error}\n\n")];
        events(&pieces, Then::Silence)
    };
    let gw = over("chat", vec![failing(), failing(), say("two")]).await;
    let id = new(&gw).await;
    let mut first = post(&gw, "/v1/responses", &streaming(&id, false)).await;
    read_until(&mut first, "so far").await;
    gw.model.go_on();
    read_until(&mut first, "event: response.failed").await;
    let mut second = post(&gw, "/v1/responses", &streaming(&id, true)).await;
    read_until(&mut second, "event: response.failed").await;
    streamed(&gw, "/v1/responses", streaming(&id, false)).await;
    assert_eq!(said(&gw, &id).await, ["a", "two"]);
    drop((first, second));
    gw.join().await;
}
