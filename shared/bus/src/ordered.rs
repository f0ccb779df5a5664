//! Following a consumer in order, one message after the other, acknowledging through a point.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use jiff::Timestamp;

use crate::ack;
use crate::connection::Bus;
use crate::error::BusError;
use crate::message::Delivery;
use crate::meter::{self, ConsumerMeter, Look};
use crate::pull::Puller;
use crate::retry;
use crate::topology::{AckMode, ConsumerSpec};

/// How long going back to the last acknowledgement is tried before the error is shown.
const KEEP_TRYING: Duration = Duration::from_secs(30);

/// How to follow.
#[derive(Clone, Copy, Debug)]
pub struct OrderedOptions {
    /// Messages asked for ahead.
    pub batch: usize,
}

impl Default for OrderedOptions {
    fn default() -> Self {
        Self { batch: 512 }
    }
}

/// Follows one consumer of acknowledgement mode [`AckMode::Through`]: every message once, in the order of the stream,
/// from the last acknowledgement on.
///
/// There must be one follower at a time: hold a lease. Opening a second one takes the consumer back to its last
/// acknowledgement, and an acknowledgement of the first may then cover what the second has not seen.
pub struct OrderedPull {
    bus: Bus,
    spec: ConsumerSpec,
    puller: Puller,
    batch: usize,
    /// When the stream was made. Another date means another stream, which numbers from 1 again.
    stream_made: Option<Timestamp>,
    /// The last message that was accepted.
    last: u64,
    /// The message through which all is acknowledged.
    acknowledged: u64,
    /// The consumer's own number of the next delivery; a gap means that one got lost on the way.
    expected: u64,
    /// Accepted and not yet handed out.
    ready: Vec<Delivery>,
    /// Handed out and not acknowledged, with where to acknowledge.
    open: BTreeMap<u64, Subject>,
    /// An acknowledgement to send again, since what it covers was delivered again.
    again: Option<Subject>,
    must_rewind: bool,
    meter: ConsumerMeter,
    _look: Look,
}

impl Bus {
    /// Follows a consumer of the topology in order, from its last acknowledgement on.
    pub async fn ordered_pull(&self, consumer: &str, options: OrderedOptions) -> Result<OrderedPull, BusError> {
        let topology = self.topology();
        let spec = topology
            .consumer(consumer)
            .filter(|spec| spec.ack == AckMode::Through)
            .cloned()
            .ok_or_else(|| BusError::UnknownConsumer { name: consumer.to_owned() })?;
        let meter = ConsumerMeter::new(consumer);
        let mut ordered = OrderedPull {
            puller: Puller::new(self, spec.clone()),
            bus: self.clone(),
            _look: meter.look(self, consumer, meter::LOOK),
            meter,
            spec,
            batch: options.batch.max(1),
            stream_made: None,
            last: 0,
            acknowledged: 0,
            expected: 1,
            ready: Vec::new(),
            open: BTreeMap::new(),
            again: None,
            must_rewind: true,
        };
        ordered.rewind().await?;
        Ok(ordered)
    }
}

impl OrderedPull {
    /// Waits for the next messages, in order. May be dropped and called again: nothing is lost. After an error, calling
    /// it again tries again.
    pub async fn next(&mut self) -> Result<Vec<Delivery>, BusError> {
        loop {
            if !self.ready.is_empty() {
                self.meter.consumed.increment(self.ready.len() as u64);
                return Ok(std::mem::take(&mut self.ready));
            }
            if self.must_rewind {
                self.rewind().await?;
            }
            if let Some(reply) = self.again.clone() {
                self.answer(reply).await?;
                self.again = None;
            }
            let mut arrived = Vec::new();
            self.puller.pull(self.batch, &mut arrived).await;
            if self.puller.repairs() == 0 {
                self.accept(arrived);
            } else {
                // Deliveries may have gone to an inbox that nobody reads any more, or the stream is a new one.
                self.meter.repairs.increment(1);
                self.must_rewind = true;
            }
        }
    }

    /// Acknowledges this message and every one before it. The server hears of it soon; flush before the end.
    pub async fn ack_through(&mut self, stream_seq: u64) -> Result<(), BusError> {
        let later = self.open.split_off(&stream_seq.saturating_add(1));
        let covered = std::mem::replace(&mut self.open, later);
        self.acknowledged = self.acknowledged.max(stream_seq.min(self.last));
        self.meter.acknowledged.increment(covered.len() as u64);
        match covered.into_iter().next_back() {
            Some((_, reply)) => self.answer(reply).await,
            // Nothing to point at just now: it is sent when the message is delivered again.
            None => Ok(()),
        }
    }

    /// When the stream was made: its messages are numbered from 1 on since then.
    pub fn stream_made(&self) -> Option<Timestamp> {
        self.stream_made
    }

    /// The name of the consumer that is followed.
    pub fn consumer(&self) -> &str {
        &self.spec.name
    }

    /// Sorts what arrived: what is new is made ready, what was seen before is noted, a gap calls for going back.
    fn accept(&mut self, arrived: Vec<Delivery>) {
        for delivery in arrived {
            if delivery.consumer_seq != self.expected {
                tracing::warn!(consumer = %self.spec.name, "deliveries were lost on the way, going back");
                self.must_rewind = true;
                return;
            }
            self.expected += 1;
            self.meter.pending.set(delivery.pending as f64);
            if delivery.stream_seq <= self.acknowledged {
                self.again = Some(delivery.reply);
                continue;
            }
            self.open.insert(delivery.stream_seq, delivery.reply.clone());
            if delivery.stream_seq > self.last {
                self.last = delivery.stream_seq;
                self.ready.push(delivery);
            }
        }
    }

    /// Takes the consumer back to its last acknowledgement. What was accepted since then comes again and is passed over.
    async fn rewind(&mut self) -> Result<(), BusError> {
        // Leaves the old inbox first, so that the server can't deliver into it after it went back.
        self.puller = Puller::new(&self.bus, self.spec.clone());
        let policy = retry::Policy::exponential(Duration::from_millis(50), Duration::from_secs(2)).within(KEEP_TRYING);
        let made = retry::when(policy, BusError::is_transient, || self.reset_consumer()).await?;
        if self.stream_made.replace(made).is_some_and(|before| before != made) {
            tracing::warn!(consumer = %self.spec.name, "the stream was lost and begins anew");
            (self.last, self.acknowledged) = (0, 0);
        }
        // Old reply subjects carry numbers that mean something else now.
        self.open.clear();
        self.again = None;
        self.expected = 1;
        self.must_rewind = false;
        Ok(())
    }

    /// Has the server go back, and tells when the stream was made.
    async fn reset_consumer(&self) -> Result<Timestamp, BusError> {
        self.bus.mend_consumer(&self.spec).await?;
        let namespace = self.bus.namespace();
        let failed = |source| BusError::Pull { consumer: self.spec.name.to_string(), source };
        let stream = self
            .bus
            .jetstream()
            .get_stream(namespace.name(&self.spec.stream))
            .await
            .map_err(|error| failed(error.into()))?;
        stream.reset_consumer(&namespace.name(&self.spec.name), None).await.map_err(|error| failed(error.into()))?;
        let made = stream.cached_info().created.unix_timestamp_nanos();
        Timestamp::from_nanosecond(made).map_err(|error| failed(error.into()))
    }

    async fn answer(&self, reply: Subject) -> Result<(), BusError> {
        self.bus
            .client()
            .publish(reply, Bytes::from_static(ack::ACK))
            .await
            .map_err(|error| BusError::Acknowledge { consumer: self.spec.name.to_string(), source: error.into() })
    }
}
