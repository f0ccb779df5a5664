//! Makes the server agree with the topology, and mends what it lost.

use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamErrorKind, DeleteStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{ConsumerCreateStrictErrorKind, ConsumerErrorKind};
use async_nats::jetstream::{self, ErrorCode, stream};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::connection::Bus;
use crate::error::{BusError, Source};
use crate::retry;
use crate::topology::{ConsumerSpec, StreamSpec, Topology};

/// Requests to the server's API at once.
const AT_ONCE: usize = 8;

impl Bus {
    /// Creates or updates every stream and consumer of the topology, and remembers it to mend what is lost later.
    /// Does nothing where the server already agrees; safe when several processes do it at once.
    ///
    /// This wants the rights to change any stream, so it belongs to whoever sets the system up. A service need not call
    /// it: what it publishes to or consumes from is created when it is missing.
    pub async fn reconcile(&self, topology: &Topology) -> Result<(), BusError> {
        self.set_topology(topology.clone());
        // Long enough for a few requests to go unanswered.
        let policy =
            retry::Policy::exponential(Duration::from_millis(100), Duration::from_secs(2)).within(self.patience() * 4);
        retry::when(policy, BusError::is_transient, || self.reconcile_once(topology)).await
    }

    async fn reconcile_once(&self, topology: &Topology) -> Result<(), BusError> {
        futures::stream::iter(&topology.streams)
            .map(|stream| self.reconcile_stream(stream))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        futures::stream::iter(&topology.consumers)
            .map(|consumer| self.reconcile_consumer(consumer))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Makes sure that the stream behind a subject exists, with its consumers. One task at a time.
    pub(crate) async fn mend_stream_for(&self, subject: &str) -> Result<(), BusError> {
        let _mending = self.mending().lock().await;
        let topology = self.topology();
        let no_stream = || BusError::NoStream { subject: subject.to_owned() };
        let stream = topology.stream_for(subject).ok_or_else(no_stream)?;
        self.mend_stream(stream).await?;
        // A lost stream took its consumers with it; whoever reads them may not be running just now.
        for consumer in topology.consumers.iter().filter(|consumer| consumer.stream == stream.name) {
            self.mend_one_consumer(consumer).await?;
        }
        Ok(())
    }

    /// Makes sure that a consumer and its stream exist. One task at a time.
    pub(crate) async fn mend_consumer(&self, consumer: &ConsumerSpec) -> Result<(), BusError> {
        let _mending = self.mending().lock().await;
        let topology = self.topology();
        let unknown = || BusError::UnknownStream { name: consumer.stream.to_string() };
        self.mend_stream(topology.stream(&consumer.stream).ok_or_else(unknown)?).await?;
        self.mend_one_consumer(consumer).await
    }

    /// Creates a stream if there is none of its name. Its settings are left alone: changing them takes rights that a
    /// service has not, and in the middle of a roll-out there is more than one opinion on them.
    async fn mend_stream(&self, spec: &StreamSpec) -> Result<(), BusError> {
        let name = self.namespace().name(&spec.name);
        match self.look_up(&name).await? {
            Some(_) => Ok(()),
            None => self.create_stream(spec, &name).await.map(|_| ()),
        }
    }

    async fn mend_one_consumer(&self, spec: &ConsumerSpec) -> Result<(), BusError> {
        let stream = self.namespace().name(&spec.stream);
        let config = spec.config(self.namespace());
        match self.jetstream().create_consumer_strict_on_stream(config, &stream).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let transient = match error.kind() {
                    ConsumerCreateStrictErrorKind::AlreadyExists => return Ok(()),
                    ConsumerCreateStrictErrorKind::JetStream(cause) => is_transient(&cause),
                    ConsumerCreateStrictErrorKind::TimedOut | ConsumerCreateStrictErrorKind::Request => true,
                    _ => false,
                };
                Err(self.consumer_failed(spec, transient, error.into()))
            }
        }
    }

    /// A stream's settings on the server, if it is there.
    async fn look_up(&self, name: &str) -> Result<Option<stream::Config>, BusError> {
        match self.jetstream().get_stream(name).await {
            Ok(stream) => Ok(Some(stream.cached_info().config.clone())),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(cause) if cause.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
                kind => {
                    let transient =
                        !matches!(kind, GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName);
                    Err(BusError::Reconcile { what: format!("stream {name}"), transient, source: error.into() })
                }
            },
        }
    }

    async fn reconcile_stream(&self, spec: &StreamSpec) -> Result<(), BusError> {
        let name = self.namespace().name(&spec.name);
        match self.look_up(&name).await? {
            Some(have) if spec.is(self.namespace(), &have) => return Ok(()),
            None if self.create_stream(spec, &name).await? => return Ok(()),
            _ => {}
        }
        self.jetstream().update_stream(spec.config(self.namespace())).await.map_err(|error| {
            let transient = match error.kind() {
                CreateStreamErrorKind::JetStream(cause) => is_transient(&cause),
                // Deleted between the look and the update.
                CreateStreamErrorKind::NotFound => true,
                kind => may_pass(&kind),
            };
            BusError::Reconcile { what: format!("stream {name}"), transient, source: error.into() }
        })?;
        tracing::info!(stream = %name, "updated the stream");
        Ok(())
    }

    /// Creates the stream; `false` if somebody else has made one of that name meanwhile, perhaps with other settings.
    async fn create_stream(&self, spec: &StreamSpec, name: &str) -> Result<bool, BusError> {
        match self.jetstream().create_stream(spec.config(self.namespace())).await {
            Ok(_) => {
                tracing::info!(stream = %name, "created the stream");
                Ok(true)
            }
            Err(error) => {
                let transient = match error.kind() {
                    CreateStreamErrorKind::JetStream(cause) if cause.error_code() == ErrorCode::STREAM_NAME_EXIST => {
                        return Ok(false);
                    }
                    CreateStreamErrorKind::JetStream(cause) => is_transient(&cause),
                    kind => may_pass(&kind),
                };
                Err(BusError::Reconcile { what: format!("stream {name}"), transient, source: error.into() })
            }
        }
    }

    async fn reconcile_consumer(&self, spec: &ConsumerSpec) -> Result<(), BusError> {
        let config = spec.config(self.namespace());
        let stream = self.namespace().name(&spec.stream);
        self.jetstream().create_consumer_on_stream(config, &stream).await.map(|_| ()).map_err(|error| {
            let transient = match error.kind() {
                ConsumerErrorKind::JetStream(cause) => is_transient(&cause),
                ConsumerErrorKind::TimedOut | ConsumerErrorKind::Request => true,
                _ => false,
            };
            self.consumer_failed(spec, transient, error.into())
        })
    }

    fn consumer_failed(&self, spec: &ConsumerSpec, transient: bool, source: Source) -> BusError {
        let namespace = self.namespace();
        let what = format!("consumer {} of stream {}", namespace.name(&spec.name), namespace.name(&spec.stream));
        BusError::Reconcile { what, transient, source }
    }

    /// Deletes every stream of the topology, and with them the consumers and messages. Only in a namespace.
    pub(crate) async fn delete_streams(&self) -> Result<(), BusError> {
        for spec in &self.topology().streams {
            self.delete_stream(&spec.name).await?;
        }
        Ok(())
    }

    /// Deletes a stream, if it is there. Only in a namespace.
    pub(crate) async fn delete_stream(&self, name: &str) -> Result<(), BusError> {
        if self.namespace().is_production() {
            return Ok(());
        }
        let name = self.namespace().name(name);
        match self.jetstream().delete_stream(&name).await {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                DeleteStreamErrorKind::JetStream(cause) if cause.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(()),
                _ => Err(BusError::Reconcile { what: format!("stream {name}"), transient: true, source: error.into() }),
            },
        }
    }
}

/// Whether the server's refusal may pass: it is busy, still starting, or lost the stream in between.
fn is_transient(error: &jetstream::Error) -> bool {
    error.code() >= 500 || matches!(error.error_code(), ErrorCode::STREAM_NOT_FOUND | ErrorCode::CONSUMER_NOT_FOUND)
}

fn may_pass(kind: &CreateStreamErrorKind) -> bool {
    matches!(
        kind,
        CreateStreamErrorKind::TimedOut | CreateStreamErrorKind::JetStreamUnavailable | CreateStreamErrorKind::Response
    )
}
