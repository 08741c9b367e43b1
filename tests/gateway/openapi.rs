//! openapi.yaml and the router say the same: every path and method, and every field of what is toolway's own.

use std::collections::BTreeSet;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use toolway::gateway::{RequestClient, RequestSource};
use toolway_protocol::tool::ServerId;

use crate::{
    functions::definitions,
    harness::{Toolway, toolway},
    model::{Model, say},
    tools::{Does, tools},
};

fn document() -> Value {
    serde_yaml_ng::from_str(include_str!("../../openapi.yaml")).unwrap()
}

/// Every reference in a document that leads to nothing.
fn dangling(document: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match value {
        Value::Object(object) => {
            if let Some(target) = object.get("$ref").and_then(Value::as_str)
                && document.pointer(target.trim_start_matches('#')).is_none()
            {
                found.push(target.to_owned());
            }
            found.extend(object.values().flat_map(|it| dangling(document, it)));
        }
        Value::Array(items) => found.extend(items.iter().flat_map(|it| dangling(document, it))),
        _ => {}
    }
    found
}

#[test]
fn every_key_is_there_once_and_every_reference_leads_somewhere() {
    // Read into a mapping of its own, a key that is there twice is an error.
    let strict: Result<serde_yaml_ng::Value, _> =
        serde_yaml_ng::from_str(include_str!("../../openapi.yaml"));
    assert!(strict.is_ok(), "{strict:?}");
    let document = document();
    assert_eq!(dangling(&document, &document), Vec::<String>::new());
}

/// One model named `m`, and a tool of every kind: plain, renamed, dropped, one too many, with a note.
async fn start(config: &str) -> Toolway {
    let model = Model::start([]).await.then_always(say("ok"));
    let (_folder, definitions) = definitions(&["weather"]);
    let upstream = format!(
        "{config}\n[functions.town]\n{definitions}endpoint = \"http://127.0.0.1:9\"\n[[upstreams]]\nname = \"u\"\nbase_url = \"{}\"\nmax_tools = 2\n\
         [[policy.rules]]\ntools = [\"odd__either\"]\naction = \"ask\"\n\
         [servers.gone]\nrisk = 1\ncommand = \"/no/such/program\"\n",
        model.base
    );
    let odd = tools()
        .add()
        .listed(json!({"name": "a.b c", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}), Does::Echoes)
        .listed(json!({"name": "broken", "inputSchema": true}), Does::Echoes)
        .listed(json!({"name": "either", "inputSchema": {"type": "object", "oneOf": [{"required": ["a"]}]}}), Does::Echoes);
    toolway(model.with_models(&["m"]))
        .config(&upstream)
        .server("odd", odd)
        .start()
        .await
}

/// Opens a session with one function and gives its path.
async fn session(gw: &Toolway) -> String {
    let body = br#"{"tools": [{"name": "f"}]}"#.as_slice();
    let session = gw
        .gateway
        .mcp_sessions()
        .open(body.into(), 0)
        .await
        .unwrap();
    format!("/v1/mcp_sessions/{}", session.id())
}

/// A call of `odd__add` that waits for approval.
async fn waiting(gw: &Toolway) -> String {
    let client = RequestClient::default();
    let arguments = json!({"a": 1}).as_object().cloned().unwrap();
    let server = ServerId::parse("odd").unwrap();
    let context = gw.gateway.rest_context(&server, client);
    let called = gw.gateway.call_over_rest(&context, "either", arguments);
    let answer = called.await.unwrap().into_json();
    format!(
        "/confirmations/{}",
        answer["confirmation_id"].as_str().unwrap()
    )
}

/// An approval for later calls.
async fn granted(gw: &Toolway) -> String {
    let url = format!("{}{}", gw.base, waiting(gw).await);
    let body = json!({"confirm": true, "remember": {"what": "tool", "until": "forever"}});
    let decided = gw.http.post(url).body(body.to_string()).send().await;
    assert_eq!(decided.unwrap().status(), 200);
    let grants = gw.json("/grants").await;
    format!("/grants/{}", grants["grants"][0]["id"].as_str().unwrap())
}

/// A body that a path takes.
fn body_for(path: &str) -> Value {
    match path {
        "/v1/mcp_sessions" => json!({"tools": [{"name": "f"}]}),
        path if path.ends_with("/tool_responses") => json!({"tool_responses": []}),
        "/v1/tool_calls" => json!({"tool_calls": []}),
        "/v1/events" => json!([]),
        "/tools/odd__add" | "/servers/odd/tools/add" => json!({"a": 1, "b": 2}),
        "/servers/odd/calls" => json!({"calls": []}),
        "/v1/responses" | "/v1/responses/input_tokens" | "/v1/responses/compact" => {
            json!({"model": "m", "input": "hello"})
        }
        _ => json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
    }
}

/// A request for a WebSocket.
fn upgrade(request: RequestBuilder) -> RequestBuilder {
    let request = request.header("connection", "upgrade");
    let request = request.header("upgrade", "websocket");
    let request = request.header("sec-websocket-version", "13");
    request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// The status, and the `code` if it is an error.
async fn ask(gw: &Toolway, method: Method, path: &str) -> (u16, Option<String>) {
    let request = gw
        .http
        .request(method.clone(), format!("{}{path}", gw.base));
    let body = body_for(path);
    let response = match method {
        Method::GET if path == "/v1/responses" => upgrade(request).send().await.unwrap(),
        Method::POST => request.body(body.to_string()).send().await.unwrap(),
        _ => request.send().await.unwrap(),
    };
    assert!(
        response.headers().contains_key("x-request-id"),
        "{method} {path}"
    );
    let status = response.status().as_u16();
    if status == 101 {
        return (status, None);
    }
    let kind = response.headers().get("content-type");
    if kind.is_some_and(|kind| kind == "text/event-stream") {
        return (status, None);
    }
    let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default();
    (status, body["error"]["code"].as_str().map(str::to_owned))
}

/// The members of an object.
fn names(object: &Value) -> BTreeSet<String> {
    let object = object.as_object().expect("an object");
    object.keys().cloned().collect()
}

#[tokio::test]
async fn every_documented_path_and_method_is_there() {
    let gw = start("").await;
    let document = document();
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        // What is there for MCP clients is looked at in tests/mcp.
        if path.starts_with("/mcp") || path.starts_with("/sse") {
            continue;
        }
        // Its prompts and resources are looked at in `rest`.
        if ["/resources/{uri}", "/prompts/{name}", "/completions"]
            .iter()
            .any(|end| path.ends_with(end))
        {
            continue;
        }
        for method in ["get", "post", "put", "patch", "delete"] {
            let documented = &item[method];
            if documented.is_null() {
                continue;
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            // These changes are looked at in `rest_changes`.
            let is_server = ["/servers", "/servers/{id}"].contains(&path.as_str());
            if path.ends_with("/restart") || (is_server && method != Method::GET) {
                continue;
            }
            let real = path.replace("/v1/mcp_sessions/{id}", &session(&gw).await);
            let real = match &*real {
                "/confirmations/{id}" => waiting(&gw).await,
                // It approves the calls that would wait afterwards.
                "/grants/{id}" => granted(&gw).await,
                "/policy/explain" => "/policy/explain?tool=odd__add".to_owned(),
                _ => real,
            };
            let real = real.replace("/servers/{id}", "/servers/odd");
            let real = real.replace("odd/tools/{name}", "odd/tools/add");
            let real = real.replace("{id}", "m").replace("{path}", "embeddings");
            let real = real.replace("{name}", "odd__add");
            let (status, code) = ask(&gw, method.clone(), &real).await;
            assert!(
                status == 101 || (200..300).contains(&status),
                "{method} {path}: {status} {code:?}"
            );
            let answers = names(&documented["responses"]);
            assert!(
                answers.contains(&status.to_string()) || answers.contains("default"),
                "{method} {path}: {status} is not documented"
            );
            tried += 1;
        }
    }
    assert!(tried >= 8, "only {tried} were tried");
    gw.join().await;
}

#[tokio::test]
async fn a_refused_method_is_told_which_are_allowed() {
    let gw = start("").await;
    let body = br#"{"tools": [{"name": "f"}]}"#.as_slice();
    let lent = gw
        .gateway
        .mcp_sessions()
        .open(body.into(), 0)
        .await
        .unwrap();
    for (path, item) in document()["paths"].as_object().unwrap() {
        let real = path
            .replace("{path}", "embeddings")
            .replace("{token}", lent.token());
        let real = real.replace(['{', '}'], "");
        let (mut refused, mut ever_allowed) = (BTreeSet::new(), BTreeSet::new());
        for method in [
            "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
        ] {
            let asked = Method::from_bytes(method.as_bytes()).unwrap();
            let request = gw.http.request(asked, format!("{}{real}", gw.base));
            let response = request.send().await.unwrap();
            if response.status() != 405 {
                continue;
            }
            refused.insert(method);
            let allow = response.headers().get("allow");
            let allow = allow
                .unwrap_or_else(|| panic!("{method} {path}"))
                .to_str()
                .unwrap();
            let allowed: BTreeSet<&str> = allow.split(',').map(str::trim).collect();
            assert!(!allowed.contains(method), "{method} {path}: {allow}");
            ever_allowed.extend(allowed.iter().map(|it| (*it).to_owned()));
            for documented in ["get", "post", "put", "patch", "delete"] {
                let known = allowed.contains(documented.to_uppercase().as_str());
                // Other methods are the upstream's, which has no WebSocket there.
                let is_socket = path == "/v1/responses" && documented == "get";
                let is_documented = !item[documented].is_null() && !is_socket;
                assert!(
                    known || !is_documented,
                    "{method} {path}: {allow} lacks {documented}"
                );
            }
        }
        // No profile is configured, so that every method gets 404.
        let is_there = !path.ends_with("{profile}");
        assert_eq!(refused.contains("TRACE"), is_there, "{path}");
        // Of a forwarded request the upstream says what it allows.
        let is_forwarded = path.starts_with("/v1/") && !path.starts_with("/v1/mcp_sessions");
        let mut both = refused.iter().filter(|it| ever_allowed.contains(**it));
        let both = both.next().filter(|_| !is_forwarded);
        assert_eq!(both, None, "{path} allows it and refuses it");
        if ["/mcp", "/sse"].iter().any(|mcp| path.starts_with(mcp)) {
            let head = gw.http.head(format!("{}{real}", gw.base));
            let status = head.send().await.unwrap().status().as_u16();
            assert_eq!(status, if is_there { 405 } else { 404 }, "{path}");
        }
    }
    gw.join().await;
}

#[test]
fn every_route_is_documented() {
    let source = include_str!("../../src/server.rs");
    let (_, routes) = source
        .split_once("Router::new()")
        .expect("the routes begin");
    let (routes, _) = routes.split_once(".with_state(").expect("the routes end");
    let routes: BTreeSet<String> = routes
        .split('"')
        .filter(|text| text.starts_with('/'))
        .map(|path| path.replace("{*", "{"))
        .collect();
    assert_eq!(routes, names(&document()["paths"]));
}

#[tokio::test]
async fn what_is_toolways_own_knows_no_other_path_or_method() {
    let gw = start("").await;
    for (path, item) in document()["paths"].as_object().unwrap() {
        // Below `/tools` are the tools.
        if [
            "/v1/",
            "/mcp",
            "/sse",
            "/tools",
            "/confirmations",
            "/grants",
            "/policy",
            "/servers",
        ]
        .iter()
        .any(|start| path.starts_with(start))
        {
            continue;
        }
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(
                item[method.as_str().to_lowercase()].is_null(),
                "{method} {path}"
            );
            let refused = (405, Some("method_not_allowed".to_owned()));
            assert_eq!(ask(&gw, method, path).await, refused, "{path}");
        }
        let below = format!("{path}/x");
        let refused = (404, Some("unknown_url".to_owned()));
        assert_eq!(ask(&gw, Method::GET, &below).await, refused);
    }
    gw.join().await;
}

/// Every object with `properties` closed, so that a member without documentation does not fit.
fn closed(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        if object.contains_key("properties") {
            object.entry("additionalProperties").or_insert(json!(false));
        }
        for (_, value) in object.iter_mut() {
            *value = closed(value.take());
        }
    }
    schema
}

/// The answer fits the schema of this name, and has nothing besides.
#[track_caller]
fn check_fits(name: &str, answer: &Value) {
    let document = document();
    assert!(
        document["components"]["schemas"][name].is_object(),
        "{name}"
    );
    let whole = json!({
        "$ref": format!("#/components/schemas/{name}"),
        "components": closed(document["components"].clone()),
    });
    let schema = jsonschema::options().offline().build(&whole).unwrap();
    let wrong: Vec<String> = schema
        .iter_errors(answer)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{name}: {wrong:#?}\n{answer:#}");
}

/// The documented members that are in none of these answers.
fn missing(schema: &Value, answers: &[&Value], path: &str, found: &mut Vec<String>) {
    let properties = schema["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        let path = format!("{path}/{name}");
        let values: Vec<&Value> = answers.iter().filter_map(|one| one.get(name)).collect();
        if values.is_empty() {
            found.push(path);
        } else {
            missing(property, &values, &path, found);
        }
    }
    if !schema["items"].is_null() {
        let lists = answers.iter().filter_map(|one| one.as_array());
        let items: Vec<&Value> = lists.flatten().collect();
        missing(&schema["items"], &items, path, found);
    }
}

/// The answer fits, and everything that is documented is somewhere in it.
#[track_caller]
fn check_is(name: &str, answer: &Value) {
    check_fits(name, answer);
    let mut found = Vec::new();
    let schema = &document()["components"]["schemas"][name];
    missing(schema, &[answer], "", &mut found);
    assert!(found.is_empty(), "{name} has no {found:?}: {answer:#}");
}

#[tokio::test]
async fn health_is_as_documented() {
    let gw = start("").await;
    let health = gw.json("/health").await;
    check_is("Health", &health);
    assert_eq!(health["version"], document()["info"]["version"]);
    gw.join().await;
}

#[tokio::test]
async fn health_without_a_key_tells_the_first_two_only() {
    let gw = start("api_keys = [\"k\"]").await;
    let health = gw.json("/health").await;
    check_fits("Health", &health);
    let required = &document()["components"]["schemas"]["Health"]["required"];
    assert_eq!(json!(names(&health)), json!(["status", "version"]));
    assert_eq!(*required, json!(["status", "version"]));
    let (status, code) = ask(&gw, Method::GET, "/tools").await;
    assert_eq!((status, code.as_deref()), (401, Some("invalid_api_key")));
    check_is("Error", &gw.json("/tools").await);
    gw.join().await;
}

#[tokio::test]
async fn tools_are_as_documented() {
    let gw = start("").await;
    check_is("Tools", &gw.json("/tools").await);
    gw.join().await;
}

#[tokio::test]
async fn sessions_are_as_documented() {
    let gw = start("").await;
    let post = async |path: &str, body: Value| {
        let url = format!("{}{path}", gw.base);
        let response = gw.http.post(url).body(body.to_string()).send().await;
        let text = response.unwrap().text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let opened = post(
        "/v1/mcp_sessions",
        json!({"tools": [{"name": "f"}], "name": "n"}),
    )
    .await;
    check_fits("McpSession", &opened);
    let path = format!("/v1/mcp_sessions/{}", opened["id"].as_str().unwrap());
    let url = opened["url"].as_str().unwrap();
    let token = url.rsplit('/').next().unwrap();
    let session = gw.gateway.mcp_sessions().find(token).unwrap();
    let mut events = session.events(None);
    let calling = tokio::spawn({
        let session = session.clone();
        async move {
            session
                .call("f", serde_json::Map::new(), RequestSource::default())
                .await
        }
    });
    let called = events.next().await.unwrap().data;
    check_fits("McpSessionEvent", &called);
    check_is("McpSession", &gw.json(&path).await);
    let answer = json!({"tool_call_id": called["tool_calls"][0]["id"], "output": 1});
    let receipt = post(&format!("{path}/tool_responses"), json!([answer, answer])).await;
    check_is("McpSessionReceipt", &receipt);
    calling.await.unwrap().unwrap();
    let deleted = gw.http.delete(format!("{}{path}", gw.base)).send().await;
    let deleted: Value = serde_json::from_str(&deleted.unwrap().text().await.unwrap()).unwrap();
    check_is("McpSessionDeleted", &deleted);
    check_fits("McpSessionEvent", &events.next().await.unwrap().data);
    gw.join().await;
}

#[tokio::test]
async fn confirmations_are_as_documented() {
    let gw = start("").await;
    let one = gw.json(&waiting(&gw).await).await;
    check_is("Confirmation", &one);
    check_fits("Confirmations", &gw.json("/confirmations").await);
    check_fits("RestError", &gw.json("/confirmations/none").await);
    granted(&gw).await;
    check_is("Grants", &gw.json("/grants").await);
    gw.join().await;
}

#[tokio::test]
async fn models_are_as_documented() {
    let gw = start("").await;
    check_fits("Models", &gw.json("/v1/models").await);
    check_fits("Model", &gw.json("/v1/models/m").await);
    check_is("Error", &gw.json("/v1/models/none").await);
    let as_anthropic = async |path: &str| {
        let request = gw.http.get(format!("{}{path}", gw.base));
        let request = request.header("anthropic-version", "2023-06-01");
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    let models = as_anthropic("/v1/models?limit=20").await;
    check_fits("AnthropicModels", &models);
    assert_eq!(models["first_id"], models["data"][0]["id"]);
    check_fits("AnthropicModel", &as_anthropic("/v1/models/m").await);
    let error = as_anthropic("/v1/models/none").await;
    assert_eq!(error["error"]["type"], "not_found_error");
    gw.join().await;
}

/// A schema that does not know a member would hide that it is gone, and one that knows too many as well.
#[test]
fn the_checks_can_fail() {
    let fits = |answer: Value| std::panic::catch_unwind(move || check_is("Error", &answer)).is_ok();
    let error = json!({"message": "x", "type": "y", "param": null, "code": null});
    assert!(fits(json!({"error": error})));
    assert!(!fits(json!({"error": error, "more": 1})));
    assert!(!fits(
        json!({"error": {"message": "x", "type": "y", "param": null}})
    ));
    assert!(!fits(
        json!({"error": {"message": 1, "type": "y", "param": null, "code": null}})
    ));
}
