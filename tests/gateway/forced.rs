//! `tool_choice` where the client has functions of its own: how libraries force an answer through a function
//! (design.md, "What the client sees", point 11).

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, own_function, toolway},
    model::{Model, Reply, call, say},
    tools::tools,
};

async fn start(script: impl IntoIterator<Item = Reply>) -> Toolway {
    toolway(Model::start(script).await)
        .config("[loop]\nmax_rounds = 2\n")
        .server("calc", tools().add())
        .start()
        .await
}

fn add(id: &str) -> Reply {
    call(&[(id, "calc__add", json!({"a": 1, "b": 2}))])
}

fn answer(id: &str) -> Reply {
    call(&[(id, "final_result", json!({"sum": 3}))])
}

/// As LangChain's `bind_tools(…, tool_choice="any")` and pydantic-ai's output tools ask.
fn request(stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "add"}],
        "tools": [own_function("final_result"), own_function("other")],
        "tool_choice": "required",
        "stream": stream,
    })
}

/// The calls that the client is given, and the reason of the end.
async fn ask(gw: &Toolway, body: Value) -> (Vec<String>, String) {
    if body["stream"] == true {
        let answer = gw.streamed(body).await;
        let names = answer.calls().into_iter().map(|(_, name, _)| name);
        return (names.collect(), answer.finishes().concat());
    }
    let answer = gw.plain(body).await;
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array();
    let calls = calls.map(Vec::as_slice).unwrap_or_default().iter();
    let names = calls.map(|call| call["function"]["name"].as_str().unwrap().to_owned());
    let finish = choice["finish_reason"].as_str().unwrap().to_owned();
    (names.collect(), finish)
}

/// `tool_choice` and the names of the tools of each question.
fn questions(gw: &Toolway) -> Vec<(Value, Vec<String>)> {
    let names = |body: &Value| {
        let tools = body["tools"].as_array().map(Vec::as_slice);
        let names = tools.unwrap_or_default().iter();
        let names = names.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
        names.collect()
    };
    let asked = gw.model.asked();
    let asked = asked.iter().map(|asked| &asked.body);
    asked
        .map(|body| (body["tool_choice"].clone(), names(body)))
        .collect()
}

const ALL: [&str; 3] = ["final_result", "other", "calc__add"];
const OWN: [&str; 2] = ["final_result", "other"];

#[track_caller]
fn check(gw: &Toolway, expected: &[(Value, &[&str])]) {
    let owned = |(choice, names): &(Value, &[&str])| {
        let names = names.iter().map(|name| (*name).to_owned());
        (choice.clone(), names.collect::<Vec<_>>())
    };
    let expected: Vec<_> = expected.iter().map(owned).collect();
    assert_eq!(questions(gw), expected);
}

#[tokio::test]
async fn a_client_that_forces_a_call_gets_one_of_its_own_after_the_gateways_tools() {
    let required = || json!("required");
    for stream in [false, true] {
        let gw = start([add("1"), answer("2")]).await;
        let (calls, finish) = ask(&gw, request(stream)).await;
        assert_eq!(
            (&calls[..], &*finish),
            (&["final_result".to_owned()][..], "tool_calls")
        );
        check(&gw, &[(required(), &ALL), (required(), &ALL)]);
        gw.join().await;
    }
}

#[tokio::test]
async fn the_last_question_offers_only_the_clients_functions_and_forces_one() {
    let required = || json!("required");
    for stream in [false, true] {
        let gw = start([add("1"), add("2"), answer("3")]).await;
        let (calls, finish) = ask(&gw, request(stream)).await;
        assert_eq!(
            (&calls[..], &*finish),
            (&["final_result".to_owned()][..], "tool_calls")
        );
        let all = (required(), &ALL[..]);
        check(&gw, &[all.clone(), all, (required(), &OWN)]);
        gw.join().await;
    }
}

#[tokio::test]
async fn a_mixed_turn_meets_the_choice_and_the_client_goes_on_from_there() {
    for stream in [false, true] {
        let mixed = call(&[
            ("gate", "calc__add", json!({"a": 1, "b": 2})),
            ("own", "other", json!({})),
        ]);
        let gw = start([mixed, answer("2")]).await;
        let (calls, finish) = ask(&gw, request(stream)).await;
        assert_eq!(
            (&calls[..], &*finish),
            (&["other".to_owned()][..], "tool_calls")
        );
        let mut back = request(stream);
        back["messages"] = json!([
            {"role": "user", "content": "add"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "own", "type": "function", "function": {"name": "other", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "own", "content": "found"},
        ]);
        let (calls, _) = ask(&gw, back).await;
        assert_eq!(calls, ["final_result"]);
        let all = (json!("required"), &ALL[..]);
        check(&gw, &[all.clone(), all]);
        assert_eq!(
            gw.model.messages(1).len(),
            4,
            "what was parked was put back"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_forced_function_of_the_clients_stays_forced_after_a_tool_of_the_gateways() {
    let forced = json!({"type": "function", "function": {"name": "final_result"}});
    for stream in [false, true] {
        // This model does not heed the choice at first.
        let gw = start([add("1"), answer("2")]).await;
        let mut body = request(stream);
        body["tool_choice"] = forced.clone();
        let (calls, _) = ask(&gw, body).await;
        assert_eq!(calls, ["final_result"]);
        check(&gw, &[(forced.clone(), &ALL), (forced.clone(), &ALL)]);
        gw.join().await;
    }
}

#[tokio::test]
async fn a_forced_tool_of_the_gateways_is_forced_once_also_beside_the_clients_functions() {
    let forced = json!({"type": "function", "function": {"name": "calc__add"}});
    for stream in [false, true] {
        let gw = start([add("1"), say("3")]).await;
        let mut body = request(stream);
        body["tool_choice"] = forced.clone();
        let (calls, finish) = ask(&gw, body).await;
        assert_eq!((calls.len(), &*finish), (0, "stop"));
        check(&gw, &[(forced.clone(), &ALL), (json!("auto"), &ALL)]);
        gw.join().await;
    }
}
