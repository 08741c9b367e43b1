//! Keep-alives, progress on request, hang-ups and many clients at once
//! (design.md, "What the client sees", points 6 and 8).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    harness::toolway,
    model::{Model, Then, call, events, say},
    tools::{Does, tools},
};

fn held() -> [crate::model::Reply; 2] {
    [call(&[("c", "s__hold", json!({"x": 1}))]), say("done")]
}

#[tokio::test]
async fn a_comment_goes_out_while_a_tool_runs() {
    let gw = toolway(Model::start(held()).await)
        .config("[loop]\nkeepalive = \"100ms\"\n")
        .server("s", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let mut live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(1).await;
    live.until(": keep-alive\n\n: keep-alive\n\n").await;
    assert!(
        !live.so_far().contains("toolway"),
        "no progress for those who did not ask"
    );
    gw.servers[0].let_go();
    assert_eq!(live.end().await.text(), "done");
    gw.join().await;
}

#[tokio::test]
async fn progress_travels_on_chunks_without_choices() {
    for by_header in [true, false] {
        let gw = toolway(Model::start(held()).await)
            .server("s", tools().tool("hold", Does::Holds))
            .start()
            .await;
        let mut live = if by_header {
            gw.live(json!({}), &[("x-toolway-progress", "on")]).await
        } else {
            gw.live(json!({"toolway": {"progress": "on"}}), &[]).await
        };
        live.until("half way").await;
        gw.servers[0].let_go();
        let answer = live.end().await;
        let notes: Vec<&Value> = answer
            .chunks
            .iter()
            .filter(|chunk| chunk.get("toolway").is_some())
            .collect();
        assert!(
            notes
                .iter()
                .all(|chunk| chunk["choices"] == json!([]) && chunk["id"] == "chatcmpl-1")
        );
        let kinds: Vec<&str> = notes
            .iter()
            .map(|chunk| chunk["toolway"]["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["call_started", "call_progress", "call_finished"]);
        let started = &notes[0]["toolway"];
        assert_eq!(started["name"], "s__hold");
        assert_eq!(started["arguments"], json!({"x": 1}));
        assert_eq!(notes[1]["toolway"]["message"], "half way");
        assert_eq!(notes[2]["toolway"]["status"], "ok");
        assert_eq!(answer.text(), "done");
        gw.join().await;
    }
}

#[tokio::test]
async fn open_webui_gets_its_own_form() {
    let gw = toolway(Model::start(held()).await)
        .server("s", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let live = gw
        .live(json!({}), &[("x-toolway-progress", "open-webui")])
        .await;
    gw.servers[0].was_called(1).await;
    gw.servers[0].let_go();
    let answer = live.end().await;
    let events: Vec<&Value> = answer
        .chunks
        .iter()
        .filter_map(|chunk| chunk.get("event"))
        .collect();
    assert_eq!(events[0]["type"], "status");
    assert_eq!(events[0]["data"]["done"], false);
    assert_eq!(events.last().unwrap()["data"]["done"], true);
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_the_tool_within_a_second() {
    let gw = toolway(Model::start(held()).await)
        .server("s", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(1).await;
    drop(live);
    timeout(Duration::from_secs(1), gw.servers[0].was_cancelled())
        .await
        .expect("cancelled within a second");
    assert_eq!(gw.model.asked().len(), 1, "the model is not asked again");
    gw.join().await;
}

#[tokio::test]
async fn a_plain_client_that_hangs_up_cancels_the_tool_within_a_second() {
    let gw = toolway(Model::start(held()).await)
        .server("s", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let asking = gw.send(json!({}), &[]);
    tokio::select! {
        _ = asking => panic!("nothing was let go"),
        () = gw.servers[0].was_called(1) => {}
    }
    timeout(Duration::from_secs(1), gw.servers[0].was_cancelled())
        .await
        .expect("cancelled within a second");
    gw.join().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_the_model_call_within_a_second() {
    let piece = "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"half\"},\"finish_reason\":null}]}\n\n";
    for with_tools in [true, false] {
        let mut builder = toolway(Model::start([events(&[piece], Then::Silence)]).await);
        if with_tools {
            builder = builder.server("s", tools().add());
        }
        let gw = builder.start().await;
        let mut live = gw.live(json!({}), &[]).await;
        live.until("half").await;
        drop(live);
        timeout(Duration::from_secs(1), gw.model.was_dropped())
            .await
            .expect("ended within a second");
        gw.join().await;
    }
}

#[tokio::test]
async fn progress_keeps_a_slow_tool_alive() {
    let gw = toolway(Model::start(held()).await)
        .config("[loop]\ntool_timeout = \"1s\"\nkeepalive = \"100ms\"\n")
        .server(
            "s",
            tools().tool("hold", Does::Reports(Duration::from_millis(300), 6)),
        )
        .start()
        .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "done");
    let told = gw.model.messages(1)[2]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        told, "done",
        "1.8 s of work with a report every 0.3 s is no second of silence"
    );
    gw.join().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streamed_loops_at_once_finish_with_nothing_wrong() {
    let model = Model::start([]).await.following_the_conversation();
    let gw = toolway(model)
        .server("calc", tools().tool("echo", Does::Echoes))
        .start()
        .await;
    let one = async |n: usize| {
        let marker = format!("marker-{n}");
        let answer = gw
            .streamed(json!({"messages": [{"role": "user", "content": marker}]}))
            .await;
        assert_eq!(
            answer.text(),
            format!("calling told {{\"marker\":\"{marker}\"}}")
        );
        assert_eq!(answer.finishes(), ["stop"]);
        assert!(answer.done);
    };
    futures::future::join_all((0..200).map(one)).await;
    assert_eq!(gw.servers[0].calls().len(), 200);
    gw.join().await;
}
