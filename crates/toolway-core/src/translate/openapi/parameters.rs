//! The parameters of an operation, its path's among them, and the path's template.

use serde_json::Value;

use super::{
    Fixed,
    document::Document,
    styles::{Style, ValueForm},
};
use crate::translate::{paths::flaw, percent};

/// Headers that a request's body, its connection or its configuration decide. OpenAPI says of the first
/// three that parameters of these names are ignored.
const NOT_ASKED_FOR: [&str; 14] = [
    "accept",
    "content-type",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Where a parameter goes, in the order in which arguments get their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ParameterLocation {
    Path,
    Query,
    Header,
    Cookie,
}

impl ParameterLocation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            ParameterLocation::Path => "path",
            ParameterLocation::Query => "query",
            ParameterLocation::Header => "header",
            ParameterLocation::Cookie => "cookie",
        }
    }
}

/// One parameter as the document has it.
pub(super) struct Parameter<'d> {
    pub(super) name: &'d str,
    pub(super) place: ParameterLocation,
    pub(super) is_required: bool,
    pub(super) form: ValueForm,
    /// `None`: a text.
    pub(super) schema: Option<&'d Value>,
    pub(super) description: Option<&'d str>,
}

/// A part of a path's template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathTemplatePart<'d> {
    /// Encoded.
    Literal(String),
    /// The name of a parameter.
    Parameter(&'d str),
}

/// Takes a path apart at its `{…}`; the error says what is wrong with it.
///
/// A fragment is left out, as it is never sent: some documents tell operations apart by it.
pub(super) fn template(path: &str) -> Result<Vec<PathTemplatePart<'_>>, String> {
    let path = path.split('#').next().unwrap_or_default();
    let segments = path.split('?').next().unwrap_or_default();
    if let Some(why) = flaw(segments) {
        return Err(why.to_owned());
    }
    let mut pieces = Vec::new();
    if !path.starts_with('/') {
        pieces.push(PathTemplatePart::Literal("/".to_owned()));
    }
    let mut rest = path;
    while let Some((literal, after)) = rest.split_once('{') {
        let (name, after) = after
            .split_once('}')
            .filter(|(name, _)| !name.is_empty() && !name.contains('{'))
            .ok_or("its path has a `{` that does not begin a parameter")?;
        push_literal(&mut pieces, literal);
        pieces.push(PathTemplatePart::Parameter(name));
        rest = after;
    }
    push_literal(&mut pieces, rest);
    Ok(pieces)
}

fn push_literal(pieces: &mut Vec<PathTemplatePart<'_>>, literal: &str) {
    if literal.is_empty() {
        return;
    }
    // Some documents write a query into the path; it stays one.
    let (path, query) = match literal.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (literal, None),
    };
    let mut text = percent::path(path);
    if let Some(query) = query {
        text.push('?');
        text.push_str(&percent::path(query));
    }
    pieces.push(PathTemplatePart::Literal(text));
}

/// The parameters of an operation in the order of [`ParameterLocation`]; its own come before those of its path, and
/// replace them where name and place are the same.
pub(super) fn all<'d>(
    document: &Document<'d>,
    path_item: &'d Value,
    operation: &'d Value,
    template: &[PathTemplatePart<'d>],
    fixed: &Fixed,
) -> Result<Vec<Parameter<'d>>, String> {
    let mut found: Vec<Parameter<'d>> = Vec::new();
    for owner in [operation, path_item] {
        let list = match owner.get("parameters") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(list)) => list,
            Some(_) => return Err("its `parameters` are no list".to_owned()),
        };
        for value in list {
            let parameter = one(document, document.resolve(value)?)?;
            let is_new =
                |it: &Parameter<'_>| (it.name, it.place) != (parameter.name, parameter.place);
            if found.iter().all(is_new) {
                found.push(parameter);
            }
        }
    }
    let is_in_path = |name: &str| template.contains(&PathTemplatePart::Parameter(name));
    found.retain(|it| match it.place {
        ParameterLocation::Path => is_in_path(it.name),
        ParameterLocation::Header => {
            !NOT_ASKED_FOR.contains(&it.name.to_ascii_lowercase().as_str())
                && !fixed.has_header(it.name)
        }
        ParameterLocation::Cookie => !fixed.has_header("cookie"),
        ParameterLocation::Query => true,
    });
    for piece in template {
        if let PathTemplatePart::Parameter(name) = piece
            && !found
                .iter()
                .any(|it| it.place == ParameterLocation::Path && it.name == *name)
        {
            found.push(undeclared(name));
        }
    }
    found.sort_by_key(|it| it.place);
    Ok(found)
}

/// A parameter that only the path's template names.
fn undeclared(name: &str) -> Parameter<'_> {
    Parameter {
        name,
        place: ParameterLocation::Path,
        is_required: true,
        form: ValueForm::Style {
            style: Style::Simple,
            explode: false,
            reserved: false,
        },
        schema: None,
        description: None,
    }
}

fn one<'d>(document: &Document<'d>, value: &'d Value) -> Result<Parameter<'d>, String> {
    let text = |keyword: &str| value.get(keyword).and_then(Value::as_str);
    let name = text("name")
        .filter(|name| !name.is_empty())
        .ok_or("one of its parameters has no `name`")?;
    let place = match text("in") {
        Some("path") => ParameterLocation::Path,
        Some("query") => ParameterLocation::Query,
        Some("header") => ParameterLocation::Header,
        Some("cookie") => ParameterLocation::Cookie,
        Some("body" | "formData") => {
            return Err(format!(
                "its parameter `{name}` is of Swagger 2.0; OpenAPI 3.x has `requestBody`"
            ));
        }
        Some(other) => {
            return Err(format!(
                "its parameter `{name}` is in `{other}`, which is not known"
            ));
        }
        None => {
            return Err(format!(
                "its parameter `{name}` does not say where it is (`in`)"
            ));
        }
    };
    if place == ParameterLocation::Header && !is_token(name) {
        return Err(format!(
            "its parameter `{name}` cannot be the name of a header"
        ));
    }
    let flag = |keyword: &str| value.get(keyword).and_then(Value::as_bool);
    let content = value.get("content").and_then(Value::as_object);
    let (form, schema) = match content.and_then(|content| content.iter().next()) {
        Some((media, described)) => {
            let is_json = super::body::is_json(media);
            (
                ValueForm::Content { is_json },
                document.resolve(described)?.get("schema"),
            )
        }
        None => (
            styled(
                name,
                place,
                text("style"),
                flag("explode"),
                flag("allowReserved"),
            )?,
            value.get("schema"),
        ),
    };
    Ok(Parameter {
        name,
        place,
        is_required: place == ParameterLocation::Path || flag("required") == Some(true),
        form,
        schema,
        description: text("description"),
    })
}

/// The style of a parameter, by default `form` in queries and cookies and `simple` elsewhere.
fn styled(
    name: &str,
    place: ParameterLocation,
    style: Option<&str>,
    explode: Option<bool>,
    reserved: Option<bool>,
) -> Result<ValueForm, String> {
    let style = match (style, place) {
        (Some(style), _) => Style::parse(style).ok_or_else(|| {
            format!("its parameter `{name}` has the style `{style}`, which is not known")
        })?,
        (None, ParameterLocation::Query | ParameterLocation::Cookie) => Style::Form,
        (None, ParameterLocation::Path | ParameterLocation::Header) => Style::Simple,
    };
    Ok(ValueForm::Style {
        style,
        explode: explode.unwrap_or(style == Style::Form),
        reserved: reserved.unwrap_or(false),
    })
}

/// The text can be the name of a header (RFC 9110, 5.6.2).
fn is_token(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
