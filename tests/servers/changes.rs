//! Tools that change while the server runs.

use serde_json::{Value, json};

use crate::harness::Rig;

fn one_tool(name: &str) -> Value {
    json!([{"name": name, "inputSchema": {"type": "object"}}])
}

async fn a_burst_is_one_refresh(script: Value) {
    let rig = Rig::recording(script).await;
    let mut watched = rig.servers.subscribe();
    watched.mark_unchanged();
    let reads = rig.recorded("tools/list");
    rig.act(json!({"do": "change", "tools": one_tool("new"), "times": 100}))
        .await
        .unwrap();
    watched.changed().await.unwrap();
    assert_eq!(rig.tool_names(), ["new"]);
    // A busy machine may stretch the burst over two or three pauses, and not over a hundred.
    let extra = rig.recorded("tools/list") - reads;
    assert!((1..10).contains(&extra), "{extra} reads of the list");
}

#[tokio::test]
async fn a_burst_of_changes_is_one_refresh() {
    a_burst_is_one_refresh(json!({})).await;
}

#[tokio::test]
async fn a_modern_server_tells_of_changes_by_subscription() {
    a_burst_is_one_refresh(json!({"modern": true, "versions": []})).await;
}

#[tokio::test]
async fn a_change_after_a_change_is_seen() {
    let rig = Rig::scripted(json!({})).await;
    for name in ["a", "b", "c"] {
        rig.act(json!({"do": "change", "tools": one_tool(name)}))
            .await
            .unwrap();
        rig.until("the new tool is offered", |rig| rig.tool_names() == [name])
            .await;
    }
}

#[tokio::test]
async fn a_list_that_did_not_change_wakes_nobody() {
    let rig = Rig::recording(json!({})).await;
    let mut watched = rig.servers.subscribe();
    watched.mark_unchanged();
    let reads = rig.recorded("tools/list");
    rig.act(json!({"do": "change"})).await.unwrap();
    rig.until("the list is read again", |rig| {
        rig.recorded("tools/list") > reads
    })
    .await;
    rig.act(json!({"do": "change", "tools": one_tool("new")}))
        .await
        .unwrap();
    watched.changed().await.unwrap();
    assert_eq!(
        rig.tool_names(),
        ["new"],
        "the first waking is the real change"
    );
}

#[tokio::test]
async fn a_refresh_that_fails_leaves_the_old_list() {
    let rig = Rig::recording(json!({})).await;
    let reads = rig.recorded("tools/list");
    rig.act(json!({"do": "change", "tools": one_tool("new"), "list_error": true}))
        .await
        .unwrap();
    rig.until("the list is read again", |rig| {
        rig.recorded("tools/list") > reads
    })
    .await;
    // The next call is answered after the failed list was.
    rig.act(json!({})).await.unwrap();
    assert_eq!(rig.tool_names(), ["act"]);
    rig.act(json!({"do": "change", "list_error": false}))
        .await
        .unwrap();
    rig.until("the new list is read", |rig| rig.tool_names() == ["new"])
        .await;
}
