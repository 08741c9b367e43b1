//! What outlives a request: parked turns, which wait for the client's answers to its own calls.
//!
//! [`Store`] is the one interface. [`sqlite`] keeps them in a file, [`memory`] as long as the process runs. Its
//! operations are written for several processes on one store: nothing is listed, and what is kept has its expiry with
//! it. [`Turns`] is what the gateway uses: the configured store, and memory for what that cannot take.

use std::{
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
};
use toolway_core::agent::parked::{Found, Key, NoRoom, Parked};

pub mod memory;
pub mod responses;
pub mod sessions;
pub mod sqlite;

/// Most turns that a store keeps.
const MAX_TURNS: usize = if cfg!(test) { 100 } else { 10_000 };

/// Most bytes of turns that a store keeps.
const MAX_BYTES: usize = if cfg!(test) { 1 << 20 } else { 128 << 20 };

/// How long a turn is kept. Clients send their whole history with every request, so a turn is needed as long as its
/// conversation lasts.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Pause before turns are offered again to a store that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Whose conversation it is: a hash of the client's credentials.
pub type Principal = u64;

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

/// Where turns are kept.
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

/// Asked for the bytes that found turns take in memory, each time for more; false refuses.
pub type Reserve<'a> = dyn FnMut(usize) -> bool + Send + 'a;

/// Keeps turns until they expire. At most 10,000 turns and 128 MiB are kept, each for seven days; for more, the oldest
/// turns go, and those of a client that holds more than half go first.
pub trait Store: fmt::Debug + Send + Sync {
    /// Keeps a turn. It survives the end of the process, where the store does, once this has ended.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; the turn is not kept.
    fn park<'a>(&'a self, turn: &'a Arc<NewTurn>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// What this client parked under these keys, the newest first.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] when `reserve` refuses, [`StoreError::Unavailable`] when it cannot be read.
    fn find<'a>(
        &'a self,
        principal: Principal,
        keys: &'a [Key],
        reserve: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundUnder>, StoreError>>;

    /// Nothing is kept, so that no conversation needs to be looked through; false where that is not known.
    fn is_empty(&self) -> bool;

    /// `memory` or `sqlite`.
    fn kind(&self) -> &'static str;
}

/// How the store is, for `/health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreHealth {
    /// See [`Store::kind`].
    pub kind: &'static str,
    /// `ready`, or `degraded`: some turns are in memory only.
    pub state: &'static str,
    /// Why it is degraded.
    pub reason: Option<String>,
}

/// Parked turns: in the configured store, and in memory while that fails.
#[derive(Debug)]
pub struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    /// What the store has not taken yet.
    spare: Memory,
    /// Why the default folder is not used.
    unopened: Option<OpenError>,
    fault: Mutex<Option<String>>,
    /// A task offers what is in `spare` to the store again.
    retries: AtomicBool,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::new(Arc::new(Memory::default()))
    }
}

impl Turns {
    /// Opens the store in this place.
    ///
    /// # Errors
    /// See [`OpenError`]. Where the default folder cannot be written to, turns are kept in memory, and
    /// [`Turns::health`] says so.
    pub fn open(place: &DataDir) -> Result<Turns, OpenError> {
        let opened = match place {
            DataDir::Memory => return Ok(Turns::default()),
            DataDir::Folder(folder) => Sqlite::open(folder),
            DataDir::Default => match default_folder() {
                Ok(folder) => Sqlite::open(&folder),
                Err(error) => Err(error),
            },
        };
        match opened {
            Ok(store) => {
                tracing::info!(file = %store.path().display(), "Mixed turns are stored in a file");
                Ok(Turns::new(Arc::new(store)))
            }
            Err(error @ OpenError::Io { .. }) if *place == DataDir::Default => {
                tracing::warn!(
                    "{error}; mixed turns are kept in memory, and are lost when toolway ends"
                );
                Ok(Turns::with(Arc::new(Memory::default()), Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Turns that are kept in this store.
    pub fn new(store: Arc<dyn Store>) -> Turns {
        Turns::with(store, None)
    }

    fn with(store: Arc<dyn Store>, unopened: Option<OpenError>) -> Turns {
        Turns(Arc::new(Inner {
            store,
            spare: Memory::default(),
            unopened,
            fault: Mutex::default(),
            retries: AtomicBool::new(false),
        }))
    }

    /// Keeps a turn. What the store does not take is kept in memory, and offered to it again every few seconds.
    pub async fn park(&self, turn: NewTurn) {
        let turn = Arc::new(turn);
        if let Err(error) = self.0.store.park(&turn).await {
            self.0.spare.keep(&turn);
            self.0.failed(&error);
            if !self.0.retries.swap(true, Ordering::AcqRel) {
                tokio::spawn(retry(Arc::downgrade(&self.0)));
            }
        } else {
            self.0.works();
        }
    }

    /// What this client parked under these keys, the newest first. While the store fails, it is what was parked since
    /// then.
    ///
    /// # Errors
    /// [`NoRoom`] when `reserve` refuses.
    pub async fn find(
        &self,
        principal: Principal,
        keys: &[Key],
        reserve: &mut Reserve<'_>,
    ) -> Result<Vec<FoundUnder>, NoRoom> {
        let mut all = self.0.spare.lookup(principal, keys);
        match self.0.store.find(principal, keys, reserve).await {
            Err(StoreError::NoRoom) => return Err(NoRoom),
            Err(error) => self.0.failed(&error),
            Ok(found) => {
                self.0.works();
                all.extend(found);
            }
        }
        Ok(all)
    }

    /// Nothing is kept; false where that is not known.
    pub fn is_empty(&self) -> bool {
        self.0.spare.is_empty() && self.0.store.is_empty()
    }

    /// How the store is.
    pub fn health(&self) -> StoreHealth {
        let unopened = self.0.unopened.as_ref().map(ToString::to_string);
        let reason = unopened.or_else(|| self.0.fault().clone());
        StoreHealth {
            kind: self.0.store.kind(),
            state: if reason.is_none() {
                "ready"
            } else {
                "degraded"
            },
            reason,
        }
    }
}

impl Inner {
    /// Logs when the store begins to fail.
    fn failed(&self, error: &StoreError) {
        let mut fault = self.fault();
        if fault.is_none() {
            tracing::error!(
                "The store fails ({error}): mixed turns are kept in memory until it works again, and are lost if \
                 toolway ends before"
            );
        }
        *fault = Some(error.to_string());
    }

    /// Logs when the store works again, and has all that was kept in memory meanwhile.
    fn works(&self) {
        let mut fault = self.fault();
        if fault.is_some() && self.spare.is_empty() {
            tracing::info!("The store works again");
            *fault = None;
        }
    }

    fn fault(&self) -> MutexGuard<'_, Option<String>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Offers what was kept in memory to the store, until it has taken all.
async fn retry(turns: Weak<Inner>) {
    loop {
        sleep(RETRY).await;
        let Some(turns) = turns.upgrade() else {
            return;
        };
        while let Some(turn) = turns.spare.oldest() {
            if turns.store.park(&turn).await.is_err() {
                break;
            }
            turns.spare.remove(&turn);
        }
        if turns.spare.is_empty() {
            turns.retries.store(false, Ordering::Release);
            turns.works();
            return;
        }
    }
}

/// The platform's folder for data of programs.
fn default_folder() -> Result<PathBuf, OpenError> {
    let strategy = etcetera::choose_base_strategy().map_err(|error| OpenError::Io {
        path: "the user's data folder".to_owned(),
        error: error.to_string(),
    })?;
    Ok(strategy.data_dir().join("toolway"))
}

#[cfg(test)]
mod tests;
