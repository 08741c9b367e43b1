//! The body of an operation: which of its media types is sent, what it is made of, and how it is written.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{
    document::Document,
    styles::{self, Style, ValueForm},
};
use crate::translate::percent;

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBody {
    /// The `Content-Type`.
    pub content_type: String,
    /// The body itself.
    pub bytes: Vec<u8>,
}

/// Most schemas that are looked at to tell what a body is made of.
const MAX_PARTS: usize = 64;

/// What a body's schema may say, and its properties still be arguments of their own.
const PLAIN: [&str; 16] = [
    "type",
    "properties",
    "required",
    "title",
    "description",
    "example",
    "examples",
    "default",
    "nullable",
    "deprecated",
    "externalDocs",
    "xml",
    "readOnly",
    "writeOnly",
    "allOf",
    "$ref",
];

/// How a body is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    Json,
    /// A text as it is.
    Text,
    /// `application/x-www-form-urlencoded`, with the forms of fields that say one.
    Form(HashMap<String, ValueForm>),
    /// `multipart/form-data`, with the media types of fields that are files or say one.
    Multipart(HashMap<String, String>),
}

/// The body that an operation takes.
pub(super) struct Taken<'d> {
    pub(super) content_type: String,
    pub(super) payload: Payload,
    /// `required`, where the document says something.
    pub(super) required: Option<bool>,
    pub(super) schema: Option<&'d Value>,
    pub(super) description: Option<&'d str>,
}

/// The properties that a body is made of.
#[derive(Default)]
pub(super) struct BodyMembers<'d> {
    pub(super) properties: Vec<(&'d str, &'d Value)>,
    pub(super) required: HashSet<&'d str>,
}

/// Picks a media type: JSON, else a form, else something that is text.
///
/// An operation that has only others is an error, unless it also works without a body.
pub(super) fn of<'d>(
    document: &Document<'d>,
    operation: &'d Value,
) -> Result<Option<Taken<'d>>, String> {
    let Some(body) = operation.get("requestBody") else {
        return Ok(None);
    };
    let body = document.resolve(body)?;
    let Some(content) = body.get("content").and_then(Value::as_object) else {
        return Ok(None);
    };
    let required = body.get("required").and_then(Value::as_bool);
    let Some((media, described)) = content.iter().min_by_key(|(media, _)| rank(media)) else {
        return Ok(None);
    };
    if rank(media) == UNKNOWN {
        let types: Vec<&str> = content.keys().map(String::as_str).collect();
        return match required {
            Some(true) => Err(format!(
                "its body is of the type {}; what can be sent is JSON, forms and text",
                types.join(" or ")
            )),
            _ => Ok(None),
        };
    }
    let described = document.resolve(described)?;
    let schema = described.get("schema");
    if required != Some(true) && schema.is_some_and(|schema| is_nothing(document, schema)) {
        return Ok(None);
    }
    let (content_type, payload) = payload(document, media, described)?;
    Ok(Some(Taken {
        content_type,
        payload,
        required,
        schema,
        description: body.get("description").and_then(Value::as_str),
    }))
}

/// The schema allows an object without members only, as some documents describe the absence of a body.
fn is_nothing<'d>(document: &Document<'d>, schema: &'d Value) -> bool {
    document.resolve(schema).is_ok_and(|schema| {
        let properties = schema.get("properties").and_then(Value::as_object);
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        is_closed && properties.is_some_and(Map::is_empty)
    })
}

/// The rank of what cannot be sent.
const UNKNOWN: usize = 9;

/// The lower, the better.
fn rank(media: &str) -> usize {
    match essence(media).as_str() {
        "application/json" | "text/json" => 0,
        "application/merge-patch+json" => 1,
        it if it.ends_with("+json") => 2,
        "*/*" | "application/*" => 3,
        "application/x-www-form-urlencoded" => 4,
        "multipart/form-data" => 5,
        "text/plain" | "text/*" => 6,
        "application/xml"
        | "application/yaml"
        | "application/x-yaml"
        | "application/graphql"
        | "application/x-ndjson"
        | "application/jsonl"
        | "application/sql" => 8,
        it if it.ends_with("+xml") || it.ends_with("+yaml") => 8,
        it if it.starts_with("text/") => 7,
        _ => UNKNOWN,
    }
}

/// The media type is JSON, whatever it is called.
pub(super) fn is_json(media: &str) -> bool {
    rank(media) <= 3
}

/// A media type without its parameters.
fn essence(media: &str) -> String {
    let plain = media.split(';').next().unwrap_or_default();
    plain.trim().to_ascii_lowercase()
}

fn payload<'d>(
    document: &Document<'d>,
    media: &str,
    described: &'d Value,
) -> Result<(String, Payload), String> {
    let plain = essence(media);
    if !plain.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("the type of its body, `{media}`, is none"));
    }
    let encoding = described.get("encoding").and_then(Value::as_object);
    Ok(match rank(media) {
        0..=2 => (plain, Payload::Json),
        3 => ("application/json".to_owned(), Payload::Json),
        4 => {
            let fields = encoding.into_iter().flatten();
            let fields = fields.filter_map(|(name, it)| Some((name.clone(), field_form(it)?)));
            (plain, Payload::Form(fields.collect()))
        }
        5 => {
            let mut types = files(document, described.get("schema"));
            for (name, it) in encoding.into_iter().flatten() {
                let said = it.get("contentType").and_then(Value::as_str);
                // Of several types the first; a wildcard says nothing.
                let first = said.and_then(|types| types.split(',').next()).map(essence);
                let sound =
                    |it: &String| !it.contains('*') && it.bytes().all(|b| b.is_ascii_graphic());
                if let Some(first) = first.filter(sound) {
                    types.insert(name.clone(), first);
                }
            }
            (plain, Payload::Multipart(types))
        }
        6 => ("text/plain; charset=utf-8".to_owned(), Payload::Text),
        _ => (plain, Payload::Text),
    })
}

/// The style that a field of a form says it has.
fn field_form(encoding: &Value) -> Option<ValueForm> {
    let style = encoding.get("style").and_then(Value::as_str);
    let explode = encoding.get("explode").and_then(Value::as_bool);
    let style = match style {
        Some(style) => Style::parse(style)?,
        None if explode.is_some() => Style::Form,
        None => return None,
    };
    Some(ValueForm::Style {
        style,
        explode: explode.unwrap_or(style == Style::Form),
        reserved: encoding.get("allowReserved") == Some(&Value::Bool(true)),
    })
}

/// The fields of a form that are files.
fn files<'d>(document: &Document<'d>, schema: Option<&'d Value>) -> HashMap<String, String> {
    let schema = schema.and_then(|schema| document.resolve(schema).ok());
    let properties = schema.and_then(|it| it.get("properties")?.as_object());
    let mut files = HashMap::new();
    for (name, property) in properties.into_iter().flatten() {
        let item = property.get("items").unwrap_or(property);
        let says = |keyword: &str| item.get(keyword).and_then(Value::as_str);
        if says("format") == Some("binary") {
            files.insert(name.clone(), "application/octet-stream".to_owned());
        } else if let Some(media) = says("contentMediaType") {
            files.insert(name.clone(), essence(media));
        }
    }
    files
}

/// What the body is made of, where its schema says that and little else: `properties` and `required`, also
/// behind references and in `allOf`.
pub(super) fn members<'d>(document: &Document<'d>, schema: &'d Value) -> Option<BodyMembers<'d>> {
    let mut members = BodyMembers::default();
    let mut budget = MAX_PARTS;
    collect(document, schema, &mut members, &mut budget).then_some(())?;
    (!members.properties.is_empty()).then_some(members)
}

fn collect<'d>(
    document: &Document<'d>,
    schema: &'d Value,
    members: &mut BodyMembers<'d>,
    budget: &mut usize,
) -> bool {
    *budget = budget.saturating_sub(1);
    let Some(schema) = document.resolve(schema).ok().and_then(Value::as_object) else {
        return false;
    };
    let is_plain = |(keyword, value): (&String, &Value)| {
        PLAIN.contains(&keyword.as_str())
            || keyword.starts_with("x-")
            || (keyword == "additionalProperties" && value == false)
    };
    let is_object = match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.contains(&"object".into()),
        Some(kind) => kind == "object",
    };
    if *budget == 0 || !is_object || !schema.iter().all(is_plain) {
        return false;
    }
    for (name, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        match members.properties.iter().find(|(known, _)| known == name) {
            Some((_, known)) if *known != property => return false,
            Some(_) => {}
            None => members.properties.push((name, property)),
        }
    }
    let required = schema.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    members.required.extend(required);
    let parts = schema.get("allOf").and_then(Value::as_array);
    let mut parts = parts.into_iter().flatten();
    parts.all(|part| collect(document, part, members, budget))
}

/// Writes the body of a request.
pub(super) fn write(payload: &Payload, content_type: &str, value: Value) -> RequestBody {
    let (content_type, bytes) = match payload {
        Payload::Json => (content_type.to_owned(), value.to_string().into_bytes()),
        Payload::Text => (content_type.to_owned(), styles::text(&value).into_bytes()),
        Payload::Form(forms) => (content_type.to_owned(), form(&members_of(value), forms)),
        Payload::Multipart(types) => multipart(&members_of(value), types),
    };
    RequestBody {
        content_type,
        bytes,
    }
}

fn members_of(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// Lists are repeated fields, objects are JSON, unless the document says otherwise.
fn form(members: &Map<String, Value>, forms: &HashMap<String, ValueForm>) -> Vec<u8> {
    let plain = ValueForm::Style {
        style: Style::Form,
        explode: true,
        reserved: false,
    };
    let json = ValueForm::Content { is_json: true };
    let mut fields = Vec::new();
    for (name, value) in members {
        let form = match forms.get(name) {
            Some(form) => form,
            None if value.is_object() => &json,
            None => &plain,
        };
        fields.extend(styles::pairs(name, value, form));
    }
    fields.join("&").into_bytes()
}

/// RFC 7578. The boundary is the first of a fixed series that is in none of the parts.
fn multipart(members: &Map<String, Value>, types: &HashMap<String, String>) -> (String, Vec<u8>) {
    let mut parts: Vec<String> = Vec::new();
    for (name, value) in members {
        let several = match value {
            Value::Null => continue,
            Value::Array(items) => items.iter().collect(),
            single => vec![single],
        };
        parts.extend(
            several
                .into_iter()
                .map(|it| part(name, it, types.get(name))),
        );
    }
    let boundary = (0_usize..)
        .map(|number| format!("toolway-{number}"))
        .find(|boundary| parts.iter().all(|part| !part.contains(boundary.as_str())))
        .unwrap_or_default();
    let mut body = String::new();
    for part in parts {
        body.push_str(&format!("--{boundary}\r\n{part}\r\n"));
    }
    body.push_str(&format!("--{boundary}--\r\n"));
    (
        format!("multipart/form-data; boundary={boundary}"),
        body.into_bytes(),
    )
}

fn part(name: &str, value: &Value, media: Option<&String>) -> String {
    let name = quoted(name);
    let content = styles::text(value);
    match media {
        Some(media) => format!(
            "Content-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\
             Content-Type: {media}\r\n\r\n{content}"
        ),
        None if value.is_object() || value.is_array() => format!(
            "Content-Disposition: form-data; name=\"{name}\"\r\n\
             Content-Type: application/json\r\n\r\n{content}"
        ),
        None => format!("Content-Disposition: form-data; name=\"{name}\"\r\n\r\n{content}"),
    }
}

/// A name as it stands in a part's header, where neither a quote nor a line end may end it.
fn quoted(name: &str) -> String {
    let escaped = |c: char| match c {
        '"' => "%22".to_owned(),
        c if c.is_control() => percent::value(&c.to_string()),
        c => c.to_string(),
    };
    name.chars().map(escaped).collect()
}
