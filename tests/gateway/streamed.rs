//! What a client sees of a streamed tool loop: design.md, "What the client sees", points 1–4, 6, 9–11.

use serde_json::{Value, json};

use crate::{
    harness::{own_function, toolway},
    model::{Model, call, ending, say, say_and_call},
    tools::{Does, tools},
};

fn tool_messages(messages: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of_tools = messages.iter().filter(|message| message["role"] == "tool");
    of_tools
        .map(|message| (text(&message["tool_call_id"]), text(&message["content"])))
        .collect()
}

#[tokio::test]
async fn two_rounds_are_one_answer() {
    let model = Model::start([
        say_and_call(
            "Let me see. ",
            &[("call_a", "calc__add", json!({"a": 1, "b": 2}))],
        ),
        say("It is 3."),
    ])
    .await;
    let gw = toolway(model).server("calc", tools().add()).start().await;
    let answer = gw
        .streamed(json!({"stream_options": {"include_usage": true}}))
        .await;
    assert_eq!(answer.text(), "Let me see. It is 3.");
    assert_eq!(answer.calls(), []);
    assert_eq!(answer.finishes(), ["stop"]);
    assert_eq!(answer.roles(), 1);
    for (member, value) in [
        ("id", "\"chatcmpl-1\""),
        ("created", "1001"),
        ("model", "\"m\""),
    ] {
        assert_eq!(answer.all(member), [value]);
    }
    let usages = answer.usages();
    assert_eq!(usages.len(), 1, "one usage chunk");
    assert_eq!(usages[0]["choices"], json!([]));
    assert_eq!(
        usages[0]["usage"]["prompt_tokens"], 30,
        "the sum over both rounds"
    );
    assert_eq!(usages[0]["usage"]["total_tokens"], 32);
    assert_eq!(
        usages[0]["usage"]["prompt_tokens_details"]["cached_tokens"],
        3
    );
    assert!(answer.done);
    assert_eq!(
        gw.servers[0].calls(),
        [("add".to_owned(), json!({"a": 1, "b": 2}))]
    );
    assert_eq!(
        tool_messages(&gw.model.messages(1)),
        [("call_a".to_owned(), "3".to_owned())]
    );
    let assistant = &gw.model.messages(1)[1];
    assert_eq!(assistant["content"], "Let me see. ");
    assert_eq!(
        assistant["tool_calls"][0]["function"]["arguments"],
        r#"{"a":1,"b":2}"#
    );
    gw.join().await;
}

#[tokio::test]
async fn no_usage_is_shown_to_a_client_that_did_not_ask() {
    let model = Model::start([
        call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
        say("3"),
    ])
    .await;
    let gw = toolway(model).server("calc", tools().add()).start().await;
    assert!(gw.streamed(json!({})).await.usages().is_empty());
    gw.join().await;
}

#[tokio::test]
async fn text_arrives_while_the_call_behind_it_is_still_running() {
    let model = Model::start([
        say_and_call("One moment. ", &[("c", "slow__hold", json!({}))]),
        say("There."),
    ])
    .await;
    let gw = toolway(model)
        .server("slow", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let mut live = gw.live(json!({}), &[]).await;
    live.until("One moment. ").await;
    gw.servers[0].was_called(1).await;
    gw.servers[0].let_go();
    assert_eq!(live.end().await.text(), "One moment. There.");
    gw.join().await;
}

#[tokio::test]
async fn a_call_of_the_clients_own_tool_is_passed_on() {
    let model = Model::start([call(&[("call_own", "own", json!({"x": "y"}))])]).await;
    let gw = toolway(model).server("calc", tools().add()).start().await;
    let answer = gw.streamed(json!({"tools": [own_function("own")]})).await;
    assert_eq!(
        answer.calls(),
        [(
            "call_own".to_owned(),
            "own".to_owned(),
            r#"{"x":"y"}"#.to_owned()
        )]
    );
    assert_eq!(answer.finishes(), ["tool_calls"]);
    gw.join().await;
}

#[tokio::test]
async fn calls_run_side_by_side_and_are_answered_in_order() {
    let model = Model::start([
        call(&[
            ("one", "slow__hold", json!({})),
            ("two", "calc__add", json!({"a": 1, "b": 2})),
            ("three", "slow__hold", json!({})),
        ]),
        say("done"),
    ])
    .await;
    let gw = toolway(model)
        .server("slow", tools().tool("hold", Does::Holds))
        .server("calc", tools().add())
        .start()
        .await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(2).await;
    gw.servers[1].was_called(1).await;
    gw.servers[0].let_go();
    assert_eq!(live.end().await.text(), "done");
    let expected = [("one", "done"), ("two", "3"), ("three", "done")];
    assert_eq!(
        tool_messages(&gw.model.messages(1)),
        expected.map(|(id, text)| (id.to_owned(), text.to_owned()))
    );
    assert_eq!(gw.servers[0].most_side_by_side(), 2);
    gw.join().await;
}

#[tokio::test]
async fn calls_on_a_stateful_server_run_one_after_another() {
    let model = Model::start([
        call(&[
            ("one", "stateful__hold", json!({"n": 1})),
            ("two", "stateful__hold", json!({"n": 2})),
        ]),
        say("done"),
    ])
    .await;
    let gw = toolway(model)
        .server("stateful", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let live = gw.live(json!({}), &[]).await;
    gw.servers[0].was_called(1).await;
    gw.servers[0].let_go();
    assert_eq!(live.end().await.text(), "done");
    assert_eq!(gw.servers[0].most_side_by_side(), 1);
    let order: Vec<Value> = gw.servers[0]
        .calls()
        .into_iter()
        .map(|(_, arguments)| arguments["n"].clone())
        .collect();
    assert_eq!(order, [1, 2]);
    gw.join().await;
}

#[tokio::test]
async fn parallel_tool_calls_false_runs_them_one_after_another() {
    let model = Model::start([
        call(&[
            ("one", "slow__hold", json!({})),
            ("two", "slow__hold", json!({})),
        ]),
        say("done"),
    ])
    .await;
    let gw = toolway(model)
        .server("slow", tools().tool("hold", Does::Holds))
        .start()
        .await;
    let live = gw.live(json!({"parallel_tool_calls": false}), &[]).await;
    gw.servers[0].was_called(1).await;
    gw.servers[0].let_go();
    live.end().await;
    assert_eq!(gw.servers[0].most_side_by_side(), 1);
    assert_eq!(gw.model.asked()[0].body["parallel_tool_calls"], false);
    gw.join().await;
}

#[tokio::test]
async fn at_the_bound_on_rounds_the_model_is_asked_once_more_without_tools() {
    let again = |n: i32| call(&[("c", "calc__add", json!({"a": n, "b": 2}))]);
    let model = Model::start([again(1), again(2), say("enough")]).await;
    let gw = toolway(model)
        .config("[loop]\nmax_rounds = 2\n")
        .server("calc", tools().add())
        .start()
        .await;
    let answer = gw
        .streamed(json!({"tool_choice": "auto", "parallel_tool_calls": true}))
        .await;
    assert_eq!(answer.text(), "enough");
    let asked = gw.model.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked[1].body.get("tools").is_some());
    for member in ["tools", "tool_choice", "parallel_tool_calls"] {
        assert!(
            asked[2].body.get(member).is_none(),
            "{member} is left out of the last question"
        );
    }
    gw.join().await;
}

#[tokio::test]
async fn a_model_that_calls_tools_to_the_last_and_says_nothing_is_an_error() {
    let again = call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]);
    let gw = toolway(Model::start([]).await.then_always(again))
        .config("[loop]\nmax_rounds = 1\n")
        .server("calc", tools().add())
        .start()
        .await;
    for stream in [false, true] {
        for body in [
            json!({"stream": stream}),
            json!({"stream": stream, "tools": [own_function("own")], "tool_choice": "required"}),
        ] {
            let response = gw.send(body, &[]).await;
            assert_eq!(response.status(), if stream { 200 } else { 502 });
            let text = response.text().await.unwrap();
            assert!(text.contains("upstream_incomplete"), "{text}");
            assert!(!text.contains("[DONE]"), "{text}");
        }
    }
    gw.join().await;
}

#[tokio::test]
async fn a_call_that_fails_in_the_same_way_again_and_again_is_stopped() {
    let again = call(&[("c", "bad__fail", json!({"x": 1}))]);
    let model = Model::start([again.clone(), again.clone(), again, say("I give up")]).await;
    let refusal =
        Does::Answers(json!({"content": [{"type": "text", "text": "no"}], "isError": true}));
    let gw = toolway(model)
        .server("bad", tools().tool("fail", refusal))
        .start()
        .await;
    assert_eq!(gw.streamed(json!({})).await.text(), "I give up");
    assert_eq!(
        gw.servers[0].calls().len(),
        2,
        "the third time nothing is sent"
    );
    let messages = gw.model.messages(3);
    let last = tool_messages(&messages).pop().unwrap().1;
    assert!(last.contains("not sent again"), "{last}");
    assert!(gw.model.asked()[3].body.get("tools").is_none());
    gw.join().await;
}

#[tokio::test]
async fn a_forced_tool_holds_for_the_first_round_only() {
    let choice = json!({"type": "function", "function": {"name": "calc__add"}});
    for forced in [json!("required"), choice] {
        let model = Model::start([
            call(&[("c", "calc__add", json!({"a": 1, "b": 2}))]),
            say("3"),
        ])
        .await;
        let gw = toolway(model).server("calc", tools().add()).start().await;
        gw.streamed(json!({"tool_choice": forced})).await;
        let asked = gw.model.asked();
        assert_eq!(asked[0].body["tool_choice"], forced);
        assert_eq!(asked[1].body["tool_choice"], "auto");
        gw.join().await;
    }
}

#[tokio::test]
async fn a_truncated_call_is_not_run() {
    let cut = ending(
        call(&[("c", "calc__add", json!("{\"a\": 1, \"b"))]),
        "length",
    );
    let model = Model::start([cut]).await;
    let gw = toolway(model).server("calc", tools().add()).start().await;
    assert_eq!(gw.streamed(json!({})).await.finishes(), ["length"]);
    assert_eq!(gw.servers[0].calls(), []);
    gw.join().await;
}
