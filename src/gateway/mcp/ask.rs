//! One request to one server, and the questions that the server asks the client before it answers.
//!
//! Servers before 2026-07-28 send a request of their own while they work; later ones give an `input_required` result
//! and are asked again with the answers. Clients are of either kind, too. So there are four ways:
//!
//! | | server asks while it works | server gives `input_required` |
//! |---|---|---|
//! | client with a handshake | is asked on its stream | is asked on its stream, then the server again |
//! | client without | `input_required`, the call is parked | passed on as it is |

use std::{borrow::Cow, sync::Arc};

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Gateway, RequestContext,
    parked::{FromServer, ParkedCall, ParkedQuestion},
};
use crate::{
    gateway::backends::Method,
    upstream::mcp::{CallOptions, Caller, Sends},
};
use toolway_protocol::{
    mcp::{
        results::asks_for_input,
        rpc::{RpcError, code},
    },
    tool::{CallError, JsonObject, Progress},
};

/// How often a server may ask for more input before it answers.
const MAX_ROUNDS: usize = 10;

/// Questions of a server that wait to be asked.
const WAITING: usize = 16;

/// The key of a parked call's question in `inputRequests`.
const QUESTION: &str = "question";

/// One request to one server.
pub(super) struct Inquiry {
    pub method: Method,
    /// Shared, because it may be made again.
    pub params: Arc<JsonObject>,
    pub progress: Option<mpsc::Sender<Progress>>,
    /// The deadline for all attempts together.
    pub deadline: Instant,
    /// How often it was sent so far.
    pub sends: Sends,
}

impl Inquiry {
    /// Makes the request. The result is the server's, or `input_required` for clients that know it. Dropping the future
    /// cancels it at the server.
    pub(super) async fn make(
        self,
        gateway: &Arc<Gateway>,
        context: &RequestContext,
    ) -> Result<Value, CallError> {
        let state = self.params.get("requestState").and_then(Value::as_str);
        let server = self.method.server();
        if gateway.servers.is_shared(server) {
            gateway.parked.make_way(server, state);
        }
        if context.version.has_handshake() {
            return self.make_asking(gateway, context).await;
        }
        match state {
            Some(state) if ParkedCall::is_key(state) => {
                let resumed = Box::pin(self.resume(gateway, context));
                resumed.await
            }
            _ => self.begin(gateway, context).await,
        }
    }

    /// For a client that can be asked while its request is under way.
    async fn make_asking(
        self,
        gateway: &Arc<Gateway>,
        context: &RequestContext,
    ) -> Result<Value, CallError> {
        let deadline = self.deadline;
        let (mut answers, mut state, mut sends) = (None, None, self.sends);
        for _ in 0..MAX_ROUNDS {
            let options = CallOptions {
                silence: gateway.config.tool_timeout,
                deadline,
                progress: self.progress.clone(),
                caller: Some(Arc::clone(&context.caller)),
                // With answers it is another request.
                sends: std::mem::take(&mut sends),
            };
            let params = with_answers(&self.params, answers, state);
            let raw = gateway
                .backends
                .request(&self.method, &params, options)
                .await?;
            if !asks_for_input(&raw) {
                return Ok(raw);
            }
            let answering = answer_all(&*context.caller, &raw);
            let answered = tokio::time::timeout_at(deadline, answering)
                .await
                .map_err(|_| CallError::Timeout {
                    after: gateway.config.request_timeout,
                })??;
            answers = Some(Value::Object(answered));
            state = raw.get("requestState").cloned();
        }
        Err(protocol(
            code::INTERNAL_ERROR,
            "the server asks for input again and again",
        ))
    }

    /// For a client that is asked with a result.
    async fn begin(
        self,
        gateway: &Arc<Gateway>,
        context: &RequestContext,
    ) -> Result<Value, CallError> {
        let (sender, events) = mpsc::channel(WAITING);
        let caller = ResultCaller {
            behind: Arc::clone(&context.caller),
            events: sender,
        };
        let (progress, reports) = match &self.progress {
            Some(_) => {
                let (sender, reports) = mpsc::channel(WAITING);
                (Some(sender), Some(reports))
            }
            None => (None, None),
        };
        let options = CallOptions {
            silence: gateway.config.tool_timeout,
            deadline: self.deadline,
            progress,
            caller: Some(Arc::new(caller)),
            sends: self.sends,
        };
        let (method, server) = (self.method.name(), self.method.server().clone());
        let (asked, asking) = (self.method, Arc::clone(gateway));
        let params = Arc::clone(&self.params);
        let reservation = context.reservation.clone();
        let work = async move {
            let _reservation = reservation;
            asking.backends.request(&asked, &params, options).await
        };
        let parked = ParkedCall {
            owner: context.owner.clone(),
            method,
            server,
            subject: Value::Null,
            work: Box::pin(work),
            events,
            reports,
            question: None,
        };
        parked
            .go_on(gateway, context, &self.params, self.progress)
            .await
    }

    /// The client has come back with what a parked call was waiting for.
    async fn resume(
        self,
        gateway: &Arc<Gateway>,
        context: &RequestContext,
    ) -> Result<Value, CallError> {
        let state = self.params["requestState"].as_str().unwrap_or_default();
        let is_same = |parked: &ParkedCall| {
            parked.owner == context.owner
                && parked.method == self.method.name()
                && parked.server == *self.method.server()
                && parked.subject == subject(&self.params)
        };
        let Some(mut parked) = gateway.parked.take(state, is_same) else {
            return Err(protocol(
                code::INVALID_PARAMS,
                "`requestState` is not known here any more; make the request again without it",
            ));
        };
        let answer = self
            .params
            .get("inputResponses")
            .and_then(|all| all.get(QUESTION));
        match (answer, parked.question.take()) {
            (Some(answer), Some(question)) => {
                // A server that was lost meanwhile is noticed when the call continues.
                let _ = question.answer.send(Ok(answer.clone()));
                parked
                    .go_on(gateway, context, &self.params, self.progress)
                    .await
            }
            // Without an answer the question is asked again.
            (_, question) => {
                parked.question = question;
                parked.park(gateway, &self.params)
            }
        }
    }
}

/// The params with the answers to the server's questions. The gateway writes those members, not a client of another
/// era.
fn with_answers<'p>(
    params: &'p JsonObject,
    answers: Option<Value>,
    state: Option<Value>,
) -> Cow<'p, JsonObject> {
    let said = [("inputResponses", answers), ("requestState", state)];
    let is_unsaid =
        |(key, said): &(&str, Option<Value>)| said.is_none() && !params.contains_key(*key);
    if said.iter().all(is_unsaid) {
        return Cow::Borrowed(params);
    }
    let mut params = params.clone();
    for (key, said) in said {
        match said {
            Some(said) => params.insert(key.to_owned(), said),
            None => params.shift_remove(key),
        };
    }
    Cow::Owned(params)
}

/// The subject of a request, so that an answer cannot be used for another request.
fn subject(params: &JsonObject) -> Value {
    let of = |key: &str| params.get(key).cloned().unwrap_or_default();
    json!([of("name"), of("uri"), of("arguments")])
}

impl ParkedCall {
    /// Waits for the result or the next question, whichever comes first.
    async fn go_on(
        mut self,
        gateway: &Arc<Gateway>,
        context: &RequestContext,
        params: &JsonObject,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Value, CallError> {
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => match event {
                    FromServer::Question(question) => {
                        self.question = Some(question);
                        return self.park(gateway, params);
                    }
                    FromServer::BackendEvent(method, said) => context.caller.tell(&method, said),
                },
                Some(report) = next(&mut self.reports) => {
                    if let Some(progress) = &progress {
                        let _ = progress.try_send(report);
                    }
                }
                outcome = &mut self.work => {
                    while let Ok(event) = self.events.try_recv() {
                        if let FromServer::BackendEvent(method, params) = event {
                            context.caller.tell(&method, params);
                        }
                    }
                    while let (Some(Ok(report)), Some(progress)) =
                        (self.reports.as_mut().map(mpsc::Receiver::try_recv), &progress)
                    {
                        let _ = progress.try_send(report);
                    }
                    return outcome;
                }
            }
        }
    }

    /// Keeps the call until the client continues, and returns the question.
    fn park(mut self, gateway: &Arc<Gateway>, params: &JsonObject) -> Result<Value, CallError> {
        // Only now, because few calls are ever parked.
        self.subject = subject(params);
        let question = self.question.as_ref();
        let asked = question.map(|it| json!({"method": it.method, "params": it.params}));
        let state = gateway.parked.keep(self)?;
        Ok(json!({
            "resultType": "input_required",
            "inputRequests": {QUESTION: asked},
            "requestState": state,
        }))
    }
}

async fn next(reports: &mut Option<mpsc::Receiver<Progress>>) -> Option<Progress> {
    reports.as_mut()?.recv().await
}

/// A client that receives questions in a result: the question waits for the next result.
struct ResultCaller {
    /// Kept, so that its number is not reused while the call is parked.
    behind: Arc<dyn Caller>,
    events: mpsc::Sender<FromServer>,
}

impl Caller for ResultCaller {
    fn capabilities(&self) -> &Value {
        self.behind.capabilities()
    }

    fn client(&self) -> Option<usize> {
        self.behind.client()
    }

    fn ask<'a>(&'a self, method: &'a str, params: Value) -> BoxFuture<'a, Result<Value, RpcError>> {
        Box::pin(async move {
            let gone = || RpcError::new(code::INTERNAL_ERROR, "the client is gone");
            let (answer, answered) = oneshot::channel();
            let question = ParkedQuestion {
                method: method.to_owned(),
                params,
                answer,
            };
            self.events
                .send(FromServer::Question(question))
                .await
                .map_err(|_| gone())?;
            answered.await.map_err(|_| gone())?
        })
    }

    fn tell(&self, method: &str, params: Value) {
        let _ = self
            .events
            .try_send(FromServer::BackendEvent(method.to_owned(), params));
    }
}

/// Sends a server's questions to the client, one at a time, because a person may have to answer.
async fn answer_all(caller: &dyn Caller, raw: &Value) -> Result<JsonObject, CallError> {
    let mut answers = Map::new();
    let Some(Value::Object(requests)) = raw.get("inputRequests") else {
        return Ok(answers);
    };
    for (key, request) in requests {
        let method = request["method"].as_str().unwrap_or_default();
        if !may_be_asked(caller.capabilities(), method) {
            return Err(protocol(
                code::INVALID_REQUEST,
                format!("the server wants `{method}`, which this client does not offer"),
            ));
        }
        let params = request.get("params").cloned().unwrap_or_else(|| json!({}));
        let answer = caller.ask(method, params).await;
        let answer = answer.map_err(|error| protocol(error.code, error.message))?;
        answers.insert(key.clone(), answer);
    }
    Ok(answers)
}

/// The client declared the capability for this question.
fn may_be_asked(capabilities: &Value, method: &str) -> bool {
    let capability = match method {
        "sampling/createMessage" => "sampling",
        "elicitation/create" => "elicitation",
        "roots/list" => "roots",
        _ => return false,
    };
    capabilities.get(capability).is_some_and(Value::is_object)
}

fn protocol(code: i64, message: impl Into<String>) -> CallError {
    CallError::Protocol {
        code,
        message: message.into(),
        data: None,
    }
}
