//! Models of Google's `generateContent`.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, own_function, toolway},
    model::{Model, Reply, Then, call, events, raw, say, say_and_call},
    tools::{Does, tools},
};

const GEMINI: &str = "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\napi = \"gemini\"\napi_key = \"AIza\"\nretries = 0\nmodalities = [\"image\"]\n";

async fn over(script: impl IntoIterator<Item = Reply>) -> Toolway {
    toolway(Model::start(script).await)
        .config(GEMINI)
        .server("calc", tools().add())
        .start()
        .await
}

fn question() -> Value {
    json!({"role": "user", "content": "hello"})
}

/// The contents that the model was sent in its `n`th request.
fn contents(gw: &Toolway, n: usize) -> Value {
    gw.model.asked()[n].body["contents"].clone()
}

/// An event of a stream, or a whole answer.
fn candidate(parts: &Value, finish: &str) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish}],
        "responseId": "r", "modelVersion": "gemini-3-test"})
}

fn event(data: &Value) -> String {
    format!("data: {data}\r\n\r\n")
}

fn stream(data: &[Value]) -> Reply {
    let pieces: Vec<String> = data.iter().map(event).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    events(&pieces, Then::End)
}

#[tokio::test]
async fn a_loop_over_gemini_keeps_signatures_at_their_calls_and_results_in_one_content() {
    for is_streamed in [false, true] {
        let calls = [
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "calc__add", json!({"a": 3, "b": 4})),
        ];
        let gw = over([
            say_and_call("Let me see. ", &calls),
            call(&[("c3", "calc__add", json!({"a": 5, "b": 6}))]),
            say("3 and 3"),
        ])
        .await;
        let messages = json!([{"role": "system", "content": "be brief"}, question()]);
        let body = json!({"model": "gemini-3-pro", "messages": messages, "stream_options": {"include_usage": true}});
        if is_streamed {
            let answer = gw.streamed(body).await;
            assert_eq!(answer.text(), "Let me see. 3 and 3");
            assert_eq!(answer.finishes(), ["stop"]);
            assert_eq!(answer.usages()[0]["usage"]["completion_tokens"], 3 * 3);
        } else {
            let answer = gw.plain(body).await;
            let message = &answer["choices"][0]["message"];
            assert_eq!(message["content"], "Let me see. 3 and 3");
            assert_eq!(
                message["reasoning_content"],
                "thinking 1thinking 2thinking 3"
            );
            let usage = &answer["usage"];
            assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1 + 2 + 3);
            assert_eq!(
                usage["completion_tokens_details"]["reasoning_tokens"],
                3 * 2
            );
        }
        let asked = gw.model.asked();
        let method = match is_streamed {
            true => "streamGenerateContent",
            false => "generateContent",
        };
        assert_eq!(asked[0].path, format!("/v1/models/gemini-3-pro:{method}"));
        assert_eq!(asked[0].headers["x-goog-api-key"], "AIza");
        assert_eq!(
            asked[2].body["systemInstruction"],
            json!({"parts": [{"text": "be brief"}]})
        );
        let result = |id: &str| json!({"functionResponse": {"id": id, "name": "calc__add", "response": {"output": "3"}}});
        assert_eq!(
            contents(&gw, 2),
            json!([
                {"role": "user", "parts": [{"text": "hello"}]},
                {"role": "model", "parts": [
                    {"text": "Let me see. "},
                    {"functionCall": {"id": "c1", "name": "calc__add", "args": {"a": 1, "b": 2}},
                     "thoughtSignature": "CALL-calc__add-a1b2"},
                    {"functionCall": {"id": "c2", "name": "calc__add", "args": {"a": 3, "b": 4}}},
                ]},
                {"role": "user", "parts": [result("c1"), result("c2")]},
                {"role": "model", "parts": [
                    {"functionCall": {"id": "c3", "name": "calc__add", "args": {"a": 5, "b": 6}},
                     "thoughtSignature": "CALL-calc__add-a5b6"},
                ]},
                {"role": "user", "parts": [result("c3")]},
            ])
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_client_that_drops_signatures_can_continue_a_mixed_turn_and_one_of_its_own() {
    for is_streamed in [false, true] {
        let both = [
            ("c1", "calc__add", json!({"a": 1, "b": 2})),
            ("c2", "own", json!({"x": 1})),
        ];
        let own = [("c3", "own", json!({"x": 2}))];
        let gw = over([call(&both), call(&own), say("done")]).await;
        let tools = json!([own_function("own")]);
        let mut messages = vec![question()];
        for expected in ["c2", "c3"] {
            let body = json!({"messages": messages, "tools": tools});
            let (id, arguments) = if is_streamed {
                let (id, _, arguments) = gw.streamed(body).await.calls().remove(0);
                (json!(id), json!(arguments))
            } else {
                let answer = gw.plain(body).await;
                let call = &answer["choices"][0]["message"]["tool_calls"][0];
                (call["id"].clone(), call["function"]["arguments"].clone())
            };
            assert!(id.as_str().unwrap().starts_with(expected));
            let call = json!({"id": id, "type": "function", "function": {"name": "own", "arguments": arguments}});
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": "mine"}));
        }
        let answer = gw
            .plain(json!({"messages": messages, "tools": tools}))
            .await;
        assert_eq!(answer["choices"][0]["message"]["content"], "done");
        let contents = contents(&gw, 2);
        let part = |content: usize, part: usize| &contents[content]["parts"][part];
        assert_eq!(part(1, 0)["thoughtSignature"], "CALL-calc__add-a1b2");
        assert_eq!(part(1, 1).get("thoughtSignature"), None);
        assert_eq!(part(2, 0)["functionResponse"]["response"]["output"], "3");
        assert_eq!(part(2, 1)["functionResponse"]["response"]["output"], "mine");
        assert_eq!(part(3, 0)["thoughtSignature"], "CALL-own-x2");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_client_that_keeps_what_it_gets_brings_every_signature_back() {
    for is_streamed in [false, true] {
        let gw = over([
            call(&[("c", "own", json!({"x": 1}))]),
            say("It is 3."),
            say("Bye."),
        ])
        .await;
        let tools = json!([own_function("own")]);
        let mut messages = vec![question()];
        for next in [
            json!({"role": "tool", "tool_call_id": "c", "content": "mine"}),
            json!({"role": "user", "content": "thanks"}),
        ] {
            let body = json!({"messages": messages, "tools": tools});
            let message = match is_streamed {
                false => gw.plain(body).await["choices"][0]["message"].clone(),
                true => put_together(&gw.streamed(body).await.chunks),
            };
            messages.extend([message, next]);
        }
        gw.plain(json!({"messages": messages, "tools": tools}))
            .await;
        let contents = contents(&gw, 2);
        assert_eq!(contents[1]["parts"][0]["thoughtSignature"], "CALL-own-x1");
        let said = match is_streamed {
            false => json!([{"text": "It is 3.", "thoughtSignature": "TEXT-8"}]),
            true => json!([{"text": "It is 3."}, {"text": "", "thoughtSignature": "TEXT-0"}]),
        };
        assert_eq!(contents[3]["parts"], said);
        gw.join().await;
    }
}

/// The message of a stream, with the members that many clients drop.
fn put_together(chunks: &[Value]) -> Value {
    let mut message = json!({"role": "assistant", "content": ""});
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        let text = delta["content"].as_str().unwrap_or_default();
        message["content"] = format!("{}{text}", message["content"].as_str().unwrap()).into();
        for member in ["reasoning_details", "tool_calls"] {
            for item in delta[member].as_array().into_iter().flatten() {
                let id = item.get("id");
                if member == "tool_calls" && id.is_none() {
                    let arguments = &mut message[member][0]["function"]["arguments"];
                    let more = item["function"]["arguments"].as_str().unwrap();
                    *arguments = format!("{}{more}", arguments.as_str().unwrap()).into();
                    continue;
                }
                let mut items = message[member].as_array().cloned().unwrap_or_default();
                items.push(item.clone());
                message[member] = items.into();
            }
        }
    }
    message
}

#[tokio::test]
async fn calls_without_ids_get_one_each() {
    for is_streamed in [false, true] {
        let calls = [
            ("", "calc__add", json!({"a": 1, "b": 2})),
            ("", "calc__add", json!({"a": 3, "b": 4})),
        ];
        let gw = over([call(&calls), say("done")]).await;
        let body = json!({"stream": is_streamed});
        let answer = gw.send(body, &[]).await.text().await.unwrap();
        assert!(answer.contains("done"), "{answer}");
        // The model refuses a result whose id is not that of its call.
        let parts = contents(&gw, 1)[1]["parts"].clone();
        let ids = [0, 1].map(|at: usize| parts[at]["functionCall"]["id"].clone());
        assert!(ids[0].is_string() && ids[0] != ids[1], "{parts}");
        gw.join().await;
    }
}

#[tokio::test]
async fn signatures_of_another_project_are_left_out() {
    let calls = [("c", "own", json!({}))];
    let model = Model::start([call(&calls), say("done")]).await;
    let gw = toolway(model).config(GEMINI).start().await;
    let tools = json!([own_function("own")]);
    let answer = gw.plain(json!({"tools": tools})).await;
    let message = &answer["choices"][0]["message"];
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "mine"});
    let messages = json!([question(), message, result]);
    let gw_model = gw.model.clone().refusing(&["signatures"]);
    let answer = gw
        .plain(json!({"tools": tools, "messages": messages}))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], "done");
    let asked = gw_model.asked();
    let signature = |n: usize| &asked[n].body["contents"][1]["parts"][0]["thoughtSignature"];
    assert_eq!(signature(1), "CALL-own-");
    assert_eq!(signature(2), "skip_thought_signature_validator");
    gw.join().await;
}

#[tokio::test]
async fn an_older_model_is_asked_as_it_wants() {
    let calls = [("c", "calc__add", json!({"a": 1, "b": 2}))];
    let gw = over([call(&calls), say("done")]).await;
    let format = json!({"type": "json_object"});
    let body =
        json!({"model": "gemini-2.5-flash", "reasoning_effort": "low", "response_format": format});
    gw.plain(body).await;
    let asked = gw.model.asked();
    assert_eq!(
        asked[1].body["generationConfig"],
        json!({"thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": true}})
    );
    let call = &asked[1].body["contents"][1]["parts"][0]["functionCall"];
    assert_eq!(call.get("id"), None);
    gw.join().await;
}

#[tokio::test]
async fn what_the_api_cannot_be_asked_for_is_named() {
    let gw = over([say("fine")]).await;
    let body = json!({"logit_bias": {"1": 2}, "parallel_tool_calls": false, "temperature": 0.5, "seed": 7});
    let response = gw.send(body, &[]).await;
    assert_eq!(
        response.headers()["x-toolway-warning"],
        "m was asked without: parallel_tool_calls, logit_bias"
    );
    assert_eq!(
        gw.model.asked()[0].body["generationConfig"],
        json!({"temperature": 0.5, "seed": 7})
    );
    let response = gw
        .send(json!({"n": 2, "tools": [own_function("own")]}), &[])
        .await;
    assert_eq!(response.status(), 400);
    gw.join().await;
}

#[tokio::test]
async fn pictures_of_tools_stand_in_their_results() {
    let picture =
        |data: &str| json!({"content": [{"type": "image", "mimeType": "image/png", "data": data}]});
    let camera = tools()
        .tool("left", Does::Answers(picture("bGVmdA==")))
        .tool("right", Does::Answers(picture("cmlnaHQ=")));
    let calls = [
        ("c1", "cam__left", json!({})),
        ("c2", "cam__right", json!({})),
    ];
    let gw = toolway(Model::start([call(&calls), say("done")]).await)
        .config(GEMINI)
        .server("cam", camera)
        .start()
        .await;
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,eA=="}});
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]);
    gw.streamed(json!({"messages": messages})).await;
    let contents = contents(&gw, 1);
    assert_eq!(
        contents[0]["parts"][1],
        json!({"inlineData": {"mimeType": "image/jpeg", "data": "eA=="}})
    );
    let shown = [0, 1].map(|at: usize| {
        let parts = &contents[2]["parts"][at]["functionResponse"]["parts"];
        parts[0]["inlineData"]["data"].clone()
    });
    assert_eq!(shown, ["bGVmdA==", "cmlnaHQ="]);
    assert_eq!(contents[2]["parts"].as_array().unwrap().len(), 2);
    gw.join().await;
}

#[tokio::test]
async fn a_question_or_an_answer_that_a_filter_stops_ends_with_content_filter() {
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 5}});
    let stopped = candidate(&json!([{"text": "So"}]), "SAFETY");
    for answer in [blocked, stopped] {
        let whole = raw(200, "application/json", answer.to_string());
        let gw = over([whole, stream(&[answer])]).await;
        let plain = gw.plain(json!({})).await;
        assert_eq!(plain["choices"][0]["finish_reason"], "content_filter");
        let streamed = gw.streamed(json!({})).await;
        assert_eq!(streamed.finishes(), ["content_filter"]);
        gw.join().await;
    }
}

#[tokio::test]
async fn a_call_that_the_model_got_wrong_is_an_error_that_clients_may_repeat() {
    let mut malformed = candidate(&json!([]), "MALFORMED_FUNCTION_CALL");
    malformed["candidates"][0]["finishMessage"] = json!("Malformed function call: print(");
    let said = json!({"candidates": [{"content": {"parts": [{"text": "So "}]}}]});
    let gw = over([
        raw(200, "application/json", malformed.to_string()),
        stream(std::slice::from_ref(&malformed)),
        stream(&[said, malformed]),
    ])
    .await;
    for is_streamed in [false, true] {
        let response = gw.send(json!({"stream": is_streamed}), &[]).await;
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers().get("x-should-retry"), None);
        let error: Value = response.json().await.unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("MALFORMED_FUNCTION_CALL: Malformed"),
            "{message}"
        );
    }
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "So ");
    assert_eq!(answer.error().unwrap()["code"], "upstream_invalid_response");
    gw.join().await;
}

#[tokio::test]
async fn an_answer_without_a_reason_to_end_is_not_complete() {
    let begun = json!({"candidates": [{"content": {"parts": [{"text": "So "}]}}]});
    let gw = over([
        raw(200, "application/json", begun.to_string()),
        stream(std::slice::from_ref(&begun)),
        raw(200, "text/event-stream", event(&begun)),
    ])
    .await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 502);
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.error().unwrap()["code"], "upstream_incomplete");
    assert!(!answer.done && answer.finishes().is_empty());
    // A stream where none was asked for.
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 502);
    gw.join().await;
}

#[tokio::test]
async fn tokens_that_are_counted_behind_the_end_are_told() {
    let mut last = candidate(&json!([{"text": "hi"}]), "STOP");
    last["usageMetadata"] = json!({"promptTokenCount": 1});
    let behind = json!({"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2, "thoughtsTokenCount": 3}});
    let gw = over([stream(&[last, behind])]).await;
    let answer = gw
        .streamed(json!({"stream_options": {"include_usage": true}}))
        .await;
    let usage = &answer.usages()[0]["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(7), &json!(5))
    );
    assert_eq!(answer.finishes(), ["stop"]);
    gw.join().await;
}

#[tokio::test]
async fn errors_of_google_come_in_openais_form_also_from_within_a_list() {
    let error =
        json!({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}});
    let list = json!([error]);
    let gw = over([
        raw(429, "application/json", list.to_string()),
        raw(200, "application/json", list.to_string()),
        stream(std::slice::from_ref(&error)),
        stream(std::slice::from_ref(&list)),
    ])
    .await;
    for is_streamed in [false, false, true, true] {
        let response = gw.send(json!({"stream": is_streamed}), &[]).await;
        assert_eq!(response.status(), 429);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["message"], "slow down");
        assert_eq!(error["error"]["type"], "RESOURCE_EXHAUSTED");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_picture_that_the_model_makes_is_told_of() {
    let parts =
        json!([{"text": "Here: "}, {"inlineData": {"mimeType": "image/png", "data": "eA=="}}]);
    let gw = over([stream(&[candidate(&parts, "STOP")])]).await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "Here: [image/png, not shown]");
    gw.join().await;
}

#[tokio::test]
async fn a_clients_key_goes_where_google_expects_it() {
    for (sent, header, expected) in [
        ("Bearer AIza-mine", "x-goog-api-key", "AIza-mine"),
        ("Bearer ya29.token", "authorization", "Bearer ya29.token"),
    ] {
        let config = "[[upstreams]]\nbase_url = \"MODEL\"\napi = \"gemini\"\n";
        let gw = toolway(Model::start([say("hi")]).await)
            .config(config)
            .start()
            .await;
        gw.send(json!({"model": "models/a/b"}), &[("authorization", sent)])
            .await;
        let asked = gw.model.asked();
        assert_eq!(asked[0].headers[header], expected);
        assert_eq!(asked[0].path, "/v1/models/a%2Fb:generateContent");
        gw.join().await;
    }
}

#[tokio::test]
async fn models_are_listed_as_openai_lists_them() {
    let model = Model::start([]).await.with_models(&["gemini-3-pro"]);
    let gw = toolway(model).config(GEMINI).start().await;
    let expected =
        json!({"id": "gemini-3-pro", "object": "model", "created": 0, "owned_by": "google"});
    assert_eq!(
        gw.json("/v1/models").await,
        json!({"object": "list", "data": [expected]})
    );
    assert_eq!(gw.json("/v1/models/gemini-3-pro").await, expected);
    gw.join().await;
}
