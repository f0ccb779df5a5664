//! Keeps raw output: gathers what comes for each call, stores it in compressed segments, and lets each message be
//! acknowledged only when the segment that holds it is stored and recorded.
//!
//! A message that was stored and not acknowledged comes again after a crash and is stored again, in another segment
//! perhaps: readers take each byte once. Several instances may get messages of one call; their segments fit together all
//! the same. What waits is bounded by the messages that the consumer takes at once and by their bytes.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bus::{Bus, BusError, ConsumeOptions, Consuming, Delivery, HandlerResult, Outcome, Subject, header};
use bytes::Bytes;
use engine::{EngineError, Segment, Segments};
use kernel::{CallId, RunId, TenantId};
use service::{Parent, SpanSpec, Tracer, telemetry::genai};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    logs::{self, LogArchive},
    segment::{self, Piece, Stretch},
    store::Store,
};

/// Messages that are taken at once. With frames of 64 KiB these are 64 MiB at the worst.
const IN_FLIGHT: usize = 1024;
/// Waiting messages beyond which nothing waits for a fuller segment.
const CROWDED: usize = IN_FLIGHT * 3 / 4;
/// Calls that are being stored at once.
const STORING: usize = 8;
/// How often the age of what waits is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What became of a message.
pub(crate) type Answer = Result<(), String>;

/// Where a piece belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    tenant: TenantId,
    run_id: RunId,
    call_id: CallId,
}

/// A message on its way into a segment.
struct Incoming {
    address: Address,
    piece: Piece,
    /// The last of its call, and the span it came from.
    last: Option<Ending>,
    done: oneshot::Sender<Answer>,
}

/// How the output of a call ends.
struct Ending {
    tool: String,
    traceparent: Option<String>,
}

/// What waits of one call.
struct Waiting {
    address: Address,
    pieces: Vec<Piece>,
    bytes: usize,
    since: Instant,
    last: Option<Ending>,
    done: Vec<oneshot::Sender<Answer>>,
}

/// A segment was not stored.
#[derive(Debug, thiserror::Error)]
enum ArchiveError {
    #[error("could not compress: {0}")]
    Compress(#[from] std::io::Error),
    #[error("could not store: {0}")]
    Store(#[from] object_store::Error),
    #[error("could not record: {0}")]
    Record(#[from] EngineError),
}

/// Stores segments. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) store: Store,
    pub(crate) segments: Segments,
    pub(crate) tracer: Tracer,
}

/// Begins to keep what is on the stream of signals, until told to stop.
pub(crate) fn start(
    bus: &Bus,
    keeper: Keeper,
    logs: LogArchive,
    config: &Config,
    stop: CancellationToken,
) -> Result<(Consuming, tokio::task::JoinHandle<()>), BusError> {
    let (send, receive) = mpsc::channel(IN_FLIGHT);
    let (send_log, receive_log) = logs::channel();
    let archive = Archive {
        keeper,
        segment_bytes: config.segment_bytes.max(1),
        segment_age: config.segment_age(),
        most_bytes: config.archive_buffer_bytes,
        waiting: HashMap::new(),
        bytes: 0,
        messages: 0,
        storing: JoinSet::new(),
    };
    let drain = config.common.drain();
    let options = ConsumeOptions { concurrency: IN_FLIGHT, drain, max_attempts: u64::MAX, ..ConsumeOptions::default() };
    let handler = move |delivery: Delivery| {
        let (send, send_log) = (send.clone(), send_log.clone());
        async move { keep(&delivery, &send, &send_log).await }
    };
    let consuming = bus.consume("artifact", options, handler, stop.clone())?;
    let keeping = async move {
        futures::join!(archive.run(receive, stop.clone()), logs.run(receive_log, stop));
    };
    Ok((consuming, tokio::spawn(keeping)))
}

/// Hands a message over, and waits until it is stored.
async fn keep(
    delivery: &Delivery,
    send: &mpsc::Sender<Incoming>,
    send_log: &mpsc::Sender<logs::Incoming>,
) -> HandlerResult {
    let (address, piece) = match read(delivery) {
        Ok(Some(read)) => read,
        Ok(None) => return keep_log(delivery, send_log).await,
        Err(why) => return Ok(Outcome::dead(why)),
    };
    let last = delivery.headers.get(header::EXIT).map(|_| Ending {
        tool: delivery.headers.get(header::TOOL).unwrap_or("tool").to_owned(),
        traceparent: delivery.traceparent().map(str::to_owned),
    });
    let (done, answer) = oneshot::channel();
    if send.send(Incoming { address, piece, last, done }).await.is_err() {
        return Ok(Outcome::defer("the archive is closed"));
    }
    stored(answer).await
}

/// Hands a message of a service's log over, and waits until it is stored.
async fn keep_log(delivery: &Delivery, send: &mpsc::Sender<logs::Incoming>) -> HandlerResult {
    let (incoming, answer) = match logs::incoming(delivery) {
        Ok(incoming) => incoming,
        Err(why) => return Ok(Outcome::dead(why)),
    };
    if send.send(incoming).await.is_err() {
        return Ok(Outcome::defer("the archive is closed"));
    }
    stored(answer).await
}

async fn stored(answer: oneshot::Receiver<Answer>) -> HandlerResult {
    match answer.await {
        Ok(Ok(())) => Ok(Outcome::Ack),
        Ok(Err(why)) => Ok(Outcome::defer(why)),
        Err(_) => Ok(Outcome::defer("the archive is closed")),
    }
}

fn read(delivery: &Delivery) -> Result<Option<(Address, Piece)>, &'static str> {
    let (tenant, run, call) = match Subject::parse(&delivery.subject) {
        Ok(Subject::Signal { tenant, run, call }) => (tenant, run, call),
        Ok(Subject::Log { .. }) => return Ok(None),
        _ => return Err("its subject is no signal's"),
    };
    let address = Address {
        tenant: tenant.parse().map_err(|_| "its subject names no tenant")?,
        run_id: run.parse().map_err(|_| "its subject names no run")?,
        call_id: call.parse().map_err(|_| "its subject names no call")?,
    };
    let number = |name| delivery.headers.get(name).and_then(|text| text.parse::<u64>().ok());
    let offset = number(header::OFFSET).ok_or("it has no offset")?;
    let end = offset.checked_add(delivery.payload.len() as u64).and_then(|end| i64::try_from(end).ok());
    end.ok_or("its offset is beyond what can be kept")?;
    let line = number(header::LINE).unwrap_or_default();
    Ok(Some((address, Piece { offset, line, body: delivery.payload.clone() })))
}

/// Gathers, and stores what is full, old or last.
struct Archive {
    keeper: Keeper,
    segment_bytes: usize,
    segment_age: Duration,
    most_bytes: usize,
    waiting: HashMap<CallId, Waiting>,
    bytes: usize,
    messages: usize,
    storing: JoinSet<()>,
}

impl Archive {
    /// Runs until nobody can send any more; once told to stop, nothing waits for a fuller segment.
    async fn run(mut self, mut receive: mpsc::Receiver<Incoming>, stop: CancellationToken) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                incoming = receive.recv(), if self.storing.len() < STORING => match incoming {
                    Some(incoming) => self.take(incoming),
                    None => break,
                },
                Some(_) = self.storing.join_next() => {}
                _ = look.tick() => {
                    let age = if stop.is_cancelled() { Duration::ZERO } else { self.segment_age };
                    self.store_older_than(age);
                }
            }
            metrics::gauge!("artifact_archive_waiting_bytes").set(self.bytes as f64);
        }
        self.store_older_than(Duration::ZERO);
        while self.storing.join_next().await.is_some() {}
    }

    fn take(&mut self, incoming: Incoming) {
        let Incoming { address, piece, last, done } = incoming;
        let call_id = address.call_id;
        let waiting = self.waiting.entry(call_id).or_insert_with(|| Waiting {
            address,
            pieces: Vec::new(),
            bytes: 0,
            since: Instant::now(),
            last: None,
            done: Vec::new(),
        });
        self.bytes += piece.body.len();
        self.messages += 1;
        waiting.bytes += piece.body.len();
        waiting.pieces.push(piece);
        waiting.done.push(done);
        waiting.last = waiting.last.take().or(last);
        if waiting.bytes >= self.segment_bytes || waiting.last.is_some() {
            self.store(call_id);
        } else if self.bytes > self.most_bytes || self.messages >= CROWDED {
            let largest = self.waiting.iter().max_by_key(|(_, waiting)| waiting.bytes);
            if let Some(call_id) = largest.map(|(call_id, _)| *call_id) {
                self.store(call_id);
            }
        }
    }

    fn store_older_than(&mut self, age: Duration) {
        let is_old = |waiting: &Waiting| waiting.since.elapsed() >= age;
        let old = self.waiting.iter().filter(|(_, waiting)| is_old(waiting));
        for call_id in old.map(|(call_id, _)| *call_id).collect::<Vec<_>>() {
            self.store(call_id);
        }
    }

    fn store(&mut self, call_id: CallId) {
        let Some(waiting) = self.waiting.remove(&call_id) else { return };
        self.bytes -= waiting.bytes;
        self.messages -= waiting.pieces.len();
        let keeper = self.keeper.clone();
        self.storing.spawn(async move { keeper.keep(waiting).await });
    }
}

impl Keeper {
    /// Stores what waits of a call, and answers everybody who waits for it.
    async fn keep(&self, waiting: Waiting) {
        let Waiting { address, pieces, last, done, .. } = waiting;
        let span = last.as_ref().map(|ending| {
            let trace_id = address.run_id.0.into_bytes();
            let root = Parent::Ids { trace_id, span_id: address.run_id.root_span_id(), sampled: true };
            let parent = ending.traceparent.as_deref().map_or(root, Parent::Traceparent);
            let spec = SpanSpec::new(format!("archive {}", ending.tool), parent).run(trace_id);
            let spec = spec.attribute(genai::RUN_ID, address.run_id.to_string());
            self.tracer.span(spec.attribute(genai::TOOL_CALL_ID, address.call_id.to_string()))
        });
        let mut outcome = Ok(());
        for stretch in segment::join(pieces) {
            if let Err(error) = self.keep_stretch(&address, stretch).await {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
                tracing::warn!(call = %address.call_id, "raw output could not be archived, trying again: {error}{source}");
                metrics::counter!("artifact_segment_failures_total").increment(1);
                if let Some(span) = &span {
                    span.record_error("not_archived", &error);
                }
                outcome = Err(error.to_string());
                break;
            }
        }
        for waiting in done {
            // Whoever does not wait any more gets the message again.
            let _ = waiting.send(outcome.clone());
        }
    }

    async fn keep_stretch(&self, address: &Address, stretch: Stretch) -> Result<(), ArchiveError> {
        let Address { tenant, run_id, call_id } = address;
        let Stretch { from, to, from_line, to_line, bytes } = stretch;
        let length = bytes.len() as u64;
        let small =
            tokio::task::spawn_blocking(move || segment::compress(&bytes)).await.map_err(std::io::Error::other)??;
        // Both ends are in the key: what is written twice is the same twice.
        let object_key = format!("signals/{tenant}/{run_id}/{call_id}/{from}-{to}.zst");
        metrics::counter!("artifact_segments_total").increment(1);
        metrics::counter!("artifact_segment_raw_bytes_total").increment(length);
        metrics::counter!("artifact_segment_stored_bytes_total").increment(small.len() as u64);
        self.store.put_object(&object_key, Bytes::from(small)).await?;
        let segment = Segment {
            call_id: *call_id,
            run_id: *run_id,
            tenant: tenant.clone(),
            from_offset: from,
            to_offset: to,
            from_line,
            to_line,
            object_key,
            stored_at: None,
        };
        Ok(self.segments.insert(&segment).await?)
    }
}
