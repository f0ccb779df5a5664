//! Looking at the server without changing anything, for people who ask what is wrong.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{ConsumerInfoErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::Stream;

use crate::connection::Bus;
use crate::error::{BusError, Source};
use crate::topology::{StreamSpec, Topology};

impl Bus {
    /// What of the topology the server lacks or has otherwise, each in words; nothing where it agrees.
    pub async fn differences(&self, topology: &Topology) -> Result<Vec<String>, BusError> {
        let mut differences = Vec::new();
        for spec in &topology.streams {
            let name = self.namespace().name(&spec.name);
            match self.jetstream().get_stream(&name).await {
                Ok(stream) => {
                    if !spec.is(self.namespace(), &stream.cached_info().config) {
                        differences.push(format!("stream {name} has other settings"));
                    }
                    differences.extend(self.missing_consumers(topology, spec, &stream).await?);
                }
                Err(error) => match error.kind() {
                    GetStreamErrorKind::JetStream(cause) if cause.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                        differences.push(format!("there is no stream {name}"));
                    }
                    _ => return Err(unseen(format!("stream {name}"), error.into())),
                },
            }
        }
        Ok(differences)
    }

    async fn missing_consumers(
        &self,
        topology: &Topology,
        spec: &StreamSpec,
        stream: &Stream,
    ) -> Result<Vec<String>, BusError> {
        let mut missing = Vec::new();
        for consumer in topology.consumers.iter().filter(|consumer| consumer.stream == spec.name) {
            let name = self.namespace().name(&consumer.name);
            match stream.consumer_info(&name).await {
                Ok(_) => {}
                Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                    missing.push(format!("there is no consumer {name}"));
                }
                Err(error) => return Err(unseen(format!("consumer {name}"), error.into())),
            }
        }
        Ok(missing)
    }
}

fn unseen(what: String, source: Source) -> BusError {
    BusError::Reconcile { what, transient: true, source }
}
