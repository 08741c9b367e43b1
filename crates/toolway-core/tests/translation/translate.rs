//! What holds of translation for every input: names, arguments, cuts and the body written again.

use std::collections::{HashMap, HashSet};

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::{Map, Value, json};
use toolway_core::translate::{calls, names, results, schema};
use toolway_protocol::{
    openai::request::{Change, ChatRequest, messages_of, splice_messages},
    tool::{Content, FunctionName, ServerId, ToolResult},
};

/// Servers and tools that read alike more often than not.
fn tools() -> impl Strategy<Value = Vec<(ServerId, String)>> {
    let server = prop_oneof!["[ab_]{1,4}", "[a-zA-Z0-9_-]{1,64}"];
    let tool = prop_oneof!["[ab_.]{0,4}", "[a-zA-Z0-9_./-]{1,128}", ".{0,80}"];
    let server = server.prop_map(|name| ServerId::parse(&name).expect("it is within the alphabet"));
    vec((server, tool), 0..40)
}

fn assign(tools: &[(ServerId, String)]) -> Vec<names::Assigned> {
    names::assign(tools.iter().map(|(server, tool)| (server, tool.as_str())))
}

/// Any JSON value of a few levels.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
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

/// A schema made of the keywords that translation looks at, well-formed or not.
fn schema() -> impl Strategy<Value = Map<String, Value>> {
    const KEYWORDS: [&str; 12] = [
        "type",
        "properties",
        "required",
        "items",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "$defs",
        "enum",
        "not",
        "$schema",
    ];
    let leaf = prop_oneof![
        Just(json!("object")),
        Just(json!("array")),
        Just(json!("#/$defs/items")),
        Just(json!(["a", "b"])),
        Just(json!(true)),
    ];
    let tree = leaf.prop_recursive(4, 40, 4, |inner| {
        let keyword = any::<Index>().prop_map(|it| (*it.get(&KEYWORDS)).to_owned());
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((keyword, inner), 0..4).prop_map(|it| Value::Object(it.into_iter().collect())),
        ]
    });
    let keyword = any::<Index>().prop_map(|it| (*it.get(&KEYWORDS)).to_owned());
    vec((keyword, tree), 0..6).prop_map(|members| members.into_iter().collect())
}

proptest! {
    #[test]
    fn names_are_valid_and_all_different(tools in tools()) {
        let assigned = assign(&tools);
        prop_assert_eq!(assigned.len(), tools.len());
        let mut seen = HashSet::new();
        for (assigned, (server, tool)) in assigned.iter().zip(&tools) {
            prop_assert!(FunctionName::parse(assigned.name.as_str()).is_ok());
            prop_assert!(seen.insert(assigned.name.clone()), "{} comes twice", assigned.name);
            let is_plain = assigned.name.as_str() == format!("{server}__{tool}");
            prop_assert_eq!(assigned.changed, !is_plain);
        }
    }

    #[test]
    fn names_do_not_depend_on_the_order_of_arrival(tools in tools(), seed in any::<u64>()) {
        let pairs: HashSet<(ServerId, String)> = tools.into_iter().collect();
        let mut one: Vec<_> = pairs.into_iter().collect();
        one.sort();
        let mut other = one.clone();
        other.sort_by_key(|(server, tool)| {
            let letters = server.as_str().bytes().chain(tool.bytes());
            letters.fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
        });
        let names: HashMap<_, _> = other.iter().zip(assign(&other)).collect();
        for (pair, assigned) in one.iter().zip(assign(&one)) {
            prop_assert_eq!(&names[pair], &assigned);
        }
    }

    #[test]
    fn a_new_tool_renames_only_those_that_read_like_it(tools in tools(), new in tools()) {
        let Some(new) = new.into_iter().next() else { return Ok(()) };
        let tools: HashSet<(ServerId, String)> = tools.into_iter().filter(|it| *it != new).collect();
        let tools: Vec<_> = tools.into_iter().collect();
        let before = assign(&tools);
        let all: Vec<_> = tools.iter().cloned().chain([new.clone()]).collect();
        let plain = |(server, tool): &(ServerId, String)| format!("{server}__{tool}");
        for ((pair, before), after) in tools.iter().zip(&before).zip(assign(&all)) {
            prop_assert!(*before == after || plain(pair) == plain(&new), "{} was renamed", before.name);
        }
    }

    #[test]
    fn arguments_of_any_text_are_an_object_or_an_error(text in ".{0,60}|[{}\\[\\]\",:a0 \\\\]{0,20}") {
        let parsed = calls::parse_arguments(&text);
        if let Ok(Value::Object(expected)) = serde_json::from_str(&text) {
            prop_assert_eq!(parsed, Ok(expected));
        } else if let Err(error) = parsed {
            prop_assert!(error.to_string().len() < 400);
        }
    }

    #[test]
    fn an_object_is_read_as_it_is_and_also_encoded_once_more(object in object()) {
        let text = Value::Object(object.clone()).to_string();
        prop_assert_eq!(calls::parse_arguments(&text), Ok(object.clone()));
        let twice = Value::from(text.as_str()).to_string();
        prop_assert_eq!(calls::parse_arguments(&twice), Ok(object.clone()));
        let placeholder = format!("{{}}{text}");
        prop_assert_eq!(calls::parse_arguments(&placeholder), Ok(object));
    }

    #[test]
    fn an_offered_schema_is_an_object_with_properties_and_stays_one(schema in schema()) {
        let _ = schema::fault(&schema);
        let offered = schema::to_openai(&schema);
        prop_assert_eq!(&offered.schema["type"], "object");
        prop_assert!(offered.schema["properties"].is_object());
        let again = schema::to_openai(&offered.schema);
        prop_assert!(again.lost.is_empty());
        prop_assert_eq!(again.schema, offered.schema);
    }

    #[test]
    fn a_cut_holds_the_limit_and_can_be_read_on(text in ".{1,300}", limit in 40_usize..400) {
        let result = ToolResult::text(text.clone());
        let message = results::to_openai(&result, limit, results::Media::default(), results::cut_off);
        prop_assert!(message.text.len() <= limit || text.trim().is_empty());
        if let Some(cut) = message.cut {
            prop_assert!(message.text.starts_with(&text[..cut.shown]));
            let mut read = text[..cut.shown].to_owned();
            let mut next = Some(cut.shown);
            while let Some(offset) = next {
                let page = results::page(&cut.full, offset, limit);
                read.push_str(page.text);
                next = page.next;
            }
            prop_assert_eq!(read, text);
        }
    }

    #[test]
    fn a_result_of_any_blocks_has_a_text(blocks in vec(value(), 0..5), is_error in any::<bool>()) {
        let content = blocks.into_iter().map(Content::Unknown).collect();
        let result = ToolResult { content, is_error, ..ToolResult::default() };
        let message = results::to_openai(&result, 100, results::Media::default(), results::cut_off);
        prop_assert!(!message.text.trim().is_empty());
    }

    #[test]
    fn a_body_written_again_says_the_same(members in object(), set in value(), at in any::<Index>()) {
        let mut members = members;
        members.insert("model".into(), json!("m"));
        members.insert("messages".into(), json!([{"role": "user"}]));
        members.retain(|name, _| {
            matches!(name.as_str(), "model" | "messages") || !name.is_ascii() || name.len() < 4
        });
        members.shift_remove("n");
        let body = Value::Object(members.clone()).to_string();
        let request = ChatRequest::parse(body.as_bytes(), 64).unwrap();
        prop_assert_eq!(request.compose(&[]).to_bytes(), body.as_bytes());

        let name = at.get(&members.keys().cloned().collect::<Vec<_>>()).clone();
        let text = set.to_string();
        let changed = request.compose(&[(&name, Change::Set(&text)), ("new member", Change::Set("1"))]);
        members.insert(name.clone(), set);
        members.insert("new member".into(), json!(1));
        prop_assert_eq!(serde_json::from_slice::<Value>(&changed.to_bytes()).unwrap(), Value::Object(members.clone()));

        let removed = request.compose(&[(&name, Change::Remove)]);
        members.shift_remove(&name);
        members.shift_remove("new member");
        prop_assert_eq!(serde_json::from_slice::<Value>(&removed.to_bytes()).unwrap(), Value::Object(members));
    }

    #[test]
    fn any_body_is_read_or_refused(body in vec(any::<u8>(), 0..80), depth in 0_usize..4) {
        let _ = ChatRequest::parse(&body, depth);
        let text = String::from_utf8_lossy(&body);
        let wrapped = format!("{{\"model\":\"m\",\"messages\":[],\"tools\":{text}}}");
        let _ = ChatRequest::parse(wrapped.as_bytes(), 64);
    }

    #[test]
    fn spliced_messages_are_the_old_ones_and_then_the_new(
        old in vec(object(), 0..4),
        new in vec(object(), 0..4),
    ) {
        let join = |list: &[Map<String, Value>]| {
            let texts: Vec<String> = list.iter().map(|it| Value::Object(it.clone()).to_string()).collect();
            texts.join(" , ")
        };
        let body = format!("{{\"model\":\"m\",\"messages\": [ {} ]}}", join(&old));
        let request = ChatRequest::parse(body.as_bytes(), 64).unwrap();
        prop_assert_eq!(messages_of(request.messages()).len(), old.len());
        let new_text = join(&new);
        let spliced = splice_messages(request.messages().get(), &new_text).concat();
        let spliced: Vec<Map<String, Value>> = serde_json::from_str(&spliced).unwrap();
        prop_assert_eq!(spliced, old.into_iter().chain(new).collect::<Vec<_>>());
    }
}
