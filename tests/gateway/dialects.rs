//! Clients that speak Responses or Messages, over models of every API.

use serde_json::{Value, json};

use crate::{
    harness::{Live, Toolway, toolway},
    model::{Model, Then, call, events, raw, say, say_and_call},
    tools::{Does, tools},
};

/// The upstreams that a face is tried over.
const APIS: [&str; 4] = ["chat", "responses", "anthropic", "gemini"];

pub fn upstream(api: &str) -> String {
    format!(
        "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\napi = \"{api}\"\napi_key = \"k\"\nretries = 0\n"
    )
}

/// A toolway with a tool before a model of this API.
pub async fn over(api: &str, script: Vec<crate::model::Reply>) -> Toolway {
    toolway(Model::start(script).await)
        .config(&upstream(api))
        .server("calc", tools().add())
        .start()
        .await
}

pub async fn post(gw: &Toolway, path: &str, body: &Value) -> reqwest::Response {
    let request = gw.http.post(format!("{}{path}", gw.base));
    let request = request.header("content-type", "application/json");
    request.body(body.to_string()).send().await.unwrap()
}

pub(crate) async fn plain(gw: &Toolway, path: &str, body: Value) -> Value {
    let response = post(gw, path, &body).await;
    let status = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The events of a stream: (name, data). Each name is the data's type.
pub(crate) async fn streamed(gw: &Toolway, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let response = post(gw, path, &body).await;
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let events = text
        .split("\n\n")
        .filter(|event| !event.is_empty() && !event.starts_with(':'));
    events
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(
                name.strip_prefix("event: "),
                data["type"].as_str(),
                "{event}"
            );
            data
        })
        .collect()
}

pub fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect()
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

/// What the message of a Messages stream is, put together as the SDKs do it: they keep blocks in a list, and a delta for a
/// block that is not open is a crash.
fn message(events: &[Value]) -> Value {
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let mut message = events[0]["message"].clone();
    let mut arguments = String::new();
    let mut open = None;
    for event in &events[1..] {
        let at = event["index"].as_u64();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(open, None, "one block at a time");
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(at, Some(content.len() as u64), "indices count from 0");
                content.push(event["content_block"].clone());
                open = at;
            }
            "content_block_delta" => {
                assert_eq!(open, at);
                let block = message["content"]
                    .as_array_mut()
                    .unwrap()
                    .last_mut()
                    .unwrap();
                let delta = &event["delta"];
                let append = |block: &mut Value, key: &str| {
                    let text = format!(
                        "{}{}",
                        block[key].as_str().unwrap(),
                        delta[key].as_str().unwrap()
                    );
                    block[key] = text.into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append(block, "text"),
                    "thinking_delta" => append(block, "thinking"),
                    "signature_delta" => append(block, "signature"),
                    "input_json_delta" => {
                        arguments.push_str(delta["partial_json"].as_str().unwrap());
                    }
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let block = message["content"]
                    .as_array_mut()
                    .unwrap()
                    .last_mut()
                    .unwrap();
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&arguments).unwrap();
                    arguments.clear();
                }
                open = None;
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message
}

#[tokio::test]
async fn a_loop_is_one_message_over_every_api() {
    for api in APIS {
        for is_streamed in [false, true] {
            let gw = over(api, two_rounds()).await;
            let body = json!({"model": "claude-x", "max_tokens": 1000, "system": "be brief",
                "messages": [{"role": "user", "content": "hello"}]});
            let message = match is_streamed {
                false => plain(&gw, "/v1/messages", body).await,
                true => message(&streamed(&gw, "/v1/messages?beta=true", body).await),
            };
            let texts = message["content"].as_array().unwrap().iter();
            let texts: String = texts.filter_map(|block| block["text"].as_str()).collect();
            assert_eq!(texts, "Let me see. It is 3.", "{api}");
            assert_eq!(message["stop_reason"], "end_turn");
            assert_eq!(message["role"], "assistant");
            assert!(message["id"].as_str().unwrap().starts_with("msg_"));
            assert!(
                message["usage"]["input_tokens"].as_u64().unwrap() > 0,
                "{message}"
            );
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn a_loop_is_one_response_over_every_api() {
    for api in APIS {
        let gw = over(api, [two_rounds(), two_rounds()].concat()).await;
        let body = json!({"model": "m", "instructions": "be brief", "input": "hello"});
        let response = plain(&gw, "/v1/responses", body.clone()).await;
        let events = streamed(&gw, "/v1/responses", body).await;
        let numbers: Vec<u64> = events
            .iter()
            .map(|it| it["sequence_number"].as_u64().unwrap())
            .collect();
        assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        for response in [&response, &last["response"]] {
            assert_eq!(response["status"], "completed");
            let texts: Vec<&str> = response["output"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|item| item["type"] == "message")
                .filter_map(|item| item["content"][0]["text"].as_str())
                .collect();
            assert_eq!(texts.concat(), "Let me see. It is 3.", "{api}");
            assert!(
                !response["output"].to_string().contains("calc__add"),
                "the gateway's calls stay hidden"
            );
            assert_eq!(response["instructions"], "be brief");
            assert!(
                response["usage"]["input_tokens_details"]["cached_tokens"]
                    .as_u64()
                    .unwrap()
                    > 0
            );
        }
        let deltas = events
            .iter()
            .filter(|it| it["type"] == "response.output_text.delta");
        let text: String = deltas.map(|it| it["delta"].as_str().unwrap()).collect();
        assert_eq!(text, "Let me see. It is 3.");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_response_makes_no_more_calls_than_it_allows() {
    let calls = [
        ("1", "calc__add", json!({"a": 1, "b": 2})),
        ("2", "calc__add", json!({"a": 2, "b": 2})),
    ];
    let gw = over("chat", vec![call(&calls), say("done")]).await;
    let body = json!({"model": "m", "input": "hello", "max_tool_calls": 1});
    let response = plain(&gw, "/v1/responses", body).await;
    assert_eq!(response["status"], "completed");
    assert_eq!(response["max_tool_calls"], 1);
    assert_eq!(gw.servers[0].calls().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn the_events_of_a_response_come_in_openais_order() {
    let gw = over("chat", vec![say("hi")]).await;
    let events = streamed(
        &gw,
        "/v1/responses",
        json!({"model": "m", "input": "hello"}),
    )
    .await;
    assert_eq!(
        kinds(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    gw.join().await;
}

#[tokio::test]
async fn text_of_each_round_arrives_while_its_call_still_runs() {
    for path in ["/v1/messages", "/v1/responses"] {
        for api in APIS {
            let script = vec![
                say_and_call("One moment.", &[("c", "slow__hold", json!({}))]),
                say("There."),
            ];
            let gw = toolway(Model::start(script).await)
                .config(&upstream(api))
                .server("slow", tools().tool("hold", Does::Holds))
                .start()
                .await;
            let mut live = Live::of(post(&gw, path, &question(path)).await);
            live.until("One moment.").await;
            gw.servers[0].was_called(1).await;
            gw.servers[0].let_go();
            live.until("There.").await;
            gw.join().await;
        }
    }
}

/// A request for a stream.
fn question(path: &str) -> Value {
    match path {
        "/v1/responses" => json!({"model": "m", "stream": true, "input": "hello"}),
        _ => json!({"model": "claude-x", "max_tokens": 9000, "stream": true,
            "messages": [{"role": "user", "content": "hello"}]}),
    }
}

#[tokio::test]
async fn a_mixed_turn_works_in_the_words_of_messages() {
    for api in APIS {
        let both = [
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "own", json!({"x": 1})),
        ];
        let gw = over(api, vec![say_and_call("Look. ", &both), say("done")]).await;
        let tools = json!([{"name": "own", "input_schema": {"type": "object"}}]);
        let first = json!({"role": "user", "content": "hello"});
        let body = json!({"model": "m", "max_tokens": 1000, "tools": tools, "messages": [first]});
        let answer = message(&streamed(&gw, "/v1/messages", body).await);
        assert_eq!(answer["stop_reason"], "tool_use", "{api}");
        let calls = answer["content"].as_array().unwrap().iter();
        let calls: Vec<&Value> = calls.filter(|block| block["type"] == "tool_use").collect();
        assert_eq!(calls.len(), 1);
        assert_eq!(
            (&calls[0]["name"], &calls[0]["input"]),
            (&json!("own"), &json!({"x": 1}))
        );
        let result = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "mine", "is_error": false}]});
        let said = json!({"role": "assistant", "content": answer["content"]});
        let body = json!({"model": "m", "max_tokens": 1000, "tools": tools, "messages": [first, said, result]});
        let answer = message(&streamed(&gw, "/v1/messages", body).await);
        assert_eq!(answer["stop_reason"], "end_turn");
        let second = gw.model.asked()[1].body.to_string();
        assert!(
            second.contains("mine") && second.contains("c1"),
            "both results: {second}"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_mixed_turn_works_in_the_words_of_responses() {
    for api in APIS {
        let both = [
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "own", json!({"x": 1})),
        ];
        let gw = over(api, vec![call(&both), say("done")]).await;
        let tools = json!([{"type": "function", "name": "own", "parameters": {"type": "object"}}]);
        let body = json!({"model": "m", "tools": tools, "input": "hello"});
        let events = streamed(&gw, "/v1/responses", body).await;
        let output = events.last().unwrap()["response"]["output"]
            .as_array()
            .unwrap()
            .clone();
        let call = output.last().unwrap();
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!("function_call"), &json!("own")),
            "{api}"
        );
        let mut input = vec![json!({"role": "user", "content": "hello"})];
        input.extend(output.clone());
        input.push(
            json!({"type": "function_call_output", "call_id": call["call_id"], "output": "mine"}),
        );
        let response = plain(
            &gw,
            "/v1/responses",
            json!({"model": "m", "tools": tools, "input": input}),
        )
        .await;
        assert!(response["output"].to_string().contains("done"));
        let second = gw.model.asked()[1].body.to_string();
        assert!(
            second.contains("mine") && second.contains("c1"),
            "both results: {second}"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn custom_and_namespaced_tools_come_back_under_the_names_of_the_client() {
    let calls = [
        ("c1", "exec", json!({"input": "print(1)"})),
        ("c2", "files__read", json!({"path": "a"})),
    ];
    let gw = over("chat", vec![call(&calls), say("done")]).await;
    let tools = json!([
        {"type": "custom", "name": "exec", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
    ]);
    let body = json!({"model": "m", "tools": tools, "input": "hello"});
    let events = streamed(&gw, "/v1/responses", body).await;
    let output = events.last().unwrap()["response"]["output"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(output[0]["type"], "custom_tool_call");
    assert_eq!(output[0]["input"], "print(1)");
    assert_eq!(output[1]["namespace"], "files");
    assert_eq!(output[1]["name"], "read");
    let deltas = events
        .iter()
        .find(|it| it["type"] == "response.custom_tool_call_input.delta");
    assert_eq!(deltas.unwrap()["delta"], "print(1)");
    let mut input = vec![json!({"role": "user", "content": "hello"})];
    input.extend(output);
    input.push(json!({"type": "custom_tool_call_output", "call_id": "c1", "output": "1"}));
    input.push(json!({"type": "function_call_output", "call_id": "c2", "output": "text"}));
    plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "tools": tools, "input": input}),
    )
    .await;
    let messages = gw.model.messages(1);
    assert_eq!(messages.len(), 4, "one assistant message with both calls");
    assert_eq!(
        messages[1]["tool_calls"][1]["function"]["name"],
        "files__read"
    );
    gw.join().await;
}

#[tokio::test]
async fn seals_of_a_provider_survive_the_way_through_another_api() {
    // A client of one API, a provider of the other: the client brings back what it was given.
    let gw = over(
        "anthropic",
        vec![call(&[("c", "own", json!({}))]), say("done")],
    )
    .await;
    let tools = json!([{"type": "function", "name": "own", "parameters": {"type": "object"}}]);
    let response = plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "tools": tools, "input": "hello"}),
    )
    .await;
    let mut input = vec![json!({"role": "user", "content": "hello"})];
    input.extend(response["output"].as_array().unwrap().clone());
    input.push(json!({"type": "function_call_output", "call_id": "c", "output": "mine"}));
    plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "tools": tools, "input": input}),
    )
    .await;
    let thought = gw.model.asked()[1].body["messages"][1]["content"][0].clone();
    assert_eq!(
        thought,
        json!({"type": "thinking", "thinking": "thinking 1", "signature": "signed 1"})
    );
    gw.join().await;

    let gw = over(
        "responses",
        vec![call(&[("c", "own", json!({}))]), say("done")],
    )
    .await;
    let tools = json!([{"name": "own", "input_schema": {"type": "object"}}]);
    let first = json!({"role": "user", "content": "hello"});
    let body = |messages: Value| json!({"model": "m", "max_tokens": 100, "tools": tools, "messages": messages});
    let answer = plain(&gw, "/v1/messages", body(json!([first]))).await;
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "mine"}]});
    let said = json!({"role": "assistant", "content": answer["content"]});
    plain(&gw, "/v1/messages", body(json!([first, said, result]))).await;
    let item = gw.model.asked()[1].body["input"][1].clone();
    assert_eq!(
        (&item["id"], &item["encrypted_content"]),
        (&json!("rs_1"), &json!("sealed 1"))
    );
    gw.join().await;
}

#[tokio::test]
async fn what_claude_code_sends_is_taken_by_a_chat_upstream() {
    let gw = over(
        "chat",
        vec![call(&[("c", "Bash", json!({"command": "ls"}))])],
    )
    .await;
    let head = gw.http.head(format!("{}/", gw.base)).send().await.unwrap();
    assert_eq!(head.status(), 200);
    let body = json!({
        "model": "local", "max_tokens": 64000, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "{\"session_id\":\"s\"}"},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.2.3"},
            {"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "helpful"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "system", "content": "a reminder"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [], "is_error": false}]},
        ],
        "tools": [{"name": "Bash", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
    });
    let answer = message(&streamed(&gw, "/v1/messages?beta=true", body).await);
    assert_eq!(answer["stop_reason"], "tool_use");
    let asked = gw.model.asked().remove(0).body;
    let roles = asked["messages"].as_array().unwrap().iter();
    let roles: Vec<&str> = roles
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "system", "assistant", "tool"]);
    assert_eq!(asked["messages"][0]["content"], "You are\n\nhelpful");
    for member in [
        "thinking",
        "context_management",
        "metadata",
        "reasoning_effort",
    ] {
        assert!(asked.get(member).is_none(), "{member}");
    }
    gw.join().await;
}

#[tokio::test]
async fn errors_have_the_form_of_the_clients_api() {
    let refusal = r#"{"error":{"message":"slow down","type":"rate_limit","code":"x"}}"#;
    let cut = "data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    let script = vec![
        raw(429, "application/json", refusal),
        events(&[cut], Then::End),
    ];
    let gw = over("chat", [script.clone(), script].concat()).await;
    let body =
        json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]});
    let response = post(&gw, "/v1/messages", &body).await;
    assert_eq!(response.status(), 429);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["type"], "error");
    assert_eq!(error["error"]["type"], "rate_limit_error");
    let events = streamed(&gw, "/v1/messages", body).await;
    assert_eq!(kinds(&events).last(), Some(&"error"));
    let body = json!({"model": "m", "input": "x"});
    let response = post(&gw, "/v1/responses", &body).await;
    assert_eq!(response.status(), 429);
    let events = streamed(&gw, "/v1/responses", body).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert!(last["response"]["error"]["message"].is_string());
    gw.join().await;
}

#[tokio::test]
async fn what_is_not_there_is_refused_by_name() {
    let gw = over("chat", Vec::new()).await;
    for (body, param) in [
        (
            json!({"model": "m", "input": "x", "background": true, "store": false}),
            "background",
        ),
        (
            json!({"model": "m", "input": "x", "conversation": "c"}),
            "conversation",
        ),
        (
            json!({"model": "m", "input": "x", "max_tool_calls": 0}),
            "max_tool_calls",
        ),
        (
            json!({"model": "m", "input": "x", "previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (
            json!({"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}]}),
            "input",
        ),
        (json!({"model": "m"}), "input"),
        (
            json!({"model": "m", "input": "x", "max_output_tokens": "many"}),
            "max_output_tokens",
        ),
        (json!({"model": "m", "input": "x", "tools": "x"}), "tools"),
        (json!({"model": "m", "input": "x", "text": 5}), "text"),
        (
            json!({"model": "m", "input": "x", "tool_choice": {"type": "function", "name": "zz"}}),
            "tool_choice",
        ),
    ] {
        let response = post(&gw, "/v1/responses", &body).await;
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    let messages = json!([{"role": "user", "content": "x"}]);
    for (member, value) in [
        ("max_tokens", json!(-5)),
        ("temperature", json!("hot")),
        ("tools", json!("x")),
        ("tool_choice", json!({"type": "tool", "name": "zz"})),
    ] {
        let mut body = json!({"model": "m", "max_tokens": 10, "messages": messages});
        body[member] = value;
        let response = post(&gw, "/v1/messages", &body).await;
        assert_eq!(response.status(), 400, "{body}");
        let error = response.text().await.unwrap();
        let named = error.to_lowercase().replace(" choice", "_choice");
        assert!(named.contains(member), "{error}");
    }
    assert_eq!(gw.model.asked().len(), 0);
    gw.join().await;
}

#[tokio::test]
async fn a_thread_of_the_servers_is_refused_so_that_sdks_send_the_whole_conversation() {
    let gw = over("chat", Vec::new()).await;
    let body = json!({"model": "m", "max_tokens": 10, "thread": {"type": "continue", "previous_message_id": "msg_1"},
        "messages": [{"role": "user", "content": "x"}]});
    let response = post(&gw, "/v1/messages", &body).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["details"]["error_code"], "thread_not_found");
    gw.join().await;
}

#[tokio::test]
async fn a_key_in_the_header_of_anthropics_sdks_is_a_key() {
    let gw = toolway(Model::start([say("hi")]).await)
        .config("api_keys = [\"secret\"]\n")
        .server("calc", tools().add())
        .start()
        .await;
    let body =
        json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]});
    let refused = post(&gw, "/v1/messages", &body).await;
    assert_eq!(refused.status(), 401);
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["type"], "authentication_error");
    let request = gw.http.post(format!("{}/v1/messages", gw.base));
    let request = request.header("x-api-key", "secret").body(body.to_string());
    let answered = request.send().await.unwrap();
    assert_eq!(answered.status(), 200);
    let ids = ["request-id", "x-request-id"].map(|it| answered.headers()[it].clone());
    assert_eq!(
        ids[0], ids[1],
        "Anthropic's SDKs read it in their API's header"
    );
    gw.join().await;
}

#[tokio::test]
async fn without_tools_the_same_api_is_forwarded_untouched() {
    let gw = toolway(Model::start([raw(200, "application/json", "{\"own\": 1}")]).await)
        .config(&upstream("anthropic"))
        .start()
        .await;
    let body = json!({"model": "m", "unknown": true, "max_tokens": 10, "messages": []});
    let response = post(&gw, "/v1/messages", &body).await;
    let text = response.text().await.unwrap();
    assert!(
        text.contains("Extra inputs") || text.contains("unknown"),
        "{text}"
    );
    assert_eq!(gw.model.asked()[0].body, body);
    gw.join().await;
}

#[tokio::test]
async fn a_later_request_names_a_response_or_an_item_instead_of_sending_it() {
    let both = [
        ("c1", "calc__add", json!({"a": 1, "b": 2})),
        ("c2", "own", json!({})),
    ];
    let script = vec![call(&both), say("two"), say("three"), say("four")];
    let gw = over("chat", script).await;
    let tools = json!([{"type": "function", "name": "own", "parameters": {"type": "object"}}]);
    let body = json!({"model": "m", "tools": tools, "instructions": "be brief", "input": "one"});
    let first = streamed(&gw, "/v1/responses", body).await.pop().unwrap()["response"].clone();
    let id = &first["output"][0]["call_id"];
    let output = json!([{"type": "function_call_output", "call_id": id, "output": "mine"}]);
    let body =
        json!({"model": "m", "tools": tools, "previous_response_id": first["id"], "input": output});
    let second = plain(&gw, "/v1/responses", body).await;
    let messages = gw.model.messages(1);
    let roles: Vec<&str> = messages
        .iter()
        .map(|it| it["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        ["user", "assistant", "tool", "tool"],
        "instructions are not inherited"
    );

    let reference = json!({"type": "item_reference", "id": second["output"][0]["id"]});
    let body = json!({"model": "m", "input": [reference, {"role": "user", "content": "and?"}]});
    plain(&gw, "/v1/responses", body).await;
    assert_eq!(
        gw.model.messages(2)[0],
        json!({"role": "assistant", "content": "two"})
    );

    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(gw.json(&path).await, second);
    let items = gw.json(&format!("{path}/input_items")).await;
    assert_eq!(items["data"][0]["type"], "function_call_output");
    assert!(items["data"][0]["id"].is_string());
    let deleted = gw
        .http
        .delete(format!("{}{path}", gw.base))
        .send()
        .await
        .unwrap();
    let deleted: Value = deleted.json().await.unwrap();
    assert_eq!(deleted["deleted"], true);
    let body = json!({"model": "m", "previous_response_id": second["id"], "input": "x"});
    assert_eq!(post(&gw, "/v1/responses", &body).await.status(), 400);
    gw.join().await;
}

#[tokio::test]
async fn with_a_data_folder_a_response_is_continued_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!(
        "data_dir = '{}'\n{}",
        folder.path().display(),
        upstream("chat")
    );
    let start = async |reply| {
        let gw = toolway(Model::start([reply]).await).config(&data);
        gw.server("calc", tools().add()).start().await
    };
    for is_streamed in [false, true] {
        let gw = start(say("one")).await;
        let body = json!({"model": "m", "input": "first"});
        let first = match is_streamed {
            false => plain(&gw, "/v1/responses", body).await,
            true => streamed(&gw, "/v1/responses", body).await.pop().unwrap()["response"].clone(),
        };
        gw.join().await;
        let gw = start(say("two")).await;
        let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
        assert_eq!(gw.json(&path).await, first);
        let body = json!({"model": "m", "previous_response_id": first["id"], "input": "second"});
        plain(&gw, "/v1/responses", body).await;
        let messages = gw.model.messages(0);
        let texts: Vec<&Value> = messages.iter().map(|it| &it["content"]).collect();
        assert_eq!(texts, ["first", "one", "second"]);
        gw.join().await;
    }
}

#[tokio::test]
async fn the_items_of_a_request_come_page_by_page() {
    let gw = over("chat", vec![say("one")]).await;
    let said = |text| json!({"id": text, "role": "user", "content": text});
    let input = json!([said("a"), said("b"), said("c")]);
    let kept = plain(&gw, "/v1/responses", json!({"model": "m", "input": input})).await;
    let path = format!("/v1/responses/{}/input_items", kept["id"].as_str().unwrap());
    for (query, ids, has_more) in [
        ("", &["c", "b", "a"][..], false),
        ("?order=asc&limit=2", &["a", "b"], true),
        ("?order=asc&limit=2&after=b", &["c"], false),
    ] {
        let page = gw.json(&format!("{path}{query}")).await;
        let items = page["data"].as_array().unwrap().iter();
        let found: Vec<&Value> = items.map(|item| &item["id"]).collect();
        assert_eq!(found, ids, "{query}");
        assert_eq!(page["has_more"], has_more, "{query}");
    }
    for (query, param) in [("?limit=0", "limit"), ("?after=d", "after")] {
        let response = gw.get(&format!("{path}{query}")).await;
        assert_eq!(response.status(), 400);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_response_that_is_kept_here_is_continued_here_also_where_there_are_no_tools_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir = '{}'", folder.path().display());
    let config = format!("{data}\n{}", upstream("responses"));
    let with_tools = toolway(Model::start([say("one")]).await).config(&config);
    let gw = with_tools.server("calc", tools().add()).start().await;
    let first = plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "input": "first"}),
    )
    .await;
    gw.join().await;
    let gw = toolway(Model::start([say("two")]).await)
        .config(&config)
        .start()
        .await;
    let body = json!({"model": "m", "previous_response_id": first["id"], "input": "second"});
    plain(&gw, "/v1/responses", body).await;
    let asked = gw.model.asked()[0].body.to_string();
    assert!(asked.contains("first") && asked.contains("one"), "{asked}");
    gw.join().await;
}

#[tokio::test]
async fn a_response_that_is_not_to_be_stored_is_not_and_nobody_else_finds_one() {
    let gw = over("chat", vec![say("one"), say("two")]).await;
    let kept = plain(&gw, "/v1/responses", json!({"model": "m", "input": "x"})).await;
    let path = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    let other = gw
        .http
        .get(format!("{}{path}", gw.base))
        .header("authorization", "Bearer other");
    assert_eq!(
        other.send().await.unwrap().status(),
        201,
        "the upstream is asked"
    );
    let body = json!({"model": "m", "input": "x", "store": false});
    let passing = plain(&gw, "/v1/responses", body).await;
    assert_eq!(passing["store"], false);
    let body = json!({"model": "m", "input": "x", "previous_response_id": passing["id"]});
    let response = post(&gw, "/v1/responses", &body).await;
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["code"], "previous_response_not_found");
    gw.join().await;
}

#[tokio::test]
async fn thoughts_of_every_round_keep_their_own_signatures() {
    for is_streamed in [false, true] {
        let gw = over("anthropic", two_rounds()).await;
        let messages = json!([{"role": "user", "content": "hello"}]);
        let body = json!({"model": "claude-x", "max_tokens": 1000, "messages": messages});
        let answer = match is_streamed {
            false => plain(&gw, "/v1/messages", body).await,
            true => message(&streamed(&gw, "/v1/messages", body).await),
        };
        let thoughts = answer["content"].as_array().unwrap().iter();
        let thoughts: Vec<Value> = thoughts
            .filter(|block| block["type"] == "thinking")
            .map(|block| json!([block["thinking"], block["signature"]]))
            .collect();
        let expected = [
            json!(["thinking 1", "signed 1"]),
            json!(["again", "signed again"]),
            json!(["thinking 2", "signed 2"]),
        ];
        assert_eq!(thoughts, expected, "{is_streamed}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_seal_goes_back_to_openai_with_the_id_that_it_was_made_for() {
    for is_streamed in [false, true] {
        let gw = over(
            "responses",
            vec![call(&[("c", "own", json!({}))]), say("done")],
        )
        .await;
        let tools = json!([{"type": "function", "name": "own", "parameters": {"type": "object"}}]);
        let body = json!({"model": "m", "tools": tools, "input": "hello"});
        let first = match is_streamed {
            false => plain(&gw, "/v1/responses", body).await,
            true => streamed(&gw, "/v1/responses", body).await.pop().unwrap()["response"].clone(),
        };
        let mut input = vec![json!({"role": "user", "content": "hello"})];
        input.extend(first["output"].as_array().unwrap().clone());
        input.push(json!({"type": "function_call_output", "call_id": "c", "output": "mine"}));
        let body = json!({"model": "m", "tools": tools, "input": input});
        plain(&gw, "/v1/responses", body).await;
        let item = gw.model.asked()[1].body["input"][1].clone();
        let seal = json!([item["id"], item["encrypted_content"]]);
        assert_eq!(seal, json!(["rs_1", "sealed 1"]));
        gw.join().await;
    }
}

#[tokio::test]
async fn the_signature_of_a_text_goes_back_through_responses_and_is_no_block_of_a_message() {
    for is_streamed in [false, true] {
        let gw = over("gemini", vec![say("one"), say("two"), say("three")]).await;
        let body = json!({"model": "m", "input": "hello"});
        let first = match is_streamed {
            false => plain(&gw, "/v1/responses", body).await,
            true => streamed(&gw, "/v1/responses", body).await.pop().unwrap()["response"].clone(),
        };
        let mut input = vec![json!({"role": "user", "content": "hello"})];
        input.extend(first["output"].as_array().unwrap().clone());
        input.push(json!({"role": "user", "content": "and?"}));
        plain(&gw, "/v1/responses", json!({"model": "m", "input": input})).await;
        let said = json!([{"text": "one"}, {"text": "", "thoughtSignature": "TEXT-0"}]);
        let asked = gw.model.asked().remove(1).body;
        assert_eq!(asked["contents"][1]["parts"], said);
        let messages = json!([{"role": "user", "content": "x"}]);
        let body = json!({"model": "m", "max_tokens": 100, "messages": messages});
        let answer = match is_streamed {
            false => plain(&gw, "/v1/messages", body).await,
            true => message(&streamed(&gw, "/v1/messages", body).await),
        };
        let blocks = answer["content"].as_array().unwrap().iter();
        let kinds: Vec<&str> = blocks
            .map(|block| block["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["thinking", "text"], "{is_streamed}");
        gw.join().await;
    }
}

#[tokio::test]
async fn text_between_a_call_and_its_arguments_costs_none_of_them() {
    let deltas = [
        json!({"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "own", "arguments": ""}}]}),
        json!({"content": "so"}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\":1}"}}]}),
    ];
    let chunk = |delta: &Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"id": "c", "choices": [choice]}))
    };
    let mut body: Vec<String> = deltas
        .iter()
        .map(|delta| chunk(delta, Value::Null))
        .collect();
    body.push(chunk(&json!({}), json!("tool_calls")));
    body.push("data: [DONE]\n\n".to_owned());
    let body: Vec<&str> = body.iter().map(String::as_str).collect();
    let gw = over("chat", vec![events(&body, Then::End)]).await;
    let tools = json!([{"name": "own", "input_schema": {"type": "object"}}]);
    let messages = json!([{"role": "user", "content": "x"}]);
    let request = json!({"model": "m", "max_tokens": 100, "tools": tools, "messages": messages});
    let answer = message(&streamed(&gw, "/v1/messages", request).await);
    let blocks = answer["content"].as_array().unwrap().iter();
    let calls: Vec<&Value> = blocks.filter(|block| block["type"] == "tool_use").collect();
    assert_eq!(calls[0]["input"], json!({"x": 1}));
    assert!(answer["content"].to_string().contains("so"));
    gw.join().await;
}

#[tokio::test]
async fn what_a_request_refers_to_counts_as_its_body() {
    let gw = toolway(Model::start([say("one")]).await)
        .config(&format!("max_body_bytes = 100000\n{}", upstream("chat")))
        .server("calc", tools().add())
        .start()
        .await;
    let text = "x".repeat(40_000);
    let item = json!({"id": "big", "type": "message", "role": "user", "content": text});
    plain(&gw, "/v1/responses", json!({"model": "m", "input": [item]})).await;
    let reference = json!({"id": "big"});
    let body = json!({"model": "m", "input": [reference, reference, reference]});
    let response = post(&gw, "/v1/responses", &body).await;
    assert_eq!(response.status(), 400);
    assert_eq!(gw.model.asked().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error() {
    let busy = r#"{"error":{"type":"overloaded_error","message":"busy"}}"#;
    for api in ["responses", "anthropic", "gemini"] {
        for body in [busy, "{}", r#"{"choices":[]}"#] {
            let gw = over(api, vec![raw(200, "application/json", body)]).await;
            let messages = json!([{"role": "user", "content": "x"}]);
            let request = json!({"model": "m", "max_tokens": 9, "messages": messages});
            let response = post(&gw, "/v1/messages", &request).await;
            assert!(response.status().is_server_error(), "{api} {body}");
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn tokens_are_estimated_with_what_the_request_refers_to() {
    let gw = over("chat", vec![say("one")]).await;
    let text = "word ".repeat(1000);
    let first = plain(&gw, "/v1/responses", json!({"model": "m", "input": text})).await;
    let path = "/v1/responses/input_tokens";
    let count = async |body| {
        let counted = plain(&gw, path, body).await;
        assert_eq!(counted["object"], "response.input_tokens");
        counted["input_tokens"].as_u64().unwrap()
    };
    assert!(count(json!({"model": "m", "input": "short"})).await < 100);
    let body = json!({"model": "m", "input": "short", "previous_response_id": first["id"]});
    assert!((1000..2000).contains(&count(body).await));
    let unknown = json!({"model": "m", "input": "x", "previous_response_id": "resp_1"});
    let response = post(&gw, path, &unknown).await;
    assert_eq!(response.status(), 400);
    assert_eq!(gw.model.asked().len(), 1, "no model is asked");
    gw.join().await;
}

#[tokio::test]
async fn without_tools_an_upstream_of_responses_counts_itself() {
    let gw = toolway(Model::start([]).await).config(&upstream("responses"));
    let gw = gw.start().await;
    let body = json!({"model": "m", "input": "x"});
    let response = post(&gw, "/v1/responses/input_tokens", &body).await;
    assert_eq!(response.status(), 201, "the upstream's own answer");
    gw.join().await;
}

#[tokio::test]
async fn an_upstream_of_messages_counts_itself_if_it_can() {
    for (refused, status) in [(vec![], 201), (vec!["counts"], 200)] {
        let model = Model::start([]).await.refusing(&refused);
        let gw = toolway(model).config(&upstream("anthropic")).start().await;
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "one two"}]});
        let response = post(&gw, "/v1/messages/count_tokens", &body).await;
        assert_eq!(response.status(), status);
        let counted: Value = response.json().await.unwrap();
        assert_eq!(counted["input_tokens"].is_u64(), status == 200);
        gw.join().await;
    }
}

#[tokio::test]
async fn an_upstream_of_responses_compacts_what_is_kept_here() {
    let gw = over("responses", vec![say("one")]).await;
    let first = plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "input": "first"}),
    )
    .await;
    let body = json!({"model": "m", "input": "x", "previous_response_id": first["id"]});
    let response = post(&gw, "/v1/responses/compact", &body).await;
    assert_eq!(response.status(), 201, "the upstream's own answer");
    let echoed: Value = response.json().await.unwrap();
    assert!(
        echoed["uri"]
            .as_str()
            .unwrap()
            .ends_with("/responses/compact")
    );
    let sent: Value = serde_json::from_str(echoed["body"].as_str().unwrap()).unwrap();
    let input = sent["input"].as_array().unwrap();
    assert_eq!(input.len(), 4, "{sent}");
    assert_eq!(input[1]["encrypted_content"], "sealed 1");
    assert!(sent.get("previous_response_id").is_none());
    gw.join().await;
}

#[tokio::test]
async fn no_other_upstream_compacts() {
    for (api, body, status, param) in [
        ("chat", json!({"model": "m", "input": "x"}), 400, "model"),
        ("responses", json!({"input": "x"}), 400, "model"),
    ] {
        let gw = over(api, Vec::new()).await;
        let response = post(&gw, "/v1/responses/compact", &body).await;
        assert_eq!(response.status(), status);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
        gw.join().await;
    }
}

/// The items of an output or the blocks of a message without what differs from answer to answer: ids, seals, and the
/// numbers in the thoughts.
fn said(content: &Value) -> Vec<Value> {
    let content = content.to_string();
    let content = content.replace(|c: char| c.is_ascii_digit(), "1");
    let mut said: Vec<Value> = serde_json::from_str(&content).unwrap();
    for item in &mut said {
        for key in ["id", "call_id", "encrypted_content", "signature"] {
            item.as_object_mut().unwrap().remove(key);
        }
    }
    said
}

#[tokio::test]
async fn a_whole_answer_has_the_order_of_the_stream_with_gateway_tools_and_without() {
    for api in ["responses", "anthropic", "gemini"] {
        for has_server in [true, false] {
            let turns = || say_and_call("Let me see. ", &[("c", "own", json!({"a": 1}))]);
            let script = vec![turns(), turns(), turns(), turns()];
            let gw = toolway(Model::start(script).await).config(&upstream(api));
            let gw = match has_server {
                true => gw.server("calc", tools().add()).start().await,
                false => gw.start().await,
            };
            let body = json!({"model": "claude-x", "max_tokens": 1000,
                "tools": [{"name": "own", "input_schema": {"type": "object"}}],
                "messages": [{"role": "user", "content": "hello"}]});
            let whole = plain(&gw, "/v1/messages", body.clone()).await;
            let mut events = streamed(&gw, "/v1/messages", body).await;
            // Without tools, Anthropic's own stream is passed on.
            events.retain(|event| event["type"] != "ping");
            let streamed_message = message(&events);
            let whole_content = said(&whole["content"]);
            assert_eq!(whole_content, said(&streamed_message["content"]), "{api}");
            assert_eq!(whole["stop_reason"], streamed_message["stop_reason"]);
            if api == "anthropic" {
                let kinds = kinds(&whole_content);
                assert_eq!(kinds, ["thinking", "text", "thinking", "tool_use"]);
            }

            let body = json!({"model": "claude-x", "input": "hello", "tools": [{"type": "function",
                "name": "own", "parameters": {"type": "object"}, "strict": false}]});
            let whole = plain(&gw, "/v1/responses", body.clone()).await;
            let events = streamed(&gw, "/v1/responses", body).await;
            let last = &events.last().unwrap()["response"];
            let whole_output = said(&whole["output"]);
            assert_eq!(whole_output, said(&last["output"]), "{api}");
            if api == "anthropic" {
                let kinds = kinds(&whole_output);
                assert_eq!(
                    kinds,
                    ["reasoning", "message", "reasoning", "function_call"]
                );
            }
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn a_whole_answer_that_breaks_off_after_a_call_is_not_asked_for_again() {
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body) in [
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 1000, "messages": messages}),
        ),
        ("/v1/responses", json!({"model": "m", "input": "hello"})),
    ] {
        let script = vec![
            call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
            events(
                &["event: ping\ndata: {\"type\": \"ping\"}\n\n"],
                Then::Break,
            ),
        ];
        let gw = over("anthropic", script).await;
        let response = post(&gw, path, &body).await;
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["x-should-retry"], "false");
        let body: Value = response.json().await.unwrap();
        assert!(body["error"]["message"].is_string(), "{body}");
        assert_eq!(gw.servers[0].calls().len(), 1);
        gw.join().await;
    }
}
