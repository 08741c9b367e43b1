//! Functions that are one HTTP request each, to an API that knows nothing of tools.
//!
//! Where the arguments go is `translate::functions::request`'s to say, and what the answer means is
//! `translate::functions::reply`'s.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::web;
use crate::{
    secret::Secret,
    tool::{CallError, JsonObject, ServerId, ToolResult},
    translate::functions::{reply, request::RequestTemplate},
};

/// The requests of a group, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// How each function is requested; every function of the group is in here.
    pub requests: HashMap<String, RequestTemplate>,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, Secret)>,
}

/// The requests of a group, ready to be sent.
pub(super) struct Requests {
    group: ServerId,
    requests: HashMap<String, RequestTemplate>,
    headers: HeaderMap,
    client: reqwest::Client,
    limit: usize,
}

impl Requests {
    /// Calls are sent by this client; nothing is sent yet. `limit` is the longest answer, in bytes.
    pub(super) fn new(
        group: ServerId,
        config: &Config,
        client: reqwest::Client,
        limit: usize,
    ) -> Requests {
        let mut headers = web::headers(&config.headers);
        let accept = HeaderValue::from_static("application/json, */*;q=0.8");
        headers.entry(header::ACCEPT).or_insert(accept);
        Requests {
            group,
            requests: config.requests.clone(),
            headers,
            client,
            limit,
        }
    }

    /// Calls a function. Dropping the future gives the call up.
    pub(super) async fn call(
        &self,
        function: &str,
        arguments: JsonObject,
    ) -> Result<ToolResult, CallError> {
        let unknown = || CallError::UnknownTool {
            name: function.to_owned(),
            did_you_mean: Vec::new(),
        };
        let template = self.requests.get(function).ok_or_else(unknown)?;
        let request = template.fill(function, arguments)?;
        let mut headers = self.headers.clone();
        let mut builder = self.client.request(request.method, request.url);
        if let Some(body) = request.body {
            let json = HeaderValue::from_static("application/json");
            headers.entry(header::CONTENT_TYPE).or_insert(json);
            builder = builder.body(body);
        }
        let reply = match web::fetch(builder.headers(headers), self.limit).await {
            Ok(reply) => reply,
            Err(fault) => return fault.outcome(&self.group),
        };
        let web::Reply {
            status,
            content_type,
            body,
        } = reply;
        let result = reply::read(function, status, &content_type, &body);
        if result.is_error {
            let group = &self.group;
            tracing::warn!(functions.group = %group, status, content_type, bytes = body.len(),
                "Functions `{group}`: the service answered with HTTP {status}");
        }
        Ok(result)
    }
}
