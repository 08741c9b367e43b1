//! Servers that die in the middle of a call, and results of 100 MB: they cost that call only.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, eventually, toolway},
    model::{Model, Reply, call, say},
    tools::tools,
};

/// A toolway with a child process beside a server that lives.
async fn start(script: impl IntoIterator<Item = Reply>) -> Toolway {
    let program = std::env::current_exe().unwrap();
    let program = program
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/scripted_server");
    assert!(
        program.exists(),
        "{} is not there; `cargo build --example scripted_server`",
        program.display()
    );
    let config = format!(
        "[servers.child]\ncommand = {:?}\nargs = ['{{\"stderr\": [\"hello from below\"]}}']\n",
        program.display().to_string()
    );
    toolway(Model::start(script).await)
        .config(&config)
        .server("calc", tools().add())
        .start()
        .await
}

fn act(id: &'static str, what: Value) -> (&'static str, &'static str, Value) {
    (id, "child__act", what)
}

fn add(id: &'static str) -> (&'static str, &'static str, Value) {
    (id, "calc__add", json!({"a": 1, "b": 2}))
}

fn told(gw: &Toolway, request: usize) -> Vec<String> {
    let messages = gw.model.messages(request);
    let told = messages.iter().filter(|message| message["role"] == "tool");
    told.map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

fn kind(told: &str) -> Value {
    serde_json::from_str::<Value>(told)
        .map(|error| error["error"]["type"].clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_costs_that_call_and_comes_back() {
    let gw = start([
        call(&[
            act("a", json!({"do": "hang"})),
            add("b"),
            act("c", json!({"do": "exit"})),
        ]),
        say("I see"),
        call(&[act("d", json!({"do": "echo"}))]),
        say("back"),
    ])
    .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "I see");
    let answers = told(&gw, 1);
    assert_eq!(kind(&answers[0]), "upstream_unavailable");
    assert_eq!(answers[1], "3", "the call beside it is not touched");
    assert_eq!(kind(&answers[2]), "upstream_unavailable");
    assert!(
        !answers.concat().contains("scripted_server"),
        "the model learns nothing of the inside"
    );
    eventually("the server is back", || {
        gw.gateway
            .health()
            .iter()
            .any(|server| server.restarts == 1 && server.state.to_string() == "ready")
    })
    .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "back");
    assert_eq!(told(&gw, 3), [r#"{"do":"echo"}"#]);
    gw.join().await;
}

#[tokio::test]
async fn a_result_of_100_mb_costs_that_call_only() {
    let gw = start([
        call(&[
            act("a", json!({"do": "big", "bytes": 100_000_000})),
            add("b"),
        ]),
        say("too big"),
        call(&[act("c", json!({"do": "echo"}))]),
        say("still there"),
    ])
    .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "too big");
    let answers = told(&gw, 1);
    assert!(
        kind(&answers[0]).is_string(),
        "{}",
        &answers[0][..100.min(answers[0].len())]
    );
    assert_eq!(answers[1], "3");
    assert_eq!(gw.streamed(json!({})).await.text(), "still there");
    assert_eq!(
        gw.gateway
            .health()
            .iter()
            .map(|server| server.restarts)
            .sum::<u32>(),
        0,
        "nothing had to be restarted"
    );
    gw.join().await;
}

#[tokio::test]
async fn the_end_of_standard_error_is_in_health() {
    let gw = start([]).await;
    let health = gw.json("/health").await;
    let servers = health["servers"].as_array().unwrap();
    let child = servers
        .iter()
        .find(|server| server["name"] == "child")
        .unwrap();
    assert_eq!(child["stderr_tail"], json!(["hello from below"]));
    assert_eq!(child["transport"], "stdio");
    gw.join().await;
}
