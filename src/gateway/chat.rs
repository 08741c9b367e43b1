//! One chat completion: what it asks for, which tools apply, and which way it takes.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::{
    agent::{
        Bounds, Job, Turn,
        ask::{self, Ask},
        kept::READ_MORE,
        parked::{self, Restored},
    },
    catalog::{Catalog, Selected, Selection},
    openai::{
        ErrorBody,
        request::{ChatRequest, messages_of},
    },
    pieces::Pieces,
    route::Order,
    store::{Claims, Principal},
    translate::{
        ids::Ids,
        results::Media,
        stream::{Known, Mode, Owner, Settings, StreamError},
    },
    upstream::{
        model::{Incoming, Upstream, retry},
        read_text,
    },
};

use super::{
    Gateway,
    calls::{Patience, Running},
    failure::{Failed, Failure},
    plain,
    sink::{self, Begun, Body, Outcome, Sink},
    stream,
    watch::Watch,
    wishes::{self, refused},
};

/// A chat request as the HTTP face took it.
pub struct Input {
    /// The client's headers that may go on to the upstream.
    pub headers: Box<[(HeaderName, HeaderValue)]>,
    /// The body as it came.
    pub body: Bytes,
    /// Deepest nesting of the body.
    pub max_depth: usize,
    /// Patterns of tools and servers that the client's headers ask for.
    pub tools: Option<String>,
    /// See `tools`.
    pub servers: Option<String>,
    /// Progress that the client's header asks for.
    pub watch: Option<Watch>,
    /// Whose conversation it is.
    pub principal: Principal,
    /// Turns a failure into what a client is told within a stream.
    pub tell: fn(Failure) -> ErrorBody,
}

/// What comes back.
pub enum Answer {
    /// A whole body.
    Plain {
        /// Headers that go with it.
        headers: HeaderMap,
        /// A chat completion.
        body: Bytes,
    },
    /// A stream of events.
    Stream {
        /// Headers that go with it.
        headers: HeaderMap,
        /// Whole events.
        body: Body,
    },
}

impl Gateway {
    /// Answers a chat request.
    ///
    /// Dropping the future, or the body it gives, ends the model call and cancels every running tool.
    pub async fn chat(self: &Arc<Gateway>, input: Input) -> Result<Answer, Failed> {
        let gateway = self.clone();
        let answer = |sink| async move { gateway.answer(&input, sink).await };
        match sink::begin(self.config.keepalive, answer).await {
            Begun::Stream(headers, body) => Ok(Answer::Stream { headers, body }),
            Begun::Ended(Ok(Some((headers, body)))) => Ok(Answer::Plain { headers, body }),
            Begun::Ended(Ok(None)) => Err(nothing().into()),
            Begun::Ended(Err(failed)) => Err(failed),
        }
    }

    /// The whole story: `Some` with a plain answer, `None` when it was streamed into the sink.
    async fn answer(&self, input: &Input, sink: Sink) -> Outcome {
        let chat = &self.prepare(input)?;
        match (chat.is_loop(), chat.request.stream()) {
            // Boxed, for each of them takes kilobytes for as long as an answer lasts, and would take as much as the
            // largest.
            (false, true) => Box::pin(stream::pass_through(chat, sink))
                .await
                .map(|()| None),
            (false, false) => Box::pin(plain::pass_through(chat)).await.map(Some),
            (true, true) => Box::pin(stream::run(chat, sink)).await.map(|()| None),
            (true, false) => Box::pin(plain::run(chat)).await.map(Some),
        }
    }

    fn prepare<'a>(&'a self, input: &'a Input) -> Result<Chat<'a>, Failure> {
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let request = read_text(input.body.len(), parse).map_err(refused)?;
        let model = request.model();
        let upstream = self.models.choose(model);
        let upstream = upstream.ok_or_else(|| Failure::ModelNotFound {
            model: model.to_owned(),
        })?;
        let catalog = self.catalog();
        let client = request.client_names();
        let selected = if wishes::applies(&request) {
            let (tools, servers) = (input.tools.as_deref(), input.servers.as_deref());
            let selection =
                Selection::parse(tools, servers, request.mcp_tools(), catalog.servers());
            let mut selection = selection.map_err(refused)?;
            selection.prefer(wishes::forced(request.tool_choice(), &catalog));
            catalog.select(&selection, &client, upstream.config.max_tools)
        } else {
            Arc::default()
        };
        wishes::check(&request, &selected)?;
        let options = wishes::options(&request)?;
        let restored = self.restore(&request, input.principal);
        Ok(Chat {
            gateway: self,
            input,
            upstream,
            catalog,
            selected,
            watch: options.or(input.watch).unwrap_or_default(),
            restored,
            claims: self.store.claims(),
            deadline: Instant::now() + self.config.request_timeout,
            request,
        })
    }

    fn restore(&self, request: &ChatRequest<'_>, principal: Principal) -> Option<Box<Restored>> {
        if self.store.is_empty() || !parked::may_concern(request.messages()) {
            return None;
        }
        let messages = messages_of(request.messages());
        parked::restore(&messages, &|id| self.store.find(principal, id)).map(Box::new)
    }
}

/// A chat on its way: what was asked, by whom, and what applies to it.
pub(super) struct Chat<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) input: &'a Input,
    pub(super) request: ChatRequest<'a>,
    pub(super) upstream: &'a Upstream,
    pub(super) catalog: Arc<Catalog>,
    pub(super) selected: Arc<Selected>,
    pub(super) watch: Watch,
    pub(super) restored: Option<Box<Restored>>,
    /// Ids of the client's own calls in this answer.
    claims: Claims<'a>,
    pub(super) deadline: Instant,
}

impl Chat<'_> {
    /// A gateway tool applies, or a result that was cut can be read on in.
    pub(super) fn is_loop(&self) -> bool {
        !self.selected.tools.is_empty()
            || (self.request.n() == 1
                && self
                    .restored
                    .as_ref()
                    .is_some_and(|restored| !restored.kept.is_empty()))
    }

    pub(super) fn settings(&self, mode: Mode) -> Settings {
        let config = &self.upstream.config;
        Settings {
            mode,
            text_calls: config.text_tool_calls,
            think_tags: config.think_tags,
            skip_invalid_events: config.skip_invalid_events,
            include_usage: self.request.include_usage(),
            seed: self.gateway.seed(),
            created: self.gateway.now(),
            model: self.request.model().to_owned(),
        }
    }

    fn bounds(&self) -> Bounds {
        let (config, upstream) = (&self.gateway.config, &self.upstream.config);
        let is_sequential = self.request.parallel_tool_calls() == Some(false);
        Bounds {
            max_rounds: config.max_rounds,
            max_calls: config.max_calls,
            max_result_bytes: config.max_result_bytes,
            media: Media {
                images: upstream.images,
                audio: upstream.audio,
            },
            send_reasoning: upstream.send_reasoning,
            order: if is_sequential {
                Order::Sequential
            } else {
                Order::Parallel
            },
        }
    }

    /// The body of a question. One that nothing was changed in is the very bytes that came.
    fn body<'c>(&'c self, ask: &'c Ask) -> Pieces<'c> {
        let history = self
            .restored
            .as_ref()
            .map(|restored| restored.messages.as_str());
        let is_untouched = !self.is_loop()
            && history.is_none()
            && self.request.mcp_tools().is_empty()
            && self.request.member("toolway").is_none()
            && !self.request.repeats_members();
        if is_untouched {
            return Pieces::of(&self.input.body);
        }
        ask::compose(&self.request, ask, &self.selected, history)
    }

    /// The loop's state before its first question.
    pub(super) fn turn(&self) -> Turn {
        let restored = self.restored.as_ref();
        let kept = restored.map(|restored| restored.kept.clone());
        Turn::new(
            self.bounds(),
            self.catalog.clone(),
            self.selected.clone(),
            kept.unwrap_or_default(),
        )
    }

    /// Puts a question to the model; the answer's head is there when this ends.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Incoming, Failure> {
        let round = if ask.first {
            retry::Round::First
        } else {
            retry::Round::Later
        };
        let body = self.body(ask);
        let headers = &self.input.headers;
        Ok(self.upstream.chat(headers, &body, round).await?)
    }

    /// Readies the calls of a turn.
    pub(super) fn start(&self, lanes: Vec<Vec<Job>>) -> Running<'_> {
        let config = &self.gateway.config;
        let patience = Patience {
            silence: config.tool_timeout,
            deadline: self.deadline,
            parallel: config.parallel_calls,
        };
        Running::new(&self.gateway.backends, lanes, patience)
    }

    /// Waits for what belongs to this request, as long as the request may take.
    pub(super) async fn in_time<T>(
        &self,
        awaited: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let after = self.gateway.config.request_timeout;
        match timeout_at(self.deadline, awaited).await {
            Ok(ended) => ended,
            Err(_) => Err(Failure::TimeIsUp { after }),
        }
    }

    pub(super) fn ids(&self) -> Ids {
        Ids::new(self.gateway.seed())
    }

    /// What is wrong with the upstream's answer.
    pub(super) fn faulty(&self, error: StreamError) -> Failure {
        Failure::Answer {
            upstream: self.upstream.config.name.clone(),
            error,
        }
    }

    /// The loop has nothing left to do and no end: a defect of ours, told rather than hung on.
    pub(super) fn lost_track(&self) -> Failure {
        self.faulty(StreamError::Ended)
    }

    /// Keeps what the client cannot know until it comes back with the answers to its own calls.
    pub(super) fn park(&self, parked: parked::Parked) {
        let question = parked::question(&messages_of(self.request.messages()));
        self.gateway
            .store
            .park(self.input.principal, question, parked);
    }
}

impl Known for Chat<'_> {
    fn owner(&self, name: &str) -> Owner {
        let is_own = self
            .request
            .client_tools()
            .iter()
            .any(|tool| tool.name.as_deref() == Some(name));
        if is_own {
            Owner::Client
        } else {
            Owner::Gateway
        }
    }

    fn claims(&self, id: &str) -> bool {
        self.claims.claim(id)
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

/// The loop ended without a word: a defect of ours, told rather than hung on.
fn nothing() -> Failure {
    Failure::Answer {
        upstream: "toolway".to_owned(),
        error: StreamError::Ended,
    }
}
