//! Plain (not streamed) answers of the tool loop.

use serde_json::{Value, json};

use crate::{
    harness::toolway,
    model::{Model, call, raw, say, say_and_call},
    tools::{Does, tools},
};

#[tokio::test]
async fn two_rounds_are_one_answer() {
    let model = Model::start([
        say_and_call(
            "Let me see. ",
            &[("c", "calc__add", json!({"a": 1, "b": 2}))],
        ),
        say("It is 3."),
    ])
    .await;
    let gw = toolway(model).server("calc", tools().add()).start().await;
    let answer = gw.plain(json!({})).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["id"], "chatcmpl-1");
    assert_eq!(answer["created"], 1001);
    let choice = &answer["choices"][0];
    assert_eq!(
        choice["message"]["content"], "Let me see. It is 3.",
        "the text of every round, as in a stream"
    );
    assert!(choice["message"].get("tool_calls").is_none());
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(answer["usage"]["total_tokens"], 32);
    assert!(
        answer.get("toolway").is_none(),
        "nobody asked for the list of calls"
    );
    assert_eq!(
        gw.model.messages(1)[2],
        json!({"role": "tool", "tool_call_id": "c", "content": "3"})
    );
    gw.join().await;
}

#[tokio::test]
async fn the_list_of_calls_is_there_for_those_who_ask() {
    for by_header in [true, false] {
        let model = Model::start([
            call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
            say("3"),
        ])
        .await;
        let gw = toolway(model).server("calc", tools().add()).start().await;
        let answer: Value = if by_header {
            let response = gw.send(json!({}), &[("x-toolway-progress", "on")]).await;
            serde_json::from_str(&response.text().await.unwrap()).unwrap()
        } else {
            gw.plain(json!({"toolway": {"progress": "on"}})).await
        };
        let calls = answer["toolway"]["calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0]["name"], "calc__add");
        assert_eq!(calls[0]["status"], "ok");
        assert!(
            gw.model.asked()[0].body.get("toolway").is_none(),
            "the field is not the upstream's to see"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn once_a_tool_has_run_no_sdk_repeats_the_request() {
    let model = Model::start([call(&[("c", "calc__add", json!({"a": 1, "b": 2}))])])
        .await
        .then_always(raw(
            400,
            "application/json",
            r#"{"error":{"message":"too long"}}"#,
        ));
    let gw = toolway(model).server("calc", tools().add()).start().await;
    let response = gw.send(json!({}), &[]).await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.headers()["x-should-retry"], "false");
    gw.join().await;
}

#[tokio::test]
async fn an_upstream_that_streams_what_should_be_whole_is_read_all_the_same() {
    let body = "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
                \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n\
                data: [DONE]\n\n";
    for with_tools in [true, false] {
        let model = Model::start([raw(200, "text/event-stream", body)]).await;
        let mut gw = toolway(model);
        if with_tools {
            gw = gw.server("calc", tools().add());
        }
        let gw = gw.start().await;
        let answer = gw.plain(json!({})).await;
        assert_eq!(
            answer["choices"][0]["message"]["content"], "hi",
            "with tools: {with_tools}"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn the_list_of_calls_has_the_order_of_the_model() {
    let model = Model::start([
        call(&[
            ("slow", "s__hold", json!({})),
            ("quick", "calc__add", json!({"a": 1, "b": 2})),
        ]),
        say("done"),
    ])
    .await;
    let gw = toolway(model)
        .server("s", tools().tool("hold", Does::Holds))
        .server("calc", tools().add())
        .start()
        .await;
    let asking = gw.plain(json!({"toolway": {"progress": "on"}}));
    let letting_go = async {
        gw.servers[0].was_called(1).await;
        gw.servers[1].was_called(1).await;
        gw.servers[0].let_go();
    };
    let (answer, ()) = tokio::join!(asking, letting_go);
    let calls = answer["toolway"]["calls"].as_array().unwrap();
    let ids: Vec<&Value> = calls.iter().map(|call| &call["id"]).collect();
    assert_eq!(ids, ["slow", "quick"]);
    gw.join().await;
}
