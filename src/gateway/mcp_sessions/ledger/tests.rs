use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn call(id: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: "f".to_owned(),
        arguments: "{}".to_owned(),
    }
}

fn with(ids: &[&str]) -> Ledger<()> {
    let mut ledger = Ledger::default();
    for id in ids {
        ledger.open(call(id), ()).unwrap();
    }
    ledger
}

/// `3+a+b` for the calls a and b, `4-c` for the end of c, with the number that goes with each.
fn told(ledger: &mut Ledger<()>, reader: ReaderPosition) -> Vec<String> {
    let line = |told: Told| match told.what {
        What::Opened(calls) => {
            let ids = calls.iter().map(|call| format!("+{}", call.id));
            format!("{}{}", told.number, ids.collect::<String>())
        }
        What::TakenBack(id) => format!("{}-{id}", told.number),
    };
    ledger.since(reader).into_iter().map(line).collect()
}

#[track_caller]
fn check(ledger: &mut Ledger<()>, reader: ReaderPosition, expected: &[&str]) {
    assert_eq!(told(ledger, reader), expected, "{reader:?}");
}

#[test]
fn calls_that_wait_together_are_told_together() {
    let mut ledger = with(&["a", "b"]);
    check(&mut ledger, ReaderPosition::Begins(0), &["2+a+b"]);
    check(&mut ledger, ReaderPosition::Goes(1), &["2+b"]);
    check(&mut ledger, ReaderPosition::Goes(2), &[]);
}

#[test]
fn a_new_reader_is_told_of_every_open_call_and_never_set_back() {
    let mut ledger = with(&["a", "b", "c"]);
    check(&mut ledger, ReaderPosition::Begins(3), &["3+a+b+c"]);
    ledger.answer("b");
    check(&mut ledger, ReaderPosition::Begins(3), &["3+a+c"]);
    check(&mut ledger, ReaderPosition::Begins(2), &["3+a+c"]);
}

#[test]
fn only_what_was_told_is_taken_back() {
    let mut ledger = with(&["a", "b"]);
    check(&mut ledger, ReaderPosition::Begins(0), &["2+a+b"]);
    ledger.open(call("c"), ()).unwrap();
    assert!(ledger.take_back("c"), "nobody was told of it");
    assert!(ledger.take_back("a"));
    check(&mut ledger, ReaderPosition::Goes(2), &["4-a"]);
    check(&mut ledger, ReaderPosition::Goes(4), &[]);
    check(&mut ledger, ReaderPosition::Begins(0), &["2+b"]);
    check(&mut ledger, ReaderPosition::Begins(2), &["2+b", "4-a"]);
    check(&mut ledger, ReaderPosition::Begins(4), &["4+b"]);
}

#[test]
fn what_happened_is_told_in_its_order() {
    let mut ledger = with(&["a"]);
    check(&mut ledger, ReaderPosition::Begins(0), &["1+a"]);
    ledger.take_back("a");
    ledger.open(call("b"), ()).unwrap();
    ledger.open(call("c"), ()).unwrap();
    check(&mut ledger, ReaderPosition::Goes(1), &["2-a", "4+b+c"]);
    ledger.take_back("b");
    ledger.open(call("d"), ()).unwrap();
    check(&mut ledger, ReaderPosition::Goes(4), &["5-b", "6+d"]);
    check(
        &mut ledger,
        ReaderPosition::Begins(1),
        &["2-a", "4+c", "5-b", "6+d"],
    );
}

#[test]
fn a_number_that_was_never_given_costs_the_reader_nothing() {
    let mut ledger = with(&["a"]);
    check(&mut ledger, ReaderPosition::Begins(u64::MAX), &["1+a"]);
    ledger.open(call("b"), ()).unwrap();
    check(&mut ledger, ReaderPosition::Goes(1), &["2+b"]);
}

#[test]
fn a_call_is_answered_once() {
    let mut ledger = with(&["a", "b"]);
    assert_eq!(ledger.answer("a"), Answered::Open(()));
    assert_eq!(ledger.answer("a"), Answered::Before);
    assert_eq!(ledger.answer("x"), Answered::Nothing);
    assert!(!ledger.take_back("a"), "it is not open");
    assert!(ledger.take_back("b"));
    assert_eq!(ledger.answer("b"), Answered::Nothing, "nobody waits for it");
}

#[test]
fn an_answer_makes_room_for_a_call() {
    let mut ledger = Ledger::default();
    for n in 0..MAX_OPEN {
        ledger.open(call(&n.to_string()), ()).unwrap();
    }
    assert_eq!(ledger.open(call("x"), ()), Err(Full));
    ledger.answer("7");
    assert_eq!(ledger.open(call("x"), ()), Ok(()));
    assert_eq!(ledger.end().len(), MAX_OPEN);
    assert_eq!(ledger.calls().count(), 0);
    assert_eq!(ledger.answer("8"), Answered::Nothing);
}

#[test]
fn what_is_remembered_of_closed_calls_is_bounded() {
    let mut ledger = Ledger::default();
    for n in 0..MAX_CLOSED * 3 {
        let id = n.to_string();
        ledger.open(call(&id), ()).unwrap();
        match n % 2 {
            0 => {
                ledger.since(ReaderPosition::Begins(0));
                assert!(ledger.take_back(&id));
            }
            _ => assert_eq!(ledger.answer(&id), Answered::Open(())),
        }
    }
    assert!(ledger.numbers.is_empty() && ledger.open.is_empty());
    assert_eq!(ledger.taken_back.len(), MAX_CLOSED);
    assert_eq!(ledger.answered.len(), MAX_CLOSED);
}

/// What happens to a session: a call comes, one of the open ones is closed, or the reader reads, and may
/// break off within what it is told, and begin again.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Answer(usize),
    TakeBack(usize),
    Read,
    BreakOff(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Open),
        2 => (0..8_usize).prop_map(Step::Answer),
        2 => (0..8_usize).prop_map(Step::TakeBack),
        3 => Just(Step::Read),
        2 => (0..3_usize).prop_map(Step::BreakOff),
    ]
}

proptest! {
    /// However often a reader breaks off: once it has read to the end it knows of every open call, and of no
    /// call that it was told of and that was taken back. It never hears of the end of a call that was never
    /// written for it, and its number never falls.
    #[test]
    fn a_reader_always_knows_what_is_open(steps in prop::collection::vec(step(), 1..60)) {
        let mut ledger: Ledger<()> = Ledger::default();
        let mut answered = BTreeSet::new();
        let mut written = BTreeSet::new();
        let mut known: BTreeSet<String> = BTreeSet::new();
        let mut number = 0;
        let mut reader = ReaderPosition::Begins(0);
        let mut made = 0;
        for step in steps.into_iter().chain([Step::Read]) {
            let nth = |n: usize, ledger: &Ledger<()>| {
                ledger.calls().nth(n).map(|call| call.id.clone())
            };
            match step {
                Step::Open => {
                    made += 1;
                    let _ = ledger.open(call(&format!("c{made}")), ());
                }
                Step::Answer(n) => if let Some(id) = nth(n, &ledger) {
                    prop_assert_eq!(ledger.answer(&id), Answered::Open(()));
                    answered.insert(id);
                },
                Step::TakeBack(n) => if let Some(id) = nth(n, &ledger) {
                    prop_assert!(ledger.take_back(&id));
                },
                Step::Read | Step::BreakOff(_) => {
                    let all = ledger.since(reader);
                    let read = match step { Step::BreakOff(n) => n, _ => all.len() };
                    for told in &all {
                        if let What::Opened(calls) = &told.what {
                            written.extend(calls.iter().map(|call| call.id.clone()));
                        }
                    }
                    for told in all.into_iter().take(read) {
                        prop_assert!(told.number >= number);
                        number = told.number;
                        match told.what {
                            What::Opened(calls) => for call in calls {
                                known.insert(call.id.clone());
                            },
                            What::TakenBack(id) => {
                                prop_assert!(written.contains(&id));
                                known.remove(&id);
                            }
                        }
                    }
                    reader = match step {
                        Step::BreakOff(_) => ReaderPosition::Begins(number),
                        _ => ReaderPosition::Goes(ledger.last()),
                    };
                }
            }
        }
        let open: BTreeSet<String> = ledger.calls().map(|call| call.id.clone()).collect();
        let known: BTreeSet<String> = known.difference(&answered).cloned().collect();
        prop_assert_eq!(known, open);
    }
}
