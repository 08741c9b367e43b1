//! What MCP clients get: which endpoint shows what, and what comes of each of their requests.
//!
//! The faces (`server::mcp` over HTTP and pipes) do the protocol around it: versions, sessions, streams, ids. They
//! hand a request over with its [`Visit`] and get the raw result, already in the form of the client's version.

mod view;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};

pub use self::view::View;
use super::Gateway;
use crate::{
    catalog::Offered,
    mcp::{rpc::RpcError, version::Version},
    tool::{JsonObject, Progress},
    upstream::mcp::Caller,
};

/// One MCP client at one endpoint, as far as its requests differ by it.
#[derive(Clone)]
pub struct Visit {
    /// What the endpoint shows.
    pub view: Arc<View>,
    /// The version that client and face speak.
    pub version: Version,
    /// Who is asked, where a server asks back. On a version without a handshake only its capabilities count:
    /// [`Gateway::request`] then gives an `input_required` result in place of asking.
    pub caller: Arc<dyn Caller>,
    /// Tells clients apart that must not answer for each other: a session, or the key that was shown.
    pub owner: String,
}

/// What an endpoint says about itself in `initialize` and `server/discover`.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// `ServerCapabilities`.
    pub capabilities: Value,
    /// `Implementation`.
    pub server_info: Value,
    /// For the model of the client.
    pub instructions: Option<String>,
}

/// Something happened that clients may want to hear of; [`Gateway::notice`] says who, and in what words.
#[derive(Clone, Debug)]
pub enum News {
    /// Tools came, went or changed.
    Tools,
    /// Prompts came, went or changed.
    Prompts,
    /// Resources or templates came, went or changed.
    Resources,
}

/// What a client subscribes to, or has a level for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// `notifications/tools/list_changed`.
    Tools,
    /// `notifications/prompts/list_changed`.
    Prompts,
    /// `notifications/resources/list_changed`.
    Resources,
    /// `notifications/resources/updated` of this URI, as the client knows it.
    Resource(String),
    /// `notifications/message` of this level (`debug` … `emergency`).
    Log(String),
    /// Anything else; for everybody.
    Other,
}

/// A notification for those whom the topic concerns.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// What it is about.
    pub topic: Topic,
    /// The notification's method.
    pub method: String,
    /// Its params.
    pub params: Value,
}

/// Keeps a resource watched at its server while it lives.
#[derive(Debug)]
pub struct Watch(());

/// Keeps the servers' logs as verbose as somebody wants them, while it lives.
#[derive(Debug)]
pub struct LogInterest(());

impl Gateway {
    /// What the endpoint `/mcp` shows, or `/mcp/PROFILE`; `None` if there is no such profile.
    pub fn view(&self, profile: Option<&str>) -> Option<Arc<View>> {
        match profile {
            None => Some(Arc::new(View::everything())),
            Some(_) => None,
        }
    }

    /// What an endpoint says about itself.
    pub fn describe(&self, _view: &View) -> Description {
        Description {
            capabilities: json!({"tools": {"listChanged": true}}),
            server_info: json!({"name": "toolway", "version": env!("CARGO_PKG_VERSION")}),
            instructions: None,
        }
    }

    /// Answers one request of a client: every method but those of the face itself, which are `initialize`,
    /// `server/discover`, `ping`, `logging/setLevel`, `resources/subscribe`, `resources/unsubscribe` and
    /// `subscriptions/listen`. Dropping the future cancels what runs.
    ///
    /// What cannot be read in time from `progress` is left out.
    ///
    /// # Errors
    /// JSON-RPC errors, those of servers included. A tool that fails is a result with `isError`.
    pub async fn request(
        self: &Arc<Self>,
        _visit: &Visit,
        method: &str,
        _params: JsonObject,
        _progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Value, RpcError> {
        Err(RpcError::method_not_found(method))
    }

    /// The tool that is called by this name at an endpoint, for the headers that its schema asks for (`x-mcp-header`).
    pub fn offered(&self, _view: &View, name: &str) -> Option<Arc<Offered>> {
        self.catalog().find(name).cloned()
    }

    /// What happens from now on. Bounded: whoever is too slow is told how much was missed.
    pub fn news(&self) -> broadcast::Receiver<Arc<News>> {
        broadcast::channel(1).1
    }

    /// The notification for the clients of an endpoint, if it concerns them.
    pub fn notice(&self, _view: &View, _news: &News) -> Option<Notice> {
        None
    }

    /// Has a resource watched. Its changes come as [`News`].
    ///
    /// # Errors
    /// When there is no such resource, or its server cannot be asked.
    pub async fn watch(&self, _view: &View, uri: &str) -> Result<Watch, RpcError> {
        Err(RpcError::invalid_params(format!(
            "Resource not found: {uri}"
        )))
    }

    /// Has servers log at least this level (`debug` … `emergency`).
    pub fn log_interest(&self, _level: &str) -> LogInterest {
        LogInterest(())
    }
}
