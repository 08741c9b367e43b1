//! The prompts that the scenarios get, and completions for their arguments.

use rmcp::{
    ErrorData,
    model::{CompleteResult, GetPromptRequestParams, GetPromptResponse, Prompt},
};
use serde_json::{Value, json};

use crate::{Context, asking, resources::PNG, typed, whole};

pub(crate) fn list(extra: bool) -> Vec<Prompt> {
    let argument =
        |name: &str| json!({"name": name, "description": format!("The {name}."), "required": true});
    let prompt = |name: &str, arguments: Value| json!({"name": name, "description": format!("The prompt {name}."), "arguments": arguments});
    let mut prompts = json!([
        prompt("test_simple_prompt", json!([])),
        prompt(
            "test_prompt_with_arguments",
            json!([argument("arg1"), argument("arg2")])
        ),
        prompt(
            "test_prompt_with_embedded_resource",
            json!([argument("resourceUri")])
        ),
        prompt("test_prompt_with_image", json!([])),
        prompt("test_input_required_result_prompt", json!([])),
    ]);
    if let (true, Some(prompts)) = (extra, prompts.as_array_mut()) {
        prompts.push(prompt("test_extra_prompt", json!([])));
    }
    typed(prompts)
}

/// # Errors
///
/// Invalid parameters, for an unknown prompt; whatever asking the client brings.
pub(crate) async fn get(
    request: GetPromptRequestParams,
    context: &Context,
) -> Result<GetPromptResponse, ErrorData> {
    let argument = |name: &str| {
        let value = request.arguments.as_ref().and_then(|all| all.get(name));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let contents = match request.name.as_str() {
        "test_simple_prompt" | "test_extra_prompt" => {
            vec![text("This is a simple prompt for testing.")]
        }
        "test_prompt_with_arguments" => vec![text(&format!(
            "Prompt with arguments: arg1='{}', arg2='{}'",
            argument("arg1"),
            argument("arg2")
        ))],
        "test_prompt_with_embedded_resource" => {
            let resource = json!({
                "uri": argument("resourceUri"),
                "mimeType": "text/plain",
                "text": "Embedded resource content for testing.",
            });
            vec![
                json!({"type": "resource", "resource": resource}),
                text("Please process the embedded resource above."),
            ]
        }
        "test_prompt_with_image" => vec![
            json!({"type": "image", "data": PNG, "mimeType": "image/png"}),
            text("Please analyze the image above."),
        ],
        "test_input_required_result_prompt" => {
            let question = asking::form(
                "What context should the prompt use?",
                json!({"context": {"type": "string"}}),
            );
            let questions = json!({"user_context": question});
            let given = request.input_responses.as_ref();
            match asking::ask(context, given, questions, None).await? {
                Ok(answers) => vec![text(&format!("Context: {}", json!(answers)))],
                Err(question) => return Ok(question.into()),
            }
        }
        name => {
            let why = format!("no prompt is named `{name}`");
            return Err(ErrorData::invalid_params(why, None));
        }
    };
    let messages: Vec<Value> = contents
        .into_iter()
        .map(|content| json!({"role": "user", "content": content}))
        .collect();
    let result = whole(json!({"messages": messages}));
    Ok(GetPromptResponse::Complete(result))
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(crate) fn complete(begun: &str) -> CompleteResult {
    let words = ["paris", "park", "party", "test", "testing"];
    let fitting: Vec<&str> = words
        .into_iter()
        .filter(|word| word.starts_with(begun))
        .collect();
    whole(json!({"completion": {"values": fitting, "total": fitting.len(), "hasMore": false}}))
}
