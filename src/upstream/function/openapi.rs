//! The operations of an HTTP API that an OpenAPI document describes.
//!
//! `translate::openapi` defines the request, and `translate::functions::reply` the meaning of the answer.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use url::Url;

use super::web;
use crate::secret::Secret;
use crate::upstream::{SetupError, wire::Client};
use toolway_core::{
    catalog::DroppedTool,
    translate::{
        functions::reply,
        openapi::{HttpRequest, Operation, Plan},
    },
};
use toolway_protocol::tool::{CallError, JsonObject, ServerId, Tool, ToolResult};

/// The `Accept` header if neither the configuration nor the model sets one.
const ACCEPT: &str = "application/json, */*;q=0.5";

/// An API, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the operations' paths are added to; without query.
    pub base_url: Url,
    /// Sent with every request; they replace what an operation would send under the same name.
    pub headers: Vec<(HeaderName, Secret)>,
    /// What is offered.
    pub operations: Vec<Operation>,
    /// The requested functions that cannot be offered.
    pub dropped: Vec<DroppedTool>,
}

impl Config {
    /// The operations as tools.
    pub fn tools(&self) -> Vec<Tool> {
        self.operations.iter().map(|it| it.tool.clone()).collect()
    }
}

/// An API, ready to be called.
pub(super) struct OpenApiRunner {
    group: ServerId,
    base_url: Url,
    headers: HeaderMap,
    plans: HashMap<String, Plan>,
    client: Client,
    limit: usize,
}

impl OpenApiRunner {
    /// Calls go to this API; nothing is sent yet. `limit` is the longest answer, in bytes.
    ///
    /// # Errors
    /// When the TLS setup of the machine cannot be used.
    pub(super) fn new(
        group: ServerId,
        config: &Config,
        limit: usize,
    ) -> Result<OpenApiRunner, SetupError> {
        let plans = config.operations.iter();
        Ok(OpenApiRunner {
            group,
            base_url: config.base_url.clone(),
            headers: web::headers(&config.headers),
            plans: plans
                .map(|it| (it.tool.name.clone(), it.plan.clone()))
                .collect(),
            client: web::client(config.base_url.as_str())?,
            limit,
        })
    }

    /// Calls an operation. Dropping the future gives the call up.
    pub(super) async fn call(
        &self,
        function: &str,
        arguments: &JsonObject,
    ) -> Result<ToolResult, CallError> {
        let plan = self.plans.get(function);
        let plan = plan.ok_or_else(|| CallError::UnknownTool {
            name: function.to_owned(),
            did_you_mean: Vec::new(),
        })?;
        let request = self.request(plan.request(arguments)?)?;
        match web::fetch(&self.client, request, self.limit).await {
            Ok(answer) => {
                let group = &self.group;
                if !(200..300).contains(&answer.status) {
                    tracing::info!(functions.group = %group, function, status = answer.status,
                        content_type = answer.content_type, bytes = answer.body.len(),
                        "An API answered with an error status");
                }
                Ok(reply::read(
                    function,
                    answer.status,
                    &answer.content_type,
                    &answer.body,
                ))
            }
            Err(fault) => fault.outcome(&self.group),
        }
    }

    fn request(&self, request: HttpRequest) -> Result<web::WebRequest<'static>, CallError> {
        let url = Url::parse(&request.url(self.base_url.as_str())).ok();
        // The plan already ensures this. If it missed a case, the keys must still not go to another host.
        let url = url.filter(|url| url.origin() == self.base_url.origin());
        let url = url.ok_or_else(|| cannot_be_sent("the arguments make no URL"))?;
        let method = Method::from_bytes(request.method.as_bytes())
            .map_err(|_| cannot_be_sent("the method is none of HTTP"))?;
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        for (name, value) in request.headers {
            let name = HeaderName::try_from(name).ok();
            let value = HeaderValue::try_from(value).ok();
            let (name, value) = name
                .zip(value)
                .ok_or_else(|| cannot_be_sent("an argument cannot be sent as a header"))?;
            headers.insert(name, value);
        }
        let mut bytes = Bytes::new();
        if let Some(body) = request.body {
            let media = HeaderValue::try_from(body.content_type);
            let media = media.map_err(|_| cannot_be_sent("the type of the body is none"))?;
            headers.insert(header::CONTENT_TYPE, media);
            bytes = body.bytes.into();
        }
        for name in self.headers.keys() {
            headers.remove(name);
        }
        headers.extend(self.headers.clone());
        Ok(web::WebRequest {
            method,
            address: Cow::Owned(url.into()),
            headers: Cow::Owned(headers),
            body: bytes,
        })
    }
}

fn cannot_be_sent(message: &str) -> CallError {
    CallError::InvalidParams {
        path: String::new(),
        message: message.to_owned(),
        input_schema: serde_json::Value::Null,
    }
}
