//! Clients of Responses whose requests have `mcp` entries: they see what the gateway does with its tools.

use serde_json::{Value, json};

use crate::{
    dialects::{kinds, plain, streamed},
    harness::{Toolway, toolway},
    model::{Model, call, say, say_and_call},
    tools::{Does, tools},
};

async fn over(script: Vec<crate::model::Reply>) -> Toolway {
    let failure = json!({"content": [{"type": "text", "text": "no such number"}], "isError": true});
    toolway(Model::start(script).await)
        .server("calc", tools().add().tool("fail", Does::Answers(failure)))
        .start()
        .await
}

fn request() -> Value {
    json!({"model": "m", "input": "1 + 2?",
        "tools": [{"type": "mcp", "server_label": "calc", "require_approval": "never"}]})
}

fn two_rounds() -> Vec<crate::model::Reply> {
    vec![
        say_and_call(
            "Let me see. ",
            &[("c", "calc__add", json!({"a": 1, "b": 2}))],
        ),
        say("It is 3."),
    ]
}

fn types(items: &Value) -> Vec<&str> {
    let items = items.as_array().unwrap().iter();
    items.map(|item| item["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_list_and_each_call_are_items_in_the_order_of_what_happened() {
    let gw = over(two_rounds()).await;
    let events = streamed(&gw, "/v1/responses", request()).await;
    let without_texts: Vec<&str> = kinds(&events)
        .into_iter()
        .filter(|kind| !kind.contains("text") && !kind.contains("content_part"))
        .collect();
    assert_eq!(
        without_texts,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.mcp_list_tools.in_progress",
            "response.mcp_list_tools.completed",
            "response.output_item.done",
            "response.output_item.added",
            "response.output_item.done",
            "response.output_item.added",
            "response.mcp_call.in_progress",
            "response.mcp_call_arguments.delta",
            "response.mcp_call_arguments.done",
            "response.mcp_call.completed",
            "response.output_item.done",
            "response.output_item.added",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let streamed = &events.last().unwrap()["response"]["output"];
    gw.join().await;

    let gw = over(two_rounds()).await;
    let whole = plain(&gw, "/v1/responses", request()).await;
    for output in [streamed, &whole["output"]] {
        assert_eq!(
            types(output),
            ["mcp_list_tools", "message", "mcp_call", "message"]
        );
        let names: Vec<&Value> = output[0]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| &tool["name"])
            .collect();
        assert_eq!(names, ["add", "fail"]);
        assert_eq!(output[0]["server_label"], "calc");
        let call = &output[2];
        assert_eq!(
            json!([
                call["server_label"],
                call["name"],
                call["output"],
                call["status"]
            ]),
            json!(["calc", "add", "3", "completed"])
        );
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"a": 1, "b": 2}));
        assert_eq!(output[1]["content"][0]["text"], "Let me see. ");
        assert_eq!(output[3]["content"][0]["text"], "It is 3.");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_fails_has_its_error_and_the_answer_goes_on() {
    let gw = over(vec![
        call(&[("c", "calc__fail", json!({}))]),
        say("It did not work."),
    ])
    .await;
    let response = plain(&gw, "/v1/responses", request()).await;
    let call = &response["output"][1];
    assert_eq!(call["status"], "failed");
    let error = json!({"type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "no such number"}]});
    assert_eq!(call["error"], error);
    assert!(call.get("output").is_none());
    assert_eq!(response["status"], "completed");
    gw.join().await;
}

#[tokio::test]
async fn calls_side_by_side_are_an_item_each() {
    let calls = [
        ("c1", "calc__add", json!({"a": 1, "b": 2})),
        ("c2", "calc__add", json!({"a": 3, "b": 4})),
    ];
    let gw = over(vec![call(&calls), say("both")]).await;
    let response = plain(&gw, "/v1/responses", request()).await;
    let output = response["output"].as_array().unwrap();
    let arguments: Vec<&str> = output
        .iter()
        .filter_map(|item| item["arguments"].as_str())
        .collect();
    assert_eq!(arguments, [r#"{"a":1,"b":2}"#, r#"{"a":3,"b":4}"#]);
    gw.join().await;
}

#[tokio::test]
async fn the_next_response_lists_no_tools_again_and_the_model_reads_the_earlier_call() {
    let mut script = two_rounds();
    script.push(say("Still 3."));
    let gw = over(script).await;
    let first = plain(&gw, "/v1/responses", request()).await;
    let mut next = request();
    next["input"] = "And now?".into();
    next["previous_response_id"] = first["id"].clone();
    let second = plain(&gw, "/v1/responses", next).await;
    assert_eq!(types(&second["output"]), ["message"]);
    let messages = gw.model.messages(2);
    let calls = messages.iter().filter_map(|it| it["tool_calls"].as_array());
    let names: Vec<&Value> = calls.flatten().map(|it| &it["function"]["name"]).collect();
    assert_eq!(names, ["calc__add"]);
    let results = messages.iter().filter(|it| it["role"] == "tool");
    let results: Vec<&Value> = results.map(|it| &it["content"]).collect();
    assert_eq!(results, ["3"]);
    gw.join().await;
}

#[tokio::test]
async fn a_label_for_several_servers_has_the_names_that_the_model_knows() {
    let gw = over(two_rounds()).await;
    let mut body = request();
    body["tools"][0]["server_label"] = "toolway".into();
    body["tools"][0]["allowed_tools"] = json!(["add"]);
    let response = plain(&gw, "/v1/responses", body).await;
    let list = &response["output"][0];
    assert_eq!(list["server_label"], "toolway");
    assert_eq!(list["tools"].as_array().unwrap().len(), 1);
    assert_eq!(list["tools"][0]["name"], "calc__add");
    assert_eq!(response["output"][2]["name"], "calc__add");
    gw.join().await;
}

#[tokio::test]
async fn without_an_entry_the_gateways_calls_stay_unseen() {
    let gw = over(two_rounds()).await;
    let body = json!({"model": "m", "input": "1 + 2?"});
    let response = plain(&gw, "/v1/responses", body).await;
    assert_eq!(types(&response["output"]), ["message"]);
    gw.join().await;
}

#[tokio::test]
async fn a_tool_of_a_server_can_be_forced() {
    let gw = over(two_rounds()).await;
    let mut body = request();
    body["tool_choice"] = json!({"type": "mcp", "server_label": "calc", "name": "add"});
    plain(&gw, "/v1/responses", body).await;
    let asked = gw.model.asked();
    let choice = json!({"type": "function", "function": {"name": "calc__add"}});
    assert_eq!(asked[0].body["tool_choice"], choice);
    gw.join().await;
}

/// A request whose calls are to be approved.
fn asking() -> Value {
    json!({"model": "m", "input": "1 + 2?", "tools": [{"type": "mcp", "server_label": "calc",
        "require_approval": {"always": {"tool_names": ["add"]}}}]})
}

fn adding() -> crate::model::Reply {
    call(&[("c", "calc__add", json!({"a": 1, "b": 2}))])
}

/// The request that answers the question of `first`.
fn answering(first: &Value, answer: Value) -> Value {
    let output = first["output"].as_array().unwrap();
    let mut questions = output
        .iter()
        .filter(|item| item["type"] == "mcp_approval_request");
    let id = questions.next().unwrap()["id"].clone();
    let mut said = json!({"type": "mcp_approval_response", "approval_request_id": id});
    for (key, value) in answer.as_object().unwrap() {
        said[key] = value.clone();
    }
    let mut next = asking();
    next["input"] = json!([said]);
    next["previous_response_id"] = first["id"].clone();
    next
}

#[tokio::test]
async fn a_call_waits_for_the_clients_approval_and_then_runs_once() {
    for mode in ["plain", "stream", "background", "the server's own name"] {
        let mut adding = adding();
        if mode == "the server's own name" {
            adding = call(&[("c", "add", json!({"a": 1, "b": 2}))]);
        }
        let gw = over(vec![adding, say("It is 3."), say("It is still 3.")]).await;
        let ask = async |mut body: Value| match mode {
            "plain" | "the server's own name" => plain(&gw, "/v1/responses", body).await,
            "stream" => {
                let events = streamed(&gw, "/v1/responses", body).await;
                events.last().unwrap()["response"].clone()
            }
            _ => {
                body["background"] = true.into();
                let begun = plain(&gw, "/v1/responses", body).await;
                let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
                let events = gw.get(&format!("{path}?stream=true")).await;
                events.text().await.unwrap();
                gw.json(&path).await
            }
        };
        let first = ask(asking()).await;
        assert_eq!(first["status"], "completed");
        assert_eq!(
            types(&first["output"]),
            ["mcp_list_tools", "mcp_approval_request"]
        );
        let question = &first["output"][1];
        assert_eq!(
            json!([
                question["server_label"],
                question["name"],
                question["arguments"]
            ]),
            json!(["calc", "add", "{\"a\":1,\"b\":2}"])
        );
        assert_eq!(gw.servers[0].calls().len(), 0, "nothing ran yet");

        let next = answering(&first, json!({"approve": true}));
        let second = ask(next.clone()).await;
        assert_eq!(types(&second["output"]), ["mcp_call", "message"]);
        let made = &second["output"][0];
        assert_eq!(
            json!([made["output"], made["approval_request_id"], made["status"]]),
            json!(["3", question["id"], "completed"])
        );
        let messages = gw.model.messages(1);
        assert_eq!(messages.last().unwrap()["content"], "3");

        // The same request once more, as a client sends it whose connection broke.
        let again = ask(next).await;
        assert_eq!(again["output"][0]["output"], "3");
        assert_eq!(gw.servers[0].calls().len(), 1, "the call ran once");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_client_sees_an_approved_call_run_before_the_model_answers() {
    let gw = over(vec![adding(), say("It is 3.")]).await;
    let first = plain(&gw, "/v1/responses", asking()).await;
    let next = answering(&first, json!({"approve": true}));
    let events = streamed(&gw, "/v1/responses", next).await;
    assert_eq!(
        kinds(&events)[..8],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.mcp_call.in_progress",
            "response.mcp_call_arguments.delta",
            "response.mcp_call_arguments.done",
            "response.mcp_call.completed",
            "response.output_item.done",
        ]
    );
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_is_not_approved_does_not_run_and_the_model_reads_why() {
    let gw = over(vec![adding(), say("Then not.")]).await;
    let first = plain(&gw, "/v1/responses", asking()).await;
    let next = answering(&first, json!({"approve": false, "reason": "use a pencil"}));
    let second = plain(&gw, "/v1/responses", next).await;
    assert_eq!(types(&second["output"]), ["message"]);
    let messages = gw.model.messages(1);
    let told = messages.last().unwrap()["content"].as_str().unwrap();
    assert!(
        told.contains("did not approve") && told.contains("use a pencil"),
        "{told}"
    );
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn an_approval_is_for_the_arguments_that_were_shown() {
    let gw = over(vec![adding(), say("done"), say("done")]).await;
    let mut body = asking();
    body["store"] = false.into();
    let first = plain(&gw, "/v1/responses", body.clone()).await;
    let mut question = first["output"][1].clone();
    question["arguments"] = "{\"a\": 1, \"b\": 1000}".into();
    let said = json!({"type": "mcp_approval_response", "approval_request_id": question["id"], "approve": true});
    body["input"] = json!([{"role": "user", "content": "1 + 2?"}, question, said]);
    let second = plain(&gw, "/v1/responses", body.clone()).await;
    assert_eq!(second["output"][1]["status"], "failed");
    assert!(gw.servers[0].calls().is_empty());

    // As it was shown it runs, though nothing but the items came back.
    body["input"][1] = first["output"][1].clone();
    let third = plain(&gw, "/v1/responses", body).await;
    assert_eq!(third["output"][1]["output"], "3");
    gw.join().await;
}

#[tokio::test]
async fn nobody_approves_for_another_client_or_what_was_never_asked() {
    let gw = over(vec![adding(), say("no"), say("no")]).await;
    let mut body = asking();
    body["store"] = false.into();
    let first = plain(&gw, "/v1/responses", body.clone()).await;
    let said = |id: &Value| json!({"type": "mcp_approval_response", "approval_request_id": id, "approve": true});
    let question = &first["output"][1];
    body["input"] = json!([{"role": "user", "content": "1 + 2?"}, question, said(&question["id"])]);
    let request = gw.http.post(format!("{}/v1/responses", gw.base));
    let request = request.header("authorization", "Bearer another");
    let response = request.body(body.to_string()).send().await.unwrap();
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["output"][1]["status"], "failed", "{answer}");

    let mut made_up = question.clone();
    made_up["id"] = "mcpr_made_up".into();
    body["input"] = json!([{"role": "user", "content": "x"}, made_up, said(&made_up["id"])]);
    let answer = plain(&gw, "/v1/responses", body).await;
    assert_eq!(answer["output"][1]["status"], "failed", "{answer}");
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_chat_completion_has_no_way_to_ask() {
    let gw = over(vec![]).await;
    let body =
        json!({"tools": [{"type": "mcp", "server_label": "calc", "require_approval": "always"}]});
    let response = gw.send(body, &[]).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "tools[0].require_approval");
    gw.join().await;
}

#[tokio::test]
async fn a_question_stands_beside_calls_that_run_and_calls_of_the_client() {
    let calls = [
        ("c1", "calc__fail", json!({})),
        ("c2", "calc__add", json!({"a": 1, "b": 2})),
        ("c3", "own", json!({"x": 1})),
    ];
    let gw = over(vec![call(&calls), say("done")]).await;
    let own = json!({"type": "function", "name": "own", "parameters": {"type": "object"}});
    let mut body = asking();
    body["tools"].as_array_mut().unwrap().push(own.clone());
    let first = plain(&gw, "/v1/responses", body).await;
    let kinds = [
        "mcp_list_tools",
        "mcp_approval_request",
        "function_call",
        "mcp_call",
    ];
    let mut found = types(&first["output"]);
    found.sort_unstable();
    let mut expected = kinds;
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(
        gw.servers[0].calls().len(),
        1,
        "only what nobody is asked about"
    );

    let output = first["output"].as_array().unwrap();
    let shown = output
        .iter()
        .find(|it| it["type"] == "function_call")
        .unwrap();
    let mut next = answering(&first, json!({"approve": true}));
    next["tools"].as_array_mut().unwrap().push(own);
    let mine =
        json!({"type": "function_call_output", "call_id": shown["call_id"], "output": "mine"});
    next["input"].as_array_mut().unwrap().push(mine);
    let second = plain(&gw, "/v1/responses", next).await;
    assert_eq!(types(&second["output"]), ["mcp_call", "message"]);
    let results: Vec<Value> = gw.model.messages(1);
    let results = results.iter().filter(|message| message["role"] == "tool");
    let results: Vec<&str> = results.map(|it| it["content"].as_str().unwrap()).collect();
    assert_eq!(results.len(), 3, "each call has one result: {results:?}");
    assert!(results[0].contains("no such number"));
    assert_eq!(results[1..], ["3", "mine"]);
    gw.join().await;
}

#[tokio::test]
async fn approvals_are_told_apart_though_a_model_uses_the_id_of_its_call_again() {
    let again = call(&[("c", "calc__add", json!({"a": 3, "b": 4}))]);
    let gw = over(vec![adding(), again, say("one"), say("two")]).await;
    let first = plain(&gw, "/v1/responses", asking()).await;
    let second = plain(&gw, "/v1/responses", asking()).await;
    for asked in [&first, &second] {
        let answer = plain(
            &gw,
            "/v1/responses",
            answering(asked, json!({"approve": true})),
        )
        .await;
        assert_eq!(answer["output"][0]["status"], "completed", "{answer}");
    }
    let calls = gw.servers[0].calls();
    let arguments: Vec<&Value> = calls.iter().map(|(_, arguments)| arguments).collect();
    assert_eq!(
        arguments,
        [&json!({"a": 1, "b": 2}), &json!({"a": 3, "b": 4})]
    );
    gw.join().await;
}

/// The confirmations of all clients.
async fn confirmations(gw: &Toolway) -> Vec<Value> {
    let mut list = gw.json("/confirmations").await;
    list["confirmations"].as_array_mut().unwrap().split_off(0)
}

async fn decide(gw: &Toolway, question: &Value, confirm: bool) -> Value {
    let path = format!("/confirmations/{}", question["id"].as_str().unwrap());
    let request = gw.http.post(format!("{}{path}", gw.base));
    let response = request.json(&json!({"confirm": confirm})).send();
    response.await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn a_question_is_on_the_list_of_confirmations_until_the_client_answers() {
    for (approve, state) in [(true, "used"), (false, "denied")] {
        let gw = over(vec![adding(), say("ok")]).await;
        let first = plain(&gw, "/v1/responses", asking()).await;
        let [shown] = &confirmations(&gw).await[..] else {
            panic!("one call is asked about");
        };
        assert_eq!(
            json!([
                shown["confirmation_id"],
                shown["state"],
                shown["name"],
                shown["arguments"],
                shown["face"],
                shown["rule"]
            ]),
            json!([first["output"][1]["id"], "pending", "calc__add", {"a": 1, "b": 2}, "responses", "require_approval of the request"])
        );
        let next = answering(&first, json!({"approve": approve}));
        plain(&gw, "/v1/responses", next).await;
        assert_eq!(confirmations(&gw).await[0]["state"], state);
        let late = decide(&gw, &first["output"][1], true).await;
        assert!(
            late["error"].as_str().unwrap().contains("not found"),
            "{late}"
        );
        assert_eq!(gw.servers[0].calls().len(), usize::from(approve));
        gw.join().await;
    }
}

#[tokio::test]
async fn a_call_that_is_approved_elsewhere_runs_once_when_its_client_comes_back() {
    for mode in ["an answer", "no answer", "background"] {
        let folder = tempfile::tempdir().unwrap();
        let config = format!("data_dir = {:?}", folder.path());
        let start = async |script| {
            let gw = toolway(Model::start(script).await).config(&config);
            gw.server("calc", tools().add()).start().await
        };
        let gw = start(vec![adding()]).await;
        let first = plain(&gw, "/v1/responses", asking()).await;
        let decided = decide(&gw, &first["output"][1], true).await;
        assert_eq!(decided["status"], "approved");
        gw.join().await;

        let gw = start(vec![say("It is 3."), say("As I said.")]).await;
        let mut next = answering(&first, json!({"approve": true}));
        if mode != "an answer" {
            next["input"] = json!([{"role": "user", "content": "Go on."}]);
        }
        let second = if mode == "background" {
            next["background"] = true.into();
            let begun = plain(&gw, "/v1/responses", next).await;
            let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
            let events = gw.get(&format!("{path}?stream=true")).await;
            events.text().await.unwrap();
            gw.json(&path).await
        } else {
            plain(&gw, "/v1/responses", next).await
        };
        assert_eq!(types(&second["output"]), ["mcp_call", "message"], "{mode}");
        assert_eq!(second["output"][0]["output"], "3");
        let third = json!({"model": "m", "input": "And now?", "previous_response_id": second["id"], "tools": asking()["tools"]});
        let third = plain(&gw, "/v1/responses", third).await;
        assert_eq!(types(&third["output"]), ["message"]);
        let told = gw.model.messages(1);
        let results = told.iter().filter(|message| message["role"] == "tool");
        let results: Vec<&Value> = results.map(|it| &it["content"]).collect();
        assert_eq!(results, ["3"]);
        assert_eq!(gw.servers[0].calls().len(), 1, "{mode}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_call_that_is_denied_elsewhere_does_not_run_whatever_its_client_says() {
    for answers in [true, false] {
        let gw = over(vec![adding(), say("Then not.")]).await;
        let first = plain(&gw, "/v1/responses", asking()).await;
        decide(&gw, &first["output"][1], false).await;
        let mut next = answering(&first, json!({"approve": true}));
        if !answers {
            next["input"] = json!([{"role": "user", "content": "Go on."}]);
        }
        plain(&gw, "/v1/responses", next).await;
        let told = gw.model.messages(1);
        let told = told.iter().find(|message| message["role"] == "tool");
        let told = told.unwrap()["content"].as_str().unwrap();
        assert!(told.contains("did not approve"), "{told}");
        assert!(gw.servers[0].calls().is_empty());
        gw.join().await;
    }
}

#[tokio::test]
async fn a_tool_that_has_changed_since_the_question_needs_another_approval() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("data_dir = {:?}", folder.path());
    let start = async |tools, script| {
        let gw = toolway(Model::start(script).await).config(&config);
        gw.server("calc", tools).start().await
    };
    let gw = start(tools().add(), vec![adding()]).await;
    let first = plain(&gw, "/v1/responses", asking()).await;
    gw.join().await;
    let other = json!({"name": "add", "description": "Adds, and sends mail.", "inputSchema": {"type": "object"}});
    let gw = start(tools().listed(other, Does::Echoes), vec![say("no")]).await;
    let next = answering(&first, json!({"approve": true}));
    let second = plain(&gw, "/v1/responses", next).await;
    assert_eq!(second["output"][0]["status"], "failed", "{second}");
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}
