//! Calls that a client approves before they are made, each at most once.
//!
//! The client is asked by handing the call to it, as one of its own; when it agrees, the call runs as every other does, and
//! its result goes to the model as the client's would. The question is on the list of confirmations, so that a person may
//! decide on it elsewhere.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use toolway_core::{
    catalog::Selected,
    policy::{Asked, CallRequest, Verdict},
    route::Order,
    translate::{
        calls::parse_arguments,
        dialect::{
            GatewayCall, GatewayError,
            responses::{McpEntries, NOT_APPROVED},
        },
        results::{self, Media},
        tool_responses,
    },
};
use toolway_protocol::{mcp::rpc::code, tool::ToolResult};

use super::{
    Gateway, RequestClient,
    confirmations::{Question, Scope},
    record::Record,
};
use crate::store::confirmations::ConfirmationState;

/// What came of an approved call.
pub type ApprovedOutcome = Result<String, GatewayError>;

/// An [`ApprovedOutcome`] as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// See [`fingerprint`].
    call: String,
    text: String,
    /// Of an error of the protocol.
    code: Option<i64>,
    failed: bool,
}

impl Stored {
    fn new(call: String, outcome: &ApprovedOutcome) -> Stored {
        let (text, code) = match outcome {
            Ok(text) | Err(GatewayError::Tool(text)) => (text, None),
            Err(GatewayError::Protocol { code, message }) => (message, Some(*code)),
        };
        Stored {
            call,
            text: text.clone(),
            code,
            failed: outcome.is_err(),
        }
    }
}

impl From<Stored> for ApprovedOutcome {
    fn from(stored: Stored) -> ApprovedOutcome {
        match (stored.failed, stored.code) {
            (false, _) => Ok(stored.text),
            (true, None) => Err(GatewayError::Tool(stored.text)),
            (true, Some(code)) => Err(GatewayError::Protocol {
                code,
                message: stored.text,
            }),
        }
    }
}

/// What the model reads where the client approves a call that it was not asked about.
const OTHER_CALL: &str = "the approval is for another call; this one was not made";

/// The tool and the arguments that an approval is for.
fn fingerprint(call: &GatewayCall) -> String {
    serde_json::json!([call.name, call.arguments]).to_string()
}

/// Why the gateway asks where its policy does not.
const REQUESTED: &str = "require_approval of the request";

impl Gateway {
    /// Puts calls on the list of confirmations about which the client is asked within its answer. It must end before the
    /// client reads of them.
    pub async fn ask_for_approval(&self, client: &RequestClient, calls: &[GatewayCall]) {
        let origin = self.origin_of(client);
        let catalog = self.catalog_of(client.key);
        for call in calls {
            let (Some(tool), Some(question)) = (catalog.find(&call.name), &call.approval) else {
                continue;
            };
            let arguments = parse_arguments(&call.arguments).unwrap_or_default();
            let verdict = self.policy.evaluate(&CallRequest {
                tool,
                is_shown: true,
                key: client.key,
                arguments: &arguments,
            });
            let asked = match &verdict {
                Verdict::Ask(admitted) => admitted.asked().cloned(),
                Verdict::Allow(_) | Verdict::Deny { .. } => None,
            };
            let asked = asked.unwrap_or_else(|| Asked {
                rule: REQUESTED.to_owned(),
                reason: None,
            });
            let call = (&**tool, call.arguments.as_str());
            let confirmations = &self.confirmations;
            confirmations
                .ask_client(&origin, question, call, &asked)
                .await;
        }
    }

    /// Decides on what the client denies, and adds to the calls that it approves those that it has not answered about and a
    /// person has approved elsewhere. Gives those that a person has denied.
    pub async fn settle_questions(
        &self,
        client: &RequestClient,
        entries: &mut McpEntries,
    ) -> Vec<GatewayCall> {
        let (origin, scope) = (self.origin_of(client), Scope::Own(client.principal));
        for question in &entries.denied {
            let denied = ConfirmationState::Denied;
            let decided = self
                .confirmations
                .decide(&origin, scope, question, denied, None);
            // It was denied with an earlier request of the conversation, or is not known any more.
            let _ = decided.await;
        }
        let mut denied = Vec::new();
        for call in std::mem::take(&mut entries.unanswered) {
            let question = call.approval.as_deref().unwrap_or_default();
            let found = self.confirmations.find(scope, question).await;
            match found.map(|it| it.state) {
                Some(ConfirmationState::Approved) => entries.approved.push(call),
                Some(ConfirmationState::Denied) => denied.push(call),
                Some(ConfirmationState::Pending | ConfirmationState::Used) | None => {}
            }
        }
        denied
    }

    /// Makes calls that the client has approved, and gives what came of each, in their order. A call that was made before
    /// is not made again, and not counted in the record.
    pub async fn make_approved(
        &self,
        client: RequestClient,
        calls: &[GatewayCall],
        selected: Arc<Selected>,
        record: &Record,
    ) -> Vec<ApprovedOutcome> {
        let (origin, catalog) = (self.origin_of(&client), self.catalog_of(client.key));
        let mut outcomes: Vec<Option<ApprovedOutcome>> = Vec::new();
        let mut now = Vec::new();
        for call in calls {
            let question = call.approval.as_deref().unwrap_or_default();
            let made = self.entries.outcome(client.principal, question).await;
            if let Some(made) = made {
                let stored = serde_json::from_str::<Stored>(&made);
                outcomes.push(Some(match stored {
                    Ok(stored) if stored.call == fingerprint(call) => stored.into(),
                    Ok(_) => refused(OTHER_CALL),
                    Err(_) => unknown(),
                }));
                continue;
            }
            let tool = catalog.find(&call.name).map(|tool| &**tool);
            let wanted = (tool, call.arguments.as_str());
            let used = self.confirmations.use_question(&origin, question, wanted);
            outcomes.push(match used.await {
                Question::Used => {
                    now.push(call);
                    None
                }
                Question::Denied => Some(refused(NOT_APPROVED)),
                Question::OfAnotherCall => Some(refused(OTHER_CALL)),
                Question::Unknown => Some(unknown()),
            });
        }
        record.add_calls(now.len());
        let principal = client.principal;
        let mut made = self.make(&now, selected, client).await.into_iter();
        for (call, outcome) in calls.iter().zip(&mut outcomes) {
            if outcome.is_none() {
                let made = made.next().unwrap_or_else(unknown);
                let id = call.approval.as_deref().unwrap_or_default();
                if let Ok(stored) = serde_json::to_string(&Stored::new(fingerprint(call), &made)) {
                    self.entries.keep_outcome(principal, id, stored).await;
                }
                *outcome = Some(made);
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Makes calls side by side where that is allowed.
    async fn make(
        &self,
        calls: &[&GatewayCall],
        selected: Arc<Selected>,
        client: RequestClient,
    ) -> Vec<ApprovedOutcome> {
        if calls.is_empty() {
            return Vec::new();
        }
        let calls = calls
            .iter()
            .map(|call| (call.id.clone(), call.name.clone(), call.arguments.clone()));
        let round = tool_responses::round_of_calls(calls);
        let executed = self
            .execute(
                round,
                self.catalog_of(client.key),
                selected,
                Order::Parallel,
                client,
            )
            .await;
        let executed = match executed {
            Ok(executed) => executed,
            Err(failure) => return vec![refused(&failure.to_string())],
        };
        let limit = self.config.max_result_bytes;
        let shortened = |text: &str| {
            let result = ToolResult::text(text);
            results::to_openai(&result, limit, Media::default(), results::cut_off).text
        };
        let outcome = |executed: &tool_responses::Executed| match executed.error() {
            None => Ok(shortened(&executed.content)),
            Some(error) => {
                let message = error["message"].as_str().unwrap_or_default();
                match error["type"] == "tool_error" {
                    true => Err(GatewayError::Tool(shortened(message))),
                    false => refused(message),
                }
            }
        };
        executed.iter().map(outcome).collect()
    }
}

fn refused(message: &str) -> ApprovedOutcome {
    Err(GatewayError::Protocol {
        code: code::INTERNAL_ERROR,
        message: message.to_owned(),
    })
}

fn unknown() -> ApprovedOutcome {
    refused(
        "toolway does not have this approval any more: the call may have been made, and its result is lost. It was not \
         made again.",
    )
}
