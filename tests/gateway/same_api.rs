//! What a client of Responses or Messages says reaches an upstream of its own API also beside gateway tools.

use serde_json::{Value, json};

use crate::{
    dialects::{over, plain, post, streamed},
    model::{Reply, call, raw, say},
};

fn two_rounds() -> Vec<Reply> {
    vec![
        call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
        say("It is 3."),
    ]
}

fn with(mut request: Value, members: &[(&str, Value)]) -> Value {
    for (name, value) in members {
        request[*name] = value.clone();
    }
    request
}

#[tokio::test]
async fn items_that_say_the_same_keep_what_each_has_besides() {
    let gw = over("responses", vec![say("one"), say("two")]).await;
    let with_picture = |data: &str| {
        let picture = json!({"type": "input_image", "image_url": data, "detail": "high"});
        let content = json!([{"type": "input_text", "text": "What is this?"}, picture]);
        json!([{"role": "user", "content": content}])
    };
    let pictures = ["data:image/png;base64,YQ==", "data:image/png;base64,Yg=="];
    let body = json!({"model": "m", "input": with_picture(pictures[0])});
    let first = plain(&gw, "/v1/responses", body).await;
    let body = json!({"model": "m", "input": with_picture(pictures[1]), "previous_response_id": first["id"]});
    plain(&gw, "/v1/responses", body).await;
    let asked = &gw.model.asked()[1].body["input"];
    let sent = asked.as_array().unwrap().iter();
    let sent: Vec<&str> = sent
        .filter_map(|item| item["content"][1]["image_url"].as_str())
        .collect();
    assert_eq!(sent, pictures, "{asked}");
    gw.join().await;
}

#[tokio::test]
async fn every_member_of_a_response_reaches_its_upstream_in_every_round() {
    let sealed = "reasoning.encrypted_content";
    let logprobs = "message.output_text.logprobs";
    let cases = [
        ("metadata", json!({"order": "7"})),
        ("truncation", json!("auto")),
        ("reasoning", json!({"effort": "low", "summary": "auto"})),
        ("max_tool_calls", json!(3)),
        ("prompt_cache_key", json!("k")),
        ("service_tier", json!("flex")),
        ("safety_identifier", json!("s")),
        (
            "text",
            json!({"verbosity": "low", "format": {"type": "text"}}),
        ),
        ("include", json!([sealed, logprobs])),
        ("top_logprobs", json!(2)),
        (
            "context_management",
            json!([{"type": "compaction", "compact_threshold": 9}]),
        ),
        ("instructions", json!("be brief")),
        ("newer_than_toolway", json!({"a": [1, null]})),
    ];
    let gw = over("responses", two_rounds()).await;
    let request = with(
        json!({"model": "m", "input": "hello", "top_p": 0.5}),
        &cases,
    );
    let response = plain(&gw, "/v1/responses", request).await;
    let asked = gw.model.asked();
    assert_eq!(asked.len(), 2);
    for (name, value) in &cases {
        for asked in &asked {
            assert_eq!(asked.body[name], *value, "{name}");
        }
    }
    let echoed = cases.iter().filter(|(name, _)| {
        !matches!(
            *name,
            "include" | "context_management" | "newer_than_toolway"
        )
    });
    for (name, value) in echoed {
        assert_eq!(response[name], *value, "{name}");
    }
    gw.join().await;
}

#[tokio::test]
async fn what_toolway_answers_for_itself_is_not_the_upstreams() {
    let gw = over("responses", two_rounds()).await;
    let own = [("store", json!(true)), ("background", json!(false))];
    let request = with(json!({"model": "m", "input": "hello"}), &own);
    plain(&gw, "/v1/responses", request).await;
    for asked in gw.model.asked() {
        assert_eq!(asked.body["store"], false);
        assert_eq!(asked.body.get("background"), None);
    }
    gw.join().await;
}

#[tokio::test]
async fn items_and_tools_of_a_response_keep_what_a_chat_has_no_word_for() {
    let gw = over("responses", two_rounds()).await;
    let said = json!({"type": "message", "role": "assistant", "phase": "commentary", "id": "msg_1",
        "content": [{"type": "output_text", "text": "Hm.", "annotations": []}]});
    let called = json!({"type": "function_call", "call_id": "o", "name": "own", "arguments": "{}",
        "caller": {"type": "direct"}});
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let result = json!({"type": "function_call_output", "call_id": "o", "output": "x"});
    let file = json!({"type": "input_file", "file_id": "file_1"});
    let asked = json!({"type": "message", "role": "user", "content": [file, {"type": "input_text", "text": "?"}]});
    let own = json!({"type": "function", "name": "own", "parameters": {"type": "object"}, "strict": false,
        "output_schema": {"type": "string"}});
    let web = json!({"type": "web_search", "search_context_size": "low"});
    let mut request =
        json!({"model": "m", "input": [said, called, result, search, asked], "tools": [web, own]});
    let response = post(&gw, "/v1/responses", &request).await;
    assert_eq!(response.headers().get("x-toolway-warning"), None);
    request["input"][0].as_object_mut().unwrap().remove("id");
    for asked in gw.model.asked() {
        let input = asked.body["input"].as_array().unwrap();
        assert_eq!(input[..5], request["input"].as_array().unwrap()[..]);
        let tools = asked.body["tools"].as_array().unwrap();
        assert_eq!(tools[..2], request["tools"].as_array().unwrap()[..]);
        assert_eq!(tools[2]["name"], "calc__add");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_model_of_another_api_is_not_told_and_the_client_is_warned() {
    for api in ["chat", "auto"] {
        let gw = over(api, vec![say("hi")]).await;
        let request = json!({"model": "m", "input": [{"role": "assistant", "content": "Hm."}, {"type": "web_search_call", "id": "ws_1"},
            {"role": "user", "content": "?"}, {"type": "web_search_call", "id": "ws_2"}],
            "tools": [{"type": "web_search"}], "metadata": {"a": "b"}});
        let response = post(&gw, "/v1/responses", &request).await;
        assert_eq!(
            response.headers()["x-toolway-warning"],
            "not understood and left out: tool web_search, item web_search_call"
        );
        let body = &gw.model.asked()[0].body;
        let said =
            json!([{"role": "assistant", "content": "Hm."}, {"role": "user", "content": "?"}]);
        assert_eq!(body["messages"], said, "{api}");
        assert_eq!(body.get("metadata"), None);
        gw.join().await;
    }
}

#[tokio::test]
async fn every_member_of_a_message_reaches_its_upstream_in_every_round() {
    let cached = json!({"type": "ephemeral", "ttl": "1h"});
    let cases = [
        ("metadata", json!({"user_id": "u", "more": 1})),
        ("service_tier", json!("standard_only")),
        ("container", json!("container_1")),
        (
            "context_management",
            json!({"edits": [{"type": "clear_thinking_20251015"}]}),
        ),
        ("cache_control", cached.clone()),
        (
            "thinking",
            json!({"type": "adaptive", "display": "omitted"}),
        ),
        ("output_config", json!({"effort": "max"})),
        ("top_k", json!(3)),
        ("inference_geo", json!("eu")),
        (
            "system",
            json!([{"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
                {"type": "text", "text": "be brief", "cache_control": cached}]),
        ),
    ];
    let gw = over("anthropic", two_rounds()).await;
    let request = json!({"model": "claude-x", "max_tokens": 9000,
        "messages": [{"role": "user", "content": "hello"}]});
    let request = with(request, &cases);
    let sent = gw.http.post(format!("{}/v1/messages?beta=true", gw.base));
    let sent = sent.header("anthropic-beta", "a-2026-01-01,b-2026-02-02");
    let sent = sent.body(request.to_string()).send().await.unwrap();
    assert_eq!(sent.status(), 200);
    let asked = gw.model.asked();
    assert_eq!(asked.len(), 2);
    for (name, value) in &cases {
        for asked in &asked {
            assert_eq!(asked.body[name], *value, "{name}");
        }
    }
    for asked in &asked {
        assert_eq!(asked.headers["anthropic-beta"], "a-2026-01-01,b-2026-02-02");
    }
    gw.join().await;
}

#[tokio::test]
async fn blocks_and_tools_of_a_message_keep_what_a_chat_has_no_word_for() {
    let cached = json!({"type": "ephemeral"});
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}});
    let found =
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let cited = json!({"type": "text", "text": "So.", "citations": [{"type": "web_search_result_location", "url": "u"}]});
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "signed 0"});
    let called =
        json!({"type": "tool_use", "id": "o", "name": "own", "input": {}, "cache_control": cached});
    let result = json!({"type": "tool_result", "tool_use_id": "o", "is_error": true, "cache_control": cached,
        "content": [{"type": "text", "text": "no"}, {"type": "tool_reference", "tool_name": "own"}]});
    let source = json!({"type": "search_result", "source": "s", "title": "t", "content": []});
    let page = json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"},
        "citations": {"enabled": true}});
    let messages = json!([
        {"role": "user", "content": [source, {"type": "text", "text": "look", "cache_control": cached}]},
        {"role": "assistant", "content": [thought, search, found, cited]},
        {"role": "user", "content": [page]},
        {"role": "assistant", "content": [thought, called]},
        {"role": "user", "content": [result]},
    ]);
    let own = json!({"name": "own", "input_schema": {"type": "object"}, "cache_control": cached, "input_examples": [{}]});
    let web = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 2});
    let gw = over("anthropic", two_rounds()).await;
    let request =
        json!({"model": "claude-x", "max_tokens": 9000, "messages": messages, "tools": [web, own]});
    let response = post(&gw, "/v1/messages", &request).await;
    assert_eq!(response.headers().get("x-toolway-warning"), None);
    let asked = gw.model.asked();
    assert_eq!(asked.len(), 2);
    for asked in asked {
        let said = asked.body["messages"].as_array().unwrap();
        assert_eq!(said[..5], request["messages"].as_array().unwrap()[..]);
        let tools = asked.body["tools"].as_array().unwrap();
        assert_eq!(tools[..2], request["tools"].as_array().unwrap()[..]);
        assert_eq!(tools[2]["name"], "calc__add");
    }
    gw.join().await;
}

/// The answers of a model that uses a tool of its provider's before it calls one of the gateway's.
pub fn searching(path: &str, is_streamed: bool) -> (Value, Value, Vec<Reply>) {
    let (first, second, answers) = match path {
        "/v1/responses" => {
            let search = json!({"type": "tool_search_call", "id": "tsc_1", "call_id": null, "execution": "server",
                "status": "completed", "arguments": {"query": "add"}});
            let found = json!({"type": "tool_search_output", "id": "tso_1", "call_id": null, "execution": "server",
                "status": "completed", "tools": []});
            let call = json!({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "calc__add",
                "arguments": "{\"a\":1,\"b\":2}"});
            let text = json!({"type": "message", "id": "msg_1", "role": "assistant",
                "content": [{"type": "output_text", "text": "It is 3.", "annotations": []}]});
            let response = |output: Value| {
                json!({"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
                    "output": output})
            };
            let answers = [
                response(json!([search, found, call])),
                response(json!([text])),
            ];
            (search, found, answers)
        }
        _ => {
            let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25",
                "input": {"query": "add"}});
            let references = json!([{"type": "tool_reference", "tool_name": "calc__add"}]);
            let found = json!({"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1",
                "content": {"type": "tool_search_tool_search_result", "tool_references": references}});
            let call = json!({"type": "tool_use", "id": "c", "name": "calc__add", "input": {"a": 1, "b": 2}});
            let message = |content: Value, stop: &str| {
                json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": content,
                    "stop_reason": stop, "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 1}})
            };
            let thought = json!({"type": "thinking", "thinking": "hm", "signature": "signed 1"});
            let text = json!([{"type": "text", "text": "It is 3."}]);
            let first = message(json!([thought, search, found, call]), "tool_use");
            (search, found, [first, message(text, "end_turn")])
        }
    };
    let replies = answers.iter().map(|answer| match is_streamed {
        false => raw(200, "application/json", answer.to_string()),
        true => raw(200, "text/event-stream", events(answer)),
    });
    (first, second, replies.collect())
}

/// An answer as the events of a stream.
fn events(answer: &Value) -> String {
    let mut events = Vec::new();
    if answer["object"] == "response" {
        events.push(json!({"type": "response.created", "response": {"id": "resp_1", "model": "m", "created_at": 1}}));
        for (at, item) in answer["output"].as_array().unwrap().iter().enumerate() {
            for kind in ["added", "done"] {
                let kind = format!("response.output_item.{kind}");
                events.push(json!({"type": kind, "output_index": at, "item": item}));
            }
        }
        events.push(json!({"type": "response.completed", "response": answer}));
    } else {
        events.push(json!({"type": "message_start", "message": {"id": "msg_1", "model": "claude-x", "usage": {}}}));
        for (at, block) in answer["content"].as_array().unwrap().iter().enumerate() {
            let mut start = block.clone();
            let mut deltas = Vec::new();
            if let Some(input) = block.get("input") {
                start["input"] = json!({});
                let input = input.to_string();
                let (one, other) = input.split_at(3);
                deltas.extend(
                    [one, other].map(|it| json!({"type": "input_json_delta", "partial_json": it})),
                );
            }
            events
                .push(json!({"type": "content_block_start", "index": at, "content_block": start}));
            for delta in deltas {
                events.push(json!({"type": "content_block_delta", "index": at, "delta": delta}));
            }
            events.push(json!({"type": "content_block_stop", "index": at}));
        }
        events.push(json!({"type": "message_delta", "delta": {"stop_reason": answer["stop_reason"]}, "usage": {}}));
        events.push(json!({"type": "message_stop"}));
    }
    let events = events.iter().map(|event| {
        let kind = event["type"].as_str().unwrap();
        format!("event: {kind}\ndata: {event}\n\n")
    });
    events.collect()
}

#[tokio::test]
async fn what_the_providers_own_tools_did_goes_back_to_it_and_reaches_the_client() {
    for (api, path) in [
        ("responses", "/v1/responses"),
        ("anthropic", "/v1/messages"),
    ] {
        for is_streamed in [false, true] {
            let (search, found, replies) = searching(path, is_streamed);
            let gw = over(api, replies).await;
            let request = match api {
                "responses" => json!({"model": "m", "input": "1 + 2?"}),
                _ => {
                    json!({"model": "claude-x", "max_tokens": 9000, "messages": [{"role": "user", "content": "1 + 2?"}]})
                }
            };
            let seen: Vec<Value> = if is_streamed {
                let events = streamed(&gw, path, request).await;
                let whole = |event: &Value| {
                    let item = (event["type"] == "response.output_item.done")
                        .then(|| event["item"].clone());
                    let block = (event["type"] == "content_block_start")
                        .then(|| event["content_block"].clone());
                    item.or(block)
                };
                events.iter().filter_map(whole).collect()
            } else {
                let answer = plain(&gw, path, request).await;
                let list = answer.get("output").or(answer.get("content"));
                list.unwrap().as_array().unwrap().clone()
            };
            let at = seen.iter().position(|it| it["id"] == search["id"]);
            let at = at.unwrap_or_else(|| panic!("{api} {is_streamed}: {seen:?}"));
            if !(is_streamed && api == "anthropic") {
                assert_eq!(seen[at], search);
            }
            assert_eq!(seen[at + 1], found);
            let second = &gw.model.asked()[1].body;
            let list = second
                .get("input")
                .or(second["messages"].get(1).map(|it| &it["content"]));
            let sent = list.unwrap().as_array().unwrap();
            let at = sent.iter().position(|it| *it == search).unwrap();
            assert_eq!(sent[at + 1], found, "{api} {is_streamed}");
            assert!(matches!(
                sent[at + 2]["type"].as_str(),
                Some("tool_use" | "function_call")
            ));
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn a_kept_response_is_continued_with_what_the_providers_own_tools_did() {
    let (search, found, mut replies) = searching("/v1/responses", false);
    replies.push(say("and 4"));
    let gw = over("responses", replies).await;
    let first = plain(
        &gw,
        "/v1/responses",
        json!({"model": "m", "input": "1 + 2?"}),
    )
    .await;
    let next = json!({"model": "m", "input": "and 2 + 2?", "previous_response_id": first["id"]});
    plain(&gw, "/v1/responses", next).await;
    let asked = gw.model.asked();
    let sent = asked[2].body["input"].as_array().unwrap();
    assert!(sent.contains(&search) && sent.contains(&found), "{sent:?}");
    gw.join().await;
}

#[tokio::test]
async fn a_client_of_messages_gives_back_what_it_got_and_the_model_reads_it_once() {
    let (search, found, replies) = searching("/v1/messages", false);
    let mut script = vec![replies.into_iter().next().unwrap()];
    script.push(call(&[("o", "own", json!({}))]));
    script.push(say("done"));
    let gw = over("anthropic", script).await;
    let question = json!({"role": "user", "content": "1 + 2?"});
    let own = json!([{"name": "own", "input_schema": {"type": "object"}}]);
    let request =
        json!({"model": "claude-x", "max_tokens": 9000, "tools": own, "messages": [question]});
    let first = plain(&gw, "/v1/messages", request.clone()).await;
    let id = first["content"].as_array().unwrap().last().unwrap()["id"].clone();
    let result = json!({"type": "tool_result", "tool_use_id": id, "content": "mine"});
    let request = with(
        request,
        &[(
            "messages",
            json!([question, {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [result]}]),
        )],
    );
    plain(&gw, "/v1/messages", request).await;
    let sent = gw.model.asked()[2].body.to_string();
    for block in [&search, &found] {
        assert_eq!(sent.matches(&block.to_string()).count(), 1, "{sent}");
    }
    gw.join().await;
}

#[tokio::test]
async fn tokens_of_every_round_are_told_apart_by_what_they_cost() {
    let usage = json!({"input_tokens": 5, "cache_creation_input_tokens": 70, "cache_read_input_tokens": 300,
        "output_tokens": 2});
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "signed 1"});
    let call =
        json!({"type": "tool_use", "id": "c", "name": "calc__add", "input": {"a": 1, "b": 2}});
    let rounds = [
        (json!([thought, call]), "tool_use"),
        (json!([{"type": "text", "text": "3"}]), "end_turn"),
    ];
    let rounds = rounds.map(|(content, stop)| {
        let answer = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x",
            "content": content, "stop_reason": stop, "usage": usage});
        raw(200, "application/json", answer.to_string())
    });
    let gw = over("anthropic", rounds.to_vec()).await;
    let request = json!({"model": "claude-x", "max_tokens": 9000, "messages": [{"role": "user", "content": "?"}]});
    let message = plain(&gw, "/v1/messages", request).await;
    let expected = json!({"input_tokens": 10, "cache_creation_input_tokens": 140, "cache_read_input_tokens": 600,
        "output_tokens": 4});
    assert_eq!(message["usage"], expected);
    gw.join().await;
}
