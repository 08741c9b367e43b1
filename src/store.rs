//! What outlives a request: turns that wait for the client's answers to its own calls, and responses that later
//! requests name.
//!
//! [`Store`] is the one interface. [`sqlite`] keeps entries in a file, [`memory`] as long as the process runs. Its
//! operations are written for several processes on one store: what is kept has its expiry with it, and what may change
//! is changed by compare-and-set. [`StoreEntries`] is what the gateway uses: the configured store, and memory for what that cannot take. `turns` and
//! [`responses`] say what the entries of each kind hold.

use std::{
    borrow::Cow,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcetera::BaseStrategy;
use futures::future::BoxFuture;
use serde::Serialize;
use tokio::time::sleep;

pub use self::{
    memory::Memory,
    sqlite::{OpenError, Sqlite},
    turns::{FoundUnder, NewTurn},
};
use toolway_core::agent::parked::{NoRoom, Parked};

pub mod confirmations;
pub mod conversations;
pub mod memory;
mod outcomes;
pub mod responses;
mod servers;
pub mod sessions;
pub mod sqlite;
mod turns;

/// Pause before entries are offered again to a store that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Whose entries they are: a hash of the client's credentials.
pub type Principal = u64;

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A turn that waits for the client's results.
    Turn,
    /// A response and what it answered.
    Response,
    /// What came of a call that a client has approved.
    Outcome,
    /// A conversation with its items.
    Conversation,
    /// A call that waits for a person, or was decided on.
    Confirmation,
    /// An approval that holds for later calls.
    Grant,
    /// The servers that were added while toolway ran.
    Servers,
}

/// How many entries of a kind are kept, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct StoreBounds {
    /// Most entries.
    pub entries: usize,
    /// Most bytes of their contents.
    pub bytes: usize,
    /// How long one is kept.
    pub age: Duration,
}

/// A day.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl EntryKind {
    /// The word for it in a file.
    pub fn as_str(self) -> &'static str {
        match self {
            EntryKind::Turn => "turn",
            EntryKind::Response => "response",
            EntryKind::Outcome => "outcome",
            EntryKind::Conversation => "conversation",
            EntryKind::Confirmation => "confirmation",
            EntryKind::Grant => "grant",
            EntryKind::Servers => "servers",
        }
    }

    /// How many are kept. Clients of chats send their whole history with every request, so a turn is needed as long as
    /// its conversation lasts.
    pub fn bounds(self) -> StoreBounds {
        let (bytes, age) = match self {
            EntryKind::Turn => (128 << 20, 7 * DAY),
            EntryKind::Response => (64 << 20, DAY),
            EntryKind::Outcome => (16 << 20, 7 * DAY),
            EntryKind::Conversation => (64 << 20, 30 * DAY),
            EntryKind::Confirmation => (64 << 20, DAY),
            EntryKind::Grant => (16 << 20, 3650 * DAY),
            // As long as they are wanted.
            EntryKind::Servers => (16 << 20, 36_500 * DAY),
        };
        match cfg!(test) {
            true => StoreBounds {
                entries: 100,
                bytes: 1 << 20,
                age,
            },
            false => StoreBounds {
                entries: 10_000,
                bytes,
                age,
            },
        }
    }

    /// Its first key is its id: a new entry takes the place of the one before. Calls of turns have ids that upstreams
    /// choose, and may choose again.
    fn has_id(self) -> bool {
        self != EntryKind::Turn
    }
}

/// How much is held, by all clients or by one.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    entries: usize,
    bytes: usize,
}

impl Held {
    fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes;
    }

    fn subtract(&mut self, bytes: usize) {
        self.entries -= 1;
        self.bytes -= bytes;
    }

    /// It is more than a share of `1 / part` of what is kept.
    fn exceeds(self, bounds: &StoreBounds, part: usize) -> bool {
        self.entries > bounds.entries / part || self.bytes > bounds.bytes / part
    }
}

/// What is kept.
#[derive(Debug)]
pub struct StoreEntry {
    /// What it holds.
    pub kind: EntryKind,
    /// Only this client finds it.
    pub principal: Principal,
    /// What it is found by.
    pub keys: Vec<String>,
    /// See [`StoredContent`].
    pub content: StoredContent,
}

/// What an entry holds: values where they are kept in memory and not copied, else JSON, which takes a fraction of the
/// memory.
#[derive(Clone, Debug)]
pub enum StoredContent {
    /// Of a turn.
    Turn(Arc<Parked>),
    /// Of every other kind.
    Json(Arc<str>),
}

impl StoredContent {
    fn read(kind: EntryKind, text: &str) -> Result<StoredContent, serde_json::Error> {
        Ok(match kind {
            EntryKind::Turn => StoredContent::Turn(Arc::new(serde_json::from_str(text)?)),
            _ => StoredContent::Json(text.into()),
        })
    }

    fn text(&self) -> Result<Cow<'_, str>, serde_json::Error> {
        Ok(match self {
            StoredContent::Turn(parked) => serde_json::to_string(&**parked)?.into(),
            StoredContent::Json(text) => Cow::Borrowed(text),
        })
    }

    /// About how many bytes it takes.
    fn bytes(&self) -> usize {
        match self {
            // The transcript holds the client's calls too, and stands for what they take beside it.
            StoredContent::Turn(parked) => {
                parked.transcript.messages().len() + parked.cut_results.bytes()
            }
            StoredContent::Json(text) => text.len(),
        }
    }
}

/// An entry, and the key that it was looked up by.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    /// The key.
    pub key: String,
    /// What it holds. One entry that is found by several keys is loaded once.
    pub content: StoredContent,
}

/// Where entries are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataDir {
    /// In the platform's folder for data of programs, such as `~/.local/share/toolway`; in memory where toolway cannot
    /// write to it.
    #[default]
    Default,
    /// In this folder.
    Folder(PathBuf),
    /// In memory.
    Memory,
}

/// Why a store could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The caller has no room for what was found.
    #[error("there is no room for what was found")]
    NoRoom,
    /// The store fails: the disk is full, the file is locked or damaged.
    #[error("{0}")]
    Unavailable(String),
}

/// Asked for the bytes that found entries take in memory, each time for more; false refuses.
pub type Reserve<'a> = dyn FnMut(usize) -> bool + Send + 'a;

/// Keeps entries until they expire, within the [`StoreBounds`] of their kind; for more, the oldest go, and those of a client
/// that holds more than half go first.
pub trait Store: fmt::Debug + Send + Sync {
    /// Keeps an entry. It survives the end of the process, where the store does, once this has ended. An entry that
    /// alone exceeds the bounds of its kind is not kept, so that the others are not lost for it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; the entry is not kept.
    fn keep<'a>(&'a self, entry: &'a Arc<StoreEntry>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// What this client has under these keys, the newest first.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] when `reserve` refuses, [`StoreError::Unavailable`] when it cannot be read.
    fn find<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        keys: &'a [String],
        reserve: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundEntry>, StoreError>>;

    /// Removes the entries that this client has under a key. False if there was none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; nothing is removed.
    fn remove<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// What all clients have of a kind, the newest first, and at most a few thousand.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn list(&self, kind: EntryKind) -> BoxFuture<'_, Result<Vec<StoredContent>, StoreError>>;

    /// Replaces what this client has under a key, if that is `before`. False if it is not; of several that replace the same
    /// text, one gets true.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; it may have been replaced.
    fn replace<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
        before: &'a str,
        after: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Nothing of this kind is kept; false where that is not known.
    fn is_empty(&self, kind: EntryKind) -> bool;

    /// `memory` or `sqlite`.
    fn name(&self) -> &'static str;
}

/// How the store is, for `/health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreHealth {
    /// See [`Store::name`].
    pub kind: &'static str,
    /// `ready`, or `degraded`: some entries are in memory only.
    pub state: &'static str,
    /// Why it is degraded.
    pub reason: Option<String>,
}

/// Entries of every kind: in the configured store, and in memory while that fails.
#[derive(Debug)]
pub struct StoreEntries(Arc<StoreInner>);

#[derive(Debug)]
struct StoreInner {
    store: Arc<dyn Store>,
    /// What the store has not taken yet.
    spare: Memory,
    /// Why the default folder is not used.
    unopened: Option<OpenError>,
    fault: Mutex<Option<String>>,
    /// A task offers what is in `spare` to the store again.
    retries: AtomicBool,
    /// Held while an entry goes from the memory to the store.
    moving: tokio::sync::Mutex<()>,
}

impl Default for StoreEntries {
    fn default() -> StoreEntries {
        StoreEntries::new(Arc::new(Memory::default()))
    }
}

impl StoreEntries {
    /// Opens the store in this place.
    ///
    /// # Errors
    /// See [`OpenError`]. Where the default folder cannot be written to, entries are kept in memory, and
    /// [`StoreEntries::health`] says so.
    pub fn open(place: &DataDir) -> Result<StoreEntries, OpenError> {
        let opened = match place {
            DataDir::Memory => return Ok(StoreEntries::default()),
            DataDir::Folder(folder) => Sqlite::open(folder),
            DataDir::Default => match default_folder() {
                Ok(folder) => Sqlite::open(&folder),
                Err(error) => Err(error),
            },
        };
        match opened {
            Ok(store) => {
                tracing::info!(file = %store.path().display(), "Mixed turns and responses are stored in a file");
                Ok(StoreEntries::new(Arc::new(store)))
            }
            Err(error @ OpenError::Io { .. }) if *place == DataDir::Default => {
                tracing::warn!(
                    "{error}; mixed turns and responses are kept in memory, and are lost when toolway ends"
                );
                Ok(StoreEntries::with(Arc::new(Memory::default()), Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Entries that are kept in this store.
    pub fn new(store: Arc<dyn Store>) -> StoreEntries {
        StoreEntries::with(store, None)
    }

    fn with(store: Arc<dyn Store>, unopened: Option<OpenError>) -> StoreEntries {
        StoreEntries(Arc::new(StoreInner {
            store,
            spare: Memory::default(),
            unopened,
            fault: Mutex::default(),
            retries: AtomicBool::new(false),
            moving: tokio::sync::Mutex::default(),
        }))
    }

    /// Keeps an entry. What the store does not take is kept in memory, and offered to it again every few seconds.
    pub async fn keep(&self, entry: StoreEntry) {
        let entry = Arc::new(entry);
        let _alone = self.0.while_nothing_moves(entry.kind).await;
        if let Err(error) = self.0.store.keep(&entry).await {
            self.0.spare.add(&entry);
            self.0.failed(&error);
            if !self.0.retries.swap(true, Ordering::AcqRel) {
                tokio::spawn(retry(Arc::downgrade(&self.0)));
            }
        } else {
            // An older one of the same id must neither be found nor be offered to the store again.
            if let Some(id) = entry.keys.first().filter(|_| entry.kind.has_id()) {
                self.0.spare.forget(entry.kind, entry.principal, id);
            }
            self.0.works();
        }
    }

    /// What this client has under these keys, the newest first. While the store fails, it is what was kept since then.
    ///
    /// # Errors
    /// [`NoRoom`] when `reserve` refuses.
    pub async fn find(
        &self,
        kind: EntryKind,
        principal: Principal,
        keys: &[String],
        reserve: &mut Reserve<'_>,
    ) -> Result<Vec<FoundEntry>, NoRoom> {
        let mut all = self.0.spare.lookup(kind, principal, keys);
        match self.0.store.find(kind, principal, keys, reserve).await {
            Err(StoreError::NoRoom) => return Err(NoRoom),
            Err(error) => self.0.failed(&error),
            Ok(found) => {
                self.0.works();
                all.extend(found);
            }
        }
        Ok(all)
    }

    /// Removes what this client has under a key. False if there was nothing, or the store fails.
    pub async fn remove(&self, kind: EntryKind, principal: Principal, key: &str) -> bool {
        let _alone = self.0.while_nothing_moves(kind).await;
        let was_spare = self.0.spare.forget(kind, principal, key);
        match self.0.store.remove(kind, principal, key).await {
            Ok(was_there) => was_there || was_spare,
            Err(error) => {
                self.0.failed(&error);
                was_spare
            }
        }
    }

    /// What all clients have of a kind, the newest first. While the store fails, it is what was kept since then.
    pub async fn list(&self, kind: EntryKind) -> Vec<StoredContent> {
        let mut all = self.0.spare.all(kind);
        match self.0.store.list(kind).await {
            Ok(listed) => all.extend(listed),
            Err(error) => self.0.failed(&error),
        }
        all
    }

    /// Replaces what this client has under a key, if that is `before`. False if it is not, or the store fails.
    pub async fn replace(
        &self,
        kind: EntryKind,
        principal: Principal,
        key: &str,
        before: &str,
        after: &str,
    ) -> bool {
        let _alone = self.0.while_nothing_moves(kind).await;
        if self.0.spare.swap(kind, principal, key, before, after) {
            return true;
        }
        let replaced = self.0.store.replace(kind, principal, key, before, after);
        replaced.await.unwrap_or_else(|error| {
            self.0.failed(&error);
            false
        })
    }

    /// Nothing of this kind is kept, so that no conversation needs to be looked through; false where that is not known.
    pub fn is_empty(&self, kind: EntryKind) -> bool {
        self.0.spare.is_empty(kind) && self.0.store.is_empty(kind)
    }

    /// The health of the store.
    pub fn health(&self) -> StoreHealth {
        let unopened = self.0.unopened.as_ref().map(ToString::to_string);
        let reason = unopened.or_else(|| self.0.fault().clone());
        StoreHealth {
            kind: self.0.store.name(),
            state: if reason.is_none() {
                "ready"
            } else {
                "degraded"
            },
            reason,
        }
    }
}

impl StoreInner {
    /// Holds up what is on its way from the memory to the store: it would bring back what is changed meanwhile.
    async fn while_nothing_moves(
        &self,
        kind: EntryKind,
    ) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match self.spare.is_empty(kind) {
            true => None,
            false => Some(self.moving.lock().await),
        }
    }

    /// Logs when the store begins to fail.
    fn failed(&self, error: &StoreError) {
        let mut fault = self.fault();
        if fault.is_none() {
            tracing::error!(
                "The store fails ({error}): mixed turns and responses are kept in memory until it works again, and are \
                 lost if toolway ends before"
            );
        }
        *fault = Some(error.to_string());
    }

    /// Logs when the store works again, and has all that was kept in memory meanwhile.
    fn works(&self) {
        let mut fault = self.fault();
        if fault.is_some() && self.spare.oldest().is_none() {
            tracing::info!("The store works again");
            *fault = None;
        }
    }

    fn fault(&self) -> MutexGuard<'_, Option<String>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Offers what was kept in memory to the store, until it has taken all.
async fn retry(entries: Weak<StoreInner>) {
    loop {
        sleep(RETRY).await;
        let Some(entries) = entries.upgrade() else {
            return;
        };
        loop {
            let _alone = entries.moving.lock().await;
            let Some((number, entry)) = entries.spare.oldest() else {
                break;
            };
            if entries.store.keep(&entry).await.is_err() {
                break;
            }
            entries.spare.remove_number(entry.kind, number);
        }
        if entries.spare.oldest().is_none() {
            entries.retries.store(false, Ordering::Release);
            entries.works();
            return;
        }
    }
}

/// The platform's folder for data of programs.
pub(crate) fn default_folder() -> Result<PathBuf, OpenError> {
    let strategy = etcetera::choose_base_strategy().map_err(|error| OpenError::Io {
        path: "the user's data folder".to_owned(),
        error: error.to_string(),
    })?;
    Ok(strategy.data_dir().join("toolway"))
}

#[cfg(test)]
mod tests;
