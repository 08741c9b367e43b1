use std::fs;

use indoc::formatdoc;
use serde_json::{Value, json};
use toolway_protocol::tool::{CallError, Content, ToolResult};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, call, say},
    webhook::{Got, Reply, Webhook, answer, webhook},
};

/// A shop: each operation stands for one way to send something.
fn document(base: &str) -> String {
    formatdoc! {"
        openapi: 3.0.3
        info: {{title: Shop, version: '1'}}
        servers: [{{url: '{base}/v1/'}}]
        paths:
          /orders/{{id}}:
            parameters: [{{name: id, in: path, required: true, schema: {{type: string}}}}]
            get:
              operationId: orders/get
              summary: One order
              parameters:
                - {{name: fields, in: query, explode: false, schema: {{type: array, items: {{type: string}}}}}}
                - {{name: filter, in: query, style: deepObject, schema: {{type: object}}}}
                - {{name: X-Trace, in: header, schema: {{type: string}}}}
                - {{name: X-Key, in: header, required: true, schema: {{type: string}}}}
                - {{name: session, in: cookie, schema: {{type: string}}}}
            patch:
              operationId: orders/update
              requestBody:
                required: true
                content: {{application/json: {{schema: {{$ref: '#/components/schemas/Order'}}}}}}
            delete: {{operationId: orders/delete}}
          /search:
            post:
              operationId: search
              requestBody:
                content:
                  application/x-www-form-urlencoded:
                    schema: {{type: object, properties: {{q: {{type: string}}, tags: {{type: array, items: {{type: string}}}}}}}}
        components:
          schemas:
            Order:
              type: object
              required: [status]
              properties:
                id: {{type: string, readOnly: true}}
                status: {{enum: [open, paid]}}
                note: {{type: string, nullable: true}}
    "}
}

/// A toolway whose group `shop` is the API that does this.
async fn shop(script: impl Fn(&Got) -> Reply + Send + Sync + 'static) -> (Webhook, Toolway) {
    shop_with(Model::start([]).await, script).await
}

async fn shop_with(
    model: Model,
    script: impl Fn(&Got) -> Reply + Send + Sync + 'static,
) -> (Webhook, Toolway) {
    let api = webhook(script).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.yaml");
    fs::write(&file, document(&api.base)).unwrap();
    let file = file.display().to_string();
    let gw = toolway(model)
        .config(&format!(
            "[functions.shop]\nopenapi = {file:?}\nheaders = {{X-Key = 'k1'}}\nmax_response_bytes = 65536\n"
        ))
        .start()
        .await;
    (api, gw)
}

async fn call_tool(gw: &Toolway, name: &str, arguments: &Value) -> Result<ToolResult, CallError> {
    let arguments = arguments.to_string();
    gw.gateway
        .call_tool(&format!("shop__{name}"), &arguments)
        .await
}

/// The one request that comes of a call, whose answer is an empty object.
async fn sent(name: &str, arguments: &Value) -> Got {
    let (api, gw) = shop(|_| answer(json!({}))).await;
    let result = call_tool(&gw, name, arguments).await.expect("a result");
    assert!(!result.is_error, "{result:?}");
    gw.join().await;
    let mut got = api.got();
    assert_eq!(got.len(), 1);
    got.remove(0)
}

#[tokio::test]
async fn path_query_headers_and_cookies_arrive_where_they_belong() {
    let arguments = json!({
        "id": "a/b?c", "fields": ["x", "y z"], "filter": {"state": "open"}, "X-Trace": "t1", "session": "s 1"
    });
    let got = sent("orders_get", &arguments).await;
    assert_eq!(got.method, "GET");
    assert_eq!(
        got.path,
        "/v1/orders/a%2Fb%3Fc?fields=x,y%20z&filter%5Bstate%5D=open"
    );
    assert_eq!(got.headers["x-trace"], "t1");
    assert_eq!(got.headers["x-key"], "k1");
    assert_eq!(got.headers["cookie"], "session=s%201");
    assert_eq!(got.headers["accept"], "application/json, */*;q=0.5");
    assert_eq!(
        (got.body.as_str(), got.headers.get("content-type")),
        ("", None)
    );
}

#[tokio::test]
async fn a_json_body_is_made_of_the_arguments_that_are_no_parameters() {
    let arguments = json!({"id": "7", "status": "paid", "note": null});
    let got = sent("orders_update", &arguments).await;
    assert_eq!(
        (got.method.as_str(), got.path.as_str()),
        ("PATCH", "/v1/orders/7")
    );
    assert_eq!(got.headers["content-type"], "application/json");
    assert_eq!(got.json(), json!({"status": "paid", "note": null}));
}

#[tokio::test]
async fn a_form_is_sent_as_one() {
    let got = sent("search", &json!({"q": "a&b", "tags": ["x", "y"]})).await;
    assert_eq!(
        got.headers["content-type"],
        "application/x-www-form-urlencoded"
    );
    assert_eq!(got.body, "q=a%26b&tags=x&tags=y");
    let got = sent("search", &json!({})).await;
    assert_eq!(
        (got.body.as_str(), got.headers.get("content-type")),
        ("", None)
    );
}

#[tokio::test]
async fn an_answer_in_json_is_structured_and_one_without_body_is_empty() {
    let (_, gw) = shop(|got| match got.method.as_str() {
        "DELETE" => Reply::Answers(204, "text/plain", Vec::new()),
        _ => answer(json!({"id": "7"})),
    })
    .await;
    let result = call_tool(&gw, "orders_get", &json!({"id": "7"}))
        .await
        .unwrap();
    assert_eq!(result.structured_content, Some(json!({"id": "7"})));
    assert_eq!(result.content, [Content::Text("{\"id\":\"7\"}".to_owned())]);
    let result = call_tool(&gw, "orders_delete", &json!({"id": "7"}))
        .await
        .unwrap();
    assert_eq!(result, ToolResult::default());
    gw.join().await;
}

#[tokio::test]
async fn a_problem_in_json_is_an_error_result_that_says_it() {
    let problem = |_: &Got| {
        let body = json!({"type": "about:blank", "title": "Not Found", "detail": "no order 7"});
        Reply::Answers(
            404,
            "application/problem+json",
            body.to_string().into_bytes(),
        )
    };
    let (_, gw) = shop(problem).await;
    let result = call_tool(&gw, "orders_get", &json!({"id": "7"}))
        .await
        .unwrap();
    assert!(result.is_error);
    assert_eq!(
        result.content,
        [Content::Text(
            "the service answered with HTTP 404: no order 7".to_owned()
        )]
    );
    gw.join().await;
}

#[tokio::test]
async fn what_cannot_be_sent_is_not() {
    let (api, gw) = shop(|_| answer(json!({}))).await;
    for (name, arguments, path) in [
        ("orders_get", json!({}), ""),
        ("orders_get", json!({"id": ".."}), "/id"),
        ("orders_get", json!({"id": "../../admin"}), "/id"),
        ("orders_get", json!({"id": "a\\..\\b"}), "/id"),
        ("orders_get", json!({"id": "%2e%2e%2fadmin"}), "/id"),
        ("orders_get", json!({"id": ""}), "/id"),
        (
            "orders_get",
            json!({"id": "7", "X-Trace": "a\r\nX-Admin: 1"}),
            "/X-Trace",
        ),
        ("orders_get", json!({"id": "7", "other": 1}), ""),
        ("orders_update", json!({"id": "7"}), ""),
        (
            "orders_update",
            json!({"id": "7", "status": "lost"}),
            "/status",
        ),
    ] {
        match call_tool(&gw, name, &arguments).await {
            Err(CallError::InvalidParams { path: found, .. }) => {
                assert_eq!(found, path, "{arguments}");
            }
            other => panic!("{arguments}: {other:?}"),
        }
    }
    assert_eq!(api.got().len(), 0);
    gw.join().await;
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off_and_a_break_is_told() {
    let (_, gw) = shop(|got| match got.method.as_str() {
        "DELETE" => Reply::BreaksOff,
        _ => Reply::Floods,
    })
    .await;
    let result = call_tool(&gw, "search", &json!({})).await.unwrap();
    assert_eq!(
        result.content,
        [Content::Text(
            "the result is larger than 65536 bytes".to_owned()
        )]
    );
    let error = call_tool(&gw, "orders_delete", &json!({"id": "7"})).await;
    assert_eq!(error.unwrap_err().kind(), "upstream_unavailable");
    gw.join().await;
}

#[tokio::test]
async fn no_model_is_told_of_a_header_that_the_configuration_sends() {
    let script = vec![
        call(&[("c1", "shop__orders_get", json!({"id": "7"}))]),
        say("Paid."),
    ];
    let model = Model::start(script).await;
    let (_, gw) = shop_with(model, |_| answer(json!({"status": "paid"}))).await;
    let answer = gw.streamed(json!({})).await;
    assert_eq!(answer.text(), "Paid.");
    let asked = gw.model.asked();
    let offered = asked[0].body["tools"].as_array().unwrap();
    let get = offered
        .iter()
        .find(|tool| tool["function"]["name"] == "shop__orders_get")
        .unwrap();
    assert_eq!(get["function"]["description"], "One order");
    let names: Vec<&String> = get["function"]["parameters"]["properties"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(names, ["id", "fields", "filter", "X-Trace", "session"]);
    let messages = asked[1].body["messages"].as_array().unwrap();
    assert_eq!(messages.last().unwrap()["content"], "{\"status\":\"paid\"}");
    gw.join().await;
}

#[tokio::test]
async fn health_says_how_the_group_is_run() {
    let (_, gw) = shop(|_| answer(json!({}))).await;
    let health = gw.json("/health").await;
    assert_eq!(
        health["functions"],
        json!([{"name": "shop", "kind": "openapi", "state": "ready", "tools": 4, "last_error": null}])
    );
    gw.join().await;
}
