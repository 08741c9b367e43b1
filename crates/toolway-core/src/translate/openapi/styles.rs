//! How values are written into paths, queries, headers and form bodies (OpenAPI, "Style Values").
//!
//! Where OpenAPI leaves a combination undefined, as lists of objects in a query, the inner value is JSON,
//! except where APIs expect something else: `deepObject` goes on inward (`a[b][0]=c`), and a list in an
//! exploded object is repeated.

use serde_json::Value;

use crate::translate::percent;

/// How one value is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueForm {
    /// As its style says.
    Style {
        style: Style,
        explode: bool,
        /// `allowReserved`: what RFC 3986 reserves is not encoded, as far as that does no harm.
        reserved: bool,
    },
    /// As JSON; a text as it is where the parameter is of another type.
    Content { is_json: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Form,
    Space,
    Pipe,
    DeepObject,
    Simple,
    Label,
    Matrix,
}

impl Style {
    pub(super) fn parse(name: &str) -> Option<Style> {
        Some(match name {
            "form" => Style::Form,
            "spaceDelimited" => Style::Space,
            "pipeDelimited" => Style::Pipe,
            "deepObject" => Style::DeepObject,
            "simple" => Style::Simple,
            "label" => Style::Label,
            "matrix" => Style::Matrix,
            _ => return None,
        })
    }
}

/// A value as plain text: a string as it is, what is made of parts as JSON.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn content(value: &Value, is_json: bool) -> String {
    if is_json {
        value.to_string()
    } else {
        text(value)
    }
}

/// A parameter of a query, a cookie or a form body: encoded `name=value` pairs, none for an empty list.
pub(super) fn pairs(name: &str, value: &Value, form: &ValueForm) -> Vec<String> {
    let (style, explode, reserved) = match form {
        ValueForm::Content { is_json } => {
            return vec![pair(
                &percent::value(name),
                &percent::value(&content(value, *is_json)),
            )];
        }
        ValueForm::Style {
            style,
            explode,
            reserved,
        } => (*style, *explode, *reserved),
    };
    let encoded = |value: &Value| match reserved {
        true => percent::reserved(&text(value)),
        false => percent::value(&text(value)),
    };
    let key = percent::value(name);
    let between = match style {
        Style::Space => "%20",
        Style::Pipe => "%7C",
        _ => ",",
    };
    match value {
        _ if style == Style::DeepObject => {
            let mut out = Vec::new();
            deep(name, value, &encoded, &mut out);
            out
        }
        Value::Null => Vec::new(),
        Value::Array(items) if explode => items.iter().map(|it| pair(&key, &encoded(it))).collect(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(encoded).collect();
            joined(&key, &items, between)
        }
        Value::Object(members) if explode => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let mut out = Vec::new();
            for (name, value) in members {
                let key = percent::value(name);
                match value {
                    Value::Array(items) => {
                        out.extend(items.iter().map(|it| pair(&key, &encoded(it))));
                    }
                    single => out.push(pair(&key, &encoded(single))),
                }
            }
            out
        }
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let items: Vec<String> = members
                .flat_map(|(name, value)| [percent::value(name), encoded(value)])
                .collect();
            joined(&key, &items, between)
        }
        single => vec![pair(&key, &encoded(single))],
    }
}

fn pair(name: &str, value: &str) -> String {
    format!("{name}={value}")
}

fn joined(name: &str, items: &[String], between: &str) -> Vec<String> {
    match items.is_empty() {
        true => Vec::new(),
        false => vec![pair(name, &items.join(between))],
    }
}

/// `a[b][0]=c`, to any depth that arguments have.
fn deep(name: &str, value: &Value, encoded: &impl Fn(&Value) -> String, out: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::Object(members) => {
            for (key, value) in members {
                deep(&format!("{name}[{key}]"), value, encoded, out);
            }
        }
        Value::Array(items) => {
            for (place, value) in items.iter().enumerate() {
                deep(&format!("{name}[{place}]"), value, encoded, out);
            }
        }
        single => out.push(pair(&percent::value(name), &encoded(single))),
    }
}

/// A parameter in a path, encoded; only the style's own `,`, `.`, `;` and `=` are left as they are.
pub(super) fn segment(name: &str, value: &Value, form: &ValueForm) -> String {
    let (style, explode) = match form {
        ValueForm::Content { is_json } => return percent::value(&content(value, *is_json)),
        ValueForm::Style { style, explode, .. } => (*style, *explode),
    };
    let encoded = |value: &Value| percent::value(&text(value));
    let key = percent::value(name);
    let label = if explode { "." } else { "," };
    match (style, value) {
        (Style::Label, value) => format!(".{}", list(value, explode, label, &encoded)),
        (Style::Matrix, Value::Array(items)) if explode => {
            let items = items.iter().map(|it| format!(";{key}={}", encoded(it)));
            items.collect()
        }
        (Style::Matrix, Value::Object(_)) if explode => {
            format!(";{}", list(value, explode, ";", &encoded))
        }
        (Style::Matrix, value) => format!(";{key}={}", list(value, explode, ",", &encoded)),
        (_, value) => list(value, explode, ",", &encoded),
    }
}

/// A parameter in a header, as it is. The caller sees to it that the text can stand in one.
pub(super) fn header(value: &Value, form: &ValueForm) -> String {
    match form {
        ValueForm::Content { is_json } => content(value, *is_json),
        ValueForm::Style { explode, .. } => list(value, *explode, ",", &text),
    }
}

/// The parts of a value with something between them; the members of an object as `a,1`, exploded as `a=1`.
fn list(
    value: &Value,
    explode: bool,
    between: &str,
    encoded: &impl Fn(&Value) -> String,
) -> String {
    let parts: Vec<String> = match value {
        Value::Array(items) => items.iter().map(encoded).collect(),
        Value::Object(members) => {
            let equals = if explode { "=" } else { between };
            let member = |(name, value): (&String, &Value)| {
                format!(
                    "{}{equals}{}",
                    encoded(&Value::from(name.as_str())),
                    encoded(value)
                )
            };
            members.iter().map(member).collect()
        }
        single => return encoded(single),
    };
    parts.join(between)
}

#[cfg(test)]
mod tests;
