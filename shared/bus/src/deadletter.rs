//! What could not be handled: kept with its reason, listed, published again.

use std::time::Duration;

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DirectGetErrorKind, Stream};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::connection::Bus;
use crate::error::BusError;
use crate::message::{Delivery, Headers, header};
use crate::publish::Outgoing;
use crate::retry;
use crate::subject;

/// The stream of dead letters.
const STREAM: &str = "DLQ";
/// The longest reason that is kept, in bytes.
const MAX_REASON: usize = 1024;
/// What is read ahead of a filter at once.
const PAGE: usize = 100;
/// Begins every header that a dead letter has and the original message had not.
const ADDED: &str = "Esc-Dlq-";

/// A message that a consumer gave up on.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Its number among the dead letters.
    pub seq: u64,
    /// The consumer that gave up.
    pub consumer: String,
    /// The subject the message came on, without the namespace.
    pub subject: String,
    /// Why the consumer gave up.
    pub reason: String,
    /// How often the message had been delivered.
    pub attempts: u64,
    /// When the consumer gave up.
    pub at: Option<Timestamp>,
    /// The headers of the message.
    pub headers: Headers,
    /// The body of the message.
    pub payload: Bytes,
    /// The size in bytes of a body that was too large to be kept beside the reason; such a message can't be redriven.
    pub omitted: Option<u64>,
}

/// A page of dead letters, oldest first.
#[derive(Clone, Debug)]
pub struct DlqPage {
    /// The dead letters.
    pub letters: Vec<DeadLetter>,
    /// Where the next page begins, if there may be one.
    pub cursor: Option<u64>,
}

/// A message that is given up on.
#[derive(Clone, Debug)]
pub struct GivenUp<'a> {
    /// Who gives up.
    pub consumer: &'a str,
    /// The subject that it came on, or that tells of the same, without the namespace.
    pub subject: &'a str,
    /// What it is known by among all that this consumer gave up on.
    pub id: String,
    /// How often it was tried.
    pub attempts: u64,
    /// Why.
    pub reason: &'a str,
}

/// Which dead letters to publish again. All conditions must hold; the default takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DlqFilter {
    /// Only what this consumer gave up on.
    pub consumer: Option<String>,
    /// Only these numbers.
    pub seqs: Option<Vec<u64>>,
    /// Only messages whose subject falls under this pattern, as in `evt.tool.*.default.>`.
    pub subject: Option<String>,
    /// At most so many.
    pub limit: Option<u64>,
}

/// What a redrive did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redriven {
    /// Published again, and removed from the dead letters.
    pub redriven: u64,
    /// Matched, but not kept whole or refused by the server; still among the dead letters.
    pub failed: u64,
}

impl DlqFilter {
    /// Whether all conditions hold of a letter, but for the count.
    #[must_use]
    pub fn takes(&self, letter: &DeadLetter) -> bool {
        self.consumer.as_ref().is_none_or(|consumer| *consumer == letter.consumer)
            && self.seqs.as_ref().is_none_or(|seqs| seqs.contains(&letter.seq))
            && self.subject.as_ref().is_none_or(|pattern| subject::matches(pattern, &letter.subject))
    }
}

impl Bus {
    /// The dead letters from a cursor on, oldest first.
    pub async fn dlq_list(&self, limit: usize, cursor: Option<u64>) -> Result<DlqPage, BusError> {
        let dlq = self.dlq().await?;
        self.page(&dlq, limit, cursor).await
    }

    /// Publishes dead letters again, each to the subject it came on, and removes them. Every consumer of that subject
    /// sees the message again. Its identity gets a suffix, since the server would take it for a duplicate of itself.
    pub async fn dlq_redrive(&self, filter: &DlqFilter) -> Result<Redriven, BusError> {
        let dlq = self.dlq().await?;
        let end = dlq.cached_info().state.last_sequence;
        let limit = filter.limit.unwrap_or(u64::MAX);
        let mut done = Redriven::default();
        let mut cursor = Some(1);
        while let Some(from) = cursor.filter(|from| *from <= end) {
            let page = self.page(&dlq, PAGE, Some(from)).await?;
            cursor = page.cursor;
            for letter in page.letters.into_iter().filter(|letter| letter.seq <= end && filter.takes(letter)) {
                if done.redriven + done.failed >= limit {
                    return Ok(done);
                }
                match self.redrive(&dlq, letter).await {
                    Ok(()) => done.redriven += 1,
                    Err(error) => {
                        tracing::warn!(%error, "could not redrive a dead letter");
                        done.failed += 1;
                    }
                }
            }
        }
        Ok(done)
    }

    /// Keeps a message with the reason why its consumer gave up. Keeping it twice leaves one.
    pub(crate) async fn keep_dead_letter(
        &self,
        stream: &str,
        consumer: &str,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), BusError> {
        let given_up = GivenUp {
            consumer,
            subject: &delivery.subject,
            id: format!("{stream}:{}", delivery.stream_seq),
            attempts: delivery.delivered,
            reason,
        };
        let mut headers = delivery.headers.clone();
        if let Some(id) = delivery.msg_id() {
            headers.insert(&original(header::MSG_ID), id);
        }
        self.dlq_keep(given_up, headers, delivery.payload.clone()).await
    }

    /// Keeps what somebody gave up on, also if it did not come from a stream. Keeping it twice leaves one; redriving publishes
    /// it to its subject.
    ///
    /// # Errors
    /// When NATS does not take it.
    pub async fn dlq_keep(
        &self,
        given_up: GivenUp<'_>,
        mut headers: Headers,
        payload: impl Into<Bytes>,
    ) -> Result<(), BusError> {
        let GivenUp { consumer, subject, id, attempts, reason } = given_up;
        let reason = shorten(reason, MAX_REASON);
        tracing::error!(consumer, subject, attempts, reason, "a message is dead");
        headers.insert(header::MSG_ID, format!("{consumer}:{id}"));
        headers.insert(header::DLQ_REASON, reason);
        headers.insert(header::DLQ_CONSUMER, consumer);
        headers.insert(header::DLQ_ATTEMPTS, attempts);
        headers.insert(header::DLQ_SUBJECT, subject);
        headers.insert(header::DLQ_TIME, Timestamp::now());
        let letter = Outgoing::new(subject::dlq(consumer), payload).headers(headers);
        let kept = match self.publisher().publish(letter.clone()).await {
            Err(BusError::TooLarge { .. }) => {
                let size = letter.payload.len();
                let rest = Outgoing { payload: Bytes::new(), ..letter }.header(header::DLQ_OMITTED, size);
                self.publisher().publish(rest).await
            }
            kept => kept,
        };
        kept.map(|_| ())
    }

    async fn redrive(&self, dlq: &Stream, letter: DeadLetter) -> Result<(), BusError> {
        if letter.omitted.is_some() {
            return Err(BusError::TooLarge { subject: letter.subject, limit: self.max_payload() });
        }
        let mut headers = letter.headers;
        let id = headers.get(header::MSG_ID).map(str::to_owned).unwrap_or_default();
        headers.insert(header::MSG_ID, format!("{id}:redrive-{}", letter.seq));
        self.publisher().publish(Outgoing::new(letter.subject, letter.payload).headers(headers)).await?;
        dlq.delete_message(letter.seq).await.map_err(|error| BusError::DeadLetters { source: error.into() })?;
        Ok(())
    }

    async fn dlq(&self) -> Result<Stream, BusError> {
        let policy = retry::Policy::exponential(Duration::from_millis(50), Duration::from_secs(1))
            .within(Duration::from_secs(5));
        let name = self.namespace().name(STREAM);
        retry::with(policy, || self.jetstream().get_stream(&name))
            .await
            .map_err(|error| BusError::DeadLetters { source: error.into() })
    }

    async fn page(&self, dlq: &Stream, limit: usize, cursor: Option<u64>) -> Result<DlqPage, BusError> {
        let all = self.namespace().subject(&format!("{}>", subject::dlq("").trim_end_matches('%')));
        let mut letters = Vec::new();
        let mut next = cursor.unwrap_or(1).max(1);
        while letters.len() < limit {
            match dlq.direct_get_next_for_subject(all.as_str(), Some(next)).await {
                Ok(message) => {
                    next = message.sequence + 1;
                    letters.push(DeadLetter::from_nats(message));
                }
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => {
                    return Ok(DlqPage { letters, cursor: None });
                }
                Err(error) => return Err(BusError::DeadLetters { source: error.into() }),
            }
        }
        Ok(DlqPage { letters, cursor: Some(next) })
    }
}

impl DeadLetter {
    fn from_nats(message: StreamMessage) -> Self {
        let mut headers = Headers::from(message.headers);
        let text = |name: &str| headers.get(name).unwrap_or_default().to_owned();
        let (consumer, subject, reason) =
            (text(header::DLQ_CONSUMER), text(header::DLQ_SUBJECT), text(header::DLQ_REASON));
        let attempts = text(header::DLQ_ATTEMPTS).parse().unwrap_or_default();
        let at = text(header::DLQ_TIME).parse().ok();
        let omitted = headers.get(header::DLQ_OMITTED).and_then(|size| size.parse().ok());
        let id = headers.get(&original(header::MSG_ID)).map(str::to_owned);
        // The server adds what it says about a message it hands out; the message had none of it.
        let server = ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending"];
        headers.retain(|name| !name.starts_with(ADDED) && !server.contains(&name) && name != header::MSG_ID);
        if let Some(id) = id {
            headers.insert(header::MSG_ID, id);
        }
        let payload = message.payload;
        Self { seq: message.sequence, consumer, subject, reason, attempts, at, headers, payload, omitted }
    }
}

/// Where a header of the original message is kept when the dead letter needs the name for itself.
fn original(name: &str) -> String {
    format!("{ADDED}Original-{name}")
}

fn shorten(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_between_letters() {
        assert_eq!(shorten("käse", 2), "k");
        assert_eq!(shorten("käse", 3), "kä");
        assert_eq!(shorten("käse", 99), "käse");
    }
}
