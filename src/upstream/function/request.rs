//! Functions that are one HTTP request each, to an ordinary HTTP API.
//!
//! `translate::functions::request` places the arguments, and `translate::functions::reply` reads the answer.

use std::{borrow::Cow, collections::HashMap};

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::web;
use crate::secret::Secret;
use crate::upstream::{SetupError, wire::Client};
use toolway_core::translate::functions::{
    reply,
    request::{RequestTemplate, body},
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, ToolResult};

/// The requests of a group, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// How each function is requested; every function of the group is in here.
    pub requests: HashMap<String, RequestTemplate>,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, Secret)>,
}

/// The requests of a group, ready to be sent.
pub(super) struct RequestRunner {
    group: ServerId,
    requests: HashMap<String, RequestPlan>,
    headers: HeaderMap,
    /// The same, with `Content-Type`.
    headers_with_body: HeaderMap,
    limit: usize,
}

/// How a function is requested.
struct RequestPlan {
    template: RequestTemplate,
    /// Where to, if it is the same for all arguments.
    constant: Option<web::Address>,
    client: Client,
}

impl RequestRunner {
    /// Nothing is sent yet. `limit` is the longest answer, in bytes.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub(super) fn new(
        group: ServerId,
        config: &Config,
        limit: usize,
    ) -> Result<RequestRunner, SetupError> {
        let mut headers = web::headers(&config.headers);
        let accept = HeaderValue::from_static("application/json, */*;q=0.8");
        headers.entry(header::ACCEPT).or_insert(accept);
        let mut headers_with_body = headers.clone();
        let json = HeaderValue::from_static("application/json");
        let media = headers_with_body.entry(header::CONTENT_TYPE);
        media.or_insert(json);
        // Most functions of a group are at one host.
        let mut clients = HashMap::new();
        let mut requests = HashMap::new();
        for (function, template) in &config.requests {
            let client = match clients.get(template.origin()) {
                Some(client) => Client::clone(client),
                None => web::client(template.origin())?,
            };
            clients.insert(template.origin(), client.clone());
            let plan = RequestPlan {
                template: template.clone(),
                constant: template.constant(function).map(web::Address::from),
                client,
            };
            requests.insert(function.clone(), plan);
        }
        Ok(RequestRunner {
            group,
            requests,
            headers,
            headers_with_body,
            limit,
        })
    }

    /// Calls a function. Dropping the future gives the call up.
    pub(super) async fn call(
        &self,
        function: &str,
        arguments: &JsonObject,
    ) -> Result<ToolResult, CallError> {
        let unknown = || CallError::UnknownTool {
            name: function.to_owned(),
            did_you_mean: Vec::new(),
        };
        let plan = self.requests.get(function).ok_or_else(unknown)?;
        let request = self.request(plan, function, arguments)?;
        let reply = match web::fetch(&plan.client, request, self.limit).await {
            Ok(reply) => reply,
            Err(fault) => return fault.outcome(&self.group),
        };
        let web::WebResponse {
            status,
            content_type,
            body,
        } = reply;
        let result = reply::read(function, status, &content_type, &body);
        if result.is_error {
            let group = &self.group;
            tracing::warn!(functions.group = %group, status, content_type, bytes = body.len(),
                "The service of a function answered with an error status");
        }
        Ok(result)
    }

    fn request<'a>(
        &'a self,
        plan: &'a RequestPlan,
        function: &str,
        arguments: &JsonObject,
    ) -> Result<web::WebRequest<'a>, CallError> {
        if let Some(address) = &plan.constant {
            return Ok(web::WebRequest {
                method: plan.template.method().clone(),
                address: Cow::Borrowed(address),
                headers: Cow::Borrowed(&self.headers_with_body),
                body: body(arguments).into(),
            });
        }
        let request = plan.template.fill(function, arguments.clone())?;
        let headers = match request.body {
            Some(_) => &self.headers_with_body,
            None => &self.headers,
        };
        Ok(web::WebRequest {
            method: request.method,
            address: Cow::Owned(request.url.into()),
            headers: Cow::Borrowed(headers),
            body: request.body.unwrap_or_default().into(),
        })
    }
}
