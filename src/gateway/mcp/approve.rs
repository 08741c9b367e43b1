//! Asks the person at an MCP client before a call, by elicitation: while the request is under way, or with a result
//! (2026-07-28).
//!
//! The call is in the list of confirmations meanwhile, and can be decided on there as well.

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Gateway, RequestContext};
use crate::{
    gateway::confirmations::{self, CallOrigin, Looked},
    store::confirmations::Confirmation,
};
use toolway_core::policy::Admitted;
use toolway_protocol::tool::{CallError, JsonObject};

/// The prefix of the `requestState` of a call that waits for approval.
const PREFIX: &str = "toolway-approval:";

/// The key of the question in `inputRequests`.
const QUESTION: &str = "approval";

/// Most characters of the arguments in a question.
const SHOWN: usize = 2000;

/// What came of asking.
pub(super) enum Asking {
    /// The call may be made, once.
    Approved,
    /// The client is asked with this result.
    Result(Value),
}

/// The client can show a form to a person.
pub(super) fn can_be_asked(context: &RequestContext) -> bool {
    let elicitation = context.caller.capabilities().get("elicitation");
    let has = |mode| elicitation.is_some_and(|it| it.get(mode).is_some());
    // Without a mode it is the form.
    elicitation.is_some_and(Value::is_object) && (has("form") || !has("url"))
}

/// Asks, and takes the answer that a request without a handshake brings out of its params.
///
/// # Errors
/// [`CallError::Denied`], or [`CallError::WaitingForApproval`] where the person has not decided.
pub(super) async fn ask(
    gateway: &Gateway,
    context: &RequestContext,
    origin: &CallOrigin,
    (tool, arguments): (&Admitted, &JsonObject),
    params: &mut JsonObject,
) -> Result<Asking, CallError> {
    let list = &gateway.confirmations;
    let has_handshake = context.version.has_handshake();
    if !has_handshake && let Some((id, answer)) = take_answer(params) {
        if let Some(confirms) = answer.as_ref().and_then(confirms) {
            let answered = list.answer(origin, &id, (tool, arguments), confirms);
            return answered.await.map(|()| Asking::Approved);
        }
        let is_put_off = answer.is_some();
        return match list.look(origin, tool, arguments).await? {
            Looked::Approved => Ok(Asking::Approved),
            Looked::Pending(pending) if is_put_off => Err(confirmations::waiting(&pending)),
            Looked::Pending(pending) => Ok(Asking::Result(input_required(&pending))),
        };
    }
    let pending = match list.look(origin, tool, arguments).await? {
        Looked::Approved => return Ok(Asking::Approved),
        Looked::Pending(pending) => pending,
    };
    if !has_handshake {
        return Ok(Asking::Result(input_required(&pending)));
    }
    let asked = context.caller.ask("elicitation/create", question(&pending));
    let answer = timeout(list.wait(), asked).await;
    match answer.ok().and_then(Result::ok).as_ref().and_then(confirms) {
        Some(confirms) => {
            let answered = list.answer(origin, &pending.id, (tool, arguments), confirms);
            answered.await.map(|()| Asking::Approved)
        }
        // It may have been decided on elsewhere.
        None => match list.look(origin, tool, arguments).await? {
            Looked::Approved => Ok(Asking::Approved),
            Looked::Pending(pending) => Err(confirmations::waiting(&pending)),
        },
    }
}

/// The confirmation that the params continue, and the answer to its question, if there is one.
fn take_answer(params: &mut JsonObject) -> Option<(String, Option<Value>)> {
    let state = params.get("requestState")?.as_str()?;
    let id = state.strip_prefix(PREFIX)?.to_owned();
    params.shift_remove("requestState");
    let answers = params.shift_remove("inputResponses");
    Some((
        id,
        answers.and_then(|mut it| Some(it.get_mut(QUESTION)?.take())),
    ))
}

/// What an answer decides: only JSON `true` approves; `None` where the person put it off.
fn confirms(answer: &Value) -> Option<bool> {
    match answer["action"].as_str()? {
        "accept" => Some(answer["content"]["approve"] == Value::Bool(true)),
        "decline" => Some(false),
        _ => None,
    }
}

fn input_required(pending: &Confirmation) -> Value {
    json!({
        "resultType": "input_required",
        "inputRequests": {QUESTION: {"method": "elicitation/create", "params": question(pending)}},
        "requestState": format!("{PREFIX}{}", pending.id),
    })
}

fn question(pending: &Confirmation) -> Value {
    let Confirmation {
        name,
        arguments,
        rule,
        reason,
        ..
    } = pending;
    let shown: String = arguments.chars().take(SHOWN).collect();
    let more = match shown.len() < arguments.len() {
        true => format!("… ({} bytes in all)", arguments.len()),
        false => String::new(),
    };
    let why = reason.as_deref().unwrap_or(rule);
    json!({
        "mode": "form",
        "message": format!("Call `{name}` with {shown}{more}? ({why})"),
        "requestedSchema": {
            "type": "object",
            "properties": {"approve": {"type": "boolean", "title": "Approve this call"}},
            "required": ["approve"],
        },
    })
}
