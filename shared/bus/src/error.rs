//! What can go wrong on the bus, named after the operation that failed.

use std::time::Duration;

/// The cause kept behind a [`BusError`].
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// An operation on the bus failed. [`BusError::is_transient`] says whether trying again may help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The connection could not be made: the address is wrong, nobody listens there, or the server refused the user.
    #[error("could not connect to NATS: {source}")]
    Connect {
        /// Whether the same address and user may work later.
        transient: bool,
        /// What the client said.
        source: Source,
    },
    /// A stream or a durable consumer could not be created, updated or removed.
    #[error("could not reconcile {what}: {source}")]
    Reconcile {
        /// The stream or consumer, by its name on the server.
        what: String,
        /// Whether trying again may help.
        transient: bool,
        /// What the server said.
        source: Source,
    },
    /// The topology declares no consumer of this name.
    #[error("no consumer named `{name}` is declared in the topology")]
    UnknownConsumer {
        /// The name that was asked for.
        name: String,
    },
    /// The topology declares no stream of this name.
    #[error("no stream named `{name}` is declared in the topology")]
    UnknownStream {
        /// The name that was asked for.
        name: String,
    },
    /// A message could not be handed to the server, or the server did not confirm that it stored it.
    #[error("could not publish to `{subject}`: {source}")]
    Publish {
        /// Where it was going, without the namespace.
        subject: String,
        /// Whether trying again may help.
        transient: bool,
        /// What the client or the server said.
        source: Source,
    },
    /// No stream takes this subject: it was never declared, or the server lost it and it could not be re-created yet.
    #[error("no stream stores `{subject}`")]
    NoStream {
        /// Where the message was going, without the namespace.
        subject: String,
    },
    /// The stream is full and refuses new messages. What is in it must be consumed first.
    #[error("the stream behind `{subject}` is full: {source}")]
    StreamFull {
        /// Where the message was going, without the namespace.
        subject: String,
        /// What the server said.
        source: Source,
    },
    /// The message is larger than the server takes.
    #[error(
        "the message to `{subject}` is larger than the server's limit of {limit} bytes; keep large content as an artifact"
    )]
    TooLarge {
        /// Where the message was going, without the namespace.
        subject: String,
        /// The server's limit on headers and body together, in bytes.
        limit: usize,
    },
    /// A subscription could not be made.
    #[error("could not subscribe to `{subject}`: {source}")]
    Subscribe {
        /// The subject, without the namespace.
        subject: String,
        /// What the client said.
        source: Source,
    },
    /// A consumer could not be pulled from, or could not be moved back to its last acknowledgement.
    #[error("could not pull from consumer `{consumer}`: {source}")]
    Pull {
        /// The consumer's name in the topology.
        consumer: String,
        /// What the client or the server said.
        source: Source,
    },
    /// An acknowledgement could not be sent. The message will be delivered again.
    #[error("could not acknowledge on consumer `{consumer}`: {source}")]
    Acknowledge {
        /// The consumer's name in the topology.
        consumer: String,
        /// What the client said.
        source: Source,
    },
    /// Nobody serves the subject at the moment.
    #[error("nobody answers on `{subject}`")]
    NoResponders {
        /// The subject, without the namespace.
        subject: String,
    },
    /// No answer came in time. The request may have been carried out all the same.
    #[error("no answer on `{subject}` within {after:?}")]
    RequestTimedOut {
        /// The subject, without the namespace.
        subject: String,
        /// How long was waited.
        after: Duration,
    },
    /// A request could not be sent, or its answer got lost.
    #[error("could not request `{subject}`: {source}")]
    Request {
        /// The subject, without the namespace.
        subject: String,
        /// What the client said.
        source: Source,
    },
    /// The service answered with a problem.
    #[error("`{subject}` refused with {code}: {message}")]
    Refused {
        /// The subject, without the namespace.
        subject: String,
        /// The problem's code, with the meaning of an HTTP status.
        code: u16,
        /// The service's words.
        message: String,
    },
    /// A service endpoint could not be opened.
    #[error("could not serve `{subject}`: {source}")]
    Serve {
        /// The subject, without the namespace.
        subject: String,
        /// What the client said.
        source: Source,
    },
    /// A value could not be written as JSON.
    #[error("could not encode {what} as JSON: {source}")]
    Encode {
        /// What was to be encoded.
        what: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A body is not the JSON that was expected.
    #[error("could not decode {what}: {source}")]
    Decode {
        /// What was to be decoded.
        what: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The state of a stream or consumer could not be read.
    #[error("could not look at {what}: {source}")]
    Status {
        /// The stream or consumer, by its name on the server.
        what: String,
        /// What the client or the server said.
        source: Source,
    },
    /// The dead-letter stream could not be read or changed.
    #[error("could not read the dead letters: {source}")]
    DeadLetters {
        /// What the client or the server said.
        source: Source,
    },
    /// What was written could not be pushed out to the server in time.
    #[error("could not flush to NATS: {source}")]
    Flush {
        /// What the client said.
        source: Source,
    },
    /// The connection could not be closed in order.
    #[error("could not drain the NATS connection: {source}")]
    Drain {
        /// What the client said.
        source: Source,
    },
}

impl BusError {
    /// Whether the same operation may succeed when it is tried again a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { transient, .. } | Self::Reconcile { transient, .. } | Self::Publish { transient, .. } => {
                *transient
            }
            Self::NoStream { .. }
            | Self::StreamFull { .. }
            | Self::Pull { .. }
            | Self::Acknowledge { .. }
            | Self::NoResponders { .. }
            | Self::RequestTimedOut { .. }
            | Self::Request { .. }
            | Self::Status { .. }
            | Self::DeadLetters { .. }
            | Self::Flush { .. }
            | Self::Drain { .. } => true,
            Self::Refused { code, .. } => matches!(code, 408 | 429 | 500..),
            Self::UnknownConsumer { .. }
            | Self::UnknownStream { .. }
            | Self::TooLarge { .. }
            | Self::Subscribe { .. }
            | Self::Serve { .. }
            | Self::Encode { .. }
            | Self::Decode { .. } => false,
        }
    }
}
