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

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use kernel::CallId;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use serde::{Deserialize, Serialize};

use super::tail::FRAME_BYTES;
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

/// The folder of one activity. The command may change whatever is in it, so nothing in it is followed, waited for, or taken for
/// more than it can be: it is opened part by part from the workspace on, and only regular files of a bounded size are read.
#[derive(Clone, Debug)]
pub(super) struct Files {
    workspace: Workspace,
    call: String,
}

/// Largest of the small files, in bytes.
const SMALL: u64 = 64 * 1024;
/// Largest of the lists.
const LIST: u64 = 64 << 20;

impl Files {
    pub fn new(workspace: &Workspace, call: CallId) -> Self {
        Self { workspace: workspace.clone(), call: call.to_string() }
    }

    /// Where it is, for whoever writes there as the command.
    pub fn dir(&self) -> PathBuf {
        self.workspace.root().join(RESERVED).join(&self.call)
    }

    pub fn exist(&self) -> bool {
        self.has("meta.json")
    }

    /// Makes the folder with what is known at the start.
    pub fn create(&self, meta: &Meta) -> io::Result<()> {
        self.workspace.ensure()?;
        let mut folder = open_folder(self.workspace.root())?;
        for name in [RESERVED, &self.call] {
            match mkdirat(&folder, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => folder = openat(&folder, name, FOLDER, Mode::empty())?,
                Err(error) => return Err(error.into()),
            }
        }
        self.replace("meta.json", &serde_json::to_vec(meta)?)
    }

    pub fn meta(&self) -> Option<Meta> {
        serde_json::from_slice(&self.read("meta.json", SMALL).ok()?).ok()
    }

    /// Takes the lock for as long as the file is open; none if somebody on this machine has it.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let file = self.open("lock", OFlag::O_RDWR | OFlag::O_CREAT)?;
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
        self.open("out.log", OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_APPEND)?.write_all(bytes)
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
        // A word of the runtime's own, if it is one.
        let is_word = |reason: &String| {
            !reason.is_empty() && reason.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        self.read("reason", 64).ok().and_then(|reason| String::from_utf8(reason).ok()).filter(is_word)
    }

    /// Says why it is being ended. The first reason stays.
    pub fn set_reason(&self, reason: &str) -> io::Result<()> {
        if self.reason().is_some() { Ok(()) } else { self.replace("reason", reason.as_bytes()) }
    }

    pub fn is_done(&self) -> bool {
        self.has("done")
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
        self.has("in")
    }

    /// The pipe of its input, for writing; without waiting for somebody to read.
    pub fn input(&self) -> io::Result<File> {
        let pipe = self.open_any("in", OFlag::O_WRONLY)?;
        if pipe.metadata()?.file_type().is_fifo() { Ok(pipe) } else { Err(replaced("in")) }
    }

    /// The list of pieces of input, for reading and adding.
    pub fn input_list(&self) -> io::Result<File> {
        self.open("in.log", OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_APPEND)
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
        let path = self.dir().join("out.log");
        path.canonicalize().unwrap_or(path)
    }

    /// Opens the output; it may not be there yet.
    pub fn output(&self) -> io::Result<File> {
        self.open("out.log", OFlag::O_RDONLY)
    }

    /// The ends of all frames that were cut, in order. What can't be one was not cut: the rest of a record that was being written
    /// when its executor died, and whatever somebody else wrote.
    pub fn frames(&self) -> Vec<Position> {
        let records = self.read("frames", LIST).unwrap_or_default();
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut before = Position::default();
        let ends = records.chunks_exact(RECORD).map_while(|record| {
            let end = Position { offset: number(&record[..8]), line: number(&record[8..]) };
            let bytes =
                end.offset.checked_sub(before.offset).filter(|bytes| (1..=FRAME_BYTES as u64).contains(bytes))?;
            before = Some(end).filter(|end| end.line.checked_sub(before.line).is_some_and(|lines| lines <= bytes))?;
            Some(end)
        });
        ends.collect()
    }

    /// Opens the list of frames to add to it, behind those that were cut.
    pub fn open_frames(&self) -> io::Result<File> {
        let file = self.open("frames", OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_APPEND)?;
        file.set_len((self.frames().len() * RECORD) as u64)?;
        Ok(file)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        std::str::from_utf8(&self.read(name, 64).ok()?).ok()?.trim().parse().ok()
    }

    fn folder(&self) -> io::Result<OwnedFd> {
        let reserved = openat(open_folder(self.workspace.root())?, RESERVED, FOLDER, Mode::empty())?;
        Ok(openat(reserved, self.call.as_str(), FOLDER, Mode::empty())?)
    }

    fn has(&self, name: &str) -> bool {
        self.folder().is_ok_and(|folder| fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok())
    }

    /// Opens what has this name, whatever it is, without waiting for anybody.
    fn open_any(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(File::from(openat(self.folder()?, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
    }

    fn open(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let file = self.open_any(name, flags)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(replaced(name)) }
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name, OFlag::O_RDONLY)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces a small file at once.
    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.new");
        let folder = self.folder()?;
        self.open(&temporary, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC)?.write_all(content)?;
        Ok(renameat(&folder, temporary.as_str(), &folder, name)?)
    }
}

/// Bytes of the record of a frame.
const RECORD: usize = 16;
/// How folders are opened: not through a link.
const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(nix::fcntl::open(path, FOLDER, Mode::empty())?)
}

fn replaced(name: &str) -> io::Error {
    io::Error::other(format!("`{name}` in the runtime's folder of the workspace was replaced by something else"))
}

/// Adds the end of a frame to the list.
pub(super) fn add_frame(frames: &mut File, end: Position) -> io::Result<()> {
    let mut record = [0; RECORD];
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
        let ends = [Position { offset: 5, line: 1 }, Position { offset: 60_000, line: 50_000 }];
        let mut list = files.open_frames().unwrap();
        ends.iter().for_each(|end| add_frame(&mut list, *end).unwrap());
        list.write_all(&[1, 2, 3]).unwrap();
        assert_eq!(files.frames(), ends);
        let mut list = files.open_frames().unwrap();
        add_frame(&mut list, Position { offset: 60_001, line: 50_000 }).unwrap();
        assert_eq!(files.frames()[2], Position { offset: 60_001, line: 50_000 });
    }

    #[test]
    fn what_no_executor_cut_is_no_frame() {
        for end in [
            Position { offset: u64::MAX, line: 9 },
            Position { offset: 1 << 40, line: 9 },
            Position { offset: 3, line: 1 },
            Position { offset: 9, line: 8 },
        ] {
            let (_dir, files) = files();
            files.create(&Meta::default()).unwrap();
            let mut list = files.open_frames().unwrap();
            [Position { offset: 5, line: 2 }, end, Position { offset: 12, line: 9 }]
                .iter()
                .for_each(|end| add_frame(&mut list, *end).unwrap());
            assert_eq!(files.frames(), [Position { offset: 5, line: 2 }], "{end:?}");
            add_frame(&mut files.open_frames().unwrap(), Position { offset: 6, line: 3 }).unwrap();
            assert_eq!(files.frames().len(), 2);
        }
    }

    #[test]
    fn nothing_that_a_command_puts_there_is_followed_or_waited_for() {
        let (dir, files) = files();
        files.create(&Meta::default()).unwrap();
        std::fs::write(dir.path().join("7"), "7").unwrap();
        let here = files.dir();
        // An endless file, a pipe that nobody writes to, a folder, one that is too large, a link to something real.
        std::os::unix::fs::symlink("/dev/zero", here.join("exit")).unwrap();
        nix::unistd::mkfifo(&here.join("pid"), Mode::S_IRWXU).unwrap();
        std::fs::create_dir(here.join("reason")).unwrap();
        File::create(here.join("acked")).unwrap().set_len(1 << 40).unwrap();
        std::os::unix::fs::symlink(dir.path().join("7"), here.join("in.sent")).unwrap();
        nix::unistd::mkfifo(&here.join("out.log"), Mode::S_IRWXU).unwrap();
        std::fs::write(here.join("in"), "").unwrap();
        assert_eq!((files.exit_status(), files.pid(), files.reason()), (None, None, None));
        assert_eq!((files.acked(), files.input_sent()), (0, 0));
        assert!(files.output().is_err() && files.input().is_err());
        std::os::unix::fs::symlink(dir.path().join("7"), here.join("done.new")).unwrap();
        assert!(files.mark_done().is_err());
        assert_eq!(std::fs::read_to_string(dir.path().join("7")).unwrap(), "7");
        // A reason is a word: it goes into a message, and into the name of a measure.
        std::fs::remove_dir(here.join("reason")).unwrap();
        std::fs::write(here.join("reason"), "ended\nby me").unwrap();
        assert_eq!(files.reason(), None);
    }

    #[test]
    fn a_folder_that_was_swapped_for_a_link_is_not_used() {
        let (dir, files) = files();
        files.create(&Meta::default()).unwrap();
        std::fs::rename(files.dir(), dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("moved"), files.dir()).unwrap();
        assert!(!files.exist() && files.meta().is_none() && files.mark_done().is_err());
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
