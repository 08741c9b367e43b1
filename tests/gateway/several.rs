//! Requests for several answers (`n` above 1), which the tool loop cannot give.

use serde_json::{Value, json};

use crate::{
    harness::{Toolway, own_function, toolway},
    model::{Model, say},
    tools::tools,
};

const WARNING: &str = "n is 2: gateway tools were not offered";

async fn start() -> Toolway {
    toolway(Model::start([]).await.then_always(say("ok")))
        .server("calc", tools().add())
        .start()
        .await
}

/// The warnings of an answer.
fn warnings(response: &reqwest::Response) -> Vec<&str> {
    let values = response.headers().get_all("x-toolway-warning").iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn several_answers_go_without_the_gateways_tools_and_say_so() {
    let gw = start().await;
    for (n, stream) in [false, true].into_iter().enumerate() {
        let body = json!({"n": 2, "stream": stream, "tools": [own_function("own")], "tool_choice": "required"});
        let response = gw.send(body, &[]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(warnings(&response), [WARNING]);
        response.bytes().await.unwrap();
        let asked = &gw.model.asked()[n].body;
        assert_eq!(asked["n"], 2);
        assert_eq!(asked["tools"], json!([own_function("own")]));
    }
    gw.join().await;
}

#[tokio::test]
async fn a_request_for_several_answers_that_asks_for_gateway_tools_is_refused() {
    let gw = start().await;
    let add = json!({"type": "function", "function": {"name": "calc__add"}});
    let entry = json!({"type": "mcp", "server_label": "calc"});
    let allowed = |tool: &Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool]}});
    let asked_for: [(Value, &[(&str, &str)]); 8] = [
        (json!({"tools": [entry]}), &[]),
        (json!({}), &[("x-toolway-tools", "calc__*")]),
        (json!({}), &[("x-toolway-servers", "calc")]),
        (json!({"tool_choice": add}), &[]),
        (json!({"tool_choice": entry}), &[]),
        (json!({"tool_choice": allowed(&add)}), &[]),
        (json!({"tool_choice": allowed(&entry)}), &[]),
        (json!({"toolway": {"progress": "on"}}), &[]),
    ];
    for (mut body, headers) in asked_for {
        body["n"] = json!(2);
        let response = gw.send(body.clone(), headers).await;
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!(error["error"]["param"], "n", "{body}");
    }
    assert!(gw.model.asked().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn leaving_tools_out_is_not_asking_for_the_others() {
    let gw = start().await;
    for header in ["x-toolway-tools", "x-toolway-servers"] {
        let response = gw.send(json!({"n": 2}), &[(header, "!other*")]).await;
        assert_eq!(response.status(), 200, "{header}");
        assert_eq!(warnings(&response), [WARNING]);
        response.bytes().await.unwrap();
    }
    gw.join().await;
}

#[tokio::test]
async fn there_is_no_warning_where_nothing_was_kept_out() {
    let gw = start().await;
    for (body, headers) in [
        (json!({}), None),
        (json!({"n": 1}), None),
        (json!({"n": 2, "tool_choice": "none"}), None),
        (json!({"n": 2}), Some(("x-toolway-tools", "none"))),
    ] {
        let response = gw.send(body, headers.as_slice()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(warnings(&response), [""; 0]);
        response.bytes().await.unwrap();
    }
    gw.join().await;
}
