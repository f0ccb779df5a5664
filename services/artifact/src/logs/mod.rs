//! Keeps the logs of services as they came, in compressed pieces that say where each message and each record in them stands.
//!
//! As with the output of calls, a message is acknowledged when the piece that holds it is stored and recorded, and what is stored
//! twice after a crash is read once.

pub(crate) mod read;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bus::{Delivery, Subject};
use bytes::Bytes;
use engine::{EngineError, ServiceSegment, Services};
use kernel::{TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{Config, archive::Answer, segment, store::Store};

/// Messages that may wait for one another.
const WAITING: usize = 1024;
/// Services that are being stored at once.
const STORING: usize = 4;
/// How often the age of what waits is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Most bytes of the name of a service.
const SERVICE_BYTES: usize = 128;

type Key = (TenantId, String);

/// The head of a piece: its first line.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    messages: Vec<Indexed>,
}

/// A message in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Indexed {
    /// Its number in the stream.
    seq: u64,
    /// When the bus stored it, in microseconds since 1970.
    at: i64,
    /// How many lines are its own.
    lines: u32,
}

/// A message on its way into a piece.
pub(crate) struct Incoming {
    key: Key,
    seq: u64,
    at: Timestamp,
    payload: Bytes,
    done: oneshot::Sender<Answer>,
}

/// What waits of one service.
struct Waiting {
    messages: Vec<(u64, Timestamp, Bytes)>,
    bytes: usize,
    since: Instant,
    done: Vec<oneshot::Sender<Answer>>,
}

/// A piece was not stored.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("could not compress: {0}")]
    Compress(#[from] std::io::Error),
    #[error("could not store: {0}")]
    Store(#[from] object_store::Error),
    #[error("could not record: {0}")]
    Record(#[from] EngineError),
    #[error("could not write its index: {0}")]
    Index(#[from] serde_json::Error),
}

/// Whose log a message is of, and a place to hear what became of it.
pub(crate) fn incoming(delivery: &Delivery) -> Result<(Incoming, oneshot::Receiver<Answer>), &'static str> {
    let Ok(Subject::Log { tenant, service }) = Subject::parse(&delivery.subject) else {
        return Err("its subject is no log's");
    };
    if !(1..=SERVICE_BYTES).contains(&service.len()) || service.contains('\0') {
        return Err("its subject names no service");
    }
    let tenant = tenant.parse().map_err(|_| "its subject names no tenant")?;
    let (done, answer) = oneshot::channel();
    let (seq, at, payload) = (delivery.stream_seq, delivery.published_at, delivery.payload.clone());
    Ok((Incoming { key: (tenant, service), seq, at, payload, done }, answer))
}

/// Where messages go.
pub(crate) fn channel() -> (mpsc::Sender<Incoming>, mpsc::Receiver<Incoming>) {
    mpsc::channel(WAITING)
}

/// Stores pieces. Cheap to clone.
#[derive(Clone)]
struct Keeper {
    store: Store,
    services: Services,
}

/// Gathers, and stores what is full or old.
pub(crate) struct LogArchive {
    keeper: Keeper,
    segment_bytes: usize,
    segment_age: Duration,
    most_bytes: usize,
    waiting: HashMap<Key, Waiting>,
    bytes: usize,
    storing: JoinSet<()>,
}

impl LogArchive {
    pub(crate) fn new(store: Store, services: Services, config: &Config) -> Self {
        Self {
            keeper: Keeper { store, services },
            segment_bytes: config.segment_bytes.max(1),
            segment_age: config.segment_age(),
            most_bytes: config.archive_buffer_bytes,
            waiting: HashMap::new(),
            bytes: 0,
            storing: JoinSet::new(),
        }
    }

    /// Runs until nobody can send any more; once told to stop, nothing waits for a fuller piece.
    pub(crate) async fn run(mut self, mut receive: mpsc::Receiver<Incoming>, stop: CancellationToken) {
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
            metrics::gauge!("artifact_logs_waiting_bytes").set(self.bytes as f64);
        }
        self.store_older_than(Duration::ZERO);
        while self.storing.join_next().await.is_some() {}
    }

    fn take(&mut self, incoming: Incoming) {
        let Incoming { key, seq, at, payload, done } = incoming;
        let fresh = || Waiting { messages: Vec::new(), bytes: 0, since: Instant::now(), done: Vec::new() };
        let waiting = self.waiting.entry(key.clone()).or_insert_with(fresh);
        self.bytes += payload.len();
        waiting.bytes += payload.len();
        waiting.messages.push((seq, at, payload));
        waiting.done.push(done);
        // Nobody waits for a fuller piece once the consumer is given no more messages.
        if waiting.bytes >= self.segment_bytes || waiting.messages.len() >= WAITING / 2 {
            self.store(&key);
        } else if self.bytes > self.most_bytes {
            let largest = self.waiting.iter().max_by_key(|(_, waiting)| waiting.bytes);
            if let Some(key) = largest.map(|(key, _)| key.clone()) {
                self.store(&key);
            }
        }
    }

    fn store_older_than(&mut self, age: Duration) {
        let old = self.waiting.iter().filter(|(_, waiting)| waiting.since.elapsed() >= age);
        for key in old.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.store(&key);
        }
    }

    fn store(&mut self, key: &Key) {
        let Some(waiting) = self.waiting.remove(key) else { return };
        self.bytes -= waiting.bytes;
        let (keeper, key) = (self.keeper.clone(), key.clone());
        self.storing.spawn(async move { keeper.keep(key, waiting).await });
    }
}

impl Keeper {
    /// Stores what waits of a service, and answers everybody who waits for it.
    async fn keep(&self, (tenant, service): Key, waiting: Waiting) {
        let Waiting { messages, done, .. } = waiting;
        let outcome = self.keep_piece(&tenant, &service, messages).await.map_err(|error| {
            metrics::counter!("artifact_segment_failures_total").increment(1);
            tracing::warn!(%tenant, service, %error, "a piece of a log could not be archived, trying again");
            error.to_string()
        });
        for waiting in done {
            // Whoever does not wait any more gets the message again.
            let _ = waiting.send(outcome.clone());
        }
    }

    async fn keep_piece(
        &self,
        tenant: &TenantId,
        service: &str,
        mut messages: Vec<(u64, Timestamp, Bytes)>,
    ) -> Result<(), KeepError> {
        messages.sort_by_key(|(seq, at, _)| (*at, *seq));
        let (Some((from_seq, from_at, _)), Some((to_seq, to_at, _))) = (messages.first(), messages.last()) else {
            return Ok(());
        };
        let (from_seq, from_at, to_seq, to_at) = (*from_seq, *from_at, *to_seq, *to_at);
        let written = tokio::task::spawn_blocking(move || -> Result<_, KeepError> {
            let (plain, records) = write(&messages)?;
            Ok((plain.len() as u64, records, segment::compress(&plain)?))
        });
        let (bytes, records, small) = written.await.map_err(std::io::Error::other)??;
        let name = bus::subject::token(service);
        let object_key = format!("logs/{tenant}/{name}/{}-{from_seq}-{to_seq}.zst", from_at.as_microsecond());
        metrics::counter!("artifact_segments_total").increment(1);
        metrics::counter!("artifact_segment_raw_bytes_total").increment(bytes);
        metrics::counter!("artifact_segment_stored_bytes_total").increment(small.len() as u64);
        self.store.put_object(&object_key, Bytes::from(small)).await?;
        let (tenant, service) = (tenant.clone(), service.to_owned());
        let segment = ServiceSegment { tenant, service, from_seq, to_seq, from_at, to_at, records, bytes, object_key };
        Ok(self.services.insert_segment(&segment).await?)
    }
}

/// A piece as it is stored, and how many records it holds: a line that tells where everything stands, then a line a record.
fn write(messages: &[(u64, Timestamp, Bytes)]) -> Result<(Vec<u8>, u64), serde_json::Error> {
    let mut index = Index::default();
    let (mut body, mut records) = (Vec::new(), 0);
    for (seq, at, payload) in messages {
        let lines = signals::lines(payload);
        records += lines.len() as u64;
        index.messages.push(Indexed {
            seq: *seq,
            at: at.as_microsecond(),
            lines: u32::try_from(lines.len()).unwrap_or(u32::MAX),
        });
        for line in lines {
            body.extend_from_slice(&line);
            body.push(b'\n');
        }
    }
    let mut plain = serde_json::to_vec(&index)?;
    plain.push(b'\n');
    plain.extend_from_slice(&body);
    Ok((plain, records))
}

/// A record in a piece.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    at: i64,
    seq: u64,
    /// Its place in the message, from 0.
    index: u32,
    text: Vec<u8>,
}

/// The records of a piece; those beyond what it says it has are no records.
fn records(plain: &[u8]) -> Result<Vec<Kept>, serde_json::Error> {
    let mut lines = plain.split(|byte| *byte == b'\n');
    let index: Index = serde_json::from_slice(lines.next().unwrap_or_default())?;
    let places = index.messages.iter().flat_map(|message| (0..message.lines).map(move |index| (message, index)));
    Ok(places
        .zip(lines)
        .map(|((message, index), text)| Kept { at: message.at, seq: message.seq, index, text: text.to_vec() })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_found_where_it_stood() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let messages = vec![
            (7, at(1), Bytes::from_static(b"{\"msg\":\"a\"}\n\nplain \xff\n")),
            (9, at(2), Bytes::from_static(b"[\"x\",\"y\"]")),
        ];
        let (plain, count) = write(&messages).unwrap();
        let records = records(&plain).unwrap();
        let shown: Vec<_> = records.iter().map(|kept| (kept.seq, kept.index, kept.text.as_slice())).collect();
        assert_eq!(count, 4);
        assert_eq!(shown, [(7, 0, &b"{\"msg\":\"a\"}"[..]), (7, 1, b"plain \xff"), (9, 0, b"x"), (9, 1, b"y")]);
        assert!(super::records(b"no index\n").is_err());
    }
}
