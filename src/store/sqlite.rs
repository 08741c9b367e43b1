//! Entries in a file: SQLite, which survives `kill -9` at any moment.
//!
//! One thread writes, and puts what waits into one transaction; readers have a connection of their own (WAL). Several
//! processes may share the file.

use std::{
    borrow::Cow,
    collections::HashSet,
    fmt,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use tokio::{
    sync::oneshot,
    task::{JoinError, spawn_blocking},
    time::timeout,
};

use super::{
    EntryKind, FoundEntry, Held, Principal, Reserve, Store, StoreEntry, StoreError, StoredContent,
};

#[cfg(test)]
mod tests;

/// The file in the data folder.
const FILE: &str = "toolway.db";

/// The version of the schema that this code reads and writes, in SQLite's `user_version`.
const SCHEMA: i64 = 2;

/// What leads from each version of the schema to the next one.
const MIGRATIONS: [&str; SCHEMA as usize] = [
    "
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
    ",
    "
    CREATE TABLE entries (
        entry INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        principal INTEGER NOT NULL,
        -- Seconds since 1970.
        expires INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        content TEXT NOT NULL
    ) STRICT;
    CREATE INDEX entries_by_expiry ON entries (expires);
    CREATE INDEX entries_by_principal ON entries (kind, principal, entry, bytes);
    CREATE TABLE keys (
        kind TEXT NOT NULL,
        principal INTEGER NOT NULL,
        key TEXT NOT NULL,
        entry INTEGER NOT NULL REFERENCES entries ON DELETE CASCADE,
        PRIMARY KEY (kind, principal, key, entry)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX keys_by_entry ON keys (entry);
    INSERT INTO entries SELECT turn, 'turn', principal, expires, bytes, parked FROM turns;
    INSERT INTO keys
        SELECT 'turn', calls.principal, format('%016x', question) || ' ' || id, turn FROM calls JOIN turns USING (turn);
    DROP TABLE calls;
    DROP TABLE turns;
    ",
];

/// How long SQLite waits for another process that writes.
const BUSY: Duration = Duration::from_secs(2);

/// How long a request waits for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Entries that wait to be written; for one more the store is unavailable.
const QUEUE: usize = 256;

/// Most entries of one transaction.
const BATCH: usize = 64;

/// Most entries that one look gives.
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

/// Entries in the file `toolway.db` of a folder.
pub struct Sqlite {
    path: PathBuf,
    writer: mpsc::SyncSender<Write>,
    /// Opened when it is first needed: most gateways have neither mixed turns nor responses.
    reader: Arc<Mutex<Option<Connection>>>,
}

/// What is to be done to the file.
enum StoreWrite {
    Keep(Arc<StoreEntry>),
    Remove(EntryKind, Principal, String),
    Replace {
        kind: EntryKind,
        principal: Principal,
        key: String,
        before: String,
        after: String,
    },
}

/// A change to be written, and who waits for that. The answer is whether anything was removed or
/// replaced.
struct Write {
    change: StoreWrite,
    done: oneshot::Sender<Result<bool, StoreError>>,
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

    /// Has the writer make a change, and waits for a bounded time.
    async fn write(&self, change: StoreWrite) -> Result<bool, StoreError> {
        let (done, written) = oneshot::channel();
        let queued = self.writer.try_send(Write { change, done });
        queued.map_err(|_| StoreError::Unavailable("too many entries wait".to_owned()))?;
        let written = timeout(STORE_TIMEOUT, written)
            .await
            .map_err(|_| too_slow())?;
        written.map_err(|_| StoreError::Unavailable("its thread has ended".to_owned()))?
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
    fn keep<'a>(&'a self, entry: &'a Arc<StoreEntry>) -> BoxFuture<'a, Result<(), StoreError>> {
        let change = StoreWrite::Keep(Arc::clone(entry));
        self.write(change).map_ok(|_| ()).boxed()
    }

    fn find<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        keys: &'a [String],
        reserve: &'a mut Reserve<'_>,
    ) -> BoxFuture<'a, Result<Vec<FoundEntry>, StoreError>> {
        async move {
            let keys = serde_json::to_string(keys).map_err(unavailable)?;
            let located = self.read(move |it| locate(it, kind, principal, &keys));
            let rows = located.await?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let mut entries: Vec<(i64, usize)> =
                rows.iter().map(|it| (it.entry, it.bytes)).collect();
            entries.dedup();
            // The text, and the values that are built from it.
            let bytes: usize = entries.iter().map(|(_, bytes)| 2 * bytes).sum();
            if !reserve(bytes) {
                return Err(StoreError::NoRoom);
            }
            let entries = entries.into_iter().map(|(entry, _)| entry).collect();
            let contents = self.read(move |it| load(it, kind, entries)).await?;
            let found = rows.into_iter().filter_map(|row| {
                let at = contents.iter().position(|(entry, _)| *entry == row.entry)?;
                let content = contents[at].1.clone();
                let key = row.key;
                Some(FoundEntry { key, content })
            });
            Ok(found.collect())
        }
        .boxed()
    }

    fn remove<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let change = StoreWrite::Remove(kind, principal, key.to_owned());
        self.write(change).boxed()
    }

    fn list(&self, kind: EntryKind) -> BoxFuture<'_, Result<Vec<StoredContent>, StoreError>> {
        self.read(move |it| list(it, kind)).boxed()
    }

    fn replace<'a>(
        &'a self,
        kind: EntryKind,
        principal: Principal,
        key: &'a str,
        before: &'a str,
        after: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.write(StoreWrite::Replace {
            kind,
            principal,
            key: key.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
        })
        .boxed()
    }

    fn is_empty(&self, _: EntryKind) -> bool {
        // Another process may have kept one.
        false
    }

    fn name(&self) -> &'static str {
        "sqlite"
    }
}

/// An entry without what it holds.
struct Row {
    key: String,
    entry: i64,
    bytes: usize,
}

/// The entries under these keys (a JSON array), the newest first.
fn locate(
    reader: &Connection,
    kind: EntryKind,
    principal: Principal,
    keys: &str,
) -> Result<Vec<Row>, StoreError> {
    let mut select = reader
        .prepare_cached(
            "SELECT keys.key, entry, bytes FROM json_each(?3) AS wanted \
             JOIN keys ON keys.kind = ?1 AND keys.principal = ?2 AND keys.key = wanted.value \
             JOIN entries USING (entry) WHERE expires > ?4 ORDER BY entry DESC LIMIT ?5",
        )
        .map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Row {
            key: row.get(0)?,
            entry: row.get(1)?,
            bytes: row.get(2)?,
        })
    };
    let principal = principal.cast_signed();
    let rows = select.query_map(
        params![kind.as_str(), principal, keys, now(), MAX_FOUND],
        read,
    );
    rows.and_then(Iterator::collect).map_err(unavailable)
}

/// What these entries hold. One that was removed in the meantime is left out.
fn load(
    reader: &Connection,
    kind: EntryKind,
    entries: Vec<i64>,
) -> Result<Vec<(i64, StoredContent)>, StoreError> {
    let mut select = reader
        .prepare_cached("SELECT content FROM entries WHERE entry = ?1")
        .map_err(unavailable)?;
    let mut all = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut rows = select.query([entry]).map_err(unavailable)?;
        if let Some(row) = rows.next().map_err(unavailable)? {
            let text = row
                .get_ref(0)
                .and_then(|it| Ok(it.as_str()?))
                .map_err(unavailable)?;
            all.push((entry, StoredContent::read(kind, text).map_err(unavailable)?));
        }
    }
    Ok(all)
}

/// What all clients have of a kind, the newest first.
fn list(reader: &Connection, kind: EntryKind) -> Result<Vec<StoredContent>, StoreError> {
    let mut select = reader
        .prepare_cached(
            "SELECT content FROM entries WHERE kind = ?1 AND expires > ?2 ORDER BY entry DESC LIMIT ?3",
        )
        .map_err(unavailable)?;
    let rows = select.query_map(params![kind.as_str(), now(), MAX_FOUND], |row| {
        row.get::<_, String>(0)
    });
    let texts: Vec<String> = rows.and_then(Iterator::collect).map_err(unavailable)?;
    let read = |text: &String| StoredContent::read(kind, text).map_err(unavailable);
    texts.iter().map(read).collect()
}

/// Writes until the store is dropped. Everything that waits goes into one transaction.
fn write_all(mut connection: Connection, queue: &mpsc::Receiver<Write>) {
    while let Ok(first) = queue.recv() {
        let waiting = queue.try_iter().take(BATCH - 1);
        let (changes, waiters): (Vec<_>, Vec<_>) = std::iter::once(first)
            .chain(waiting)
            .map(|it| (it.change, it.done))
            .unzip();
        let written = write(&mut connection, &changes);
        for (at, waiter) in waiters.into_iter().enumerate() {
            let written = written.as_ref().map(|removed| removed[at]);
            // A request that has ended does not wait any more.
            let _ = waiter.send(written.map_err(Clone::clone));
        }
    }
}

/// Makes these changes, and says of each whether it removed or replaced anything.
fn write(connection: &mut Connection, changes: &[StoreWrite]) -> Result<Vec<bool>, StoreError> {
    let texts = changes.iter().map(|change| match change {
        StoreWrite::Keep(entry) => entry.content.text(),
        StoreWrite::Remove(..) | StoreWrite::Replace { .. } => Ok("".into()),
    });
    let texts: Vec<Cow<'_, str>> = texts.collect::<Result<_, _>>().map_err(unavailable)?;
    let mut make_all = || -> Result<Vec<bool>, rusqlite::Error> {
        let now = now();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("DELETE FROM entries WHERE expires <= ?1", [now])?;
        let mut kept = HashSet::new();
        let mut removed = Vec::with_capacity(changes.len());
        for (change, text) in changes.iter().zip(&texts) {
            removed.push(match change {
                StoreWrite::Keep(entry) => {
                    kept.insert(entry.kind);
                    insert(&transaction, entry, text, now)?
                }
                StoreWrite::Remove(kind, principal, key) => {
                    remove(&transaction, *kind, *principal, key)?
                }
                StoreWrite::Replace {
                    kind,
                    principal,
                    key,
                    before,
                    after,
                } => replace(&transaction, (*kind, *principal, key), before, after)?,
            });
        }
        for kind in kept {
            make_room(&transaction, kind)?;
        }
        transaction.commit()?;
        Ok(removed)
    };
    make_all().map_err(unavailable)
}

/// Adds an entry, and returns true if it replaced another one. An entry larger than the bound of its kind is not kept.
fn insert(
    connection: &Connection,
    entry: &StoreEntry,
    text: &str,
    now: i64,
) -> Result<bool, rusqlite::Error> {
    let (kind, bounds) = (entry.kind, entry.kind.bounds());
    if text.len() > bounds.bytes {
        return Ok(false);
    }
    let replaces = match entry.keys.first().filter(|_| kind.has_id()) {
        Some(id) => remove(connection, kind, entry.principal, id)?,
        None => false,
    };
    let principal = entry.principal.cast_signed();
    let expires = now.saturating_add_unsigned(bounds.age.as_secs());
    connection
        .prepare_cached(
            "INSERT INTO entries (kind, principal, expires, bytes, content) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![kind.as_str(), principal, expires, text.len(), text])?;
    let row = connection.last_insert_rowid();
    let mut insert = connection.prepare_cached(
        "INSERT OR IGNORE INTO keys (kind, principal, key, entry) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for key in &entry.keys {
        insert.execute(params![kind.as_str(), principal, key, row])?;
    }
    Ok(replaces)
}

/// Removes what a client has under a key; false if that is nothing.
fn remove(
    connection: &Connection,
    kind: EntryKind,
    principal: Principal,
    key: &str,
) -> Result<bool, rusqlite::Error> {
    let mut delete = connection.prepare_cached(
        "DELETE FROM entries WHERE entry IN \
         (SELECT entry FROM keys WHERE kind = ?1 AND principal = ?2 AND key = ?3)",
    )?;
    let removed = delete.execute(params![kind.as_str(), principal.cast_signed(), key])?;
    Ok(removed > 0)
}

/// Replaces the text of an entry, if it is `before`.
fn replace(
    connection: &Connection,
    (kind, principal, key): (EntryKind, Principal, &str),
    before: &str,
    after: &str,
) -> Result<bool, rusqlite::Error> {
    let mut update = connection.prepare_cached(
        "UPDATE entries SET content = ?5, bytes = ?6 WHERE content = ?4 AND entry IN \
         (SELECT entry FROM keys WHERE kind = ?1 AND principal = ?2 AND key = ?3)",
    )?;
    let principal = principal.cast_signed();
    let bytes = after.len();
    let replaced = update.execute(params![kind.as_str(), principal, key, before, after, bytes])?;
    Ok(replaced > 0)
}

/// Keeps within the bounds: the oldest entries go, those of a client with more than half first.
fn make_room(connection: &Connection, kind: EntryKind) -> Result<(), rusqlite::Error> {
    let bounds = kind.bounds();
    let mut sums = connection.prepare_cached(
        "SELECT principal, count(*), sum(bytes) FROM entries WHERE kind = ?1 GROUP BY principal ORDER BY 3 DESC",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        let held = Held {
            entries: row.get(1)?,
            bytes: row.get(2)?,
        };
        Ok((row.get::<_, i64>(0)?, held))
    };
    let sums = sums.query_map([kind.as_str()], read)?;
    let mut held: Vec<(i64, Held)> = sums.collect::<Result<_, _>>()?;
    let mut all = Held {
        entries: held.iter().map(|(_, it)| it.entries).sum(),
        bytes: held.iter().map(|(_, it)| it.bytes).sum(),
    };
    let mut remove = connection.prepare_cached(
        "DELETE FROM entries WHERE entry = \
         (SELECT min(entry) FROM entries WHERE kind = ?1 AND (?2 IS NULL OR principal = ?2)) \
         RETURNING principal, bytes",
    )?;
    while all.exceeds(&bounds, 1) {
        let greedy = held.iter().find(|(_, it)| it.exceeds(&bounds, 2));
        let greedy = greedy.map(|(principal, _)| *principal);
        let (principal, bytes): (i64, usize) = remove
            .query_row(params![kind.as_str(), greedy], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        all.subtract(bytes);
        if let Some((_, holder)) = held.iter_mut().find(|(it, _)| *it == principal) {
            holder.subtract(bytes);
        }
    }
    Ok(())
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
pub(crate) fn make_private(folder: &Path, file: &Path) -> io::Result<()> {
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
