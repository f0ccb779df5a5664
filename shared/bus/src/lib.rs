//! NATS, behind one door: streams and consumers, publishing, consuming, dead letters, CloudEvents and request-reply.
//!
//! No other crate touches the NATS client. What is worth knowing before use:
//!
//! * Delivery is at least once. A handler may see a message twice, late, or out of order; make the second time harmless.
//! * A message is a doorbell, not the truth: JetStream acknowledges before it syncs its disk, and a stream may be lost
//!   whole. [`Bus::reconcile`] and the consumer loop re-create what is missing; the event log refills what mattered.
//! * Subjects in this API never carry the namespace: it is added on the way out and taken off on the way in.
//!
//! ```no_run
//! # async fn example() -> Result<(), bus::BusError> {
//! use bus::{Bus, BusOptions, ConsumeOptions, Outcome, Outgoing, Topology, subject};
//! use tokio_util::sync::CancellationToken;
//!
//! let bus = Bus::connect(BusOptions::new("nats://127.0.0.1:14222", "planner")).await?;
//! bus.reconcile(&Topology::default()).await?;
//!
//! let shutdown = CancellationToken::new();
//! let consuming = bus.consume("planner", ConsumeOptions::default(), |delivery| async move {
//!     tracing::info!(subject = %delivery.subject, "a run is due");
//!     Ok(Outcome::Ack)
//! }, shutdown.clone())?;
//!
//! let event = Outgoing::new(subject::evt("run.runnable", "default", "0198"), "{}").msg_id("0198-1");
//! bus.publisher().publish(event).await?;
//!
//! shutdown.cancel();
//! consuming.join().await;
//! # Ok(()) }
//! ```

mod ack;
mod cloudevent;
mod connection;
mod consume;
mod core;
mod deadletter;
mod error;
mod feed;
mod guarded;
mod inflight;
mod inspect;
mod message;
mod meter;
mod namespace;
mod ordered;
mod publish;
mod pull;
mod reconcile;
pub mod retry;
mod rpc;
mod status;
pub mod subject;
pub mod testing;
mod tls;
mod topology;

pub use crate::cloudevent::{
    BATCH_MEDIA_TYPE, CloudEvent, CloudEventError, CloudEventLimits, EVENT_MEDIA_TYPE, EventData, clean_nul,
};
pub use crate::connection::{Bus, BusOptions, BusState};
pub use crate::consume::{ConsumeOptions, Consuming, HandlerError, HandlerResult, Outcome};
pub use crate::core::Subscription;
pub use crate::deadletter::{DeadLetter, DlqFilter, DlqPage, GivenUp, Redriven};
pub use crate::error::BusError;
pub use crate::message::{Delivery, Headers, Message, header, is_traceparent};
pub use crate::namespace::{InvalidNamespace, Namespace};
pub use crate::ordered::{OrderedOptions, OrderedPull};
pub use crate::publish::{Ack, Outgoing, PublishAck, Publisher};
pub use crate::rpc::{Problem, ServeOptions, Serving};
pub use crate::status::{ConsumerStatus, StreamStatus};
pub use crate::subject::{InvalidSubject, Subject};
pub use crate::tls::settle_cryptography;
pub use crate::topology::{AckMode, ConsumerSpec, Limits, PARTITIONS, Retention, StreamLimits, StreamSpec, Topology};
