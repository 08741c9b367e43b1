//! Calls that wait for the approval of a person, whatever face they came through, and what was decided.
//!
//! Every change is a compare-and-set: of all tasks and processes on one store, one makes it. An entry stays for a day after
//! its call was asked for, so that what was decided can be read.

use serde::{Deserialize, Serialize};

use super::{EntryKind, FoundEntry, Principal, StoreEntries, StoreEntry, StoredContent};

/// A call that waits for a person, or was decided on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    /// Its name; it cannot be guessed.
    pub id: String,
    /// Whose call it is.
    pub principal: Principal,
    /// The name of the client's key, if keys are configured.
    pub key: Option<String>,
    /// The face that the call came through.
    pub face: String,
    /// The session of the request, where there is one.
    pub session: Option<String>,
    /// The server.
    pub server: String,
    /// The tool's own name at the server.
    pub tool: String,
    /// The tool's offered name.
    pub name: String,
    /// Hash of the tool's definition.
    pub definition: String,
    /// Hash of the tool's definition and the arguments: what is approved is what runs.
    pub call: String,
    /// The arguments as a JSON text, for the person who decides.
    pub arguments: String,
    /// The rule that asks.
    pub rule: String,
    /// Its reason.
    pub reason: Option<String>,
    /// The risk of the tool, 1 to 3, if it is configured.
    pub risk: Option<u8>,
    /// When it was asked for, in milliseconds since 1970.
    pub created: u64,
    /// When it cannot be decided on or used any more, in milliseconds since 1970.
    pub expires: u64,
    /// What became of it.
    pub state: ConfirmationState,
}

/// What became of a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfirmationState {
    /// Nobody has decided.
    Pending,
    /// The call may be made, once.
    Approved,
    /// The call may not be made.
    Denied,
    /// The call was made, or is being made.
    Used,
}

/// An approval that holds for later calls as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its name.
    pub id: String,
    /// Whose calls it allows.
    pub principal: Principal,
    /// The tool's offered name, for people.
    pub name: String,
    /// The arguments, for people, if it is for one call only.
    pub arguments: Option<String>,
    /// The hash of the call or of the tool's definition.
    pub hash: String,
    /// It holds only for requests with this session.
    pub session: Option<String>,
    /// When it was given, in milliseconds since 1970.
    pub created: u64,
}

impl Confirmation {
    /// Its state can change until then.
    pub fn is_live(&self, now: u64) -> bool {
        now < self.expires
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl StoreEntries {
    /// Keeps a new confirmation. With `by_call` the same call finds it.
    pub async fn keep_confirmation(&self, confirmation: &Confirmation, by_call: bool) {
        let by_call = by_call.then(|| key_of_call(&confirmation.call));
        let keys = [confirmation.id.clone()].into_iter().chain(by_call);
        self.keep(StoreEntry {
            kind: EntryKind::Confirmation,
            principal: confirmation.principal,
            keys: keys.collect(),
            content: StoredContent::Json(confirmation.text().into()),
        })
        .await;
    }

    /// The confirmations of this client for a call, the newest first.
    pub async fn confirmations_of(&self, principal: Principal, call: &str) -> Vec<Confirmation> {
        let keys = [key_of_call(call)];
        let found = self.find_small(EntryKind::Confirmation, principal, &keys);
        read_all(found.await.into_iter().map(|it| it.content))
    }

    /// The confirmation of this name, if it is this client's.
    pub async fn confirmation(&self, principal: Principal, id: &str) -> Option<Confirmation> {
        let keys = [id.to_owned()];
        let found = self.find_small(EntryKind::Confirmation, principal, &keys);
        read_all(found.await.into_iter().map(|it| it.content)).pop()
    }

    /// The confirmations of every client, the newest first.
    pub async fn all_confirmations(&self) -> Vec<Confirmation> {
        read_all(self.list(EntryKind::Confirmation).await.into_iter())
    }

    /// Changes the state of a confirmation that is still as it was read. False if it is not, or the store fails: then
    /// nothing has changed, or what has changed is not known, and no call may be made for it.
    pub async fn change_confirmation(&self, read: &Confirmation, state: ConfirmationState) -> bool {
        let after = Confirmation {
            state,
            ..read.clone()
        };
        let (before, after) = (read.text(), after.text());
        self.replace(
            EntryKind::Confirmation,
            read.principal,
            &read.id,
            &before,
            &after,
        )
        .await
    }

    /// Removes a confirmation.
    pub async fn forget_confirmation(&self, confirmation: &Confirmation) -> bool {
        let Confirmation { principal, id, .. } = confirmation;
        self.remove(EntryKind::Confirmation, *principal, id).await
    }

    /// Keeps a grant.
    pub async fn keep_grant(&self, grant: &Grant) {
        self.keep(StoreEntry {
            kind: EntryKind::Grant,
            principal: grant.principal,
            keys: vec![grant.id.clone(), grant.hash.clone()],
            content: StoredContent::Json(serde_json::to_string(grant).unwrap_or_default().into()),
        })
        .await;
    }

    /// The grants of this client under these hashes.
    pub async fn grants_of(&self, principal: Principal, hashes: [String; 2]) -> Vec<Grant> {
        let found = self.find_small(EntryKind::Grant, principal, &hashes);
        read_all(found.await.into_iter().map(|it| it.content))
    }

    /// The grants of every client, the newest first.
    pub async fn all_grants(&self) -> Vec<Grant> {
        read_all(self.list(EntryKind::Grant).await.into_iter())
    }

    /// Takes a grant back. False if it is not there.
    pub async fn revoke(&self, grant: &Grant) -> bool {
        self.remove(EntryKind::Grant, grant.principal, &grant.id)
            .await
    }

    /// Entries of these kinds are small, so that no room is reserved for them.
    async fn find_small(
        &self,
        kind: EntryKind,
        principal: Principal,
        keys: &[String],
    ) -> Vec<FoundEntry> {
        let found = self.find(kind, principal, keys, &mut |_| true).await;
        found.unwrap_or_default()
    }
}

fn key_of_call(call: &str) -> String {
    format!("call {call}")
}

fn read_all<T: for<'de> Deserialize<'de>>(contents: impl Iterator<Item = StoredContent>) -> Vec<T> {
    let read = |content| match content {
        StoredContent::Json(text) => serde_json::from_str(&text).ok(),
        StoredContent::Turn(_) => None,
    };
    contents.filter_map(read).collect()
}
