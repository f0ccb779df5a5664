//! Keeps raw output: what comes for each call is stored in compressed segments, and each message is acknowledged only when the
//! segment that holds it is stored and recorded.
//!
//! A message that was stored and not acknowledged comes again after a crash and is stored again, in another segment
//! perhaps: readers take each byte once. Several instances may get messages of one call; their segments fit together all
//! the same.

use bus::{Bus, BusError, ConsumeOptions, Delivery, HandlerResult, Outcome, Subject, header};
use engine::{Segment, Segments};
use kernel::{CallId, RunId, TenantId};
use service::{Parent, Span, SpanSpec, TraceContext, Tracer, chain, telemetry::genai};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    gather::{self, Answer, Crowd, Gatherer, IN_FLIGHT, Incoming, Keep, KeepError},
    logs::{self, LogKeeper},
    segment::{self, Piece, Stretch},
    store::Store,
};

/// Where a piece belongs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    tenant: TenantId,
    run_id: RunId,
    call_id: CallId,
}

/// A piece, and if it is the last of its call, how that ends.
pub(crate) struct Output {
    piece: Piece,
    last: Option<Ending>,
}

/// How the output of a call ends, and the span it came from.
struct Ending {
    tool: String,
    traceparent: Option<String>,
}

/// Stores segments. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) store: Store,
    pub(crate) segments: Segments,
    pub(crate) tracer: Tracer,
}

/// Keeps what is on the stream of signals, until told to stop. All of it belongs to this future: dropped, nothing more is stored.
pub(crate) async fn run(
    bus: &Bus,
    keeper: Keeper,
    logs: LogKeeper,
    config: &Config,
    stop: CancellationToken,
) -> Result<(), BusError> {
    let (send, receive) = mpsc::channel(IN_FLIGHT);
    let (send_log, receive_log) = mpsc::channel(IN_FLIGHT);
    let crowd = Crowd::new(config);
    let output = Gatherer::new(keeper, crowd.clone(), config);
    let logs = Gatherer::new(logs, crowd, config);
    let drain = config.common.drain();
    let options = ConsumeOptions { concurrency: IN_FLIGHT, drain, max_attempts: u64::MAX, ..ConsumeOptions::default() };
    let handler = move |delivery: Delivery| {
        let (send, send_log) = (send.clone(), send_log.clone());
        async move { keep(&delivery, &send, &send_log).await }
    };
    // The consumer is a task of its own, and must not outlive what it hands over to.
    let stop = stop.child_token();
    let _gone = stop.clone().drop_guard();
    let consuming = bus.consume("artifact", options, handler, stop.clone())?;
    // Once it has ended nobody sends any more: what waited is stored or given back.
    futures::join!(consuming.join(), output.run(receive, stop.clone()), logs.run(receive_log, stop.clone()));
    Ok(())
}

/// Hands a message over, and waits until it is stored.
async fn keep(
    delivery: &Delivery,
    send: &mpsc::Sender<Incoming<Keeper>>,
    send_log: &mpsc::Sender<Incoming<LogKeeper>>,
) -> HandlerResult {
    let read = match Subject::parse(&delivery.subject) {
        Ok(Subject::Signal { tenant, run, call }) => {
            return hand_over(read(delivery, (&tenant, &run, &call)), send).await;
        }
        Ok(Subject::Log { tenant, service }) => logs::read(delivery, &tenant, service),
        _ => Err("its subject is no signal's"),
    };
    hand_over(read, send_log).await
}

async fn hand_over<K: Keep>(
    read: Result<(K::Key, K::Message), &'static str>,
    send: &mpsc::Sender<Incoming<K>>,
) -> HandlerResult {
    let (key, message) = match read {
        Ok(read) => read,
        Err(why) => return Ok(Outcome::dead(why)),
    };
    let (done, answer) = oneshot::channel();
    if send.send(Incoming { key, message, done }).await.is_err() {
        return Ok(Outcome::defer("the archive is closed"));
    }
    match answer.await {
        Ok(Ok(())) => Ok(Outcome::Ack),
        Ok(Err(why)) => Ok(Outcome::defer(why)),
        Err(_) => Ok(Outcome::defer("the archive is closed")),
    }
}

fn read(delivery: &Delivery, (tenant, run, call): (&str, &str, &str)) -> Result<(Address, Output), &'static str> {
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
    let last = delivery.headers.get(header::EXIT).map(|_| Ending {
        tool: delivery.headers.get(header::TOOL).unwrap_or("tool").to_owned(),
        traceparent: delivery.traceparent().map(str::to_owned),
    });
    Ok((address, Output { piece: Piece { offset, line, body: delivery.payload.clone() }, last }))
}

impl Keep for Keeper {
    type Key = Address;
    type Message = Output;

    fn bytes(output: &Output) -> usize {
        output.piece.body.len()
    }

    fn is_last(output: &Output) -> bool {
        output.last.is_some()
    }

    async fn keep(&self, address: Address, output: Vec<Output>) -> Answer {
        let (pieces, lasts): (Vec<_>, Vec<_>) = output.into_iter().map(|output| (output.piece, output.last)).unzip();
        let span = lasts.into_iter().flatten().next().map(|ending| self.span(&address, &ending));
        for stretch in segment::join(pieces) {
            if let Err(error) = self.keep_stretch(&address, stretch).await {
                let why = chain(&error);
                tracing::warn!(call = %address.call_id, "raw output could not be archived, trying again: {why}");
                if let Some(span) = &span {
                    span.record_error("not_archived", &error);
                }
                return Err(error.to_string());
            }
        }
        Ok(())
    }
}

impl Keeper {
    fn span(&self, address: &Address, ending: &Ending) -> Span {
        let root = Parent::Span(TraceContext::of_run(address.run_id, true));
        let parent = ending.traceparent.as_deref().map_or(root, Parent::Traceparent);
        let spec = SpanSpec::new(format!("archive {}", ending.tool), parent).run(address.run_id.0.into_bytes());
        let spec = spec.attribute(genai::RUN_ID, address.run_id.to_string());
        self.tracer.span(spec.attribute(genai::TOOL_CALL_ID, address.call_id.to_string()))
    }

    async fn keep_stretch(&self, address: &Address, stretch: Stretch) -> Result<(), KeepError> {
        let Address { tenant, run_id, call_id } = address;
        let Stretch { from, to, from_line, to_line, bytes } = stretch;
        // Both ends are in the key: what is written twice is the same twice.
        let object_key = format!("signals/{tenant}/{run_id}/{call_id}/{from}-{to}.zst");
        gather::put(&self.store, &object_key, move || Ok((bytes, ()))).await?;
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
