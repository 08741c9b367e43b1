//! A scripted MCP server over stdio, for tests: it does what its argument and each call's arguments tell it.
//!
//! The one argument is a JSON object, every member optional:
//!
//! - `versions`: the handshake versions it speaks, the newest last; `[]` for none. Default: 2025-11-25.
//! - `modern`: it answers `server/discover` with 2026-07-28.
//! - `unknown`: what it does on a method it does not know: `error` (default), `silent`, `exit`.
//! - `initialize`: `silent` to never answer it, `careless` to answer with the version only.
//! - `no_tools`: it knows no `tools/list` and says so in its capabilities.
//! - `tools`: the tools it lists, word for word. Default: one tool `act`.
//! - `deep`: one more tool, `deep`, whose schema is nested so many levels.
//! - `page`: tools per page of the list. Default: all. `circle`: every page has the same cursor.
//! - `list_error`: `tools/list` fails.
//! - `start_delay_ms`: it reads nothing before that.
//! - `stderr`: lines written to standard error at the start.
//! - `garbage`: lines written to standard output at the start.
//! - `record`: a file to which every received message is appended, one a line; and `{"started": PID}` at the start.
//! - `grandchild`: a file to which the process id of a sleeping child of its own is written.
//! - `capabilities`: what it declares, word for word.
//! - `instructions`: what it tells models.
//! - `results`: an object; a request whose method is a member is answered with it, word for word; a list of results is
//!   a list of pages.
//! - `exit_when_answered`: it exits when the client answers a request of its own.
//! - `ignore_eof`: it goes on when its input is closed.
//!
//! A call does what the argument `do` says; see [`Server::act`].

#![expect(clippy::needless_pass_by_value, reason = "the answers read better")]

use std::{
    collections::HashMap,
    fs::OpenOptions,
    io::{BufRead, Write},
    process::{Command, Stdio, exit},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

fn main() {
    let script = std::env::args().nth(1).unwrap_or_else(|| "{}".to_owned());
    let script: Value = serde_json::from_str(&script).expect("the script is JSON");
    let mut server = Server {
        tools: tools(&script),
        script,
        asked: HashMap::new(),
        questions: 0,
        subscriptions: Vec::new(),
    };
    server.prepare();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let message: Value = serde_json::from_str(&line).expect("the client writes JSON");
        server.record(&message);
        server.answer(&message);
    }
    if server.script["ignore_eof"] == true {
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

fn tools(script: &Value) -> Vec<Value> {
    let default = || vec![json!({"name": "act", "inputSchema": {"type": "object"}})];
    script["tools"].as_array().cloned().unwrap_or_else(default)
}

struct Server {
    script: Value,
    tools: Vec<Value>,
    /// Calls that wait for the client's answer to a request of ours, by the number of that request.
    asked: HashMap<String, Value>,
    questions: usize,
    /// The subscriptions of 2026-07-28: their ids, and what was asked for.
    subscriptions: Vec<(Value, Value)>,
}

impl Server {
    fn prepare(&self) {
        thread::sleep(Duration::from_millis(
            self.script["start_delay_ms"].as_u64().unwrap_or(0),
        ));
        self.record(&json!({"started": std::process::id()}));
        for line in self.script["stderr"].as_array().into_iter().flatten() {
            eprintln!("{}", line.as_str().unwrap_or_default());
        }
        for line in self.script["garbage"].as_array().into_iter().flatten() {
            print_line(line.as_str().unwrap_or_default());
        }
        if let Some(file) = self.script["grandchild"].as_str() {
            start_grandchild(file);
        }
    }

    fn record(&self, message: &Value) {
        let Some(file) = self.script["record"].as_str() else {
            return;
        };
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .expect("the record opens");
        file.write_all(format!("{message}\n").as_bytes())
            .expect("the record can be written");
    }

    fn answer(&mut self, message: &Value) {
        let id = &message["id"];
        match message["method"].as_str() {
            None => self.pass_answer_on(message),
            Some("notifications/cancelled") => {
                let id = &message["params"]["requestId"];
                self.subscriptions.retain(|(other, _)| other != id);
            }
            Some(method) if !id.is_null() && !self.script["results"][method].is_null() => {
                self.result(method, message);
            }
            Some("initialize") if self.script["initialize"] != "silent" => {
                match self.version(&message["params"]["protocolVersion"]) {
                    Some(version) if self.script["initialize"] == "careless" => {
                        reply(id, json!({"protocolVersion": version}));
                    }
                    Some(version) if self.script["no_tools"] == true => {
                        let mut result = initialized(&version);
                        result["capabilities"] = json!({"prompts": {}});
                        reply(id, result);
                    }
                    Some(version) => {
                        let mut result = initialized(&version);
                        self.introduce(&mut result);
                        reply(id, result);
                    }
                    None => fail(id, json!({"code": -32601, "message": "no handshake here"})),
                }
            }
            Some("server/discover") if self.script["modern"] == true => {
                let mut result = json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                    "ttlMs": 0, "cacheScope": "private",
                });
                self.introduce(&mut result);
                reply(id, result);
            }
            Some("tools/list") if self.script["no_tools"] != true => self.list(message),
            Some("tools/call") => self.act(message),
            Some("subscriptions/listen") if self.script["modern"] == true => {
                let mut accepted = message["params"]["notifications"].clone();
                if self.script["listens_to_one"] == true
                    && let Some(uris) = accepted["resourceSubscriptions"].as_array_mut()
                {
                    uris.drain(..uris.len().saturating_sub(1));
                }
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                notify(
                    "notifications/subscriptions/acknowledged",
                    json!({"notifications": accepted, "_meta": meta}),
                );
                self.subscriptions.push((id.clone(), accepted));
            }
            Some(_) if id.is_null() => {}
            Some("initialize") => {}
            Some("ping") => reply(id, json!({})),
            Some(method) => match self.script["unknown"].as_str() {
                Some("silent") => {}
                Some("exit") => exit(3),
                _ => fail(
                    id,
                    json!({"code": -32601, "message": format!("no {method}")}),
                ),
            },
        }
    }

    fn introduce(&self, hello: &mut Value) {
        for member in ["capabilities", "instructions"] {
            if !self.script[member].is_null() {
                hello[member] = self.script[member].clone();
            }
        }
    }

    /// Answers with what the script says; of a list of pages, with the page that the cursor names.
    fn result(&self, method: &str, message: &Value) {
        let id = &message["id"];
        match &self.script["results"][method] {
            Value::Array(pages) => {
                let cursor = message["params"]["cursor"].as_str().unwrap_or("0");
                let page: usize = cursor.parse().expect("the cursor is one of ours");
                let mut result = pages[page].clone();
                if page + 1 < pages.len() {
                    result["nextCursor"] = json!((page + 1).to_string());
                }
                reply(id, result);
            }
            result => reply(id, result.clone()),
        }
    }

    /// Says something to whoever wants to hear it: to all, or on 2026-07-28 to those who subscribed to it.
    fn announce(&self, method: &str, params: &Value) {
        if self.script["modern"] != true {
            return notify(method, params.clone());
        }
        let wants = |filter: &Value| match method {
            "notifications/tools/list_changed" => filter["toolsListChanged"] == true,
            "notifications/prompts/list_changed" => filter["promptsListChanged"] == true,
            "notifications/resources/list_changed" => filter["resourcesListChanged"] == true,
            _ => filter["resourceSubscriptions"]
                .as_array()
                .is_some_and(|uris| uris.contains(&params["uri"])),
        };
        for (id, _) in self.subscriptions.iter().filter(|(_, it)| wants(it)) {
            let mut params = params.clone();
            params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": id});
            notify(method, params);
        }
    }

    /// The version asked for, if it is spoken, or the newest that is.
    fn version(&self, asked: &Value) -> Option<Value> {
        let default = vec![json!("2025-11-25")];
        let versions = self.script["versions"].as_array().unwrap_or(&default);
        versions
            .iter()
            .find(|version| *version == asked)
            .or(versions.last())
            .cloned()
    }

    fn list(&self, message: &Value) {
        if self.script["list_error"] == true {
            return fail(
                &message["id"],
                json!({"code": -32603, "message": "no list today"}),
            );
        }
        let all = self.tools.len().max(1);
        let page = self.script["page"]
            .as_u64()
            .map_or(all, |page| page as usize);
        let from = message["params"]["cursor"].as_str().map_or(0, |cursor| {
            cursor.parse().expect("the cursor is one of ours")
        });
        let to = (from + page).min(self.tools.len());
        let mut result =
            json!({"tools": self.tools[from..to], "ttlMs": 0, "cacheScope": "private"});
        if to < self.tools.len() {
            result["nextCursor"] = json!(to.to_string());
        }
        if self.script["circle"] == true {
            result["nextCursor"] = json!("0");
        }
        match self.script["deep"].as_u64() {
            None => reply(&message["id"], result),
            Some(levels) => {
                let levels = levels as usize;
                let schema = format!("{}true{}", r#"{"not":"#.repeat(levels), "}".repeat(levels));
                let deep = format!(
                    r#""tools":[{{"name":"deep","inputSchema":{{"type":"object","additionalProperties":{schema}}}}},"#
                );
                let result = result.to_string().replacen(r#""tools":["#, &deep, 1);
                let id = &message["id"];
                print_line(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
                ));
            }
        }
    }

    /// Does what the argument `do` says.
    fn act(&mut self, message: &Value) {
        let id = message["id"].clone();
        let arguments = &message["params"]["arguments"];
        match arguments["do"].as_str().unwrap_or("echo") {
            // Answers with the arguments.
            "echo" => say(&id, &arguments.to_string()),
            // Answers with `result`, word for word.
            "result" => reply(&id, arguments["result"].clone()),
            // Answers with `error`, word for word.
            "error" => fail(&id, arguments["error"].clone()),
            // Says `stderr` and ends at once.
            "exit" => {
                eprintln!("{}", arguments["stderr"].as_str().unwrap_or("bye"));
                exit(7)
            }
            // Never answers.
            "hang" => {}
            // Answers once `file` exists.
            "wait" => {
                let file = arguments["file"].as_str().unwrap_or_default().to_owned();
                thread::spawn(move || {
                    while !std::path::Path::new(&file).exists() {
                        thread::sleep(Duration::from_millis(10));
                    }
                    say(&id, "waited");
                });
            }
            // Answers with a text of `bytes` bytes; the id comes last if `id_last`.
            "big" => {
                let text = "x".repeat(arguments["bytes"].as_u64().unwrap_or(0) as usize);
                if arguments["id_last"] == true {
                    let result = json!({"content": [{"type": "text", "text": text}]});
                    print_line(&format!(
                        r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#
                    ));
                } else {
                    say(&id, &text);
                }
            }
            // Tells of `steps` steps, `every_ms` apart, then answers; or never, if `and_hang`.
            "progress" => {
                let token = message["params"]["_meta"]["progressToken"].clone();
                let arguments = arguments.clone();
                thread::spawn(move || {
                    let steps = arguments["steps"].as_u64().unwrap_or(3);
                    for step in 1..=steps {
                        thread::sleep(Duration::from_millis(
                            arguments["every_ms"].as_u64().unwrap_or(0),
                        ));
                        let params = json!({"progressToken": token, "progress": step, "total": steps, "message": format!("step {step}")});
                        notify("notifications/progress", params);
                    }
                    if arguments["and_hang"] != true {
                        say(&id, "done");
                    }
                });
            }
            // Lists `tools` from now on, says `times` times that they changed, and answers.
            "change" => {
                let (new, times) = (arguments["tools"].clone(), arguments["times"].as_u64());
                if let Some(new) = new.as_array() {
                    self.tools.clone_from(new);
                }
                if arguments["list_error"].is_boolean() {
                    self.script["list_error"] = arguments["list_error"].clone();
                }
                for (method, result) in arguments["results"].as_object().into_iter().flatten() {
                    self.script["results"][method] = result.clone();
                }
                let method = arguments["method"].as_str();
                let method = method.unwrap_or("notifications/tools/list_changed");
                for _ in 0..times.unwrap_or(1) {
                    self.announce(method, &json!({}));
                }
                say(&id, "changed");
            }
            // Answers with the names of its environment variables.
            "env" => {
                let mut names: Vec<_> = std::env::vars().map(|(name, _)| name).collect();
                names.sort();
                say(&id, &names.join(" "));
            }
            // Sends the request `method` to the client and answers with what came back.
            "ask" => {
                self.questions += 1;
                let question = format!("ask-{}", self.questions);
                self.asked.insert(question.clone(), id);
                let request = json!({"jsonrpc": "2.0", "id": question, "method": arguments["method"], "params": arguments["params"]});
                print_line(&request.to_string());
            }
            // Takes the last question back, and answers its call and this one.
            "take_back" => {
                let question = format!("ask-{}", self.questions);
                notify("notifications/cancelled", json!({"requestId": question}));
                if let Some(call) = self.asked.remove(&question) {
                    say(&call, "taken back");
                }
                say(&id, "done");
            }
            // Says `method` with `params`, and answers.
            "notify" => {
                let method = arguments["method"].as_str().unwrap_or_default();
                self.announce(method, &arguments["params"]);
                say(&id, "said");
            }
            // Answers with `result`, word for word, until there are `inputResponses`; then with all the params.
            "need" => match message["params"].get("inputResponses") {
                None => reply(&id, arguments["result"].clone()),
                Some(_) => say(&id, &message["params"].to_string()),
            },
            // Says `times` times what nobody asked for, and answers.
            "flood" => {
                for n in 0..arguments["times"].as_u64().unwrap_or(0) {
                    let params = json!({"level": "info", "data": n});
                    notify("notifications/message", params);
                }
                say(&id, "flooded");
            }
            // Answers with all the params of the call.
            "params" => say(&id, &message["params"].to_string()),
            // Writes `lines` as they are; answers unless one of them did.
            "write" => {
                for line in arguments["lines"].as_array().into_iter().flatten() {
                    let line = line.as_str().unwrap_or_default();
                    print_line(&line.replace("$ID", &id.to_string()));
                }
                if arguments["and_answer"] == true {
                    say(&id, "written");
                }
            }
            other => fail(
                &id,
                json!({"code": -32602, "message": format!("cannot do {other}")}),
            ),
        }
    }

    fn pass_answer_on(&mut self, message: &Value) {
        let question = message["id"].as_str().unwrap_or_default();
        if self.script["exit_when_answered"] == true {
            exit(1);
        }
        if let Some(call) = self.asked.remove(question) {
            say(&call, &message.to_string());
        }
    }
}

#[expect(
    clippy::zombie_processes,
    reason = "what becomes of it is what the tests ask"
)]
fn start_grandchild(file: &str) {
    let mut sleep = Command::new("sleep");
    let child = sleep
        .arg("1000")
        .stdin(Stdio::null())
        .spawn()
        .expect("`sleep` can be started");
    // Written under another name first, so that a reader never sees half of it.
    let half = format!("{file}.half");
    std::fs::write(&half, child.id().to_string()).expect("the file can be written");
    std::fs::rename(half, file).expect("the file can be renamed");
}

fn initialized(version: &Value) -> Value {
    json!({
        "protocolVersion": version, "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "scripted", "version": "1"},
    })
}

fn say(id: &Value, text: &str) {
    reply(id, json!({"content": [{"type": "text", "text": text}]}));
}

fn reply(id: &Value, result: Value) {
    print_line(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
}

fn fail(id: &Value, error: Value) {
    print_line(&json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
}

fn notify(method: &str, params: Value) {
    print_line(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
}

/// Writes one line as a whole; a client that is gone ends the server.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    if out
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        exit(0);
    }
}
