//! What no gateway tool applies to goes through as it is (design.md, "What the client sees", point 12).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    dialects::{over, plain, upstream},
    harness::{own_function, toolway},
    model::{Model, call, raw, say},
    tools::tools,
};

const BODY: &str = r#"{ "stream" :false,"model":"m", "messages":[{"role":"user","content":[{"type":"text","text":"hü"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}],
  "logprobs": true, "unknown_field": {"b": 1, "a": 1e400}, "temperature": 0.10 }"#;

#[tokio::test]
async fn the_body_goes_through_byte_for_byte_both_ways() {
    let answer = r#"{"id":"x", "object":"chat.completion","created":1,"model":"m","unknown":1.10,"choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null,"audio":{"id":"a"}},"logprobs":{"content":[]},"finish_reason":"stop"}]}"#;
    let gw = toolway(Model::start([raw(200, "application/json", answer)]).await)
        .start()
        .await;
    let request = gw
        .http
        .post(format!("{}/v1/chat/completions", gw.base))
        .header("content-type", "application/json");
    let response = request.body(BODY).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), answer);
    assert_eq!(gw.model.asked()[0].raw, BODY);
    gw.join().await;
}

#[tokio::test]
async fn a_member_that_comes_twice_reaches_the_upstream_once() {
    let gw = toolway(Model::start([say("x")]).await).start().await;
    let body = r#"{"model":"other","messages":[],"\u006dodel":"m", "stream":true,"stream":false}"#;
    let request = gw.http.post(format!("{}/v1/chat/completions", gw.base));
    let request = request.header("content-type", "application/json");
    assert_eq!(request.body(body).send().await.unwrap().status(), 200);
    assert_eq!(
        gw.model.asked()[0].raw,
        r#"{"messages":[],"model":"m","stream":false}"#
    );
    gw.join().await;
}

#[tokio::test]
async fn an_answer_goes_on_without_its_byte_order_mark() {
    let answer = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
    let marked = format!("\u{feff}{answer}");
    let gw = toolway(Model::start([raw(200, "application/json", marked)]).await)
        .start()
        .await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.bytes().await.unwrap(), answer);
    gw.join().await;
}

#[tokio::test]
async fn a_stream_goes_through_byte_for_byte() {
    let stream = ": a comment\n\ndata: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"odd\":  1.0,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hi\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n\
        data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"own\",\"arguments\":\"{}\"}}]},\"finish_reason\":null}]}\n\n\
        data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n\
        data: [DONE]\n\n";
    let gw = toolway(Model::start([raw(200, "text/event-stream", stream)]).await)
        .start()
        .await;
    let answer = gw.streamed(json!({"tools": [own_function("own")]})).await;
    assert_eq!(answer.raw, stream);
    gw.join().await;
}

#[tokio::test]
async fn several_answers_pass_when_there_are_no_gateway_tools() {
    let gw = toolway(Model::start([say("x")]).await).start().await;
    assert_eq!(gw.send(json!({"n": 3}), &[]).await.status(), 200);
    assert_eq!(gw.model.asked()[0].body["n"], 3);
    gw.join().await;
}

#[tokio::test]
async fn tool_choice_none_and_legacy_functions_keep_the_gateway_out() {
    for body in [
        json!({"tool_choice": "none"}),
        json!({"functions": [{"name": "f", "parameters": {"type": "object"}}]}),
    ] {
        let gw = toolway(Model::start([say("x")]).await)
            .server("s", tools().add())
            .start()
            .await;
        gw.streamed(body).await;
        assert!(gw.model.asked()[0].body.get("tools").is_none());
        gw.join().await;
    }
}

#[tokio::test]
async fn other_paths_go_to_the_upstream_with_body_query_and_headers() {
    let gw = toolway(Model::start([]).await)
        .server("s", tools().add())
        .start()
        .await;
    let request = gw
        .http
        .post(format!("{}/v1/embeddings?a=b%20c", gw.base))
        .header("openai-beta", "x")
        .header("authorization", "Bearer k");
    let response = request
        .body("{\"model\":\"m\",\"input\":\"hü\"}")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 201, "the upstream's status");
    assert_eq!(response.headers()["x-own"], "1");
    assert_eq!(response.headers()["x-upstream-request-id"], "theirs");
    let said: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(said["method"], "POST");
    assert_eq!(said["uri"], "/v1/embeddings?a=b%20c");
    assert_eq!(said["body"], "{\"model\":\"m\",\"input\":\"hü\"}");
    assert_eq!(said["headers"]["openai-beta"], "x");
    assert_eq!(said["headers"]["authorization"], "Bearer k");
    let response = gw
        .http
        .delete(format!("{}/v1/files/f%2F1", gw.base))
        .send()
        .await
        .unwrap();
    let said: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(
        (&said["method"], &said["uri"]),
        (&json!("DELETE"), &json!("/v1/files/f%2F1"))
    );
    gw.join().await;
}

#[tokio::test]
async fn models_are_merged_and_found() {
    let second = Model::start([])
        .await
        .with_models(&["m", "b/two", "hidden"]);
    let config = format!(
        "[[upstreams]]\nname = \"one\"\nbase_url = \"MODEL\"\nmodels = [\"m\"]\n\
         [[upstreams]]\nname = \"two\"\nbase_url = \"{}\"\nmodels = [\"m\", \"b/*\"]\n\
         [[upstreams]]\nname = \"gone\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodels = [\"gone-1\", \"gone-*\"]\n",
        second.base
    );
    let gw = toolway(Model::start([]).await)
        .config(&config)
        .start()
        .await;
    let list = gw.json("/v1/models").await;
    assert_eq!(list["object"], "list");
    let ids: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["m", "b/two", "gone-1"]);
    assert_eq!(
        list["data"][0]["extra"], 1,
        "what the upstream says of its models is kept"
    );
    assert_eq!(gw.json("/v1/models/b/two").await["id"], "b/two");
    assert_eq!(gw.get("/v1/models/hidden").await.status(), 404);
    gw.join().await;
}

#[tokio::test]
async fn a_body_that_names_no_model_goes_to_the_first_upstream() {
    let config = "[[upstreams]]\nname = \"one\"\nbase_url = \"MODEL\"\n\
                  [[upstreams]]\nname = \"two\"\nbase_url = \"http://127.0.0.1:1/v1\"\n";
    let gw = toolway(Model::start([]).await).config(config).start().await;
    let form = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b--\r\n";
    for (kind, body) in [
        ("application/json", "{}"),
        ("application/json", "{\"name\":\"x\"}"),
        ("application/json", "{\"model\":5}"),
        ("application/json", ""),
        ("multipart/form-data; boundary=b", form),
    ] {
        let request = gw.http.post(format!("{}/v1/files", gw.base));
        let response = request.header("content-type", kind).body(body);
        let response = response.send().await.unwrap();
        assert_eq!(response.status(), 201, "{body}");
        let came: Value = response.json().await.unwrap();
        assert_eq!(came["body"], body);
    }
    gw.join().await;
}

#[tokio::test]
async fn the_upstream_is_chosen_by_the_model() {
    let second = Model::start([say("two")]).await;
    let config = format!(
        "[[upstreams]]\nname = \"one\"\nbase_url = \"MODEL\"\napi_key = \"k1\"\nmodels = [\"m*\"]\n\
         [[upstreams]]\nname = \"two\"\nbase_url = \"{}\"\nclient_key = true\n",
        second.base
    );
    let gw = toolway(Model::start([say("one")]).await)
        .config(&config)
        .start()
        .await;
    assert_eq!(gw.streamed(json!({"model": "mini"})).await.text(), "one");
    let answer = gw
        .streamed_with(
            json!({"model": "other"}),
            &[("authorization", "Bearer mine")],
        )
        .await;
    assert_eq!(answer.text(), "two");
    assert_eq!(
        gw.model.asked()[0].headers["authorization"],
        "Bearer k1",
        "the key from the configuration"
    );
    assert_eq!(
        second.asked()[0].headers["authorization"],
        "Bearer mine",
        "the client's own key, passed on"
    );
    for (sent, reached) in [
        (
            reqwest::Body::from("{\"input\": [1, 2], \"model\": \"other\"}"),
            &second.base,
        ),
        (
            reqwest::Body::from("{\"input\": [1, 2], \"model\": \"mx\"}"),
            &gw.model.base,
        ),
    ] {
        let response = gw
            .http
            .post(format!("{}/v1/embeddings", gw.base))
            .body(sent)
            .send()
            .await
            .unwrap();
        let said: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert!(reached.contains(said["headers"]["host"].as_str().unwrap()));
    }
    gw.join().await;
}

/// Counts its connections. The first answer is followed by something that nobody asked for.
async fn answer_with_a_stray(listener: TcpListener, counted: Arc<AtomicUsize>) {
    let answer = |body: &str| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        format!("{head} {}\r\n\r\n{body}", body.len())
    };
    let reply = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let number = counted.fetch_add(1, Ordering::Relaxed);
        let mut said = answer(reply);
        tokio::spawn(async move {
            let mut request = Vec::new();
            while stream.read_buf(&mut request).await.unwrap() > 0 {
                if request.ends_with(b"}") {
                    request.clear();
                    if number == 0 {
                        said.push_str(&answer("{}"));
                    }
                    stream.write_all(said.as_bytes()).await.unwrap();
                }
            }
        });
    }
}

#[tokio::test]
async fn after_a_late_answer_no_request_of_any_kind_goes_out_on_a_kept_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counted = Arc::new(AtomicUsize::new(0));
    let serving = tokio::spawn(answer_with_a_stray(listener, Arc::clone(&counted)));
    let upstream = format!("[[upstreams]]\nname = \"a\"\nbase_url = \"http://{address}/v1\"\n");
    let gw = toolway(Model::start([]).await)
        .config(&upstream)
        .start()
        .await;
    let paths = ["embeddings", "embeddings", "chat/completions", "embeddings"];
    for path in paths {
        let request = gw.http.post(format!("{}/v1/{path}", gw.base));
        let request = request.header("content-type", "application/json");
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let response = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.bytes().await.unwrap();
    }
    assert_eq!(counted.load(Ordering::Relaxed), paths.len());
    serving.abort();
    gw.join().await;
}

#[tokio::test]
async fn a_request_that_no_tool_applies_to_is_forwarded_in_its_own_api() {
    const RESPONSES: &str = r#"{"model":"m", "input":"h\u00fc", "max_output_tokens":16, "metadata":{"b": 1.10, "a": "1"}}"#;
    const MESSAGES: &str = r#"{"model":"m","max_tokens":10, "messages":[{"role":"user","content":"h"}], "metadata":{"b": 1.10, "a": "1"}}"#;
    let none = "X-Toolway-Tools";
    let unmatched = "no tool matches X-Toolway-Tools; GET /tools lists those that are offered";
    for (api, path, body) in [
        ("responses", "/v1/responses", RESPONSES),
        ("anthropic", "/v1/messages", MESSAGES),
    ] {
        let own = match api {
            "responses" => {
                r#"{"tool_choice":"none", "tools":[{"type":"function","name":"own","strict":false}], "#
            }
            _ => {
                r#"{"tool_choice":{"type":"none"}, "tools":[{"name":"own","input_schema":{"type":"object"}}], "#
            }
        };
        let forbidden = body.replacen('{', own, 1);
        for (header, value, body, warning) in [
            (none, "none", body, None),
            (none, "absent__*", body, Some(unmatched)),
            ("X-Toolway-Servers", "none", body, None),
            ("X-Other", "x", &*forbidden, None),
        ] {
            let answer = r#"{"own": 1.10}"#;
            let gw = toolway(Model::start([raw(201, "application/json", answer)]).await)
                .config(&upstream(api))
                .server("calc", tools().add())
                .start()
                .await;
            let request = gw.http.post(format!("{}{path}", gw.base));
            let request = request.header(header, value);
            let request = request.header("content-type", "application/json");
            let response = request.body(body.to_owned()).send().await.unwrap();
            let said = response.headers().get("x-toolway-warning");
            assert_eq!(said.map(|it| it.to_str().unwrap()), warning);
            let answered = response.text().await.unwrap();
            assert_eq!(gw.model.asked()[0].raw, body, "{api} {header}: {value}");
            assert_eq!(answered, answer);
            gw.join().await;
        }
    }
}

#[tokio::test]
async fn a_conversation_of_the_gateway_stays_with_it_where_no_tool_applies() {
    let script = vec![
        call(&[
            ("g", "calc__add", json!({"a": 1, "b": 2})),
            ("o", "own", json!({})),
        ]),
        say("done"),
    ];
    let gw = over("anthropic", script).await;
    let question = json!({"role": "user", "content": "hello"});
    let own = json!([{"name": "own", "input_schema": {"type": "object"}}]);
    let body =
        json!({"model": "claude-x", "max_tokens": 9000, "tools": own, "messages": [question]});
    let first = plain(&gw, "/v1/messages", body.clone()).await;
    let result = json!({"type": "tool_result", "tool_use_id": "o", "content": "mine"});
    let mut body = body;
    body["messages"] = json!([question, {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]}]);
    let request = gw.http.post(format!("{}/v1/messages", gw.base));
    let request = request.header("X-Toolway-Tools", "none");
    let response = request.body(body.to_string()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let asked = gw.model.asked()[1].body.to_string();
    assert!(
        asked.contains("calc__add"),
        "the hidden call is there: {asked}"
    );
    gw.join().await;
}
