//! Gathers messages by what they are of, until there is enough for a segment, or they have waited long enough.
//!
//! Each message is answered when the segment that holds it is stored and recorded, and only then acknowledged. What waits is
//! bounded by the messages that the consumer takes at once and by their bytes, over all that is gathered.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use engine::EngineError;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{Config, segment, store::Store};

/// Messages that are taken at once. With frames of 64 KiB these are 64 MiB at the worst.
pub(crate) const IN_FLIGHT: usize = 1024;
/// Waiting messages beyond which nothing waits for a fuller segment.
const CROWDED: usize = IN_FLIGHT * 3 / 4;
/// Segments of a kind that are being stored at once.
const STORING: usize = 8;
/// How often the age of what waits is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What became of a message.
pub(crate) type Answer = Result<(), String>;

/// A segment was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error("could not compress: {0}")]
    Compress(#[from] std::io::Error),
    #[error("could not store: {0}")]
    Store(#[from] object_store::Error),
    #[error("could not record: {0}")]
    Record(#[from] EngineError),
}

/// How what is gathered is kept.
pub(crate) trait Keep: Clone + Send + Sync + 'static {
    /// What messages are of.
    type Key: Clone + Eq + Hash + Send + 'static;
    /// A message, as far as its segment needs it.
    type Message: Send + 'static;

    /// Its size.
    fn bytes(message: &Self::Message) -> usize;

    /// Whether nothing comes after it.
    fn is_last(_: &Self::Message) -> bool {
        false
    }

    /// Stores and records messages of one key, in whatever order they came.
    fn keep(&self, key: Self::Key, messages: Vec<Self::Message>) -> impl Future<Output = Answer> + Send;
}

/// A message on its way into a segment.
pub(crate) struct Incoming<K: Keep> {
    pub(crate) key: K::Key,
    pub(crate) message: K::Message,
    pub(crate) done: oneshot::Sender<Answer>,
}

/// What waits, of all kinds together. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    waiting: Arc<[AtomicUsize; 2]>,
    most_bytes: usize,
}

/// What waits of one key.
struct Waiting<K: Keep> {
    messages: Vec<K::Message>,
    bytes: usize,
    since: Instant,
    done: Vec<oneshot::Sender<Answer>>,
}

/// Gathers, and stores what is full, old or last.
pub(crate) struct Gatherer<K: Keep> {
    keeper: K,
    crowd: Crowd,
    segment_bytes: usize,
    segment_age: Duration,
    waiting: HashMap<K::Key, Waiting<K>>,
    storing: JoinSet<()>,
}

impl Crowd {
    pub(crate) fn new(config: &Config) -> Self {
        Self { waiting: Arc::default(), most_bytes: config.archive_buffer_bytes }
    }

    fn comes(&self, bytes: usize) {
        self.waiting[0].fetch_add(1, Ordering::Relaxed);
        let before = self.waiting[1].fetch_add(bytes, Ordering::Relaxed);
        metrics::gauge!("artifact_archive_waiting_bytes").set((before + bytes) as f64);
    }

    fn goes(&self, messages: usize, bytes: usize) {
        self.waiting[0].fetch_sub(messages, Ordering::Relaxed);
        let before = self.waiting[1].fetch_sub(bytes, Ordering::Relaxed);
        metrics::gauge!("artifact_archive_waiting_bytes").set(before.saturating_sub(bytes) as f64);
    }

    fn is_too_large(&self) -> bool {
        self.waiting[0].load(Ordering::Relaxed) >= CROWDED || self.waiting[1].load(Ordering::Relaxed) > self.most_bytes
    }
}

impl<K: Keep> Gatherer<K> {
    pub(crate) fn new(keeper: K, crowd: Crowd, config: &Config) -> Self {
        service::metrics::announce(&metrics::counter!("artifact_segment_failures_total"));
        Self {
            keeper,
            crowd,
            segment_bytes: config.segment_bytes.max(1),
            segment_age: config.segment_age(),
            waiting: HashMap::new(),
            storing: JoinSet::new(),
        }
    }

    /// Runs until nobody can send any more; once told to stop, nothing waits for a fuller segment.
    pub(crate) async fn run(mut self, mut receive: mpsc::Receiver<Incoming<K>>, stop: CancellationToken) {
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
        }
        self.store_older_than(Duration::ZERO);
        while self.storing.join_next().await.is_some() {}
    }

    fn take(&mut self, incoming: Incoming<K>) {
        let Incoming { key, message, done } = incoming;
        let fresh = || Waiting { messages: Vec::new(), bytes: 0, since: Instant::now(), done: Vec::new() };
        let waiting = self.waiting.entry(key.clone()).or_insert_with(fresh);
        let (bytes, is_last) = (K::bytes(&message), K::is_last(&message));
        self.crowd.comes(bytes);
        waiting.bytes += bytes;
        waiting.messages.push(message);
        waiting.done.push(done);
        if waiting.bytes >= self.segment_bytes || is_last {
            self.store(&key);
        } else if self.crowd.is_too_large() {
            // Of equals the one with the most messages: these are what the consumer runs out of.
            let largest = self.waiting.iter().max_by_key(|(_, waiting)| (waiting.bytes, waiting.messages.len()));
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

    fn store(&mut self, key: &K::Key) {
        let Some(Waiting { messages, bytes, done, .. }) = self.waiting.remove(key) else { return };
        self.crowd.goes(messages.len(), bytes);
        let (keeper, key) = (self.keeper.clone(), key.clone());
        self.storing.spawn(async move {
            let outcome = keeper.keep(key, messages).await;
            if outcome.is_err() {
                metrics::counter!("artifact_segment_failures_total").increment(1);
            }
            for waiting in done {
                // Whoever does not wait any more gets the message again.
                let _ = waiting.send(outcome.clone());
            }
        });
    }
}

/// Makes the content of a segment, compresses it and stores it under its key; gives its bytes before that, and what else
/// `make` has found.
pub(crate) async fn put<T: Send + 'static>(
    store: &Store,
    object_key: &str,
    make: impl FnOnce() -> std::io::Result<(Vec<u8>, T)> + Send + 'static,
) -> Result<(u64, T), KeepError> {
    let made = tokio::task::spawn_blocking(move || {
        let (plain, found) = make()?;
        Ok::<_, std::io::Error>((plain.len() as u64, segment::compress(&plain)?, found))
    });
    let (bytes, small, found) = made.await.map_err(std::io::Error::other)??;
    metrics::counter!("artifact_segments_total").increment(1);
    metrics::counter!("artifact_segment_raw_bytes_total").increment(bytes);
    metrics::counter!("artifact_segment_stored_bytes_total").increment(small.len() as u64);
    store.put_object(object_key, Bytes::from(small)).await?;
    Ok((bytes, found))
}
