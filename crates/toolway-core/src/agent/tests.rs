//! The loop, decision by decision. A call whose name begins with `own` is the client's.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::{
    catalog::{Selection, ServerTools},
    translate::{results::Media, stream::CallKind},
};
use toolway_protocol::tool::{Annotations, Content, ServerId, Tool, ToolCall};

const BOUNDS: Bounds = Bounds {
    max_rounds: 3,
    max_calls: 4,
    max_all_calls: None,
    max_result_bytes: 200,
    media: Media {
        images: true,
        audio: false,
    },
    send_reasoning: true,
    order: route::Order::Parallel,
    forces_own_call: false,
    sees_calls: false,
};

/// `s` has `a`, `b` and `read`, which changes nothing; `state` is stateful and has `c` and `read_state`; `strict` wants a number `x`. `other` is not selected.
fn catalog() -> Catalog {
    let tool = |name: &str, schema: Value| Tool {
        name: name.to_owned(),
        title: None,
        description: None,
        input_schema: schema.as_object().unwrap().clone(),
        output_schema: None,
        annotations: Annotations {
            read_only: name.starts_with("read").then_some(true),
            ..Annotations::default()
        },
        extra: serde_json::Map::new(),
    };
    let any = || json!({"type": "object"});
    let strict =
        json!({"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]});
    let server = |name: &str, stateful, tools| ServerTools {
        server: ServerId::parse(name).unwrap(),
        stateful,
        risk: Default::default(),
        tools,
        dropped: Vec::new(),
    };
    Catalog::build(&[
        server(
            "s",
            false,
            vec![
                tool("a", any()),
                tool("b", any()),
                tool("read", any()),
                tool("strict", strict),
            ],
        ),
        server(
            "state",
            true,
            vec![tool("c", any()), tool("read_state", any())],
        ),
        server("other", false, vec![tool("d", any())]),
    ])
}

fn turn_within(bounds: Bounds) -> Turn {
    let catalog = Arc::new(catalog());
    let only = Selection::parse(None, Some("!other"), &[], catalog.servers()).unwrap();
    let selected = catalog.select(&only, &[], 128);
    let mut turn = Turn::new(
        bounds,
        catalog,
        selected,
        ClientPolicy::default(),
        CutResults::default(),
    );
    let ask = turn.begin();
    assert_eq!(ask, Ask::first());
    turn
}

fn turn() -> Turn {
    turn_within(BOUNDS)
}

fn round(content: Option<&str>, finish: FinishReason) -> Round {
    Round {
        content: content.map(str::to_owned),
        reasoning: None,
        refusal: None,
        calls: Vec::new(),
        finish,
        usage: json!({"prompt_tokens": 10, "completion_tokens": 1})
            .as_object()
            .cloned(),
        extra: JsonObject::new(),
    }
}

fn says(text: &str) -> Round {
    round(Some(text), FinishReason::Stop)
}

/// A round of calls, given by id, name and arguments.
fn calls(calls: &[(&str, &str, &str)]) -> Round {
    let call = |(id, name, arguments): &(&str, &str, &str)| RoundCall {
        call: ToolCall {
            id: (*id).to_owned(),
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        },
        owner: if name.starts_with("own") {
            Owner::Client
        } else {
            Owner::Gateway
        },
        kind: CallKind::Function,
        extra: JsonObject::new(),
    };
    Round {
        calls: calls.iter().map(call).collect(),
        ..round(None, FinishReason::ToolCalls)
    }
}

type Outcome = Result<ToolResult, CallError>;

/// Takes in a round; what it wants to have run comes out as given by `outcome`, the last call first.
fn go(turn: &mut Turn, round: Round, outcome: impl Fn(&Job) -> Outcome) -> Effect {
    let effect = turn.on(Event::Answered(round)).unwrap();
    let Effect::Run(lanes) = effect else {
        return effect;
    };
    let mut effect = None;
    for job in lanes.iter().flatten().rev() {
        assert!(
            effect.is_none(),
            "nothing is decided before the last call has ended"
        );
        effect = turn.on(Event::Finished {
            place: job.place,
            outcome: outcome(job),
            duration_ms: 0,
        });
    }
    effect.unwrap()
}

fn ok(job: &Job) -> Outcome {
    Ok(ToolResult::text(format!("result of {}", job.id)))
}

fn fails(_: &Job) -> Outcome {
    Ok(ToolResult {
        is_error: true,
        ..ToolResult::text("no")
    })
}

#[track_caller]
fn asked(effect: Effect) -> Ask {
    match effect {
        Effect::Ask(ask) => ask,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn finished(effect: Effect) -> Finish {
    match effect {
        Effect::Finish(finish) => finish,
        other => panic!("{other:?}"),
    }
}

/// The messages: role, id of the answered call, and content (the error's type, where it is an error).
fn told(messages: &str) -> Vec<(String, String, String)> {
    let messages: Vec<Value> = serde_json::from_str(&format!("[{messages}]")).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let content = |message: &Value| {
        let content = text(&message["content"]);
        match serde_json::from_str::<Value>(&content) {
            Ok(value) if value["error"]["note"].is_string() => "stopped".to_owned(),
            Ok(value) if value["error"].is_object() => text(&value["error"]["type"]),
            _ => content,
        }
    };
    messages
        .iter()
        .map(|message| {
            (
                text(&message["role"]),
                text(&message["tool_call_id"]),
                content(message),
            )
        })
        .collect()
}

#[track_caller]
fn check(messages: &str, expected: &[(&str, &str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(role, id, text)| ((*role).to_owned(), (*id).to_owned(), (*text).to_owned()))
        .collect();
    assert_eq!(told(messages), expected);
}

#[test]
fn an_answer_without_calls_ends_the_turn_with_its_own_reason() {
    for reason in [
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::ContentFilter,
    ] {
        let finish = finished(go(&mut turn(), round(Some("x"), reason), ok));
        assert_eq!(finish.reason, reason);
        assert!(finish.client_calls.is_empty() && finish.parked.is_none());
    }
}

#[test]
fn tool_messages_stand_in_the_order_of_the_calls_whatever_ends_first() {
    let mut turn = turn();
    let ask = asked(go(
        &mut turn,
        calls(&[
            ("1", "s__a", "{}"),
            ("2", "state__c", ""),
            ("3", "s__b", "{}"),
        ]),
        ok,
    ));
    check(
        &ask.appended,
        &[
            ("assistant", "", ""),
            ("tool", "1", "result of 1"),
            ("tool", "2", "result of 2"),
            ("tool", "3", "result of 3"),
        ],
    );
    assert!(!ask.first && ask.offer == Offer::All && !ask.read_more);
    let ids: Vec<&str> = turn
        .records()
        .iter()
        .map(|record| record.id.as_str())
        .collect();
    assert_eq!(ids, ["1", "2", "3"]);
}

#[test]
fn whatever_becomes_of_a_call_it_gets_one_message() {
    let outcome = |job: &Job| match job.id.as_str() {
        "timeout" => Err(CallError::Timeout {
            after: Duration::from_secs(1),
        }),
        "failed" => fails(job),
        _ => ok(job),
    };
    let list = [
        ("unknown", "s__nobody", "{}"),
        ("denied", "other__d", "{}"),
        ("json", "s__a", "{"),
        ("params", "s__strict", r#"{"x": "y"}"#),
        ("timeout", "s__a", "{}"),
        ("failed", "s__b", "{}"),
        ("fine", "s__strict", r#"{"x": 1}"#),
    ];
    let mut turn = turn_within(Bounds {
        max_calls: 6,
        ..BOUNDS
    });
    let ask = asked(go(&mut turn, calls(&list), outcome));
    check(
        &ask.appended,
        &[
            ("assistant", "", ""),
            ("tool", "unknown", "unknown_tool"),
            ("tool", "denied", "denied"),
            ("tool", "json", "invalid_arguments_json"),
            ("tool", "params", "invalid_params"),
            ("tool", "timeout", "timeout"),
            ("tool", "failed", "tool_error"),
            // The seventh of at most six.
            ("tool", "fine", "denied"),
        ],
    );
    let statuses: Vec<&str> = turn.records().iter().map(|record| record.status).collect();
    assert_eq!(statuses[4..], ["timeout", "tool_error", "denied"]);
}

#[test]
fn calls_that_cannot_be_sent_are_answered_at_once() {
    let mut turn = turn();
    let ask = asked(
        turn.on(Event::Answered(calls(&[("1", "nobody", "{}")])))
            .unwrap(),
    );
    check(
        &ask.appended,
        &[("assistant", "", ""), ("tool", "1", "unknown_tool")],
    );
    assert!(!turn.has_run_calls());
}

#[test]
fn calls_on_a_stateful_server_or_for_a_client_that_wants_it_run_in_order() {
    let list = [
        ("1", "state__c", "{}"),
        ("2", "s__a", "{}"),
        ("3", "state__c", "{}"),
    ];
    let lanes = |order| {
        let mut turn = turn_within(Bounds { order, ..BOUNDS });
        match turn.on(Event::Answered(calls(&list))) {
            Some(Effect::Run(lanes)) => lanes
                .iter()
                .map(|lane| lane.iter().map(|job| job.place).collect())
                .collect(),
            other => panic!("{other:?}"),
        }
    };
    let parallel: Vec<Vec<usize>> = lanes(route::Order::Parallel);
    assert_eq!(parallel, [vec![0, 2], vec![1]]);
    let sequential: Vec<Vec<usize>> = lanes(route::Order::Sequential);
    assert_eq!(sequential, [vec![0, 1, 2]]);
}

#[test]
fn at_the_bound_on_rounds_the_model_is_asked_once_more_without_tools() {
    let mut turn = turn();
    for n in 1..=BOUNDS.max_rounds {
        let ask = asked(go(
            &mut turn,
            calls(&[("1", "s__a", &format!("{{\"n\":{n}}}"))]),
            ok,
        ));
        assert_eq!(ask.offer == Offer::All, n < BOUNDS.max_rounds, "round {n}");
    }
    let finish = finished(go(&mut turn, says("at last"), ok));
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(turn.rounds(), BOUNDS.max_rounds + 1);
    assert_eq!(
        json!(finish.usage),
        json!({"prompt_tokens": 40, "completion_tokens": 4})
    );
}

#[test]
fn a_call_that_the_model_makes_without_tools_is_not_run_and_ends_the_answer() {
    let mut turn = turn_within(Bounds {
        max_rounds: 1,
        ..BOUNDS
    });
    asked(go(&mut turn, calls(&[("1", "s__a", "{}")]), ok));
    let round = Round {
        content: Some("I would have to look".to_owned()),
        ..calls(&[("1", "s__a", "{}")])
    };
    let finish = finished(go(&mut turn, round, |_| {
        panic!("there are no tools any more")
    }));
    assert_eq!(finish.reason, FinishReason::Stop);
    assert!(finish.client_calls.is_empty());
}

#[test]
fn a_model_that_only_calls_tools_to_the_last_gives_no_answer() {
    for forces_own_call in [false, true] {
        let mut turn = turn_within(Bounds {
            max_rounds: 1,
            forces_own_call,
            ..BOUNDS
        });
        let call = || calls(&[("1", "s__a", "{}")]);
        asked(go(&mut turn, call(), ok));
        let effect = turn.on(Event::Answered(call()));
        assert!(matches!(effect, Some(Effect::NoAnswer)), "{effect:?}");
    }
}

#[test]
fn a_call_for_the_client_that_is_made_without_tools_is_handed_over_since_it_was_shown() {
    let mut turn = turn_within(Bounds {
        max_rounds: 1,
        ..BOUNDS
    });
    asked(go(&mut turn, calls(&[("1", "s__a", "{}")]), ok));
    let mixed = calls(&[("2", "s__a", "{}"), ("3", "own", "{}")]);
    let finish = finished(go(&mut turn, mixed, |_| {
        panic!("there are no tools any more")
    }));
    assert_eq!(finish.reason, FinishReason::ToolCalls);
    assert_eq!(finish.client_calls[0].call.id, "3-toolway");
    let messages = finish.parked.unwrap().transcript.messages();
    assert_eq!(told(&messages)[3].2, "denied");
}

#[test]
fn a_call_that_failed_twice_in_the_same_way_is_not_sent_again_and_then_tools_are_over() {
    let mut turn = turn_within(Bounds {
        max_rounds: 10,
        ..BOUNDS
    });
    let again = || calls(&[("1", "s__a", r#"{"x":1}"#)]);
    for _ in 0..2 {
        assert_eq!(asked(go(&mut turn, again(), fails)).offer, Offer::All);
    }
    let ask = asked(go(&mut turn, again(), |_| panic!("it is not sent")));
    assert_eq!(ask.offer, Offer::None, "there is nothing else to try");
    assert_eq!(told(&ask.appended).last().unwrap().2, "stopped");
    assert_eq!(turn.records()[2].status, "repeated");
}

#[test]
fn a_stopped_call_beside_one_that_runs_leaves_the_tools_there() {
    let mut turn = turn_within(Bounds {
        max_rounds: 10,
        ..BOUNDS
    });
    for _ in 0..2 {
        go(&mut turn, calls(&[("1", "s__a", "{}")]), fails);
    }
    let ask = asked(go(
        &mut turn,
        calls(&[("1", "s__a", "{}"), ("2", "s__b", "{}")]),
        ok,
    ));
    assert_eq!(ask.offer, Offer::All);
    let told = told(&ask.appended);
    assert_eq!(
        (&*told[5].2, &*told[6].2),
        ("stopped", "result of 2"),
        "{told:?}"
    );
}

#[test]
fn calls_over_the_bound_do_not_count_as_failures_of_theirs() {
    let mut turn = turn_within(Bounds {
        max_calls: 0,
        max_rounds: 10,
        ..BOUNDS
    });
    for _ in 0..3 {
        let ask = asked(go(&mut turn, calls(&[("1", "s__a", "{}")]), ok));
        assert_eq!(told(&ask.appended).last().unwrap().2, "denied");
    }
}

#[test]
fn no_more_calls_run_than_the_client_allows_in_all_turns_together() {
    let mut turn = turn_within(Bounds {
        max_all_calls: Some(2),
        max_rounds: 10,
        ..BOUNDS
    });
    let ask = asked(go(&mut turn, calls(&[("1", "s__a", "{}")]), ok));
    assert_eq!(ask.offer, Offer::All);
    let two = calls(&[("2", "s__b", "{}"), ("3", "s__a", "{}")]);
    let ask = asked(go(&mut turn, two, ok));
    let told = told(&ask.appended);
    let last: Vec<&str> = told.iter().rev().take(2).map(|it| &*it.2).collect();
    assert_eq!(last, ["denied", "result of 2"]);
    assert_ne!(ask.offer, Offer::All, "the model is not tempted any more");
}

#[test]
fn only_the_clients_own_calls_are_handed_over_and_nothing_is_parked() {
    let mut turn = turn();
    let finish = finished(go(&mut turn, calls(&[("1", "own", "{}")]), ok));
    assert_eq!(finish.reason, FinishReason::ToolCalls);
    assert_eq!(finish.client_calls.len(), 1);
    assert!(finish.parked.is_none());
    assert!(turn.records().is_empty());
}

#[test]
fn a_mixed_turn_runs_the_gateways_calls_and_parks_them_in_their_places() {
    let mut turn = turn();
    let list = [
        ("1", "own", "{}"),
        ("2", "s__a", "{}"),
        ("3", "own_too", "{}"),
    ];
    let finish = finished(go(&mut turn, calls(&list), ok));
    let ids: Vec<&str> = finish
        .client_calls
        .iter()
        .map(|call| call.call.id.as_str())
        .collect();
    assert_eq!(
        ids,
        ["1-toolway", "3-toolway"],
        "marked, since something is parked"
    );
    let parked = finish.parked.unwrap();
    let answers = |id: &str| {
        Some(format!(
            r#"{{"role":"tool","tool_call_id":"{id}","content":"own"}}"#
        ))
    };
    check(
        &parked.transcript.messages_with(answers),
        &[
            ("assistant", "", ""),
            ("tool", "1", "own"),
            ("tool", "2", "result of 2"),
            ("tool", "3", "own"),
        ],
    );
}

#[test]
fn a_turn_for_the_client_after_others_parks_them_all() {
    let mut turn = turn();
    asked(go(&mut turn, calls(&[("1", "s__a", "{}")]), ok));
    let finish = finished(go(&mut turn, calls(&[("2", "own", "{}")]), ok));
    let messages = finish.parked.unwrap().transcript.messages();
    check(
        &messages,
        &[
            ("assistant", "", ""),
            ("tool", "1", "result of 1"),
            ("assistant", "", ""),
            ("tool", "2", "cancelled"),
        ],
    );
    assert_eq!(
        json!(finish.usage),
        json!({"prompt_tokens": 20, "completion_tokens": 2})
    );
}

#[test]
fn a_cut_result_can_be_read_on_in_and_each_under_an_id_of_its_own() {
    let long = |job: &Job| Ok(ToolResult::text(job.offered.tool.name.repeat(300)));
    let mut turn = turn_within(Bounds {
        max_rounds: 10,
        ..BOUNDS
    });
    asked(go(&mut turn, calls(&[("call_1", "s__a", "{}")]), long));
    let ask = asked(go(&mut turn, calls(&[("call_1", "s__b", "{}")]), long));
    assert!(ask.read_more);
    let told_ids: Vec<bool> = told(&ask.appended)
        .iter()
        .map(|(_, _, text)| text.contains(r#"{"id":"call_1-2""#))
        .collect();
    assert_eq!(told_ids, [false, false, false, true]);
    for (id, expected) in [("call_1", "aaaa"), ("call_1-2", "bbbb")] {
        let arguments = format!("{{\"id\":\"{id}\",\"offset\":296}}");
        let ask = asked(go(
            &mut turn,
            calls(&[("r", READ_MORE, &arguments)]),
            |_| panic!("nobody is asked"),
        ));
        assert_eq!(told(&ask.appended).last().unwrap().2, expected);
    }
    let ask = asked(go(&mut turn, calls(&[("r", READ_MORE, "{}")]), ok));
    assert_eq!(told(&ask.appended).last().unwrap().2, "invalid_params");
}

#[test]
fn a_result_that_there_is_no_room_for_does_not_promise_more() {
    let long = |job: &Job| {
        let bytes = if job.id == "1" { 33 << 20 } else { 300 };
        Ok(ToolResult::text("x".repeat(bytes)))
    };
    let mut turn = turn();
    let list = [("1", "s__a", "{}"), ("2", "s__a", "{\"x\":2}")];
    let ask = asked(go(&mut turn, calls(&list), long));
    let told = told(&ask.appended);
    assert!(
        told[1].2.ends_with("bytes shown]") && !told[1].2.contains(READ_MORE),
        "{}",
        told[1].2
    );
    assert!(told[2].2.contains(READ_MORE));
}

#[test]
fn pictures_follow_after_all_tool_messages() {
    let picture = |job: &Job| {
        let image = Content::Image {
            mime_type: "image/png".into(),
            data: "QUJD".into(),
        };
        Ok(ToolResult {
            content: vec![image],
            ..ToolResult::text(job.id.clone())
        })
    };
    let list = [("1", "s__a", "{}"), ("2", "s__b", "{}")];
    let ask = asked(go(&mut turn(), calls(&list), picture));
    let roles: Vec<String> = told(&ask.appended)
        .into_iter()
        .map(|(role, ..)| role)
        .collect();
    assert_eq!(roles, ["assistant", "tool", "tool", "user"]);
}

#[test]
fn a_call_that_cannot_have_happened_leaves_the_request_free_to_be_repeated() {
    let ran = |outcome: fn(&Job) -> Outcome| {
        let mut turn = turn();
        go(&mut turn, calls(&[("1", "s__a", "{}")]), outcome);
        turn.has_run_calls()
    };
    assert!(ran(ok));
    assert!(ran(fails), "a tool that fails within a millisecond has run");
    assert!(ran(|_| Err(CallError::Cancelled)));
    assert!(!ran(|_| Err(CallError::Busy)));
    assert!(!ran(|_| Err(CallError::UpstreamUnavailable {
        message: String::new(),
        unsent: true,
    })));
    let mut turn = turn();
    turn.on(Event::Answered(calls(&[("1", "s__a", "{}")])));
    assert!(turn.has_run_calls(), "it is running");
}

#[test]
fn an_end_that_nobody_waits_for_changes_nothing() {
    let mut turn = turn();
    let list = [
        ("1", "s__a", "{}"),
        ("2", "s__a", "{\"x\":2}"),
        ("3", "own", "{}"),
    ];
    turn.on(Event::Answered(calls(&list)));
    let mut end = |place, text: &str| {
        turn.on(Event::Finished {
            place,
            outcome: Ok(ToolResult::text(text)),
            duration_ms: 1,
        })
    };
    assert!(end(0, "first").is_none());
    assert!(end(0, "again").is_none());
    assert!(end(2, "not the gateway's").is_none());
    assert!(end(9, "nobody's").is_none());
    let finish = finished(end(1, "second").unwrap());
    let messages = told(&finish.parked.unwrap().transcript.messages());
    assert_eq!(messages[1].2, "first");
    assert!(end(1, "late").is_none());
}

/// What begins early of calls that become complete one after another.
#[track_caller]
fn check_early(bounds: Bounds, complete: &[(&str, &str, &str)], expected: &[usize]) {
    let mut turn = turn_within(bounds);
    let round = calls(complete);
    let early: Vec<usize> = round
        .calls
        .iter()
        .enumerate()
        .filter_map(|(place, call)| turn.begin_early(place, &call.call))
        .map(|job| job.place)
        .collect();
    assert_eq!(early, expected);
    // None of them is run again, and all are awaited.
    let Some(Effect::Run(lanes)) = turn.on(Event::Answered(round)) else {
        panic!("there are calls");
    };
    let mut places: Vec<usize> = lanes.iter().flatten().map(|job| job.place).collect();
    places.extend(early);
    places.sort_unstable();
    let all: Vec<usize> = (0..complete.len()).collect();
    assert_eq!(places, all);
}

#[test]
fn only_calls_that_change_nothing_and_overtake_none_that_may_begin_early() {
    let mixed = [
        ("1", "s__read", r#"{"n":1}"#),
        ("2", "state__read_state", "{}"),
        ("3", "s__a", "{}"),
        ("4", "s__read", r#"{"n":2}"#),
    ];
    check_early(BOUNDS, &mixed, &[0]);
    let sequential = Bounds {
        order: route::Order::Sequential,
        ..BOUNDS
    };
    check_early(sequential, &mixed, &[]);
}

#[test]
fn no_call_begins_early_that_is_one_too_many_or_does_not_fit() {
    let mut turn = turn_within(Bounds {
        max_calls: 1,
        ..BOUNDS
    });
    let round = calls(&[
        ("1", "s__read", "[]"),
        ("2", "s__read", "{}"),
        ("3", "nobody", "{}"),
    ]);
    for (place, call) in round.calls.iter().enumerate() {
        assert!(turn.begin_early(place, &call.call).is_none());
    }
}

#[test]
fn an_early_call_that_has_become_another_is_run_again_and_its_result_is_not_awaited() {
    let mut turn = turn();
    let begun = &calls(&[("1", "s__read", r#"{"n":1}"#)]).calls[0];
    let early = turn.begin_early(0, &begun.call).unwrap();
    let effect = turn.on(Event::Answered(calls(&[("1", "s__read", r#"{"n":2}"#)])));
    let Some(Effect::Run(lanes)) = effect else {
        panic!("{effect:?}");
    };
    assert!(!turn.awaits(&early));
    assert!(turn.awaits(&lanes[0][0]));
}

#[test]
fn a_result_is_used_again_while_it_is_fresh_and_nothing_may_have_changed() {
    let read = || calls(&[("1", "s__read", "{}")]);
    let not_sent = |_: &Job| -> Outcome { panic!("it is not sent") };
    let bounds = Bounds {
        max_rounds: 10,
        ..BOUNDS
    };
    let mut turn = turn_within(bounds);
    turn.set_elapsed(Duration::from_secs(1));
    asked(go(&mut turn, read(), fails));
    // A failure is not.
    asked(go(&mut turn, read(), ok));
    turn.set_elapsed(reads::FRESH);
    let ask = asked(go(&mut turn, read(), not_sent));
    assert_eq!(told(&ask.appended)[5].2, "result of 1");
    turn.set_elapsed(reads::FRESH + Duration::from_millis(1001));
    let effect = turn.on(Event::Answered(read()));
    assert!(matches!(effect, Some(Effect::Run(_))), "{effect:?}");

    let mut turn = turn_within(Bounds {
        sees_calls: true,
        ..bounds
    });
    asked(go(&mut turn, read(), ok));
    let effect = turn.on(Event::Answered(read()));
    assert!(
        matches!(effect, Some(Effect::Run(_))),
        "the client sees each call"
    );
}

#[test]
fn calls_that_ask_the_same_get_one_result() {
    let mut turn = turn();
    let list = [
        ("1", "s__read", r#"{"a":1,"b":2}"#),
        ("2", "s__a", "{}"),
        ("3", "s__read", r#"{"b":2,"a":1}"#),
        ("4", "s__read", r#"{"b":2,"a":1}"#),
    ];
    let Some(Effect::Run(lanes)) = turn.on(Event::Answered(calls(&list))) else {
        panic!("there are calls");
    };
    let places: Vec<usize> = lanes.iter().flatten().map(|job| job.place).collect();
    assert_eq!(
        places,
        [0, 1, 2],
        "3 comes after one that may change something"
    );
    let same: Vec<usize> = turn.same_calls(2).map(|job| job.place).collect();
    assert_eq!(same, [3]);
}
