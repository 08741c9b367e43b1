//! One chat in progress: its request, the tools it is offered, and the turns that were parked for it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::byte_budget::{ByteBudget, Reservation};
use crate::{
    store::{NewTurn, Principal, sessions::SessionName},
    upstream::{
        model::{self, ClientHeaders, Incoming, Route, RouteStep, retry},
        read_text,
    },
};
use toolway_core::{
    agent::{
        Bounds, Job, Turn,
        ask::{self, Ask},
        choice::forces_own_call,
        cut_results::READ_MORE,
        parked::{self, Restored},
    },
    catalog::{Catalog, Selected},
    policy::KeyId,
    route::Order,
    translate::{
        ids::Ids,
        results::Media,
        state,
        stream::{Known, Mode, Owner, Settings, StreamError},
        usage::Counts,
    },
};
use toolway_protocol::{
    openai::{ErrorBody, request::ChatRequest},
    segmented_body::SegmentedBody,
    tool::{CallError, FunctionName, ToolResult},
};

use super::{
    Gateway, RequestClient, RequestSource,
    calls::{CallLimits, CallsOf, RunningCalls},
    claims::Claims,
    confirmations::CallOrigin,
    failure::Failure,
    progress_mode::ProgressMode,
    record::Record,
    sink::ResponseBody,
};

/// A chat request as the HTTP face received it.
pub struct ChatInput {
    /// The client's headers that may go on to the upstream.
    pub headers: ClientHeaders,
    /// The body as it came.
    pub body: Bytes,
    /// Deepest nesting of the body.
    pub max_depth: usize,
    /// The budget of bytes that a restored conversation counts against.
    pub(crate) bodies: ByteBudget,
    /// Patterns of tools and servers that the client's headers ask for.
    pub tools: Option<Box<str>>,
    /// See `tools`.
    pub servers: Option<Box<str>>,
    /// The session whose state results may change.
    pub session: Option<SessionName>,
    /// The model is shown that state.
    pub shows_state: bool,
    /// Progress that the client's header asks for.
    pub progress: Option<ProgressMode>,
    /// The face can ask its client before a call, so that `require_approval` may say so.
    pub can_ask: bool,
    /// The events of a streamed chat are wanted when it is complete: they say in which order the model said what, for
    /// which a chat completion has no room. What fails, fails as a chat without a stream does.
    pub is_whole: bool,
    /// Most calls of the gateway, if the client says so.
    pub max_tool_calls: Option<usize>,
    /// Whose conversation it is.
    pub principal: Principal,
    /// The client's key.
    pub key: Option<KeyId>,
    /// Which API the client speaks: `chat`, `responses` or `messages`.
    pub face: &'static str,
    /// Where the request comes from.
    pub source: RequestSource,
    /// What is logged when the request ends.
    pub record: Arc<Record>,
    /// Turns a failure into the error event within a stream.
    pub tell: fn(Failure) -> ErrorBody,
}

impl ChatInput {
    /// Who sent it.
    pub fn client(&self) -> RequestClient {
        RequestClient {
            principal: self.principal,
            key: self.key,
            has_approved: false,
            face: self.face,
            source: self.source.clone(),
        }
    }
}

/// The response to a chat.
pub enum ChatResponse {
    /// A whole body.
    Plain {
        /// Headers that go with it.
        headers: HeaderMap,
        /// A chat completion, or the events of one, see [`ChatInput::is_whole`].
        body: Bytes,
    },
    /// A stream of events.
    Stream {
        /// Headers that go with it.
        headers: HeaderMap,
        /// Whole events.
        body: ResponseBody,
    },
}

/// A chat in progress: the request, its client, and what applies to it.
pub(super) struct Chat<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) input: &'a ChatInput,
    pub(super) request: ChatRequest<'a>,
    pub(super) route: Route<'a>,
    /// So many bytes of what the loop adds to the conversation are from before the last change of the model.
    pub(super) foreign: AtomicUsize,
    pub(super) catalog: Arc<Catalog>,
    pub(super) selected: Arc<Selected>,
    /// Of the selected tools, those whose calls are handed to the client, which is to agree to them.
    pub(super) asked_before: Vec<FunctionName>,
    pub(super) progress: ProgressMode,
    /// With the bytes that it takes of the budget.
    pub(super) restored: Option<Box<(Restored, Reservation)>>,
    /// The messages with the state of the session before them, and the bytes that they take of the budget.
    pub(super) with_state: Option<Box<(String, Reservation)>>,
    /// Ids of the client's own calls in this answer.
    pub(super) claims: Claims<'a>,
    pub(super) deadline: Instant,
    /// How often the model was asked.
    pub(super) rounds: AtomicU32,
    /// How many tools were called.
    pub(super) calls: AtomicU32,
}

/// Whatever ended it: the client may have left.
impl Drop for Chat<'_> {
    fn drop(&mut self) {
        self.input.record.note(|details| {
            details.model = Some(self.request.model().to_owned());
            details.upstream = Some(self.route.current().upstream.config.name.clone());
            details.rounds = Some(*self.rounds.get_mut());
        });
        self.input.record.add_calls(*self.calls.get_mut() as usize);
    }
}

impl Chat<'_> {
    /// A gateway tool applies, or the rest of a cut result can be read.
    pub(super) fn is_loop(&self) -> bool {
        !self.selected.tools.is_empty()
            || (self.request.n() == 1
                && self
                    .restored
                    .as_ref()
                    .is_some_and(|restored| !restored.0.cut_results.is_empty()))
    }

    pub(super) fn settings(&self, mode: Mode) -> Settings {
        let step = self.route.current();
        let config = &step.upstream.config;
        Settings {
            mode,
            text_calls: config.text_tool_calls,
            think_tags: config.think_tags,
            skip_invalid_events: config.skip_invalid_events,
            include_usage: self.request.include_usage(),
            seed: self.gateway.seed(),
            created: self.gateway.now(),
            model: step.model().unwrap_or(self.request.model()).to_owned(),
        }
    }

    fn bounds(&self) -> Bounds {
        let config = &self.gateway.config;
        // Whichever model answers, later rounds may be another's.
        let all = |takes: fn(&model::Config) -> bool| self.route.upstreams().all(takes);
        let is_sequential = self.request.parallel_tool_calls() == Some(false);
        Bounds {
            max_rounds: config.max_rounds,
            max_calls: config.max_calls,
            max_all_calls: self.input.max_tool_calls,
            max_result_bytes: config.max_result_bytes,
            media: Media {
                images: all(|upstream| upstream.images),
                audio: all(|upstream| upstream.audio),
            },
            send_reasoning: all(|upstream| upstream.send_reasoning),
            order: if is_sequential {
                Order::Sequential
            } else {
                Order::Parallel
            },
            forces_own_call: forces_own_call(&self.request),
            sees_calls: self.shows_gateway_calls(),
        }
    }

    /// The body of a question to a model. One that nothing was changed in is the very bytes that came.
    fn body<'c>(&'c self, ask: &'c Ask, step: RouteStep<'_>) -> SegmentedBody<'c> {
        let with_state = self.with_state.as_ref().map(|it| it.0.as_str());
        let history = with_state.or_else(|| {
            let restored = self.restored.as_ref();
            restored.map(|restored| restored.0.messages.as_str())
        });
        let is_untouched = step.model().is_none()
            && !self.is_loop()
            && history.is_none()
            && self.request.mcp_tools().is_empty()
            && self.request.member("toolway").is_none()
            && !self.request.repeats_members();
        if is_untouched {
            return SegmentedBody::of(&self.input.body);
        }
        let model = step.model_json();
        ask::compose(&self.request, ask, &self.selected, history, model)
    }

    /// The loop's state before its first question.
    pub(super) fn turn(&self) -> Turn {
        let restored = self.restored.as_ref();
        let cut_results = restored.map(|restored| restored.0.cut_results.clone());
        Turn::new(
            self.bounds(),
            self.catalog.clone(),
            self.selected.clone(),
            self.gateway.policy_of(self.input.key),
            cut_results.unwrap_or_default(),
        )
    }

    /// Sends a request to the model and returns when the head of the answer has arrived.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Incoming, Failure> {
        let round = if ask.first {
            retry::RoundPosition::First
        } else {
            retry::RoundPosition::Later
        };
        self.rounds.fetch_add(1, Ordering::Relaxed);
        let before = self.route.at();
        let foreign = self.foreign.load(Ordering::Relaxed);
        let kept = (foreign > 0).then(|| ask.without_reasoning(foreign));
        let kept = kept.as_ref().unwrap_or(ask);
        let plain = OnceLock::new();
        let body = |step: RouteStep<'_>| {
            let ask = match self.route.at() == before {
                true => kept,
                false => plain.get_or_init(|| ask.without_reasoning(ask.appended.len())),
            };
            self.body(ask, step)
        };
        let headers = &self.input.headers;
        let model = self.request.model();
        let incoming = self.route.ask(headers, model, body, round).await?;
        if self.route.at() != before {
            self.foreign.store(ask.appended.len(), Ordering::Relaxed);
        }
        if ask.first {
            for warning in &incoming.warnings {
                self.input.record.warn(warning);
            }
        }
        Ok(incoming)
    }

    /// Prepares the calls of a turn.
    pub(super) fn start(&self, lanes: Vec<Vec<Job>>) -> RunningCalls<'_> {
        let config = &self.gateway.config;
        let limits = CallLimits {
            silence: config.tool_timeout,
            deadline: self.deadline,
        };
        self.count_calls(&lanes);
        RunningCalls::new(
            self.gateway,
            CallsOf::Client(Arc::new(self.origin())),
            lanes,
            limits,
            config.parallel_calls,
        )
    }

    /// The client, as the maker of its calls.
    fn origin(&self) -> CallOrigin {
        let session = self.input.session.as_ref();
        CallOrigin {
            session: session.map(|it| it.as_str().to_owned()),
            ..self.gateway.origin_of(&self.input.client())
        }
    }

    /// Records the calls of a turn that are not sent.
    pub(super) fn note_refused(&self, turn: &mut Turn) {
        for refused in turn.take_refused() {
            let (selected, catalog) = (&self.selected, &self.catalog);
            self.gateway
                .record_refused(&self.origin(), &refused, selected, catalog);
        }
    }

    /// Prepares more calls of a turn.
    pub(super) fn start_more(&self, running: &mut RunningCalls<'_>, lanes: Vec<Vec<Job>>) {
        self.count_calls(&lanes);
        running.add(lanes);
    }

    fn count_calls(&self, lanes: &[Vec<Job>]) {
        let calls: usize = lanes.iter().map(Vec::len).sum();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// The time since the request began.
    pub(super) fn elapsed(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.gateway.config.request_timeout.saturating_sub(left)
    }

    /// Changes the state of the session as a result asks for.
    pub(super) fn change_state(&self, outcome: &Result<ToolResult, CallError>) {
        let delta = outcome.as_ref().ok().and_then(|it| it.state_delta.as_ref());
        let patch = delta.and_then(state::patch_of);
        let (Some(session), Some(patch)) = (&self.input.session, patch) else {
            return;
        };
        let sessions = self.gateway.sessions();
        if let Err(error) = sessions.merge(self.input.principal, session, &patch) {
            tracing::warn!(%error, "The state of a session was not changed");
        }
    }

    /// Waits for what belongs to this request, as long as the request may take and toolway does not end.
    pub(super) async fn in_time<T>(
        &self,
        awaited: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let after = self.gateway.config.request_timeout;
        let in_time = timeout_at(self.deadline, awaited);
        match self.gateway.ending.run_until_cancelled(in_time).await {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(Failure::TimeIsUp { after }),
            None => Err(Failure::ShuttingDown),
        }
    }

    pub(super) fn ids(&self) -> Ids {
        Ids::new(self.gateway.seed())
    }

    /// Notes the tokens of the whole answer for the log.
    pub(super) fn note_usage(&self, usage: Counts) {
        if usage != Counts::default() {
            self.input.record.note(|details| details.usage = usage);
        }
    }

    /// What is wrong with the upstream's answer.
    pub(super) fn faulty(&self, error: StreamError) -> Failure {
        Failure::Answer {
            upstream: self.route.current().upstream.config.name.clone(),
            error,
        }
    }

    /// The loop has no effect left and has not ended. This is a bug in toolway; it is reported so that no client hangs.
    pub(super) fn lost_track(&self) -> Failure {
        self.faulty(StreamError::Ended)
    }

    fn is_client_tool(&self, name: &str) -> bool {
        let mut tools = self.request.client_tools().iter();
        tools.any(|tool| tool.name.as_deref() == Some(name))
    }

    /// Stores the turns that the client does not see, until it sends the results of its own calls.
    pub(super) async fn park(&self, parked: parked::Parked) {
        let messages = self.request.messages();
        let turn = NewTurn {
            principal: self.input.principal,
            question: read_text(messages.get().len(), || parked::question(messages)),
            parked: Arc::new(parked),
        };
        self.claims.park();
        self.gateway.entries.park(turn).await;
    }
}

impl Known for Chat<'_> {
    fn owner(&self, name: &str) -> Owner {
        let is_asked_before = || self.asked_before.iter().any(|it| it.as_str() == name);
        if self.is_client_tool(name) || is_asked_before() {
            Owner::Client
        } else {
            Owner::Gateway
        }
    }

    fn offered_name(&self, name: &str) -> Option<String> {
        if self.asked_before.is_empty() || self.is_client_tool(name) {
            return None;
        }
        let (tool, _) = self.selected.meant(name, &self.catalog)?;
        let is_asked_before = self.asked_before.contains(&tool.name);
        is_asked_before.then(|| tool.name.to_string())
    }

    fn claims(&self, id: &str) -> bool {
        self.claims.claim(id)
    }

    fn shows_gateway_calls(&self) -> bool {
        self.progress == ProgressMode::Items
    }

    fn is_offered(&self, name: &str) -> bool {
        self.owner(name) == Owner::Client || self.selected.find(name).is_some() || name == READ_MORE
    }

    fn parameters(&self, name: &str) -> Option<Value> {
        if let Some(offered) = self.selected.find(name) {
            return Some(Value::Object(offered.tool.input_schema.clone()));
        }
        let own = self
            .request
            .client_tools()
            .iter()
            .find(|tool| tool.name.as_deref() == Some(name))?;
        let tool: Value = serde_json::from_str(own.raw.get()).ok()?;
        tool.pointer("/function/parameters").cloned()
    }
}
