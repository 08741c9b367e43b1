//! Models under names of one's own: which model behind a name is asked, and when the next one is.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, own_function, toolway},
    model::{Model, Reply, Then, call, events, raw, say},
    tools::tools,
};

/// `fast` is `one` of the first upstream, then `two` of the second.
const FAST: &str = "[models.fast]\nuse = [\"first/one\", \"second/two\"]\n";

/// Both upstreams, with these keys each, and the model that is second.
async fn behind(
    first: Model,
    second: Model,
    keys: [&str; 2],
    names: &str,
) -> (crate::harness::Builder, Model) {
    let config = format!(
        "[[upstreams]]\nname = \"first\"\nbase_url = \"MODEL\"\n{}\n\
         [[upstreams]]\nname = \"second\"\nbase_url = \"{}\"\n{}\n{names}",
        keys[0], second.base, keys[1]
    );
    (toolway(first).config(&config), second)
}

/// Both models with `fast` before them.
async fn fast(
    first: impl IntoIterator<Item = Reply>,
    second: impl IntoIterator<Item = Reply>,
) -> (Toolway, Model) {
    let (first, second) = (Model::start(first).await, Model::start(second).await);
    let (builder, second) = behind(first, second, ["", ""], FAST).await;
    (builder.start().await, second)
}

fn refusal(status: u16) -> Reply {
    let error = json!({"error": {"message": "no", "type": "x", "param": null, "code": null}});
    raw(status, "application/json", error.to_string())
}

fn named(body: Value) -> Value {
    let mut body = body;
    body["model"] = json!("fast");
    body
}

#[tokio::test]
async fn only_the_name_of_the_model_changes_in_a_request_that_passes_through() {
    let (gw, _) = fast([say("hi")], []).await;
    let body =
        json!({"model": "fast", "seed": 1e2, "messages": [{"role": "user", "content": "é"}]});
    let url = format!("{}/v1/chat/completions", gw.base);
    let text = r#"{ "messages": [{"role":"user","content":"\u00e9"}], "model": "fast", "x": 1e2 }"#;
    let response = gw.http.post(url).body(text).send().await.unwrap();
    assert_eq!(response.status(), 200, "{body}");
    let asked = gw.model.asked().remove(0);
    assert_eq!(
        asked.raw,
        r#"{"messages":[{"role":"user","content":"\u00e9"}],"model":"one","x":1e2}"#
    );
    gw.join().await;
}

#[tokio::test]
async fn the_next_model_answers_after_a_failure_that_is_not_the_requests() {
    for status in [401, 403, 404, 408, 429, 500, 503, 529] {
        for is_streamed in [false, true] {
            let (gw, second) = fast([refusal(status)], [say("from two")]).await;
            let response = gw.send(named(json!({"stream": is_streamed})), &[]).await;
            assert_eq!(response.status(), 200, "{status}");
            assert_eq!(
                response.headers()["x-toolway-warning"],
                format!("first/one answered {status}; second/two was asked")
            );
            let text = response.text().await.unwrap();
            assert!(text.contains("two"), "{text}");
            assert_eq!(gw.model.asked().len(), 1, "the first is not asked again");
            assert_eq!(second.asked()[0].body["model"], "two");
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn a_request_that_is_at_fault_is_refused_by_the_first_model() {
    for status in [400, 413, 422] {
        let (gw, second) = fast([refusal(status)], [say("from two")]).await;
        let response = gw.send(named(json!({})), &[]).await;
        assert_eq!(response.status(), status);
        assert!(second.asked().is_empty());
        gw.join().await;
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_passed_over() {
    let second = Model::start([say("from two")]).await;
    let config = format!(
        "[[upstreams]]\nname = \"first\"\nbase_url = \"http://127.0.0.1:1\"\n\
         [[upstreams]]\nname = \"second\"\nbase_url = \"MODEL\"\n{FAST}"
    );
    let gw = toolway(second).config(&config).start().await;
    let answer = gw.plain(named(json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "from two");
    gw.join().await;
}

#[tokio::test]
async fn a_model_that_failed_rests_and_is_asked_last_meanwhile() {
    let (gw, second) = fast([refusal(500)], [say("a"), say("b"), refusal(500)]).await;
    for _ in 0..2 {
        gw.plain(named(json!({}))).await;
    }
    assert_eq!(gw.model.asked().len(), 1, "it rests");
    assert_eq!(second.asked().len(), 2);
    let response = gw.send(named(json!({})), &[]).await;
    assert_eq!(
        response.status(),
        418,
        "the first is asked when all else failed"
    );
    assert_eq!(gw.model.asked().len(), 2);
    gw.join().await;
}

#[tokio::test]
async fn the_failure_of_the_last_model_is_the_clients() {
    let (gw, _) = fast([refusal(500)], [refusal(404)]).await;
    let response = gw.send(named(json!({})), &[]).await;
    assert_eq!(response.status(), 404);
    gw.join().await;
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_first_byte_is_another_models_and_later_it_is_an_error() {
    let chunk = "data: {\"id\":\"i\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"one\",\
        \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"begun\"},\"finish_reason\":null}]}\n\n";
    for pieces in [&[][..], &[chunk]] {
        let (gw, second) = fast([events(pieces, Then::Break)], [say("from two")]).await;
        let answer = gw.streamed(named(json!({}))).await;
        if pieces.is_empty() {
            assert_eq!(answer.text(), "from two");
        } else {
            assert_eq!(answer.text(), "begun");
            assert_eq!(answer.error().unwrap()["code"], "upstream_broken");
            assert!(second.asked().is_empty());
        }
        gw.join().await;
    }
}

#[tokio::test]
async fn a_stream_whose_first_event_is_an_error_is_another_models() {
    let overloaded = r#"{"error":{"message":"busy","type":"server_error","code":503}}"#;
    let native = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#;
    for (api, pieces) in [
        ("", vec![format!(": wait\n\ndata: {overloaded}\n\n")]),
        (
            "",
            vec![
                "event: error\nda".to_owned(),
                format!("ta: {overloaded}\n\n"),
            ],
        ),
        (
            "api = \"anthropic\"",
            vec![format!("event: error\ndata: {native}\n\n")],
        ),
    ] {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let first = Model::start([events(&pieces, Then::End)]).await;
        let second = Model::start([say("from two")]).await;
        let (builder, second) = behind(first, second, [api, ""], FAST).await;
        let gw = builder.start().await;
        let answer = gw.streamed(named(json!({}))).await;
        assert_eq!(answer.text(), "from two", "{pieces:?}");
        assert_eq!(second.asked().len(), 1);
        gw.join().await;
    }
}

#[tokio::test]
async fn a_stream_whose_first_event_blames_the_request_is_not_another_models() {
    let invalid = r#"{"error":{"message":"no","type":"invalid_request_error","code":400}}"#;
    let first = events(&[&format!("data: {invalid}\n\n")], Then::End);
    let (gw, second) = fast([first], [say("from two")]).await;
    let response = gw.send(named(json!({"stream": true})), &[]).await;
    assert_eq!(response.status(), 400);
    assert!(second.asked().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_later_round_falls_back_and_no_tool_runs_twice() {
    for is_streamed in [false, true] {
        let first = Model::start([
            call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
            refusal(500),
        ]);
        let (first, second) = (first.await, Model::start([say("It is 3.")]).await);
        let (builder, second) = behind(first, second, ["", ""], FAST).await;
        let gw = builder.server("calc", tools().add()).start().await;
        let text = match is_streamed {
            true => gw.streamed(named(json!({}))).await.text(),
            false => {
                let answer = gw.plain(named(json!({}))).await;
                answer["choices"][0]["message"]["content"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
        };
        assert_eq!(text, "It is 3.");
        let messages = second.messages(0);
        assert_eq!(messages[2]["content"], "3");
        assert_eq!(gw.servers[0].calls().len(), 1);
        gw.join().await;
    }
}

#[tokio::test]
async fn a_later_round_that_broke_off_after_a_word_ends_with_an_error() {
    let chunk = "data: {\"id\":\"i\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"one\",\
        \"choices\":[{\"index\":0,\"delta\":{\"content\":\"It\"},\"finish_reason\":null}]}\n\n";
    let first = Model::start([
        call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
        events(&[chunk], Then::Break),
    ]);
    let (first, second) = (first.await, Model::start([say("never")]).await);
    let (builder, second) = behind(first, second, ["", ""], FAST).await;
    let gw = builder.server("calc", tools().add()).start().await;
    let answer = gw.streamed(named(json!({}))).await;
    assert_eq!(answer.text(), "It");
    assert!(answer.error().is_some());
    assert!(second.asked().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn models_of_two_apis_stand_behind_one_name() {
    let thinking = [
        call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
        refusal(529),
    ];
    let (first, second) = (
        Model::start(thinking).await,
        Model::start([say("It is 3.")]).await,
    );
    let api = "api = \"anthropic\"\napi_key = \"sk-first\"";
    let (builder, second) = behind(first, second, [api, ""], FAST).await;
    let gw = builder.server("calc", tools().add()).start().await;
    let answer = gw.streamed(named(json!({}))).await;
    assert_eq!(answer.text(), "It is 3.");
    assert_eq!(gw.model.asked()[0].path, "/v1/messages");
    assert_eq!(gw.model.asked()[0].body["model"], "one");
    let asked = second.asked().remove(0);
    assert_eq!(asked.path, "/v1/chat/completions");
    let text = asked.body.to_string();
    assert!(
        !text.contains("reasoning"),
        "the first model's thoughts are not the second's: {text}"
    );
    gw.join().await;
}

#[tokio::test]
async fn clients_of_every_api_can_ask_a_name() {
    let bodies = [
        ("responses", json!({"model": "fast", "input": "hello"})),
        (
            "messages",
            json!({"model": "fast", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}),
        ),
    ];
    for (path, body) in bodies {
        for keys in [["", ""], ["api = \"chat\"", "api = \"responses\""]] {
            let (first, second) = (
                Model::start([refusal(503)]).await,
                Model::start([say("two")]).await,
            );
            let (builder, second) = behind(first, second, keys, FAST).await;
            let gw = builder.start().await;
            let url = format!("{}/v1/{path}", gw.base);
            let response = gw
                .http
                .post(url)
                .body(body.to_string())
                .send()
                .await
                .unwrap();
            assert_eq!(response.status(), 200);
            let warning = &response.headers()["x-toolway-warning"];
            assert_eq!(*warning, "first/one answered 503; second/two was asked");
            let text = response.text().await.unwrap();
            assert!(text.contains("two"), "{text}");
            assert_eq!(second.asked()[0].body["model"], "two");
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn what_is_forwarded_names_the_model_that_is_asked_and_falls_back_too() {
    let second = Model::start([]).await;
    let config = format!(
        "[[upstreams]]\nname = \"first\"\nbase_url = \"http://127.0.0.1:1\"\n\
         [[upstreams]]\nname = \"second\"\nbase_url = \"MODEL\"\n{FAST}"
    );
    let gw = toolway(second).config(&config).start().await;
    let url = format!("{}/v1/embeddings", gw.base);
    let text = r#"{ "input": "\u00e9", "model" : "fast" }"#;
    let response = gw.http.post(&url).body(text).send().await.unwrap();
    assert_eq!(response.status(), 201);
    let echoed: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(echoed["body"], r#"{ "input": "\u00e9", "model" : "two" }"#);
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nfast\r\n\
        --b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nfast\r\n--b--";
    let response = gw.http.post(&url).body(form).send().await.unwrap();
    let echoed: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    let expected = form.replacen("\"model\"\r\n\r\nfast", "\"model\"\r\n\r\ntwo", 1);
    assert_eq!(echoed["body"], expected.as_str());
    gw.join().await;
}

#[tokio::test]
async fn a_clients_key_goes_to_the_upstream_that_takes_it_and_to_no_other() {
    for takes in ["first", "second"] {
        let keys = match takes {
            "first" => ["client_key = true", ""],
            _ => ["", "client_key = true"],
        };
        let (first, second) = (
            Model::start([refusal(500)]).await,
            Model::start([say("hi")]).await,
        );
        let (builder, second) = behind(first, second, keys, FAST).await;
        let gw = builder.start().await;
        let key = [("authorization", "Bearer sk-client")];
        assert_eq!(gw.send(named(json!({})), &key).await.status(), 200);
        for (name, model) in [("first", &gw.model), ("second", &second)] {
            let got = model.asked()[0].headers.contains_key("authorization");
            assert_eq!(got, name == takes, "{name}");
        }
        gw.join().await;
    }
}

#[tokio::test]
async fn a_clients_wrong_key_makes_no_model_rest() {
    let first = Model::start([refusal(401), say("for another client")]).await;
    let second = Model::start([say("from two")]).await;
    let (builder, second) = behind(first, second, ["client_key = true", ""], FAST).await;
    let gw = builder.start().await;
    gw.plain(named(json!({}))).await;
    gw.plain(named(json!({}))).await;
    assert_eq!((gw.model.asked().len(), second.asked().len()), (2, 1));
    gw.join().await;
}

#[tokio::test]
async fn a_weight_of_nothing_leaves_a_model_for_when_the_others_fail() {
    let names = "[models.fast]\nuse = [\"first/one\", \"second/two\"]\nweights = [0, 1]\n";
    let first = Model::start([say("from one")]).await;
    let second = Model::start([say("from two"), refusal(500)]).await;
    let (builder, second) = behind(first, second, ["", ""], names).await;
    let gw = builder.start().await;
    for expected in ["from two", "from one"] {
        let answer = gw.plain(named(json!({}))).await;
        assert_eq!(answer["choices"][0]["message"]["content"], expected);
    }
    assert_eq!(second.asked().len(), 2);
    gw.join().await;
}

#[tokio::test]
async fn names_are_listed_and_come_before_models_of_upstreams() {
    let model = Model::start([say("hi")]).await.with_models(&["m", "n"]);
    let config =
        "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\n[models.m]\nuse = [\"u/real\"]\n";
    let gw = toolway(model).config(config).start().await;
    let list = gw.json("/v1/models").await;
    let models = list["data"].as_array().unwrap().iter();
    let models: Vec<(&str, &str)> = models
        .map(|it| {
            (
                it["id"].as_str().unwrap(),
                it["owned_by"].as_str().unwrap_or("u"),
            )
        })
        .collect();
    assert_eq!(models, [("m", "toolway"), ("n", "u")]);
    gw.plain(json!({})).await;
    assert_eq!(gw.model.asked()[0].body["model"], "real");
    gw.join().await;
}

#[tokio::test]
async fn the_tools_of_a_request_fit_every_model_behind_a_name() {
    let (first, second) = (
        Model::start([refusal(500)]).await,
        Model::start([say("hi")]).await,
    );
    let (builder, second) = behind(first, second, ["", "max_tools = 2"], FAST).await;
    let gw = builder.server("calc", tools().add()).start().await;
    let tools = json!([own_function("a"), own_function("b")]);
    gw.plain(named(json!({"tools": tools}))).await;
    for model in [&gw.model, &second] {
        assert_eq!(model.asked()[0].body["tools"].as_array().unwrap().len(), 2);
    }
    gw.join().await;
}
