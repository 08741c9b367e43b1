//! Calls that change nothing: they begin while the model still writes, and those that ask the same run once.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{HOLD, Model, Reply, Then, call, events, say},
    tools::{Does, Tools, tools},
};

/// `look` and `see` change nothing, `act` does not say, `write` changes things. All answer with their arguments.
fn server() -> Tools {
    let tool = |name: &str, annotations: Value| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": annotations});
    tools()
        .listed(tool("look", json!({"readOnlyHint": true})), Does::Echoes)
        .listed(tool("see", json!({"readOnlyHint": true})), Does::Echoes)
        .listed(tool("act", json!({})), Does::Echoes)
        .listed(tool("write", json!({"readOnlyHint": false})), Does::Echoes)
}

async fn start(model: Model) -> Toolway {
    let gw = toolway(model).server("a", server()).server("b", server());
    gw.start().await
}

fn chunk(delta: Value, finish: Option<&str>) -> String {
    let chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    format!("data: {chunk}\n\n")
}

/// An event with a whole call.
fn whole(index: u32, name: &str, arguments: Value) -> String {
    let id = format!("call_{index}");
    let function = json!({"name": name, "arguments": arguments});
    chunk(
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
        None,
    )
}

fn end(reason: &str) -> String {
    chunk(json!({}), Some(reason)) + "data: [DONE]\n\n"
}

/// A turn whose last events are held back until the test lets the model go on.
fn held(before: &[String], after: &[String]) -> Reply {
    let pieces: Vec<&str> = before.iter().map(String::as_str).chain([HOLD]).collect();
    let rest = after.iter().map(String::as_str);
    events(
        &pieces.into_iter().chain(rest).collect::<Vec<_>>(),
        Then::End,
    )
}

fn names(gw: &Toolway, server: usize) -> Vec<String> {
    let calls = gw.servers[server].calls();
    calls.into_iter().map(|(name, _)| name).collect()
}

/// The tool messages of the `n`th request to the model: id and content.
fn told(gw: &Toolway, n: usize) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let messages = gw.model.messages(n);
    let messages = messages.iter().filter(|message| message["role"] == "tool");
    messages
        .map(|message| (text(&message["tool_call_id"]), text(&message["content"])))
        .collect()
}

fn pair(id: &str, content: &str) -> (String, String) {
    (id.to_owned(), content.to_owned())
}

#[tokio::test]
async fn a_call_that_changes_nothing_begins_while_the_model_still_writes() {
    let reply = held(
        &[whole(0, "a__look", json!(r#"{"n":1}"#))],
        &[whole(1, "a__act", json!(r#"{"n":2}"#)), end("tool_calls")],
    );
    let gw = start(Model::start([reply, say("Done.")]).await).await;
    let live = gw.live(json!({}), &[("x-toolway-progress", "on")]).await;
    gw.servers[0].was_called(1).await;
    assert_eq!(names(&gw, 0), ["look"]);
    gw.model.go_on();
    let answer = live.end().await;
    assert_eq!(answer.text(), "Done.");
    assert_eq!(names(&gw, 0), ["look", "act"], "each of them once");
    assert_eq!(
        told(&gw, 1),
        [pair("call_0", r#"{"n":1}"#), pair("call_1", r#"{"n":2}"#)]
    );
    let notes: Vec<Value> = answer
        .all("toolway")
        .iter()
        .map(|note| serde_json::from_str(note).unwrap())
        .collect();
    let of_first = notes.iter().filter(|note| note["id"] == "call_0");
    let of_first: Vec<&str> = of_first
        .map(|note| note["type"].as_str().unwrap())
        .collect();
    assert_eq!(of_first, ["call_started", "call_finished"]);
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_may_change_something_waits_for_the_end_of_the_turn_and_no_read_overtakes_it() {
    let reply = held(
        &[
            whole(0, "a__act", json!(r#"{"n":0}"#)),
            whole(1, "a__look", json!(r#"{"n":1}"#)),
            whole(2, "b__look", json!(r#"{"n":2}"#)),
        ],
        &[end("tool_calls")],
    );
    let gw = start(Model::start([reply, say("Done.")]).await).await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[1].was_called(1).await;
    assert_eq!(names(&gw, 0), [""; 0], "the server of `act` was not called");
    gw.model.go_on();
    live.end().await;
    let mut calls = names(&gw, 0);
    calls.sort();
    assert_eq!(calls, ["act", "look"]);
    assert_eq!(told(&gw, 1).len(), 3);
    gw.join().await;
}

#[tokio::test]
async fn nothing_begins_early_for_a_client_that_wants_one_call_after_another() {
    let reply = held(
        &[whole(0, "a__look", json!(r#"{"n":1}"#))],
        &[whole(1, "b__look", json!(r#"{"n":2}"#)), end("tool_calls")],
    );
    let gw = start(Model::start([reply, say("Done.")]).await).await;
    let live = gw.live(json!({"parallel_tool_calls": false}), &[]).await;
    gw.model.was_held().await;
    assert_eq!(names(&gw, 0), [""; 0]);
    gw.model.go_on();
    assert_eq!(live.end().await.text(), "Done.");
    assert_eq!(told(&gw, 1).len(), 2);
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_has_become_another_one_is_made_again_and_only_that_result_counts() {
    // Arguments as objects, which are merged.
    let reply = held(
        &[whole(0, "a__look", json!({"n": 1}))],
        &[
            chunk(
                json!({"tool_calls": [{"index": 0, "function": {"arguments": {"m": 2}}}]}),
                None,
            ),
            end("tool_calls"),
        ],
    );
    let gw = start(Model::start([reply, say("Done.")]).await).await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(1).await;
    gw.model.go_on();
    assert_eq!(live.end().await.text(), "Done.");
    let calls = gw.servers[0].calls();
    assert_eq!(calls[0].1, json!({"n": 1}));
    assert_eq!(calls[1].1, json!({"n": 1, "m": 2}));
    assert_eq!(told(&gw, 1), [pair("call_0", r#"{"n":1,"m":2}"#)]);
    gw.join().await;
}

#[tokio::test]
async fn a_turn_that_is_cut_off_ends_as_the_model_says_and_its_early_calls_are_forgotten() {
    let reply = held(
        &[whole(0, "a__look", json!(r#"{"n":1}"#))],
        &[end("length")],
    );
    let gw = start(Model::start([reply]).await).await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(1).await;
    gw.model.go_on();
    let answer = live.end().await;
    assert_eq!(answer.finishes(), ["length"]);
    assert_eq!(gw.model.asked().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_leaves_cancels_what_began_early() {
    let tool = json!({"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}});
    let reply = held(&[whole(0, "a__look", json!(r#"{"n":1}"#))], &[]);
    let gw = toolway(Model::start([reply]).await).server("a", tools().listed(tool, Does::Holds));
    let gw = gw.start().await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(1).await;
    drop(live);
    gw.servers[0].was_cancelled().await;
    gw.model.was_dropped().await;
    gw.join().await;
}

#[tokio::test]
async fn calls_of_one_turn_that_ask_the_same_and_change_nothing_run_once() {
    for stream in [false, true] {
        let same = [
            ("1", "a__look", json!({"x": 1, "y": 2})),
            ("2", "a__look", json!({"y": 2, "x": 1})),
            ("3", "a__see", json!({"x": 1, "y": 2})),
            ("4", "b__look", json!({"x": 1, "y": 2})),
        ];
        let gw = start(Model::start([call(&same), say("Done.")]).await).await;
        gw.send(json!({"stream": stream}), &[])
            .await
            .bytes()
            .await
            .unwrap();
        let mut calls = names(&gw, 0);
        calls.sort();
        assert_eq!(calls, ["look", "see"]);
        assert_eq!(names(&gw, 1), ["look"]);
        let results: Vec<(String, String)> = told(&gw, 1);
        let ids: Vec<&str> = results.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["1", "2", "3", "4"]);
        assert_eq!(results[0].1, results[1].1);
        gw.join().await;
    }
}

#[tokio::test]
async fn a_read_is_made_again_after_something_may_have_changed() {
    let look = |id: &'static str| (id, "a__look", json!({"x": 1}));
    let gw = start(
        Model::start([
            call(&[look("1")]),
            // Its result is known.
            call(&[look("2")]),
            call(&[look("3"), ("4", "b__write", json!({})), look("5")]),
            call(&[look("6")]),
            say("Done."),
        ])
        .await,
    )
    .await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "Done.");
    assert_eq!(names(&gw, 0), ["look"; 3], "for 1, 5 and 6");
    assert_eq!(told(&gw, 4).len(), 6);
    assert!(
        told(&gw, 4)
            .iter()
            .filter(|it| it.0 != "4")
            .all(|it| it.1 == r#"{"x":1}"#)
    );
    gw.join().await;
}

#[tokio::test]
async fn calls_that_change_one_server_run_as_written_and_others_beside_them() {
    let tool = |name: &str, annotations: Value| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": annotations});
    let held = tools()
        .listed(tool("first", json!({"destructiveHint": true})), Does::Holds)
        .listed(tool("second", json!({"readOnlyHint": false})), Does::Holds)
        .listed(tool("look", json!({"readOnlyHint": true})), Does::Holds);
    let turn = call(&[
        ("1", "a__first", json!({})),
        ("2", "a__second", json!({})),
        ("3", "a__look", json!({})),
        ("4", "b__write", json!({})),
    ]);
    let gw = toolway(Model::start([turn, say("Done.")]).await);
    let gw = gw.server("a", held).server("b", server()).start().await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(2).await;
    gw.servers[1].was_called(1).await;
    let mut calls = names(&gw, 0);
    calls.sort();
    assert_eq!(calls, ["first", "look"]);
    gw.servers[0].let_go();
    assert_eq!(live.end().await.text(), "Done.");
    assert_eq!(names(&gw, 0)[2], "second");
    gw.join().await;
}
