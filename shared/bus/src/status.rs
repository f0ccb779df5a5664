//! Where streams and consumers stand: for operators, and for tests that nothing was left behind.

use serde::{Deserialize, Serialize};

use crate::connection::Bus;
use crate::error::BusError;

/// Where a consumer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerStatus {
    /// Messages that it has not been given yet.
    pub pending: u64,
    /// Messages that it has been given and not acknowledged.
    pub unacknowledged: u64,
    /// Of those, messages that were given more than once.
    pub redelivered: u64,
    /// Requests for messages that are open, of all instances together.
    pub waiting: u64,
    /// The message of the stream through which all of its own are acknowledged; 0 if none is.
    pub acknowledged: u64,
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStatus {
    /// Messages in it.
    pub messages: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The number of its first message, from 1; one more than the last if there is none.
    pub first_seq: u64,
    /// The number of its last message, from 1; 0 if there never was one.
    pub last_seq: u64,
}

impl Bus {
    /// Where a consumer of the topology stands.
    pub async fn consumer_status(&self, name: &str) -> Result<ConsumerStatus, BusError> {
        let topology = self.topology();
        let spec = topology.consumer(name).ok_or_else(|| BusError::UnknownConsumer { name: name.to_owned() })?;
        let full = self.namespace().name(name);
        let failed = |source| BusError::Status { what: format!("consumer {full}"), source };
        let stream = self
            .jetstream()
            .get_stream_no_info(self.namespace().name(&spec.stream))
            .await
            .map_err(|error| failed(error.into()))?;
        let info = stream.consumer_info(&full).await.map_err(|error| failed(error.into()))?;
        Ok(ConsumerStatus {
            pending: info.num_pending,
            unacknowledged: info.num_ack_pending as u64,
            redelivered: info.num_redelivered as u64,
            waiting: info.num_waiting as u64,
            acknowledged: info.ack_floor.stream_sequence,
        })
    }

    /// Where a stream of the topology stands.
    pub async fn stream_status(&self, name: &str) -> Result<StreamStatus, BusError> {
        let full = self.namespace().name(name);
        let stream = self
            .jetstream()
            .get_stream(&full)
            .await
            .map_err(|error| BusError::Status { what: format!("stream {full}"), source: error.into() })?;
        let state = &stream.cached_info().state;
        Ok(StreamStatus {
            messages: state.messages,
            bytes: state.bytes,
            first_seq: state.first_sequence,
            last_seq: state.last_sequence,
        })
    }
}
