//! Where and for whom it listens.

use super::*;

const OPEN: &str = "bind: 0.0.0.0:80 can be reached by others, who could use your keys and \
                    tools; set `api_keys` or `[keys.NAME]`, or `allow_anonymous = true` if that is meant";

#[test]
fn it_is_closed_off_loopback() {
    refused("bind = '0.0.0.0:80'", OPEN);
    refused("bind = '0.0.0.0:80'\napi_keys = []", OPEN);
    ok("bind = '0.0.0.0:80'\napi_keys = ['env:KEY']");
    ok("bind = '0.0.0.0:80'\nallow_anonymous = true");
    ok("bind = '[::1]:80'");
    ok("bind = '[::ffff:127.0.0.1]:80'");
}

#[test]
fn a_key_that_is_missing_is_no_open_door() {
    refused(
        "bind = '0.0.0.0:80'\napi_keys = ['env:GONE']",
        "api_keys[0]: the environment variable `GONE` is not set",
    );
    refused("api_keys = ['env:EMPTY']", "api_keys[0]: is empty");
}

#[test]
fn a_host_with_a_scheme_is_refused() {
    refused(
        "allowed_hosts = ['ok.example', 'https://x']",
        "allowed_hosts[1]: `https://x` is no host name; write it without `https://` and without a path",
    );
}

#[test]
fn a_host_that_no_request_can_name_is_refused() {
    let with = |host: &str| format!("allowed_hosts = ['{host}']");
    for host in ["gw.example", "*", "192.0.2.1", "[::1]"] {
        assert_eq!(ok(&with(host)).server.allowed_hosts, [host]);
    }
    let any = "`*` stands for any host alone; list each name";
    let port = "write it without its port, as `gw.example`, which holds for every port";
    for (host, instead) in [
        ("*.example", any),
        ("gw.example:*", any),
        ("gw.example:80", port),
        ("gw.example:", port),
        ("::1", "write it as `[::1]`"),
    ] {
        let problem = format!("allowed_hosts[0]: `{host}` matches nothing: {instead}");
        refused(&with(host), &problem);
    }
}

#[test]
fn an_origin_is_written_as_a_browser_does() {
    let with = |origin: &str| format!("cors_origins = ['{origin}']");
    for origin in [
        "https://app.example",
        "http://localhost:3000",
        "chrome-extension://abc",
    ] {
        assert_eq!(ok(&with(origin)).server.cors_origins, [origin]);
    }
    for origin in [
        "app.example",
        "https://app.example/",
        "https://app.example:443",
        "https://App.example",
        "null",
    ] {
        refused(
            &with(origin),
            &format!(
                "cors_origins[0]: `{origin}` is no origin as browsers write it; write for example \
                 `https://app.example` or `http://localhost:3000`, with nothing behind it"
            ),
        );
    }
    refused(
        &with("https://*.example"),
        "cors_origins[0]: `*` stands for any origin alone, and for nothing within one; list each origin",
    );
    refused(
        &with("*"),
        "cors_origins[0]: any page could use your tools; list the origins, or set `api_keys`",
    );
    ok(&format!("api_keys = ['env:KEY']\n{}", with("*")));
}

#[test]
fn keys_stay_keys_where_everybody_is_meant() {
    warned(
        "allow_anonymous = true\napi_keys = ['env:KEY']\n[[upstreams]]\nbase_url = 'http://a/v1'",
        "allow_anonymous: has no effect beside `api_keys`: every client needs a key",
    );
}

#[test]
fn a_key_that_everybody_spends_is_a_warning() {
    warned(
        indoc! {"
            bind = '0.0.0.0:80'
            allow_anonymous = true
            [[upstreams]]
            name = 'a'
            base_url = 'http://a/v1'
            api_key = 'env:KEY'
        "},
        "allow_anonymous: everybody who reaches 0.0.0.0:80 spends the key of upstream `a`",
    );
}

#[test]
fn a_provider_without_a_key_behind_keys_is_a_warning() {
    let with = |upstream: &str| format!("api_keys = ['env:KEY']\n[[upstreams]]\n{upstream}");
    warned(
        &with("name = 'a'\nbase_url = 'https://a/v1'"),
        "upstreams[0].api_key: `a` gets no key at all: with `api_keys` the clients' header holds a \
         key of this gateway, which is not passed on",
    );
    warned(
        &with("base_url = 'https://a/v1'\nheaders = { Authorization = 'env:KEY' }"),
        "",
    );
    warned(&with("base_url = 'http://ollama:11434/v1'"), "");
}

#[test]
fn the_log_is_checked() {
    refused(
        "log = 'loud'",
        "log: `loud` is no level (error, warn, info, debug, trace) and no list of TARGET=LEVEL",
    );
    refused(
        "log_format = 'jsn'",
        "log_format: unknown format `jsn`; did you mean `json`?",
    );
}
