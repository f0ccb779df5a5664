//! Input for commands that take it: kept in a file by whoever sends it, and handed over by whoever follows the command, who
//! alone is on its machine.
//!
//! Each piece is handed over at most once: it is noted as sent before it is written, since a second "yes" may answer another
//! question than the first. What a crash takes in between, the command still waits for, and that is noticed.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::time::{Duration, Instant};

use kernel::CallId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::processes;

/// Pause between two looks for input.
const LOOK: Duration = Duration::from_millis(100);
/// How long a command may say nothing behind the begin of a line, before that counts as a question.
const QUIET: Duration = Duration::from_secs(2);
/// What is shown of the question, in bytes.
const SHOWN: u64 = 1024;
/// Bytes that a command is sent at most.
const MOST: u64 = 16 << 20;
/// How long a full pipe is waited for.
const TAKE: Duration = Duration::from_secs(10);

/// A piece of input, a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The call that sends it: the second time it is the same piece.
    pub sender: CallId,
    /// As it is written, with its line break if it has one.
    pub text: String,
    /// Whether the input ends with it.
    #[serde(default)]
    pub end: bool,
}

/// Adds a piece, once. Whether it was there before.
pub(super) fn add(files: &Files, piece: &Piece) -> io::Result<bool> {
    let mut file = files.input_list()?;
    file.lock()?;
    let mut before = String::new();
    (&file).take(MOST).read_to_string(&mut before)?;
    if before.len() as u64 == MOST {
        return Err(io::Error::other("more was sent to this command than it may be sent"));
    }
    if before.lines().any(|line| serde_json::from_str::<Piece>(line).is_ok_and(|had| had.sender == piece.sender)) {
        return Ok(true);
    }
    // The remains of a line whose writer died are closed, so that they spoil nothing.
    let open = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{open}{}\n", serde_json::to_string(piece)?).as_bytes())?;
    Ok(false)
}

/// Hands input over for as long as it is polled, and says with `asks` when the command waits for some.
pub(super) async fn hand_over<F: Future<Output = ()>>(
    files: Files,
    call: CallId,
    mut asks: impl FnMut(String, String) -> F,
) -> std::convert::Infallible {
    let mut quiet = Quiet::default();
    loop {
        tokio::time::sleep(LOOK).await;
        let (looked, at) = (files.clone(), quiet);
        let look = tokio::task::spawn_blocking(move || {
            hand_over_pieces(&looked, call)?;
            at.look(&looked, call)
        });
        match look.await {
            Ok(Ok((now, question))) => {
                quiet = now;
                if let Some((name, words)) = question {
                    asks(name, words).await;
                }
            }
            Ok(Err(error)) => tracing::debug!(%call, %error, "input can't be handed over at the moment"),
            Err(error) => tracing::error!(%call, %error, "input is not handed over"),
        }
    }
}

/// Hands over what was added and not sent.
fn hand_over_pieces(files: &Files, call: CallId) -> io::Result<()> {
    let sent = files.input_sent();
    let mut log = files.input_list()?;
    log.seek(SeekFrom::Start(sent))?;
    let mut fresh = String::new();
    log.take(MOST).read_to_string(&mut fresh)?;
    let mut at = sent;
    for line in fresh.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        at += line.len() as u64;
        files.set_input_sent(at)?;
        let Ok(piece) = serde_json::from_str::<Piece>(line) else { continue };
        write_to(files, piece.text.as_bytes())?;
        if piece.end
            && let Some(pid) = files.pid().filter(|pid| processes::belongs(*pid, call))
        {
            // The supervisor closes its end; it may be gone by now.
            let _ = kill(Pid::from_raw(pid), Signal::SIGUSR1);
        }
    }
    Ok(())
}

fn write_to(files: &Files, mut bytes: &[u8]) -> io::Result<()> {
    let mut pipe = files.input()?;
    let until = Instant::now() + TAKE;
    while !bytes.is_empty() {
        match pipe.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How long the output has stood where it is.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    length: u64,
    since: Option<Instant>,
    told: bool,
}

impl Quiet {
    /// Whether the command waits for input now: it has begun a line and says no more, or one of its processes reads.
    fn look(self, files: &Files, call: CallId) -> io::Result<(Self, Option<(String, String)>)> {
        let mut output = match files.output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((self, None)),
            Err(error) => return Err(error),
        };
        let length = output.metadata()?.len();
        let sent = files.input_sent();
        let since = match self.since {
            Some(since) if length == self.length => since,
            _ => return Ok((Self { length, since: Some(Instant::now()), told: false }, None)),
        };
        if self.told || since.elapsed() < QUIET {
            return Ok((self, None));
        }
        output.seek(SeekFrom::Start(length.saturating_sub(SHOWN)))?;
        let mut tail = Vec::new();
        output.take(SHOWN).read_to_end(&mut tail)?;
        let tail = String::from_utf8_lossy(&tail);
        let begun = !tail.is_empty() && !tail.ends_with('\n');
        if !begun && !processes::reads_input(call, &files.dir().join("in")) {
            return Ok((self, None));
        }
        let last = tail.trim_end().lines().last().unwrap_or_default();
        let words = format!("It waits for input. The last it said:\n{last}");
        // A question is one by where it stands: whoever takes the command up asks it once more, and is not heard.
        Ok((Self { told: true, ..self }, Some((format!("asks/{length}/{sent}"), words))))
    }
}

#[cfg(test)]
mod tests {
    use kernel::RunId;

    use super::super::files::Meta;
    use super::*;
    use crate::workspace::Workspaces;

    #[test]
    fn a_piece_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspaces::new(dir.path()).of(RunId::mint());
        workspace.ensure().unwrap();
        let files = Files::new(&workspace, CallId::mint());
        files.create(&Meta::default()).unwrap();
        let piece = Piece { sender: CallId::mint(), text: "y\n".to_owned(), end: false };
        assert!(!add(&files, &piece).unwrap());
        assert!(add(&files, &piece).unwrap());
        let other = Piece { sender: CallId::mint(), text: "\"n\"\n".to_owned(), end: true };
        assert!(!add(&files, &other).unwrap());
        let kept = std::fs::read_to_string(files.dir().join("in.log")).unwrap();
        let kept: Vec<Piece> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(kept, [piece, other]);
    }
}
