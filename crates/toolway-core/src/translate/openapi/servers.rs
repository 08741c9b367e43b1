//! Where an API is, by its `servers`.

use serde_json::Value;
use url::Url;

/// The first absolute `http(s)` URL of a list of servers, without a slash at its end.
pub(super) fn base_url(servers: Option<&Value>) -> Option<String> {
    urls(servers).find(|url| is_absolute(url))
}

/// The path that an operation with servers of its own has before its path, where it has some. `hosts` are
/// URLs of the API's host, by the document and by the configuration.
///
/// An operation on another host than the API is not offered: what the configuration sends with every
/// request, keys above all, is meant for one host.
pub(super) fn own_path(servers: Option<&Value>, hosts: &[&str]) -> Result<Option<String>, String> {
    let Some(own) = base_url_or_path(servers) else {
        return Ok(None);
    };
    if !is_absolute(&own) {
        let path = own.trim_start_matches('/');
        return Ok(Some(match path {
            "" => String::new(),
            path => format!("/{path}"),
        }));
    }
    let broken = || format!("its server `{own}` is no URL");
    let url = Url::parse(&own).map_err(|_| broken())?;
    let origins = hosts.iter().filter_map(|host| Url::parse(host).ok());
    match origins
        .map(|host| host.origin())
        .any(|it| it == url.origin())
    {
        true => Ok(Some(url.path().trim_end_matches('/').to_owned())),
        false => Err(format!(
            "it is on another server; to have it, make another group with `base_url = \"{own}\"`"
        )),
    }
}

fn base_url_or_path(servers: Option<&Value>) -> Option<String> {
    base_url(servers).or_else(|| urls(servers).next())
}

fn is_absolute(url: &str) -> bool {
    let scheme = url
        .split_once("://")
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("http" | "https"))
}

/// The URLs of a list of servers, with the defaults of their variables; one that needs a value is left out.
fn urls(servers: Option<&Value>) -> impl Iterator<Item = String> {
    let servers = servers.and_then(Value::as_array).into_iter().flatten();
    servers.filter_map(|server| {
        let mut url = server.get("url")?.as_str()?.trim().to_owned();
        let variables = server.get("variables").and_then(Value::as_object);
        for (name, variable) in variables.into_iter().flatten() {
            let first = || variable.get("enum")?.get(0);
            if let Some(value) = variable.get("default").or_else(first) {
                url = url.replace(&format!("{{{name}}}"), &super::styles::text(value));
            }
        }
        url.truncate(url.trim_end_matches('/').len());
        (!url.contains(['{', '}', '?', '#', ' '])).then_some(url)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_absolute_server_is_taken_with_the_defaults_of_its_variables() {
        for (servers, expected) in [
            (
                json!([{"url": "https://a.example/v1/"}, {"url": "https://b.example"}]),
                Some("https://a.example/v1"),
            ),
            (
                json!([{"url": "/v1"}, {"url": "http://b.example"}]),
                Some("http://b.example"),
            ),
            (
                json!([{"url": "https://{region}.example:{port}/{path}", "variables": {
                    "region": {"default": "eu"}, "port": {"enum": ["8443"]}, "path": {"default": ""}}}]),
                Some("https://eu.example:8443"),
            ),
            (json!([{"url": "https://{tenant}.example"}]), None),
            (
                json!([{"url": "/"}, {"url": "//c.example"}, {"url": "ftp://d.example"}]),
                None,
            ),
            (json!({"url": "https://a.example"}), None),
        ] {
            assert_eq!(base_url(Some(&servers)).as_deref(), expected, "{servers}");
        }
    }

    #[test]
    fn an_operation_may_be_elsewhere_on_the_same_host_only() {
        let hosts = ["https://a.example/v1"];
        let own = |url: &str| own_path(Some(&json!([{"url": url}])), &hosts);
        assert_eq!(own("https://a.example/v2/"), Ok(Some("/v2".to_owned())));
        assert_eq!(own("/v3"), Ok(Some("/v3".to_owned())));
        assert_eq!(own("/"), Ok(Some(String::new())));
        assert!(own("https://uploads.example").is_err_and(|why| why.contains("another server")));
        assert!(own("https://a.example:8443").is_err());
        assert!(own("http://a.example").is_err());
        assert_eq!(own_path(None, &hosts), Ok(None));
    }
}
