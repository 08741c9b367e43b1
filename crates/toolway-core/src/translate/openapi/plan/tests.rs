//! What holds of requests whatever the arguments are, judged by parsers that are not ours.

use proptest::{collection::vec, prelude::*};
use serde_json::{Map, json};
use url::{Url, form_urlencoded};

use super::*;
use crate::translate::{
    openapi::{self, Fixed, Operation},
    percent,
};

/// One operation with a parameter in each place, and a form as its body.
fn operation() -> Operation {
    let text = json!({"type": "string"});
    let list = json!({"type": "array", "items": text});
    let document = json!({
        "openapi": "3.1.0",
        "paths": {"/a/{id}/{kind}/end": {"post": {
            "parameters": [
                {"name": "id", "in": "path", "schema": text},
                {"name": "kind", "in": "path", "schema": text},
                {"name": "q", "in": "query", "schema": text},
                {"name": "list[]", "in": "query", "schema": list},
                {"name": "deep", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                {"name": "raw", "in": "query", "allowReserved": true, "schema": text},
                {"name": "X-H", "in": "header", "schema": text},
                {"name": "c", "in": "cookie", "schema": text},
            ],
            "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {
                "type": "object", "properties": {"field": text, "fields": list},
            }}}},
        }}},
    });
    let mut api = openapi::read(&document, &Fixed::default()).unwrap();
    api.operations.remove(0)
}

fn request(arguments: &serde_json::Value) -> Result<HttpRequest, CallError> {
    let mut all = Map::new();
    all.insert("id".into(), "1".into());
    all.insert("kind".into(), "k".into());
    all.extend(arguments.as_object().unwrap().clone());
    operation().plan.request(&all)
}

/// What people who mean harm would write, and anything else.
fn text() -> impl Strategy<Value = String> {
    let nasty = prop_oneof![
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just("%2e%2e".to_owned()),
        Just("../../x".to_owned()),
        Just("a?b#c&d=e;f".to_owned()),
        Just("//host\\x@y:z".to_owned()),
        Just("a\r\nb: c".to_owned()),
        Just("..\0".to_owned()),
        Just("..%7F".to_owned()),
    ];
    prop_oneof![1 => nasty, 3 => "[ -~]{0,12}", 2 => any::<String>()]
}

proptest! {
    #[test]
    fn an_argument_in_the_path_stays_in_its_segment(id in text(), kind in text()) {
        let url = match request(&json!({"id": id, "kind": kind})) {
            Ok(request) => request.url("https://api.example/v1/"),
            Err(error) => {
                let is_refused = |it: &str| it.is_empty() || flaw(it).is_some();
                let too_long = id.len() + kind.len() > 10_000;
                prop_assert!(is_refused(&id) || is_refused(&kind) || too_long, "{error}");
                return Ok(());
            }
        };
        let url = Url::parse(&url).unwrap();
        prop_assert_eq!(url.host_str(), Some("api.example"));
        prop_assert_eq!((url.query(), url.fragment()), (None, None));
        let segments: Vec<String> = url.path_segments().unwrap()
            .map(|it| percent::decode(it).unwrap())
            .collect();
        prop_assert!(!segments.iter().any(|it| it.contains(|c: char| c.is_ascii_control())));
        prop_assert_eq!(segments, ["v1", "a", &id, &kind, "end"]);
    }

    #[test]
    fn a_query_is_read_as_it_was_meant(q in text(), list in vec(text(), 0..4), key in text(), raw in text()) {
        let arguments = json!({"q": q, "list": list, "deep": {key.as_str(): {"x": q}}, "raw": raw});
        let request = request(&arguments).unwrap();
        let url = Url::parse(&request.url("https://api.example")).unwrap();
        let read: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut expected = vec![("q".to_owned(), q.clone())];
        expected.extend(list.into_iter().map(|it| ("list[]".to_owned(), it)));
        expected.push((format!("deep[{key}][x]"), q));
        expected.push(("raw".to_owned(), raw));
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn a_form_is_read_as_it_was_meant(field in text(), fields in vec(text(), 0..4)) {
        let body = request(&json!({"field": field, "fields": fields})).unwrap().body.unwrap();
        let read: Vec<(String, String)> = form_urlencoded::parse(&body.bytes).into_owned().collect();
        let mut expected = vec![("field".to_owned(), field)];
        expected.extend(fields.into_iter().map(|it| ("fields".to_owned(), it)));
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn a_header_is_one_header(value in text(), cookie in text()) {
        let Ok(request) = request(&json!({"X-H": value, "c": cookie})) else {
            prop_assert!(!value.bytes().all(|it| (b' '..=b'~').contains(&it)));
            return Ok(());
        };
        prop_assert_eq!(&request.headers[0], &("X-H".to_owned(), value));
        for (name, value) in &request.headers {
            prop_assert!(http::HeaderName::try_from(name).is_ok());
            prop_assert!(http::HeaderValue::try_from(value).is_ok());
        }
        let (_, value) = request.headers[1].1.split_once('=').unwrap();
        prop_assert!(!value.contains([';', ' ', ',', '"', '\\']));
        prop_assert_eq!(percent::decode(value).unwrap(), cookie);
    }
}
