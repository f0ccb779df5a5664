//! A run's own folder, and the only ways into it: no path leads out, whatever it says and whatever lies on its way.
//!
//! Paths are walked folder by folder from the workspace's own descriptor, and no symbolic link is followed, so that a
//! command that swaps folders for links while a path is walked gains nothing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kernel::{CallId, RunId};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Folder of the runtime's own files within a workspace; no tool reads or writes there.
pub const RESERVED: &str = ".esc";
/// Folder beside the workspaces for programs that belong to no run. No run has that name.
const APART: &str = ".answers";
/// Longest path that a tool may name, in bytes.
const MAX_PATH: usize = 4096;

/// All workspaces: one folder a run, on a volume that all executors share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Workspaces {
    root: PathBuf,
}

/// The folder of one run.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
}

/// Why a path can't be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// It is absolute, empty, or has `..` in it.
    #[error("`{0}` is not a path inside the workspace: give a relative one without `..`")]
    Outside(String),
    /// It leads to the runtime's own files.
    #[error("`{0}` belongs to the runtime")]
    Reserved(String),
    /// Something on the way is a symbolic link, or a file where a folder should be.
    #[error("`{0}` goes through a symbolic link or a file; links are not followed")]
    Blocked(String),
    /// There is no such file.
    #[error("`{0}` does not exist")]
    Missing(String),
    /// A folder, a pipe or a device.
    #[error("`{0}` is not a regular file")]
    NotAFile(String),
    /// More than a tool may read or write at once.
    #[error("`{path}` has {bytes} bytes, more than the {limit} that are read or written at once")]
    TooLarge {
        /// As given.
        path: String,
        /// Its size.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// The system refused.
    #[error("`{path}`: {source}")]
    Io {
        /// As given.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl WorkspaceError {
    /// A stable word for the failure of a call.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Outside(_) | Self::Reserved(_) | Self::Blocked(_) => "outside_workspace",
            Self::Missing(_) => "not_found",
            Self::NotAFile(_) => "not_a_file",
            Self::TooLarge { .. } => "too_large",
            Self::Io { .. } => "io",
        }
    }

    fn io(path: &str, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_owned(), source: source.into() }
    }
}

impl Workspaces {
    /// Those below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where they are.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where programs that only answer have their folders.
    #[must_use]
    pub fn apart(&self) -> PathBuf {
        self.root.join(APART)
    }

    /// The folder of a program that only answers, for one attempt.
    #[must_use]
    pub fn of_answer(&self, attempt: CallId) -> Workspace {
        Workspace { root: self.apart().join(attempt.to_string()) }
    }

    /// The workspace of a run; it is made when first written to.
    #[must_use]
    pub fn of(&self, run: RunId) -> Workspace {
        Workspace { root: self.root.join(run.to_string()) }
    }
}

impl Workspace {
    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the folder, readable by this user only.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn ensure(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root)
    }

    /// Reads a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// [`WorkspaceError`], naming the path.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, WorkspaceError> {
        let (parents, name) = parts(path)?;
        let dir = self.walk(path, &parents, false)?;
        // Not blocking: a pipe would wait for its writer.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&dir, name, flags, Mode::empty()).map_err(|error| blocked(path, error))?);
        let about = file.metadata().map_err(|error| WorkspaceError::io(path, error))?;
        if !about.is_file() {
            return Err(WorkspaceError::NotAFile(path.to_owned()));
        }
        let too_large = |bytes| WorkspaceError::TooLarge { path: path.to_owned(), bytes, limit };
        if about.len() > limit {
            return Err(too_large(about.len()));
        }
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| WorkspaceError::io(path, error))?;
        let read = bytes.len() as u64;
        if read > limit { Err(too_large(read)) } else { Ok(bytes) }
    }

    /// Writes a file as a whole, at once: a reader sees the old content or the new. Folders on the way are made, and an
    /// executable file stays one. Says whether it was another before.
    ///
    /// # Errors
    /// [`WorkspaceError`], naming the path.
    pub fn write(&self, path: &str, content: &[u8], limit: u64) -> Result<bool, WorkspaceError> {
        let bytes = content.len() as u64;
        if bytes > limit {
            return Err(WorkspaceError::TooLarge { path: path.to_owned(), bytes, limit });
        }
        let (parents, name) = parts(path)?;
        self.ensure().map_err(|error| WorkspaceError::io(path, error))?;
        let dir = self.walk(path, &parents, true)?;
        if self.read(path, limit).is_ok_and(|before| before == content) {
            return Ok(false);
        }
        let temporary = format!(".{}.tmp", uuid::Uuid::now_v7().simple());
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o644);
        let file = openat(&dir, temporary.as_str(), flags, mode).map_err(|error| WorkspaceError::io(path, error))?;
        let written = fill(File::from(file), content, mode_of(&dir, name))
            .and_then(|()| Ok(renameat(&dir, temporary.as_str(), &dir, name)?));
        written.map(|()| true).map_err(|error| {
            // What is left of a failed write is only in the way.
            let _ = unlinkat(&dir, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
            if error.kind() == io::ErrorKind::IsADirectory {
                WorkspaceError::NotAFile(path.to_owned())
            } else {
                WorkspaceError::io(path, error)
            }
        })
    }

    /// A folder inside, by its path on the system; every part of it is checked. For a command's working folder.
    ///
    /// # Errors
    /// [`WorkspaceError`], naming the path.
    pub fn folder(&self, path: &str) -> Result<PathBuf, WorkspaceError> {
        self.checked_folder(path, false)
    }

    /// As [`Workspace::folder`], and makes what is missing.
    ///
    /// # Errors
    /// [`WorkspaceError`], naming the path.
    pub fn make_folder(&self, path: &str) -> Result<PathBuf, WorkspaceError> {
        self.ensure().map_err(|error| WorkspaceError::io(path, error))?;
        self.checked_folder(path, true)
    }

    fn checked_folder(&self, path: &str, make: bool) -> Result<PathBuf, WorkspaceError> {
        if matches!(path, "" | "." | "./") {
            return Ok(self.root.clone());
        }
        let (mut folders, last) = parts(path)?;
        folders.push(last);
        self.walk(path, &folders, make)?;
        Ok(self.root.join(folders.join("/")))
    }

    /// Opens the last of `folders`, one after the other from the workspace on.
    fn walk(&self, path: &str, folders: &[&str], make: bool) -> Result<OwnedFd, WorkspaceError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut dir = nix::fcntl::open(&self.root, flags, Mode::empty()).map_err(|error| blocked(path, error))?;
        for folder in folders {
            let opened = openat(&dir, *folder, flags, Mode::empty());
            dir = match opened {
                Err(Errno::ENOENT) if make => {
                    match mkdirat(&dir, *folder, Mode::from_bits_truncate(0o755)) {
                        Ok(()) | Err(Errno::EEXIST) => {}
                        Err(error) => return Err(WorkspaceError::io(path, error)),
                    }
                    openat(&dir, *folder, flags, Mode::empty()).map_err(|error| blocked(path, error))?
                }
                opened => opened.map_err(|error| blocked(path, error))?,
            };
        }
        Ok(dir)
    }
}

/// Whether a path is written as one inside the workspace; what lies on its way is only known by walking it.
#[must_use]
pub fn is_inside(path: &str) -> bool {
    matches!(path, "" | "." | "./") || parts(path).is_ok()
}

/// The folders of a path and its last name.
fn parts(path: &str) -> Result<(Vec<&str>, &str), WorkspaceError> {
    let outside = || WorkspaceError::Outside(path.chars().take(200).collect());
    if path.starts_with('/') || path.ends_with('/') || path.contains('\0') || path.len() > MAX_PATH {
        return Err(outside());
    }
    let mut names: Vec<_> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(outside());
    }
    if names.first() == Some(&RESERVED) {
        return Err(WorkspaceError::Reserved(path.to_owned()));
    }
    let name = names.pop().ok_or_else(outside)?;
    Ok((names, name))
}

fn blocked(path: &str, error: Errno) -> WorkspaceError {
    match error {
        Errno::ELOOP | Errno::ENOTDIR => WorkspaceError::Blocked(path.to_owned()),
        Errno::ENOENT => WorkspaceError::Missing(path.to_owned()),
        // A pipe without a reader, a socket.
        Errno::ENXIO => WorkspaceError::NotAFile(path.to_owned()),
        error => WorkspaceError::io(path, error),
    }
}

/// The permissions of the file that will be replaced, if it is one.
fn mode_of(dir: &OwnedFd, name: &str) -> Option<u32> {
    let about = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let regular = about.st_mode & nix::libc::S_IFMT == nix::libc::S_IFREG;
    regular.then_some(about.st_mode & 0o777)
}

fn fill(mut file: File, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    file.write_all(content)?;
    if let Some(mode) = mode {
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    }
    // A renamed file whose content is not on disk would be empty after a power cut.
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const LIMIT: u64 = 1024;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspaces::new(dir.path().join("ws")).of(RunId::mint());
        workspace.ensure().unwrap();
        (dir, workspace)
    }

    #[test]
    fn writes_and_reads_back() {
        let (_dir, workspace) = workspace();
        assert!(workspace.write("a/b/c.txt", b"one", LIMIT).unwrap());
        assert!(workspace.write("./a//b/c.txt", b"two", LIMIT).unwrap());
        assert!(!workspace.write("a/b/c.txt", b"two", LIMIT).unwrap());
        assert_eq!(workspace.read("a/b/c.txt", LIMIT).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(workspace.root().join("a/b")).unwrap().count(), 1, "no temporary file is left");
        assert!(matches!(workspace.read("a/gone", LIMIT), Err(WorkspaceError::Missing(_))));
        assert!(matches!(workspace.read("a/b", LIMIT), Err(WorkspaceError::NotAFile(_))));
        assert!(matches!(workspace.write("a/b", b"", LIMIT), Err(WorkspaceError::NotAFile(_))));
        assert!(matches!(workspace.read("a/b/c.txt", 2), Err(WorkspaceError::TooLarge { bytes: 3, .. })));
        assert!(matches!(workspace.write("x", &[0; 2000], LIMIT), Err(WorkspaceError::TooLarge { .. })));
    }

    #[test]
    fn no_path_leads_out() {
        let (_dir, workspace) = workspace();
        for path in ["/etc/passwd", "../x", "a/../../x", "", ".", "a/", "a/..", "..", "a\0b", "/"] {
            assert!(matches!(workspace.read(path, LIMIT), Err(WorkspaceError::Outside(_))), "{path}");
            assert!(matches!(workspace.write(path, b"", LIMIT), Err(WorkspaceError::Outside(_))), "{path}");
        }
        for path in [".esc/x", "./.esc/x/y", ".esc"] {
            assert!(matches!(workspace.read(path, LIMIT), Err(WorkspaceError::Reserved(_))), "{path}");
        }
        assert!(is_inside("a/b") && is_inside(".") && !is_inside("../a") && !is_inside("/a"));
    }

    #[test]
    fn no_link_is_followed() {
        let (dir, workspace) = workspace();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "s").unwrap();
        symlink(&outside, workspace.root().join("folder")).unwrap();
        symlink(outside.join("secret"), workspace.root().join("file")).unwrap();
        symlink(outside.join("new"), workspace.root().join("dangling")).unwrap();
        for path in ["folder/secret", "file", "dangling"] {
            assert!(matches!(workspace.read(path, LIMIT), Err(WorkspaceError::Blocked(_))), "{path}");
        }
        assert!(matches!(workspace.write("folder/new", b"x", LIMIT), Err(WorkspaceError::Blocked(_))));
        assert!(matches!(workspace.folder("folder"), Err(WorkspaceError::Blocked(_))));
        // A link in the file's own place is replaced, not written through.
        workspace.write("file", b"mine", LIMIT).unwrap();
        workspace.write("dangling", b"mine", LIMIT).unwrap();
        assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"s");
        assert!(!outside.join("new").exists());
    }

    #[test]
    fn a_pipe_does_not_hang_a_reader() {
        let (_dir, workspace) = workspace();
        nix::unistd::mkfifo(&workspace.root().join("pipe"), Mode::from_bits_truncate(0o600)).unwrap();
        assert!(matches!(workspace.read("pipe", LIMIT), Err(WorkspaceError::NotAFile(_))));
    }

    #[test]
    fn an_executable_stays_one() {
        let (_dir, workspace) = workspace();
        let path = workspace.root().join("run.sh");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        workspace.write("run.sh", b"new", LIMIT).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
    }
}
