//! Models that do not speak chat completions, or not with tools. The scripted model is strict: it refuses what the real
//! APIs refuse.

mod gemini;
mod gemini_api;
mod messages_api;
mod responses_api;

use axum::{
    body::Bytes,
    http::{HeaderMap, Uri},
};
use serde_json::{Value, json};

use crate::{
    harness::{own_function, toolway},
    model::{Model, Then, call, events, raw, say, say_and_call},
    tools::tools,
};

/// An API besides chat completions.
pub enum Native {
    Responses,
    Messages,
    Gemini,
}

impl Native {
    /// The API whose route this is.
    pub fn of(path: &str) -> Option<Native> {
        match path {
            "/v1/responses" => Some(Native::Responses),
            "/v1/messages" => Some(Native::Messages),
            path if gemini_api::is_question(path) => Some(Native::Gemini),
            _ => None,
        }
    }

    /// What the API does not take, as (status, body). `refuses` has what this model does not take besides.
    pub fn refusal(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        body: &Value,
        refuses: &[&str],
    ) -> Option<(u16, Value)> {
        match self {
            Native::Messages => messages_api::refusal(headers, body),
            Native::Responses => responses_api::refusal(body, refuses),
            Native::Gemini => gemini_api::refusal(uri, headers, body, refuses),
        }
    }

    /// The request asks for a stream.
    pub fn is_streamed(uri: &Uri, body: &Value) -> bool {
        body["stream"] == json!(true) || gemini_api::is_streamed(uri)
    }

    /// A turn in the API's form.
    pub fn answer(
        &self,
        n: usize,
        text: &[String],
        calls: &[(String, String, String)],
        is_streamed: bool,
    ) -> (&'static str, Vec<Bytes>) {
        match self {
            Native::Messages => messages_api::answer(n, text, calls, is_streamed),
            Native::Responses => responses_api::answer(n, text, calls, is_streamed),
            Native::Gemini => gemini_api::answer(n, text, calls, is_streamed),
        }
    }
}

/// What OpenAI's newest models refuse as chat completions: tools, unless they do not think (`tools`), or at all
/// (`tools` and `none`).
pub fn refusal_of_chat(body: &Value, refuses: &[&str]) -> Option<(u16, Value)> {
    let has_tools = body["tools"]
        .as_array()
        .is_some_and(|tools| !tools.is_empty());
    let is_none = body["reasoning_effort"] == "none";
    let message = match (refuses.contains(&"tools") && has_tools, is_none) {
        (true, false) => {
            "Function tools with reasoning_effort are not supported for m in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        }
        (true, true) if refuses.contains(&"none") => {
            "Unsupported value: 'reasoning_effort' does not support 'none' with this model."
        }
        _ => return None,
    };
    let error = json!({"message": message, "type": "invalid_request_error", "param": "reasoning_effort", "code": null});
    Some((400, json!({"error": error})))
}

const RESPONSES: &str =
    "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\napi = \"responses\"\nretries = 0\n";

fn two_rounds() -> [crate::model::Reply; 2] {
    [
        say_and_call(
            "Let me see. ",
            &[("c", "calc__add", json!({"a": 1, "b": 2}))],
        ),
        say("It is 3."),
    ]
}

#[tokio::test]
async fn a_model_that_refuses_tools_in_a_chat_is_asked_as_a_response() {
    for is_streamed in [false, true] {
        let model = Model::start(two_rounds())
            .await
            .refusing(&["tools", "none"]);
        let gw = toolway(model).server("calc", tools().add()).start().await;
        if is_streamed {
            let body = json!({"stream_options": {"include_usage": true}});
            let answer = gw.streamed(body).await;
            assert_eq!(answer.text(), "Let me see. It is 3.");
            assert_eq!(answer.finishes(), ["stop"]);
            assert_eq!(answer.usages().len(), 1);
        } else {
            let answer = gw.plain(json!({})).await;
            let choice = &answer["choices"][0];
            assert_eq!(choice["message"]["content"], "Let me see. It is 3.");
            assert_eq!(choice["finish_reason"], "stop");
            assert_eq!(answer["usage"]["prompt_tokens"], 20 + 30);
            assert_eq!(
                answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                2 + 3
            );
        }
        let paths: Vec<String> = gw.model.asked().into_iter().map(|it| it.path).collect();
        assert_eq!(
            paths,
            ["/v1/chat/completions", "/v1/responses", "/v1/responses"],
            "the model is remembered"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn reasoning_goes_back_as_it_was_given_and_consecutive_items_are_one_message() {
    let calls = [
        ("c1", "calc__add", json!({"a": 1, "b": 2})),
        ("c2", "calc__add", json!({"a": 3, "b": 4})),
    ];
    let model = Model::start([call(&calls), say("3 and 7")]).await;
    let gw = toolway(model)
        .config(RESPONSES)
        .server("calc", tools().add())
        .start()
        .await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "3 and 7");
    let input = gw.model.asked()[1].body["input"].clone();
    assert_eq!(
        input,
        json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thinking 1"}],
             "encrypted_content": "sealed 1"},
            {"type": "function_call", "call_id": "c1", "name": "calc__add", "arguments": "{\"a\":1,\"b\":2}"},
            {"type": "function_call", "call_id": "c2", "name": "calc__add", "arguments": "{\"a\":3,\"b\":4}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "function_call_output", "call_id": "c2", "output": "3"},
        ])
    );
    gw.join().await;
}

#[tokio::test]
async fn without_a_responses_api_the_model_is_asked_not_to_think() {
    let model = Model::start([say("fine"), say("again")])
        .await
        .refusing(&["tools", "no responses"]);
    let gw = toolway(model).server("calc", tools().add()).start().await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 200);
    let warning = response.headers()["x-toolway-warning"].to_str().unwrap();
    assert!(warning.contains("does not think"), "{warning}");
    gw.plain(json!({})).await;
    let asked = gw.model.asked();
    let paths: Vec<&str> = asked.iter().map(|it| it.path.as_str()).collect();
    let chat = "/v1/chat/completions";
    assert_eq!(paths, [chat, "/v1/responses", chat, chat]);
    assert_eq!(asked[3].body["reasoning_effort"], "none");
    gw.join().await;
}

#[tokio::test]
async fn where_nothing_helps_the_client_reads_the_first_refusal() {
    let model = Model::start([])
        .await
        .refusing(&["tools", "none", "no responses"]);
    let gw = toolway(model).server("calc", tools().add()).start().await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 400);
    let text = response.text().await.unwrap();
    assert!(text.contains("use /v1/responses"), "{text}");
    gw.join().await;
}

#[tokio::test]
async fn a_model_that_does_not_think_is_not_asked_for_encrypted_reasoning_again() {
    let model = Model::start([say("one"), say("two")])
        .await
        .refusing(&["seals"]);
    let gw = toolway(model).config(RESPONSES).start().await;
    for _ in 0..2 {
        gw.plain(json!({})).await;
    }
    let asked = gw.model.asked();
    let includes: Vec<bool> = asked
        .iter()
        .map(|it| it.body.get("include").is_some())
        .collect();
    assert_eq!(includes, [true, false, false]);
    gw.join().await;
}

#[tokio::test]
async fn what_responses_cannot_say_is_named_and_n_is_refused() {
    let model = Model::start([say("fine")]).await;
    let gw = toolway(model).config(RESPONSES).start().await;
    let body = json!({"stop": ["x"], "seed": 1, "logit_bias": {}, "temperature": 0.5, "max_tokens": 5,
        "reasoning_effort": "low", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "user": "u"});
    let response = gw.send(body, &[]).await;
    let warning = response.headers()["x-toolway-warning"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(warning, "m was asked without: stop, seed, logit_bias");
    assert_eq!(response.status(), 200);
    let asked = gw.model.asked().remove(0).body;
    assert_eq!(
        asked["max_output_tokens"], 16,
        "the least that the API takes"
    );
    assert_eq!(asked["text"]["format"]["type"], "json_schema");
    assert_eq!(asked["reasoning"], json!({"effort": "low"}));
    let response = gw.send(json!({"n": 2}), &[]).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "n");
    gw.join().await;
}

#[tokio::test]
async fn the_clients_own_calls_and_a_mixed_turn_work_over_responses() {
    let model = Model::start([
        call(&[
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "own", json!({"x": 1})),
        ]),
        say("both"),
    ])
    .await;
    let gw = toolway(model)
        .config(RESPONSES)
        .server("calc", tools().add())
        .start()
        .await;
    let own = json!([own_function("own")]);
    let answer = gw.streamed(json!({"tools": own})).await;
    let calls = answer.calls();
    assert_eq!(calls.len(), 1, "the client sees its own call only");
    let (id, name, arguments) = &calls[0];
    assert_eq!((name.as_str(), arguments.as_str()), ("own", "{\"x\":1}"));
    let history = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "own", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": id, "content": "mine"},
    ]);
    let answer = gw
        .streamed(json!({"tools": own, "messages": history}))
        .await;
    assert_eq!(answer.text(), "both");
    let input = gw.model.asked()[1].body["input"].clone();
    let kinds: Vec<&str> = input
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    let expected = [
        "message",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ];
    assert_eq!(kinds, expected);
    gw.join().await;
}

#[tokio::test]
async fn a_failure_within_the_answer_is_an_error_for_the_client() {
    let failed = r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"slow down"}}}"#;
    let failed = format!("event: response.failed\ndata: {failed}\n\n");
    let cut = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\n\n";
    for (event, expected) in [
        (failed.as_str(), "slow down"),
        (cut, "ended before it was complete"),
    ] {
        let model = Model::start([
            events(&[event], Then::End),
            raw(200, "application/json", "{}"),
        ])
        .await;
        let gw = toolway(model).config(RESPONSES).start().await;
        let response = gw.send(json!({"stream": true}), &[]).await;
        let text = response.text().await.unwrap();
        assert!(text.contains(expected), "{text}");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_model_that_begins_and_says_nothing_more_is_silent() {
    let created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\n\n";
    let model = Model::start([events(&[created], Then::Silence)]).await;
    let gw = toolway(model)
        .config(&format!("{RESPONSES}silence_timeout = \"300ms\"\n"))
        .start()
        .await;
    let response = gw.send(json!({"stream": true}), &[]).await;
    let text = response.text().await.unwrap();
    assert!(text.contains("silent"), "{text}");
    gw.join().await;
}

const ANTHROPIC: &str = "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\napi = \"anthropic\"\napi_key = \"sk-ant\"\nretries = 0\n";

#[tokio::test]
async fn a_loop_over_anthropic_gives_thoughts_back_unchanged_and_all_results_in_one_message() {
    for is_streamed in [false, true] {
        let calls = [
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "calc__add", json!({"a": 3, "b": 4})),
        ];
        let model = Model::start([say_and_call("Let me see. ", &calls), say("3 and 3")]).await;
        let gw = toolway(model)
            .config(ANTHROPIC)
            .server("calc", tools().add())
            .start()
            .await;
        let messages = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ]);
        let body = json!({"model": "claude-opus-4-8", "messages": messages, "temperature": 0.2,
            "stream_options": {"include_usage": true}});
        if is_streamed {
            let answer = gw.streamed(body).await;
            assert_eq!(answer.text(), "Let me see. 3 and 3");
            assert_eq!(answer.finishes(), ["stop"]);
            assert_eq!(
                answer.usages()[0]["usage"]["prompt_tokens"],
                10 + 1 + 20 + 2,
                "cached tokens count"
            );
        } else {
            let answer = gw.plain(body).await;
            let choice = &answer["choices"][0];
            assert_eq!(choice["message"]["content"], "Let me see. 3 and 3");
            assert_eq!(
                choice["message"]["reasoning_content"],
                "thinking 1againthinking 2"
            );
            assert_eq!(
                answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                1 + 2
            );
        }
        let asked = gw.model.asked();
        let second = &asked[1].body;
        assert_eq!(
            second["system"],
            json!([{"type": "text", "text": "be brief"}])
        );
        assert_eq!(
            second["messages"],
            json!([
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "thinking 1", "signature": "signed 1"},
                    {"type": "text", "text": "Let me see. "},
                    {"type": "thinking", "thinking": "again", "signature": "signed again"},
                    {"type": "tool_use", "id": "c1", "name": "calc__add", "input": {"a": 1, "b": 2}},
                    {"type": "tool_use", "id": "c2", "name": "calc__add", "input": {"a": 3, "b": 4}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "3"}]},
                ]},
            ])
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_client_that_keeps_text_and_calls_only_does_not_lose_the_thoughts_of_its_turn() {
    for is_streamed in [false, true] {
        let calls = [("own_1", "own", json!({"x": 1}))];
        let model = Model::start([
            say_and_call("Let me see. ", &calls),
            say("done"),
            say("done"),
        ])
        .await;
        let gw = toolway(model)
            .config(ANTHROPIC)
            .server("calc", tools().add())
            .start()
            .await;
        let own = json!([own_function("own")]);
        if is_streamed {
            let answer = gw.streamed(json!({"tools": own})).await;
            assert_eq!(answer.calls().len(), 1);
        } else {
            let answer = gw.plain(json!({"tools": own})).await;
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        }
        let call = json!({"id": "own_1", "type": "function",
            "function": {"name": "own", "arguments": "{\"x\": 1}"}});
        let history = json!([
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "own_1", "content": "mine"},
        ]);
        let body = json!({"tools": own, "messages": history});
        assert_eq!(gw.streamed(body.clone()).await.text(), "done");
        let turn = gw.model.asked()[1].body["messages"][1]["content"].clone();
        assert_eq!(
            turn,
            json!([
                {"type": "thinking", "thinking": "thinking 1", "signature": "signed 1"},
                {"type": "text", "text": "Let me see. "},
                {"type": "thinking", "thinking": "again", "signature": "signed again"},
                {"type": "tool_use", "id": "own_1", "name": "own", "input": {"x": 1}},
            ])
        );
        let other = gw.send(body, &[("authorization", "Bearer another")]).await;
        assert_eq!(
            other.status(),
            400,
            "the model refuses another client's turn, which has no thoughts"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn sampling_that_a_new_claude_refuses_is_left_out_and_named() {
    let model = Model::start([say("fine"), say("fine")]).await;
    let gw = toolway(model).config(ANTHROPIC).start().await;
    let ask = async |model: &str| {
        let body = json!({"model": model, "temperature": 0.2, "max_tokens": 100});
        let response = gw.send(body, &[]).await;
        assert_eq!(response.status(), 200);
        let warning = response.headers().get("x-toolway-warning");
        warning.map(|warning| warning.to_str().unwrap().to_owned())
    };
    let warning = ask("claude-opus-4-8").await;
    assert_eq!(
        warning.as_deref(),
        Some("claude-opus-4-8 was asked without: temperature")
    );
    assert_eq!(ask("claude-sonnet-4-5").await, None);
    assert_eq!(gw.model.asked()[1].body["temperature"], 0.2);
    gw.join().await;
}

#[tokio::test]
async fn a_call_without_arguments_is_an_empty_object() {
    let model = Model::start([call(&[("c", "calc__add", json!("{}"))]), say("done")]).await;
    let gw = toolway(model)
        .config(ANTHROPIC)
        .server("calc", tools().add())
        .start()
        .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "done");
    assert_eq!(
        gw.model.asked()[1].body["messages"][1]["content"][1]["input"],
        json!({})
    );
    gw.join().await;
}

#[tokio::test]
async fn an_overloaded_provider_is_an_error_in_openais_form() {
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}"#;
    let event = format!("event: error\ndata: {body}\n\n");
    let model = Model::start([
        raw(529, "application/json", body),
        events(&[&event], Then::End),
    ])
    .await;
    let gw = toolway(model).config(ANTHROPIC).start().await;
    for is_streamed in [false, true] {
        let response = gw.send(json!({"stream": is_streamed}), &[]).await;
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["message"], "Overloaded");
        assert_eq!(error["error"]["type"], "overloaded_error");
    }
    gw.join().await;
}
