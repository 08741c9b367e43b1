//! Calls that come and end as events: each is requested once and ends once, and a result may come in parts (D-20, D-22 of
//! issue 12).
//!
//! Decides only; what is sent of it is for `translate::events`.

use std::collections::BTreeMap;

/// Most calls of one request.
pub const MAX_CALLS: usize = 256;

/// Longest result that comes in parts, in bytes.
const MAX_RESULT_BYTES: usize = 16 << 20;

/// Most parts of a result.
const MAX_PARTS: usize = 10_000;

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It was requested and has not ended.
    Requested,
    /// It has a result.
    Succeeded,
    /// It failed.
    Failed,
    /// It was given up.
    Cancelled,
}

/// An event that does not fit the phase of its call; the call stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PhaseError {
    /// No such call was requested.
    #[error("no call of this id was requested")]
    Unknown,
    /// The id is that of an earlier call.
    #[error("a call of this id was requested before")]
    Repeated,
    /// The call has ended before.
    #[error("the call has ended before")]
    Ended,
    /// The result has more than 16 MiB or 10,000 parts.
    #[error("the result has more than 16 MiB or 10,000 parts")]
    TooLong,
    /// There are more than [`MAX_CALLS`].
    #[error("there are more than {MAX_CALLS} calls")]
    TooMany,
}

impl PhaseError {
    /// Its type in an event.
    pub fn kind(self) -> &'static str {
        match self {
            PhaseError::Unknown => "unknown_tool_call_id",
            PhaseError::Repeated => "duplicate_tool_call_id",
            PhaseError::Ended => "tool_call_ended",
            PhaseError::TooLong => "result_too_large",
            PhaseError::TooMany => "too_many_tool_calls",
        }
    }
}

/// A part of a result, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPart {
    /// Its place; absent: after all that came before.
    pub seq: Option<u64>,
    /// Its text.
    pub text: String,
    /// It is the last in its place; parts before it may still come.
    pub is_last: bool,
}

#[derive(Debug)]
struct PhasedCall {
    id: String,
    phase: Phase,
    parts: BTreeMap<u64, String>,
    bytes: usize,
    last: Option<u64>,
}

/// The calls of one request, in the order in which they were requested.
#[derive(Debug, Default)]
pub struct Phases {
    calls: Vec<PhasedCall>,
}

impl Phases {
    /// A call is requested.
    ///
    /// # Errors
    /// [`PhaseError::Repeated`], [`PhaseError::TooMany`].
    pub fn request(&mut self, id: &str) -> Result<(), PhaseError> {
        if self.phase(id).is_some() {
            return Err(PhaseError::Repeated);
        }
        if self.calls.len() == MAX_CALLS {
            return Err(PhaseError::TooMany);
        }
        self.calls.push(PhasedCall {
            id: id.to_owned(),
            phase: Phase::Requested,
            parts: BTreeMap::new(),
            bytes: 0,
            last: None,
        });
        Ok(())
    }

    /// A part of a call's result has come. Gives the whole text when all parts are there, whatever their order; a part
    /// that came before is ignored.
    ///
    /// # Errors
    /// See [`PhaseError`].
    pub fn part(&mut self, id: &str, part: ResultPart) -> Result<Option<String>, PhaseError> {
        let call = self.open(id)?;
        let after = call.parts.last_key_value().map_or(0, |(seq, _)| seq + 1);
        let seq = part.seq.unwrap_or(after);
        if call.parts.contains_key(&seq) || call.last.is_some_and(|last| seq > last) {
            return Ok(None);
        }
        call.bytes += part.text.len();
        if call.bytes > MAX_RESULT_BYTES || call.parts.len() == MAX_PARTS {
            call.phase = Phase::Failed;
            return Err(PhaseError::TooLong);
        }
        call.parts.insert(seq, part.text);
        if part.is_last {
            call.last = Some(seq);
        }
        Ok(call.whole())
    }

    /// A call has ended so.
    ///
    /// # Errors
    /// [`PhaseError::Unknown`], [`PhaseError::Ended`].
    pub fn end(&mut self, id: &str, phase: Phase) -> Result<(), PhaseError> {
        self.open(id)?.phase = phase;
        Ok(())
    }

    /// How far a call is; `None` if it was not requested.
    pub fn phase(&self, id: &str) -> Option<Phase> {
        let call = self.calls.iter().find(|call| call.id == id);
        call.map(|call| call.phase)
    }

    /// Ends the calls whose results lack parts: the id of each and what came of its result before the first gap.
    pub fn give_up_on_parts(&mut self) -> Vec<(String, String)> {
        let begun =
            |call: &&mut PhasedCall| call.phase == Phase::Requested && !call.parts.is_empty();
        let begun = self.calls.iter_mut().filter(begun);
        begun
            .map(|call| {
                call.phase = Phase::Failed;
                (call.id.clone(), call.in_order().collect())
            })
            .collect()
    }

    fn open(&mut self, id: &str) -> Result<&mut PhasedCall, PhaseError> {
        let call = self.calls.iter_mut().find(|call| call.id == id);
        let call = call.ok_or(PhaseError::Unknown)?;
        match call.phase {
            Phase::Requested => Ok(call),
            Phase::Succeeded | Phase::Failed | Phase::Cancelled => Err(PhaseError::Ended),
        }
    }
}

impl PhasedCall {
    /// The result, if all its parts are there.
    fn whole(&mut self) -> Option<String> {
        let is_whole = self.in_order().count() as u64 == self.last? + 1;
        if !is_whole {
            return None;
        }
        self.phase = Phase::Succeeded;
        Some(std::mem::take(&mut self.parts).into_values().collect())
    }

    /// The parts before the first gap.
    fn in_order(&self) -> impl Iterator<Item = &str> {
        let parts = self.parts.iter().zip(0..);
        let parts = parts.take_while(|((seq, _), expected)| **seq == *expected);
        parts.map(|((_, text), _)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(seq: u64, text: &str, is_last: bool) -> ResultPart {
        ResultPart {
            seq: Some(seq),
            text: text.to_owned(),
            is_last,
        }
    }

    fn requested() -> Phases {
        let mut phases = Phases::default();
        phases.request("c1").unwrap();
        phases
    }

    #[test]
    fn a_call_ends_once_d_22() {
        for end in [Phase::Succeeded, Phase::Failed, Phase::Cancelled] {
            let mut phases = requested();
            assert_eq!(phases.phase("c1"), Some(Phase::Requested));
            phases.end("c1", end).unwrap();
            assert_eq!(phases.phase("c1"), Some(end));
            assert_eq!(phases.end("c1", Phase::Succeeded), Err(PhaseError::Ended));
            assert_eq!(
                phases.part("c1", part(0, "x", true)),
                Err(PhaseError::Ended)
            );
            assert_eq!(phases.request("c1"), Err(PhaseError::Repeated));
        }
    }

    #[test]
    fn what_was_not_requested_cannot_end_d_22() {
        let mut phases = requested();
        assert_eq!(phases.end("c2", Phase::Failed), Err(PhaseError::Unknown));
        assert_eq!(
            phases.part("c2", part(0, "", true)),
            Err(PhaseError::Unknown)
        );
    }

    #[test]
    fn a_result_that_lacks_its_end_is_given_up_with_what_came_d_20() {
        let mut phases = requested();
        phases.part("c1", part(0, "Fetched ", false)).unwrap();
        phases.part("c1", part(2, "orders", false)).unwrap();
        let expected = [("c1".to_owned(), "Fetched ".to_owned())];
        assert_eq!(phases.give_up_on_parts(), expected);
        assert_eq!(phases.phase("c1"), Some(Phase::Failed));
    }

    #[test]
    fn a_result_is_bounded() {
        let mut phases = requested();
        let text = "x".repeat(MAX_RESULT_BYTES);
        assert_eq!(phases.part("c1", part(0, &text, false)), Ok(None));
        assert_eq!(
            phases.part("c1", part(1, "x", true)),
            Err(PhaseError::TooLong)
        );
        for at in 1..MAX_CALLS {
            phases.request(&at.to_string()).unwrap();
        }
        assert_eq!(phases.request("more"), Err(PhaseError::TooMany));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_and_more_than_once_are_one_text_d_20(
            texts in prop::collection::vec("[a-z]{0,4}", 1..8),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        ) {
            let mut phases = requested();
            let last = texts.len() - 1;
            let all: Vec<ResultPart> = texts.iter().enumerate()
                .map(|(at, text)| part(at as u64, text, at == last)).collect();
            let sent = order.iter().map(|at| at.index(all.len())).chain(0..all.len());
            let mut whole = Vec::new();
            for at in sent {
                match phases.part("c1", all[at].clone()) {
                    Ok(text) => whole.extend(text),
                    Err(error) => prop_assert_eq!(error, PhaseError::Ended),
                }
            }
            prop_assert_eq!(whole, [texts.concat()]);
        }
    }
}
