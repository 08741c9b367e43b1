//! An OpenAPI document as tools: each operation becomes one, with a [`Plan`] that makes its HTTP request.
//!
//! [`parse`] reads the text, [`read`] what it says. Everything here is pure. [`read`] never follows a reference out of the document, and a broken operation
//! costs itself alone: it is in [`ApiDescription::skipped`] with the reason. How arguments get their names is told in
//! `arguments`, how schemas change in `schemas`, how values are written into requests in `styles` and `body`.

use serde_json::Value;

use self::document::Document;
use toolway_protocol::tool::Tool;

mod arguments;
mod body;
mod definitions;
mod document;
mod keywords;
mod naming;
mod operations;
mod parameters;
mod plan;
mod schemas;
mod servers;
mod styles;
mod text;

pub use self::{
    body::RequestBody,
    plan::{HttpRequest, Plan},
    text::parse,
};

/// Longest document that should be read, in bytes of its text.
pub const MAX_DOCUMENT: usize = 32 << 20;

/// Most operations that become tools; those that come later in the document are skipped.
pub const MAX_OPERATIONS: usize = 5_000;

/// What an OpenAPI document offers.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiDescription {
    /// `info.title`.
    pub title: Option<String>,
    /// Where the API is: what is fixed, else the first absolute `http(s)` URL of `servers`, with the defaults of its variables
    /// and without a slash at its end; else that of the first path or operation that names one. `None` where
    /// the document says nothing, or only a path.
    pub base_url: Option<String>,
    /// What can be called, in the order of the document; at most [`MAX_OPERATIONS`], never none.
    pub operations: Vec<Operation>,
    /// What cannot.
    pub skipped: Vec<Skipped>,
}

/// One operation that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Method and path as the document has them: `GET /pets/{id}`.
    pub place: String,
    /// `operationId` as the document has it.
    pub id: Option<String>,
    /// How it is offered. Its name is 1–64 of `A-Z a-z 0-9 _ -` and unique in the document.
    pub tool: Tool,
    /// How it is called.
    pub plan: Plan,
}

/// An operation that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Method and path as the document has them.
    pub place: String,
    /// The name that its tool would have; `None` where this is about several.
    pub name: Option<String>,
    /// Why, for the person who configured it.
    pub reason: String,
}

/// What the configuration decides, and no model is asked for.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// Where the API is, whatever the document says.
    pub base_url: Option<String>,
    /// Names of headers that are sent with every request, in any case.
    pub headers: Vec<String>,
}

impl Fixed {
    fn has_header(&self, name: &str) -> bool {
        self.headers
            .iter()
            .any(|header| header.eq_ignore_ascii_case(name))
    }
}

/// Why nothing can be had from a document; for the person who configured it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The document is a list, a text or the like.
    #[error("it is no OpenAPI document: it is {0}, not an object with `openapi` and `paths`")]
    NotAnObject(&'static str),
    /// The document is of the version before 3.0.
    #[error(
        "it is a Swagger {0} document, and toolway reads OpenAPI 3.x; convert it, for example with \
         `npx swagger2openapi FILE -o openapi.json`, and name the new file"
    )]
    Swagger(String),
    /// Nothing says that the document is OpenAPI.
    #[error("it is no OpenAPI document: it has no `openapi: 3.x` at its top")]
    NoVersion,
    /// The document is of a version that is not known here.
    #[error("it says `openapi: {0}`, and toolway reads OpenAPI 3.x")]
    Version(String),
    /// There is nothing that could be called.
    #[error("it has no `paths`, so there is nothing to call")]
    NoPaths,
    /// There are operations, but none of them can be offered.
    #[error("none of its {count} operations can be offered; the first, {place}: {reason}")]
    NothingLeft {
        /// How many there are.
        count: usize,
        /// Where the first one is.
        place: String,
        /// Why that one cannot.
        reason: String,
    },
}

/// Reads a document of OpenAPI 3.0, 3.1 or a later 3.x, which is read as 3.1.
pub fn read(document: &Value, fixed: &Fixed) -> Result<ApiDescription, ReadError> {
    let document = Document::open(document)?;
    let base_url = servers::base_url(document.root.get("servers"))
        .or_else(|| operations::first_server(&document));
    let hosts: Vec<&str> = base_url
        .iter()
        .chain(&fixed.base_url)
        .map(String::as_str)
        .collect();
    let (operations, skipped) = operations::all(&document, fixed, &hosts)?;
    if operations.is_empty() {
        return Err(match skipped.first() {
            None => ReadError::NoPaths,
            Some(first) => ReadError::NothingLeft {
                count: skipped.len(),
                place: first.place.clone(),
                reason: first.reason.clone(),
            },
        });
    }
    let title = document.root.get("info").and_then(|info| info.get("title"));
    let base_url = fixed.base_url.clone().or(base_url);
    Ok(ApiDescription {
        title: title.and_then(Value::as_str).map(str::to_owned),
        base_url,
        operations,
        skipped,
    })
}

#[cfg(test)]
mod tests;
