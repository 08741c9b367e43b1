//! A call and its result survive the way to a webhook and back, whatever they hold.
//!
//! The other side is written here by hand, from the form that docs/functions.md describes.

use http::Method;
use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value, json};
use toolway_core::translate::{
    functions::{
        command, definitions, output, reply,
        request::RequestTemplate,
        template::Template,
        webhook::{self, AnswerFault, WebhookCall},
    },
    schema, tools,
};
use toolway_protocol::tool::{Content, FunctionName, Tool, ToolResult};

/// Any JSON value of a few levels.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1_000_000i32..1_000_000).prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((".{0,6}", inner), 0..5).prop_map(|it| Value::Object(it.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    vec((".{0,6}", value()), 0..6).prop_map(|members| members.into_iter().collect())
}

/// A part of a result, as a webhook writes it and as it should be read.
fn part() -> impl Strategy<Value = (Value, Content)> {
    let base64 = "([A-Za-z0-9+/]{4}){0,6}";
    prop_oneof![
        ".{0,20}".prop_map(|text| (json!({"type": "text", "text": text}), Content::Text(text))),
        base64.prop_map(|data| {
            let url = format!("data:image/png;base64,{data}");
            let image = Content::Image {
                mime_type: "image/png".to_owned(),
                data,
            };
            (
                json!({"type": "image_url", "image_url": {"url": url}}),
                image,
            )
        }),
        base64.prop_map(|data| {
            let audio = Content::Audio {
                mime_type: "audio/wav".to_owned(),
                data: data.clone(),
            };
            (
                json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}),
                audio,
            )
        }),
        (base64, "[a-z]{1,8}").prop_map(|(data, name)| {
            let file = Content::BlobResource {
                uri: format!("attachment:{name}"),
                mime_type: None,
                blob: data.clone(),
            };
            (
                json!({"type": "file", "file": {"filename": name, "file_data": data}}),
                file,
            )
        }),
        ("https://[a-z]{1,8}/", ".{0,8}").prop_map(|(uri, name)| {
            let block = json!({"type": "resource_link", "uri": uri, "name": name});
            let link = Content::ResourceLink {
                uri,
                name,
                description: None,
                mime_type: None,
            };
            (block, link)
        }),
    ]
}

/// An output as a webhook writes it, and the result it stands for.
fn result() -> impl Strategy<Value = (Value, ToolResult)> {
    let parts = |blocks: Vec<(Value, Content)>| -> (Vec<Value>, Vec<Content>) {
        blocks.into_iter().unzip()
    };
    prop_oneof![
        ".{0,40}".prop_map(|text| (Value::from(text.clone()), ToolResult::text(text))),
        vec(part(), 1..5).prop_map(move |blocks| {
            let (written, content) = parts(blocks);
            let result = ToolResult {
                content,
                ..ToolResult::default()
            };
            (Value::Array(written), result)
        }),
        (vec(part(), 1..5), value(), any::<bool>()).prop_map(move |(blocks, structured, is_error)| {
            let (written, content) = parts(blocks);
            let structured = json!({"of": structured});
            let body = json!({"content": written, "structuredContent": structured, "isError": is_error});
            let result = ToolResult {
                content,
                structured_content: Some(structured),
                is_error,
                ..ToolResult::default()
            };
            (body, result)
        }),
        value().prop_map(|value| {
            let value = json!({"value": value});
            (value.clone(), output::structured(value))
        }),
    ]
}

/// What a webhook that was written without toolway reads.
fn read_by_hand(body: &str) -> Vec<(String, String, Value)> {
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body.as_object().expect("an object").len(), 1);
    let calls = body["tool_calls"].as_array().expect("tool_calls");
    let read = |call: &Value| {
        assert_eq!(call["type"], "function");
        let arguments = call["function"]["arguments"].as_str().expect("a text");
        (
            call["id"].as_str().expect("an id").to_owned(),
            call["function"]["name"]
                .as_str()
                .expect("a name")
                .to_owned(),
            serde_json::from_str(arguments).expect("JSON within the text"),
        )
    };
    calls.iter().map(read).collect()
}

proptest! {
    #[test]
    fn calls_reach_the_webhook_as_they_were_made(
        given in vec(("[a-zA-Z0-9_-]{1,20}", object()), 1..6),
    ) {
        let ids: Vec<String> = (0..given.len()).map(|n| format!("call_{n}")).collect();
        let calls: Vec<WebhookCall<'_>> = given
            .iter()
            .zip(&ids)
            .map(|((name, arguments), id)| WebhookCall { id, name, arguments })
            .collect();
        let read = read_by_hand(&webhook::request(&calls));
        let expected: Vec<(String, String, Value)> = given
            .iter()
            .zip(&ids)
            .map(|((name, arguments), id)| (id.clone(), name.clone(), Value::Object(arguments.clone())))
            .collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn each_result_comes_back_to_its_call_whatever_the_order_and_the_form(
        given in vec(result(), 1..6),
        order in any::<u64>(),
        form in 0..4,
    ) {
        let ids: Vec<String> = (0..given.len()).map(|n| format!("call_{n}")).collect();
        let mut places: Vec<usize> = (0..given.len()).collect();
        places.sort_by_key(|place| (*place as u64 + 1).wrapping_mul(order | 1));
        let member = if form < 2 { "output" } else { "content" };
        let entries: Vec<Value> = places
            .iter()
            .map(|place| json!({"role": "tool", "tool_call_id": ids[*place], member: given[*place].0}))
            .collect();
        let body = match form {
            0 => json!({"tool_responses": entries}),
            1 | 2 => json!(entries),
            _ => json!({"messages": entries}),
        };
        let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
        let answers = webhook::read_answers(200, body.to_string().as_bytes(), &asked);
        let expected: Vec<Result<ToolResult, AnswerFault>> =
            given.into_iter().map(|(_, result)| Ok(result)).collect();
        prop_assert_eq!(answers.outcomes, expected);
        prop_assert_eq!(answers.strangers, 0);
    }

    #[test]
    fn every_body_gives_every_call_one_outcome(
        body in vec(any::<u8>(), 0..200),
        json in value(),
        status in 200u16..600,
    ) {
        for body in [body, json.to_string().into_bytes(), json!({"tool_responses": json}).to_string().into_bytes()] {
            let answers = webhook::read_answers(status, &body, &["a", "b"]);
            prop_assert_eq!(answers.outcomes.len(), 2);
        }
    }

    #[test]
    fn nothing_that_is_read_makes_it_panic(
        text in ".{0,120}",
        bytes in vec(any::<u8>(), 0..120),
        document in value(),
        arguments in object(),
    ) {
        for text in [text.clone(), document.to_string(), json!({"tools": document}).to_string()] {
            let read = definitions::read(&text);
            prop_assert!(read.tools.len() <= 5000);
        }
        output::read(document.clone());
        output::read(json!({"content": document, "error": document}));
        reply::read("f", 200, &text, &bytes);
        reply::read("f", 500, "", &bytes);
        command::read_output("f", bytes.clone());
        command::failure("x", &bytes, text.as_bytes());
        Template::parse(&text).fill(|name| Some(name.to_owned()));
        let _ = RequestTemplate::parse(&text, &Method::GET);
        if let Ok(template) = RequestTemplate::parse(&format!("https://h/{text}"), &Method::GET)
            && let Ok(request) = template.fill("f", arguments)
        {
            prop_assert_eq!(request.url.host_str(), Some("h"));
        }
    }

    #[test]
    fn a_tool_that_is_offered_can_be_read_as_a_definition(
        name in "[a-zA-Z][a-zA-Z0-9_-]{0,63}",
        description in proptest::option::of("[a-z]{1,20}"),
        properties in vec(("[a-z]{1,8}", prop_oneof!["string", "integer", "array"]), 0..5),
    ) {
        let properties: Map<String, Value> =
            properties.into_iter().map(|(name, kind)| (name, json!({"type": kind}))).collect();
        let input_schema = json!({"properties": properties});
        let tool = Tool {
            name: name.clone(),
            title: None,
            description: description.clone(),
            input_schema: input_schema.as_object().expect("an object").clone(),
            output_schema: None,
            annotations: Default::default(),
            extra: Default::default(),
        };
        let offered = FunctionName::parse(&name).expect("a name");
        let document = format!("[{}]", tools::to_openai(&offered, &tool).json);
        let read = definitions::read(&document);
        prop_assert_eq!(read.faults, vec![]);
        let expected = Tool {
            input_schema: schema::to_openai(&tool.input_schema).schema,
            ..tool
        };
        prop_assert_eq!(read.tools, vec![expected]);
    }
}
