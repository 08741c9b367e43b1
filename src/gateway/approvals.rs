//! Calls that a client approves before they are made, each at most once.
//!
//! The client is asked by handing the call to it, as one of its own; when it agrees, the call runs as every other does, and
//! its result goes to the model as the client's would.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use toolway_core::{
    catalog::Selected,
    route::Order,
    translate::{
        dialect::{GatewayCall, GatewayError},
        results::{self, Media},
        tool_responses,
    },
};
use toolway_protocol::{mcp::rpc::code, tool::ToolResult};

use super::{Gateway, RequestClient, record::Record};
use crate::store::{Principal, approvals::Approval};

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

impl Gateway {
    /// Has these calls wait for the approval of the client. It must end before the client reads of them.
    pub async fn ask_for_approval(&self, principal: Principal, calls: &[GatewayCall]) {
        for call in calls {
            if let Some(id) = &call.approval {
                let entries = self.entries();
                entries
                    .keep_approval(principal, id, fingerprint(call))
                    .await;
            }
        }
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
        let mut outcomes: Vec<Option<ApprovedOutcome>> = Vec::new();
        let mut now = Vec::new();
        for call in calls {
            let id = call.approval.as_deref().unwrap_or_default();
            let wanted = fingerprint(call);
            let used = self.entries().use_approval(client.principal, id, &wanted);
            outcomes.push(match used.await {
                Ok(Approval::Used) => {
                    now.push(call);
                    None
                }
                Ok(Approval::Made(stored)) => Some(match serde_json::from_str::<Stored>(&stored) {
                    Ok(stored) if stored.call == wanted => ApprovedOutcome::from(stored),
                    Ok(_) => refused(OTHER_CALL),
                    Err(_) => unknown(),
                }),
                Ok(Approval::Different) => Some(refused(OTHER_CALL)),
                Ok(Approval::Unknown) | Err(_) => Some(unknown()),
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
                    self.entries().keep_outcome(principal, id, stored).await;
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
