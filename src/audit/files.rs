//! Records in files of JSON lines, `audit-TIME.jsonl`, of which the newest is appended to.
//!
//! A file is never renamed or changed otherwise, so that programs that collect logs can follow it. Several processes may
//! write to one folder: a write is a number of whole lines. Old files are deleted.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::page::{AuditPage, AuditQuery, InvalidCursor};
use crate::{store::sqlite::make_private, telemetry::rfc3339};
use toolway_core::audit::AuditRecord;
use toolway_protocol::tool::millis;

const PREFIX: &str = "audit-";
const SUFFIX: &str = ".jsonl";

/// Longest file, in bytes; shorter where less is kept altogether.
const MAX_FILE: u64 = 16 << 20;

/// Longest page, in bytes.
const MAX_PAGE: usize = 8 << 20;

/// How long a file is appended to, so that old records can be deleted with their files.
const FILE_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub(super) max_bytes: u64,
    pub(super) max_age: Duration,
}

/// The files of a folder.
#[derive(Debug)]
pub(super) struct RecordFiles {
    folder: PathBuf,
    retention: Retention,
    /// The one that is appended to.
    current: Option<(PathBuf, File)>,
}

impl RecordFiles {
    /// Opens the newest file or makes one, for the user alone.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub(super) fn open(folder: PathBuf, retention: Retention) -> io::Result<RecordFiles> {
        let mut files = RecordFiles {
            folder,
            retention,
            current: None,
        };
        files.current()?;
        files.delete_old();
        Ok(files)
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// Some of them may be written, and the last one in part.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let written = self.current().and_then(|mut file| file.write_all(lines));
        if written.is_err() {
            self.current = None;
        }
        written
    }

    /// Deletes the oldest files until what is left is within bounds.
    pub(super) fn delete_old(&self) {
        let mut all = list(&self.folder);
        all.pop();
        let size = |name: &String| {
            let metadata = fs::metadata(self.folder.join(name));
            metadata.map_or(0, |it| it.len())
        };
        let mut bytes: u64 = all.iter().map(size).sum();
        let most = self.retention.max_bytes - self.max_file();
        for name in all {
            let path = self.folder.join(&name);
            if bytes <= most && age(&path).is_none_or(|age| age < self.retention.max_age) {
                return;
            }
            bytes = bytes.saturating_sub(size(&name));
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(%error, "An old file of the audit cannot be deleted");
            }
        }
    }

    fn max_file(&self) -> u64 {
        MAX_FILE.min(self.retention.max_bytes / 4)
    }

    fn is_full(&self, path: &Path, file: &File) -> bool {
        let is_long = file
            .metadata()
            .map_or(true, |it| it.len() >= self.max_file());
        let newest = name_at(SystemTime::now() - FILE_AGE);
        let is_old = path
            .file_name()
            .is_none_or(|name| name.to_string_lossy().as_ref() < newest.as_str());
        is_long || is_old || !path.exists()
    }

    /// The file that is appended to.
    fn current(&mut self) -> io::Result<&File> {
        let usable = self.current.take();
        let usable = usable.filter(|(path, file)| !self.is_full(path, file));
        let current = match usable {
            Some(current) => current,
            None => self.newest()?,
        };
        Ok(&self.current.insert(current).1)
    }

    /// The newest file where that is not full, else a new one.
    fn newest(&self) -> io::Result<(PathBuf, File)> {
        if let Some(name) = list(&self.folder).pop() {
            let path = self.folder.join(name);
            if let Ok(file) = open(&self.folder, &path)
                && !self.is_full(&path, &file)
            {
                return Ok((path, file));
            }
        }
        let path = self.folder.join(name_at(SystemTime::now()));
        let file = open(&self.folder, &path)?;
        self.delete_old();
        Ok((path, file))
    }
}

/// Opens a file to append to. A line that was cut off, because its process was killed, is ended.
fn open(folder: &Path, path: &Path) -> io::Result<File> {
    make_private(folder, path)?;
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(-1)).is_ok() {
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// A page of the records in a folder.
///
/// # Errors
/// When the cursor is none. A file that is deleted meanwhile is left out.
pub(super) fn page(folder: &Path, query: &AuditQuery) -> Result<AuditPage, InvalidCursor> {
    let from = query.cursor.as_deref().map(read_cursor).transpose()?;
    let filter = &query.filter;
    let (mut page, mut bytes_taken) = (AuditPage::default(), 0);
    for name in list(folder).into_iter().rev() {
        let end = match &from {
            Some((from, _)) if name > *from => continue,
            Some((from, offset)) if name == *from => *offset,
            _ => usize::MAX,
        };
        if filter.until.is_some_and(|it| name >= name_of(it)) {
            continue;
        }
        let bytes = fs::read(folder.join(&name)).unwrap_or_default();
        let mut end = end.min(bytes.len());
        for line in bytes[..end].split_inclusive(|byte| *byte == b'\n').rev() {
            // What is no record was cut off.
            if let Ok(record) = serde_json::from_slice::<AuditRecord>(line)
                && filter.matches(&record)
            {
                if page.records.len() == query.limit || bytes_taken > MAX_PAGE {
                    page.next = Some(cursor(&name, end));
                    return Ok(page);
                }
                page.records.push(record);
                bytes_taken += line.len();
            }
            end -= line.len();
        }
        // Every file before it ended before it began.
        if filter.since.is_some_and(|it| name < name_of(it)) {
            break;
        }
    }
    Ok(page)
}

fn cursor(name: &str, offset: usize) -> String {
    let time = name.trim_start_matches(PREFIX).trim_end_matches(SUFFIX);
    format!("{time}-{offset}")
}

fn read_cursor(cursor: &str) -> Result<(String, usize), InvalidCursor> {
    let (time, offset) = cursor.rsplit_once('-').ok_or(InvalidCursor)?;
    let is_time = |it: u8| it.is_ascii_alphanumeric() || it == b'.';
    let offset = offset.parse().map_err(|_| InvalidCursor)?;
    match time.bytes().all(is_time) {
        true => Ok((format!("{PREFIX}{time}{SUFFIX}"), offset)),
        false => Err(InvalidCursor),
    }
}

/// The names of the files, the oldest first.
fn list(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
        .collect();
    names.sort_unstable();
    names
}

/// The name of a file that begins at this time. The order of names is that of times.
fn name_of(millis: u64) -> String {
    let time: String = rfc3339(millis)
        .chars()
        .filter(|it| !"-:".contains(*it))
        .collect();
    format!("{PREFIX}{time}{SUFFIX}")
}

fn name_at(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    name_of(since.map_or(0, millis))
}

fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolway_core::{audit::AuditFilter, catalog::ToolFilter};

    const KEEP: Retention = Retention {
        max_bytes: 1 << 20,
        max_age: FILE_AGE,
    };

    fn line(id: usize) -> Vec<u8> {
        let record = AuditRecord {
            id: id.to_string(),
            tool: Some(format!("tool_{}", id % 2)),
            ..AuditRecord::default()
        };
        let mut line = serde_json::to_vec(&record).unwrap();
        line.push(b'\n');
        line
    }

    fn ids(page: &AuditPage) -> Vec<usize> {
        let ids = page.records.iter();
        ids.map(|record| record.id.parse().unwrap()).collect()
    }

    fn query(tool: &str, cursor: Option<String>) -> AuditQuery {
        AuditQuery {
            filter: AuditFilter {
                tool: Some(ToolFilter::new(&[tool.to_owned()])),
                ..AuditFilter::default()
            },
            cursor,
            limit: 2,
        }
    }

    #[test]
    fn pages_go_through_all_files_and_miss_nothing_that_is_written_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let retention = Retention {
            max_bytes: 1 << 20,
            ..KEEP
        };
        for id in 0..3 {
            // Three files with a record each.
            let path = folder
                .path()
                .join(format!("audit-2026010{id}T000000.000Z.jsonl"));
            fs::write(path, line(id)).unwrap();
        }
        let mut files = RecordFiles::open(folder.path().to_owned(), retention).unwrap();
        for id in 3..8 {
            files.append(&line(id)).unwrap();
        }
        let first = page(folder.path(), &query("tool_*", None)).unwrap();
        assert_eq!(ids(&first), [7, 6]);
        files.append(&line(8)).unwrap();
        let mut rest = Vec::new();
        let mut next = first.next;
        while let Some(cursor) = next {
            let found = page(folder.path(), &query("tool_*", Some(cursor))).unwrap();
            rest.extend(ids(&found));
            next = found.next;
        }
        assert_eq!(rest, [5, 4, 3, 2, 1, 0]);
        let odd = page(folder.path(), &query("tool_1", None)).unwrap();
        assert_eq!(ids(&odd), [7, 5]);
    }

    #[test]
    fn a_line_that_was_cut_off_costs_itself_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = RecordFiles::open(folder.path().to_owned(), KEEP).unwrap();
        files.append(&line(1)).unwrap();
        files.append(br#"{"id":"#).unwrap();
        drop(files);
        let mut files = RecordFiles::open(folder.path().to_owned(), KEEP).unwrap();
        files.append(&line(2)).unwrap();
        let found = page(folder.path(), &query("*", None)).unwrap();
        assert_eq!(ids(&found), [2, 1]);
    }

    #[test]
    fn the_oldest_files_are_deleted_when_there_is_too_much() {
        let folder = tempfile::tempdir().unwrap();
        let retention = Retention {
            max_bytes: 4 << 10,
            ..KEEP
        };
        let mut files = RecordFiles::open(folder.path().to_owned(), retention).unwrap();
        for id in 0..1000 {
            files.append(&line(id)).unwrap();
            // A new file needs a new millisecond.
            while files.is_full(
                &files.current.as_ref().unwrap().0,
                &files.current.as_ref().unwrap().1,
            ) && folder.path().join(name_at(SystemTime::now())).exists()
            {
                std::thread::yield_now();
            }
        }
        let bytes: u64 = list(folder.path())
            .iter()
            .map(|name| fs::metadata(folder.path().join(name)).unwrap().len())
            .sum();
        assert!(bytes <= retention.max_bytes, "{bytes}");
        let newest = page(folder.path(), &query("*", None)).unwrap();
        assert_eq!(ids(&newest), [999, 998]);
    }

    #[test]
    fn a_file_that_was_deleted_is_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = RecordFiles::open(folder.path().to_owned(), KEEP).unwrap();
        files.append(&line(1)).unwrap();
        fs::remove_file(folder.path().join(list(folder.path()).pop().unwrap())).unwrap();
        files.append(&line(2)).unwrap();
        let found = page(folder.path(), &query("*", None)).unwrap();
        assert_eq!(ids(&found), [2]);
    }

    #[test]
    fn a_cursor_leads_to_no_other_file() {
        for cursor in ["", "x", "../../etc/passwd-1", "20260101T000000.000Z-x"] {
            let query = query("*", Some(cursor.to_owned()));
            assert!(page(Path::new("/nowhere"), &query).is_err(), "{cursor}");
        }
    }
}
