//! The order of a turn's parts, and their seals, for clients that do not send them back.
//!
//! A chat message has its text in one member, its reasoning in another and its calls in a third, and many clients keep the
//! first and the last only. Providers that seal reasoning want the turn back as they gave it, so what they gave is kept
//! here under the ids of its calls. Nothing is lost with it but thoughts: a turn that is not found is sent as the client
//! has it.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
};

use super::{Call, Delta, Part, Reasoning, Role, Sealed, Turn};

/// Longest turn that is kept, in bytes of its texts.
const MAX_TURN_BYTES: usize = 4 << 20;

/// Puts the parts of an answer together from its deltas.
#[derive(Debug, Default)]
pub struct PartsBuilder {
    parts: Vec<Part>,
    bytes: usize,
}

impl PartsBuilder {
    /// Adds what a delta says.
    pub fn add(&mut self, delta: &Delta) {
        self.bytes += match delta {
            Delta::Text(text) | Delta::Thought(text) | Delta::Arguments(_, text) => text.len(),
            Delta::Sealed(reasoning) => size_of_reasoning(reasoning),
            Delta::Call(_, call) => size_of_call(call),
            _ => return,
        };
        if self.bytes > MAX_TURN_BYTES {
            self.parts = Vec::new();
            return;
        }
        match delta {
            Delta::Text(text) => match self.parts.last_mut() {
                Some(Part::Text(before)) => before.push_str(text),
                _ => self.parts.push(Part::Text(text.clone())),
            },
            Delta::Thought(text) => match self.parts.last_mut() {
                Some(Part::Reasoning(Reasoning {
                    text: before,
                    sealed: None,
                })) => before.push_str(text),
                _ => self.parts.push(Part::Reasoning(Reasoning {
                    text: text.clone(),
                    sealed: None,
                })),
            },
            Delta::Sealed(sealed) => match self.parts.last_mut() {
                Some(Part::Reasoning(open)) if open.sealed.is_none() => *open = sealed.clone(),
                _ => self.parts.push(Part::Reasoning(sealed.clone())),
            },
            Delta::Call(_, call) => self.parts.push(Part::Call(call.clone())),
            Delta::Arguments(number, text) => {
                let call = calls_mut(&mut self.parts).nth(*number);
                call.into_iter()
                    .for_each(|call| call.arguments.push_str(text));
            }
            _ => {}
        }
    }

    /// The parts in their order, if a client that keeps texts and calls only would lose a seal.
    pub fn sealed(self) -> Option<Vec<Part>> {
        let is_sealed = |part: &Part| match part {
            Part::Reasoning(reasoning) => reasoning.sealed.is_some(),
            Part::Call(call) => call.sealed.is_some(),
            _ => false,
        };
        let has_calls = calls(&self.parts).next().is_some();
        (has_calls && self.parts.iter().any(is_sealed)).then_some(self.parts)
    }
}

/// Turns of a provider's models that have calls and seals, up to a number of bytes; the oldest are dropped first.
#[derive(Debug)]
pub struct SealedTurns {
    /// By the client and the id of the first call.
    turns: HashMap<(u64, String), Arc<Vec<Part>>>,
    /// The keys of `turns` with the bytes of each, the oldest first.
    order: VecDeque<((u64, String), usize)>,
    bytes: usize,
    max_bytes: usize,
}

impl SealedTurns {
    /// Keeps `max_bytes` of turns.
    pub fn new(max_bytes: usize) -> SealedTurns {
        SealedTurns {
            turns: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    /// Keeps a turn from [`PartsBuilder::sealed`] for this client.
    pub fn keep(&mut self, client: u64, parts: Vec<Part>) {
        let Some(call) = calls(&parts).next() else {
            return;
        };
        let key = (client, call.id.clone());
        let bytes = parts.iter().map(size).sum::<usize>() + ENTRY;
        if bytes > self.max_bytes {
            return;
        }
        if self.turns.insert(key.clone(), Arc::new(parts)).is_some() {
            // The entry of the same key: providers give each call an id of its own, so this is rare.
            let before = self.order.iter().position(|(other, _)| *other == key);
            let removed = before.and_then(|before| self.order.remove(before));
            self.bytes -= removed.map_or(0, |(_, bytes)| bytes);
        }
        self.bytes += bytes;
        self.order.push_back((key, bytes));
        while self.bytes > self.max_bytes
            && let Some((key, bytes)) = self.order.pop_front()
        {
            self.turns.remove(&key);
            self.bytes -= bytes;
        }
    }

    /// The turn of this client whose first call has this id.
    pub fn find(&self, client: u64, id: &str) -> Option<Arc<Vec<Part>>> {
        if self.turns.is_empty() {
            return None;
        }
        self.turns.get(&(client, id.to_owned())).cloned()
    }
}

/// What a turn takes besides its texts, in bytes.
const ENTRY: usize = 256;

/// Gives the turns of a conversation their seals and the order of their parts back. `find` is asked for what was kept under
/// the id of a turn's first call.
pub fn restore(turns: &mut [Turn], find: impl Fn(&str) -> Option<Arc<Vec<Part>>>) {
    for turn in turns.iter_mut().filter(|turn| turn.role == Role::Assistant) {
        let first = calls(&turn.parts).next();
        if let Some(kept) = first.and_then(|call| find(&call.id)) {
            let given = mem::take(&mut turn.parts);
            turn.parts = restore_turn(&kept, given);
        }
    }
}

/// The kept parts if the client has the same text and calls, with the arguments that the client has. Where it has the
/// same calls and another text, the thoughts come first.
fn restore_turn(kept: &[Part], mut given: Vec<Part>) -> Vec<Part> {
    let is_same = |(kept, given): (&Call, &Call)| kept.id == given.id && kept.name == given.name;
    let same_calls =
        calls(kept).count() == calls(&given).count() && calls(kept).zip(calls(&given)).all(is_same);
    if !same_calls {
        return given;
    }
    for (given, kept) in calls_mut(&mut given).zip(calls(kept)) {
        given.sealed.clone_from(&kept.sealed);
    }
    if said(kept).trim() == said(&given).trim() && given.iter().all(is_common) {
        let mut given = given.into_iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            _ => None,
        });
        let in_order = kept.iter().map(|part| match part {
            Part::Call(call) => Part::Call(given.next().unwrap_or_else(|| call.clone())),
            other => other.clone(),
        });
        return in_order.collect();
    }
    if !given.iter().any(is_reasoning) {
        let thoughts = kept.iter().filter(|part| is_reasoning(part));
        given.splice(0..0, thoughts.cloned());
    }
    given
}

fn is_reasoning(part: &Part) -> bool {
    matches!(part, Part::Reasoning(_))
}

/// The part is of a kind that is kept.
fn is_common(part: &Part) -> bool {
    matches!(part, Part::Text(_) | Part::Reasoning(_) | Part::Call(_))
}

fn calls(parts: &[Part]) -> impl Iterator<Item = &Call> {
    parts.iter().filter_map(|part| match part {
        Part::Call(call) => Some(call),
        _ => None,
    })
}

fn calls_mut(parts: &mut [Part]) -> impl Iterator<Item = &mut Call> {
    parts.iter_mut().filter_map(|part| match part {
        Part::Call(call) => Some(call),
        _ => None,
    })
}

/// All text of a turn.
fn said(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The bytes of a part's texts.
fn size(part: &Part) -> usize {
    match part {
        Part::Text(text) => text.len(),
        Part::Reasoning(reasoning) => size_of_reasoning(reasoning),
        Part::Call(call) => size_of_call(call),
        _ => 0,
    }
}

fn size_of_reasoning(reasoning: &Reasoning) -> usize {
    reasoning.text.len() + size_of_seal(reasoning.sealed.as_ref())
}

fn size_of_call(call: &Call) -> usize {
    call.id.len() + call.name.len() + call.arguments.len() + size_of_seal(call.sealed.as_ref())
}

fn size_of_seal(sealed: Option<&Sealed>) -> usize {
    sealed.map_or(0, |sealed| sealed.data.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::{dialect::Source, stream::CallKind};

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn thought(text: &str, seal: &str) -> Part {
        Part::Reasoning(reasoning(text, seal))
    }

    fn reasoning(text: &str, seal: &str) -> Reasoning {
        Reasoning {
            text: text.to_owned(),
            sealed: Some(sealed(seal)),
        }
    }

    fn sealed(data: &str) -> Sealed {
        Sealed {
            source: Source::Anthropic,
            id: None,
            data: data.to_owned(),
        }
    }

    fn call(id: &str, arguments: &str) -> Call {
        Call {
            id: id.to_owned(),
            name: "look".to_owned(),
            arguments: arguments.to_owned(),
            kind: CallKind::Function,
            sealed: None,
        }
    }

    fn answer() -> Vec<Part> {
        let mut builder = PartsBuilder::default();
        for delta in [
            Delta::Thought("a".to_owned()),
            Delta::Thought("b".to_owned()),
            Delta::Sealed(reasoning("ab", "s1")),
            Delta::Text("I ".to_owned()),
            Delta::Text("look. ".to_owned()),
            Delta::Sealed(reasoning("", "s2")),
            Delta::Text("Now.".to_owned()),
            Delta::Call(0, call("c1", "")),
            Delta::Arguments(0, "{}".to_owned()),
        ] {
            builder.add(&delta);
        }
        builder.sealed().unwrap()
    }

    fn restored(given: Vec<Part>) -> Vec<Part> {
        let mut kept = SealedTurns::new(10_000);
        kept.keep(7, answer());
        let mut turns = [Turn {
            role: Role::Assistant,
            name: None,
            parts: given,
        }];
        restore(&mut turns, |id| kept.find(7, id));
        let [turn] = turns;
        turn.parts
    }

    #[test]
    fn an_answer_is_kept_with_its_parts_in_their_order() {
        assert_eq!(
            answer(),
            [
                thought("ab", "s1"),
                text("I look. "),
                thought("", "s2"),
                text("Now."),
                Part::Call(call("c1", "{}")),
            ]
        );
    }

    #[test]
    fn an_answer_without_calls_or_without_seals_is_not_kept() {
        let built = |deltas: &[Delta]| {
            let mut builder = PartsBuilder::default();
            deltas.iter().for_each(|delta| builder.add(delta));
            builder.sealed()
        };
        assert_eq!(built(&[Delta::Sealed(reasoning("a", "s"))]), None);
        assert_eq!(built(&[Delta::Call(0, call("c1", "{}"))]), None);
    }

    #[test]
    fn a_client_that_keeps_text_and_calls_only_gets_everything_in_its_place() {
        let given = vec![text("I look. Now."), Part::Call(call("c1", "{ }"))];
        let mut expected = answer();
        *expected.last_mut().unwrap() = Part::Call(call("c1", "{ }"));
        assert_eq!(restored(given), expected);
    }

    #[test]
    fn a_client_that_moved_the_thoughts_gets_them_in_their_place() {
        let given = vec![
            thought("ab", "s1"),
            thought("", "s2"),
            text("I look. Now.\n"),
            Part::Call(call("c1", "{}")),
        ];
        assert_eq!(restored(given), answer());
    }

    #[test]
    fn where_the_text_was_changed_the_thoughts_come_first() {
        let given = vec![text("Something else."), Part::Call(call("c1", "{}"))];
        assert_eq!(
            restored(given),
            [
                thought("ab", "s1"),
                thought("", "s2"),
                text("Something else."),
                Part::Call(call("c1", "{}")),
            ]
        );
    }

    #[test]
    fn where_the_calls_were_changed_the_turn_stays_as_the_client_has_it() {
        let mut other = call("c1", "{}");
        other.name = "other".to_owned();
        for given in [
            vec![text("I look. Now."), Part::Call(other)],
            vec![Part::Call(call("c1", "{}")), Part::Call(call("c2", "{}"))],
        ] {
            assert_eq!(restored(given.clone()), given);
        }
    }

    #[test]
    fn another_client_gets_nothing() {
        let mut kept = SealedTurns::new(10_000);
        kept.keep(7, answer());
        assert!(kept.find(8, "c1").is_none());
        assert!(kept.find(7, "c1").is_some());
    }

    #[test]
    fn the_oldest_turns_make_room() {
        let turn = |id: &str| {
            vec![
                thought("", "s"),
                text(&"x".repeat(1000)),
                Part::Call(call(id, "{}")),
            ]
        };
        let mut kept = SealedTurns::new(4000);
        for id in ["a", "b", "a", "c", "d"] {
            kept.keep(1, turn(id));
        }
        let found = ["a", "b", "c", "d"].map(|id| kept.find(1, id).is_some());
        assert_eq!(found, [true, false, true, true]);
        kept.keep(1, vec![text(&"x".repeat(5000)), Part::Call(call("e", ""))]);
        assert!(kept.find(1, "e").is_none());
    }
}
