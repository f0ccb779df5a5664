//! Following the output of one activity to its end.

use std::fs::File;
use std::io::{self, SeekFrom};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use kernel::call::Exit;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::{Notify, watch};

use super::Activity;
use super::files::{self, Caps, Files, Position};
use super::processes::{self, Processes, Spare};
use super::publish::FramePublisher;
use crate::secrets::Secrets;

/// Bytes of a full frame.
pub(super) const FRAME_BYTES: usize = 64 * 1024;
/// How long output is gathered before it is sent as a frame that isn't full.
const GATHER: Duration = Duration::from_millis(100);
/// How long the begin of a line waits for the rest of it.
const LINE_PATIENCE: Duration = Duration::from_secs(1);
/// Pauses between looks at output that does not grow.
const LOOK: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long a supervisor may take to say who it is: a busy disk holds it up. Whoever takes up an activity that never began keeps
/// its lock for as long, so that an executor that was held up on its way there does not begin it after all.
const APPEAR: Duration = Duration::from_secs(15);
/// How long a command may be over before its supervisor has recorded it.
const RECORD: Duration = Duration::from_secs(10);

/// Follows one activity. Holds its lock.
pub(super) struct Tail {
    files: Files,
    activity: Activity,
    publisher: FramePublisher,
    frames: File,
    output: Option<tokio::fs::File>,
    /// What was read behind `position` and not yet cut into a frame.
    buffer: BytesMut,
    /// Since when there is something in the buffer.
    gathering: Option<Instant>,
    position: Position,
    cap: u64,
    secrets: Secrets,
    /// Tells the guard when there is too much output.
    beyond: watch::Sender<Option<&'static str>>,
    /// Rung when the supervisor has ended, if it is this process's child.
    exited: std::sync::Arc<Notify>,
    /// It has no processes here: only what is recorded says that it has ended.
    remote: bool,
    /// When its supervisor is no longer waited for.
    appear_by: Instant,
    processes: Processes,
    _lock: File,
}

/// What a follower is given.
pub(super) struct Follow {
    pub files: Files,
    pub activity: Activity,
    pub publisher: bus::Publisher,
    pub secrets: Secrets,
    pub traceparent: String,
    pub caps: Caps,
    pub beyond: watch::Sender<Option<&'static str>>,
    pub exited: std::sync::Arc<Notify>,
    pub remote: bool,
    pub processes: Processes,
    pub lock: File,
}

/// How the supervisor's end is known.
enum Ended {
    /// It recorded an exit status.
    Status(i32),
    /// It is gone without a word.
    Gone,
}

impl Tail {
    /// Takes up where the last follower stopped: frames that it had cut and of which no confirmation is known are sent
    /// again as they were.
    pub async fn begin(follow: Follow) -> io::Result<Self> {
        let Follow { files, activity, publisher, secrets, traceparent, caps, beyond, exited, remote, processes, lock } =
            follow;
        let cut = files.frames();
        let acked = files.acked();
        let confirmed = cut.iter().take_while(|end| end.offset <= acked).count();
        let position = confirmed.checked_sub(1).map(|last| cut[last]).unwrap_or_default();
        let publisher = FramePublisher::new(publisher, files.clone(), activity.clone(), traceparent, position.offset);
        let frames = files.open_frames()?;
        let mut tail = Self {
            files,
            activity,
            publisher,
            frames,
            output: None,
            buffer: BytesMut::with_capacity(FRAME_BYTES),
            gathering: None,
            position,
            cap: if caps.output == 0 { u64::MAX } else { caps.output },
            secrets,
            beyond,
            exited,
            remote,
            appear_by: Instant::now() + APPEAR,
            processes,
            _lock: lock,
        };
        for end in &cut[confirmed..] {
            tail.send_again(*end).await?;
        }
        Ok(tail)
    }

    async fn send_again(&mut self, end: Position) -> io::Result<()> {
        let mut body = vec![0; usize::try_from(end.offset.saturating_sub(self.position.offset)).unwrap_or_default()];
        let output = self.open().await?.ok_or_else(|| io::Error::other("the output file is gone"))?;
        output.read_exact(&mut body).await?;
        self.secrets.mask(&mut body);
        self.publisher.send(self.position, body.into()).await;
        self.position = end;
        Ok(())
    }

    /// Sends what comes until the activity has ended, then how it ended. Only fails if its files can't be read.
    pub async fn follow(mut self) -> io::Result<Exit> {
        let mut pause = LOOK[0];
        let ended = loop {
            let grew = self.fill().await?;
            self.cut_due(false).await?;
            self.publisher.settle_ready().await;
            if self.buffer.len() >= FRAME_BYTES {
                continue;
            }
            if grew {
                pause = LOOK[0];
            } else if let Some(ended) = self.ended().await {
                break ended;
            }
            let exited = self.exited.clone();
            tokio::select! {
                () = exited.notified() => pause = LOOK[0],
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LOOK[1]),
            }
        };
        self.finish(ended).await
    }

    async fn finish(mut self, ended: Ended) -> io::Result<Exit> {
        if !self.remote {
            // What the command left behind would go on writing for nobody.
            self.processes.terminate(Duration::ZERO, Spare::Nobody).await;
        }
        while self.fill().await? {
            self.cut_due(false).await?;
        }
        if self.processes.refused() && !matches!(ended, Ended::Status(0)) {
            // What it says of that itself is hard to understand.
            self.files.set_reason("process_cap")?;
        }
        let unfinished_line = self.buffer.last().is_some_and(|byte| *byte != b'\n');
        self.cut_due(true).await?;
        let lines = self.position.line + u64::from(unfinished_line);
        let exit = exit(&ended, self.files.reason(), self.position.offset, lines);
        self.publisher.send_exit(self.position, &exit).await.map_err(io::Error::other)?;
        self.files.mark_done()?;
        Ok(exit)
    }

    /// Reads what is there, at most a frame; whether there was anything.
    async fn fill(&mut self) -> io::Result<bool> {
        let read = self.position.offset + self.buffer.len() as u64;
        let room = (FRAME_BYTES - self.buffer.len())
            .min(usize::try_from(self.cap.saturating_sub(read)).unwrap_or(FRAME_BYTES));
        if room == 0 {
            if read >= self.cap {
                self.beyond.send_if_modified(|told| told.is_none() && told.replace("output_cap").is_none());
            }
            return Ok(false);
        }
        let Some(output) = self.open().await? else { return Ok(false) };
        let mut chunk = vec![0; room];
        let count = output.read(&mut chunk).await?;
        if count > 0 && self.gathering.is_none() {
            self.gathering = Some(Instant::now());
        }
        self.buffer.extend_from_slice(&chunk[..count]);
        Ok(count > 0)
    }

    /// The output behind the buffer; none if the supervisor has not opened it yet.
    async fn open(&mut self) -> io::Result<Option<&mut tokio::fs::File>> {
        if self.output.is_none() {
            match self.files.output() {
                Ok(file) => {
                    let mut file = tokio::fs::File::from_std(file);
                    file.seek(SeekFrom::Start(self.position.offset)).await?;
                    self.output = Some(file);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(self.output.as_mut())
    }

    /// Cuts and sends the frames that are due; all of the buffer if `all`.
    async fn cut_due(&mut self, all: bool) -> io::Result<()> {
        loop {
            let waited = self.gathering.map(|since| since.elapsed()).unwrap_or_default();
            let mut length = cut(&self.buffer, waited, all);
            if !all {
                // Each secret stands whole in one frame, so whoever sends a frame again hides the same.
                length = self.secrets.safe_cut(&self.buffer, length);
            }
            if length == 0 {
                return Ok(());
            }
            let mut body = self.buffer.split_to(length);
            self.secrets.mask(&mut body);
            let body = body.freeze();
            self.gathering = (!self.buffer.is_empty()).then(Instant::now);
            let end = behind(self.position, &body);
            // Noted before it is sent: whoever sends it again must cut it the same.
            files::add_frame(&mut self.frames, end)?;
            self.publisher.send(self.position, body).await;
            self.position = end;
        }
    }

    fn ended(&self) -> impl Future<Output = Option<Ended>> + use<> {
        let (files, call, by, remote) = (self.files.clone(), self.activity.call, self.appear_by, self.remote);
        let look = move || match remote {
            true => files.exit_status().map(Ended::Status),
            false => look(&files, call, by),
        };
        async move { tokio::task::spawn_blocking(look).await.unwrap_or_default() }
    }
}

/// Whether the supervisor has ended, and how.
fn look(files: &Files, call: kernel::CallId, appear_by: Instant) -> Option<Ended> {
    if let Some(status) = files.exit_status() {
        return Some(Ended::Status(status));
    }
    let alive = match files.pid() {
        Some(pid) => processes::belongs(pid, call),
        None => Instant::now() < appear_by,
    };
    if alive {
        return None;
    }
    // It may have recorded its end between the two looks.
    Some(files.exit_status().map_or(Ended::Gone, Ended::Status))
}

/// Ends an activity for `reason`: the supervisor records the end of its command, or is killed as well.
pub(super) async fn end(files: &Files, processes: &Processes, reason: &str, grace: Duration) {
    if let Err(error) = files.set_reason(reason) {
        tracing::warn!(%error, "could not note why an activity is being ended");
    }
    processes.terminate(grace, Spare::Supervisor).await;
    let deadline = Instant::now() + RECORD;
    while files.exit_status().is_none() && Instant::now() < deadline {
        tokio::time::sleep(LOOK[1]).await;
    }
    if files.exit_status().is_none() {
        processes.kill_supervisor();
    }
}

/// How many bytes of the buffer make the next frame now.
fn cut(buffer: &[u8], waited: Duration, all: bool) -> usize {
    let whole_lines = || buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    if all {
        return buffer.len();
    }
    if buffer.len() < FRAME_BYTES && waited < GATHER {
        return 0;
    }
    match whole_lines() {
        0 if buffer.len() >= FRAME_BYTES || waited >= LINE_PATIENCE => buffer.len(),
        length => length,
    }
}

fn behind(start: Position, body: &Bytes) -> Position {
    let breaks = body.iter().filter(|byte| **byte == b'\n').count();
    Position { offset: start.offset + body.len() as u64, line: start.line + breaks as u64 }
}

fn exit(ended: &Ended, reason: Option<String>, bytes: u64, lines: u64) -> Exit {
    let (code, signal, otherwise) = match ended {
        // A shell's way of saying "ended by a signal".
        Ended::Status(status @ 129..=159) => (None, Some(status - 128), "exited"),
        Ended::Status(status) => (Some(*status), None, "exited"),
        Ended::Gone => (None, None, "lost"),
    };
    Exit { code, signal, reason: reason.unwrap_or_else(|| otherwise.to_owned()), bytes, lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::ZERO;

    #[test]
    fn frames_hold_whole_lines_if_they_can() {
        assert_eq!(cut(b"one\ntwo", SOON, false), 0);
        assert_eq!(cut(b"one\ntwo", GATHER, false), 4);
        assert_eq!(cut(b"two", GATHER, false), 0);
        assert_eq!(cut(b"two", LINE_PATIENCE, false), 3);
        assert_eq!(cut(b"two", SOON, true), 3);
        assert_eq!(cut(b"", LINE_PATIENCE, true), 0);
        let mut full = vec![b'x'; FRAME_BYTES];
        assert_eq!(cut(&full, SOON, false), FRAME_BYTES);
        full[9] = b'\n';
        assert_eq!(cut(&full, SOON, false), 10);
    }

    #[test]
    fn an_exit_says_what_the_shell_said() {
        let told = |ended, reason: Option<&str>| exit(&ended, reason.map(str::to_owned), 5, 1);
        assert!(told(Ended::Status(0), None).is_success());
        assert_eq!(told(Ended::Status(7), None).code, Some(7));
        assert_eq!(told(Ended::Status(137), Some("timeout")).signal, Some(9));
        assert_eq!(told(Ended::Status(0), Some("cancelled")).reason, "cancelled");
        assert_eq!(told(Ended::Gone, None).reason, "lost");
        assert_eq!(told(Ended::Status(255), None).code, Some(255));
    }
}
