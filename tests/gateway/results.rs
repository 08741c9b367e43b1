//! What the model is told: results of every kind, and every way a call can fail.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, call, say},
    tools::{Does, Tools, tools},
};

/// Has the model call one tool and gives back what it was told.
async fn told(tools: Tools, name: &str, arguments: Value, config: &str) -> (String, Toolway) {
    let model = Model::start([call(&[("c", name, arguments)]), say("ok")]).await;
    let gw = toolway(model)
        .config(config)
        .server("s", tools)
        .start()
        .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "ok");
    let messages = gw.model.messages(1);
    assert_eq!(messages[2]["tool_call_id"], "c");
    (messages[2]["content"].as_str().unwrap().to_owned(), gw)
}

async fn error(tools: Tools, name: &str, arguments: Value) -> Value {
    let (text, gw) = told(tools, name, arguments, "").await;
    gw.join().await;
    let error: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    error["error"].clone()
}

fn text_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

#[tokio::test]
async fn invalid_json_is_not_sent() {
    let error = error(tools().add(), "s__add", json!("{\"a\": 1, ")).await;
    assert_eq!(error["type"], "invalid_arguments_json");
}

#[tokio::test]
async fn arguments_that_do_not_fit_name_path_reason_and_schema() {
    let model = Model::start([
        call(&[("c", "s__add", json!({"a": 1, "b": "two"}))]),
        say("ok"),
    ])
    .await;
    let gw = toolway(model).server("s", tools().add()).start().await;
    gw.streamed(json!({})).await;
    let text = gw.model.messages(1)[2]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["error"]["type"], "invalid_params");
    assert_eq!(error["error"]["path"], "/b");
    assert_eq!(error["error"]["input_schema"], json!({"type": "number"}));
    assert_eq!(gw.servers[0].calls(), [], "nothing was sent");
    gw.join().await;
}

#[tokio::test]
async fn an_unknown_tool_is_answered_with_names_that_look_like_it() {
    let error = error(tools().add(), "s__ad", json!({})).await;
    assert_eq!(error["type"], "unknown_tool");
    assert_eq!(error["did_you_mean"], json!(["s__add"]));
}

#[tokio::test]
async fn a_tool_that_failed_says_so_in_its_own_words() {
    let failed = json!({"content": [{"type": "text", "text": "no such city"}], "isError": true});
    let error = error(tools().tool("f", Does::Answers(failed)), "s__f", json!({})).await;
    assert_eq!(
        (&error["type"], &error["message"]),
        (&json!("tool_error"), &json!("no such city"))
    );
}

#[tokio::test]
async fn a_protocol_error_keeps_its_code_and_data() {
    let refusal = json!({"code": -32602, "message": "bad params", "data": {"hint": "x"}});
    let error = error(tools().tool("f", Does::Refuses(refusal)), "s__f", json!({})).await;
    assert_eq!(error["type"], "protocol_error");
    assert_eq!(error["code"], -32602);
    assert_eq!(error["data"], json!({"hint": "x"}));
}

#[tokio::test]
async fn a_server_that_hangs_up_is_unavailable() {
    let error = error(tools().tool("f", Does::HangsUp), "s__f", json!({})).await;
    assert_eq!(error["type"], "upstream_unavailable");
}

#[tokio::test]
async fn a_silent_tool_times_out_and_is_cancelled() {
    let config = "[loop]\ntool_timeout = \"300ms\"\n";
    let (text, gw) = told(tools().tool("f", Does::Holds), "s__f", json!({}), config).await;
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["error"]["type"], "timeout");
    gw.servers[0].was_cancelled().await;
    gw.join().await;
}

#[tokio::test]
async fn a_tool_that_was_not_selected_is_denied() {
    let model = Model::start([call(&[("c", "s__add", json!({}))]), say("ok")]).await;
    let gw = toolway(model)
        .server("s", tools().add().tool("other", Does::Echoes))
        .start()
        .await;
    gw.streamed_with(json!({}), &[("x-toolway-tools", "s__other")])
        .await;
    let text = gw.model.messages(1)[2]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["error"]["type"], "denied");
    assert_eq!(gw.servers[0].calls(), []);
    gw.join().await;
}

#[tokio::test]
async fn arguments_are_read_as_leniently_as_they_can_be() {
    for (written, sent) in [
        (json!(""), json!({})),
        (json!("null"), json!({})),
        (json!("\"{\\\"x\\\": 1}\""), json!({"x": 1})),
        (json!("{}{\"x\": 2}"), json!({"x": 2})),
    ] {
        let (_, gw) = told(tools().tool("f", Does::Echoes), "s__f", written.clone(), "").await;
        assert_eq!(gw.servers[0].calls()[0].1, sent, "{written}");
        gw.join().await;
    }
}

#[tokio::test]
async fn structured_content_is_told_when_there_is_no_text() {
    let result = json!({"content": [], "structuredContent": {"sum": 3}});
    let (text, gw) = told(
        tools().tool("f", Does::Answers(result)),
        "s__f",
        json!({}),
        "",
    )
    .await;
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json!({"sum": 3})
    );
    gw.join().await;
}

#[tokio::test]
async fn a_picture_goes_after_the_tool_messages_where_the_upstream_takes_pictures() {
    let picture =
        json!({"content": [{"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}]});
    let upstream = "[[upstreams]]\nname = \"u\"\nbase_url = \"MODEL\"\nmodalities = [\"image\"]\n";
    let (text, gw) = told(
        tools().tool("f", Does::Answers(picture.clone())),
        "s__f",
        json!({}),
        upstream,
    )
    .await;
    assert!(!text.contains("iVBOR"), "no base64 in the text");
    let after = &gw.model.messages(1)[3];
    assert_eq!(after["role"], "user");
    assert!(
        after["content"]
            .to_string()
            .contains("data:image/png;base64,iVBORw0KGgo=")
    );
    gw.join().await;
    let (text, gw) = told(
        tools().tool("f", Does::Answers(picture)),
        "s__f",
        json!({}),
        "",
    )
    .await;
    assert!(text.contains("image/png"));
    assert_eq!(
        gw.model.messages(1).len(),
        3,
        "and nothing where it does not"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_broken_block_costs_itself_only() {
    let result =
        json!({"content": [{"type": "hologram", "x": 1}, {"type": "text", "text": "still here"}]});
    let (text, gw) = told(
        tools().tool("f", Does::Answers(result)),
        "s__f",
        json!({}),
        "",
    )
    .await;
    assert!(text.contains("still here"), "{text}");
    gw.join().await;
}

#[tokio::test]
async fn the_rest_of_a_result_that_was_cut_can_be_read() {
    let long: String = (0..400).map(|n| format!("{n:04}ü")).collect();
    let model = Model::start([
        call(&[("c1", "s__f", json!({}))]),
        call(&[(
            "c2",
            "toolway__read_more",
            json!({"id": "c1", "offset": 1000}),
        )]),
        say("ok"),
    ])
    .await;
    let gw = toolway(model)
        .config("[loop]\nmax_result_bytes = 1024\n")
        .server("s", tools().tool("f", Does::Answers(text_result(&long))))
        .start()
        .await;
    gw.streamed(json!({})).await;
    let first = gw.model.messages(1)[2]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(first.len() <= 1024);
    assert!(
        first.contains("toolway__read_more") && first.contains("2400"),
        "{first}"
    );
    let names: Vec<String> = gw.model.asked()[1].body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.contains(&"toolway__read_more".to_owned()));
    assert_eq!(
        gw.model.asked()[0].body["tools"].as_array().unwrap().len(),
        1,
        "offered only when there is a rest"
    );
    let rest = gw.model.messages(2)[4]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        rest.starts_with(&long[1002..1010]) || long[1000..].starts_with(&rest[..8]),
        "{rest}"
    );
    gw.join().await;
}
