//! A server that is a process of our own: started with nothing but what its file names, and ended with all that it started.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use engine::McpStdio;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::error::OpenError;
use crate::secrets::Secrets;

/// How long a server may take to end once its input is closed, and again once it was told to.
const GRACE: Duration = Duration::from_secs(2);
/// What is kept of a server's last words.
const LAST_WORDS: usize = 2048;
/// What is looked at of one line of them.
const LINE: u64 = 1024;

/// A running server.
pub(super) struct Process {
    child: Child,
    /// Its process group, which is its own.
    group: Option<Pid>,
    last_words: LastWords,
}

/// The end of what a server wrote to its standard error.
#[derive(Clone, Debug, Default)]
pub(super) struct LastWords(Arc<Mutex<VecDeque<u8>>>);

/// A stream of messages, one a line, that fails when a line is too long: memory is not the server's to fill.
pub(super) struct Bounded<R> {
    inner: R,
    line: usize,
    most: usize,
    burst: Arc<AtomicBool>,
}

/// Starts a server. Its folder is made if it is not there.
pub(super) fn start(
    stdio: &McpStdio,
    folder: &Path,
    most: usize,
    secrets: &Secrets,
) -> Result<(Bounded<ChildStdout>, ChildStdin, Process), OpenError> {
    let Some((program, arguments)) = stdio.command.split_first() else {
        return Err(OpenError::misconfigured("`command` is empty"));
    };
    let folder = stdio.cwd.as_deref().unwrap_or(folder);
    std::fs::create_dir_all(folder).map_err(|error| {
        OpenError::misconfigured(format!("its folder `{}` can't be made: {error}", folder.display()))
    })?;
    let mut command = Command::new(find(program));
    command.args(arguments).current_dir(folder).env_clear().process_group(0).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in &stdio.inherit {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    for (name, value) in &stdio.env {
        command.env(
            name,
            secrets
                .resolve(value)
                .map(|(text, _)| text)
                .map_err(|error| OpenError::misconfigured(error.to_string()))?,
        );
    }
    let mut child = command
        .spawn()
        .map_err(|error| OpenError::unreachable(format!("`{program}` could not be started: {error}")))?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(OpenError::unreachable(format!("`{program}` has no standard streams")));
    };
    let last_words = LastWords::default();
    tokio::spawn(listen(stderr, last_words.clone()));
    let bounded = Bounded { inner: stdout, line: 0, most, burst: Arc::default() };
    Ok((bounded, stdin, Process { child, group, last_words }))
}

/// The program in the executor's own `PATH`: the server's may be empty.
fn find(program: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |path: &std::path::PathBuf| path.is_file();
    let found = || std::env::split_paths(&path).map(|folder| folder.join(program)).find(is_program);
    match program.contains('/') {
        true => program.into(),
        false => found().unwrap_or_else(|| program.into()),
    }
}

/// Keeps the end of what it says, a bounded piece at a time.
async fn listen(stderr: ChildStderr, last_words: LastWords) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => last_words.add(&line),
        }
    }
}

impl Process {
    pub fn last_words(&self) -> LastWords {
        self.last_words.clone()
    }

    /// Waits for its end, its input being closed; then tells it to end; then ends it. Whatever it started goes with it.
    pub async fn end(mut self) {
        if tokio::time::timeout(GRACE, self.child.wait()).await.is_err() {
            self.signal(Signal::SIGTERM);
            let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
        }
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait().await;
        self.group = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // All of it may have ended by itself.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

impl LastWords {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let over = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..over);
    }

    pub fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept.iter().copied().collect::<Vec<_>>()).trim().to_owned()
    }
}

impl<R> Bounded<R> {
    /// Becomes true when a line was too long.
    pub fn burst(&self) -> Arc<AtomicBool> {
        self.burst.clone()
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let new = buf.filled().get(before..).unwrap_or_default();
        let first = new.iter().position(|byte| *byte == b'\n').unwrap_or(new.len());
        let last = new.iter().rposition(|byte| *byte == b'\n');
        let over = self.line + first > self.most;
        self.line = match last {
            Some(last) => new.len() - last - 1,
            None => self.line + new.len(),
        };
        if over {
            self.burst.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too large")));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(text: &[u8], most: usize) -> Bounded<&[u8]> {
        Bounded { inner: text, line: 0, most, burst: Arc::default() }
    }

    #[tokio::test]
    async fn lines_are_bounded_one_by_one() {
        let mut text = Vec::new();
        bounded(b"12345\n12345\n\n12345\n12", 5).read_to_end(&mut text).await.unwrap();
        assert_eq!(text.len(), 21);
        let mut long = bounded(b"12345\n123456\n1", 5);
        let burst = long.burst();
        // Read in small pieces, as from a pipe.
        let mut piece = [0; 4];
        let failed = loop {
            match long.read(&mut piece).await {
                Ok(0) => break false,
                Ok(_) => {}
                Err(_) => break true,
            }
        };
        assert!(failed && burst.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_server_gets_only_what_its_file_names_and_goes_with_its_children() {
        let secrets = Secrets::new([("ESC_SECRET_TOKEN".to_owned(), "s3cr3t-value".to_owned())], None);
        let script = "echo oops >&2; env; sleep 1000 & echo child $!; wait";
        let stdio = McpStdio {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: [("TOKEN".to_owned(), "secret:TOKEN".to_owned())].into(),
            inherit: vec!["PATH".to_owned()],
            cwd: None,
        };
        let folder = tempfile::tempdir().unwrap();
        let (stdout, stdin, process) = start(&stdio, &folder.path().join("x"), 1000, &secrets).unwrap();
        let mut lines = BufReader::new(stdout).lines();
        let (mut names, mut child) = (Vec::new(), String::new());
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some(pid) = line.strip_prefix("child ") {
                child = pid.to_owned();
                break;
            }
            names.push(line);
        }
        assert!(names.contains(&"TOKEN=s3cr3t-value".to_owned()), "{names:?}");
        // The shell adds some of its own.
        let own = ["PWD", "SHLVL", "OLDPWD", "_", "TOKEN", "PATH"];
        assert!(names.iter().all(|line| own.contains(&line.split('=').next().unwrap())), "{names:?}");
        assert!(Path::new(&format!("/proc/{child}")).exists());
        let last_words = process.last_words();
        drop(stdin);
        process.end().await;
        assert_eq!(last_words.text(), "oops");
        // Whoever is killed ends when its processor comes to it.
        let is_gone = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z")
        };
        let gone = async {
            while !is_gone() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the child ends with its server");
    }
}
