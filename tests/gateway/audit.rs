//! Who called what: a record of each call, of each decision, and what readers may see of them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Live, Toolway, toolway},
    model::{Model, Reply, call, say},
    sessions::{Lent, weather},
    tools::{Does, tools},
};

/// `admin` sees the audit, `alice` her own records. Nobody writes outside of `/data`; `rm` waits for a person.
const CONFIG: &str = r#"
[keys.admin]
key = "sk-admin-secret"
admin = true

[keys.alice]
key = "sk-alice-secret"

[approvals]
chat = "end_turn"

[[policy.rules]]
tools = ["*__write"]
args = { "/path" = { not = { inside = "/data" } } }
action = "deny"

[[policy.rules]]
tools = ["*__rm"]
action = "ask"
"#;

const ALICE: &str = "sk-alice-secret";

const ADMIN: &str = "sk-admin-secret";

async fn start(config: &str, replies: Vec<Reply>) -> Toolway {
    let files = tools()
        .tool("write", Does::Echoes)
        .tool("rm", Does::Echoes)
        .tool("hangs", Does::Holds);
    let config = format!("{config}\n{CONFIG}");
    let gw = toolway(Model::start(replies).await).config(&config);
    gw.server("files", files).start().await
}

async fn ask(gw: &Toolway, method: Method, path: &str, key: &str, body: Value) -> (u16, Value) {
    let request = gw.http.request(method, format!("{}{path}", gw.base));
    let mut request = request
        .bearer_auth(key)
        .header("user-agent", "tests/1.0")
        .header("accept", "application/json, text/event-stream");
    if !body.is_null() {
        request = request.json(&body);
    }
    if path == "/mcp" {
        request = request
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", body["params"]["name"].as_str().unwrap());
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(text.into()))
}

async fn post(gw: &Toolway, path: &str, body: Value) -> Value {
    ask(gw, Method::POST, path, ALICE, body).await.1
}

/// The records that a query gives, the oldest first.
async fn records(gw: &Toolway, query: &str) -> Vec<Value> {
    let path = format!("/audit?{query}");
    let request = gw.http.get(format!("{}{path}", gw.base)).bearer_auth(ADMIN);
    let mut answer: Value = request.send().await.unwrap().json().await.unwrap();
    let mut records: Vec<Value> =
        serde_json::from_value(answer["records"].take()).unwrap_or_else(|_| panic!("{answer}"));
    records.reverse();
    records
}

/// Makes the call on each face; gives their names.
async fn on_every_face(gw: &Toolway, tool: &str, arguments: &Value) -> Vec<&'static str> {
    let name = format!("files__{tool}");
    let message = json!([{"role": "user", "content": "hello"}]);
    let text = arguments.to_string();
    let calls = json!({"tool_calls": [{"id": "c", "function": {"name": name, "arguments": text}}]});
    let event = json!({"type": "tool_use_requested", "tool_call_id": "c", "tool": name,
        "args": arguments});
    let stateless = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "inspector", "version": "2"},
        "io.modelcontextprotocol/clientCapabilities": {}});
    let mcp = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": name, "arguments": arguments, "_meta": stateless}});
    let chat = |stream: bool| json!({"model": "m", "messages": message, "stream": stream});
    let messages = json!({"model": "m", "max_tokens": 9, "messages": message});
    let faces = [
        ("chat", "/v1/chat/completions".to_owned(), chat(false)),
        ("chat", "/v1/chat/completions".to_owned(), chat(true)),
        (
            "responses",
            "/v1/responses".to_owned(),
            json!({"model": "m", "input": "hello"}),
        ),
        ("messages", "/v1/messages".to_owned(), messages),
        ("tool_calls", "/v1/tool_calls".to_owned(), calls),
        ("tool_calls", format!("/tools/{name}"), arguments.clone()),
        ("events", "/v1/events".to_owned(), event),
        ("mcp", "/mcp".to_owned(), mcp),
        (
            "rest",
            format!("/servers/files/tools/{tool}"),
            arguments.clone(),
        ),
    ];
    for (_, path, body) in &faces {
        post(gw, path, body.clone()).await;
    }
    faces.iter().map(|(face, ..)| *face).collect()
}

/// The four chats of [`on_every_face`], each of which calls this tool.
fn chats(tool: &str, arguments: &Value) -> Vec<Reply> {
    let name = format!("files__{tool}");
    let one = |_| [call(&[("call_1", &name, arguments.clone())]), say("Done.")];
    (0..4).flat_map(one).collect()
}

/// On every face the call makes one record, with these members.
async fn check(tool: &str, arguments: Value, expected: Value) -> (Toolway, Vec<Value>) {
    let gw = start("", chats(tool, &arguments)).await;
    let faces = on_every_face(&gw, tool, &arguments).await;
    let records = records(&gw, "event=call").await;
    let found: Vec<&str> = records
        .iter()
        .map(|it| it["face"].as_str().unwrap())
        .collect();
    assert_eq!(found, faces, "{records:#?}");
    for record in &records {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(record[name], *value, "{name} of {record:#}");
        }
        let client = match record["face"].as_str() {
            Some("mcp") => "inspector/2",
            _ => "tests/1.0",
        };
        assert_eq!(record["client"], client, "{record:#}");
        assert_eq!(record["key"], "alice");
        assert!(
            record["request"].as_str().unwrap().starts_with("req_"),
            "{record:#}"
        );
        let text = record.to_string();
        assert!(
            !text.contains("secret") && !text.contains("/data"),
            "{text}"
        );
    }
    let mut ids: Vec<&str> = records
        .iter()
        .map(|it| it["id"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), faces.len());
    (gw, records)
}

#[tokio::test]
async fn a_call_makes_one_record_on_every_face() {
    let (gw, records) = check(
        "write",
        json!({"path": "/data/x"}),
        json!({"server": "files", "tool": "files__write", "verdict": "allowed", "rule": "policy.default",
            "outcome": "ok", "attempts": 1, "argument_bytes": 11}),
    )
    .await;
    assert!(
        records
            .iter()
            .all(|it| it["result_bytes"].as_u64().unwrap() > 10)
    );
    assert_eq!(gw.servers[0].calls().len(), records.len());
    gw.join().await;
}

#[tokio::test]
async fn a_denied_call_makes_one_record_on_every_face_and_names_the_rule() {
    let (gw, _) = check(
        "write",
        json!({"path": "/etc/passwd"}),
        json!({"server": "files", "tool": "files__write", "verdict": "denied", "rule": "policy.rules[0]",
            "outcome": "denied", "attempts": 0}),
    )
    .await;
    assert!(gw.servers[0].calls().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn a_call_of_a_tool_that_is_not_there_makes_one_record_on_every_face() {
    let expected = json!({"verdict": "denied", "outcome": "unknown_tool", "attempts": 0});
    let (gw, records) = check("nope", json!({}), expected).await;
    let names = records.iter().map(|it| it["tool"].as_str().unwrap());
    assert!(names.clone().all(|it| it.ends_with("nope")), "{records:#?}");
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_waits_makes_one_record_on_every_face() {
    let (gw, _) = check(
        "rm",
        json!({"path": "/data/x"}),
        json!({"server": "files", "tool": "files__rm", "verdict": "asked", "rule": "policy.rules[1]",
            "outcome": "waiting_for_approval", "attempts": 0}),
    )
    .await;
    // The same call waits as one confirmation, but over REST, where each is made by the request that confirms it.
    let asked = records(&gw, "event=approval&verdict=asked").await;
    assert_eq!(asked.len(), 2, "{asked:#?}");
    gw.join().await;
}

#[tokio::test]
async fn who_approved_a_call_is_recorded_and_the_call_as_confirmed() {
    let gw = start("", Vec::new()).await;
    let waits = post(&gw, "/servers/files/tools/rm", json!({"path": "/x"})).await;
    let id = waits["confirmation_id"].as_str().unwrap();
    let path = format!("/confirmations/{id}");
    ask(&gw, Method::POST, &path, ADMIN, json!({"confirm": true})).await;
    let decided = records(&gw, &format!("confirmation={id}&verdict=confirmed")).await;
    let [decided] = &decided[..] else {
        panic!("{decided:#?}")
    };
    assert_eq!(decided["event"], "approval");
    assert_eq!(decided["key"], "admin", "who decided");
    let made = records(&gw, "event=call&verdict=confirmed").await;
    let [made] = &made[..] else {
        panic!("{made:#?}")
    };
    assert_eq!(made["key"], "alice", "whose call it is");
    assert_eq!(
        (&made["outcome"], &made["attempts"]),
        (&json!("ok"), &json!(1))
    );
    let waits = post(&gw, "/servers/files/tools/rm", json!({"path": "/y"})).await;
    let path = format!(
        "/confirmations/{}",
        waits["confirmation_id"].as_str().unwrap()
    );
    ask(&gw, Method::POST, &path, ADMIN, json!({"confirm": false})).await;
    assert_eq!(records(&gw, "verdict=refused").await.len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn what_nobody_decided_on_is_recorded_as_expired_once() {
    let gw = start("", Vec::new()).await;
    drop(gw);
    let expiring = CONFIG.replace("chat = \"end_turn\"", "expires = \"1ms\"");
    let files = tools().tool("rm", Does::Echoes);
    let gw = toolway(Model::start(Vec::new()).await).config(&expiring);
    let gw = gw.server("files", files).start().await;
    let waits = post(&gw, "/servers/files/tools/rm", json!({"path": "/x"})).await;
    let path = format!(
        "/confirmations/{}",
        waits["confirmation_id"].as_str().unwrap()
    );
    for status in [410, 404] {
        let decided = ask(&gw, Method::POST, &path, ADMIN, json!({"confirm": true})).await;
        assert_eq!(decided.0, status);
    }
    assert_eq!(records(&gw, "verdict=expired").await.len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn a_call_whose_client_leaves_is_recorded_as_cancelled() {
    let gw = start("", vec![call(&[("call_1", "files__hangs", json!({}))])]).await;
    let body = json!({"stream": true});
    let live = gw
        .live(body, &[("authorization", "Bearer sk-alice-secret")])
        .await;
    gw.servers[0].was_called(1).await;
    drop(live);
    gw.servers[0].was_cancelled().await;
    let records = records(&gw, "event=call").await;
    let [record] = &records[..] else {
        panic!("{records:#?}")
    };
    assert_eq!(record["outcome"], "cancelled");
    assert_eq!(
        (&record["verdict"], &record["attempts"]),
        (&json!("allowed"), &json!(1))
    );
    gw.join().await;
}

#[tokio::test]
async fn arguments_and_results_are_recorded_where_configured_and_secrets_never() {
    let config = "[audit]\narguments = true\nresults = true\nmax_value_bytes = 300\n";
    let gw = start(config, Vec::new()).await;
    let arguments = json!({"path": "/data/x", "password": "hunter2", "note": "key sk-admin-secret",
        "nested": [{"api_key": "abc"}], "text": "x".repeat(1000)});
    post(&gw, "/servers/files/tools/write", arguments).await;
    let records = records(&gw, "").await;
    let record = records.iter().find(|it| it["event"] == "call").unwrap();
    for value in [&record["arguments"], &record["result"]] {
        let text = value.as_str().unwrap();
        assert!(text.contains("/data/x"), "{text}");
        assert!(text.len() <= 303, "{}", text.len());
        for secret in ["hunter2", "admin-secret", "abc"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    assert!(
        record["arguments"]
            .as_str()
            .unwrap()
            .contains("key [redacted]")
    );
    gw.join().await;
}

#[tokio::test]
async fn a_key_sees_its_own_records_and_an_admin_all() {
    let gw = start("", Vec::new()).await;
    let call = |key| {
        ask(
            &gw,
            Method::POST,
            "/tools/files__write",
            key,
            json!({"path": "/data/x"}),
        )
    };
    call(ALICE).await;
    call(ADMIN).await;
    let keys = |answer: &Value| -> Vec<String> {
        let records = answer["records"].as_array().unwrap().iter();
        records
            .map(|it| it["key"].as_str().unwrap_or("-").to_owned())
            .collect()
    };
    let audit = |query, key| {
        let path = format!("/audit?event=call{query}");
        let gw = &gw;
        async move { ask(gw, Method::GET, &path, key, Value::Null).await }
    };
    // `Accept` of these requests has event streams in it, so the form is said.
    assert_eq!(
        keys(&audit("&format=json", ADMIN).await.1),
        ["admin", "alice"]
    );
    assert_eq!(keys(&audit("&format=json", ALICE).await.1), ["alice"]);
    assert_eq!(
        keys(&audit("&format=json&key=alice", ADMIN).await.1),
        ["alice"]
    );
    assert_eq!(audit("&format=json&key=admin", ALICE).await.0, 403);
    let (status, _) = audit("", "sk-wrong").await;
    assert_eq!(status, 401);
    gw.join().await;
}

#[tokio::test]
async fn pages_lead_to_each_other() {
    let gw = start("", Vec::new()).await;
    for n in 0..5 {
        post(
            &gw,
            "/tools/files__write",
            json!({"path": format!("/data/{n}")}),
        )
        .await;
    }
    let mut path = "/audit?event=call&limit=2".to_owned();
    let mut ids = Vec::new();
    loop {
        let request = gw.http.get(format!("{}{path}", gw.base)).bearer_auth(ADMIN);
        let response = request.send().await.unwrap();
        let link = response.headers().get("link").cloned();
        let page: Value = response.json().await.unwrap();
        let records = page["records"].as_array().unwrap().iter();
        ids.extend(records.map(|it| it["id"].as_str().unwrap().to_owned()));
        assert_eq!(link.is_some(), page["next"].is_string());
        let Some(link) = link else { break };
        let link = link.to_str().unwrap();
        path = link[1..link.find('>').unwrap()].to_owned();
    }
    let all = records(&gw, "event=call").await;
    let all: Vec<_> = all
        .iter()
        .rev()
        .map(|it| it["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, all);
    assert_eq!(ids.len(), 5);
    gw.join().await;
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused() {
    let gw = start("", Vec::new()).await;
    for query in [
        "since=yesterday",
        "verdict=maybe",
        "limit=0",
        "limit=1001",
        "format=xml",
        "cursor=../../x",
        "tols=x",
    ] {
        let path = format!("{}/audit?{query}", gw.base);
        let response = gw.http.get(path).bearer_auth(ADMIN).send().await.unwrap();
        assert_eq!(response.status(), 400, "{query}");
        let error: Value = response.json().await.unwrap();
        assert!(error["error"].is_string(), "{query}: {error}");
    }
    gw.join().await;
}

#[tokio::test]
async fn a_table_has_no_formulas_of_clients() {
    let gw = start("", Vec::new()).await;
    let url = format!("{}/tools/files__write", gw.base);
    let request = gw.http.post(url).bearer_auth(ALICE);
    let request = request.header("user-agent", "=cmd|' /C calc'!A0, \"x\"");
    request
        .json(&json!({"path": "/data/x"}))
        .send()
        .await
        .unwrap();
    let request = gw.http.get(format!("{}/audit?event=call", gw.base));
    let request = request.bearer_auth(ADMIN).header("accept", "text/csv");
    let response = request.send().await.unwrap();
    let kind = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(kind.starts_with("text/csv"), "{kind}");
    let table = response.text().await.unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].starts_with("time,id,event,"), "{table}");
    assert!(
        lines[1].contains(",\"'=cmd|' /C calc'!A0, \"\"x\"\"\","),
        "{table}"
    );
    let lines = ask(
        &gw,
        Method::GET,
        "/audit?event=call&format=jsonl",
        ADMIN,
        Value::Null,
    )
    .await;
    assert_eq!(lines.1["face"], "tool_calls", "one line is one JSON text");
    gw.join().await;
}

#[tokio::test]
async fn who_follows_reads_what_was_and_what_comes_each_once() {
    let gw = start("", Vec::new()).await;
    post(&gw, "/tools/files__write", json!({"path": "/data/old"})).await;
    let url = format!("{}/audit?event=call&since=1h&follow=true", gw.base);
    let response = gw.http.get(url).bearer_auth(ADMIN).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut live = Live::of(response);
    live.until("files__write").await;
    post(&gw, "/tools/files__write", json!({"path": "/etc/new"})).await;
    live.until("\"denied\"").await;
    let so_far = live.so_far().to_owned();
    assert_eq!(so_far.matches("event: record").count(), 2, "{so_far}");
    // It ends when toolway does.
    gw.join().await;
}

#[tokio::test]
async fn a_restart_keeps_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("data_dir = \"{}\"\n", folder.path().display());
    let gw = start(&config, Vec::new()).await;
    post(&gw, "/tools/files__write", json!({"path": "/data/x"})).await;
    gw.join().await;
    let gw = start(&config, Vec::new()).await;
    post(&gw, "/tools/files__write", json!({"path": "/data/y"})).await;
    assert_eq!(records(&gw, "event=call").await.len(), 2);
    gw.join().await;
}

#[tokio::test]
async fn health_says_how_many_records_were_lost() {
    let gw = start("", Vec::new()).await;
    let health = gw
        .http
        .get(format!("{}/health", gw.base))
        .bearer_auth(ADMIN);
    let health: Value = health.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        health["audit"],
        json!({"state": "ready", "dropped": 0, "reason": null})
    );
    gw.join().await;
}

#[tokio::test]
async fn an_audit_that_is_off_has_no_records() {
    let gw = start("[audit]\nenabled = false\n", Vec::new()).await;
    post(&gw, "/tools/files__write", json!({"path": "/data/x"})).await;
    assert!(records(&gw, "").await.is_empty());
    gw.join().await;
}

#[tokio::test]
async fn the_states_of_servers_are_recorded() {
    let gone = "[servers.gone]\ncommand = \"/no/such/program\"\n";
    let gw = start(gone, Vec::new()).await;
    let states = |records: &[Value], server: &str| -> Vec<String> {
        let of_server = records.iter().filter(|it| it["server"] == server);
        of_server
            .map(|it| it["outcome"].as_str().unwrap().to_owned())
            .collect()
    };
    let at_start = records(&gw, "event=server").await;
    assert_eq!(states(&at_start, "files"), ["ready"]);
    assert_eq!(states(&at_start, "gone"), ["failed"]);
    let failed = at_start.iter().find(|it| it["server"] == "gone").unwrap();
    assert!(failed["error"].is_string(), "{failed}");
    let url = format!("{}/audit?server=files&follow=true", gw.base);
    let response = gw.http.get(url).bearer_auth(ADMIN).send().await.unwrap();
    let mut live = Live::of(response);
    ask(
        &gw,
        Method::POST,
        "/servers/files/restart",
        ADMIN,
        json!({}),
    )
    .await;
    live.until("\"restarting\"").await;
    live.until("\"ready\"").await;
    let later = records(&gw, "event=server&server=files").await;
    assert_eq!(states(&later, "files"), ["ready", "restarting", "ready"]);
    gw.join().await;
}

/// The records that a client without a key reads.
async fn own_records(gw: &Toolway) -> Vec<Value> {
    let mut answer = gw.json("/audit?event=call").await;
    serde_json::from_value(answer["records"].take()).unwrap()
}

#[tokio::test]
async fn a_call_of_a_lent_function_makes_one_record() {
    let gw = toolway(Model::start(Vec::new()).await).start().await;
    let lent = Lent::open(&gw, json!({"tools": weather()})).await;
    let mut events = lent.events(&gw, None).await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "3"},
        "io.modelcontextprotocol/clientCapabilities": {}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "weather", "arguments": {"city": "Ulm"}, "_meta": meta}});
    let request = gw.http.post(format!("{}/mcp/s/{}", gw.base, lent.token()));
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "weather")
        .json(&message);
    let calling = tokio::spawn(request.send());
    let id = events.one_call().await;
    lent.answer(&gw, &id, json!("sunny")).await;
    calling.await.unwrap().unwrap();
    let records = own_records(&gw).await;
    let [record] = &records[..] else {
        panic!("{records:#?}")
    };
    assert_eq!(record["face"], "mcp_session");
    assert_eq!(record["client"], "agent/3");
    assert_eq!(
        (&record["outcome"], &record["verdict"]),
        (&json!("ok"), &json!("allowed"))
    );
    gw.join().await;
}

#[tokio::test]
async fn a_call_of_an_mcp_client_with_a_session_has_the_name_that_it_began_with() {
    let add = tools().add();
    let gw = toolway(Model::start(Vec::new()).await).server("calc", add);
    let gw = gw.start().await;
    let post = |message: Value, session: Option<String>| {
        let request = gw.http.post(format!("{}/mcp", gw.base)).json(&message);
        let request = request.header("accept", "application/json, text/event-stream");
        match session {
            Some(id) => request.header("mcp-session-id", id).send(),
            None => request.send(),
        }
    };
    let begin = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ide", "version": "9"}}});
    let begun = post(begin, None).await.unwrap();
    let session = begun.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "calc__add", "arguments": {"a": 1, "b": 2}}});
    post(call, Some(session))
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    let records = own_records(&gw).await;
    let [record] = &records[..] else {
        panic!("{records:#?}")
    };
    assert_eq!(
        (&record["face"], &record["client"]),
        (&json!("mcp"), &json!("ide/9"))
    );
    gw.join().await;
}

#[tokio::test]
async fn a_kept_result_that_serves_a_call_is_a_record_without_an_attempt() {
    let read = json!({"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}});
    let files = tools().listed(read, Does::Echoes);
    let url = files.start().await;
    let config = format!(
        "[servers.files]\nurl = \"{}\"\ncache = {{ \"*\" = \"60s\" }}\n",
        url.url
    );
    let gw = toolway(Model::start(Vec::new()).await)
        .config(&config)
        .start()
        .await;
    for _ in 0..2 {
        let request = gw.http.post(format!("{}/tools/files__read", gw.base));
        request.json(&json!({})).send().await.unwrap();
    }
    let attempts: Vec<_> = own_records(&gw).await;
    let attempts: Vec<_> = attempts.iter().map(|it| it["attempts"].clone()).collect();
    assert_eq!(attempts, [0, 1], "the newest first");
    gw.join().await;
}
