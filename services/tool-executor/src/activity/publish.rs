//! Publishing frames: pipelined, in order, each with the same identity and bounds however often it is sent.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bus::{Ack, BusError, Outgoing, Publisher, header, subject};
use bytes::Bytes;
use futures::FutureExt as _;
use jiff::Timestamp;
use kernel::CallId;
use kernel::call::Exit;

use super::Activity;
use super::files::{Files, Position};

/// Frames on their way to the server at once.
const IN_FLIGHT: usize = 64;
/// How much may be confirmed before that is noted on disk.
const NOTE_BYTES: u64 = 1 << 20;
/// How long it may be confirmed before that is noted on disk.
const NOTE_EVERY: Duration = Duration::from_millis(200);

type Acknowledged = Pin<Box<dyn Future<Output = Result<Ack, BusError>> + Send>>;

/// Sends the frames of one activity.
pub(super) struct FramePublisher {
    publisher: Publisher,
    files: Files,
    activity: Activity,
    traceparent: String,
    /// Not yet confirmed, oldest first.
    in_flight: VecDeque<Sent>,
    acked: u64,
    noted: u64,
    noted_at: Instant,
}

struct Sent {
    frame: Outgoing,
    end: u64,
    acknowledged: Acknowledged,
}

impl FramePublisher {
    pub fn new(publisher: Publisher, files: Files, activity: Activity, traceparent: String, acked: u64) -> Self {
        let in_flight = VecDeque::new();
        Self { publisher, files, activity, traceparent, in_flight, acked, noted: acked, noted_at: Instant::now() }
    }

    /// Hands a frame to the connection; waits only while too many are on their way.
    pub async fn send(&mut self, start: Position, body: Bytes) {
        while self.in_flight.len() >= IN_FLIGHT {
            self.settle_first().await;
        }
        self.settle_ready().await;
        let end = start.offset + body.len() as u64;
        metrics::counter!("tool_executor_frames_total").increment(1);
        metrics::counter!("tool_executor_output_bytes_total").increment(body.len() as u64);
        let frame = self.frame(start, body).msg_id(format!("{}:{}", self.activity.call, start.offset));
        let acknowledged = match self.publisher.send(frame.clone()).await {
            Ok(ack) => ack.into_future(),
            Err(error) => std::future::ready(Err(error)).boxed(),
        };
        self.in_flight.push_back(Sent { frame, end, acknowledged });
    }

    /// Waits until all that was sent is confirmed. Goes on trying as long as it is waited for.
    pub async fn settle(&mut self) {
        while !self.in_flight.is_empty() {
            self.settle_first().await;
        }
        self.note(true);
    }

    /// Takes in what was confirmed meanwhile, without waiting.
    pub async fn settle_ready(&mut self) {
        while let Some(first) = self.in_flight.front_mut() {
            match (&mut first.acknowledged).now_or_never() {
                None => break,
                Some(outcome) => self.settled(outcome).await,
            }
        }
        self.note(false);
    }

    /// Publishes the last frame, which says how it ended, and waits for the server's word.
    pub async fn send_exit(&mut self, end: Position, exit: &Exit) -> Result<(), serde_json::Error> {
        self.settle().await;
        let exit = serde_json::to_string(exit)?;
        let frame = self.frame(end, Bytes::new()).header(header::EXIT, exit);
        let frame = frame.msg_id(format!("{}:exit", self.activity.call));
        insist(&self.publisher, frame, self.activity.call).await;
        Ok(())
    }

    fn frame(&self, start: Position, body: Bytes) -> Outgoing {
        let Activity { tenant, run, call, tool, agent_digest, .. } = &self.activity;
        Outgoing::new(subject::sig(tenant, run, call), body)
            .header(header::OFFSET, start.offset)
            .header(header::LINE, start.line)
            .header(header::STREAM, "both")
            .header(header::TIME, Timestamp::now())
            .header(header::TOOL, tool)
            .header(header::AGENT, agent_digest)
            .traceparent(&self.traceparent)
    }

    async fn settle_first(&mut self) {
        if let Some(first) = self.in_flight.front_mut() {
            let outcome = (&mut first.acknowledged).await;
            self.settled(outcome).await;
        }
    }

    /// The outcome of the oldest frame is known. After a failure all that follow are sent again behind it, so that they
    /// stand in order; those that had arrived are dropped by their identity.
    async fn settled(&mut self, outcome: Result<Ack, BusError>) {
        match outcome {
            Ok(_) => {
                if let Some(sent) = self.in_flight.pop_front() {
                    self.acked = sent.end;
                }
            }
            Err(error) => {
                tracing::warn!(call = %self.activity.call, %error, "output could not be published, trying again");
                // Whoever gives up in here has the rest still in line.
                while let Some(sent) = self.in_flight.front() {
                    let (frame, end) = (sent.frame.clone(), sent.end);
                    insist(&self.publisher, frame, self.activity.call).await;
                    self.in_flight.pop_front();
                    self.acked = end;
                }
            }
        }
    }

    fn note(&mut self, now: bool) {
        let due = self.acked - self.noted >= NOTE_BYTES || self.noted_at.elapsed() >= NOTE_EVERY;
        if self.acked > self.noted && (now || due) {
            if let Err(error) = self.files.set_acked(self.acked) {
                // Only costs sending more than needed after a crash.
                tracing::warn!(call = %self.activity.call, %error, "could not note how far output was published");
            }
            self.noted = self.acked;
            self.noted_at = Instant::now();
        }
    }
}

/// Publishes until the server took it: output is never given up while somebody follows it.
async fn insist(publisher: &Publisher, frame: Outgoing, call: CallId) {
    let mut delays = bus::retry::exponential(Duration::from_millis(100), Duration::from_secs(5));
    while let Err(error) = publisher.publish(frame.clone()).await {
        tracing::warn!(%call, %error, "output could not be published, trying again");
        tokio::time::sleep(delays.next().unwrap_or(NOTE_EVERY)).await;
    }
}
