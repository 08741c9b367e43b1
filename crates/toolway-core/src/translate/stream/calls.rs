//! The calls of one round, put together from their deltas.
//!
//! By the contract `index` says which call a delta belongs to. Where it is missing, always 0, or reused,
//! the id, the name and the state of the arguments say it: [`Calls::slot_for`] is the whole rule.

mod fragment;
mod slot;

use std::collections::HashSet;

use serde_json::Value;

use self::slot::Slot;
pub(crate) use self::{fragment::Fragment, slot::add_extra};
use super::{Known, MAX_CALLS, Owner, RoundCall, StreamError, mend_name};
use crate::translate::ids::Ids;
use toolway_protocol::tool::ToolCall;

/// The calls of one round, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    /// The call that the last delta belonged to.
    current: Option<usize>,
}

/// Where a fragment went.
#[derive(Debug)]
pub(crate) struct PushedFragment {
    /// The place of its call among the calls.
    pub place: usize,
    /// What it added to the name of the call.
    pub name: String,
}

impl Calls {
    /// Takes the elements of one delta, in order.
    pub(crate) fn push(
        &mut self,
        fragments: Vec<Fragment>,
        known: &dyn Known,
    ) -> Result<(), StreamError> {
        let mut touched = Vec::new();
        for fragment in fragments {
            self.push_one(fragment, &mut touched, known)?;
        }
        Ok(())
    }

    /// Takes one element, and tells which call it went to; `None` if it says nothing. `touched` are the
    /// calls that other elements of the same delta went to.
    pub(crate) fn push_one(
        &mut self,
        fragment: Fragment,
        touched: &mut Vec<usize>,
        known: &dyn Known,
    ) -> Result<Option<PushedFragment>, StreamError> {
        let place = self.slot_for(&fragment, touched, known);
        if place == self.slots.len() {
            if fragment.is_empty() {
                return Ok(None);
            }
            if place >= MAX_CALLS {
                return Err(StreamError::TooManyCalls);
            }
            self.slots.push(Slot::new(fragment.index));
        }
        let slot = &mut self.slots[place];
        let named = slot.name.len();
        slot.push(fragment, known);
        self.current = Some(place);
        touched.push(place);
        let name = slot.name.get(named..).unwrap_or_default().to_owned();
        Ok(Some(PushedFragment { place, name }))
    }

    /// Which call a fragment belongs to; one past the last for a new one.
    fn slot_for(&self, fragment: &Fragment, touched: &[usize], known: &dyn Known) -> usize {
        let new = self.slots.len();
        let by_id = |id: &str| self.slots.iter().rposition(|s| s.id.as_deref() == Some(id));
        let found = match (fragment.index, &fragment.id) {
            // The contract.
            (Some(index), id) => {
                let at = self
                    .slots
                    .iter()
                    .rposition(|slot| slot.index == Some(index));
                match (at, id.as_deref().and_then(by_id)) {
                    // The index is used again for another call, which has its turn to be continued.
                    (Some(_), Some(named)) if self.slots[named].index == Some(index) => Some(named),
                    // Calls that began without an index.
                    (None, Some(named)) if self.slots[named].index.is_none() => Some(named),
                    (at, _) => at,
                }
            }
            (None, Some(id)) => by_id(id).or_else(|| {
                // An id that comes late, or that is another one in every delta.
                let current = self.current.filter(|_| fragment.name.is_none())?;
                let slot = &self.slots[current];
                (slot.id.is_none() || !slot.arguments.is_whole()).then_some(current)
            }),
            (None, None) => self.current,
        };
        match found {
            Some(at) if self.slots[at].is_continued_by(fragment, touched.contains(&at), known) => {
                at
            }
            _ => new,
        }
    }

    /// No call has begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// There are calls, and the arguments of all of them are whole.
    pub(crate) fn are_whole(&self) -> bool {
        !self.is_empty()
            && self
                .slots
                .iter()
                .all(|s| s.arguments.is_whole() && !mend_name(&s.name).is_empty())
    }

    /// The arguments of a call are `{}` so far.
    pub(crate) fn is_placeholder(&self, place: usize) -> bool {
        self.slots
            .get(place)
            .is_some_and(|slot| slot.arguments.is_placeholder())
    }

    /// The arguments of a call were `{}`, and others came after that.
    pub(crate) fn was_placeholder(&self, place: usize) -> bool {
        self.slots
            .get(place)
            .is_some_and(|slot| slot.arguments.was_placeholder())
    }

    /// How many bytes of arguments and names are held.
    pub(crate) fn len(&self) -> usize {
        self.slots
            .iter()
            .map(|slot| slot.arguments.len() + slot.name.len())
            .sum()
    }

    /// The gateway's calls that have become complete since the last time, with their places in the round: in order,
    /// up to the first that is not complete. What comes after that may still change one of them.
    pub(crate) fn newly_complete(&mut self) -> Vec<(usize, ToolCall)> {
        let mut complete = Vec::new();
        for (place, slot) in self.slots.iter_mut().enumerate() {
            match slot.owner {
                Some(Owner::Client) => {}
                Some(Owner::Gateway) if slot.is_told_complete => {}
                Some(Owner::Gateway) => {
                    let Some(call) = slot.complete() else { break };
                    slot.is_told_complete = true;
                    complete.push((place, call));
                }
                None => break,
            }
        }
        complete
    }

    /// The deltas of the client's own calls that can be shown by now, numbered on from `shown`.
    pub(crate) fn show(&mut self, known: &dyn Known, answer: &mut ShownCalls) -> Vec<Value> {
        let last = self.slots.len().saturating_sub(1);
        for (at, slot) in self.slots.iter_mut().enumerate() {
            slot.decide(at < last, known);
        }
        answer.marks |= self.are_mixed();
        let slots = self.slots.iter_mut();
        slots.filter_map(|slot| slot.show(known, answer)).collect()
    }

    /// There is a call that the client does not see.
    fn are_mixed(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.owner == Some(Owner::Gateway))
    }

    /// Ends the round: decides what was left open, and shows the client what was held back.
    pub(crate) fn close(&mut self, known: &dyn Known, answer: &mut ShownCalls) -> Vec<Value> {
        for slot in &mut self.slots {
            slot.decide(true, known);
            slot.arguments.close();
        }
        answer.marks |= self.are_mixed();
        self.slots
            .iter_mut()
            .flat_map(|slot| slot.show_rest(known, answer))
            .collect()
    }

    /// Forgets calls that cannot be made, after they were passed on.
    pub(crate) fn drop_nameless(&mut self) {
        self.slots.retain(|slot| !mend_name(&slot.name).is_empty());
    }

    /// Gives the calls the ids under which the client knows them.
    pub(crate) fn set_ids(&mut self, ids: &[String]) {
        for (index, (slot, id)) in self.slots.iter_mut().zip(ids).enumerate() {
            slot.shown = Some((index, id.clone()));
        }
    }

    /// The calls, after [`close`](Calls::close), each with an id that no other of them has.
    pub(crate) fn into_calls(self, ids: &mut Ids) -> Result<Vec<RoundCall>, StreamError> {
        let mut used: HashSet<String> = self
            .slots
            .iter()
            .filter_map(|s| s.shown.as_ref().map(|(_, id)| id.clone()))
            .collect();
        let mut calls = Vec::new();
        for slot in self.slots {
            let name = mend_name(&slot.name).to_owned();
            if name.is_empty() {
                return Err(StreamError::InvalidCall);
            }
            let id = match slot.shown {
                Some((_, id)) => id,
                None => unused(slot.id, ids, |id| used.contains(id)),
            };
            used.insert(id.clone());
            calls.push(RoundCall {
                call: ToolCall {
                    id,
                    name,
                    arguments: slot.arguments.into_text(),
                },
                owner: slot.owner.unwrap_or(Owner::Gateway),
                kind: slot.kind,
                extra: slot.extra,
            });
        }
        Ok(calls)
    }
}

/// What of the client's own calls was shown in the answer so far, over all rounds.
#[derive(Debug)]
pub(crate) struct ShownCalls {
    pub ids: Ids,
    used: HashSet<String>,
    /// Calls that the client does not see came before, so that they will be parked: see
    /// [`MARK`](crate::translate::ids::MARK).
    pub(super) marks: bool,
}

impl ShownCalls {
    pub(crate) fn new(ids: Ids) -> ShownCalls {
        ShownCalls {
            ids,
            used: HashSet::new(),
            marks: false,
        }
    }

    /// A round of calls that the client does not see has ended, if another one follows.
    pub(crate) fn follow(&mut self) {
        self.marks = true;
    }

    fn add(&mut self, id: Option<String>, known: &dyn Known) -> (usize, String) {
        let used = &self.used;
        let id = unused(id, &mut self.ids, |id| {
            used.contains(id) || !known.claims(id)
        });
        self.used.insert(id.clone());
        (self.used.len() - 1, id)
    }
}

/// The model's id, or a new one where it gave none or one that is in use.
fn unused(id: Option<String>, ids: &mut Ids, is_used: impl Fn(&str) -> bool) -> String {
    let mut id = id.unwrap_or_else(|| ids.call());
    while is_used(&id) {
        id = ids.call();
    }
    id
}
