//! What is not in the log: text while a model writes it, and ticks of tools. Published on core NATS as `live.<tenant>.<run>`
//! and lost without harm.
//!
//! One subscription serves all streams of this process. It also remembers what the open turns have written so far, so that
//! a stream that is opened in the middle of an answer begins with what is there already.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bus::{Bus, BusError, Message, Subject};
use futures::StreamExt;
use kernel::{RunId, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

/// Most bytes that wait for one reader. Beyond, its deltas are dropped and it is told to come again.
const INBOX_BYTES: usize = 256 * 1024;
/// Most bytes of a block that a draft keeps: the newest.
const DRAFT_BYTES: usize = 128 * 1024;
/// Most runs whose drafts are kept.
const DRAFTS: usize = 2048;
/// How long a draft is kept that nobody adds to.
const DRAFT_AGE: Duration = Duration::from_secs(600);
/// How often old drafts are thrown away.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// A piece of a turn's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delta {
    /// Number of the turn that writes.
    #[serde(default)]
    pub turn: u32,
    /// Its id.
    pub turn_id: TurnId,
    /// Which of its model calls, from 0: a later one replaces what an earlier one said.
    pub block: u32,
    /// Where in the block the piece begins, in bytes.
    pub offset: u64,
    /// The piece.
    pub text: String,
}

/// Something live: a piece of text, or anything else, passed on as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum LiveMessage {
    /// A piece of text.
    Delta(Delta),
    /// A tick.
    Other(Value),
}

/// What an open turn has written so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Draft {
    /// The turn that writes.
    #[schema(value_type = uuid::Uuid)]
    pub turn_id: TurnId,
    /// Its blocks, in order.
    pub blocks: Vec<DraftBlock>,
}

/// A block of a draft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DraftBlock {
    /// Its number.
    pub block: u32,
    /// Where in the block the text begins, in bytes: not 0 if its beginning was missed.
    pub offset: u64,
    /// What there is of it.
    pub text: String,
}

/// The streams of this process and the drafts of open turns. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Live {
    runs: Arc<Mutex<HashMap<RunId, LiveRun>>>,
}

struct LiveRun {
    turn: Option<(TurnId, BTreeMap<u32, DraftBlock>)>,
    readers: Vec<Weak<Inbox>>,
    touched: Instant,
}

/// What waits for one reader: bounded.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    ready: Notify,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<LiveMessage>,
    bytes: usize,
    overflowed: bool,
}

/// The reader was too slow and has missed something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overflowed;

impl Live {
    /// Listens until the token is cancelled.
    pub(crate) async fn listen(
        &self,
        bus: &Bus,
        stop: CancellationToken,
    ) -> Result<impl Future<Output = ()> + use<>, BusError> {
        let mut messages = bus.subscribe("live.>").await?;
        let live = self.clone();
        Ok(async move {
            let mut tidy = tokio::time::interval(TIDY_EVERY);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = tidy.tick() => live.tidy(Instant::now()),
                    message = messages.next() => match message {
                        Some(message) => live.take(&message),
                        None => return,
                    },
                }
            }
        })
    }

    /// A reader of a run from now on, and the draft that it continues.
    pub(crate) fn attach(&self, run: RunId) -> (Option<Draft>, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::default());
        let mut runs = self.runs();
        let live = runs.entry(run).or_insert_with(LiveRun::new);
        live.readers.retain(|reader| reader.strong_count() > 0);
        live.readers.push(Arc::downgrade(&inbox));
        (live.draft(), inbox)
    }

    fn take(&self, message: &Message) {
        let Ok(Subject::Live { run, .. }) = Subject::parse(&message.subject) else { return };
        let (Ok(run), Ok(message)) = (run.parse(), serde_json::from_slice(&message.payload)) else {
            metrics::counter!("ingress_live_malformed_total").increment(1);
            return;
        };
        self.spread(run, &message);
    }

    fn spread(&self, run: RunId, message: &LiveMessage) {
        let mut runs = self.runs();
        if !runs.contains_key(&run) && (runs.len() >= DRAFTS || matches!(message, LiveMessage::Other(_))) {
            return;
        }
        let live = runs.entry(run).or_insert_with(LiveRun::new);
        live.touched = Instant::now();
        if let LiveMessage::Delta(delta) = message {
            live.write(delta);
        }
        live.readers.retain(|reader| reader.upgrade().inspect(|inbox| inbox.push(message)).is_some());
    }

    fn tidy(&self, now: Instant) {
        self.runs().retain(|_, live| {
            live.readers.retain(|reader| reader.strong_count() > 0);
            !live.readers.is_empty() || (live.turn.is_some() && now.duration_since(live.touched) < DRAFT_AGE)
        });
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, LiveRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveRun {
    fn new() -> Self {
        Self { turn: None, readers: Vec::new(), touched: Instant::now() }
    }

    fn write(&mut self, delta: &Delta) {
        let (turn, blocks) = self.turn.get_or_insert_with(|| (delta.turn_id, BTreeMap::new()));
        if *turn != delta.turn_id {
            (*turn, *blocks) = (delta.turn_id, BTreeMap::new());
        }
        let block = blocks.entry(delta.block).or_insert_with(|| DraftBlock {
            block: delta.block,
            offset: delta.offset,
            text: String::new(),
        });
        // A gap, or the model was asked again: what is there does not lead up to this piece.
        if block.offset + block.text.len() as u64 != delta.offset {
            (block.offset, block.text) = (delta.offset, String::new());
        }
        block.text.push_str(&delta.text);
        if block.text.len() > DRAFT_BYTES {
            let mut cut = block.text.len() - DRAFT_BYTES / 2;
            while !block.text.is_char_boundary(cut) {
                cut += 1;
            }
            block.text.drain(..cut);
            block.offset += cut as u64;
        }
    }

    fn draft(&self) -> Option<Draft> {
        let (turn_id, blocks) = self.turn.as_ref()?;
        Some(Draft { turn_id: *turn_id, blocks: blocks.values().cloned().collect() })
    }
}

impl Inbox {
    /// Comes back when something may be waiting.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// All that waits.
    pub(crate) fn take(&self) -> Result<VecDeque<LiveMessage>, Overflowed> {
        let mut waiting = self.waiting();
        waiting.bytes = 0;
        if waiting.overflowed { Err(Overflowed) } else { Ok(std::mem::take(&mut waiting.messages)) }
    }

    fn push(&self, message: &LiveMessage) {
        let mut waiting = self.waiting();
        if waiting.overflowed {
            return;
        }
        waiting.add(message);
        if waiting.bytes > INBOX_BYTES {
            *waiting = Waiting { overflowed: true, ..Waiting::default() };
            metrics::counter!("ingress_stream_overflows_total").increment(1);
        }
        self.ready.notify_one();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, message: &LiveMessage) {
        if let (LiveMessage::Delta(new), Some(LiveMessage::Delta(last))) = (message, self.messages.back_mut())
            && last.turn_id == new.turn_id
            && last.block == new.block
            && last.offset + last.text.len() as u64 == new.offset
        {
            last.text.push_str(&new.text);
            self.bytes += new.text.len();
            return;
        }
        self.bytes += match message {
            LiveMessage::Delta(delta) => delta.text.len() + 64,
            LiveMessage::Other(value) => value.to_string().len(),
        };
        self.messages.push_back(message.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(turn_id: TurnId, offset: u64, text: &str) -> LiveMessage {
        LiveMessage::Delta(Delta { turn: 1, turn_id, block: 0, offset, text: text.into() })
    }

    #[test]
    fn a_reader_continues_exactly_where_its_draft_ends() {
        let (live, run, turn) = (Live::default(), RunId::mint(), TurnId::mint());
        live.spread(run, &delta(turn, 0, "Hel"));
        live.spread(run, &delta(turn, 3, "lo"));
        let (draft, inbox) = live.attach(run);
        assert_eq!(draft.unwrap().blocks[0].text, "Hello");
        live.spread(run, &delta(turn, 5, ", wor"));
        live.spread(run, &delta(turn, 10, "ld"));
        assert_eq!(inbox.take().unwrap(), [delta(turn, 5, ", world")], "pieces that follow each other become one");
        assert!(inbox.take().unwrap().is_empty());
    }

    #[test]
    fn a_new_turn_or_a_gap_begins_anew() {
        let (live, run) = (Live::default(), RunId::mint());
        let (first, second) = (TurnId::mint(), TurnId::mint());
        live.spread(run, &delta(first, 0, "old"));
        live.spread(run, &delta(second, 0, "new"));
        let (draft, _) = live.attach(run);
        let draft = draft.unwrap();
        assert_eq!((draft.turn_id, draft.blocks[0].text.as_str()), (second, "new"));
        live.spread(run, &delta(second, 9, "gap"));
        let block = live.attach(run).0.unwrap().blocks.remove(0);
        assert_eq!((block.offset, block.text.as_str()), (9, "gap"));
    }

    #[test]
    fn a_slow_reader_costs_bounded_memory_and_is_told() {
        let (live, run, turn) = (Live::default(), RunId::mint(), TurnId::mint());
        let (_, inbox) = live.attach(run);
        let text = "é".repeat(1000);
        for piece in 0..1000 {
            live.spread(run, &delta(turn, piece * text.len() as u64, &text));
        }
        assert_eq!(inbox.take(), Err(Overflowed));
        let block = live.attach(run).0.unwrap().blocks.remove(0);
        assert!(block.text.len() <= DRAFT_BYTES);
        assert_eq!(block.offset + block.text.len() as u64, 1000 * text.len() as u64);
    }

    #[test]
    fn what_nobody_reads_or_writes_is_forgotten() {
        let (live, run) = (Live::default(), RunId::mint());
        live.spread(run, &LiveMessage::Other(serde_json::json!({"tick": 1})));
        assert!(live.runs().is_empty(), "a tick without a reader leaves nothing");
        let (_, inbox) = live.attach(run);
        live.tidy(Instant::now() + 2 * DRAFT_AGE);
        assert_eq!(live.runs().len(), 1);
        drop(inbox);
        live.tidy(Instant::now() + 2 * DRAFT_AGE);
        assert!(live.runs().is_empty());
    }
}
