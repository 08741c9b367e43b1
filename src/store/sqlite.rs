//! Turns in a file: SQLite, which survives `kill -9` at any moment.
//!
//! One thread writes, and puts what waits into one transaction; readers have a connection of their own (WAL). Several
//! processes may share the file.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::{FutureExt, future::BoxFuture};
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use tokio::{
    sync::oneshot,
    task::{JoinError, spawn_blocking},
    time::timeout,
};

use super::{
    FoundUnder, MAX_AGE, MAX_BYTES, MAX_TURNS, NewTurn, Principal, Reserve, Store, StoreError,
};
use toolway_core::agent::parked::{Found, Key, Parked};

#[cfg(test)]
mod tests;

/// The file in the data folder.
const FILE: &str = "toolway.db";

/// The version of the schema that this code reads and writes, in SQLite's `user_version`.
const SCHEMA: i64 = 1;

/// What leads from each version of the schema to the next one.
const MIGRATIONS: [&str; SCHEMA as usize] = ["
    CREATE TABLE turns (
        turn INTEGER PRIMARY KEY AUTOINCREMENT,
        principal INTEGER NOT NULL,
        question INTEGER NOT NULL,
        -- Seconds since 1970.
        expires INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        parked TEXT NOT NULL
    ) STRICT;
    CREATE INDEX turns_by_expiry ON turns (expires);
    CREATE INDEX turns_by_principal ON turns (principal, turn, bytes);
    CREATE TABLE calls (
        principal INTEGER NOT NULL,
        id TEXT NOT NULL,
        turn INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
        PRIMARY KEY (principal, id, turn)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX calls_by_turn ON calls (turn);
"];

/// How long SQLite waits for another process that writes.
const BUSY: Duration = Duration::from_secs(2);

/// How long a request waits for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Turns that wait to be written; for one more the store is unavailable.
const QUEUE: usize = 256;

/// Most turns of one transaction.
const BATCH: usize = 64;

/// Most turns that one look gives.
const MAX_FOUND: usize = 4096;

/// Why the file cannot be used. The message says what can be done.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or the file cannot be made or read.
    #[error(
        "cannot open `{path}`: {error}; set `data_dir` (or `--data-dir`) to a folder that toolway may write to, or to \":memory:\""
    )]
    Io {
        /// The folder or file.
        path: String,
        /// What the system or SQLite said.
        error: String,
    },
    /// It is no database, or its pages contradict each other.
    #[error(
        "`{path}` is damaged ({error}); move it and the files beside it with the same beginning away, and toolway begins a new one"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What SQLite said.
        error: String,
    },
    /// A newer toolway has written it.
    #[error(
        "`{path}` was written by a newer toolway (schema {found}; this one knows up to {known}); use that one, or another `data_dir`"
    )]
    Newer {
        /// The file.
        path: String,
        /// Its version.
        found: i64,
        /// The newest that is known here.
        known: i64,
    },
    /// Another process has locked it.
    #[error("`{path}` is locked by another process; end that process, or use another `data_dir`")]
    Locked {
        /// The file.
        path: String,
    },
}

/// Parked turns in the file `toolway.db` of a folder.
pub struct Sqlite {
    path: PathBuf,
    writer: mpsc::SyncSender<Write>,
    /// Opened when it is first needed: most gateways have no mixed turns.
    reader: Arc<Mutex<Option<Connection>>>,
}

/// A turn to be written, and who waits for that.
struct Write {
    turn: Arc<NewTurn>,
    done: oneshot::Sender<Result<(), StoreError>>,
}

impl Sqlite {
    /// Opens the file in this folder, and makes both where they are missing, for the user alone (mode 0600, 0700).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(folder: &Path) -> Result<Sqlite, OpenError> {
        let path = folder.join(FILE);
        make_private(folder, &path).map_err(|error| OpenError::Io {
            path: path.display().to_string(),
            error: error.to_string(),
        })?;
        let open = || -> Result<_, rusqlite::Error> {
            let mut writer = connect(&path)?;
            writer.pragma_update(None, "journal_mode", "wal")?;
            let version = migrate(&mut writer)?;
            let damage: String = writer.query_row("PRAGMA quick_check(1)", (), |row| row.get(0))?;
            Ok((writer, version, damage))
        };
        let (writer, version, damage) = open().map_err(|error| refuse(&path, &error))?;
        let shown = || path.display().to_string();
        if version > SCHEMA {
            return Err(OpenError::Newer {
                path: shown(),
                found: version,
                known: SCHEMA,
            });
        }
        if damage != "ok" {
            return Err(OpenError::Damaged {
                path: shown(),
                error: damage,
            });
        }
        let (sender, queue) = mpsc::sync_channel(QUEUE);
        let thread = thread::Builder::new().name("store".to_owned());
        let spawned = thread.spawn(move || write_all(writer, &queue));
        spawned.map_err(|error| OpenError::Io {
            path: shown(),
            error: error.to_string(),
        })?;
        Ok(Sqlite {
            path,
            writer: sender,
            reader: Arc::default(),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads on a thread of its own, for a bounded time.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let reader = Arc::clone(&self.reader);
        let path = self.path.clone();
        let reading = spawn_blocking(move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            match &*reader {
                Some(reader) => read(reader),
                None => read(reader.insert(connect(&path).map_err(unavailable)?)),
            }
        });
        timeout(STORE_TIMEOUT, reading)
            .await
            .map_err(|_| too_slow())??
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sqlite").field(&self.path).finish()
    }
}

impl Store for Sqlite {
    fn park<'a>(&'a self, turn: &'a Arc<NewTurn>) -> BoxFuture<'a, Result<(), StoreError>> {
        async {
            let (done, written) = oneshot::channel();
            let turn = Arc::clone(turn);
            let queued = self.writer.try_send(Write { turn, done });
            queued.map_err(|_| StoreError::Unavailable("too many turns wait".to_owned()))?;
            let written = timeout(STORE_TIMEOUT, written)
                .await
                .map_err(|_| too_slow())?;
            written.map_err(|_| StoreError::Unavailable("its thread has ended".to_owned()))?
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        principal: Principal,
        keys: &'a [Key],
        reserve: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundUnder>, StoreError>> {
        async move {
            let keys: Vec<_> = keys
                .iter()
                .map(|key| (&key.id, key.question.cast_signed()))
                .collect();
            let keys = serde_json::to_string(&keys).map_err(unavailable)?;
            let rows = self.read(move |it| locate(it, principal, &keys)).await?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let mut turns: Vec<(i64, usize)> = rows.iter().map(|it| (it.turn, it.bytes)).collect();
            turns.dedup();
            // The text, and the values that are built from it.
            let bytes: usize = turns.iter().map(|(_, bytes)| 2 * bytes).sum();
            if !reserve(bytes) {
                return Err(StoreError::NoRoom);
            }
            let turns = turns.into_iter().map(|(turn, _)| turn).collect();
            let parked = self.read(move |it| load(it, turns)).await?;
            let found = rows.into_iter().filter_map(|row| {
                let at = parked.iter().position(|(turn, _)| *turn == row.turn)?;
                let parked = Arc::clone(&parked[at].1);
                let question = row.question;
                Some(FoundUnder {
                    id: row.id,
                    found: Found { question, parked },
                })
            });
            Ok(found.collect())
        }
        .boxed()
    }

    fn is_empty(&self) -> bool {
        // Another process may have parked one.
        false
    }

    fn kind(&self) -> &'static str {
        "sqlite"
    }
}

/// A turn without what was parked.
struct Row {
    id: String,
    turn: i64,
    question: u64,
    bytes: usize,
}

/// The turns under these keys (a JSON array of id and question), the newest first.
fn locate(reader: &Connection, principal: Principal, keys: &str) -> Result<Vec<Row>, StoreError> {
    let mut select = reader
        .prepare_cached(
            "SELECT calls.id, turn, question, bytes FROM json_each(?2) AS key \
             JOIN calls ON calls.principal = ?1 AND calls.id = key.value ->> 0 \
             JOIN turns USING (turn) \
             WHERE question = key.value ->> 1 AND expires > ?3 ORDER BY turn DESC LIMIT ?4",
        )
        .map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Row {
            id: row.get(0)?,
            turn: row.get(1)?,
            question: row.get::<_, i64>(2)?.cast_unsigned(),
            bytes: row.get(3)?,
        })
    };
    let rows = select.query_map(
        params![principal.cast_signed(), keys, now(), MAX_FOUND],
        read,
    );
    rows.and_then(Iterator::collect).map_err(unavailable)
}

/// What was parked in these turns. One that was removed in the meantime is left out.
fn load(reader: &Connection, turns: Vec<i64>) -> Result<Vec<(i64, Arc<Parked>)>, StoreError> {
    let mut select = reader
        .prepare_cached("SELECT parked FROM turns WHERE turn = ?1")
        .map_err(unavailable)?;
    let mut all = Vec::with_capacity(turns.len());
    for turn in turns {
        let mut rows = select.query([turn]).map_err(unavailable)?;
        if let Some(row) = rows.next().map_err(unavailable)? {
            let text = row
                .get_ref(0)
                .and_then(|it| Ok(it.as_str()?))
                .map_err(unavailable)?;
            let parked = serde_json::from_str(text).map_err(unavailable)?;
            all.push((turn, Arc::new(parked)));
        }
    }
    Ok(all)
}

/// Writes until the store is dropped. Everything that waits goes into one transaction.
fn write_all(mut connection: Connection, queue: &mpsc::Receiver<Write>) {
    while let Ok(first) = queue.recv() {
        let batch: Vec<Write> = std::iter::once(first)
            .chain(queue.try_iter().take(BATCH - 1))
            .collect();
        let written = write(&mut connection, &batch);
        for it in batch {
            // A request that has ended does not wait any more.
            let _ = it.done.send(written.clone());
        }
    }
}

fn write(connection: &mut Connection, batch: &[Write]) -> Result<(), StoreError> {
    let parked: Result<Vec<String>, _> = batch
        .iter()
        .map(|it| serde_json::to_string(&*it.turn.parked))
        .collect();
    let parked = parked.map_err(unavailable)?;
    let mut insert_all = || -> Result<(), rusqlite::Error> {
        let now = now();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("DELETE FROM turns WHERE expires <= ?1", [now])?;
        for (it, parked) in batch.iter().zip(&parked) {
            insert(&transaction, &it.turn, parked, now)?;
        }
        transaction.commit()
    };
    insert_all().map_err(unavailable)
}

/// Adds a turn, and removes others until all are within the bounds. A turn that is larger than the bound of the whole
/// store is not kept.
fn insert(
    connection: &Connection,
    turn: &NewTurn,
    parked: &str,
    now: i64,
) -> Result<(), rusqlite::Error> {
    if parked.len() > MAX_BYTES {
        return Ok(());
    }
    let principal = turn.principal.cast_signed();
    let expires = now.saturating_add_unsigned(MAX_AGE.as_secs());
    connection
        .prepare_cached(
            "INSERT INTO turns (principal, question, expires, bytes, parked) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![principal, turn.question.cast_signed(), expires, parked.len(), parked])?;
    let row = connection.last_insert_rowid();
    let mut call = connection
        .prepare_cached("INSERT OR IGNORE INTO calls (principal, id, turn) VALUES (?1, ?2, ?3)")?;
    for it in &turn.parked.client_calls {
        call.execute(params![principal, it.id, row])?;
    }
    make_room(connection)
}

/// Keeps within the bounds: the oldest turns go, those of a client with more than half first.
fn make_room(connection: &Connection) -> Result<(), rusqlite::Error> {
    let mut sums = connection.prepare_cached(
        "SELECT principal, count(*), sum(bytes) FROM turns GROUP BY principal ORDER BY 3 DESC",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Held {
            principal: row.get(0)?,
            turns: row.get(1)?,
            bytes: row.get(2)?,
        })
    };
    let mut held: Vec<Held> = sums.query_map((), read)?.collect::<Result<_, _>>()?;
    let mut all = Held {
        principal: 0,
        turns: held.iter().map(|it| it.turns).sum(),
        bytes: held.iter().map(|it| it.bytes).sum(),
    };
    let mut remove = connection.prepare_cached(
        "DELETE FROM turns WHERE turn = (SELECT min(turn) FROM turns WHERE ?1 IS NULL OR principal = ?1) \
         RETURNING principal, 1, bytes",
    )?;
    while all.turns > MAX_TURNS || all.bytes > MAX_BYTES {
        let greedy = held
            .iter()
            .find(|it| it.turns > MAX_TURNS / 2 || it.bytes > MAX_BYTES / 2);
        let removed = remove.query_row([greedy.map(|it| it.principal)], read)?;
        all.less(&removed);
        if let Some(holder) = held.iter_mut().find(|it| it.principal == removed.principal) {
            holder.less(&removed);
        }
    }
    Ok(())
}

/// What one client holds.
struct Held {
    principal: i64,
    turns: usize,
    bytes: usize,
}

impl Held {
    fn less(&mut self, removed: &Held) {
        self.turns -= removed.turns;
        self.bytes -= removed.bytes;
    }
}

fn connect(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // A transaction is on the disk when it has ended.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    connection.pragma_update(None, "cache_size", -512)?;
    Ok(connection)
}

/// Brings the schema to the newest version, and gives the version that the file has then.
fn migrate(connection: &mut Connection) -> Result<i64, rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version >= SCHEMA {
        return Ok(version);
    }
    let done = usize::try_from(version).unwrap_or_default();
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA)?;
    transaction.commit()?;
    Ok(SCHEMA)
}

/// Makes the folder and the file, for the user alone. SQLite gives the files beside it the same rights.
fn make_private(folder: &Path, file: &Path) -> io::Result<()> {
    // Opening a pipe would wait for its other end.
    if fs::metadata(file).is_ok_and(|it| !it.is_file()) {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
        builder.mode(0o700).create(folder)?;
        let file = options.mode(0o600).open(file)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))
    }
    #[cfg(not(unix))]
    {
        builder.create(folder)?;
        options.open(file).map(|_| ())
    }
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().cast_signed())
}

fn refuse(path: &Path, error: &rusqlite::Error) -> OpenError {
    let path = path.display().to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => OpenError::Damaged {
            path,
            error: error.to_string(),
        },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Locked { path },
        _ => OpenError::Io {
            path,
            error: error.to_string(),
        },
    }
}

fn unavailable(error: impl fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

fn too_slow() -> StoreError {
    StoreError::Unavailable(format!("it took longer than {STORE_TIMEOUT:?}"))
}

impl From<JoinError> for StoreError {
    fn from(error: JoinError) -> StoreError {
        unavailable(error)
    }
}
