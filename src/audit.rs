//! The audit: a record of every call, of every decision on one, and of every change of a server's state.
//!
//! [`Audit::record`] hands a record to a bounded queue and never waits; one thread writes. What finds no room is lost,
//! counted, and the count is a record of its own. `toolway_core::audit` says what a record holds; nothing of a call is
//! decided here.
//! Read next: `files` and `memory`, where records are kept.

mod files;
mod memory;
mod page;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use serde_json::Value;
use tokio::{
    sync::{Semaphore, broadcast, oneshot},
    task::spawn_blocking,
    time::timeout,
};

pub use self::page::{AuditPage, AuditQuery, InvalidCursor};
use self::{
    files::{RecordFiles, Retention},
    memory::RecordsInMemory,
};
use crate::{
    store::{DataDir, default_folder},
    telemetry::rfc3339,
};
use toolway_core::audit::{AuditEvent, AuditRecord, redact::Redaction};
use toolway_protocol::tool::millis;

/// Records that wait to be written.
const QUEUE: usize = 4096;

/// How long records are gathered before they are written, so that the thread is woken seldom.
const GATHERING: Duration = Duration::from_millis(20);

/// How often old files are looked for where nothing is written.
const SWEEP: Duration = Duration::from_secs(3600);

/// Records that wait for a client that follows.
const FOLLOWING: usize = 1024;

/// Longest wait for the thread.
const FLUSH: Duration = Duration::from_secs(5);

/// Readers of files at a time.
const READERS: usize = 2;

/// What is recorded, and where it is kept (`[audit]` in the configuration).
#[derive(Clone)]
pub struct Config {
    /// Records are kept. Default: true.
    pub enabled: bool,
    /// The folder of the files. Default: `audit` in the folder of the store.
    pub folder: Option<PathBuf>,
    /// Most bytes of files. Default: 256 MiB.
    pub max_bytes: u64,
    /// How long records are kept. Default: 30 days.
    pub max_age: Duration,
    /// Arguments are recorded. Default: false.
    pub arguments: bool,
    /// Results are recorded. Default: false.
    pub results: bool,
    /// What is taken out of them, and how much of each is kept. Default: 4096 bytes.
    pub redaction: Redaction,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            enabled: true,
            folder: None,
            max_bytes: 256 << 20,
            max_age: Duration::from_secs(30 * 24 * 60 * 60),
            arguments: false,
            results: false,
            redaction: Redaction {
                secrets: Vec::new(),
                max_bytes: 4096,
            },
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("enabled", &self.enabled)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// The audit; a clone is the same one.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Shared>>);

struct Shared {
    config: Config,
    queue: SyncSender<Message>,
    kept: Arc<Kept>,
    readers: Arc<Semaphore>,
}

/// What the thread and the readers know.
struct Kept {
    /// `None`: in memory.
    folder: Option<PathBuf>,
    memory: Mutex<RecordsInMemory>,
    following: broadcast::Sender<Arc<AuditRecord>>,
    /// Records that were lost since the start.
    dropped: AtomicU64,
    /// Those of which no record tells yet.
    untold: AtomicU64,
    /// Why records cannot be written.
    fault: Mutex<Option<String>>,
}

enum Message {
    /// A record, and when it was made.
    Record(u64, Box<AuditRecord>),
    /// To be answered when everything before it is written.
    Flush(oneshot::Sender<()>),
}

/// How the audit is, for `/health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditHealth {
    /// `ready`, `degraded` (records cannot be written) or `off`.
    pub state: &'static str,
    /// Records that were lost since the start.
    pub dropped: u64,
    /// Why records cannot be written.
    pub reason: Option<String>,
}

/// The folder cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write the audit to `{folder}`: {error}; set `folder` of `[audit]`, or `enabled = false`"
)]
pub struct OpenError {
    folder: String,
    error: std::io::Error,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Audit").field(&self.0.is_some()).finish()
    }
}

impl Audit {
    /// Opens the audit of a configuration, beside the store in this place.
    ///
    /// # Errors
    /// Where a configured folder cannot be written to. Where the platform's cannot, records are kept in memory.
    pub fn open(config: &Config, store: &DataDir) -> Result<Audit, OpenError> {
        if !config.enabled {
            return Ok(Audit::default());
        }
        let folder = folder(config, store);
        let retention = Retention {
            max_bytes: config.max_bytes,
            max_age: config.max_age,
        };
        let files = folder.map(|folder| {
            let shown = folder.display().to_string();
            let opened = RecordFiles::open(folder.clone(), retention);
            let opened = opened.map_err(|error| OpenError {
                folder: shown,
                error,
            });
            opened.map(|files| (folder, files))
        });
        let is_usual = config.folder.is_none() && *store == DataDir::Default;
        let files = match files {
            Some(Err(error)) if is_usual => {
                tracing::warn!("{error}; the audit is kept in memory");
                None
            }
            Some(Err(error)) => return Err(error),
            Some(Ok(files)) => Some(files),
            None => None,
        };
        Ok(Audit::start(config.clone(), files))
    }

    fn start(config: Config, files: Option<(PathBuf, RecordFiles)>) -> Audit {
        let (folder, files) = files.unzip();
        let (queue, messages) = sync_channel(QUEUE);
        let kept = Arc::new(Kept {
            folder,
            memory: Mutex::default(),
            following: broadcast::Sender::new(FOLLOWING),
            dropped: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            fault: Mutex::default(),
        });
        let writer = Writer {
            kept: Arc::clone(&kept),
            files,
            process: getrandom::u32().unwrap_or_default(),
            written: 0,
        };
        let thread = thread::Builder::new().name("audit".to_owned());
        if let Err(error) = thread.spawn(move || writer.run(&messages)) {
            kept.failed(0, &error);
        }
        Audit(Some(Arc::new(Shared {
            config,
            queue,
            kept,
            readers: Arc::new(Semaphore::new(READERS)),
        })))
    }

    /// Hands a record to the thread; without room for it, counts it as lost.
    pub fn record(&self, record: impl FnOnce() -> AuditRecord) {
        let Some(shared) = &self.0 else { return };
        let message = Message::Record(now(), Box::new(record()));
        if shared.queue.try_send(message).is_err() {
            shared.kept.lose(1);
        }
    }

    /// The arguments of a call, as far as they are recorded.
    pub fn arguments(&self, arguments: impl FnOnce() -> Value) -> Option<String> {
        let shared = self.0.as_ref().filter(|it| it.config.arguments)?;
        Some(shared.config.redaction.text(&arguments()))
    }

    /// The result of a call, likewise.
    pub fn result(&self, result: impl FnOnce() -> Value) -> Option<String> {
        let shared = self.0.as_ref().filter(|it| it.config.results)?;
        Some(shared.config.redaction.text(&result()))
    }

    /// Returns when every record so far is written, or cannot be in time.
    pub async fn flush(&self) {
        let Some(shared) = &self.0 else { return };
        let flushed = async {
            loop {
                let (done, written) = oneshot::channel();
                match shared.queue.try_send(Message::Flush(done)) {
                    Ok(()) => return written.await.is_ok(),
                    Err(std::sync::mpsc::TrySendError::Full(_)) => {
                        tokio::time::sleep(GATHERING).await;
                    }
                    Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return false,
                }
            }
        };
        let _ = timeout(FLUSH, flushed).await;
    }

    /// A page of records. What was recorded before is in it.
    ///
    /// # Errors
    /// When the cursor is none.
    pub async fn page(&self, query: AuditQuery) -> Result<AuditPage, InvalidCursor> {
        let Some(shared) = &self.0 else {
            return Ok(AuditPage::default());
        };
        self.flush().await;
        let Some(folder) = shared.kept.folder.clone() else {
            return shared.kept.memory().page(&query);
        };
        let _place = shared.readers.acquire().await;
        let reading = spawn_blocking(move || files::page(&folder, &query));
        reading.await.unwrap_or_else(|_| Ok(AuditPage::default()))
    }

    /// The records from now on. A receiver that is too slow hears how many it has missed.
    pub fn follow(&self) -> Option<broadcast::Receiver<Arc<AuditRecord>>> {
        self.0.as_ref().map(|it| it.kept.following.subscribe())
    }

    /// How the audit is.
    pub fn health(&self) -> AuditHealth {
        let Some(shared) = &self.0 else {
            return AuditHealth {
                state: "off",
                dropped: 0,
                reason: None,
            };
        };
        let reason = shared.kept.fault().clone();
        AuditHealth {
            state: match reason {
                None => "ready",
                Some(_) => "degraded",
            },
            dropped: shared.kept.dropped.load(Ordering::Relaxed),
            reason,
        }
    }
}

/// The folder of the files; `None`: records are in memory.
fn folder(config: &Config, store: &DataDir) -> Option<PathBuf> {
    match (&config.folder, store) {
        (Some(folder), _) => Some(folder.clone()),
        (None, DataDir::Memory) => None,
        (None, DataDir::Folder(folder)) => Some(folder.join("audit")),
        (None, DataDir::Default) => default_folder().ok().map(|it| it.join("audit")),
    }
}

/// A page of the records in the files of an audit, whether a process writes to them or not; `None` where there are no
/// files, or the cursor is none of theirs.
pub async fn read_files(config: &Config, store: &DataDir, query: AuditQuery) -> Option<AuditPage> {
    let folder = folder(config, store).filter(|it| it.is_dir())?;
    let reading = spawn_blocking(move || files::page(&folder, &query));
    reading.await.ok()?.ok()
}

impl Kept {
    fn memory(&self) -> std::sync::MutexGuard<'_, RecordsInMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, records: u64) {
        self.dropped.fetch_add(records, Ordering::Relaxed);
        self.untold.fetch_add(records, Ordering::Relaxed);
    }

    /// Logs when records begin to be lost.
    fn failed(&self, records: u64, error: &std::io::Error) {
        self.lose(records);
        let mut fault = self.fault();
        if fault.is_none() {
            tracing::error!("The audit cannot be written ({error}); records are lost");
        }
        *fault = Some(error.to_string());
    }
}

/// The thread that writes.
struct Writer {
    kept: Arc<Kept>,
    /// `None`: in memory.
    files: Option<RecordFiles>,
    /// The first half of the ids of this process.
    process: u32,
    /// How many records have an id.
    written: u32,
}

impl Writer {
    /// Writes until no [`Audit`] is left.
    fn run(mut self, messages: &Receiver<Message>) {
        let mut waiting = Vec::new();
        loop {
            let first = match messages.recv_timeout(SWEEP) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(files) = &self.files {
                        files.delete_old();
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if matches!(first, Message::Record(..)) {
                thread::sleep(GATHERING);
            }
            let mut records = Vec::new();
            for message in std::iter::once(first).chain(messages.try_iter().take(QUEUE)) {
                match message {
                    Message::Record(at, record) => records.push((at, record)),
                    Message::Flush(done) => waiting.push(done),
                }
            }
            self.write(records);
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, records: Vec<(u64, Box<AuditRecord>)>) {
        let untold = self.kept.untold.swap(0, Ordering::Relaxed);
        let lost = (untold > 0).then(|| {
            let lost = AuditRecord {
                event: AuditEvent::Dropped,
                dropped: Some(untold),
                ..AuditRecord::default()
            };
            (now(), Box::new(lost))
        });
        let records: Vec<_> = records.into_iter().chain(lost).collect();
        let records: Vec<_> = records
            .into_iter()
            .map(|(at, record)| Arc::new(self.named(at, *record)))
            .collect();
        if let Some(files) = &mut self.files {
            let mut lines = Vec::with_capacity(records.len() * 512);
            for record in &records {
                // A record is always JSON.
                let _ = serde_json::to_writer(&mut lines, &**record);
                lines.push(b'\n');
            }
            match files.append(&lines) {
                Ok(()) => *self.kept.fault() = None,
                Err(error) => {
                    let told = records.iter().filter(|it| it.event != AuditEvent::Dropped);
                    self.kept.failed(told.count() as u64, &error);
                    self.kept.untold.fetch_add(untold, Ordering::Relaxed);
                }
            }
        } else {
            let mut memory = self.kept.memory();
            records.iter().for_each(|it| memory.add(Arc::clone(it)));
        }
        if self.kept.following.receiver_count() > 0 {
            for record in records {
                // Without a receiver nobody follows any more.
                let _ = self.kept.following.send(record);
            }
        }
    }

    fn named(&mut self, at: u64, record: AuditRecord) -> AuditRecord {
        self.written = self.written.wrapping_add(1);
        AuditRecord {
            id: format!("{:08x}{:08x}", self.process, self.written),
            time: rfc3339(at),
            ..record
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}

#[cfg(test)]
mod tests;
