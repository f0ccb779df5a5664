//! The consumer loop: pulls, runs handlers side by side, and settles each message by what its handler says.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::ack;
use crate::connection::{Bus, BusState};
use crate::error::BusError;
use crate::inflight::{InFlight, Key};
use crate::message::Delivery;
use crate::meter::{self, ConsumerMeter};
use crate::pull::Puller;
use crate::retry;
use crate::topology::ConsumerSpec;

/// A message that was delivered this many times more often than it may fail has a handler that never answers: it takes
/// its process down.
const NEVER_ANSWERED: u64 = 2;
/// The wait before a message that could not be dead-lettered is tried again.
const DEAD_LETTER_RETRY: Duration = Duration::from_secs(15);
/// How long an acknowledgement may wait for room in the connection's queue.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// What to do with a message after its handler ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Ack,
    /// It failed: deliver it again after a while, to anybody, until the attempts are used up.
    Retry {
        /// The wait; by exponential backoff unless set.
        after: Option<Duration>,
        /// Why, for the log and the dead letter.
        reason: String,
    },
    /// It can't be handled now for a reason that is not its own, such as a database that is down: hold it here and run
    /// the handler again after a while. Counts as no attempt, and holds the message's place, so that a consumer whose
    /// parts are down stops pulling.
    Defer {
        /// The wait; by exponential backoff unless set.
        after: Option<Duration>,
        /// Why, for the log.
        reason: String,
    },
    /// It will never work: keep it as a dead letter, with the reason.
    Dead {
        /// Why, for the dead letter.
        reason: String,
    },
}

impl Outcome {
    /// Failed; again after the usual backoff.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { after: None, reason: reason.into() }
    }

    /// Not now, for no fault of the message; again after the usual backoff.
    pub fn defer(reason: impl Into<String>) -> Self {
        Self::Defer { after: None, reason: reason.into() }
    }

    /// Never; a dead letter.
    pub fn dead(reason: impl Into<String>) -> Self {
        Self::Dead { reason: reason.into() }
    }
}

/// An error of a handler: the message is tried again as with [`Outcome::Retry`].
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler returns.
pub type HandlerResult = Result<Outcome, HandlerError>;

/// How to consume.
#[derive(Clone, Debug)]
pub struct ConsumeOptions {
    /// Handlers that run at once.
    pub concurrency: usize,
    /// Messages taken beyond those being handled, so that quick handlers never wait for the network. Keep it 0 for slow
    /// handlers: what is held here can't go to another instance.
    pub prefetch: usize,
    /// Messages asked for at once, at most.
    pub batch: usize,
    /// Attempts after which a message becomes a dead letter.
    pub max_attempts: u64,
    /// The shortest wait before another attempt.
    pub retry_min: Duration,
    /// The longest wait before another attempt.
    pub retry_max: Duration,
    /// How long a handler may take, if there is a limit; beyond it counts as a failure.
    pub timeout: Option<Duration>,
    /// How long handlers may go on after the shutdown was asked for; then they are dropped and their messages returned.
    pub drain: Duration,
    /// How often the server is asked how much waits, for the gauges.
    pub look: Duration,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self {
            concurrency: 64,
            prefetch: 0,
            batch: 256,
            max_attempts: 10,
            retry_min: Duration::from_millis(200),
            retry_max: Duration::from_secs(30),
            timeout: None,
            drain: Duration::from_secs(20),
            look: meter::LOOK,
        }
    }
}

/// A consumer loop that runs until its token is cancelled. Dropping this lets it run on.
#[derive(Debug)]
pub struct Consuming {
    task: JoinHandle<()>,
}

impl Consuming {
    /// Waits until the loop has ended: no handler runs any more, every acknowledgement is sent.
    pub async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "a consumer loop ended badly");
        }
    }
}

impl Bus {
    /// Runs the handler on every message of a consumer of the topology until the token is cancelled.
    ///
    /// While a message is here, the server is told every third of the consumer's `ack_wait` that it is being worked on.
    /// A failed attempt is repeated with jittered exponential backoff, a panic or a time-out counts as one; after
    /// [`ConsumeOptions::max_attempts`] the message goes to `dlq.<consumer>` with the reason. A lost connection, stream
    /// or consumer is mended. On shutdown the loop stops pulling, returns what no handler has begun, lets the others
    /// finish within [`ConsumeOptions::drain`], returns the rest and flushes.
    pub fn consume<H, F>(
        &self,
        consumer: &str,
        options: ConsumeOptions,
        handler: H,
        token: CancellationToken,
    ) -> Result<Consuming, BusError>
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        let spec = self
            .topology()
            .consumer(consumer)
            .cloned()
            .ok_or_else(|| BusError::UnknownConsumer { name: consumer.to_owned() })?;
        let meter = ConsumerMeter::new(consumer);
        let looking = meter.look(self, consumer, options.look);
        let looping = Loop {
            puller: Puller::new(self, spec.clone()),
            bus: self.clone(),
            meter,
            spec,
            options,
            handler: Arc::new(handler),
            running: JoinSet::new(),
            in_flight: InFlight::default(),
        };
        let task = tokio::spawn(async move {
            looping.run(token).await;
            drop(looking);
        });
        Ok(Consuming { task })
    }
}

/// What became of an attempt.
enum Attempt {
    Handled(HandlerResult),
    Panicked(String),
    TimedOut,
    /// The dead letter was kept, or not.
    DeadLettered(Result<(), BusError>),
}

struct Loop<H> {
    bus: Bus,
    spec: ConsumerSpec,
    options: ConsumeOptions,
    handler: Arc<H>,
    puller: Puller,
    running: JoinSet<(Key, Attempt)>,
    in_flight: InFlight,
    meter: ConsumerMeter,
}

impl<H, F> Loop<H>
where
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = HandlerResult> + Send + 'static,
{
    async fn run(mut self, token: CancellationToken) {
        let mut batch = Vec::new();
        let mut repairs = 0;
        let mut mention = tokio::time::interval(self.mention_every());
        loop {
            let room = self.room();
            tokio::select! {
                biased;
                () = token.cancelled() => break,
                Some(done) = self.running.join_next() => self.settle_ready(done).await,
                _ = mention.tick(), if self.in_flight.len() > 0 => self.mention_all().await,
                () = self.puller.pull(room, &mut batch), if room > 0 => {
                    self.meter.repairs.increment(self.puller.repairs() - repairs);
                    repairs = self.puller.repairs();
                    if let Some(last) = batch.last() {
                        self.meter.consumed.increment(batch.len() as u64);
                        self.meter.pending.set(last.pending as f64);
                    }
                    batch.drain(..).for_each(|delivery| self.in_flight.add(delivery));
                }
            }
            self.start_next();
            self.meter.in_flight.set(self.in_flight.len() as f64);
        }
        batch.drain(..).for_each(|delivery| self.in_flight.add(delivery));
        self.drain().await;
    }

    /// How many more messages may be taken.
    fn room(&self) -> usize {
        let window = self.options.concurrency.max(1) + self.options.prefetch;
        window.saturating_sub(self.in_flight.len()).min(self.options.batch.max(1))
    }

    fn mention_every(&self) -> Duration {
        (self.spec.ack_wait / 3).max(Duration::from_millis(10))
    }

    fn start_next(&mut self) {
        while self.running.len() < self.options.concurrency.max(1) {
            let Some((key, delivery)) = self.in_flight.next() else { return };
            if delivery.delivered > self.options.max_attempts.saturating_mul(NEVER_ANSWERED) {
                let reason = format!("delivered {} times and never answered", delivery.delivered - 1);
                self.dead_letter(key, delivery, reason);
            } else {
                self.start(key, delivery, Duration::ZERO);
            }
        }
    }

    /// Runs the handler in a task of its own, after a while if it was deferred.
    fn start(&mut self, key: Key, delivery: Delivery, after: Duration) {
        let handler = self.handler.clone();
        let timeout = self.options.timeout;
        let seconds = self.meter.handler_seconds.clone();
        self.running.spawn(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            let began = Instant::now();
            // The handler is called inside, so that a panic before its first await is caught as well. Its state may be large: in
            // a box, it is not moved about with this task.
            let handling = AssertUnwindSafe(async { Box::pin(handler(delivery)).await }).catch_unwind();
            let handled = match timeout {
                None => Some(handling.await),
                Some(timeout) => tokio::time::timeout(timeout, handling).await.ok(),
            };
            seconds.record(began.elapsed());
            let attempt = match handled {
                Some(Ok(result)) => Attempt::Handled(result),
                Some(Err(panic)) => Attempt::Panicked(panic_message(&*panic)),
                None => Attempt::TimedOut,
            };
            (key, attempt)
        });
    }

    fn dead_letter(&mut self, key: Key, delivery: Delivery, reason: String) {
        let bus = self.bus.clone();
        let consumer = self.spec.name.clone();
        let stream = self.spec.stream.clone();
        self.running.spawn(async move {
            let kept = bus.keep_dead_letter(&stream, &consumer, &delivery, &reason).await;
            (key, Attempt::DeadLettered(kept))
        });
    }

    async fn settle_ready(&mut self, first: Result<(Key, Attempt), tokio::task::JoinError>) {
        let mut next = Some(first);
        while let Some(done) = next {
            match done {
                Ok((key, attempt)) => self.settle(key, attempt).await,
                // Handlers are guarded, so only the runtime's end or a bug of ours gets here; the message comes again.
                Err(error) => tracing::error!(consumer = %self.spec.name, %error, "a handler's task was lost"),
            }
            next = self.running.try_join_next();
        }
    }

    async fn settle(&mut self, key: Key, attempt: Attempt) {
        match attempt {
            Attempt::Handled(Ok(Outcome::Ack)) => self.acknowledge(key).await,
            Attempt::Handled(Ok(Outcome::Retry { after, reason })) => self.retry(key, after, reason).await,
            Attempt::Handled(Err(error)) => self.retry(key, None, error.to_string()).await,
            Attempt::Handled(Ok(Outcome::Defer { after, reason })) => self.defer(key, after, &reason),
            Attempt::Handled(Ok(Outcome::Dead { reason })) => {
                if let Some(delivery) = self.in_flight.get(key).cloned() {
                    self.dead_letter(key, delivery, reason);
                }
            }
            Attempt::Panicked(message) => {
                self.meter.panics.increment(1);
                self.retry(key, None, format!("the handler panicked: {message}")).await;
            }
            Attempt::TimedOut => {
                let limit = self.options.timeout.unwrap_or_default();
                self.retry(key, None, format!("the handler took longer than {limit:?}")).await;
            }
            Attempt::DeadLettered(Ok(())) => {
                self.meter.dead_lettered.increment(1);
                self.acknowledge(key).await;
            }
            Attempt::DeadLettered(Err(error)) => {
                tracing::error!(consumer = %self.spec.name, %error, "could not keep a dead letter, will try again");
                self.give_back(key, DEAD_LETTER_RETRY).await;
            }
        }
    }

    async fn acknowledge(&mut self, key: Key) {
        self.meter.acknowledged.increment(1);
        if let Some(delivery) = self.in_flight.remove(key) {
            self.answer(delivery.reply, Bytes::from_static(ack::ACK)).await;
        }
    }

    async fn retry(&mut self, key: Key, after: Option<Duration>, reason: String) {
        let Some(delivery) = self.in_flight.get(key).cloned() else { return };
        if delivery.delivered >= self.options.max_attempts {
            return self.dead_letter(key, delivery, reason);
        }
        let after =
            after.unwrap_or_else(|| retry::delay(self.options.retry_min, self.options.retry_max, delivery.delivered));
        tracing::warn!(
            consumer = %self.spec.name,
            subject = %delivery.subject,
            attempt = delivery.delivered,
            again_in_ms = after.as_millis(),
            reason,
            "a message failed"
        );
        self.meter.retried.increment(1);
        self.give_back(key, after).await;
    }

    fn defer(&mut self, key: Key, after: Option<Duration>, reason: &str) {
        let Some(delivery) = self.in_flight.get(key).cloned() else { return };
        let after = after.unwrap_or_else(|| retry::delay(self.options.retry_min, self.options.retry_max, 3));
        tracing::debug!(consumer = %self.spec.name, subject = %delivery.subject, reason, "a message is deferred");
        self.meter.deferred.increment(1);
        self.start(key, delivery, after.max(Duration::from_millis(1)));
    }

    async fn give_back(&mut self, key: Key, after: Duration) {
        if let Some(delivery) = self.in_flight.remove(key) {
            self.answer(delivery.reply, ack::nak_after(after)).await;
        }
    }

    /// Tells the server that the messages here are being worked on.
    async fn mention_all(&mut self) {
        for reply in self.in_flight.unmentioned_for(self.mention_every() / 2) {
            self.answer(reply, Bytes::from_static(ack::PROGRESS)).await;
        }
    }

    /// Sends an acknowledgement of some kind. One that can't be sent is as good as late: the message comes again.
    async fn answer(&self, reply: async_nats::Subject, answer: Bytes) {
        let mut sending = Box::pin(self.bus.client().publish(reply, answer));
        let sent = match (&mut sending).now_or_never() {
            Some(sent) => Ok(sent),
            // The queue is full. That passes quickly while connected, and not at all while not.
            None if self.bus.state() == BusState::Connected => tokio::time::timeout(ACK_TIMEOUT, sending).await,
            None => return,
        };
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(consumer = %self.spec.name, %error, "could not acknowledge"),
            Err(_) => tracing::debug!(consumer = %self.spec.name, "could not acknowledge in time"),
        }
    }

    async fn drain(mut self) {
        let deadline = tokio::time::Instant::now() + self.options.drain;
        for delivery in self.in_flight.give_up_line() {
            self.answer(delivery.reply, Bytes::from_static(ack::NAK)).await;
        }
        let puller = std::mem::replace(&mut self.puller, Puller::new(&self.bus, self.spec.clone()));
        let arrived = tokio::time::timeout_at(deadline.min(tokio::time::Instant::now() + ACK_TIMEOUT), puller.stop());
        for delivery in arrived.await.unwrap_or_default() {
            self.answer(delivery.reply, Bytes::from_static(ack::NAK)).await;
        }
        let mut mention = tokio::time::interval(self.mention_every());
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => {
                    let left = self.running.len();
                    tracing::warn!(consumer = %self.spec.name, left, "handlers did not finish in time");
                    break;
                }
                done = self.running.join_next() => match done {
                    Some(done) => self.settle_ready(done).await,
                    None => break,
                },
                _ = mention.tick() => self.mention_all().await,
            }
        }
        self.running.shutdown().await;
        for delivery in self.in_flight.give_up_all() {
            self.answer(delivery.reply, Bytes::from_static(ack::NAK)).await;
        }
        self.meter.in_flight.set(0.0);
        if let Err(error) = self.bus.flush().await {
            tracing::warn!(consumer = %self.spec.name, %error, "the last acknowledgements may be lost");
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
