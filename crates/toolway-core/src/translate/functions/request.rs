//! A function as one HTTP request: `GET https://api.example.com/{function}/{city}?unit={unit}`.
//!
//! **Invariant:** an argument can never choose the host, leave its segment of the path, or add a parameter to
//! the query: whatever it holds is percent-encoded (RFC 3986, § 2.1). Because many servers decode a path before they
//! split it, one that has a segment `.` or `..` or a control character after any number of decodings is refused.

use std::collections::BTreeSet;

use http::Method;
use serde_json::Value;
use url::Url;

use super::template::Template;
use crate::translate::{paths::flaw, percent};
use toolway_protocol::tool::{CallError, JsonObject};

/// The methods that a function can have.
const METHODS: [Method; 6] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::HEAD,
];

/// The place that stands for the function's own name.
pub const FUNCTION: &str = "function";

/// How a function is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTemplate {
    method: Method,
    /// Scheme, host and port; no argument gets in here.
    origin: String,
    path: Template,
    /// Each `name=value` on its own; one whose argument is not given is left out.
    query: Vec<Template>,
}

/// A request that can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRequest {
    /// Its method.
    pub method: Method,
    /// Where to.
    pub url: Url,
    /// JSON, for the methods that have a body.
    pub body: Option<String>,
}

impl RequestTemplate {
    /// Reads `METHOD URL`, or a URL alone, which is requested by `method`.
    ///
    /// # Errors
    /// What is wrong with it, for the person who configured it.
    pub fn parse(text: &str, method: &Method) -> Result<RequestTemplate, String> {
        let (method, text) = match text.trim().split_once(char::is_whitespace) {
            Some((named, url)) => (parse_method(named)?, url.trim()),
            None => (method.clone(), text.trim()),
        };
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err("must begin with http:// or https://".to_owned());
        }
        let text = text.split('#').next().unwrap_or_default();
        let (whole_path, query) = text.split_once('?').unwrap_or((text, ""));
        let host = whole_path.find("//").map_or(0, |at| at + 2);
        let end = whole_path[host..].find('/');
        let end = end.map_or(whole_path.len(), |at| host + at);
        let (origin, path) = whole_path.split_at(end);
        if origin.contains(['{', '}']) {
            return Err("the host cannot come from an argument".to_owned());
        }
        let parsed = Url::parse(origin).map_err(|error| format!("is no URL: {error}"))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("must not hold a name or password; use a header for that".to_owned());
        }
        if let Some(why) = flaw(path) {
            return Err(why.to_owned());
        }
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Ok(RequestTemplate {
            method,
            origin: origin.to_owned(),
            path: Template::parse(path),
            query: pairs.map(Template::parse).collect(),
        })
    }

    /// Scheme, host and port of its URLs.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The arguments that it has a place for, without [`FUNCTION`].
    pub fn arguments(&self) -> BTreeSet<&str> {
        let names = self.query.iter().flat_map(Template::names);
        let names = self.path.names().chain(names);
        names.filter(|name| *name != FUNCTION).collect()
    }

    /// The URL where it is the same for all arguments, which are all in the body then.
    pub fn constant(&self, function: &str) -> Option<Url> {
        let is_constant = self.has_body() && self.arguments().is_empty();
        let url = is_constant.then(|| self.url(function, &JsonObject::new()));
        url?.ok()
    }

    /// Its method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Puts the arguments in their places. The others are the body, or the rest of the query where the method
    /// has no body.
    ///
    /// # Errors
    /// [`CallError::InvalidParams`] for an argument that the path needs and that cannot be put there.
    pub fn fill(&self, function: &str, mut rest: JsonObject) -> Result<FunctionRequest, CallError> {
        let url = self.url(function, &rest)?;
        for name in self.arguments() {
            rest.shift_remove(name);
        }
        rest.retain(|_, value| self.has_body() || !value.is_null());
        let (url, body) = match self.has_body() {
            true => (url, Some(body(&rest))),
            false => (with_query(url, &rest), None),
        };
        Ok(FunctionRequest {
            method: self.method.clone(),
            url,
            body,
        })
    }

    fn has_body(&self) -> bool {
        matches!(self.method, Method::POST | Method::PUT | Method::PATCH)
    }

    fn url(&self, function: &str, arguments: &JsonObject) -> Result<Url, CallError> {
        let value = |name: &str| match name {
            FUNCTION => Some(percent::value(function)),
            name => arguments
                .get(name)
                .and_then(as_text)
                .map(|it| percent::value(&it)),
        };
        let missing = |name: &str| value(name).is_none_or(|text| text.is_empty());
        if let Some(name) = self.path.names().find(|name| missing(name)) {
            return Err(unfit(name, "is needed, and must not be empty"));
        }
        let path = self.path.fill(value).unwrap_or_default();
        if let Some(why) = flaw(&path) {
            let leaves = |name: &&str| value(name).is_some_and(|text| flaw(&text).is_some());
            let name = self.path.names().find(leaves).or(self.path.names().last());
            return Err(unfit(name.unwrap_or_default(), why));
        }
        let pairs: Vec<String> = self
            .query
            .iter()
            .filter_map(|pair| pair.fill(value))
            .collect();
        let query = match pairs.is_empty() {
            true => String::new(),
            false => format!("?{}", pairs.join("&")),
        };
        Url::parse(&format!("{}{path}{query}", self.origin))
            .map_err(|error| unfit("", &format!("the URL cannot be made: {error}")))
    }
}

/// Arguments as the body of a request.
pub fn body(arguments: &JsonObject) -> String {
    serde_json::to_string(arguments).expect("arguments can be written as JSON")
}

/// Reads the name of a method that a function can have.
///
/// # Errors
/// What is wrong with it, for the person who configured it.
pub fn parse_method(text: &str) -> Result<Method, String> {
    let upper = text.to_ascii_uppercase();
    let known = METHODS.into_iter().find(|method| method.as_str() == upper);
    known.ok_or_else(|| {
        let known: Vec<&str> = METHODS.iter().map(Method::as_str).collect();
        format!("unknown method `{text}`; known are {}", known.join(", "))
    })
}

fn unfit(name: &str, message: &str) -> CallError {
    CallError::InvalidParams {
        path: match name {
            "" => String::new(),
            name => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
        },
        message: message.to_owned(),
        input_schema: Value::Null,
    }
}

/// An argument as a part of a URL; `None` for one that is not given. A list is joined by commas.
fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().filter_map(as_text).collect();
            Some(items.join(","))
        }
        other => Some(other.to_string()),
    }
}

/// A list is a parameter for each of its items, as most APIs read it.
fn with_query(mut url: Url, rest: &JsonObject) -> Url {
    if rest.is_empty() {
        return url;
    }
    let mut pairs = url.query_pairs_mut();
    for (name, value) in rest {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            value => std::slice::from_ref(value),
        };
        for text in items.iter().filter_map(as_text) {
            pairs.append_pair(name, &text);
        }
    }
    drop(pairs);
    url
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn fill(template: &str, arguments: &Value) -> Result<FunctionRequest, CallError> {
        let template = RequestTemplate::parse(template, &Method::POST).unwrap();
        template.fill("weather", arguments.as_object().unwrap().clone())
    }

    #[track_caller]
    fn check(template: &str, arguments: Value, request: &str) {
        let filled = fill(template, &arguments).unwrap();
        let body = filled
            .body
            .map(|body| format!(" {body}"))
            .unwrap_or_default();
        assert_eq!(format!("{} {}{body}", filled.method, filled.url), request);
    }

    #[track_caller]
    fn check_unfit(template: &str, arguments: Value, said: &str) {
        assert_eq!(fill(template, &arguments).unwrap_err().to_string(), said);
    }

    #[track_caller]
    fn check_refused(template: &str, said: &str) {
        let refused = RequestTemplate::parse(template, &Method::POST);
        assert_eq!(refused.unwrap_err(), said);
    }

    #[test]
    fn what_has_no_place_is_the_body_or_the_query() {
        check(
            "https://a/{function}",
            json!({"x": [1], "y": null}),
            r#"POST https://a/weather {"x":[1],"y":null}"#,
        );
        check("https://a", json!({}), "POST https://a/ {}");
        check(
            "PUT https://a/{x}",
            json!({"x": 5, "y": {"z": true}}),
            r#"PUT https://a/5 {"y":{"z":true}}"#,
        );
        check(
            "GET https://a:8/{x}?k=1&u={u}&v={v}",
            json!({"x": "b", "u": "c d", "v": null, "tags": ["p", "q&r"], "deep": {"a": 1}, "none": null, "ok": true}),
            "GET https://a:8/b?k=1&u=c%20d&tags=p&tags=q%26r&deep=%7B%22a%22%3A1%7D&ok=true",
        );
        check(
            "delete https://a/{x}",
            json!({"x": 1.5}),
            "DELETE https://a/1.5",
        );
    }

    #[test]
    fn a_url_without_an_argument_is_always_the_same() {
        let constant = |template: &str| {
            let template = RequestTemplate::parse(template, &Method::POST).unwrap();
            let arguments = json!({"x": [1], "y": null});
            let arguments = arguments.as_object().unwrap();
            let filled = template.fill("f g", arguments.clone());
            let constant = template.constant("f g")?;
            let request = FunctionRequest {
                method: template.method().clone(),
                url: constant.clone(),
                body: Some(body(arguments)),
            };
            assert_eq!(filled, Ok(request));
            Some(constant.to_string())
        };
        let same = Some("https://a/b/f%20g?c=1".to_owned());
        assert_eq!(constant("https://a/b/{function}?c=1"), same);
        assert_eq!(constant("PUT https://a/b/{function}?c=1"), same);
        assert_eq!(constant("https://a/{x}"), None);
        assert_eq!(constant("https://a?x={y}"), None);
        assert_eq!(constant("GET https://a"), None);
    }

    #[test]
    fn an_argument_stays_in_its_segment() {
        check(
            "GET https://a/{x}/end",
            json!({"x": "a/b?c#d%2e\\é"}),
            "GET https://a/a%2Fb%3Fc%23d%252e%5C%C3%A9/end",
        );
        check(
            "GET https://a/v{x}",
            json!({"x": ".."}),
            "GET https://a/v..",
        );
        check(
            "GET https://a/?q={x}",
            json!({"x": "1&y=2"}),
            "GET https://a/?q=1%26y%3D2",
        );
        let why = "a part of the path cannot be `.` or `..`, whichever way it is written";
        for dots in [
            ".", "..", "../admin", "a/../b", "..\\b", "%2e%2E", "..%2Fb", "..;/b",
        ] {
            let said = format!("/x: {why}");
            check_unfit("GET https://a/{x}/{y}", json!({"x": dots, "y": "c"}), &said);
        }
        let said = format!("/x: {why}");
        check_unfit("GET https://a/{x}{y}", json!({"x": ".", "y": "."}), &said);
        for control in ["..\0", "..\u{1}/x", "..\u{7f}", "a\nb", "..%00", "%2500"] {
            let said = "/x: a path cannot hold a control character, whichever way it is written";
            check_unfit("GET https://a/{x}/y", json!({"x": control}), said);
        }
    }

    #[test]
    fn the_path_needs_its_arguments() {
        let said = "/x: is needed, and must not be empty";
        check_unfit("https://a/{x}", json!({}), said);
        check_unfit("https://a/{x}", json!({"x": null}), said);
        check_unfit("https://a/{x}", json!({"x": ""}), said);
    }

    #[test]
    fn a_template_that_gives_the_host_away_is_refused() {
        check_refused("https://{host}/x", "the host cannot come from an argument");
        check_refused("https://a.{x}", "the host cannot come from an argument");
        check_refused("ftp://a", "must begin with http:// or https://");
        check_refused(
            "FETCH https://a",
            "unknown method `FETCH`; known are GET, POST, PUT, PATCH, DELETE, HEAD",
        );
        check_refused(
            "https://u:p@a/",
            "must not hold a name or password; use a header for that",
        );
        check_refused(
            "https://a/../b",
            "a part of the path cannot be `.` or `..`, whichever way it is written",
        );
        check_refused("https://", "is no URL: empty host");
    }

    proptest! {
        #[test]
        fn no_argument_changes_where_a_request_goes(x in ".*", y in ".*") {
            let arguments = json!({"x": x, "y": y});
            if let Ok(request) = fill("GET https://a.example:8443/p/{x}/q?y={y}&z=1", &arguments) {
                prop_assert_eq!(request.url.host_str(), Some("a.example"));
                prop_assert_eq!(request.url.port(), Some(8443));
                let segments: Vec<&str> = request.url.path_segments().unwrap().collect();
                prop_assert_eq!((segments.len(), segments[0], segments[2]), (3, "p", "q"));
                let pairs: Vec<(String, String)> = request.url.query_pairs().into_owned().collect();
                prop_assert_eq!(pairs, [("y".to_owned(), y), ("z".to_owned(), "1".to_owned())]);
                prop_assert!(request.url.fragment().is_none());
            }
        }
    }
}
