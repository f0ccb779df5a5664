//! A run as a stream of server-sent events: `snapshot` first, then every committed event by its number, deltas in between.
//!
//! Doorbells on NATS only say *that* there is something: what is sent is always read from the log by number, so there is no
//! gap and no repeat, whatever the bells do. The stream is pulled by its reader: a slow one holds one page of events and one
//! bounded inbox, and is told to come again when it has missed deltas.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use bus::{Bus, BusError, subject};
use engine::{Engine, EngineError, Reads, StoredEvent};
use futures::StreamExt;
use kernel::{RunId, Seq, Status, TenantId};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use utoipa::ToSchema;

use crate::api::event::EventView;
use crate::live::{Draft, Inbox, Live};
use crate::problem::Problem;
use crate::snapshot::{RunSnapshot, Snapshots};

/// Events read at once: what a reader that has stopped reading holds in memory.
const PAGE: u32 = 256;
/// The log is looked at once more so soon after the beginning: until then the server may not have known of the subscription.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// How long a log that can't be read is left alone.
const PAUSE: Duration = Duration::from_secs(1);
/// What a reader waits before it comes again, in milliseconds.
const RETRY: Duration = Duration::from_secs(1);

/// Opens streams. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Streams {
    snapshots: Snapshots,
    reads: Reads,
    bus: Bus,
    live: Live,
    heartbeat: Duration,
    stopping: CancellationToken,
}

/// The data of the first event of a stream.
#[derive(Serialize, ToSchema)]
pub(crate) struct StreamSnapshot {
    /// The run as it stands: events up to its `seq` are in it.
    #[serde(flatten)]
    pub run: RunSnapshot,
    /// What the open turn has written so far, if it has; deltas go on from there.
    pub draft: Option<Draft>,
}

/// The data of `resume`: the stream ends here, and another one should be opened.
#[derive(Serialize, ToSchema)]
pub(crate) struct Resume {
    /// `slow_reader`, `shutdown` or `unavailable`.
    reason: &'static str,
    /// What to send as `Last-Event-ID`.
    #[schema(value_type = u64)]
    last_event_id: Seq,
}

impl Streams {
    pub(crate) fn new(engine: &Engine, live: Live, heartbeat: Duration, stopping: CancellationToken) -> Self {
        Self {
            snapshots: Snapshots::new(engine),
            reads: engine.reads(),
            bus: engine.bus().clone(),
            live,
            heartbeat,
            stopping,
        }
    }

    /// A stream of the run, from behind event `last` or, without one, from now on.
    pub(crate) async fn open(&self, tenant: &TenantId, run: RunId, last: Option<Seq>) -> Result<Response, Problem> {
        // First the bells, then the state: what is committed in between rings.
        let doorbell = Doorbell::listen(&self.bus, tenant, run).await.map_err(|error| {
            tracing::warn!(%error, "can't subscribe to a run");
            Problem::unavailable("bus_unavailable", "the message bus can't be reached at the moment")
        })?;
        let (draft, inbox) = self.live.attach(run);
        let snapshot = self.snapshots.of(tenant, run).await?;
        let ended = is_terminal(snapshot.status);
        if ended && last == Some(snapshot.seq) {
            // Nothing will ever follow: the status that keeps an `EventSource` from coming again.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        // A number that the log does not have comes from another life of it: the snapshot is where to go on from.
        let after = last.filter(|last| *last <= snapshot.seq);
        let draft = draft.filter(|draft| is_open(&snapshot, draft));
        let seq = snapshot.seq;
        let first = first(&StreamSnapshot { run: snapshot, draft }, after)?;
        let feed = Feed {
            tenant: tenant.clone(),
            run,
            reads: self.reads.clone(),
            after: after.unwrap_or(seq),
            queue: VecDeque::from([first]),
            behind: true,
            done: ended && after.is_none(),
            doorbell,
            inbox,
            heartbeat: self.heartbeat,
            next_look: Instant::now() + SECOND_LOOK.min(self.heartbeat),
            first_look: true,
            stopping: self.stopping.clone(),
            _gauge: Gauge::new(),
        };
        let events = futures::stream::unfold(feed, |mut feed| async move {
            let event = feed.next().await?;
            Some((Ok::<_, Infallible>(event), feed))
        });
        // Proxies must neither keep nor gather what passes.
        let headers = [("cache-control", "no-store"), ("x-accel-buffering", "no")];
        Ok((headers, Sse::new(events)).into_response())
    }
}

/// The first event. Its id is where to resume from, unless the reader has an older one: that stays until the events in
/// between have come.
fn first(snapshot: &StreamSnapshot, after: Option<Seq>) -> Result<Event, Problem> {
    let event = Event::default().event("snapshot").retry(RETRY);
    let event = if after.is_some() { event } else { event.id(snapshot.run.seq.to_string()) };
    event.json_data(snapshot).map_err(|error| Problem::internal(&error))
}

/// Where to resume from: the header that an `EventSource` sends by itself, or the parameter for those who can't set one.
pub(crate) fn last_event_id(headers: &HeaderMap, parameter: Option<&str>) -> Result<Option<Seq>, Problem> {
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?"));
    let Some(text) = header.or(parameter).map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        Problem::bad_request("invalid_last_event_id", format!("`{text}` is not the number of an event"))
            .field("Last-Event-ID")
            .remedy("send the `id` of the last event that was received, 0 for all of them, or nothing")
    })
}

fn is_terminal(status: &str) -> bool {
    Status::ALL.iter().any(|known| known.is_terminal() && known.as_str() == status)
}

fn is_open(snapshot: &RunSnapshot, draft: &Draft) -> bool {
    snapshot.turn.as_ref().is_some_and(|turn| turn.turn_id == draft.turn_id)
}

/// Rings when an event of the run was committed. May ring for nothing, and may fail to.
struct Doorbell {
    rung: Arc<Notify>,
    _listening: AbortOnDropHandle<()>,
}

impl Doorbell {
    async fn listen(bus: &Bus, tenant: &TenantId, run: RunId) -> Result<Self, BusError> {
        let mut bells = bus.subscribe(&subject::evt_of_run(tenant, run)).await?;
        let rung = Arc::new(Notify::new());
        let ring = Arc::clone(&rung);
        // A task of its own, so that bells don't pile up in front of a reader that has stopped reading.
        let listening = tokio::spawn(async move {
            while bells.next().await.is_some() {
                ring.notify_one();
            }
        });
        Ok(Self { rung, _listening: AbortOnDropHandle::new(listening) })
    }
}

/// The events of one stream, one after the other, as its reader takes them.
struct Feed {
    tenant: TenantId,
    run: RunId,
    reads: Reads,
    /// The last event that was queued.
    after: Seq,
    queue: VecDeque<Event>,
    /// Whether the log may have more.
    behind: bool,
    done: bool,
    doorbell: Doorbell,
    inbox: Arc<Inbox>,
    heartbeat: Duration,
    next_look: Instant,
    first_look: bool,
    stopping: CancellationToken,
    _gauge: Gauge,
}

impl Feed {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.done {
                return None;
            }
            if self.stopping.is_cancelled() {
                self.resume("shutdown");
                continue;
            }
            if self.behind {
                self.read().await;
                continue;
            }
            match self.inbox.take() {
                Err(_) => self.resume("slow_reader"),
                Ok(messages) if messages.is_empty() => self.wait().await,
                Ok(messages) => {
                    let deltas =
                        messages.iter().filter_map(|message| Event::default().event("delta").json_data(message).ok());
                    self.queue.extend(deltas);
                }
            }
        }
    }

    /// Comes back when there may be something to send.
    async fn wait(&mut self) {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {}
            () = self.doorbell.rung.notified() => self.behind = true,
            () = self.inbox.ready() => {}
            () = tokio::time::sleep_until(self.next_look) => {
                self.behind = true;
                self.next_look = Instant::now() + self.heartbeat;
                if !std::mem::take(&mut self.first_look) {
                    self.queue.push_back(Event::default().comment("heartbeat"));
                }
            }
        }
    }

    /// Queues a page of the log.
    async fn read(&mut self) {
        match self.reads.events(&self.tenant, self.run, self.after, PAGE).await {
            Ok(page) => {
                self.behind = u32::try_from(page.len()).is_ok_and(|read| read == PAGE);
                for event in page {
                    self.queue_event(event);
                }
            }
            Err(error) => self.pause(&error).await,
        }
    }

    fn queue_event(&mut self, stored: StoredEvent) {
        self.after = stored.seq;
        self.done |= matches!(stored.event_type.as_str(), "run.completed" | "run.failed" | "run.cancelled");
        let seq = stored.seq;
        let event = Event::default().id(seq.to_string()).event(&stored.event_type);
        match event.json_data(EventView::from(stored)) {
            Ok(event) => self.queue.push_back(event),
            // A stored event is valid JSON; if it were not, leaving it out in silence would be a gap.
            Err(error) => {
                tracing::error!(run_id = %self.run, seq, %error, "an event can't be sent");
                self.resume("unavailable");
            }
        }
    }

    async fn pause(&mut self, error: &EngineError) {
        if !error.is_transient() {
            tracing::error!(run_id = %self.run, error = error as &dyn std::error::Error, "a stream ends: the log can't be read");
            self.resume("unavailable");
            return;
        }
        tracing::debug!(run_id = %self.run, error = error as &dyn std::error::Error, "the log can't be read for now");
        self.queue.push_back(Event::default().comment("the log can't be read for now"));
        // The reader hears of it at once; the next try comes when it has taken the comment and the pause is over.
        let _ = self.stopping.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
    }

    /// Ends the stream with word of where to go on.
    fn resume(&mut self, reason: &'static str) {
        self.done = true;
        let data = Resume { reason, last_event_id: self.after };
        self.queue.extend(Event::default().event("resume").retry(RETRY).json_data(data).ok());
    }
}

/// Counts open streams.
struct Gauge;

impl Gauge {
    fn new() -> Self {
        metrics::gauge!("ingress_streams").increment(1.0);
        Self
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        metrics::gauge!("ingress_streams").decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_goes_before_the_parameter_and_nonsense_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(last_event_id(&headers, None).unwrap(), None);
        assert_eq!(last_event_id(&headers, Some("7")).unwrap(), Some(7));
        headers.insert("last-event-id", "9".parse().unwrap());
        assert_eq!(last_event_id(&headers, Some("7")).unwrap(), Some(9));
        headers.insert("last-event-id", "x".parse().unwrap());
        assert!(last_event_id(&headers, Some("7")).is_err());
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_sent_as_an_id_is_a_number_or_refused(
            header in proptest::option::of(proptest::collection::vec(0x20_u8..=0xff, 0..60)),
            parameter in proptest::option::of("\\PC{0,60}|[0-9]{1,30}| *[+-]?[0-9]{1,20} *"),
        ) {
            let mut headers = HeaderMap::new();
            if let Some(value) = header.and_then(|bytes| axum::http::HeaderValue::from_bytes(&bytes).ok()) {
                headers.insert("last-event-id", value);
            }
            // Of what is no number at all nothing is taken for one.
            let given = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned()).or(parameter);
            let number = given.as_deref().map(str::trim).and_then(|text| text.parse::<u64>().ok());
            match last_event_id(&headers, given.as_deref()) {
                Ok(id) => proptest::prop_assert_eq!(id, number),
                Err(problem) => proptest::prop_assert!(number.is_none() && problem.detail().len() < 400),
            }
        }
    }

    #[test]
    fn only_ends_are_terminal() {
        assert!(["completed", "failed", "cancelled"].into_iter().all(is_terminal));
        assert!(!["running", "cancelling", "waiting"].into_iter().any(is_terminal));
    }
}
