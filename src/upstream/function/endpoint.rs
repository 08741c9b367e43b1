//! The tool-calls webhook: one POST for each call.
//!
//! What the bodies mean is `translate::functions::webhook`'s to say.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use url::Url;

use super::web;
use crate::{
    secret::Secret,
    tool::{CallError, JsonObject, ServerId, ToolResult},
    translate::{
        functions::{
            output,
            webhook::{self, AnswerFault, Call},
        },
        ids::Ids,
    },
};

/// A webhook, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where calls are posted to.
    pub url: Url,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, Secret)>,
}

/// A webhook, ready to be called.
pub(super) struct Endpoint {
    post: Post,
    ids: Source,
}

impl Endpoint {
    /// Calls go to this URL; nothing is sent yet. `limit` is the longest answer, in bytes.
    pub(super) fn new(
        group: ServerId,
        config: Config,
        client: reqwest::Client,
        limit: usize,
    ) -> Endpoint {
        let mut headers = web::headers(&config.headers);
        for (name, value) in [
            (header::CONTENT_TYPE, "application/json"),
            (header::ACCEPT, "application/json"),
        ] {
            let value = HeaderValue::from_static(value);
            headers.entry(name).or_insert(value);
        }
        Endpoint {
            post: Post {
                group,
                url: config.url,
                headers,
                client,
                limit,
            },
            ids: Source::default(),
        }
    }

    /// Calls a function. Dropping the future gives the call up.
    pub(super) async fn call(
        &self,
        function: &str,
        arguments: JsonObject,
    ) -> Result<ToolResult, CallError> {
        let id = self.ids.next();
        let call = Call {
            id: &id,
            name: function,
            arguments: &arguments,
        };
        let mut outcomes = self.post.send(&[call]).await;
        outcomes.pop().unwrap_or(Err(CallError::Cancelled))
    }
}

/// Makes up the ids of calls: none of them twice, and none that another process is likely to have.
#[derive(Default)]
struct Source {
    random: RandomState,
    used: AtomicU64,
}

impl Source {
    fn next(&self) -> String {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        format!("call_{}", Ids::new(self.random.hash_one(used)).call())
    }
}

/// Posts calls to one URL.
struct Post {
    group: ServerId,
    url: Url,
    headers: HeaderMap,
    client: reqwest::Client,
    limit: usize,
}

impl Post {
    /// Sends calls in one request; what came of each, in their order.
    async fn send(&self, calls: &[Call<'_>]) -> Vec<Result<ToolResult, CallError>> {
        let request = self
            .client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .body(webhook::request(calls));
        let reply = match web::fetch(request, self.limit).await {
            Ok(reply) => reply,
            Err(fault) => return vec![fault.outcome(&self.group); calls.len()],
        };
        let ids: Vec<&str> = calls.iter().map(|call| call.id).collect();
        let answers = webhook::read_answers(reply.status, &reply.body, &ids);
        if answers.strangers > 0 {
            let (group, strangers) = (&self.group, answers.strangers);
            tracing::warn!(functions.group = %group, strangers,
                "Functions `{group}`: the endpoint answered calls that were not made: {strangers}");
        }
        let outcome = |outcome: Result<ToolResult, AnswerFault>| {
            Ok(outcome.unwrap_or_else(|fault| {
                self.log(&fault, &reply);
                output::failure(fault.to_string())
            }))
        };
        answers.outcomes.into_iter().map(outcome).collect()
    }

    fn log(&self, fault: &AnswerFault, reply: &web::Reply) {
        let group = &self.group;
        tracing::warn!(functions.group = %group, status = reply.status,
            content_type = reply.content_type, bytes = reply.body.len(), %fault,
            "Functions `{group}`: {fault}");
    }
}
