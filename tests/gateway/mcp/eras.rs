use serde_json::{Value, json};
use tokio::time::timeout;

use crate::mcp::{
    client::{Client, act, request},
    harness::{PATIENCE, Toolway, scripted, toolway},
};

/// What a server asks in these tests.
const ELICIT: &str = "elicitation/create";

fn question() -> Value {
    json!({"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}, "x-unknown": [1, {"a": null}]})
}

fn yes() -> Value {
    json!({"action": "accept", "content": {"sure": true}})
}

/// A call for which a server of before 2026-07-28 asks while it works.
fn asking() -> Value {
    json!({"do": "ask", "method": ELICIT, "params": question()})
}

/// A call for which a server of 2026-07-28 gives an `input_required` result.
fn needing() -> Value {
    let requests = json!({"sure": {"method": ELICIT, "params": question()}});
    let result = json!({"resultType": "input_required", "inputRequests": requests, "requestState": "of the server"});
    json!({"do": "need", "result": result})
}

async fn old_server() -> Toolway {
    toolway(&scripted("s", json!({}))).await
}

async fn new_server() -> Toolway {
    toolway(&scripted("s", json!({"modern": true, "versions": []}))).await
}

/// The `_meta` of a request of 2026-07-28.
fn meta(capabilities: Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

/// A client of 2026-07-28 that can be asked.
struct New(Client);

impl New {
    fn at(gw: &Toolway, path: &str) -> New {
        New(Client::at(gw, path).with("mcp-protocol-version", "2026-07-28"))
    }

    /// The result of a request, or its error.
    async fn send(&self, method: &str, mut params: Value) -> Result<Value, Value> {
        params["_meta"] = meta(json!({"elicitation": {}}));
        let name = params
            .get("name")
            .or(params.get("uri"))
            .and_then(Value::as_str);
        let client = self
            .0
            .with("mcp-method", method)
            .with("mcp-name", name.unwrap_or("-"));
        let mut answer = client.post(request(1, method, params)).await.json();
        match answer["error"].take() {
            Value::Null => Ok(answer["result"].take()),
            error => Err(error),
        }
    }

    async fn call(&self, arguments: Value, more: Value) -> Result<Value, Value> {
        let mut params = json!({"name": "s__act", "arguments": arguments});
        if let (Value::Object(params), Value::Object(more)) = (&mut params, more) {
            params.extend(more);
        }
        self.send("tools/call", params).await
    }
}

fn text(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str();
    serde_json::from_str(text.unwrap_or_else(|| panic!("no text: {result}"))).unwrap()
}

#[tokio::test]
async fn a_new_client_is_asked_with_a_result_when_an_old_server_asks_while_it_works() {
    let gw = old_server().await;
    let client = New::at(&gw, "/mcp");
    let asked = client.call(asking(), json!({})).await.unwrap();
    assert_eq!(asked["resultType"], "input_required");
    let requests = asked["inputRequests"].as_object().unwrap();
    let (key, asks) = requests.iter().next().unwrap();
    assert_eq!(*asks, json!({"method": ELICIT, "params": question()}));

    let answers = json!({key: yes()});
    let state = asked["requestState"].clone();
    let more = json!({"inputResponses": answers, "requestState": state});
    let done = client.call(asking(), more.clone()).await.unwrap();
    assert_eq!(done["resultType"], "complete");
    assert_eq!(
        text(&done)["result"],
        yes(),
        "the old server got the answer"
    );

    let again = client.call(asking(), more).await.unwrap_err();
    assert_eq!(again["code"], -32602, "a state counts once");
    gw.join().await;
}

#[tokio::test]
async fn a_server_that_dies_after_its_question_was_answered_is_the_reason_that_is_told() {
    let act = json!({"name": "act", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}});
    let script = json!({"tools": [act], "exit_when_answered": true});
    let gw = toolway(&scripted("s", script)).await;
    let client = New::at(&gw, "/mcp");
    let asked = client.call(asking(), json!({})).await.unwrap();
    let key = asked["inputRequests"].as_object().unwrap().keys().next();
    let more =
        json!({"inputResponses": {key.unwrap(): yes()}, "requestState": asked["requestState"]});
    // The call may be repeated, and the answer to its question is used up.
    let done = client.call(asking(), more).await.unwrap();
    assert_eq!(done["isError"], true);
    let why = done["content"][0]["text"].as_str().unwrap();
    assert!(why.contains("was lost during the call"), "{why}");
    gw.join().await;
}

#[tokio::test]
async fn a_parked_call_is_not_taken_over_by_another_request() {
    let gw = old_server().await;
    let client = New::at(&gw, "/mcp");
    let asked = client.call(asking(), json!({})).await.unwrap();
    let key = asked["inputRequests"]
        .as_object()
        .unwrap()
        .keys()
        .next()
        .unwrap()
        .clone();
    let more = json!({"inputResponses": {key: yes()}, "requestState": asked["requestState"]});
    let mut other = asking();
    other["x"] = json!(1);
    assert_eq!(
        client.call(other, more.clone()).await.unwrap_err()["code"],
        -32602
    );
    let stranger = New(client.0.with("authorization", "Bearer somebody else"));
    assert_eq!(
        stranger.call(asking(), more.clone()).await.unwrap_err()["code"],
        -32602
    );
    let without = json!({"inputResponses": {}, "requestState": more["requestState"]});
    let asked_again = client.call(asking(), without).await.unwrap();
    assert_eq!(
        asked_again["resultType"], "input_required",
        "no answer, the same question"
    );
    let more = json!({"inputResponses": more["inputResponses"], "requestState": asked_again["requestState"]});
    assert_eq!(
        client.call(asking(), more).await.unwrap()["resultType"],
        "complete"
    );
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_waits_for_a_person_does_not_hold_up_a_stateful_server() {
    let gw = toolway(&(scripted("s", json!({})) + "stateful = true\n")).await;
    let new = New::at(&gw, "/mcp");
    let asked = new.call(asking(), json!({})).await.unwrap();
    assert_eq!(asked["resultType"], "input_required");
    let chat = gw.gateway.call_tool("s__act", r#"{"n": 1}"#);
    let chat = timeout(PATIENCE, chat).await.expect("it has its turn");
    chat.expect("and its result");

    let old = Client::begin(&gw, "2025-11-25", json!({"elicitation": {}})).await;
    let refused = text(&old.call(act(1, asking())).await);
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(
        why.contains("it cannot be told"),
        "two calls are open on one pipe: {why}"
    );

    let key = asked["inputRequests"].as_object().unwrap().keys().next();
    let more =
        json!({"inputResponses": {key.unwrap(): yes()}, "requestState": asked["requestState"]});
    let done = new.call(asking(), more).await.unwrap();
    assert_eq!(text(&done)["result"], yes());

    let mut stream = old.stream(act(2, asking())).await;
    let asks = stream.next().await.unwrap();
    assert_eq!(asks["method"], ELICIT);
    let chat = gw.gateway.call_tool("s__act", r#"{"n": 2}"#);
    let chat = timeout(PATIENCE, chat).await.expect("it has its turn");
    chat.expect("and its result");
    let answer = json!({"jsonrpc": "2.0", "id": asks["id"], "result": yes()});
    assert_eq!(old.post(answer).await.status, 202);
    assert_eq!(
        text(&stream.next().await.unwrap()["result"])["result"],
        yes()
    );
    gw.join().await;
}

#[tokio::test]
async fn an_old_client_is_asked_on_its_stream_when_a_new_server_needs_input() {
    let gw = new_server().await;
    let client = Client::begin(&gw, "2025-06-18", json!({"elicitation": {}})).await;
    let mut stream = client.stream(act(1, needing())).await;
    let asks = stream.next().await.unwrap();
    assert_eq!(
        (&asks["method"], &asks["params"]),
        (&json!(ELICIT), &question())
    );
    let answer = json!({"jsonrpc": "2.0", "id": asks["id"], "result": yes()});
    assert_eq!(client.post(answer).await.status, 202);
    let done = stream.next().await.unwrap();
    let result = &done["result"];
    assert!(
        result["resultType"].is_null(),
        "no word of another era: {result}"
    );
    let params = text(result);
    assert_eq!(params["inputResponses"], json!({"sure": yes()}));
    assert_eq!(params["requestState"], "of the server");
    gw.join().await;
}

#[tokio::test]
async fn what_a_new_server_needs_of_a_new_client_passes_as_it_is() {
    let gw = new_server().await;
    let client = New::at(&gw, "/mcp");
    let asked = client.call(needing(), json!({})).await.unwrap();
    assert_eq!(asked, needing()["result"]);
    let more = json!({"inputResponses": {"sure": yes()}, "requestState": "of the server"});
    let params = text(&client.call(needing(), more).await.unwrap());
    assert_eq!(params["inputResponses"], json!({"sure": yes()}));
    assert_eq!(params["requestState"], "of the server");
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_hears_what_is_missing() {
    let gw = new_server().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let got = client.post(act(1, needing())).await.json();
    let message = got["error"]["message"].as_str().unwrap();
    assert!(message.contains(ELICIT), "{message}");
    gw.join().await;
}

/// A server with a prompt, a resource and a template; its answers repeat what it was asked.
fn library(name: &str) -> String {
    scripted(
        name,
        json!({
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}, "completions": {}},
            "instructions": format!("Ask {name}."),
            "results": {
                "prompts/list": {"prompts": [{"name": "greet", "x-unknown": 1}]},
                "prompts/get": {"messages": [{"role": "user", "content": {"type": "resource_link", "uri": "doc:1", "name": "n"}}]},
                "resources/list": {"resources": [{"uri": "doc:1", "name": "one"}]},
                "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "doc:{id}", "name": "any"}]},
                "resources/read": {"contents": [{"uri": "doc:1", "text": name}]},
                "completion/complete": {"completion": {"values": [name]}},
            },
        }),
    )
}

async fn libraries() -> Toolway {
    let profile = "\n[profiles.alone]\nserver = \"b\"\n[profiles.some]\ntools = [\"a__*\"]\n";
    toolway(&(library("a") + &library("b") + profile)).await
}

fn all(result: &Value, list: &str, key: &str) -> Vec<String> {
    let entries = result[list]
        .as_array()
        .unwrap_or_else(|| panic!("{result}"));
    entries
        .iter()
        .map(|it| it[key].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn everything_of_all_servers_is_shown_under_names_that_lead_back() {
    let gw = libraries().await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let ask = |method: &str, params: Value| client.call(request(1, method, params));

    let prompts = ask("prompts/list", json!({})).await;
    assert_eq!(all(&prompts, "prompts", "name"), ["a__greet", "b__greet"]);
    assert_eq!(prompts["prompts"][0]["x-unknown"], 1);
    let resources = ask("resources/list", json!({})).await;
    let uris = all(&resources, "resources", "uri");
    assert_eq!(uris, ["toolway://a/doc:1", "toolway://b/doc:1"]);
    let templates = ask("resources/templates/list", json!({})).await;
    let templates = all(&templates, "resourceTemplates", "uriTemplate");
    assert_eq!(templates, ["toolway://a/doc:{id}", "toolway://b/doc:{id}"]);

    let prompt = ask("prompts/get", json!({"name": "b__greet"})).await;
    assert_eq!(prompt["messages"][0]["content"]["uri"], "toolway://b/doc:1");
    let read = ask("resources/read", json!({"uri": "toolway://b/doc:1"})).await;
    assert_eq!(
        read["contents"],
        json!([{"uri": "toolway://b/doc:1", "text": "b"}])
    );
    let argument = json!({"name": "id", "value": ""});
    let of_template = json!({"ref": {"type": "ref/resource", "uri": "toolway://a/doc:{id}"}, "argument": argument});
    let completed = ask("completion/complete", of_template).await;
    assert_eq!(completed["completion"]["values"], json!(["a"]));
    let of_prompt =
        json!({"ref": {"type": "ref/prompt", "name": "b__greet"}, "argument": argument});
    let completed = ask("completion/complete", of_prompt).await;
    assert_eq!(completed["completion"]["values"], json!(["b"]));
    gw.join().await;
}

#[tokio::test]
async fn a_profile_of_one_server_shows_it_as_it_is() {
    let gw = libraries().await;
    let alone = Client::at(&gw, "/mcp/alone")
        .initialized("2025-11-25", json!({}))
        .await;
    let tools = alone.call(request(1, "tools/list", json!({}))).await;
    assert_eq!(all(&tools, "tools", "name"), ["act"]);
    let prompt = alone
        .call(request(2, "prompts/get", json!({"name": "greet"})))
        .await;
    assert_eq!(prompt["messages"][0]["content"]["uri"], "doc:1");
    let read = alone
        .call(request(3, "resources/read", json!({"uri": "doc:1"})))
        .await;
    assert_eq!(read["contents"][0], json!({"uri": "doc:1", "text": "b"}));

    let some = Client::at(&gw, "/mcp/some")
        .initialized("2025-11-25", json!({}))
        .await;
    let tools = some.call(request(1, "tools/list", json!({}))).await;
    assert_eq!(all(&tools, "tools", "name"), ["a__act"]);
    let call = request(2, "tools/call", json!({"name": "b__act", "arguments": {}}));
    assert_eq!(some.post(call).await.json()["error"]["code"], -32602);
    gw.join().await;
}

#[tokio::test]
async fn a_resource_that_is_not_there_has_the_code_of_the_clients_version() {
    let gw = libraries().await;
    let old = Client::begin(&gw, "2025-11-25", json!({})).await;
    let params = json!({"uri": "toolway://nobody/x"});
    let got = old
        .post(request(1, "resources/read", params.clone()))
        .await
        .json();
    assert_eq!(got["error"]["code"], -32002);
    let error = New::at(&gw, "/mcp")
        .send("resources/read", params)
        .await
        .unwrap_err();
    assert_eq!(error["code"], -32602);
    gw.join().await;
}

#[tokio::test]
async fn a_long_list_comes_in_pages_that_are_the_list() {
    let tools: Vec<Value> = (0..2500)
        .map(|n| json!({"name": format!("t{n:04}"), "inputSchema": {"type": "object"}}))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let definitions: Vec<Value> = tools
        .iter()
        .map(|it| json!({"type": "function", "function": {"name": it["name"]}}))
        .collect();
    std::fs::write(file.path(), Value::Array(definitions).to_string()).unwrap();
    let path = file.path().display().to_string();
    let gw = toolway(&format!(
        "[functions.f]\ndefinitions = {path:?}\nendpoint = \"http://127.0.0.1:9/\"\n"
    ))
    .await;
    let client = Client::begin(&gw, "2025-11-25", json!({})).await;
    let (mut read, mut cursor, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let page = client
            .call(request(1, "tools/list", json!({"cursor": cursor})))
            .await;
        read.extend(all(&page, "tools", "name"));
        pages += 1;
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(pages, 3);
    let names: Vec<String> = tools
        .iter()
        .map(|it| format!("f__{}", it["name"].as_str().unwrap()))
        .collect();
    assert_eq!(read, names);
    let wrong = request(2, "tools/list", json!({"cursor": "made up"}));
    assert_eq!(client.post(wrong).await.json()["error"]["code"], -32602);
    gw.join().await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_reach_nobody_and_the_model_reads_why() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let tools = json!([{"name": "act", "inputSchema": schema}]);
    let gw = toolway(&scripted("s", json!({"tools": tools}))).await;
    let call = act(1, json!({"n": "five", "do": "exit"}));
    let new = Client::begin(&gw, "2025-11-25", json!({})).await;
    let result = new.call(call.clone()).await;
    assert_eq!(result["isError"], true);
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("/n") && text.contains("integer"), "{text}");
    let old = Client::begin(&gw, "2025-06-18", json!({})).await;
    let error = &old.post(call).await.json()["error"];
    assert_eq!(
        (&error["code"], &error["data"]["path"]),
        (&json!(-32602), &json!("/n"))
    );
    gw.join().await;
}
