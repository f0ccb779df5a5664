//! What an activity leaves on disk: all that another executor needs to go on with it.
//!
//! ```text
//! <workspace>/.esc/<call>/
//!   meta.json  where it was started, and in which trace
//!   lock       held by the one executor of this machine that follows it
//!   pid        of its supervisor, written by the supervisor
//!   out.log    its output as it comes, stdout and stderr in one
//!   frames     16 bytes a frame that was cut: byte offset and line number behind it
//!   tmp        folder for temporary files of the command
//!   acked      byte offset up to which the bus has confirmed
//!   reason     why it is being ended, if it is
//!   in         the pipe of its input, if it takes any
//!   in.log     pieces of input, a line each
//!   in.sent    byte offset in that up to which they were handed over
//!   exit       its exit status, written by the supervisor
//!   done       there once the exit frame is confirmed
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kernel::CallId;
use serde::{Deserialize, Serialize};

use crate::workspace::{RESERVED, Workspace};

/// Where in its output an activity is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Bytes before it.
    pub offset: u64,
    /// Line breaks before it.
    pub line: u64,
}

/// What was known when the activity started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    /// Where its processes are.
    pub home: Home,
    /// The span that started it.
    pub traceparent: String,
    /// What it may use as a whole.
    #[serde(default)]
    pub caps: Caps,
}

/// What a command may use as a whole; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Caps {
    /// Bytes of output, beyond which it is ended.
    pub output: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// Bytes of memory.
    pub memory: u64,
}

/// Where processes are: process ids mean something only within one namespace of one boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Home {
    /// Name of the machine or container.
    pub host: String,
    /// Boot and process namespace.
    pub pids: String,
}

impl Home {
    /// That of this process.
    pub fn here() -> Self {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self { host, pids: format!("{} {}", boot.trim(), namespace.display()) }
    }
}

/// The folder of one activity.
#[derive(Clone, Debug)]
pub(super) struct Files {
    dir: PathBuf,
}

impl Files {
    pub fn new(workspace: &Workspace, call: CallId) -> Self {
        Self { dir: workspace.root().join(RESERVED).join(call.to_string()) }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn exist(&self) -> bool {
        self.dir.join("meta.json").is_file()
    }

    /// Makes the folder with what is known at the start.
    pub fn create(&self, meta: &Meta) -> io::Result<()> {
        let reserved = self.dir.parent().unwrap_or(&self.dir);
        let folder = |path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        folder(reserved)?;
        if !std::fs::symlink_metadata(reserved)?.is_dir() {
            return Err(io::Error::other("the runtime's folder in the workspace was replaced by a link"));
        }
        folder(&self.dir)?;
        self.replace("meta.json", &serde_json::to_vec(meta)?)
    }

    pub fn meta(&self) -> Option<Meta> {
        serde_json::from_slice(&std::fs::read(self.dir.join("meta.json")).ok()?).ok()
    }

    /// Takes the lock for as long as the file is open; none if somebody on this machine has it.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new().create(true).append(true).open(self.dir.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    pub fn pid(&self) -> Option<i32> {
        self.number("pid")
    }

    /// Adds to the output of an activity that has no supervisor.
    pub fn add_output(&self, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.dir.join("out.log"))?.write_all(bytes)
    }

    /// Says how an activity that has no supervisor ended.
    pub fn set_exit(&self, status: i32) -> io::Result<()> {
        self.replace("exit", status.to_string().as_bytes())
    }

    /// The shell's exit status: 128 and more for a signal.
    pub fn exit_status(&self) -> Option<i32> {
        self.number("exit")
    }

    pub fn reason(&self) -> Option<String> {
        std::fs::read_to_string(self.dir.join("reason")).ok().filter(|reason| !reason.is_empty())
    }

    /// Says why it is being ended. The first reason stays.
    pub fn set_reason(&self, reason: &str) -> io::Result<()> {
        if self.reason().is_some() { Ok(()) } else { self.replace("reason", reason.as_bytes()) }
    }

    pub fn is_done(&self) -> bool {
        self.dir.join("done").exists()
    }

    pub fn mark_done(&self) -> io::Result<()> {
        self.replace("done", b"")
    }

    pub fn acked(&self) -> u64 {
        self.number("acked").unwrap_or(0)
    }

    pub fn set_acked(&self, offset: u64) -> io::Result<()> {
        self.replace("acked", offset.to_string().as_bytes())
    }

    /// Whether it takes input.
    pub fn takes_input(&self) -> bool {
        self.dir.join("in").exists()
    }

    /// How far in the list of pieces of input they were handed over.
    pub fn input_sent(&self) -> u64 {
        self.number("in.sent").unwrap_or(0)
    }

    pub fn set_input_sent(&self, offset: u64) -> io::Result<()> {
        self.replace("in.sent", offset.to_string().as_bytes())
    }

    /// Where its output is, as the system names it.
    pub fn output_path(&self) -> PathBuf {
        let path = self.dir.join("out.log");
        path.canonicalize().unwrap_or(path)
    }

    /// Opens the output; it may not be there yet.
    pub fn output(&self) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(self.dir.join("out.log"))
    }

    /// The ends of all frames that were cut, in order.
    pub fn frames(&self) -> Vec<Position> {
        let records = std::fs::read(self.dir.join("frames")).unwrap_or_default();
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        // What is left of a record that was being written when its executor died was not published.
        records
            .chunks_exact(16)
            .map(|record| Position { offset: number(&record[..8]), line: number(&record[8..]) })
            .collect()
    }

    /// Opens the list of frames to add to it, without the remains of a record.
    pub fn open_frames(&self) -> io::Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(self.dir.join("frames"))?;
        let whole = file.metadata()?.len() / 16 * 16;
        file.set_len(whole)?;
        Ok(file)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        std::fs::read_to_string(self.dir.join(name)).ok()?.trim().parse().ok()
    }

    /// Replaces a small file at once.
    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = self.dir.join(format!("{name}.new"));
        std::fs::write(&temporary, content)?;
        std::fs::rename(temporary, self.dir.join(name))
    }
}

/// Adds the end of a frame to the list.
pub(super) fn add_frame(frames: &mut File, end: Position) -> io::Result<()> {
    let mut record = [0; 16];
    record[..8].copy_from_slice(&end.offset.to_le_bytes());
    record[8..].copy_from_slice(&end.line.to_le_bytes());
    frames.write_all(&record)
}

#[cfg(test)]
mod tests {
    use kernel::RunId;

    use super::*;
    use crate::workspace::Workspaces;

    fn files() -> (tempfile::TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspaces::new(dir.path()).of(RunId::mint());
        workspace.ensure().unwrap();
        (dir, Files::new(&workspace, CallId::mint()))
    }

    #[test]
    fn what_was_written_is_read_back() {
        let (_dir, files) = files();
        assert!(!files.exist());
        let meta =
            Meta { home: Home::here(), traceparent: "t".to_owned(), caps: Caps { output: 5, ..Caps::default() } };
        files.create(&meta).unwrap();
        assert!(files.exist() && !files.is_done());
        assert_eq!(files.meta(), Some(meta));
        assert_eq!((files.pid(), files.exit_status(), files.acked(), files.reason()), (None, None, 0, None));
        files.set_acked(70_000).unwrap();
        files.set_reason("timeout").unwrap();
        files.set_reason("cancelled").unwrap();
        files.mark_done().unwrap();
        assert_eq!((files.acked(), files.reason().as_deref(), files.is_done()), (70_000, Some("timeout"), true));
    }

    #[test]
    fn half_a_frame_record_is_none() {
        let (_dir, files) = files();
        files.create(&Meta::default()).unwrap();
        let ends = [Position { offset: 5, line: 1 }, Position { offset: 1 << 40, line: 70_000 }];
        let mut list = files.open_frames().unwrap();
        ends.iter().for_each(|end| add_frame(&mut list, *end).unwrap());
        list.write_all(&[1, 2, 3]).unwrap();
        assert_eq!(files.frames(), ends);
        let mut list = files.open_frames().unwrap();
        add_frame(&mut list, Position { offset: u64::MAX, line: 9 }).unwrap();
        assert_eq!(files.frames()[2], Position { offset: u64::MAX, line: 9 });
    }

    #[test]
    fn one_follows_at_a_time() {
        let (_dir, files) = files();
        files.create(&Meta::default()).unwrap();
        let held = files.lock().unwrap();
        assert!(held.is_some());
        assert!(files.lock().unwrap().is_none());
        drop(held);
        assert!(files.lock().unwrap().is_some());
    }

    #[test]
    fn a_link_in_the_place_of_the_folder_is_refused() {
        let (dir, files) = files();
        std::os::unix::fs::symlink(dir.path(), files.dir().parent().unwrap()).unwrap();
        assert!(files.create(&Meta::default()).is_err());
    }
}
