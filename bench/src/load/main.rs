//! Load for `bench/run`: closed loops over HTTP/1.1, one connection for each worker, every reply checked.
//!
//! Its last line is a JSON object that says what came of it. `USAGE` says what it can do.

mod exchange;
mod hold;
mod http;
mod mcp;
mod report;
mod tool_loop;

use std::time::Duration;

use tokio::{sync::Barrier, task::JoinSet, time::Instant};
use toolway_bench::run;

use crate::{
    exchange::{Exchange, Expected},
    http::Target,
    mcp::Caller,
    report::{Done, Tally},
    tool_loop::ToolLoop,
};

const USAGE: &str = "\
load MODE --url URL [OPTION VALUE]...

  plain   POST the body; the reply has the text of --expect
  stream  the same with a stream, which has the text --times times, and --end in its last event
  hold    keep --workers streams open for --seconds
  loop    the tool loop by oneself: --url is the model, --mcp the server; --streamed yes
  mcp     call --tool of the MCP server at --url; --handshake no for what only looks like one

  --body JSON, --body-file FILE  what is posted
  --end TEXT                     default [DONE]
  --header 'NAME: VALUE'         as often as one likes
  --workers N                    default 1
  --seconds S                    default 2";

/// A worker that has seen so many wrong replies stops.
const MAX_WRONG: usize = 20;

fn main() {
    run(async {
        let options = Options::parse(std::env::args().skip(1))?;
        let target = Target::parse(options.text("url")?, &options.all("header"))?;
        if options.mode == "hold" {
            let (body, expect) = (options.body()?, options.text("expect")?);
            return hold::hold(&target, &body, expect, options.workers()?, options.time()?).await;
        }
        let report = closed_loops(&options, &target).await?;
        println!("{report}");
        Ok(())
    });
}

/// One worker's client, of whichever kind.
enum Client {
    Exchange(Exchange),
    ToolLoop(ToolLoop),
    Caller(Caller),
}

impl Client {
    /// Each worker has a text of its own, so that no reply can be another's.
    async fn open(options: &Options, target: &Target, worker: usize) -> Result<Self, String> {
        let message = format!("what worker {worker:05} says");
        Ok(match options.mode.as_str() {
            "plain" | "stream" => {
                let expected = Expected {
                    text: options.text("expect")?.to_owned(),
                    times: options.get("times").map(number).transpose()?,
                    end: (options.mode == "stream")
                        .then(|| options.get("end").unwrap_or("[DONE]").to_owned()),
                };
                Client::Exchange(Exchange::open(target, &options.body()?, &expected).await?)
            }
            "loop" => {
                let server = Target::parse(options.text("mcp")?, &[])?;
                let streamed = options.get("streamed") == Some("yes");
                Client::ToolLoop(ToolLoop::open(target, &server, streamed, &message).await?)
            }
            "mcp" => {
                let handshake = options.get("handshake") != Some("no");
                let tool = options.text("tool")?;
                Client::Caller(Caller::open(target, handshake, tool, &message).await?)
            }
            mode => return Err(format!("there is no mode {mode}\n\n{USAGE}")),
        })
    }

    async fn once(&mut self) -> Result<Done, String> {
        match self {
            Client::Exchange(client) => client.once().await,
            Client::ToolLoop(client) => client.once().await,
            Client::Caller(client) => client.once().await,
        }
    }

    async fn close(self) {
        match self {
            Client::Exchange(_) => {}
            Client::ToolLoop(client) => client.close().await,
            Client::Caller(client) => client.close().await,
        }
    }
}

/// Runs the workers side by side; the clock starts when all are connected.
async fn closed_loops(options: &Options, target: &Target) -> Result<serde_json::Value, String> {
    let (workers, time) = (options.workers()?, options.time()?);
    let ready = std::sync::Arc::new(Barrier::new(workers + 1));
    let mut tasks = JoinSet::new();
    let mut clients = Vec::new();
    for worker in 0..workers {
        clients.push(Client::open(options, target, worker).await?);
    }
    for (worker, client) in clients.into_iter().enumerate() {
        let (options, target, ready) = (options.clone(), target.clone(), ready.clone());
        tasks.spawn(async move {
            ready.wait().await;
            work(client, &options, &target, worker, Instant::now() + time).await
        });
    }
    ready.wait().await;
    let begun = Instant::now();
    let (mut all, mut ended, mut clients) = (Tally::default(), begun, Vec::new());
    while let Some(task) = tasks.join_next().await {
        let (tally, client) = task.map_err(|error| error.to_string())?;
        ended = Instant::now();
        all.add(tally);
        clients.extend(client);
    }
    for client in clients {
        client.close().await;
    }
    Ok(all.report(ended - begun))
}

/// One worker; after a wrong reply it begins anew.
async fn work(
    client: Client,
    options: &Options,
    target: &Target,
    worker: usize,
    until: Instant,
) -> (Tally, Option<Client>) {
    let mut tally = Tally::default();
    let mut client = Some(client);
    while Instant::now() < until && tally.wrong < MAX_WRONG {
        let outcome = match &mut client {
            Some(client) => {
                let begun = Instant::now();
                client
                    .once()
                    .await
                    .map(|done| tally.done(&done, begun.elapsed()))
            }
            None => Client::open(options, target, worker)
                .await
                .map(|opened| client = Some(opened)),
        };
        if let Err(why) = outcome {
            client = None;
            tally.went_wrong(why);
        }
    }
    (tally, client)
}

/// The mode, and what was said after it.
#[derive(Clone)]
struct Options {
    mode: String,
    given: Vec<(String, String)>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mode = arguments.next().ok_or(USAGE)?;
        let mut given = Vec::new();
        while let Some(name) = arguments.next() {
            let name = name.strip_prefix("--").ok_or(USAGE)?.to_owned();
            given.push((name, arguments.next().ok_or(USAGE)?));
        }
        Ok(Options { mode, given })
    }

    fn all(&self, name: &str) -> Vec<String> {
        let given = self.given.iter().filter(|(given, _)| given == name);
        given.map(|(_, value)| value.clone()).collect()
    }

    fn get(&self, name: &str) -> Option<&str> {
        let mut given = self.given.iter().filter(|(given, _)| given == name);
        given.next().map(|(_, value)| value.as_str())
    }

    fn text(&self, name: &str) -> Result<&str, String> {
        self.get(name)
            .ok_or_else(|| format!("--{name} is missing\n\n{USAGE}"))
    }

    fn workers(&self) -> Result<usize, String> {
        self.get("workers").map_or(Ok(1), number)
    }

    fn time(&self) -> Result<Duration, String> {
        let seconds: f64 = self.get("seconds").map_or(Ok(2.0), number)?;
        Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
    }

    fn body(&self) -> Result<Vec<u8>, String> {
        match self.get("body-file") {
            Some(path) => std::fs::read(path).map_err(|error| format!("{path}: {error}")),
            None => self.text("body").map(|body| body.as_bytes().to_vec()),
        }
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}
