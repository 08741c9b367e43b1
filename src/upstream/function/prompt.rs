//! Functions that are a question to a model: a prompt with the arguments in it, and the answer's text.
//!
//! The model is asked once and gets no tools, so there can be no loop.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::upstream::model::{
    ClientHeaders, ModelError, Models, Route, RouteStep, retry::RoundPosition,
};
use toolway_core::translate::{
    completion,
    functions::{output, request::FUNCTION, template::Template},
    ids::Ids,
    stream::{Known, Mode, Owner, Settings},
};
use toolway_protocol::{
    segmented_body::SegmentedBody,
    tool::{CallError, JsonObject, ServerId, ToolResult},
};

/// A question, as configured and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model's name; one of the upstreams has it.
    pub model: String,
    /// What the model is asked.
    pub prompt: Template,
}

/// A question, ready to be asked.
pub(super) struct Prompt {
    group: ServerId,
    config: Config,
    models: Arc<Models>,
    limit: usize,
    random: RandomState,
    used: AtomicU64,
}

impl Prompt {
    /// One of these models is asked. `limit` is the longest answer, in bytes.
    pub(super) fn new(
        group: ServerId,
        config: Config,
        models: Arc<Models>,
        limit: usize,
    ) -> Prompt {
        Prompt {
            group,
            config,
            models,
            limit,
            random: RandomState::new(),
            used: AtomicU64::new(0),
        }
    }

    /// Asks the model. Dropping the future ends the question.
    pub(super) async fn call(
        &self,
        function: &str,
        arguments: &JsonObject,
    ) -> Result<ToolResult, CallError> {
        let Some(route) = self.models.route(&self.config.model, || self.seed()) else {
            return Err(unavailable("no upstream has the function's model", true));
        };
        let answer = match self.ask(&route, self.question(function, arguments)).await {
            Ok(answer) => answer,
            Err(error) => return self.failed(&error),
        };
        Ok(self.read(route.current(), &answer))
    }

    fn seed(&self) -> u64 {
        self.random
            .hash_one(self.used.fetch_add(1, Ordering::Relaxed))
    }

    fn question(&self, function: &str, arguments: &JsonObject) -> String {
        let value = |name: &str| match arguments.get(name) {
            _ if name == FUNCTION => function.to_owned(),
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let filled = self.config.prompt.fill(|name| Some(value(name)));
        filled.unwrap_or_default()
    }

    async fn ask(&self, route: &Route<'_>, question: String) -> Result<Bytes, ModelError> {
        let body = |step: RouteStep<'_>| {
            let mut body = SegmentedBody::new();
            body.json(&json!({
                "model": step.model().unwrap_or(&self.config.model),
                "messages": [{"role": "user", "content": question}],
                "stream": false,
            }));
            body
        };
        let no_client = ClientHeaders::default();
        // Repeating the request does no harm, so it may be retried as in a later round.
        let incoming = route
            .ask(&no_client, &self.config.model, body, RoundPosition::Later)
            .await?;
        incoming.read_all(self.limit).await
    }

    fn read(&self, step: RouteStep<'_>, body: &[u8]) -> ToolResult {
        let (upstream, seed) = (step.upstream, self.seed());
        let settings = Settings {
            mode: Mode::Loop,
            text_calls: upstream.config.text_tool_calls,
            think_tags: upstream.config.think_tags,
            skip_invalid_events: upstream.config.skip_invalid_events,
            include_usage: false,
            seed,
            created: 0,
            model: self.config.model.clone(),
        };
        match completion::read(body, &settings, &NoTools, &mut Ids::new(seed)) {
            Ok(completion) => {
                let round = completion.round;
                match (round.content, round.refusal) {
                    (Some(text), _) if !text.trim().is_empty() => ToolResult::text(text),
                    (_, Some(refusal)) => output::failure(format!("the model refuses: {refusal}")),
                    _ => output::failure("the model answered without a text"),
                }
            }
            Err(error) => {
                self.log(&error);
                output::failure("the model's answer could not be read")
            }
        }
    }

    fn failed(&self, error: &ModelError) -> Result<ToolResult, CallError> {
        self.log(error);
        match error {
            ModelError::Unreachable { .. } => Err(unavailable(
                "the function's model cannot be reached right now; try again later",
                true,
            )),
            ModelError::Timeout { after, .. } => Err(CallError::Timeout { after: *after }),
            ModelError::Broken { .. } => Err(unavailable(
                "the connection to the function's model was lost",
                false,
            )),
            // Its message may contain keys and account names.
            ModelError::Refused(refused) => Ok(output::failure(format!(
                "the function's model answered with HTTP {}",
                refused.status.as_u16()
            ))),
            ModelError::Invalid { .. } => {
                Ok(output::failure("the model's answer could not be read"))
            }
        }
    }

    fn log(&self, error: &dyn std::fmt::Display) {
        let group = &self.group;
        tracing::warn!(functions.group = %group, %error, "The model of a function failed");
    }
}

fn unavailable(message: &str, unsent: bool) -> CallError {
    CallError::UpstreamUnavailable {
        message: message.to_owned(),
        unsent,
    }
}

/// The model is offered no tools; a call that it makes anyway is ignored.
struct NoTools;

impl Known for NoTools {
    fn owner(&self, _: &str) -> Owner {
        Owner::Client
    }

    fn claims(&self, _: &str) -> bool {
        true
    }

    fn is_offered(&self, _: &str) -> bool {
        false
    }

    fn parameters(&self, _: &str) -> Option<Value> {
        None
    }
}
