//! Calls that share a request.

use futures::future::join_all;
use serde_json::json;
use toolway_protocol::tool::Content;

use super::{check_failed, town, weather};
use crate::{
    harness::Toolway,
    webhook::{Got, Reply, answer, echoed, webhook},
};

/// Calls of `weather` for these cities, at once.
async fn cities(
    gw: &Toolway,
    cities: &[&str],
) -> Vec<Result<toolway_protocol::tool::ToolResult, toolway_protocol::tool::CallError>> {
    let calls = cities.iter().map(|city| {
        let arguments = json!({"city": city}).to_string();
        async move { gw.gateway.call_tool("town__weather", &arguments).await }
    });
    join_all(calls).await
}

fn city(result: &toolway_protocol::tool::ToolResult) -> String {
    let structured = result.structured_content.as_ref().unwrap();
    structured["arguments"]["city"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn calls_that_arrive_together_are_one_request_and_find_their_answers() {
    let backwards = |got: &Got| {
        let mut answers = echoed(got);
        answers.reverse();
        answer(json!({"tool_responses": answers}))
    };
    let webhook = webhook(backwards).await;
    let gw = town(&webhook, "batch = '200ms'").await;
    let names = ["a", "b", "c"];
    let results = cities(&gw, &names).await;
    let answered: Vec<String> = results
        .iter()
        .map(|it| city(it.as_ref().unwrap()))
        .collect();
    assert_eq!(answered, names);
    assert_eq!(webhook.got().len(), 1);
    assert_eq!(webhook.got()[0].calls().len(), 3);
    gw.join().await;
}

#[tokio::test]
async fn a_request_has_no_more_calls_than_it_may() {
    let webhook = crate::webhook::echo().await;
    let gw = town(&webhook, "batch = '200ms'\nmax_batch = 2").await;
    let results = cities(&gw, &["a", "b", "c", "d", "e"]).await;
    assert!(results.iter().all(Result::is_ok));
    let mut sizes: Vec<usize> = webhook.got().iter().map(|got| got.calls().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2, 2]);
    gw.join().await;
}

#[tokio::test]
async fn without_batch_each_call_is_sent_alone() {
    let webhook = crate::webhook::echo().await;
    let gw = town(&webhook, "").await;
    cities(&gw, &["a", "b", "c"]).await;
    assert_eq!(webhook.got().len(), 3);
    gw.join().await;
}

#[tokio::test]
async fn what_is_wrong_with_one_answer_of_a_batch_harms_no_other() {
    let careless = |got: &Got| {
        let answers: Vec<_> = got
            .calls()
            .into_iter()
            .flat_map(|(id, _, arguments)| {
                let good = json!({"tool_call_id": id, "output": arguments});
                match arguments["city"].as_str().unwrap() {
                    "missing" => vec![],
                    "twice" => vec![good.clone(), good],
                    "failed" => vec![json!({"tool_call_id": id, "error": "no such city"})],
                    _ => vec![good],
                }
            })
            .collect();
        answer(json!(answers))
    };
    let webhook = webhook(careless).await;
    let gw = town(&webhook, "batch = '200ms'").await;
    let mut results = cities(&gw, &["missing", "good", "twice", "failed"])
        .await
        .into_iter();
    check_failed(
        results.next().unwrap(),
        "the function's endpoint did not answer this call",
    );
    let good = results.next().unwrap().unwrap();
    assert_eq!(
        good.content,
        [Content::Text(r#"{"city":"good"}"#.to_owned())]
    );
    check_failed(
        results.next().unwrap(),
        "the function's endpoint answered this call more than once",
    );
    check_failed(results.next().unwrap(), "no such city");
    assert_eq!(webhook.got().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn a_batch_that_fails_is_each_calls_failure() {
    let webhook = webhook(|_| Reply::Answers(500, "text/html", b"<html>".to_vec())).await;
    let gw = town(&webhook, "batch = '100ms'").await;
    for outcome in cities(&gw, &["a", "b"]).await {
        check_failed(outcome, "the function's endpoint answered with HTTP 500");
    }
    assert_eq!(webhook.got().len(), 1);
    gw.join().await;
}

#[tokio::test]
async fn a_batch_that_everybody_gave_up_is_given_up() {
    let webhook = webhook(|_| Reply::Holds).await;
    let gw = town(&webhook, "batch = '1ms'\ntimeout = '300ms'").await;
    let error = weather(&gw).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    webhook.left(1).await;
    gw.join().await;
}
