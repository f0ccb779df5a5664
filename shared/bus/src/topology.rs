//! Every stream and every durable consumer, declared here as data and nowhere else.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, pull};
use async_nats::jetstream::stream;
use serde::{Deserialize, Serialize};

use crate::namespace::Namespace;

/// How many ways the signals are split; each part is followed in order by one observer at a time.
pub const PARTITIONS: u8 = 8;

/// What a partitioned stream puts before a subject, followed by the partition and the original subject.
pub(crate) const PARTITIONED: &str = "sigp.";

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MIB: u64 = 1024 * 1024;

/// The streams and consumers that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The streams.
    pub streams: Vec<StreamSpec>,
    /// The durable pull consumers.
    pub consumers: Vec<ConsumerSpec>,
}

/// A stream, by names without namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// Its name, in capitals by custom.
    pub name: Cow<'static, str>,
    /// What it is for, shown by the server's tools.
    pub description: Cow<'static, str>,
    /// The subjects it stores.
    pub subjects: Vec<Cow<'static, str>>,
    /// When a message leaves it.
    pub retention: Retention,
    /// Whether a full stream refuses new messages rather than drop its oldest.
    pub refuse_when_full: bool,
    /// How long the server remembers message ids to drop duplicates.
    pub dedup_window: Duration,
    /// How much it may hold.
    pub limits: StreamLimits,
    /// Whether systems outside may publish into it, so that no header in it can be relied on to be one.
    pub untrusted: bool,
    /// Into how many parts to split it by whole subject; 1 leaves the subjects alone.
    pub partitions: u8,
}

/// When a message leaves a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// By age or size only, whoever has read it.
    Limits,
    /// Once its consumer has acknowledged it, or by age or size.
    WorkQueue,
}

/// A durable pull consumer, by names without namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerSpec {
    /// Its name; dead letters go to `dlq.<name>`.
    pub name: Cow<'static, str>,
    /// The stream it reads.
    pub stream: Cow<'static, str>,
    /// The subjects it wants; empty for all.
    pub filters: Vec<Cow<'static, str>>,
    /// What an acknowledgement covers.
    pub ack: AckMode,
    /// How long a delivered message may go without a word before it is delivered again.
    pub ack_wait: Duration,
    /// How many messages may be delivered and not yet acknowledged, over all instances.
    pub max_ack_pending: u32,
}

/// What an acknowledgement covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMode {
    /// Each message by itself, in any order.
    Each,
    /// A message and every one before it: for one reader at a time, in order.
    Through,
}

/// How much one stream may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamLimits {
    /// Bytes on disk. The server sets them aside when the stream is made.
    pub max_bytes: u64,
    /// How long a message stays at most.
    pub max_age: Duration,
}

/// How much each stream may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Events from outside that no one has taken yet.
    pub inbound: StreamLimits,
    /// Output and log records.
    pub signals: StreamLimits,
    /// Committed events.
    pub events: StreamLimits,
    /// Dead letters.
    pub dlq: StreamLimits,
}

impl Default for Limits {
    fn default() -> Self {
        let limits = |mib, max_age| StreamLimits { max_bytes: mib * MIB, max_age };
        Self {
            inbound: limits(512, 7 * DAY),
            signals: limits(2048, DAY),
            events: limits(2048, DAY),
            dlq: limits(256, 30 * DAY),
        }
    }
}

impl Limits {
    /// Small enough for a hundred namespaces side by side on one server.
    pub fn for_tests() -> Self {
        let limits = |mib| StreamLimits { max_bytes: mib * MIB, max_age: DAY };
        Self { inbound: limits(16), signals: limits(32), events: limits(32), dlq: limits(8) }
    }
}

impl Default for Topology {
    fn default() -> Self {
        Self::standard(&Limits::default())
    }
}

impl Topology {
    /// The system's streams and consumers within the given limits.
    pub fn standard(limits: &Limits) -> Self {
        Self { streams: streams(limits), consumers: consumers() }
    }

    /// The consumer of this name.
    pub fn consumer(&self, name: &str) -> Option<&ConsumerSpec> {
        self.consumers.iter().find(|consumer| consumer.name == name)
    }

    /// The stream of this name.
    pub fn stream(&self, name: &str) -> Option<&StreamSpec> {
        self.streams.iter().find(|stream| stream.name == name)
    }

    /// The stream that stores this subject.
    pub fn stream_for(&self, subject: &str) -> Option<&StreamSpec> {
        self.streams.iter().find(|stream| stream.subjects.iter().any(|filter| crate::subject::matches(filter, subject)))
    }
}

fn streams(limits: &Limits) -> Vec<StreamSpec> {
    let spec = |name, description, subjects: &[&'static str], limits| StreamSpec {
        name: Cow::Borrowed(name),
        description: Cow::Borrowed(description),
        subjects: subjects.iter().copied().map(Cow::Borrowed).collect(),
        retention: Retention::Limits,
        refuse_when_full: false,
        // The server keeps every id of the window in memory: no longer than a publisher keeps trying.
        dedup_window: 60 * SECOND,
        limits,
        untrusted: false,
        partitions: 1,
    };
    vec![
        StreamSpec {
            // A publisher outside must hear that it is too fast; what was consumed must not count against it.
            untrusted: true,
            retention: Retention::WorkQueue,
            refuse_when_full: true,
            ..spec("INBOUND", "CloudEvents from outside, until they are committed", &["in.>"], limits.inbound)
        },
        StreamSpec {
            untrusted: true,
            partitions: PARTITIONS,
            ..spec("SIGNALS", "Output of activities and log records", &["log.>", "sig.>"], limits.signals)
        },
        spec("EVENTS", "Committed events, as doorbells", &["evt.>"], limits.events),
        spec("DLQ", "Messages that could not be handled, with the reason", &["dlq.>"], limits.dlq),
    ]
}

fn consumers() -> Vec<ConsumerSpec> {
    let each = |name, stream, filters: &[&'static str], max_ack_pending| ConsumerSpec {
        name: Cow::Borrowed(name),
        stream: Cow::Borrowed(stream),
        filters: filters.iter().copied().map(Cow::Borrowed).collect(),
        ack: AckMode::Each,
        ack_wait: 10 * SECOND,
        max_ack_pending,
    };
    let mut consumers = vec![
        each("ingress", "INBOUND", &["in.>"], 8192),
        each("planner", "EVENTS", &["evt.run.runnable.>"], 8192),
        each(
            "tool-executor",
            "EVENTS",
            &[
                "evt.tool.requested.>",
                "evt.tool.due.>",
                "evt.approval.granted.>",
                "evt.run.resumed.>",
                "evt.run.cancel_requested.>",
                "evt.wait.registered.>",
            ],
            8192,
        ),
        each(
            "approval",
            "EVENTS",
            &["evt.approval.requested.>", "evt.approval.endorsed.>", "evt.budget.exceeded.>"],
            1024,
        ),
        each("artifact", "SIGNALS", &["sigp.>"], 4096),
        each("observer-events", "EVENTS", &["evt.action.recorded.>", "evt.tool.started.>"], 4096),
    ];
    consumers.extend((0..PARTITIONS).map(|partition| ConsumerSpec {
        name: Cow::Owned(format!("observer-{partition}")),
        stream: Cow::Borrowed("SIGNALS"),
        filters: vec![Cow::Owned(format!("{PARTITIONED}{partition}.>"))],
        ack: AckMode::Through,
        // The observer acknowledges when an observation is committed, and that may be a while after the frame.
        ack_wait: 60 * SECOND,
        max_ack_pending: 65_536,
    }));
    consumers
}

impl StreamSpec {
    pub(crate) fn config(&self, namespace: &Namespace) -> stream::Config {
        let partitioned = || stream::SubjectTransform {
            source: namespace.subject(">"),
            destination: namespace.subject(&format!("{PARTITIONED}{{{{partition({})}}}}.>", self.partitions)),
        };
        stream::Config {
            name: namespace.name(&self.name),
            description: Some(self.description.to_string()),
            subjects: self.subjects.iter().map(|subject| namespace.subject(subject)).collect(),
            retention: match self.retention {
                Retention::Limits => stream::RetentionPolicy::Limits,
                Retention::WorkQueue => stream::RetentionPolicy::WorkQueue,
            },
            discard: if self.refuse_when_full { stream::DiscardPolicy::New } else { stream::DiscardPolicy::Old },
            duplicate_window: self.dedup_window,
            max_bytes: i64::try_from(self.limits.max_bytes).unwrap_or(i64::MAX),
            max_age: self.limits.max_age,
            max_messages: -1,
            max_messages_per_subject: -1,
            max_message_size: -1,
            max_consumers: -1,
            num_replicas: 1,
            allow_direct: true,
            subject_transform: (self.partitions > 1).then(partitioned),
            ..stream::Config::default()
        }
    }

    /// Whether a stream on the server already is what this declares.
    pub(crate) fn is(&self, namespace: &Namespace, have: &stream::Config) -> bool {
        let want = self.config(namespace);
        want.description == have.description
            && want.subjects == have.subjects
            && want.retention == have.retention
            && want.discard == have.discard
            && want.duplicate_window == have.duplicate_window
            && want.max_bytes == have.max_bytes
            && want.max_age == have.max_age
            && want.allow_direct == have.allow_direct
            && want.subject_transform == have.subject_transform
    }
}

impl ConsumerSpec {
    pub(crate) fn config(&self, namespace: &Namespace) -> pull::Config {
        let mut filters: Vec<String> = self.filters.iter().map(|filter| namespace.subject(filter)).collect();
        // A single filter goes into the subject of the request, where server permissions can see it.
        let filter_subject = if filters.len() == 1 { filters.remove(0) } else { String::new() };
        let name = namespace.name(&self.name);
        pull::Config {
            durable_name: Some(name.clone()),
            name: Some(name),
            deliver_policy: consumer::DeliverPolicy::All,
            ack_policy: match self.ack {
                AckMode::Each => consumer::AckPolicy::Explicit,
                AckMode::Through => consumer::AckPolicy::All,
            },
            ack_wait: self.ack_wait,
            // Unlimited: the consumer loop counts, and dead-letters with a reason.
            max_deliver: -1,
            filter_subject,
            filter_subjects: filters,
            replay_policy: consumer::ReplayPolicy::Instant,
            max_ack_pending: i64::from(self.max_ack_pending),
            max_waiting: 512,
            metadata: HashMap::new(),
            ..pull::Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_consumer_reads_a_declared_stream_and_no_name_is_twice() {
        let topology = Topology::default();
        let mut names: Vec<_> = topology.consumers.iter().map(|consumer| consumer.name.clone()).collect();
        for consumer in &topology.consumers {
            assert!(topology.stream(&consumer.stream).is_some(), "{}", consumer.name);
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), topology.consumers.len());
        assert_eq!(topology.consumers.iter().filter(|consumer| consumer.ack == AckMode::Through).count(), 8);
    }

    #[test]
    fn every_subject_has_one_stream() {
        let topology = Topology::default();
        for (subject, stream) in [
            (crate::subject::in_("t", "github", "push"), "INBOUND"),
            (crate::subject::log("t", "checkout"), "SIGNALS"),
            (crate::subject::sig("t", "r", "c"), "SIGNALS"),
            (crate::subject::evt("run.runnable", "t", "r"), "EVENTS"),
            (crate::subject::dlq("planner"), "DLQ"),
        ] {
            assert_eq!(topology.stream_for(&subject).unwrap().name, stream);
        }
        assert!(topology.stream_for(&crate::subject::live("t", "r")).is_none());
    }
}
