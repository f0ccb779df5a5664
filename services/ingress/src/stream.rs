//! A run as a stream of server-sent events: `snapshot` first, then every committed event by its number, deltas in between.
//!
//! Doorbells on NATS only say *that* there is something: what is sent is always read from the log by number, so there is no
//! gap and no repeat, whatever the bells do. The stream is pulled by its reader: a slow one holds one page of events and one
//! bounded inbox, and is told to come again when it has missed deltas. What many streams can share, they do ([`crate::tails`]).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use kernel::{RunId, Seq, Status, TenantId};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::live::{Draft, Inbox, Live};
use crate::problem::Problem;
use crate::snapshot::{RunSnapshot, Snapshots};
use crate::tails::{Follower, PAUSE, Shown, Tails, Unread};

/// What a reader waits before it comes again, in milliseconds.
const RETRY: Duration = Duration::from_secs(1);

/// Opens streams. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Streams {
    snapshots: Snapshots,
    tails: Tails,
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
    pub(crate) fn new(
        snapshots: Snapshots,
        tails: Tails,
        live: Live,
        heartbeat: Duration,
        stopping: CancellationToken,
    ) -> Self {
        Self { snapshots, tails, live, heartbeat, stopping }
    }

    /// A stream of the run, from behind event `last` or, without one, from now on.
    pub(crate) async fn open(&self, tenant: &TenantId, run: RunId, last: Option<Seq>) -> Result<Response, Problem> {
        // First the bells, then the state: what is committed in between rings.
        let mut follower = self.tails.follow(tenant, run).await.map_err(|error| {
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
        follower.begin(seq);
        let first = first(&StreamSnapshot { run: snapshot, draft }, after)?;
        let feed = Feed {
            follower,
            after: after.unwrap_or(seq),
            queue: VecDeque::from([first]),
            behind: true,
            done: ended && after.is_none(),
            inbox,
            heartbeat: self.heartbeat,
            next_beat: Instant::now() + self.heartbeat,
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

/// The events of one stream, one after the other, as its reader takes them.
struct Feed {
    follower: Follower,
    /// The last event that was queued.
    after: Seq,
    queue: VecDeque<Event>,
    /// Whether the log may have more.
    behind: bool,
    done: bool,
    inbox: Arc<Inbox>,
    heartbeat: Duration,
    next_beat: Instant,
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
            () = self.follower.rung() => self.behind = true,
            () = self.inbox.ready() => {}
            () = tokio::time::sleep_until(self.next_beat) => {
                self.next_beat = Instant::now() + self.heartbeat;
                self.queue.push_back(Event::default().comment("heartbeat"));
            }
        }
    }

    /// Queues a page of the log.
    async fn read(&mut self) {
        // The end of the service does not wait for a log that does not answer.
        let Some(read) = self.stopping.run_until_cancelled(self.follower.read(self.after)).await else { return };
        match read {
            Ok((page, more)) => {
                self.behind = more;
                page.iter().for_each(|event| self.queue_event(event));
            }
            Err(Unread::Now) => self.pause().await,
            Err(Unread::Ever) => self.resume("unavailable"),
        }
    }

    fn queue_event(&mut self, shown: &Shown) {
        self.after = shown.seq;
        self.done |= matches!(shown.event_type.as_str(), "run.completed" | "run.failed" | "run.cancelled");
        self.queue.push_back(Event::default().id(shown.seq.to_string()).event(&shown.event_type).data(&shown.data));
    }

    async fn pause(&mut self) {
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
