//! Random policies, each with one call on every face: what one face denies or asks about runs on no other, and the rule that
//! says so is the same. `TOOLWAY_POLICIES` is how many are tried, 40 if it is absent; CI tries 200.

use std::fmt::Write;

use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Value, json};

use crate::{
    harness::{Toolway, toolway},
    model::{Model, call, say},
    tools::{Does, tools},
};

/// A policy, and a call.
#[derive(Clone, Debug)]
struct Case {
    default: &'static str,
    uses_annotations: bool,
    rules: Vec<String>,
    risks: [String; 2],
    /// What Alice sees.
    tools_of_alice: Vec<&'static str>,
    tool: (&'static str, &'static str),
    arguments: Value,
    key: &'static str,
}

fn case() -> impl Strategy<Value = Case> {
    let actions = || select(vec!["allow", "ask", "deny"]);
    let patterns = vec![
        "*",
        "a__*",
        "b__*",
        "*__write",
        "*__read",
        "a__read",
        "!b__write",
    ];
    let tests = vec![
        r#""/path" = { inside = "/data" }"#,
        r#""/path" = { not = { inside = "/data" } }"#,
        r#""/path" = { equals = "/data/x" }"#,
        r#""/path" = { glob = "/etc/*" }"#,
        r#""/path" = { regex = "x$" }"#,
        r#""/n" = { min = 1, max = 5 }"#,
        r#""/n" = { one_of = [3, "3"] }"#,
    ];
    let rule = (
        vec(select(patterns.clone()), 1..3),
        option::of(select(vec!["a", "b", "*"])),
        option::of(select(vec!["alice", "bob", "*"])),
        option::of(select(tests)),
        actions(),
    );
    let rule = rule.prop_map(|(tools, servers, keys, test, action)| {
        let mut rule = format!("[[policy.rules]]\ntools = {tools:?}\naction = {action:?}\n");
        let lists = [("servers", servers), ("keys", keys)];
        for (name, value) in lists.into_iter().filter_map(|(name, it)| Some((name, it?))) {
            let _ = writeln!(rule, "{name} = [{value:?}]");
        }
        if let Some(test) = test {
            let _ = writeln!(rule, "args = {{ {test} }}");
        }
        rule
    });
    let risk = (option::of(1..=3), option::of(1..=3)).prop_map(|(server, write)| {
        let server = server.map(|level| format!("risk = {level}\n"));
        let write = write.map(|level| format!("risk_of = {{ \"w*\" = {level} }}\n"));
        server.unwrap_or_default() + &write.unwrap_or_default()
    });
    let arguments = vec![
        json!({"path": "/data/x"}),
        json!({"path": "/data/../etc/x"}),
        json!({"n": 3}),
        json!({}),
    ];
    let call = (
        select(vec![
            ("a", "read"),
            ("a", "write"),
            ("b", "read"),
            ("b", "write"),
        ]),
        select(arguments),
        select(vec!["sk-alice", "sk-bob"]),
    );
    (
        (actions(), any::<bool>(), vec(rule, 0..4)),
        (risk.clone(), risk),
        vec(select(patterns), 1..3),
        call,
    )
        .prop_map(
            |((default, uses_annotations, rules), risks, tools, call)| Case {
                default,
                uses_annotations,
                rules,
                risks: [risks.0, risks.1],
                tools_of_alice: tools,
                tool: call.0,
                arguments: call.1,
                key: call.2,
            },
        )
}

impl Case {
    fn name(&self) -> String {
        format!("{}__{}", self.tool.0, self.tool.1)
    }

    async fn start(&self) -> Toolway {
        // Of the server `c` everything may run, so that there is a tool in every chat.
        let mut seen = self.tools_of_alice.clone();
        if seen.iter().any(|pattern| !pattern.starts_with('!')) {
            seen.push("c__*");
        }
        let config = format!(
            "[policy]\ndefault = {:?}\nuse_annotations = {}\n[[policy.rules]]\ntools = [\"c__*\"]\naction = \"allow\"\n{}\
             [approvals]\nchat = \"end_turn\"\n\
             [keys.root]\nkey = \"sk-root\"\nadmin = true\n[keys.bob]\nkey = \"sk-bob\"\n\
             [keys.alice]\nkey = \"sk-alice\"\ntools = {seen:?}\n",
            self.default,
            self.uses_annotations,
            self.rules.concat(),
        );
        let server = || {
            let destructive = json!({"name": "write", "inputSchema": {"type": "object"},
                "annotations": {"destructiveHint": true, "readOnlyHint": false}});
            tools()
                .tool("read", Does::Echoes)
                .listed(destructive, Does::Echoes)
        };
        let turns = (0..4).flat_map(|_| {
            [
                call(&[("call_1", &self.name(), self.arguments.clone())]),
                say("Done."),
            ]
        });
        let model = Model::start(turns.collect::<Vec<_>>()).await;
        let gw = toolway(model).config(&config);
        let gw = gw.server_with("a", server(), &self.risks[0]);
        let gw = gw.server_with("b", server(), &self.risks[1]);
        gw.server("c", tools().tool("free", Does::Echoes))
            .start()
            .await
    }

    /// What the client, or its model, reads when the call is made on this face.
    async fn call_on(&self, gw: &Toolway, face: &str) -> String {
        let (name, arguments) = (self.name(), &self.arguments);
        let text = arguments.to_string();
        let question = json!([{"role": "user", "content": "Go on."}]);
        let call = json!({"id": "c", "function": {"name": name, "arguments": text}});
        let event = json!({"type": "tool_use_requested", "tool_call_id": "c", "tool": name, "args": arguments});
        let batch = json!({"calls": [{"name": self.tool.1, "arguments": arguments}]});
        let params = json!({"name": name, "arguments": arguments});
        let server = format!("/servers/{}", self.tool.0);
        let (path, body) = match face {
            "chat" => (
                "/v1/chat/completions".to_owned(),
                json!({"model": "m", "messages": question}),
            ),
            "stream" => (
                "/v1/chat/completions".to_owned(),
                json!({"model": "m", "messages": question, "stream": true}),
            ),
            "messages" => (
                "/v1/messages".to_owned(),
                json!({"model": "m", "messages": question, "max_tokens": 99}),
            ),
            "responses" => (
                "/v1/responses".to_owned(),
                json!({"model": "m", "input": "Go on."}),
            ),
            "tool_calls" => ("/v1/tool_calls".to_owned(), json!({"tool_calls": [call]})),
            "events" => ("/v1/events".to_owned(), event),
            "tools" => (format!("/tools/{name}"), arguments.clone()),
            "rest" => (format!("{server}/tools/{}", self.tool.1), arguments.clone()),
            "batch" => (format!("{server}/calls"), batch),
            "mcp" => return self.over_mcp(gw, params).await,
            _ => return self.over_mcp_with_handshake(gw, params).await,
        };
        let request = gw.http.post(format!("{}{path}", gw.base)).json(&body);
        let response = request.bearer_auth(self.key).send().await.unwrap();
        let answer = response.text().await.unwrap();
        match face {
            "chat" | "stream" | "messages" | "responses" => {
                let told = gw.model.messages(gw.model.asked().len() - 1);
                told.last().unwrap()["content"].as_str().unwrap().to_owned()
            }
            _ => answer,
        }
    }

    async fn over_mcp(&self, gw: &Toolway, mut params: Value) -> String {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}});
        let headers = [
            ("mcp-protocol-version", "2026-07-28".to_owned()),
            ("mcp-method", "tools/call".to_owned()),
            ("mcp-name", self.name()),
        ];
        self.rpc(gw, "tools/call", params, &headers).await.1
    }

    async fn over_mcp_with_handshake(&self, gw: &Toolway, params: Value) -> String {
        let client = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"}});
        let (session, _) = self.rpc(gw, "initialize", client, &[]).await;
        let headers = [
            ("mcp-session-id", session.unwrap()),
            ("mcp-protocol-version", "2025-06-18".to_owned()),
        ];
        self.rpc(gw, "tools/call", params, &headers).await.1
    }

    /// The session that the answer names, and the answer.
    async fn rpc(
        &self,
        gw: &Toolway,
        method: &str,
        params: Value,
        headers: &[(&str, String)],
    ) -> (Option<String>, String) {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = gw.http.post(format!("{}/mcp", gw.base)).json(&message);
        let mut request = request
            .bearer_auth(self.key)
            .header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = request.send().await.unwrap();
        let session = response.headers().get("mcp-session-id");
        let session = session.map(|it| it.to_str().unwrap().to_owned());
        (session, response.text().await.unwrap())
    }

    async fn get(&self, gw: &Toolway, path: &str, query: &[(&str, &str)], key: &str) -> Value {
        let mut url = reqwest::Url::parse(&format!("{}{path}", gw.base)).unwrap();
        url.query_pairs_mut().extend_pairs(query);
        let request = gw.http.get(url);
        let response = request.bearer_auth(key).send().await.unwrap();
        response.json().await.unwrap()
    }

    async fn check(&self) {
        let gw = self.start().await;
        let (name, arguments) = (self.name(), self.arguments.to_string());
        let key = self.key.strip_prefix("sk-").unwrap();
        let query = [("tool", &*name), ("args", &*arguments), ("key", key)];
        let expected = self.get(&gw, "/policy/explain", &query, "sk-root").await;
        let rule = expected["rule"].as_str().unwrap();
        let listed = self.get(&gw, "/tools", &[], self.key).await;
        let listed = listed["tools"].as_array().unwrap();
        let is_listed = listed.iter().any(|it| it["name"] == *name);
        let made = || gw.servers.iter().map(|it| it.calls().len()).sum::<usize>();
        for face in [
            "chat",
            "stream",
            "messages",
            "responses",
            "tool_calls",
            "events",
            "tools",
            "mcp",
            "mcp with handshake",
            "rest",
            "batch",
        ] {
            let before = made();
            // Quotes of a rule's name are escaped where the error is JSON, and again where that is in JSON.
            let told = self.call_on(&gw, face).await.replace('\\', "");
            let context = format!("{face}: {told}\n{expected}\n{self:#?}");
            let ran = made() - before;
            assert_eq!(
                ran,
                usize::from(expected["verdict"] == "allow"),
                "{context}"
            );
            match expected["verdict"].as_str().unwrap() {
                "allow" => assert!(is_listed, "{context}"),
                "ask" => {
                    let list = self.get(&gw, "/confirmations", &[], "sk-root").await;
                    let list = list["confirmations"].as_array().unwrap();
                    let is_told =
                        |it: &&Value| told.contains(it["confirmation_id"].as_str().unwrap());
                    let shown = list.iter().find(is_told);
                    assert_eq!(shown.unwrap_or_else(|| panic!("{context}"))["rule"], rule);
                }
                // A tool of which no call is allowed is as unknown as one that is not there.
                _ => assert!(!is_listed || told.contains(rule), "{context}"),
            }
        }
        gw.join().await;
    }
}

/// The policies of one quarter; they are the same in every run.
async fn check_quarter(quarter: u8) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[quarter; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let all = std::env::var("TOOLWAY_POLICIES");
    let all: usize = all.map_or(40, |text| text.parse().unwrap());
    for _ in 0..all / 4 {
        let case = case().new_tree(&mut runner).unwrap().current();
        case.check().await;
    }
}

#[tokio::test]
async fn no_face_runs_what_another_denies_1_of_4() {
    check_quarter(1).await;
}

#[tokio::test]
async fn no_face_runs_what_another_denies_2_of_4() {
    check_quarter(2).await;
}

#[tokio::test]
async fn no_face_runs_what_another_denies_3_of_4() {
    check_quarter(3).await;
}

#[tokio::test]
async fn no_face_runs_what_another_denies_4_of_4() {
    check_quarter(4).await;
}
