//! What servers have besides tools: prompts, resources, templates, logs, and resources that are watched.

use serde_json::{Value, json};
use toolway::upstream::mcp::{ServerEvent, Servers};
use toolway_core::catalog::ServerFeatures;
use toolway_protocol::tool::JsonObject;

use crate::{
    harness::{PATIENCE, Rig, id, options, scripted},
    site::{Script, Site},
};

fn object(value: Value) -> JsonObject {
    value.as_object().cloned().unwrap_or_default()
}

fn features(rig: &Rig) -> ServerFeatures {
    rig.servers.features().borrow()[0].clone()
}

fn names(entries: &[JsonObject], key: &str) -> Vec<String> {
    let name = |entry: &JsonObject| entry[key].as_str().unwrap_or_default().to_owned();
    entries.iter().map(name).collect()
}

/// A server with two pages of prompts, a resource and a template; some entries are broken.
fn rich() -> Value {
    json!({
        "capabilities": {
            "tools": {}, "logging": {}, "x-new": 1,
            "prompts": {"listChanged": true}, "resources": {"listChanged": true, "subscribe": true},
        },
        "instructions": "use it",
        "results": {
            "prompts/list": [
                {"prompts": [{"name": "a", "x-new": null, "arguments": [{"name": "q", "x": 1}]}, {"title": "broken"}]},
                {"prompts": [{"name": "b"}]},
            ],
            "resources/list": {"resources": [{"uri": "a:1", "name": "one", "icons": [{"src": "x"}]}]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a:{n}", "name": "n"}]},
            "resources/read": {"contents": [{"uri": "a:1", "text": "t", "x-new": 1}], "y": null},
            "resources/subscribe": {}, "resources/unsubscribe": {}, "logging/setLevel": {},
        },
    })
}

fn rich_and_modern() -> Value {
    let mut script = rich();
    script["modern"] = json!(true);
    script["versions"] = json!([]);
    script
}

#[tokio::test]
async fn everything_a_server_has_is_known_as_it_said_it() {
    for (script, version) in [(rich(), "2025-11-25"), (rich_and_modern(), "2026-07-28")] {
        let rig = Rig::scripted(script.clone()).await;
        rig.until("all is listed", |rig| {
            let features = features(rig);
            features.prompts.len() == 2 && features.templates.len() == 1
        })
        .await;
        let features = features(&rig);
        assert_eq!(features.protocol_version.as_deref(), Some(version));
        assert_eq!(features.capabilities, script["capabilities"]);
        assert_eq!(features.instructions.as_deref(), Some("use it"));
        assert_eq!(features.server_info["name"], "scripted");
        assert_eq!(names(&features.prompts, "name"), ["a", "b"]);
        let first = &script["results"]["prompts/list"][0]["prompts"][0];
        assert_eq!(Value::Object(features.prompts[0].clone()), *first);
        let resource = &script["results"]["resources/list"]["resources"][0];
        assert_eq!(Value::Object(features.resources[0].clone()), *resource);
    }
}

#[tokio::test]
async fn a_server_without_them_is_not_asked_for_them() {
    let rig = Rig::recording(json!({})).await;
    rig.act(json!({})).await.unwrap();
    for method in ["prompts/list", "resources/list", "logging/setLevel"] {
        assert_eq!(rig.recorded(method), 0, "{method}");
    }
    assert!(features(&rig).prompts.is_empty());
}

#[tokio::test]
async fn a_server_that_cannot_list_them_is_ready_all_the_same() {
    let mut script = rich();
    script["results"] = json!({"resources/list": {"resources": [{"uri": "a:1"}]}});
    let rig = Rig::scripted(script).await;
    rig.act(json!({})).await.unwrap();
    rig.until("the resources are listed without templates", |rig| {
        features(rig).resources.len() == 1
    })
    .await;
    assert!(features(&rig).prompts.is_empty());
}

#[tokio::test]
async fn a_change_of_prompts_and_resources_is_seen() {
    for script in [rich(), rich_and_modern()] {
        let rig = Rig::recording(script).await;
        rig.until("all is listed", |rig| {
            let features = features(rig);
            features.prompts.len() == 2 && features.templates.len() == 1
        })
        .await;
        let reads = rig.recorded("prompts/list");
        let new = json!({"prompts/list": {"prompts": [{"name": "new"}]}});
        let method = "notifications/prompts/list_changed";
        // A modern server tells only those who listen already.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while names(&features(&rig).prompts, "name") != ["new"] {
            assert!(tokio::time::Instant::now() < deadline);
            rig.act(json!({"do": "change", "results": new, "method": method, "times": 20}))
                .await
                .unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        }
        assert!(rig.recorded("prompts/list") - reads < 12, "a burst is one");

        let new = json!({"resources/list": {"resources": []}});
        let method = "notifications/resources/list_changed";
        rig.act(json!({"do": "change", "results": new, "method": method}))
            .await
            .unwrap();
        rig.until("the resource is gone", |rig| {
            features(rig).resources.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn what_a_server_had_stays_while_it_is_away() {
    let rig = Rig::scripted(rich()).await;
    rig.until("all is listed", |rig| {
        let features = features(rig);
        features.prompts.len() == 2 && features.resources.len() == 1
    })
    .await;
    let _ = rig.act(json!({"do": "exit"})).await;
    assert_eq!(features(&rig).prompts.len(), 2);
    assert_eq!(features(&rig).resources.len(), 1);
}

#[tokio::test]
async fn a_resource_is_read_raw() {
    for script in [rich(), rich_and_modern()] {
        let rig = Rig::scripted(script.clone()).await;
        let params = object(json!({"uri": "a:1"}));
        let read = rig
            .servers
            .request(&id("s"), "resources/read", &params, options())
            .await;
        assert_eq!(read.unwrap(), script["results"]["resources/read"]);
    }
}

#[tokio::test]
async fn a_request_of_no_server_is_an_error() {
    let servers = Servers::start(vec![scripted(json!({}))]);
    let error = servers
        .request(&id("x"), "resources/read", &JsonObject::new(), options())
        .await
        .unwrap_err();
    assert!(error.is_unsent());
    assert_eq!(error.to_string(), "there is no server `x`");
}

async fn updated(rig: &Rig, uri: &str) {
    let params = json!({"uri": uri, "x-new": 1});
    let method = "notifications/resources/updated";
    rig.act(json!({"do": "notify", "method": method, "params": params}))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_watched_resource_is_subscribed_to_once_and_until_nobody_watches() {
    let rig = Rig::recording(rich()).await;
    let mut events = rig.servers.events();
    let one = rig.servers.watch_resource(&id("s"), "a:1").await.unwrap();
    let other = rig.servers.watch_resource(&id("s"), "a:1").await.unwrap();
    assert_eq!(rig.recorded("resources/subscribe"), 1);
    updated(&rig, "a:1").await;
    let Ok(ServerEvent::ResourceUpdated { uri, params, .. }) = events.recv().await else {
        panic!("the update should be told")
    };
    assert_eq!((uri.as_str(), &params["x-new"]), ("a:1", &json!(1)));

    drop(one);
    rig.act(json!({})).await.unwrap();
    assert_eq!(rig.recorded("resources/unsubscribe"), 0);
    drop(other);
    rig.until("it is unsubscribed from", |rig| {
        rig.recorded("resources/unsubscribe") == 1
    })
    .await;
}

#[tokio::test]
async fn a_modern_server_is_listened_to_for_what_is_watched() {
    let rig = Rig::recording(rich_and_modern()).await;
    let mut events = rig.servers.events();
    let _one = rig.servers.watch_resource(&id("s"), "a:1").await.unwrap();
    let two = rig.servers.watch_resource(&id("s"), "a:2").await.unwrap();
    updated(&rig, "a:2").await;
    assert!(
        matches!(events.recv().await, Ok(ServerEvent::ResourceUpdated { uri, .. }) if uri == "a:2")
    );
    drop(two);
    rig.until("it is listened to without the second", |rig| {
        let record = rig.record();
        let last = record
            .iter()
            .rev()
            .find(|it| it["method"] == "subscriptions/listen");
        last.is_some_and(|it| {
            it["params"]["notifications"]["resourceSubscriptions"] == json!(["a:1"])
        })
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_a_server_gave_up_is_asked_for_again() {
    let mut script = rich_and_modern();
    script["listens_to_one"] = json!(true);
    let rig = Rig::recording(script).await;
    let _one = rig.servers.watch_resource(&id("s"), "a:1").await.unwrap();
    let _two = rig.servers.watch_resource(&id("s"), "a:2").await.unwrap();
    // The server takes the later of the two alone, and the first watch is still held.
    let error = rig
        .servers
        .watch_resource(&id("s"), "a:1")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "protocol_error", "{error}");
}

#[tokio::test]
async fn what_is_watched_is_watched_again_after_a_restart() {
    for (script, method) in [
        (rich(), "resources/subscribe"),
        (rich_and_modern(), "subscriptions/listen"),
    ] {
        let rig = Rig::recording(script).await;
        let _watch = rig.servers.watch_resource(&id("s"), "a:1").await.unwrap();
        let about_it = |rig: &Rig| {
            let record = rig.record();
            let about = record
                .iter()
                .filter(|it| it["method"] == method && it["params"].to_string().contains("a:1"));
            about.count()
        };
        assert_eq!(about_it(&rig), 1);
        let _ = rig.act(json!({"do": "exit"})).await;
        rig.until("it is watched again", |rig| about_it(rig) == 2)
            .await;
    }
}

#[tokio::test]
async fn a_resource_that_cannot_be_watched_is_an_error_that_says_so() {
    let mut script = rich();
    script["results"]
        .as_object_mut()
        .unwrap()
        .remove("resources/subscribe");
    let rig = Rig::scripted(script).await;
    let error = rig
        .servers
        .watch_resource(&id("s"), "a:1")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "protocol_error");
    assert_eq!(error.to_string(), "no resources/subscribe");
}

#[tokio::test]
async fn the_log_level_is_told_now_and_after_a_restart() {
    let rig = Rig::recording(rich()).await;
    rig.act(json!({})).await.unwrap();
    assert_eq!(rig.recorded("logging/setLevel"), 0, "nobody wants any");
    rig.servers.set_log_level(Some("debug"));
    rig.until("the level is told", |rig| {
        rig.recorded("logging/setLevel") == 1
    })
    .await;
    let _ = rig.act(json!({"do": "exit"})).await;
    rig.until("it is told again", |rig| {
        rig.recorded("logging/setLevel") == 2
    })
    .await;
    let levels: Vec<_> = rig
        .record()
        .into_iter()
        .filter(|it| it["method"] == "logging/setLevel")
        .map(|it| it["params"]["level"].clone())
        .collect();
    assert_eq!(levels, ["debug", "debug"]);
}

#[tokio::test]
async fn a_modern_server_is_told_no_log_level() {
    let rig = Rig::recording(rich_and_modern()).await;
    rig.servers.set_log_level(Some("debug"));
    rig.act(json!({})).await.unwrap();
    assert_eq!(rig.recorded("logging/setLevel"), 0);
}

#[tokio::test]
async fn a_session_that_was_renewed_is_told_everything_again() {
    let site = Site::start(Script {
        capabilities: Some(json!({"tools": {}, "logging": {}, "resources": {"subscribe": true}})),
        ..Script::default()
    })
    .await;
    let rig = Rig::start(vec![site.config("/mcp", None)]).await;
    rig.servers.set_log_level(Some("error"));
    let _watch = rig.servers.watch_resource(&id("s"), "a:1").await.unwrap();
    rig.until("the level is told", |_| {
        site.got("logging/setLevel").len() == 1
    })
    .await;
    rig.act(json!({"do": "forget"})).await.unwrap();
    rig.act(json!({})).await.unwrap();
    rig.until("both are told again", |_| {
        site.got("logging/setLevel").len() > 1 && site.got("resources/subscribe").len() > 1
    })
    .await;
    // The second is the one that `forget` ended.
    let session = |method: &str| {
        let (headers, _) = site.got(method).pop().unwrap();
        headers["mcp-session-id"].clone()
    };
    assert_eq!(session("logging/setLevel"), "session-3");
    assert_eq!(session("resources/subscribe"), "session-3");
    assert_eq!(rig.health().restarts, 0);
}
