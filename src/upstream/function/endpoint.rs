//! The tool-calls webhook: one POST for each call, or for those that arrive within a few milliseconds.
//!
//! `translate::functions::webhook` defines the bodies.

mod batch;

use std::{
    borrow::Cow,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use url::Url;

use self::batch::Batches;
use super::web;
use crate::secret::Secret;
use crate::upstream::{SetupError, wire::Client};
use toolway_core::translate::{
    functions::{
        output,
        webhook::{self, AnswerFault, WebhookCall},
    },
    ids::Ids,
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, ToolResult};

/// A webhook, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where calls are posted to.
    pub url: Url,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, Secret)>,
    /// Whether calls share requests. Default: they do not.
    pub batch: Option<Batch>,
}

/// How calls share a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// How long the first call waits for others; at most 1 s.
    pub window: Duration,
    /// Most calls of one request; at least 2. Default: 16.
    pub max_calls: usize,
}

/// The result of a call.
type EndpointResult = Result<ToolResult, CallError>;

/// A webhook, ready to be called.
pub(super) struct Endpoint {
    post: Arc<Post>,
    batches: Option<Batches>,
    ids: CallIdSource,
}

impl Endpoint {
    /// Calls go to this URL; nothing is sent yet. `limit` is the longest answer, in bytes.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub(super) fn new(
        group: ServerId,
        config: &Config,
        limit: usize,
    ) -> Result<Endpoint, SetupError> {
        let mut headers = web::headers(&config.headers);
        for name in [header::CONTENT_TYPE, header::ACCEPT] {
            let json = HeaderValue::from_static("application/json");
            headers.entry(name).or_insert(json);
        }
        let post = Arc::new(Post {
            group,
            address: config.url.clone().into(),
            headers,
            client: web::client(config.url.as_str())?,
            limit,
        });
        Ok(Endpoint {
            batches: config.batch.map(|batch| Batches::new(post.clone(), batch)),
            post,
            ids: CallIdSource::default(),
        })
    }

    /// Calls a function. Dropping the future gives the call up; the others of its request go on.
    pub(super) async fn call(&self, function: &str, arguments: &JsonObject) -> EndpointResult {
        let id = self.ids.next();
        if let Some(batches) = &self.batches {
            return batches.call(id, function, arguments.clone()).await;
        }
        let call = WebhookCall {
            id: &id,
            name: function,
            arguments,
        };
        let mut outcomes = self.post.send(&[call]).await;
        outcomes.pop().unwrap_or(Err(CallError::Cancelled))
    }
}

/// Generates the ids of calls: unique here, and very unlikely to repeat in another process.
#[derive(Default)]
struct CallIdSource {
    random: RandomState,
    used: AtomicU64,
}

impl CallIdSource {
    fn next(&self) -> String {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        format!("call_{}", Ids::new(self.random.hash_one(used)).call())
    }
}

/// Posts calls to one URL.
struct Post {
    group: ServerId,
    address: web::Address,
    headers: HeaderMap,
    client: Client,
    limit: usize,
}

impl Post {
    /// Sends calls in one request and returns their results in order. If the request fails, every call fails. Dropping
    /// the future cancels the request.
    async fn send(&self, calls: &[WebhookCall<'_>]) -> Vec<EndpointResult> {
        let request = web::WebRequest {
            method: Method::POST,
            address: Cow::Borrowed(&self.address),
            headers: Cow::Borrowed(&self.headers),
            body: webhook::request(calls).into(),
        };
        let reply = match web::fetch(&self.client, request, self.limit).await {
            Ok(reply) => reply,
            Err(fault) => return vec![fault.outcome(&self.group); calls.len()],
        };
        let ids: Vec<&str> = calls.iter().map(|call| call.id).collect();
        let answers = webhook::read_answers(reply.status, &reply.body, &ids);
        if answers.strangers > 0 {
            let (group, strangers) = (&self.group, answers.strangers);
            tracing::warn!(functions.group = %group, strangers,
                "The endpoint answered calls that were not made");
        }
        let outcome = |outcome: Result<ToolResult, AnswerFault>| {
            Ok(outcome.unwrap_or_else(|fault| {
                self.log(&fault, &reply);
                output::failure(fault.to_string())
            }))
        };
        answers.outcomes.into_iter().map(outcome).collect()
    }

    fn log(&self, fault: &AnswerFault, reply: &web::WebResponse) {
        let (group, fault) = (&self.group, fault.without_words());
        tracing::warn!(functions.group = %group, status = reply.status,
            content_type = reply.content_type, bytes = reply.body.len(), %fault,
            "The endpoint gave an answer that cannot be used");
    }
}
