//! One chat completion: what it asks for, which tools apply, and which way it takes.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use crate::byte_budget::{ByteBudget, Reservation};
use crate::{
    store::{FoundUnder, NewTurn, Principal},
    upstream::{
        model::{ClientHeaders, Incoming, Upstream, retry},
        read_text,
    },
};
use toolway_core::{
    agent::{
        Bounds, Job, Turn,
        ask::{self, Ask},
        choice::forces_own_call,
        cut_results::READ_MORE,
        parked::{self, Found, NoRoom, Restored},
    },
    catalog::{Catalog, Selected, Selection},
    route::Order,
    translate::{
        ids::Ids,
        results::Media,
        stream::{Known, Mode, Owner, Settings, StreamError},
        usage::Counts,
    },
};
use toolway_protocol::{
    openai::{
        ErrorBody,
        request::{ChatRequest, RequestError},
    },
    segmented_body::SegmentedBody,
    tool::ServerId,
};

use super::{
    Gateway,
    calls::{CallLimits, Running},
    claims::Claims,
    failure::{Failed, Failure},
    plain,
    progress_mode::ProgressMode,
    record::Record,
    request_options::{self, refused},
    sink::{self, Begun, Body, Sink},
    stream,
};

/// A chat request as the HTTP face took it.
pub struct Input {
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
    /// Progress that the client's header asks for.
    pub progress: Option<ProgressMode>,
    /// Whose conversation it is.
    pub principal: Principal,
    /// What is logged when the request ends.
    pub record: Arc<Record>,
    /// Turns a failure into the error event within a stream.
    pub tell: fn(Failure) -> ErrorBody,
}

/// The response to a chat.
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
        // The whole story, `Some` with a plain answer, `None` when it was streamed into the sink. It is written here,
        // since in a function of its own the sink would lie twice for as long as an answer lasts.
        let answer = |sink: Sink| async move {
            if gateway.servers.are_any_missing() && Instant::now() < gateway.start_ends {
                // Boxed, because only the first chats wait.
                Box::pin(gateway.wait_for_tools(&input)).await;
            }
            if gateway.current.is_behind() {
                // A server that has just become ready counts as such before its tools are in the catalog.
                let renewing = timeout(gateway.config.start_wait, gateway.current.renew());
                let _ = Box::pin(renewing).await;
            }
            let chat = &gateway.prepare(&input).await.map_err(Failed::from)?;
            match (chat.is_loop(), chat.request.stream()) {
                // Boxed, for each of them takes kilobytes for as long as an answer lasts, and would take as much as
                // the largest.
                (false, true) => Box::pin(stream::pass_through(chat, sink))
                    .await
                    .map(|()| None),
                (false, false) => Box::pin(plain::pass_through(chat)).await.map(Some),
                (true, true) => Box::pin(stream::run(chat, sink)).await.map(|()| None),
                (true, false) => Box::pin(plain::run(chat)).await.map(Some),
            }
        };
        match sink::begin(self.config.keepalive, answer).await {
            Begun::Stream(headers, body) => Ok(Answer::Stream { headers, body }),
            Begun::Ended(Ok(Some((headers, body)))) => Ok(Answer::Plain { headers, body }),
            Begun::Ended(Ok(None)) => Err(nothing().into()),
            Begun::Ended(Err(failed)) => Err(failed),
        }
    }

    async fn prepare<'a>(&'a self, input: &'a Input) -> Result<Chat<'a>, Failure> {
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let request = read_text(input.body.len(), parse).map_err(refused)?;
        let model = request.model();
        let upstream = self.models.choose(model);
        let upstream = upstream.ok_or_else(|| Failure::ModelNotFound {
            model: model.to_owned(),
        })?;
        let catalog = self.catalog();
        let selected = match request_options::applies(&request) {
            true => self.select(&request, input, upstream, &catalog)?,
            false => {
                request_options::check(&request, &Selected::default())?;
                Arc::default()
            }
        };
        let options = request_options::options(&request)?;
        let restored = match self.may_restore(&request) {
            // Boxed, because only conversations with calls are restored.
            true => Box::pin(self.restore(&request, input)).await?,
            false => None,
        };
        Ok(Chat {
            gateway: self,
            input,
            upstream,
            catalog,
            selected,
            progress: options.or(input.progress).unwrap_or_default(),
            restored,
            claims: self.claimed.claims(),
            deadline: Instant::now() + self.config.request_timeout,
            request,
            rounds: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        })
    }

    /// The tools that the request is offered. What it may miss is said in warnings.
    fn select(
        &self,
        request: &ChatRequest<'_>,
        input: &Input,
        upstream: &Upstream,
        catalog: &Catalog,
    ) -> Result<Arc<Selected>, Failure> {
        let client = request.client_names();
        let mut selection = selection(request, input, catalog).map_err(refused)?;
        let missing = self.missing(&selection);
        if request.n() > 1 {
            let selected = catalog.select(&selection, &client, usize::MAX);
            request_options::check(request, &selected)?;
            if !selected.tools.is_empty() || !missing.is_empty() {
                request_options::check_several(request, &selection, catalog)?;
                input
                    .record
                    .warn(&request_options::not_offered(request.n()));
            }
            return Ok(Arc::default());
        }
        if !missing.is_empty() {
            input.record.warn(&request_options::not_ready(&missing));
        }
        selection.prefer(request_options::forced(request.tool_choice(), catalog));
        let max_tools = upstream.config.max_tools;
        if catalog.offered().len() + client.len() > max_tools {
            selection.mention(request_options::mentioned(
                request.messages().get(),
                catalog,
            ));
        }
        let selected = catalog.select(&selection, &client, max_tools);
        let nothing = missing
            .is_empty()
            .then(|| request_options::nothing_selected(request, input, &selection, &selected))
            .flatten();
        let left_out = request_options::left_out(&selected, &upstream.config.name, max_tools);
        for text in nothing.iter().chain(&left_out) {
            input.record.warn(text);
        }
        request_options::check(request, &selected)?;
        Ok(selected)
    }

    /// Waits until the servers whose tools this request may be offered are ready or have failed, or the start is over.
    async fn wait_for_tools(&self, input: &Input) {
        let Some(missing) = self.awaited(input) else {
            // It wants no tools, or is refused by `prepare`.
            return;
        };
        let settled = self.servers.settled_of(&missing);
        let _ = timeout_at(self.start_ends, settled).await;
        self.current.renew().await;
    }

    fn awaited(&self, input: &Input) -> Option<Vec<ServerId>> {
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let request = read_text(input.body.len(), parse).ok()?;
        if !request_options::applies(&request) || request.n() > 1 {
            return None;
        }
        let selection = selection(&request, input, &self.catalog()).ok()?;
        let missing = self.missing(&selection);
        (!missing.is_empty()).then_some(missing)
    }

    /// The servers that were never ready and may have tools for this selection.
    fn missing(&self, selection: &Selection) -> Vec<ServerId> {
        if !self.servers.are_any_missing() {
            return Vec::new();
        }
        let missing = self.servers.missing();
        let wanted = missing.filter(|server| selection.may_select_of(server));
        wanted.cloned().collect()
    }

    /// There may be a turn to restore, or a mark to remove.
    fn may_restore(&self, request: &ChatRequest<'_>) -> bool {
        let messages = request.messages();
        read_text(messages.get().len(), || {
            parked::has_marks(messages) || (!self.turns.is_empty() && parked::may_concern(messages))
        })
    }

    /// The conversation with what was parked, where there is something to restore.
    async fn restore(
        &self,
        request: &ChatRequest<'_>,
        input: &Input,
    ) -> Result<Option<Box<(Restored, Reservation)>>, Failure> {
        let messages = request.messages();
        let mut reservation = input.bodies.take_nothing();
        let mut loaded = 0;
        let mut found: HashMap<String, Vec<Found>> = HashMap::new();
        let keys = match self.turns.is_empty() {
            true => Vec::new(),
            false => read_text(messages.get().len(), || parked::keys(messages)),
        };
        if !keys.is_empty() {
            let mut reserve = |bytes| {
                loaded = bytes;
                reservation.grow_to(bytes)
            };
            let all = self.turns.find(input.principal, &keys, &mut reserve);
            for FoundUnder { id, found: turn } in all.await.map_err(|NoRoom| Failure::OverBudget)? {
                found.entry(id).or_default().push(turn);
            }
        }
        let restored = read_text(messages.get().len(), || {
            parked::restore(messages, &found, &mut |bytes| {
                reservation.grow_to(loaded + bytes)
            })
        });
        let restored = restored.map_err(|NoRoom| Failure::OverBudget)?;
        Ok(restored.map(|restored| Box::new((restored, reservation))))
    }
}

/// Which tools the headers and the body ask for.
fn selection(
    request: &ChatRequest<'_>,
    input: &Input,
    catalog: &Catalog,
) -> Result<Selection, RequestError> {
    let (tools, servers) = (input.tools.as_deref(), input.servers.as_deref());
    Selection::parse(tools, servers, request.mcp_tools(), catalog.servers())
}

/// A chat on its way: what was asked, by whom, and what applies to it.
pub(super) struct Chat<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) input: &'a Input,
    pub(super) request: ChatRequest<'a>,
    pub(super) upstream: &'a Upstream,
    pub(super) catalog: Arc<Catalog>,
    pub(super) selected: Arc<Selected>,
    pub(super) progress: ProgressMode,
    /// With the bytes that it takes of the budget.
    pub(super) restored: Option<Box<(Restored, Reservation)>>,
    /// Ids of the client's own calls in this answer.
    claims: Claims<'a>,
    pub(super) deadline: Instant,
    /// How often the model was asked.
    rounds: AtomicU32,
    /// How many tools were called.
    calls: AtomicU32,
}

/// Whatever ended it: the client may have left.
impl Drop for Chat<'_> {
    fn drop(&mut self) {
        self.input.record.note(|details| {
            details.model = Some(self.request.model().to_owned());
            details.upstream = Some(self.upstream.config.name.clone());
            details.rounds = Some(*self.rounds.get_mut());
            details.calls = Some(*self.calls.get_mut());
        });
    }
}

impl Chat<'_> {
    /// A gateway tool applies, or a result that was cut can be read on in.
    pub(super) fn is_loop(&self) -> bool {
        !self.selected.tools.is_empty()
            || (self.request.n() == 1
                && self
                    .restored
                    .as_ref()
                    .is_some_and(|restored| !restored.0.cut_results.is_empty()))
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
            forces_own_call: forces_own_call(&self.request),
        }
    }

    /// The body of a question. One that nothing was changed in is the very bytes that came.
    fn body<'c>(&'c self, ask: &'c Ask) -> SegmentedBody<'c> {
        let history = self
            .restored
            .as_ref()
            .map(|restored| restored.0.messages.as_str());
        let is_untouched = !self.is_loop()
            && history.is_none()
            && self.request.mcp_tools().is_empty()
            && self.request.member("toolway").is_none()
            && !self.request.repeats_members();
        if is_untouched {
            return SegmentedBody::of(&self.input.body);
        }
        ask::compose(&self.request, ask, &self.selected, history)
    }

    /// The loop's state before its first question.
    pub(super) fn turn(&self) -> Turn {
        let restored = self.restored.as_ref();
        let cut_results = restored.map(|restored| restored.0.cut_results.clone());
        Turn::new(
            self.bounds(),
            self.catalog.clone(),
            self.selected.clone(),
            cut_results.unwrap_or_default(),
        )
    }

    /// Puts a question to the model; the answer's head is there when this ends.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Incoming, Failure> {
        let round = if ask.first {
            retry::Round::First
        } else {
            retry::Round::Later
        };
        self.rounds.fetch_add(1, Ordering::Relaxed);
        let body = self.body(ask);
        let headers = &self.input.headers;
        Ok(self.upstream.chat(headers, &body, round).await?)
    }

    /// Readies the calls of a turn.
    pub(super) fn start(&self, lanes: Vec<Vec<Job>>) -> Running<'_> {
        let calls: usize = lanes.iter().map(Vec::len).sum();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        self.calls.fetch_add(calls, Ordering::Relaxed);
        let config = &self.gateway.config;
        let limits = CallLimits {
            silence: config.tool_timeout,
            deadline: self.deadline,
        };
        Running::new(&self.gateway.backends, lanes, limits, config.parallel_calls)
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
            upstream: self.upstream.config.name.clone(),
            error,
        }
    }

    /// The loop has nothing left to do and no end. This is a defect of toolway; it is reported so that no client hangs.
    pub(super) fn lost_track(&self) -> Failure {
        self.faulty(StreamError::Ended)
    }

    /// Stores what the client cannot know until it sends the results of its own calls.
    pub(super) async fn park(&self, parked: parked::Parked) {
        let messages = self.request.messages();
        let turn = NewTurn {
            principal: self.input.principal,
            question: read_text(messages.get().len(), || parked::question(messages)),
            parked: Arc::new(parked),
        };
        self.claims.park();
        self.gateway.turns.park(turn).await;
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

/// The loop ended without an answer. This is a defect of toolway; it is reported so that no client hangs.
fn nothing() -> Failure {
    Failure::Answer {
        upstream: "toolway".to_owned(),
        error: StreamError::Ended,
    }
}
