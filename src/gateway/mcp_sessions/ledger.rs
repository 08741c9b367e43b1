//! Which calls of a session are open, and what a reader of its events has yet to be told. Pure.
//!
//! A call is opened once and closed once: answered, or taken back. Everything that happens has a number, and a
//! reader says up to which number it has been told. A reader that is new is told of every open call, whatever
//! the one before it was told.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use toolway_protocol::tool::ToolCall;

/// Most calls of a session that are open at one time.
pub(super) const MAX_OPEN: usize = 64;

/// How many closed calls are remembered, of each kind.
const MAX_CLOSED: usize = 1024;

/// The calls of one session. `W` is the waiter for a call's answer.
#[derive(Debug)]
pub(super) struct Ledger<W> {
    /// By the number of their opening, so that readers are told in order.
    open: BTreeMap<u64, LedgerEntry<W>>,
    numbers: HashMap<String, u64>,
    /// The ids of answered calls, the oldest first.
    answered: VecDeque<String>,
    /// Calls that readers were told of and that were taken back, the oldest first.
    taken_back: VecDeque<TakenBack>,
    /// The number of what happened last; nothing has 0.
    last: u64,
}

#[derive(Debug)]
struct LedgerEntry<W> {
    call: Arc<ToolCall>,
    waiter: W,
    /// Some reader was told.
    is_told: bool,
}

#[derive(Debug)]
struct TakenBack {
    id: String,
    number: u64,
}

/// No more calls can be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What an answer is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered<W> {
    /// An open call, which this one waits for.
    Open(W),
    /// A call that was answered before.
    Before,
    /// No call, or one that was taken back.
    Nothing,
}

/// How much a reader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderPosition {
    /// It begins to read, and was told up to this number by an earlier reading; 0 for nothing.
    Begins(u64),
    /// It has been told up to this number.
    Goes(u64),
}

/// An event for a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Up to which number it has been told then; never less than before.
    pub(super) number: u64,
    /// What happened.
    pub(super) what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// These calls want an answer; at least one.
    Opened(Vec<Arc<ToolCall>>),
    /// The call with this id wants none any more.
    TakenBack(String),
}

impl<W> Default for Ledger<W> {
    fn default() -> Ledger<W> {
        Ledger {
            open: BTreeMap::new(),
            numbers: HashMap::new(),
            answered: VecDeque::new(),
            taken_back: VecDeque::new(),
            last: 0,
        }
    }
}

impl<W> Ledger<W> {
    /// Opens a call, whose id no other call of this session ever had.
    pub(super) fn open(&mut self, call: ToolCall, waiter: W) -> Result<(), Full> {
        if self.open.len() >= MAX_OPEN {
            return Err(Full);
        }
        self.last += 1;
        self.numbers.insert(call.id.clone(), self.last);
        let call = Arc::new(call);
        let open = LedgerEntry {
            call,
            waiter,
            is_told: false,
        };
        self.open.insert(self.last, open);
        Ok(())
    }

    /// Closes the call that an answer is for.
    pub(super) fn answer(&mut self, id: &str) -> Answered<W> {
        match self.close(id) {
            Some(open) => {
                remember(&mut self.answered, id.to_owned());
                Answered::Open(open.waiter)
            }
            None if self.answered.iter().any(|answered| answered == id) => Answered::Before,
            None => Answered::Nothing,
        }
    }

    /// Closes a call without a waiter. False if it was not open.
    pub(super) fn take_back(&mut self, id: &str) -> bool {
        let Some(open) = self.close(id) else {
            return false;
        };
        // A call that was not announced need not be cancelled.
        if open.is_told {
            self.last += 1;
            let (id, number) = (id.to_owned(), self.last);
            remember(&mut self.taken_back, TakenBack { id, number });
        }
        true
    }

    /// Closes every call. Readers are not told, for the end of the session says it all.
    pub(super) fn end(&mut self) -> Vec<W> {
        self.numbers.clear();
        let open = std::mem::take(&mut self.open);
        open.into_values().map(|open| open.waiter).collect()
    }

    /// The open calls, the oldest first.
    pub(super) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.open.values().map(|open| &*open.call)
    }

    /// The number of what happened last.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// What a reader has yet to be told, in the order in which it happened; calls that come one after another
    /// are told at once. After it the reader has been told up to [`Ledger::last`].
    pub(super) fn since(&mut self, reader: ReaderPosition) -> Vec<Told> {
        // A number that was never given is a mistake of the reader's; it misses nothing for it.
        let known = match reader {
            ReaderPosition::Begins(number) | ReaderPosition::Goes(number) => number.min(self.last),
        };
        let begins = matches!(reader, ReaderPosition::Begins(_));
        let mut happened: Vec<(u64, What)> = Vec::new();
        for (opened, open) in &mut self.open {
            if begins || *opened > known {
                open.is_told = true;
                happened.push((*opened, What::Opened(vec![open.call.clone()])));
            }
        }
        // A reader that begins with nothing has not heard of any call that is gone.
        if reader != ReaderPosition::Begins(0) {
            let gone = self.taken_back.iter().filter(|it| it.number > known);
            happened.extend(gone.map(|it| (it.number, What::TakenBack(it.id.clone()))));
        }
        happened.sort_by_key(|(number, _)| *number);
        joined(happened, known)
    }

    fn close(&mut self, id: &str) -> Option<LedgerEntry<W>> {
        let opened = self.numbers.remove(id)?;
        self.open.remove(&opened)
    }
}

/// Calls that come one after another become one. What is told again must not set a reader back, or it would
/// miss what lies between.
fn joined(happened: Vec<(u64, What)>, known: u64) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    for (number, what) in happened {
        let number = number.max(known);
        match (told.last_mut(), what) {
            (
                Some(Told {
                    number: so_far,
                    what: What::Opened(calls),
                }),
                What::Opened(more),
            ) => {
                calls.extend(more);
                *so_far = number;
            }
            (_, what) => told.push(Told { number, what }),
        }
    }
    told
}

/// Adds one to a list of bounded length; the oldest goes.
fn remember<T>(list: &mut VecDeque<T>, one: T) {
    if list.len() >= MAX_CLOSED {
        list.pop_front();
    }
    list.push_back(one);
}

#[cfg(test)]
mod tests;
