//! Answers a chat request: which tools it is offered, what is restored of its conversation, and which form its answer
//! has.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize},
    },
};

use tokio::time::{Instant, timeout, timeout_at};

use crate::byte_budget::Reservation;
use crate::{
    store::{EntryKind, FoundUnder},
    upstream::{model::Route, read_text},
};
use toolway_core::{
    agent::parked::{self, Found, NoRoom, Restored},
    catalog::{Catalog, Selected, Selection},
    translate::{state, stream::StreamError},
};
use toolway_protocol::{
    openai::request::{ChatRequest, RequestError},
    tool::ServerId,
};

use super::{
    Gateway,
    chat::{Chat, ChatInput, ChatResponse},
    failure::{Failed, Failure},
    plain,
    request_options::{self, refused},
    sink::{self, ResponseStart, Sink},
    stream,
};

impl Gateway {
    /// Answers a chat request.
    ///
    /// Dropping the future, or the body it gives, ends the model call and cancels every running tool.
    pub async fn chat(self: &Arc<Gateway>, input: ChatInput) -> Result<ChatResponse, Failed> {
        let gateway = self.clone();
        // The whole loop: `Some` with a plain answer, `None` when the answer was streamed into the sink. It is not a
        // function of its own, because the future would then hold the sink twice.
        let answer = |sink: Sink| async move {
            gateway.wait_until_ready(&input).await;
            let chat = &gateway.prepare(&input).await.map_err(Failed::from)?;
            match (chat.is_loop(), chat.request.stream()) {
                // Boxed, because each takes kilobytes while an answer lasts, and unboxed each would take as much as the
                // largest.
                (false, true) => Box::pin(stream::pass_through(chat, sink)).await,
                (false, false) => Box::pin(plain::pass_through(chat)).await.map(Some),
                (true, true) => Box::pin(stream::run(chat, sink)).await,
                (true, false) => Box::pin(plain::run(chat)).await.map(Some),
            }
        };
        match sink::begin(self.config.keepalive, answer).await {
            ResponseStart::Stream(headers, body) => Ok(ChatResponse::Stream { headers, body }),
            ResponseStart::Ended(Ok(Some((headers, body)))) => {
                Ok(ChatResponse::Plain { headers, body })
            }
            ResponseStart::Ended(Ok(None)) => Err(nothing().into()),
            ResponseStart::Ended(Err(failed)) => Err(failed),
        }
    }

    async fn prepare<'a>(&'a self, input: &'a ChatInput) -> Result<Chat<'a>, Failure> {
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let request = read_text(input.body.len(), parse).map_err(refused)?;
        let model = request.model();
        let route = self.models.route(model, || self.seed());
        let route = route.ok_or_else(|| Failure::ModelNotFound {
            model: model.to_owned(),
        })?;
        let catalog = self.catalog_of(input.key);
        let selected = match request_options::applies(&request) {
            true => self.select(&request, input, &route, &catalog)?,
            false => {
                request_options::check(&request, &Selected::default())?;
                Arc::default()
            }
        };
        let asked_before = match (request.mcp_tools(), input.can_ask) {
            ([], _) => Vec::new(),
            (entries, false) => {
                request_options::check_approval(entries)?;
                Vec::new()
            }
            (_, true) => {
                let selection = selection(&request, input, &catalog).map_err(refused)?;
                let tools = selected.tools.iter();
                let asked = tools.filter(|tool| selection.asks_before(tool));
                asked.map(|tool| tool.name.clone()).collect()
            }
        };
        let options = request_options::options(&request)?;
        let restored = match self.may_restore(&request) {
            // Boxed, because only conversations with calls are restored.
            true => Box::pin(self.restore(&request, input)).await?,
            false => None,
        };
        let with_state = self.with_state(&request, input, restored.as_deref())?;
        Ok(Chat {
            gateway: self,
            input,
            route,
            foreign: AtomicUsize::new(0),
            catalog,
            selected,
            asked_before,
            progress: options.or(input.progress).unwrap_or_default(),
            restored,
            with_state,
            claims: self.claimed.claims(),
            deadline: Instant::now() + self.config.request_timeout,
            request,
            rounds: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        })
    }

    /// The tools that a chat asks for, for faces that list them; none where it cannot be read.
    pub fn tools_asked_for(&self, input: &ChatInput) -> Arc<Selected> {
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let Ok(request) = read_text(input.body.len(), parse) else {
            return Arc::default();
        };
        let catalog = self.catalog_of(input.key);
        selection(&request, input, &catalog).map_or_else(
            |_| Arc::default(),
            |selection| catalog.select(&selection, &request.client_names(), usize::MAX),
        )
    }

    /// No tool of the gateway applies to the chat, and nothing of its conversation is kept here, so that it can be
    /// answered without the gateway. The record warns if it asks for tools that there are not.
    pub async fn adds_nothing(&self, input: &ChatInput) -> bool {
        self.wait_until_ready(input).await;
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let Ok(request) = read_text(input.body.len(), parse) else {
            return false;
        };
        let catalog = self.catalog_of(input.key);
        let Ok(selection) = selection(&request, input, &catalog) else {
            return false;
        };
        let may_apply = request_options::applies(&request);
        if may_apply && selection.is_everything() && !catalog.offered().is_empty() {
            return false;
        }
        let client = request.client_names();
        let selected = catalog.select(&selection, &client, usize::MAX);
        let applies = may_apply && !selected.tools.is_empty();
        let has_kept = applies
            || (self.may_restore(&request)
                && !matches!(Box::pin(self.restore(&request, input)).await, Ok(None)))
            || !matches!(self.with_state(&request, input, None), Ok(None));
        if may_apply && !has_kept {
            let missing = self.missing(&selection);
            let not_ready = (!missing.is_empty()).then(|| request_options::not_ready(&missing));
            let nothing = request_options::nothing_selected(&request, input, &selection, &selected);
            if let Some(warning) = not_ready.or(nothing) {
                input.record.warn(&warning);
            }
        }
        !has_kept
    }

    /// The tools that the request is offered. Warnings say which tools may be missing.
    fn select(
        &self,
        request: &ChatRequest<'_>,
        input: &ChatInput,
        route: &Route<'_>,
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
        // Whichever model answers gets the same tools.
        let least = route.upstreams().min_by_key(|upstream| upstream.max_tools);
        let (max_tools, upstream) = least.map_or((0, ""), |it| (it.max_tools, it.name.as_str()));
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
        let left_out = request_options::left_out(&selected, upstream, max_tools);
        for text in nothing.iter().chain(&left_out) {
            input.record.warn(text);
        }
        request_options::check(request, &selected)?;
        Ok(selected)
    }

    /// Waits for the tools that this chat may be offered, as long as toolway starts.
    pub async fn wait_until_ready(&self, input: &ChatInput) {
        if self.servers.are_any_missing() && Instant::now() < self.start_ends {
            // Boxed, because only the first chats wait.
            Box::pin(self.wait_for_tools(input)).await;
        }
        if self.current.is_behind() {
            // A server that has just become ready counts as such before its tools are in the catalog.
            let renewing = timeout(self.config.start_wait, self.current.renew());
            let _ = Box::pin(renewing).await;
        }
    }

    /// Waits until the servers whose tools this request may be offered are ready or have failed, or the start is over.
    async fn wait_for_tools(&self, input: &ChatInput) {
        let Some(missing) = self.awaited(input) else {
            // It wants no tools, or `prepare` refuses it.
            return;
        };
        let settled = self.servers.settled_of(&missing);
        let _ = timeout_at(self.start_ends, settled).await;
        self.current.renew().await;
    }

    fn awaited(&self, input: &ChatInput) -> Option<Vec<ServerId>> {
        let parse = || ChatRequest::parse(&input.body, input.max_depth);
        let request = read_text(input.body.len(), parse).ok()?;
        if !request_options::applies(&request) || request.n() > 1 {
            return None;
        }
        let selection = selection(&request, input, &self.catalog_of(input.key)).ok()?;
        let missing = self.missing(&selection);
        (!missing.is_empty()).then_some(missing)
    }

    /// The servers that were never ready and may have tools for this selection.
    fn missing(&self, selection: &Selection) -> Vec<ServerId> {
        if !self.servers.are_any_missing() {
            return Vec::new();
        }
        let mut missing = self.servers.missing();
        missing.retain(|server| selection.may_select_of(server));
        missing
    }

    /// There may be a turn to restore, or a mark to remove.
    fn may_restore(&self, request: &ChatRequest<'_>) -> bool {
        let messages = request.messages();
        read_text(messages.get().len(), || {
            parked::has_marks(messages)
                || (!self.entries.is_empty(EntryKind::Turn) && parked::may_concern(messages))
        })
    }

    /// The conversation with what was parked, where there is something to restore.
    async fn restore(
        &self,
        request: &ChatRequest<'_>,
        input: &ChatInput,
    ) -> Result<Option<Box<(Restored, Reservation)>>, Failure> {
        let messages = request.messages();
        let mut reservation = input.bodies.take_nothing();
        let mut loaded = 0;
        let mut found: HashMap<String, Vec<Found>> = HashMap::new();
        let keys = match self.entries.is_empty(EntryKind::Turn) {
            true => Vec::new(),
            false => read_text(messages.get().len(), || parked::keys(messages)),
        };
        if !keys.is_empty() {
            let mut reserve = |bytes| {
                loaded = bytes;
                reservation.grow_to(bytes)
            };
            let all = self
                .entries
                .find_turns(input.principal, &keys, &mut reserve);
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

impl Gateway {
    /// The messages with the state of the session before them, where the request asks for it and there is one.
    fn with_state(
        &self,
        request: &ChatRequest<'_>,
        input: &ChatInput,
        restored: Option<&(Restored, Reservation)>,
    ) -> Result<Option<Box<(String, Reservation)>>, Failure> {
        let session = input.session.as_ref().filter(|_| input.shows_state);
        let found = session.and_then(|it| self.sessions.find(input.principal, it));
        let Some(found) = found else {
            return Ok(None);
        };
        let messages = restored.map_or(request.messages().get(), |it| &it.0.messages);
        let messages = state::before_messages(&found.state, messages);
        let reservation = input.bodies.take(messages.len());
        let reservation = reservation.ok_or(Failure::OverBudget)?;
        Ok(Some(Box::new((messages, reservation))))
    }
}

/// Which tools the headers and the body ask for.
fn selection(
    request: &ChatRequest<'_>,
    input: &ChatInput,
    catalog: &Catalog,
) -> Result<Selection, RequestError> {
    let (tools, servers) = (input.tools.as_deref(), input.servers.as_deref());
    Selection::parse(tools, servers, request.mcp_tools(), catalog.servers())
}

/// The loop ended without an answer. This is a bug in toolway; it is reported so that no client hangs.
fn nothing() -> Failure {
    Failure::Answer {
        upstream: "toolway".to_owned(),
        error: StreamError::Ended,
    }
}
