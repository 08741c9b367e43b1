//! Parked turns, which wait for the client's answers to its own calls.

use std::sync::Arc;

use toolway_core::agent::parked::{Found, Key, NoRoom, Parked};

use super::{EntryKind, FoundEntry, Principal, Reserve, StoreEntries, StoreEntry, StoredContent};

/// A turn to be kept under the ids of the client's calls in it.
#[derive(Debug)]
pub struct NewTurn {
    /// Only this client finds it.
    pub principal: Principal,
    /// See [`Found::question`].
    pub question: u64,
    /// What is kept.
    pub parked: Arc<Parked>,
}

/// A turn, and the id of the client's call that it was looked up by.
#[derive(Clone, Debug)]
pub struct FoundUnder {
    /// The call's id, without a mark.
    pub id: String,
    /// The turn. Turns of several ids share one [`Found::parked`].
    pub found: Found,
}

impl StoreEntries {
    /// Keeps a turn.
    pub async fn park(&self, turn: NewTurn) {
        self.keep(turn.into()).await;
    }

    /// What this client parked under these keys, the newest first.
    ///
    /// # Errors
    /// [`NoRoom`] when `reserve` refuses.
    pub async fn find_turns(
        &self,
        principal: Principal,
        keys: &[Key],
        reserve: &mut Reserve<'_>,
    ) -> Result<Vec<FoundUnder>, NoRoom> {
        let keys: Vec<String> = keys.iter().map(|it| key(&it.id, it.question)).collect();
        let found = self
            .find(EntryKind::Turn, principal, &keys, reserve)
            .await?;
        Ok(found.into_iter().filter_map(read).collect())
    }
}

impl From<NewTurn> for StoreEntry {
    fn from(turn: NewTurn) -> StoreEntry {
        let calls = turn.parked.client_calls.iter();
        StoreEntry {
            kind: EntryKind::Turn,
            principal: turn.principal,
            keys: calls.map(|call| key(&call.id, turn.question)).collect(),
            content: StoredContent::Turn(turn.parked),
        }
    }
}

/// The key of a call after this question.
pub(super) fn key(id: &str, question: u64) -> String {
    format!("{question:016x} {id}")
}

/// The turn in an entry.
pub(super) fn read(entry: FoundEntry) -> Option<FoundUnder> {
    let (question, id) = entry.key.split_once(' ')?;
    let question = u64::from_str_radix(question, 16).ok()?;
    let StoredContent::Turn(parked) = entry.content else {
        return None;
    };
    Some(FoundUnder {
        id: id.to_owned(),
        found: Found { question, parked },
    })
}
