//! Starting a command under a supervisor: a tiny shell that owns its output file and records its exit, so that neither
//! depends on the executor that started it.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use kernel::CallId;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::sync::{Notify, oneshot};

use super::files::Caps;
use super::group::{Door, Group};
use super::limits;
use crate::confine::{Bounds, Confinement};

/// Marks every process of a call, however it detaches itself.
pub(super) const MARK: &str = "ESC_CALL_ID";

const SCRIPT: &str = include_str!("supervisor.sh");

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessCommand {
    /// The program and its arguments.
    pub arguments: Vec<String>,
    /// Where it runs.
    pub cwd: PathBuf,
    /// All of its environment but the mark of its call and its folder for temporary files.
    pub env: BTreeMap<String, String>,
    /// What it may touch.
    pub bounds: Bounds,
    /// What each of its processes may use.
    pub limits: limits::PerProcess,
    /// What it may use as a whole.
    pub caps: Caps,
    /// Whether its input stays open for what is sent.
    pub input: bool,
}

/// Starts the supervisor in a session and a control group of its own. Its folder must exist. `exited` is rung when it has ended.
///
/// A thread of its own is confined and starts it, since what is started has the bounds of the thread that starts it; then it
/// only waits. How the command ended is in its files; waiting takes it off the process table.
pub(super) async fn spawn(
    call: CallId,
    dir: &Path,
    command: &ProcessCommand,
    confinement: &Confinement,
    group: &Group,
    exited: Arc<Notify>,
) -> io::Result<()> {
    let (told, started) = oneshot::channel();
    let (dir, command, confinement, group) = (dir.to_owned(), command.clone(), confinement.clone(), group.clone());
    std::thread::Builder::new().name("activity".to_owned()).stack_size(512 * 1024).spawn(move || {
        let mut child = match begin(call, &dir, &command, &confinement, &group) {
            Ok(child) => child,
            Err(error) => return drop(told.send(Err(error))),
        };
        if told.send(Ok(())).is_err() {
            tracing::debug!(%call, "whoever started a command did not wait for it");
        }
        let _ = child.wait();
        exited.notify_one();
    })?;
    started.await.unwrap_or_else(|_| Err(io::Error::other("the thread that starts the command is gone")))
}

fn begin(
    call: CallId,
    dir: &Path,
    command: &ProcessCommand,
    confinement: &Confinement,
    group: &Group,
) -> io::Result<Child> {
    // Before the bounds, within which nothing but files and folders of its own may be made.
    if command.input {
        mkfifo(&dir.join("in"), Mode::S_IRUSR | Mode::S_IWUSR)?;
    }
    let door = group.create(command.caps.processes)?;
    confinement.enter(&command.bounds).map_err(io::Error::other)?;
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", SCRIPT, "supervisor"])
        .arg(dir)
        .arg(&command.cwd)
        .args(&command.arguments)
        .env_clear()
        .envs(&command.env)
        .env("TMPDIR", dir.join("tmp"))
        .env(MARK, call.to_string())
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    by_itself(&mut shell);
    launch(&mut shell, command, group, &door)
}

/// Starts a shell that waits for a line on its input before it runs anything, sees to its limits, and gives it the line.
pub(super) fn launch(shell: &mut Command, command: &ProcessCommand, group: &Group, door: &Door) -> io::Result<Child> {
    let mut child = shell.spawn()?;
    let bounded = || {
        door.enter(i32::try_from(child.id()).map_err(io::Error::other)?)?;
        limits::apply(&child, &command.limits, if group.counts() { 0 } else { command.caps.processes })
    };
    let begun = bounded().and_then(|()| match child.stdin.take() {
        Some(mut input) => input.write_all(b"go\n"),
        None => Err(io::Error::other("the supervisor has no input")),
    });
    if let Err(error) = begun {
        // It waits for its line and has run nothing.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// In a session of its own, so without the terminal that the executor may have; and as the parent of all below it whose own
/// parents have ended, so that nobody gets out of sight by that.
#[expect(unsafe_code, reason = "there is no other way to do something between fork and exec")]
fn by_itself(shell: &mut Command) {
    let detach = || {
        nix::unistd::setsid()?;
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true)?;
        Ok(())
    };
    // SAFETY: two system calls, which neither allocate nor take a lock that another thread may have held at the fork.
    unsafe { shell.pre_exec(detach) };
}
