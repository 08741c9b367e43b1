//! What a configuration may look at besides its own text: the environment and files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The environment and the files, as they are passed in.
pub struct Environment<'a> {
    /// The value of an environment variable, where it is set.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file.
    pub read: &'a dyn Fn(&Path) -> io::Result<FileText>,
    /// The working directory; relative paths of the command line start here.
    pub folder: PathBuf,
}

/// A file that was read.
#[derive(Clone, Debug, Default)]
pub struct FileText {
    /// What it holds.
    pub text: String,
    /// Every user of the machine can read it.
    pub open_to_all: bool,
}

impl Environment<'static> {
    /// The real environment and the real files.
    pub fn real() -> Environment<'static> {
        Environment {
            env: &|name| std::env::var(name).ok(),
            read: &read_file,
            folder: std::env::current_dir().unwrap_or_default(),
        }
    }
}

/// Longest file that is read, in bytes, so that a device or a disk image is refused.
const MAX_FILE: u64 = 32 << 20;

fn read_file(path: &Path) -> io::Result<FileText> {
    let about = fs::metadata(path)?;
    if about.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            "it is a folder",
        ));
    }
    if about.len() > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it is longer than 32 MiB",
        ));
    }
    Ok(FileText {
        text: fs::read_to_string(path)?,
        open_to_all: is_open_to_all(&about),
    })
}

#[cfg(unix)]
fn is_open_to_all(about: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    about.mode() & 0o004 != 0
}

#[cfg(not(unix))]
fn is_open_to_all(_: &fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_not_read_as_a_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            read_file(folder.path()).unwrap_err().kind(),
            io::ErrorKind::IsADirectory
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_everybody_can_read_is_noticed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "sk-1\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_file(&path).unwrap().open_to_all);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!read_file(&path).unwrap().open_to_all);
    }
}
