//! The archive of raw output: every line that an activity wrote can be read again.
//!
//! Frames are gathered for each call and stored as compressed segments. A frame is acknowledged when the segment that holds it
//! is stored and listed, so that a crash loses nothing: what comes again is stored again, and reading takes each byte once.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Delivery, HandlerResult, Outcome, Subject, header};
use engine::{Engine, Segment, Segments};
use kernel::{CallId, RunId, TenantId};
use service::{Parent, SpanSpec, Tracer};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    Config,
    blobs::{BlobError, Blobs},
    segments::{Frames, Piece, decompress},
};

/// Frames that are held at once, of all calls: the bound of the archive's memory, at 64 KiB a frame.
pub const FRAMES_HELD: usize = 1024;

/// What could not be archived, or read again.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The object store.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// The index.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// Compression.
    #[error("a segment can't be compressed or read")]
    Zstd(#[from] std::io::Error),
}

/// A frame on its way into a segment.
struct Frame {
    tenant: TenantId,
    run: RunId,
    call: CallId,
    delivery: Delivery,
    offset: u64,
    line: u64,
    stored: oneshot::Sender<Result<(), String>>,
}

/// Takes frames.
pub struct Archive {
    queue: mpsc::Sender<Frame>,
    flush: Arc<Notify>,
}

impl Archive {
    /// Starts gathering.
    pub fn start(engine: &Engine, blobs: Blobs, tracer: Tracer, config: &Config) -> Self {
        let (queue, frames) = mpsc::channel(FRAMES_HELD);
        let flush = Arc::new(Notify::new());
        let keeper = Keeper {
            store: Store { blobs, segments: engine.segments(), tracer },
            calls: HashMap::new(),
            segment_bytes: config.segment_bytes,
            segment_age: Duration::from_millis(config.segment_millis.max(10)),
            flush: Arc::clone(&flush),
        };
        tokio::spawn(keeper.run(frames));
        Self { queue, flush }
    }

    /// Stores what is gathered without waiting for more: this process is about to end.
    pub fn flush(&self) {
        self.flush.notify_one();
    }

    /// Keeps a frame; done when it is stored.
    pub async fn keep(&self, delivery: Delivery) -> HandlerResult {
        let Ok(Subject::Signal { tenant, run, call }) = Subject::parse(&delivery.subject) else {
            // Logs of services share the stream; they are not archived.
            return Ok(Outcome::Ack);
        };
        let (Ok(tenant), Ok(run), Ok(call)) = (tenant.parse(), run.parse(), call.parse()) else {
            return Ok(Outcome::dead("the subject names no tenant, run and call"));
        };
        let number = |name| delivery.headers.get(name).and_then(|text| text.parse::<u64>().ok());
        let (Some(offset), Some(line)) = (number(header::OFFSET), number(header::LINE)) else {
            return if delivery.headers.get(header::EXIT).is_some() {
                Ok(Outcome::Ack)
            } else {
                Ok(Outcome::dead("a frame without its offset and line"))
            };
        };
        let (stored, answer) = oneshot::channel();
        if self.queue.send(Frame { tenant, run, call, delivery, offset, line, stored }).await.is_err() {
            return Ok(Outcome::retry("the archive is closing"));
        }
        match answer.await {
            Ok(Ok(())) => Ok(Outcome::Ack),
            Ok(Err(reason)) => Ok(Outcome::retry(reason)),
            Err(_) => Ok(Outcome::retry("the archive is closing")),
        }
    }
}

/// What is gathered of one call.
struct Gathered {
    tenant: TenantId,
    run: RunId,
    frames: Frames,
    since: Instant,
    traceparent: Option<String>,
    waiting: Vec<oneshot::Sender<Result<(), String>>>,
    ended: bool,
}

struct Keeper {
    store: Store,
    calls: HashMap<CallId, Gathered>,
    segment_bytes: usize,
    segment_age: Duration,
    flush: Arc<Notify>,
}

impl Keeper {
    async fn run(mut self, mut frames: mpsc::Receiver<Frame>) {
        let flush = Arc::clone(&self.flush);
        loop {
            let oldest = self.calls.values().map(|gathered| gathered.since + self.segment_age).min();
            let due = async {
                match oldest {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                frame = frames.recv() => match frame {
                    Some(frame) => self.add(frame),
                    None => break,
                },
                () = due => {}
                () = flush.notified() => self.segment_age = Duration::ZERO,
            }
            while let Ok(frame) = frames.try_recv() {
                self.add(frame);
            }
            self.store_due().await;
        }
    }

    fn add(&mut self, frame: Frame) {
        let gathered = self.calls.entry(frame.call).or_insert_with(|| Gathered {
            tenant: frame.tenant,
            run: frame.run,
            frames: Frames::default(),
            since: Instant::now(),
            traceparent: frame.delivery.traceparent().map(str::to_owned),
            waiting: Vec::new(),
            ended: false,
        });
        gathered.ended |= frame.delivery.headers.get(header::EXIT).is_some();
        gathered.frames.add(frame.offset, frame.line, frame.delivery.payload.clone());
        gathered.waiting.push(frame.stored);
    }

    async fn store_due(&mut self) {
        let held: usize = self.calls.values().map(|gathered| gathered.waiting.len()).sum();
        let due = |gathered: &Gathered| {
            // When half of all that may be held is held, no more would come: store what there is.
            gathered.ended
                || gathered.frames.bytes() >= self.segment_bytes
                || gathered.since.elapsed() >= self.segment_age
                || held >= FRAMES_HELD / 2
        };
        let calls: Vec<CallId> =
            self.calls.iter().filter(|(_, gathered)| due(gathered)).map(|(call, _)| *call).collect();
        for call in calls {
            let Some(mut gathered) = self.calls.remove(&call) else { continue };
            let result = self.store.store(call, &mut gathered).await.map_err(|error| {
                tracing::warn!(%call, error = &error as &dyn std::error::Error, "output not archived: it will come again");
                error.to_string()
            });
            for stored in gathered.waiting {
                // The handler may have given up; the frame then comes again.
                let _ = stored.send(result.clone());
            }
        }
    }
}

struct Store {
    blobs: Blobs,
    segments: Segments,
    tracer: Tracer,
}

impl Store {
    async fn store(&self, call: CallId, gathered: &mut Gathered) -> Result<(), ArchiveError> {
        let parent = gathered.traceparent.as_deref().map(Parent::Traceparent);
        let span = parent
            .map(|parent| self.tracer.span(SpanSpec::new("archive output", parent).run(gathered.run.0.into_bytes())));
        for piece in gathered.frames.take() {
            metrics::counter!("artifact_archived_bytes_total").increment(piece.content.len() as u64);
            self.store_piece(call, gathered, piece).await?;
        }
        drop(span);
        Ok(())
    }

    async fn store_piece(&self, call: CallId, gathered: &Gathered, piece: Piece) -> Result<(), ArchiveError> {
        let (tenant, run) = (gathered.tenant.clone(), gathered.run);
        let object_key = format!("signals/{tenant}/{run}/{call}/{}-{}.zst", piece.from_offset, piece.to_offset);
        let (from_offset, to_offset) = (piece.from_offset, piece.to_offset);
        let (from_line, to_line) = (piece.from_line, piece.to_line);
        let compressed =
            tokio::task::spawn_blocking(move || piece.compress()).await.map_err(std::io::Error::other)??;
        self.blobs.put_at(&object_key, compressed).await?;
        let segment = Segment {
            call_id: call,
            run_id: run,
            tenant,
            from_offset,
            to_offset,
            from_line,
            to_line,
            object_key,
            stored_at: None,
        };
        Ok(self.segments.insert(&segment).await?)
    }
}

/// The bytes of a stored segment.
pub async fn read(blobs: &Blobs, segment: &Segment) -> Result<Vec<u8>, ArchiveError> {
    let stored = blobs.get_at(&segment.object_key).await?;
    Ok(tokio::task::spawn_blocking(move || decompress(&stored)).await.map_err(std::io::Error::other)??)
}
