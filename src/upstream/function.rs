//! OpenAI-style functions: defined in the configuration, and run in one of several ways.
//!
//! [`Functions`] is the whole interface. Each group of functions is run in one way, and each way is a file:
//! [`endpoint`] is the webhook that takes `tool_calls`, [`request`] one HTTP request for each function, [`command`] a
//! program, [`prompt`] a question to a model, and [`openapi`] an API with a document. A new one is a variant of
//! [`BackendKind`] and of `Runner`.
//!
//! Nothing here changes while toolway runs: a group has its tools from the start, and there is nothing to start or to
//! restart. A backend's failure becomes a failed result that a model can read; the details go to the log.

pub mod command;
pub mod endpoint;
pub mod openapi;
pub mod prompt;
pub mod request;
mod web;

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde::{Serialize, Serializer};
use tokio::time::{Instant, timeout_at};

use self::{
    command::CommandRunner, endpoint::Endpoint, openapi::OpenApiRunner, prompt::Prompt,
    request::RequestRunner,
};
use super::{MAX_WAITING, SetupError, mcp::CallOptions, model::Models, queue::Queue};
use crate::health::ServerState;
use toolway_core::{
    catalog::{DroppedTool, ServerRisk, ServerTools},
    policy::Admitted,
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, Tool, ToolResult};

/// One group of functions, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name; the first half of its tools' names.
    pub group: ServerId,
    /// Its functions, each name once.
    pub tools: Vec<Tool>,
    /// How they are run.
    pub kind: BackendKind,
    /// Longest run of a call. Default: the longest silence that the caller allows.
    pub timeout: Option<Duration>,
    /// Longest answer that is taken, in bytes. Default: 16 MiB.
    pub max_response_bytes: usize,
    /// Calls that run side by side. Default: 16.
    pub parallel_calls: usize,
}

/// How the functions of a group are run.
#[derive(Clone, Debug)]
pub enum BackendKind {
    /// A webhook that takes `tool_calls`.
    Endpoint(endpoint::Config),
    /// An HTTP request for each function.
    Url(request::Config),
    /// A program that is started for each call.
    Command(command::Config),
    /// A question to a model.
    Model(prompt::Config),
    /// An HTTP API that an OpenAPI document describes.
    OpenApi(openapi::Config),
    /// They cannot be run: a required value is missing. The group counts as failed and has no tools.
    Unavailable {
        /// Its key in the configuration.
        kind: &'static str,
        /// The missing value.
        reason: String,
    },
}

impl BackendKind {
    /// Its key in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            BackendKind::Endpoint(_) => "endpoint",
            BackendKind::Url(_) => "url",
            BackendKind::Command(_) => "command",
            BackendKind::Model(_) => "model",
            BackendKind::OpenApi(_) => "openapi",
            BackendKind::Unavailable { kind, .. } => kind,
        }
    }
}

impl Config {
    /// Checks whether the group's service can be reached, if it has one address, or whether its program exists. Runs
    /// nothing: the request is OPTIONS, and any answer counts.
    pub async fn probe(&self) -> Option<Result<(), String>> {
        let url = match &self.kind {
            BackendKind::Endpoint(endpoint) => &endpoint.url,
            BackendKind::OpenApi(api) => &api.base_url,
            BackendKind::Command(command) => return Some(command.probe()),
            BackendKind::Url(_) | BackendKind::Model(_) | BackendKind::Unavailable { .. } => {
                return None;
            }
        };
        let reached = web::probe(url).await;
        Some(reached.map_err(|error| format!("cannot be reached: {error}")))
    }
}

/// What is known about a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupHealth {
    /// Which group.
    #[serde(rename = "name", serialize_with = "as_text")]
    pub group: ServerId,
    /// How its functions are run: `endpoint` and so on.
    pub kind: &'static str,
    /// `ready`, or `failed` where a value that it needs is not there.
    pub state: ServerState,
    /// How many functions it has.
    pub tools: usize,
    /// Why it is not ready.
    pub last_error: Option<String>,
}

fn as_text<S: Serializer>(group: &ServerId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(group.as_str())
}

/// Every configured group of functions.
pub struct Functions {
    groups: Vec<FunctionGroup>,
}

struct FunctionGroup {
    name: ServerId,
    tools: Vec<Tool>,
    /// The place of each tool among them.
    by_name: HashMap<String, usize>,
    dropped: Vec<DroppedTool>,
    kind: &'static str,
    failure: Option<String>,
    timeout: Option<Duration>,
    queue: Arc<Queue>,
    runner: Runner,
}

/// One way to run functions, ready to be used.
enum Runner {
    Endpoint(Endpoint),
    Url(RequestRunner),
    Command(CommandRunner),
    Model(Prompt),
    OpenApi(Box<OpenApiRunner>),
    /// The group has no functions.
    Unavailable,
}

impl Functions {
    /// Prepares every group. Nothing is contacted before the first call.
    ///
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub fn start(configs: Vec<Config>, models: &Arc<Models>) -> Result<Functions, SetupError> {
        let group = |config: Config| {
            Ok(FunctionGroup {
                kind: config.kind.name(),
                failure: failure(&config),
                queue: Queue::new(config.parallel_calls, MAX_WAITING),
                timeout: config.timeout,
                runner: Runner::new(&config, models)?,
                dropped: dropped(config.kind),
                name: config.group,
                by_name: places(&config.tools),
                tools: config.tools,
            })
        };
        let groups = configs.into_iter().map(group);
        Ok(Functions {
            groups: groups.collect::<Result<_, SetupError>>()?,
        })
    }

    /// The functions of every group, in the order of the configuration.
    pub fn tools(&self) -> Vec<ServerTools> {
        let tools = |group: &FunctionGroup| ServerTools {
            server: group.name.clone(),
            stateful: false,
            risk: ServerRisk::default(),
            tools: group.tools.clone(),
            dropped: group.dropped.clone(),
        };
        self.groups.iter().map(tools).collect()
    }

    /// What is known about every group, in the order of the configuration.
    pub fn health(&self) -> Vec<GroupHealth> {
        let health = |group: &FunctionGroup| GroupHealth {
            group: group.name.clone(),
            kind: group.kind,
            state: match group.failure {
                None => ServerState::Ready,
                Some(_) => ServerState::Failed,
            },
            tools: group.tools.len(),
            last_error: group.failure.clone(),
        };
        self.groups.iter().map(health).collect()
    }

    /// There is a group of this name.
    pub fn has(&self, group: &ServerId) -> bool {
        self.groups.iter().any(|it| it.name == *group)
    }

    /// Calls a function. Dropping the future gives the call up, and ends what was started for it.
    ///
    /// Functions report no progress, so the whole call, with its wait for a place, may take as long as the caller
    /// allows for silence, unless the group has a timeout of its own.
    pub async fn call(
        &self,
        function: &Admitted,
        arguments: &JsonObject,
        options: CallOptions,
    ) -> Result<ToolResult, CallError> {
        let found = self.groups.iter().find(|it| it.name == function.server);
        let found = found.and_then(|group| {
            let place = group.by_name.get(&function.tool.name);
            place.map(|place| (group, &group.tools[*place]))
        });
        let Some((group, tool)) = found else {
            return Err(CallError::UnknownTool {
                name: function.tool.name.clone(),
                did_you_mean: Vec::new(),
            });
        };
        let arrived = Instant::now();
        let turn = options.deadline.min(arrived + options.silence);
        let _place = group.queue.enter(turn).await?;
        // The group's own timeout limits only the run, not the wait.
        let (begun, longest) = match group.timeout {
            Some(timeout) => (Instant::now(), timeout),
            None => (arrived, options.silence),
        };
        let until = options.deadline.min(begun + longest);
        match timeout_at(until, group.runner.run(tool, arguments)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CallError::Timeout {
                after: until.duration_since(begun),
            }),
        }
    }
}

/// Why the group is not ready; also said in the log.
fn failure(config: &Config) -> Option<String> {
    let BackendKind::Unavailable { reason, .. } = &config.kind else {
        return None;
    };
    tracing::warn!(functions.group = %config.group, reason, "A group of functions is not offered");
    Some(reason.clone())
}

fn places(tools: &[Tool]) -> HashMap<String, usize> {
    let names = tools.iter().map(|tool| tool.name.clone());
    names.zip(0..).collect()
}

/// The requested functions that cannot be offered.
fn dropped(kind: BackendKind) -> Vec<DroppedTool> {
    match kind {
        BackendKind::OpenApi(api) => api.dropped,
        BackendKind::Endpoint(_)
        | BackendKind::Url(_)
        | BackendKind::Command(_)
        | BackendKind::Model(_)
        | BackendKind::Unavailable { .. } => Vec::new(),
    }
}

impl Runner {
    fn new(config: &Config, models: &Arc<Models>) -> Result<Runner, SetupError> {
        let (group, limit) = (config.group.clone(), config.max_response_bytes);
        Ok(match &config.kind {
            BackendKind::Endpoint(it) => Runner::Endpoint(Endpoint::new(group, it, limit)?),
            BackendKind::Url(it) => Runner::Url(RequestRunner::new(group, it, limit)?),
            BackendKind::Command(it) => {
                Runner::Command(CommandRunner::new(group, it.clone(), limit))
            }
            BackendKind::Model(it) => {
                Runner::Model(Prompt::new(group, it.clone(), models.clone(), limit))
            }
            BackendKind::OpenApi(it) => {
                Runner::OpenApi(Box::new(OpenApiRunner::new(group, it, limit)?))
            }
            BackendKind::Unavailable { .. } => Runner::Unavailable,
        })
    }

    async fn run(&self, tool: &Tool, arguments: &JsonObject) -> Result<ToolResult, CallError> {
        match self {
            Runner::Endpoint(endpoint) => endpoint.call(&tool.name, arguments).await,
            Runner::Url(requests) => requests.call(&tool.name, arguments).await,
            // Boxed, because these futures are large and would enlarge the future of every call.
            Runner::Command(command) => {
                let call = Box::pin(command.call(&tool.name, arguments));
                call.await
            }
            Runner::Model(prompt) => {
                let call = Box::pin(prompt.call(&tool.name, arguments));
                call.await
            }
            Runner::OpenApi(api) => {
                let call = Box::pin(api.call(&tool.name, arguments));
                call.await
            }
            Runner::Unavailable => Err(CallError::UpstreamUnavailable {
                message: "the function's configuration lacks a value".to_owned(),
                unsent: true,
            }),
        }
    }
}
