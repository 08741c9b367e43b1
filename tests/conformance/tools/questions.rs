//! The tools that ask the client something before they answer.

use std::collections::BTreeMap;

use rmcp::{
    ErrorData,
    model::{CallToolRequestParams, CallToolResponse},
};
use serde_json::{Value, json};

use crate::{
    Context, Fixture,
    asking::{ask, form, roots, sampling},
    text, whole,
};

/// Those without arguments.
pub(crate) const NAMES: [&str; 12] = [
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_streaming_elicitation",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
    "test_input_required_result_confirm",
];

/// The answer of one of these tools; `None` if the name is another's.
///
/// # Errors
///
/// A state that was not sealed here; whatever asking the client brings.
pub(crate) async fn call(
    fixture: &Fixture,
    request: &CallToolRequestParams,
    context: &Context,
) -> Result<Option<CallToolResponse>, ErrorData> {
    let argument = |name: &str| {
        let value = request.arguments.as_ref().and_then(|all| all.get(name));
        value.and_then(Value::as_str).unwrap_or_default()
    };
    let name = || form("What is your name?", json!({"name": {"type": "string"}}));
    let confirm = || json!({"confirm": form("Please confirm", json!({"ok": {"type": "boolean"}}))});
    let (questions, says) = match request.name.as_ref() {
        "test_sampling" => (
            json!({"reply": sampling(argument("prompt"), 100)}),
            Says::Reply,
        ),
        "test_elicitation" => (
            json!({"reply": form(argument("message"), contact())}),
            Says::Action("User response: "),
        ),
        "test_elicitation_sep1034_defaults" => (
            json!({"reply": optional(form("Please check the defaults", defaults()))}),
            Says::Action("Elicitation completed: "),
        ),
        "test_elicitation_sep1330_enums" => (
            json!({"reply": optional(form("Please choose", enums()))}),
            Says::Action("Elicitation completed: "),
        ),
        "test_streaming_elicitation" | "test_input_required_result_confirm" => {
            (confirm(), Says::Everything)
        }
        "test_input_required_result_elicitation" => (json!({"user_name": name()}), Says::Hello),
        "test_input_required_result_sampling" => (
            json!({"capital_question": sampling("What is the capital of France?", 100)}),
            Says::Everything,
        ),
        "test_input_required_result_list_roots" => {
            (json!({"client_roots": roots()}), Says::Everything)
        }
        "test_input_required_result_capabilities" => (what_it_can(context), Says::Everything),
        "test_input_required_result_multi_round" => {
            return rounds(fixture, request, context).await.map(Some);
        }
        "test_input_required_result_multiple_inputs" => {
            let greeting = sampling("Generate a greeting", 50);
            let questions =
                json!({"user_name": name(), "greeting": greeting, "client_roots": roots()});
            return sealed(fixture, request, context, questions).await.map(Some);
        }
        "test_input_required_result_request_state"
        | "test_input_required_result_tampered_state" => {
            return sealed(fixture, request, context, confirm()).await.map(Some);
        }
        _ => return Ok(None),
    };
    let given = request.input_responses.as_ref();
    Ok(Some(match ask(context, given, questions, None).await? {
        Ok(answers) => CallToolResponse::Complete(whole(text(&says.say(&answers)))),
        Err(question) => question.into(),
    }))
}

/// How a tool speaks of the answers.
enum Says {
    Reply,
    Action(&'static str),
    Hello,
    Everything,
}

impl Says {
    fn say(&self, answers: &BTreeMap<String, Value>) -> String {
        let reply = answers.get("reply").unwrap_or(&Value::Null);
        match self {
            Self::Reply => format!(
                "LLM response: {}",
                reply["content"]["text"].as_str().unwrap_or_default()
            ),
            Self::Action(before) => format!(
                "{before}action={}, content={}",
                reply["action"].as_str().unwrap_or_default(),
                reply["content"]
            ),
            Self::Hello => {
                let name = &answers["user_name"]["content"]["name"];
                format!("Hello, {}!", name.as_str().unwrap_or("stranger"))
            }
            Self::Everything => json!(answers).to_string(),
        }
    }
}

// ---- Forms ------------------------------------------------------------------------------------------------------

fn contact() -> Value {
    json!({
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    })
}

fn defaults() -> Value {
    json!({
        "name": {"type": "string", "description": "User name", "default": "John Doe"},
        "age": {"type": "integer", "description": "User age", "default": 30},
        "score": {"type": "number", "description": "User score", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "description": "Verified", "default": true},
    })
}

fn enums() -> Value {
    let titled = |names: [&str; 3]| -> Vec<Value> {
        let one = |(index, title)| json!({"const": format!("value{}", index + 1), "title": title});
        names.iter().enumerate().map(one).collect()
    };
    json!({
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled(["First Option", "Second Option", "Third Option"])},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled(["First Choice", "Second Choice", "Third Choice"])}},
    })
}

/// The same form with nothing required.
fn optional(mut form: Value) -> Value {
    form["params"]["requestedSchema"]["required"] = json!([]);
    form
}

/// Questions only of the kinds that the client says it can answer.
fn what_it_can(context: &Context) -> Value {
    let capabilities = context.client_capabilities().unwrap_or_default();
    let mut questions = json!({});
    if capabilities.sampling.is_some() {
        questions["greeting"] = sampling("Generate a greeting", 50);
    }
    if capabilities.elicitation.is_some() {
        questions["user_name"] = form("What is your name?", json!({"name": {"type": "string"}}));
    }
    questions
}

// ---- Tools that let the client carry a state --------------------------------------------------------------------

/// One round, with a state that must come back as it was.
async fn sealed(
    fixture: &Fixture,
    request: &CallToolRequestParams,
    context: &Context,
    questions: Value,
) -> Result<CallToolResponse, ErrorData> {
    if let Some(state) = &request.request_state {
        fixture.seal.open(state)?;
    }
    let given = match request.request_state {
        Some(_) => request.input_responses.as_ref(),
        None => None,
    };
    let state = Some(fixture.seal.seal("asked"));
    Ok(match ask(context, given, questions, state).await? {
        Ok(answers) => {
            CallToolResponse::Complete(whole(text(&format!("state-ok {}", json!(answers)))))
        }
        Err(question) => question.into(),
    })
}

/// Two questions, the second only after the first was answered; the state carries the first answer.
async fn rounds(
    fixture: &Fixture,
    request: &CallToolRequestParams,
    context: &Context,
) -> Result<CallToolResponse, ErrorData> {
    let name = json!({"name": {"type": "string"}});
    let step1 = json!({"step1": form("Step 1: What is your name?", name)});
    let color = json!({"color": {"type": "string"}});
    let step2 = json!({"step2": form("Step 2: What is your favorite color?", color)});
    let given = request.input_responses.as_ref();
    let state = match &request.request_state {
        Some(state) => Some(fixture.seal.open(state)?),
        None => None,
    };
    let first = match state.as_deref().and_then(|state| state.strip_prefix("2:")) {
        Some(first) => first.to_owned(),
        None => {
            let state = Some(fixture.seal.seal("1"));
            match ask(context, given, step1, state).await? {
                Ok(answers) => json!(answers).to_string(),
                Err(question) => return Ok(question.into()),
            }
        }
    };
    let state = Some(fixture.seal.seal(&format!("2:{first}")));
    Ok(match ask(context, given, step2, state).await? {
        Ok(answers) => {
            CallToolResponse::Complete(whole(text(&format!("{first} {}", json!(answers)))))
        }
        Err(question) => question.into(),
    })
}
