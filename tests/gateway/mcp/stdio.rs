use std::{path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use toolway::{
    gateway::{Gateway, Setup},
    server::stdio,
};

use crate::mcp::{
    client::{act, initialize, request},
    harness::{PATIENCE, scripted},
};

/// The binary, as a client starts it.
struct Piped {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
}

/// Lists wait for its servers as long as a busy machine takes.
fn start(toml: &str) -> Piped {
    start_as_written(&format!("start_wait = \"60s\"\n{toml}"))
}

fn start_as_written(toml: &str) -> Piped {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("toolway.toml"), toml).unwrap();
    let mut child = command(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    Piped {
        input: child.stdin.take(),
        output: BufReader::new(child.stdout.take().unwrap()).lines(),
        child,
        folder,
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolway"));
    command
        .arg("mcp")
        .current_dir(folder)
        .env_remove("TOOLWAY_CONFIG")
        .env_remove("TOOLWAY_LOG");
    command
}

impl Piped {
    async fn write(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(text.as_bytes()).await.unwrap();
        input.flush().await.unwrap();
    }

    async fn send(&mut self, message: Value) {
        self.write(&format!("{message}\n")).await;
    }

    /// The next message; every line is one.
    async fn next(&mut self) -> Option<Value> {
        let line = timeout(PATIENCE, self.output.next_line())
            .await
            .expect("a line")
            .unwrap()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    async fn call(&mut self, message: Value) -> Value {
        let id = message["id"].clone();
        self.send(message).await;
        let answer = self.next().await.expect("an answer");
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    async fn initialized(toml: &str, version: &str, capabilities: Value) -> Piped {
        let mut piped = start(toml);
        let answer = piped.call(initialize(version, capabilities)).await;
        assert_eq!(answer["result"]["protocolVersion"], version);
        piped
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        piped
    }

    /// Closes its input; gives the exit code.
    async fn end(mut self) -> Option<i32> {
        drop(self.input.take());
        while self.next().await.is_some() {}
        self.status().await
    }

    #[cfg(unix)]
    fn signal(&self, signal: nix::sys::signal::Signal) {
        let process = nix::unistd::Pid::from_raw(self.child.id().unwrap().cast_signed());
        nix::sys::signal::kill(process, signal).unwrap();
    }

    /// The next message is the error that toolway is shutting down, for the request of this id.
    async fn shut_down(&mut self, id: i64) {
        let answer = self.next().await.expect("an answer");
        assert_eq!(answer["id"], id, "{answer}");
        let why = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(why.contains("shutting down"), "{answer}");
    }

    async fn status(&mut self) -> Option<i32> {
        timeout(PATIENCE, self.child.wait())
            .await
            .expect("it ends")
            .unwrap()
            .code()
    }
}

fn acting() -> String {
    scripted("s", json!({}))
}

fn whole(mut message: Value) -> Value {
    message["params"]["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}});
    message
}

#[tokio::test]
async fn what_servers_have_is_there_from_the_first_request_on() {
    let prompts: Vec<_> = (0..8)
        .map(|n| json!({"prompts": [{"name": format!("p{n}")}]}))
        .collect();
    let resources: Vec<_> = (0..8)
        .map(|n| json!({"resources": [{"uri": format!("a:{n}"), "name": "r"}]}))
        .collect();
    let script = json!({
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "start_delay_ms": 200,
        "results": {
            "prompts/list": prompts, "resources/list": resources,
            "resources/templates/list": {"resourceTemplates": []},
            "prompts/get": {"messages": []},
        },
    });
    let first = async |message: Value| {
        let toml = scripted("s", script.clone());
        let mut piped = Piped::initialized(&toml, "2025-11-25", json!({})).await;
        piped.send(message).await;
        loop {
            // That there is something new may be said before.
            let said = piped.next().await.expect("an answer");
            if said["id"] == 1 {
                return said["result"].clone();
            }
        }
    };
    let count = |result: &Value, key: &str| result[key].as_array().map(Vec::len);
    assert_eq!(
        count(
            &first(request(1, "prompts/list", json!({}))).await,
            "prompts"
        ),
        Some(8)
    );
    assert_eq!(
        count(
            &first(request(1, "resources/list", json!({}))).await,
            "resources"
        ),
        Some(8)
    );
    let got = first(request(1, "prompts/get", json!({"name": "s__p7"}))).await;
    assert_eq!(count(&got, "messages"), Some(0));
    let called = first(request(
        1,
        "tools/call",
        json!({"name": "s__act", "arguments": {}}),
    ))
    .await;
    assert_eq!(count(&called, "content"), Some(1));
}

#[tokio::test]
async fn a_list_does_not_wait_for_ever_and_a_change_is_told_when_the_server_comes() {
    let program = crate::mcp::harness::scripted_server().display().to_string();
    let script = format!("until [ -e go ]; do sleep 0.02; done; exec '{program}'");
    let toml = format!(
        "start_wait = \"10ms\"\n[servers.late]\ncommand = \"sh\"\nargs = [\"-c\", {script:?}]\ncwd = \".\"\n"
    );
    let mut piped = start_as_written(&toml);
    piped.call(initialize("2025-11-25", json!({}))).await;
    piped
        .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    let list = piped.call(request(1, "tools/list", json!({}))).await;
    assert_eq!(list["result"]["tools"], json!([]));
    std::fs::write(piped.folder.path().join("go"), "").unwrap();
    let told = piped.next().await.expect("a notification");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    let list = piped.call(request(2, "tools/list", json!({}))).await;
    assert_eq!(list["result"]["tools"][0]["name"], "late__act");
    assert_eq!(piped.end().await, Some(0));
}

#[tokio::test]
async fn a_client_talks_to_everything_behind_toolway_and_ends_it_by_closing_its_end() {
    for version in ["2024-11-05", "2025-11-25"] {
        let mut piped = Piped::initialized(&acting(), version, json!({})).await;
        let tools = piped.call(request(1, "tools/list", json!({}))).await;
        assert_eq!(tools["result"]["tools"][0]["name"], "s__act");
        let result = piped.call(act("x", json!({"a": 1}))).await;
        assert_eq!(result["result"]["content"][0]["text"], r#"{"a":1}"#);
        assert_eq!(
            piped.call(request(2, "ping", json!({}))).await["result"],
            json!({})
        );
        let again = piped.call(initialize(version, json!({}))).await;
        assert_eq!(again["error"]["code"], -32600);
        assert_eq!(piped.end().await, Some(0));
    }
}

#[tokio::test]
async fn a_line_that_is_no_message_is_answered_and_life_goes_on() {
    let mut piped = start("max_body_bytes = 1024");
    for (line, id, code) in [
        ("{bad".to_owned(), Value::Null, -32700),
        ("[]".to_owned(), Value::Null, -32600),
        (r#"{"jsonrpc":"2.0","id":3}"#.to_owned(), json!(3), -32600),
        (
            request(4, "tools/list", json!({})).to_string(),
            json!(4),
            -32600,
        ),
        (
            format!("[{}]", request(4, "tools/list", json!({}))),
            Value::Null,
            -32600,
        ),
        (
            request(5, "tools/list", json!({"x": "x".repeat(5000)})).to_string(),
            json!(5),
            -32600,
        ),
        (
            request(6, "server/discover", json!({})).to_string(),
            json!(6),
            -32602,
        ),
    ] {
        piped.write(&format!("{line}\n\n  \n")).await;
        let answer = piped.next().await.unwrap();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&id, &json!(code)),
            "{line:.80}"
        );
    }
    assert_eq!(
        piped.call(request(7, "ping", json!({}))).await["result"],
        json!({})
    );
    assert_eq!(piped.end().await, Some(0));
}

#[tokio::test]
async fn all_that_was_asked_is_answered_when_the_input_ends_at_once() {
    let mut piped = start(&acting());
    let messages = [
        initialize("2025-11-25", json!({})),
        request(1, "tools/list", json!({})),
        request(2, "ping", json!({})),
    ];
    let text: String = messages.iter().map(|it| format!("{it}\n")).collect();
    piped.write(text.trim_end()).await;
    drop(piped.input.take());
    let mut ids = Vec::new();
    while let Some(answer) = piped.next().await {
        assert!(answer["error"].is_null(), "{answer}");
        ids.extend(answer["id"].as_i64());
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(piped.status().await, Some(0));
}

#[tokio::test]
async fn requests_stand_beside_each_other_and_one_can_be_cancelled() {
    let mut piped = Piped::initialized(&acting(), "2025-11-25", json!({})).await;
    piped.send(act(1, json!({"do": "hang"}))).await;
    assert_eq!(piped.call(act(2, json!({}))).await["id"], 2);
    let mut progressing = act(3, json!({"do": "progress", "steps": 1}));
    progressing["params"]["_meta"] = json!({"progressToken": "p"});
    piped.send(progressing).await;
    assert_eq!(piped.next().await.unwrap()["params"]["progressToken"], "p");
    assert_eq!(piped.next().await.unwrap()["id"], 3);
    piped.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    assert_eq!(piped.call(request(4, "ping", json!({}))).await["id"], 4);
    // Nothing runs any more, so that nothing is waited for.
    let begun = tokio::time::Instant::now();
    assert_eq!(piped.end().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(9));
}

#[tokio::test]
async fn the_person_at_a_client_is_asked_before_a_call() {
    let config = format!("{}\n[policy]\ndefault = \"ask\"\n", acting());
    let mut piped = Piped::initialized(&config, "2025-11-25", json!({"elicitation": {}})).await;
    let cases = [
        (
            json!({"action": "accept", "content": {"approve": true}}),
            false,
        ),
        (json!({"action": "accept", "content": {"approve": 1}}), true),
        (json!({"action": "cancel"}), true),
    ];
    for (n, (answer, is_refused)) in cases.into_iter().enumerate() {
        piped.send(act(n, json!({"n": n}))).await;
        let asked = piped.next().await.unwrap();
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        let schema = &asked["params"]["requestedSchema"];
        assert_eq!(schema["required"], json!(["approve"]));
        piped
            .send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer}))
            .await;
        let result = piped.next().await.unwrap()["result"].clone();
        assert_eq!(result["isError"] == true, is_refused, "{answer}: {result}");
    }
    assert_eq!(piped.end().await, Some(0));
}

#[tokio::test]
async fn a_server_asks_the_client_and_tells_it_what_happens() {
    let mut piped = Piped::initialized(&acting(), "2025-11-25", json!({"elicitation": {}})).await;
    let params = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
    piped
        .send(act(
            1,
            json!({"do": "ask", "method": "elicitation/create", "params": params}),
        ))
        .await;
    let asked = piped.next().await.unwrap();
    assert_eq!(
        (&asked["method"], &asked["params"]),
        (&json!("elicitation/create"), &params)
    );
    piped
        .send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}))
        .await;
    let answer = piped.next().await.unwrap();
    assert!(
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("decline"),
        "{answer}"
    );
    let new = json!([{"name": "other", "inputSchema": {"type": "object"}}]);
    piped
        .send(act(2, json!({"do": "change", "tools": new})))
        .await;
    let mut seen = [piped.next().await.unwrap(), piped.next().await.unwrap()];
    seen.sort_by_key(|it| it["id"].is_null());
    assert_eq!(
        (&seen[0]["id"], &seen[1]["method"]),
        (&json!(2), &json!("notifications/tools/list_changed"))
    );
    piped.end().await;
}

#[tokio::test]
async fn both_eras_share_the_pipes() {
    let mut piped = start(&acting());
    let about = piped
        .call(whole(request(1, "server/discover", json!({}))))
        .await;
    assert_eq!(about["result"]["supportedVersions"][0], "2026-07-28");
    let tools = piped.call(whole(request(2, "tools/list", json!({})))).await;
    assert_eq!(tools["result"]["resultType"], "complete");
    assert_eq!(
        piped.call(whole(request(3, "ping", json!({})))).await["error"]["code"],
        -32601
    );
    let listen = whole(request(
        "sub",
        "subscriptions/listen",
        json!({"notifications": {"toolsListChanged": true}}),
    ));
    piped.send(listen.clone()).await;
    let acknowledged = piped.next().await.unwrap();
    assert_eq!(
        acknowledged["method"],
        "notifications/subscriptions/acknowledged"
    );
    let mut other = listen;
    other["id"] = "cancelled".into();
    piped.send(other).await;
    piped.next().await;
    piped.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "cancelled"}})).await;
    piped.call(initialize("2025-11-25", json!({}))).await;
    assert!(
        piped.call(request(5, "tools/list", json!({}))).await["result"]["resultType"].is_null()
    );
    drop(piped.input.take());
    let ended = piped.next().await.unwrap();
    assert_eq!(ended["id"], "sub");
    assert_eq!(ended["result"]["resultType"], "complete");
    assert_eq!(piped.next().await, None);
    assert_eq!(piped.status().await, Some(0));
}

#[cfg(unix)]
#[tokio::test]
async fn a_call_that_outlasts_the_grace_is_answered_with_an_error() {
    use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGTERM};
    let toml = format!("shutdown_grace = \"100ms\"\n{}", acting());
    for end in [Some(SIGTERM), Some(SIGINT), Some(SIGHUP), None] {
        let mut piped = Piped::initialized(&toml, "2025-11-25", json!({})).await;
        piped.send(act(1, json!({"do": "hang"}))).await;
        piped.call(act(2, json!({}))).await;
        match end {
            Some(signal) => piped.signal(signal),
            None => drop(piped.input.take()),
        }
        piped.shut_down(1).await;
        assert_eq!(piped.next().await, None);
        assert_eq!(piped.status().await, Some(0));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_runs_when_it_is_told_to_stop_may_end_and_nothing_new_begins() {
    let toml = format!("shutdown_grace = \"60s\"\n{}", acting());
    let mut piped = Piped::initialized(&toml, "2025-11-25", json!({"roots": {}})).await;
    piped
        .send(act(1, json!({"do": "ask", "method": "roots/list"})))
        .await;
    let asked = piped.next().await.unwrap();
    assert_eq!(asked["method"], "roots/list");
    let listen = request("sub", "subscriptions/listen", json!({"notifications": {}}));
    piped.send(whole(listen)).await;
    piped.next().await.expect("acknowledged");
    piped.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(piped.next().await.unwrap()["id"], "sub", "it stops");
    for (id, message) in [
        (2, request(2, "tools/list", json!({}))),
        (3, whole(request(3, "tools/list", json!({})))),
    ] {
        piped.send(message).await;
        piped.shut_down(id).await;
    }
    let roots = json!({"roots": []});
    piped
        .send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": roots}))
        .await;
    let answer = piped.next().await.unwrap();
    assert_eq!((&answer["id"], &answer["error"]), (&json!(1), &Value::Null));
    assert_eq!(piped.next().await, None);
    assert_eq!(piped.status().await, Some(0));
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_after_the_end_of_the_input_ends_the_grace() {
    let toml = format!("shutdown_grace = \"10m\"\n{}", acting());
    let mut piped = Piped::initialized(&toml, "2025-11-25", json!({})).await;
    piped.send(act(1, json!({"do": "hang"}))).await;
    let listen = request("sub", "subscriptions/listen", json!({"notifications": {}}));
    piped.send(whole(listen)).await;
    piped.next().await.expect("acknowledged");
    drop(piped.input.take());
    assert_eq!(piped.next().await.unwrap()["id"], "sub", "it stops");
    piped.signal(nix::sys::signal::Signal::SIGTERM);
    piped.shut_down(1).await;
    assert_eq!(piped.status().await, Some(0));
}

#[tokio::test]
async fn a_profile_is_offered_instead_of_everything() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!(
        "start_wait = \"60s\"\n{}\n[profiles.one]\nserver = \"s\"\n",
        acting()
    );
    std::fs::write(folder.path().join("toolway.toml"), toml).unwrap();
    let messages = format!(
        "{}\n{}\n",
        initialize("2025-11-25", json!({})),
        request(1, "tools/list", json!({}))
    );
    let mut child = command(folder.path())
        .args(["--profile", "one"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(messages.as_bytes())
        .await
        .unwrap();
    let output = timeout(PATIENCE, child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(r#""name":"act""#), "{text}");
    let output = command(folder.path())
        .args(["--profile", "two"])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("no profile `two`") && output.stdout.is_empty(),
        "{said}"
    );
}

#[tokio::test]
async fn functions_need_no_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let function = json!({"type": "function", "function": {"name": "invoice", "parameters": {"type": "object", "properties": {}}}});
    std::fs::write(
        folder.path().join("billing.json"),
        json!([function]).to_string(),
    )
    .unwrap();
    let listed = |arguments: &[&str]| {
        let mut command = command(folder.path());
        let child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        async move {
            let mut child = child.unwrap();
            let messages = format!(
                "{}\n{}\n",
                initialize("2025-11-25", json!({})),
                request(1, "tools/list", json!({}))
            );
            // It may have ended already.
            let _ = child
                .stdin
                .take()
                .unwrap()
                .write_all(messages.as_bytes())
                .await;
            let output = timeout(PATIENCE, child.wait_with_output())
                .await
                .unwrap()
                .unwrap();
            (
                output.status.code(),
                String::from_utf8(output.stdout).unwrap(),
                String::from_utf8(output.stderr).unwrap(),
            )
        }
    };
    let endpoint = ["--endpoint", "http://127.0.0.1:9/tool_calls"];
    let (code, said, _) = listed(&[&["--functions", "billing.json"], &endpoint[..]].concat()).await;
    assert_eq!(code, Some(0));
    assert!(
        said.contains(r#""name":"invoice""#),
        "alone it keeps its name: {said}"
    );
    let beside =
        "[functions.other]\ndefinitions = \"billing.json\"\nendpoint = \"http://127.0.0.1:9/\"\n";
    std::fs::write(folder.path().join("toolway.toml"), beside).unwrap();
    let (_, said, _) = listed(&[&["--functions", "billing.json"], &endpoint[..]].concat()).await;
    assert!(
        said.contains(r#""name":"billing__invoice""#),
        "beside others it does not: {said}"
    );
    std::fs::remove_file(folder.path().join("toolway.toml")).unwrap();
    let (code, said, problems) =
        listed(&["--functions", "gone.json", "--endpoint", "ftp://x"]).await;
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert!(
        problems.contains("--functions: ") && problems.contains("--endpoint: "),
        "{problems}"
    );
    let (code, ..) = listed(&["--functions", "billing.json"]).await;
    assert_eq!(code, Some(2));
}

#[tokio::test]
async fn what_is_cancelled_in_the_same_breath_has_no_answer() {
    let toml = format!("[loop]\ntool_timeout = \"300ms\"\n{}", acting());
    for batched in [false, true] {
        let mut piped = Piped::initialized(&toml, "2025-03-26", json!({})).await;
        let call = act(1, json!({"do": "hang"}));
        let call = if batched { json!([call]) } else { call };
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": 1}});
        piped.write(&format!("{call}\n{cancel}\n")).await;
        piped.call(request(2, "ping", json!({}))).await;
        drop(piped.input.take());
        assert_eq!(piped.next().await, None, "nothing is said any more");
        assert_eq!(piped.status().await, Some(0));
    }
}

#[tokio::test]
async fn it_ends_when_nobody_reads_what_it_writes() {
    let Piped {
        mut child,
        input,
        output,
        folder: _folder,
    } = start("");
    drop(output);
    let mut input = input.unwrap();
    let ping = format!("{}\n", request(1, "ping", json!({})));
    input.write_all(ping.as_bytes()).await.unwrap();
    let ended = timeout(PATIENCE, child.wait()).await.expect("it ends");
    assert_eq!(ended.unwrap().code(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_for_a_minute_counts_as_gone() {
    let gateway = Gateway::start(Setup::default()).unwrap();
    let view = gateway.view(None).unwrap();
    let (mut client, input) = tokio::io::duplex(1 << 20);
    let (_unread, output) = tokio::io::duplex(64);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for _ in 0..1000 {
        let line = format!("{ping}\n");
        client.write_all(line.as_bytes()).await.unwrap();
    }
    // The end of the input is behind more lines than are read for a client like this.
    drop(client);
    let config = stdio::Config::default();
    let never = std::future::pending();
    let served = stdio::serve(gateway, view, config, (input, output), never);
    timeout(PATIENCE * 10, served)
        .await
        .expect("it ends")
        .unwrap();
}
