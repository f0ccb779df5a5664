//! A program that answers a question: what it prints is the answer, and nothing of it is left.
//!
//! It runs in an empty folder of its own, with the bounds and limits of every command. Unlike an activity it does not outlive its
//! executor, and is ended once nobody waits for the answer any more: it only reads, so it may be asked again.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use kernel::CallId;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::oneshot;

use super::group::{Group, Groups};
use super::limits;
use super::processes::{Processes, Spare};
use super::supervisor::{MARK, ProcessCommand, launch};
use crate::confine::Confinement;

/// Runs nothing before it is told that everything is settled that bounds it.
const GATE: &str = "read -r go && [ \"$go\" = go ] || exit 125\nexec \"$@\" </dev/null";
/// What is kept of what it says beside its answer.
const ERRORS: usize = 4 * 1024;
/// How long its last words may take to come through, once it has ended with all that it started.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Folders that are older than this belong to nobody any more.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// What a program said.
#[derive(Debug)]
pub(crate) struct Answer {
    /// On its output; of too much the beginning.
    pub output: Vec<u8>,
    /// On its error output, the beginning.
    pub errors: Vec<u8>,
    pub end: End,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal that was not ours.
    Killed(i32),
    /// It took too long.
    TimedOut,
    /// It said more than may be said.
    TooMuch,
    /// It used more than it may: `process_cap`, `memory_cap`.
    Beyond(&'static str),
    /// Nobody waits for the answer any more.
    Unwanted,
}

/// Runs a program in its folder, which is then removed, for `within` at most and up to `most` bytes of output. All that
/// belongs to it is known by `attempt`, which nothing else may have: another attempt of its call goes on beside what is
/// still cleared away of this one.
pub(crate) async fn answer(
    attempt: CallId,
    command: ProcessCommand,
    (confinement, groups): (Confinement, Groups),
    most: usize,
    within: Duration,
) -> io::Result<Answer> {
    let (mut tell, told) = oneshot::channel();
    // On its own: whoever stops waiting must not leave a program behind.
    tokio::spawn(async move {
        let folder = command.cwd.clone();
        let answer = ask(attempt, command, (confinement, groups), (most, within), tell.closed()).await;
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(&folder)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%attempt, %error, "the folder of a program that has answered can't be removed");
        }
        // Nobody may be left to hear it.
        drop(tell.send(answer));
    });
    told.await.unwrap_or_else(|_| Err(io::Error::other("the executor is going down")))
}

async fn ask(
    attempt: CallId,
    command: ProcessCommand,
    (confinement, groups): (Confinement, Groups),
    (most, within): (usize, Duration),
    unwanted: impl Future<Output = ()>,
) -> io::Result<Answer> {
    let (group, caps) = (groups.of(attempt), command.caps);
    let begun = begin(attempt, command, confinement, group.clone()).await?;
    let processes = Processes::of(attempt, begun.pid, group.clone());
    let heard = ChildStdout::from_std(begun.output).and_then(|out| Ok((out, ChildStderr::from_std(begun.errors)?)));
    let (output, errors) = match heard {
        Ok(heard) => heard,
        Err(error) => {
            processes.terminate(Duration::ZERO, Spare::Nobody).await;
            return Err(error);
        }
    };
    let (full, is_full) = oneshot::channel();
    let output = tokio::spawn(read(output, most, Some(full)));
    let errors = tokio::spawn(read(errors, ERRORS, None));
    let end = tokio::select! {
        // What is over is over, whatever else has come.
        biased;
        ended = begun.ended => ended_by(&ended),
        Ok(()) = is_full => End::TooMuch,
        reason = used_up(limits::Command { call: attempt, leader: Some(begun.pid), group }, caps) => End::Beyond(reason),
        () = unwanted => End::Unwanted,
        () = tokio::time::sleep(within) => End::TimedOut,
    };
    // Also what it has left behind when it ended by itself: it may hold the output open.
    processes.terminate(Duration::ZERO, Spare::Nobody).await;
    processes.clear().await;
    let read = async |reading| tokio::time::timeout(LAST_WORDS, reading).await.ok().and_then(Result::ok);
    let (output, errors) = (read(output).await.unwrap_or_default(), read(errors).await.unwrap_or_default());
    // Its last words may have been too many.
    let end = if matches!(end, End::Exited(_)) && output.len() > most { End::TooMuch } else { end };
    Ok(Answer { output, errors, end })
}

/// How it ended, as the system says; if that can't be had, as if it had been killed.
fn ended_by(status: &Result<io::Result<ExitStatus>, oneshot::error::RecvError>) -> End {
    let Ok(Ok(status)) = status else { return End::Killed(0) };
    status.code().map_or_else(|| End::Killed(status.signal().unwrap_or_default()), End::Exited)
}

/// Reads up to one byte more than `most`, and says then that it is too much; whatever else comes is passed over, so that nobody
/// waits for it to be read.
async fn read(mut from: impl AsyncRead + Unpin, most: usize, full: Option<oneshot::Sender<()>>) -> Vec<u8> {
    let mut kept = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let read = (&mut from).take(limit).read_to_end(&mut kept).await;
    if read.is_ok() && kept.len() > most {
        if let Some(full) = full {
            let _ = full.send(());
        }
        drop(tokio::io::copy(&mut from, &mut tokio::io::sink()).await);
    }
    kept
}

/// Ends when a program uses more than it may, with the reason.
async fn used_up(command: limits::Command, caps: super::Caps) -> &'static str {
    loop {
        tokio::time::sleep(limits::LOOK).await;
        let (looked, call) = (command.clone(), command.call);
        let used = tokio::task::spawn_blocking(move || limits::used(&[looked])).await.unwrap_or_default();
        if let Some(reason) = used.get(&call).and_then(|used| used.beyond(&caps)) {
            return reason;
        }
    }
}

/// A program that runs.
struct Begun {
    pid: i32,
    output: std::process::ChildStdout,
    errors: std::process::ChildStderr,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// Starts it from a thread of its own, since what is started has the bounds of the thread that starts it, and ends with it.
async fn begin(attempt: CallId, command: ProcessCommand, confinement: Confinement, group: Group) -> io::Result<Begun> {
    let (told, begun) = oneshot::channel();
    std::thread::Builder::new().name("answer".to_owned()).stack_size(512 * 1024).spawn(move || {
        let started = start(attempt, &command, &confinement, &group).and_then(|mut child| {
            let none = || io::Error::other("a program has no output");
            let (output, errors) = (child.stdout.take().ok_or_else(none)?, child.stderr.take().ok_or_else(none)?);
            let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
            Ok((child, pid, output, errors))
        });
        let (mut child, pid, output, errors) = match started {
            Ok(started) => started,
            Err(error) => return drop(told.send(Err(error))),
        };
        let (tell, ended) = oneshot::channel();
        drop(told.send(Ok(Begun { pid, output, errors, ended })));
        // Whoever started it ends it, also if they have stopped waiting.
        drop(tell.send(child.wait()));
    })?;
    begun.await.unwrap_or_else(|_| Err(io::Error::other("the thread that starts the program is gone")))
}

fn start(attempt: CallId, command: &ProcessCommand, confinement: &Confinement, group: &Group) -> io::Result<Child> {
    let door = group.create(command.caps.processes)?;
    confinement.enter(&command.bounds).map_err(io::Error::other)?;
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", GATE, "answer"])
        .args(&command.arguments)
        .env_clear()
        .envs(&command.env)
        .env("TMPDIR", &command.cwd)
        .env(MARK, attempt.to_string())
        .current_dir(&command.cwd)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ends_with_us(&mut shell);
    launch(&mut shell, command, group, &door)
}

/// In a session of its own, and killed when the executor is gone.
#[expect(unsafe_code, reason = "there is no other way to do something between fork and exec")]
fn ends_with_us(shell: &mut Command) {
    let detach = || {
        nix::unistd::setsid()?;
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true)?;
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        Ok(())
    };
    // SAFETY: three system calls, which neither allocate nor take a lock that another thread may have held at the fork.
    unsafe { shell.pre_exec(detach) };
}

/// Removes folders of programs whose executor was gone before it could.
pub(crate) fn tidy(folders: &Path) {
    for entry in std::fs::read_dir(folders).into_iter().flatten().flatten() {
        let made = entry.metadata().and_then(|about| about.modified()).ok();
        if made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age > FORGOTTEN) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}
