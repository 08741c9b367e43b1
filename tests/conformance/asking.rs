//! Asking the client something in the middle of a request, in the way of its version of MCP.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::Arc,
};

use rmcp::{
    ErrorData,
    model::{CustomRequest, InputRequiredResult, InputResponses, ProtocolVersion, ServerRequest},
};
use serde_json::{Value, json};

use crate::{Context, typed};

/// What a client said, by the key of the question; or the result that asks it.
pub(crate) type Answers = Result<BTreeMap<String, Value>, InputRequiredResult>;

/// Whether questions travel as `input_required` results.
pub(crate) fn is_modern(context: &Context) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Asks every question of `questions`, an object of requests by key, unless the client brought all the answers.
///
/// # Errors
///
/// A client of a handshake version that does not answer, or answers with an error.
pub(crate) async fn ask(
    context: &Context,
    given: Option<&InputResponses>,
    questions: Value,
    state: Option<String>,
) -> Result<Answers, ErrorData> {
    let questions: BTreeMap<String, Value> = typed(questions);
    if is_modern(context) {
        let answered = |(key, question): (&String, &Value)| {
            given
                .and_then(|given| given.get(key))
                .is_some_and(|answer| answers(question, answer))
        };
        if questions.iter().all(answered) {
            return Ok(Ok(given.cloned().unwrap_or_default()));
        }
        let requests = typed(json!(questions));
        return Ok(Err(InputRequiredResult::new(Some(requests), state)));
    }
    let mut answers = BTreeMap::new();
    for (key, question) in questions {
        let method = question["method"].as_str().unwrap_or_default();
        let request = CustomRequest::new(method, question.get("params").cloned());
        let answer = context
            .peer
            .send_request(ServerRequest::CustomRequest(request))
            .await
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        answers.insert(key, json!(answer));
    }
    Ok(Ok(answers))
}

/// Whether this can be an answer to the question, by the member that each kind of answer must have.
fn answers(question: &Value, answer: &Value) -> bool {
    match question["method"].as_str() {
        Some("elicitation/create") => answer["action"].is_string(),
        Some("sampling/createMessage") => !answer["content"].is_null(),
        _ => answer["roots"].is_array(),
    }
}

/// A form with fields of these schemas, every one of them required.
pub(crate) fn form(message: &str, properties: Value) -> Value {
    let required: Vec<String> = properties
        .as_object()
        .map(|properties| properties.keys().cloned().collect())
        .unwrap_or_default();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    json!({
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    })
}

/// A question for the client's model.
pub(crate) fn sampling(prompt: &str, max_tokens: u32) -> Value {
    let content = json!({"type": "text", "text": prompt});
    json!({
        "method": "sampling/createMessage",
        "params": {"messages": [{"role": "user", "content": content}], "maxTokens": max_tokens},
    })
}

/// The question which folders the client works in.
pub(crate) fn roots() -> Value {
    json!({"method": "roots/list"})
}

/// Keeps clients from changing the state that they carry; holds as long as the process.
#[derive(Clone, Default)]
pub(crate) struct Seal(Arc<RandomState>);

impl Seal {
    pub(crate) fn seal(&self, state: &str) -> String {
        format!("{state}.{:016x}", self.0.hash_one(state))
    }

    /// # Errors
    ///
    /// Invalid parameters, for a state that was not sealed here.
    pub(crate) fn open(&self, sealed: &str) -> Result<String, ErrorData> {
        sealed
            .rsplit_once('.')
            .map(|(state, _)| state)
            .filter(|state| self.seal(state) == sealed)
            .map(str::to_owned)
            .ok_or_else(|| ErrorData::invalid_params("requestState is not what was sent", None))
    }
}
