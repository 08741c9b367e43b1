use reqwest::{Method, Response};

use crate::{
    harness::{Toolway, toolway},
    model::Model,
};

async fn start(config: &str) -> Toolway {
    toolway(Model::start([]).await).config(config).start().await
}

/// Sends a request with these lines in its head, and gives the status and the answer.
async fn send(gw: &Toolway, target: &str, lines: &[&str]) -> (u16, String) {
    let lines = lines.join("\r\n");
    gw.raw(&format!(
        "GET {target} HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n"
    ))
    .await
}

async fn ask(gw: &Toolway, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = gw.http.request(method, format!("{}{path}", gw.base));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

/// What a browser asks before a page of this origin sends a key.
async fn preflight(gw: &Toolway, path: &str, origin: &str) -> Response {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,content-type",
        ),
        ("sec-fetch-site", "cross-site"),
    ];
    ask(gw, Method::OPTIONS, path, &headers).await
}

#[tokio::test]
async fn open_to_everybody_it_is_still_closed_to_names_of_others() {
    let gw = start(
        "bind = \"0.0.0.0:4242\"\nallow_anonymous = true\nallowed_hosts = [\"gateway.example\"]\n",
    )
    .await;
    let (status, answer) = send(&gw, "/v1/models", &["Host: rebound.example:4242"]).await;
    assert_eq!(status, 403);
    assert!(answer.contains("`rebound.example`"), "{answer}");
    assert!(answer.contains("`allowed_hosts`"), "{answer}");
    for host in ["gateway.example:4242", "192.0.2.7:4242", "localhost"] {
        let (status, answer) = send(&gw, "/v1/models", &[&format!("Host: {host}")]).await;
        assert_eq!(status, 200, "{answer}");
    }
    let page = ["Host: 192.0.2.7:4242", "Origin: https://evil.example"];
    assert_eq!(send(&gw, "/v1/models", &page).await.0, 403);
    gw.join().await;
}

#[tokio::test]
async fn a_request_that_names_two_hosts_is_refused() {
    let gw = start("").await;
    let own = "Host: localhost";
    for (target, lines, expected) in [
        ("/health", vec![own, "Host: localhost"], 400),
        ("/health", vec![own, "Host: evil.example"], 400),
        ("http://evil.example/health", vec![own], 400),
        (
            "http://evil.example/health",
            vec!["Host: evil.example"],
            403,
        ),
        ("http://localhost/health", vec![own], 200),
    ] {
        let (status, answer) = send(&gw, target, &lines).await;
        assert_eq!(status, expected, "{target} {lines:?}: {answer}");
    }
    gw.join().await;
}

#[tokio::test]
async fn only_probes_of_http_1_0_need_no_host() {
    for config in ["", "api_keys = [\"k\"]\n"] {
        let gw = start(config).await;
        for (path, version, expected) in [
            ("/livez", "1.0", 200),
            ("/readyz", "1.0", 200),
            ("/health", "1.0", 200),
            ("/livez", "1.1", 400),
            ("/v1/models", "1.1", 400),
            ("/nothing", "1.1", 400),
        ] {
            let request = format!("GET {path} HTTP/{version}\r\nConnection: close\r\n\r\n");
            let (status, answer) = gw.raw(&request).await;
            assert_eq!(status, expected, "{path}: {answer}");
        }
        let (status, _) = gw.raw("GET /tools HTTP/1.0\r\n\r\n").await;
        assert_eq!(status, if config.is_empty() { 403 } else { 401 });
        gw.join().await;
    }
}

#[tokio::test]
async fn what_another_site_sends_or_loads_is_refused() {
    let gw = start("cors_origins = [\"https://app.example\"]\n").await;
    let cross = ("sec-fetch-site", "cross-site");
    for (headers, expected) in [
        (vec![cross], 403),
        (vec![cross, ("origin", "https://evil.example")], 403),
        (vec![cross, ("origin", "https://app.example")], 200),
        (vec![("sec-fetch-site", "none")], 200),
    ] {
        let response = ask(&gw, Method::GET, "/v1/models", &headers).await;
        assert_eq!(response.status(), expected, "{headers:?}");
    }
    gw.join().await;
}

#[tokio::test]
async fn no_preflight_is_sent_upstream_or_allowed_by_default() {
    let gw = start("").await;
    for path in ["/v1/files", "/v1/chat/completions", "/mcp", "/health"] {
        for origin in ["https://app.example", "http://localhost:3000"] {
            let response = preflight(&gw, path, origin).await;
            assert_eq!(response.status(), 403, "{path} {origin}");
            assert!(
                !response
                    .headers()
                    .contains_key("access-control-allow-origin")
            );
            let said = response.text().await.unwrap();
            assert!(said.contains("`cors_origins`"), "{said}");
        }
    }
    gw.join().await;
}

#[tokio::test]
async fn a_listed_page_asks_without_a_key_and_reads_every_answer() {
    let gw = start("api_keys = [\"k\"]\ncors_origins = [\"https://app.example\"]\n").await;
    for path in ["/v1/files", "/v1/chat/completions", "/mcp", "/tools"] {
        let response = preflight(&gw, path, "https://app.example").await;
        assert_eq!(response.status(), 204, "{path}");
        let headers = response.headers();
        assert_eq!(
            headers["access-control-allow-origin"],
            "https://app.example"
        );
        assert_eq!(
            headers["access-control-allow-headers"],
            "authorization,content-type"
        );
        let methods = headers["access-control-allow-methods"].to_str().unwrap();
        assert!(
            methods.contains("POST") && methods.contains("DELETE"),
            "{methods}"
        );
        let other = preflight(&gw, path, "https://evil.example").await;
        assert_eq!(other.status(), 403, "{path}");
    }
    let origin = ("origin", "https://app.example");
    for (key, path, expected) in [
        ("Bearer k", "/v1/models", 200),
        ("Bearer k", "/v1/files", 201),
        ("Bearer k", "/nothing", 404),
        ("Bearer wrong", "/v1/models", 401),
        ("Bearer wrong", "/mcp", 401),
    ] {
        let response = ask(&gw, Method::GET, path, &[origin, ("authorization", key)]).await;
        assert_eq!(response.status(), expected, "{path}");
        let headers = response.headers();
        assert_eq!(
            headers["access-control-allow-origin"],
            "https://app.example"
        );
        let exposed = headers["access-control-expose-headers"].to_str().unwrap();
        for name in ["x-request-id", "mcp-session-id", "*"] {
            assert!(exposed.contains(name), "{exposed}");
        }
        assert!(headers["vary"].to_str().unwrap().contains("Origin"));
    }
    let response = ask(
        &gw,
        Method::GET,
        "/v1/models",
        &[("authorization", "Bearer k")],
    )
    .await;
    assert!(
        !response
            .headers()
            .contains_key("access-control-allow-origin")
    );
    gw.join().await;
}
