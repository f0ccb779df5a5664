//! Keeps the logs of services as they came, in compressed pieces that say where each message and each record in them stands.
//!
//! As with the output of calls, a message is acknowledged when the piece that holds it is stored and recorded, and what is stored
//! twice after a crash is read once.

pub(crate) mod read;

use bus::Delivery;
use bytes::Bytes;
use engine::{ServiceSegment, Services};
use kernel::{TenantId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    gather::{self, Answer, Keep, KeepError},
    store::Store,
};

/// Most bytes of the name of a service.
const SERVICE_BYTES: usize = 128;

type Key = (TenantId, String);

/// The head of a piece: its first line.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    messages: Vec<Indexed>,
}

/// A message in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Indexed {
    /// Its number in the stream.
    seq: u64,
    /// When the bus stored it, in microseconds since 1970.
    at: i64,
    /// How many lines are its own.
    lines: u32,
}

/// A message, as it came.
pub(crate) struct Message {
    seq: u64,
    at: Timestamp,
    payload: Bytes,
}

/// Stores pieces. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogKeeper {
    pub(crate) store: Store,
    pub(crate) services: Services,
}

/// Whose log a message is of, and what it says.
pub(crate) fn read(delivery: &Delivery, tenant: &str, service: String) -> Result<(Key, Message), &'static str> {
    if !(1..=SERVICE_BYTES).contains(&service.len()) || service.contains('\0') {
        return Err("its subject names no service");
    }
    let tenant = tenant.parse().map_err(|_| "its subject names no tenant")?;
    let (seq, at, payload) = (delivery.stream_seq, delivery.published_at, delivery.payload.clone());
    Ok(((tenant, service), Message { seq, at, payload }))
}

impl Keep for LogKeeper {
    type Key = Key;
    type Message = Message;

    fn bytes(message: &Message) -> usize {
        message.payload.len()
    }

    async fn keep(&self, (tenant, service): Key, messages: Vec<Message>) -> Answer {
        self.keep_piece(&tenant, &service, messages).await.map_err(|error| {
            tracing::warn!(%tenant, service, %error, "a piece of a log could not be archived, trying again");
            error.to_string()
        })
    }
}

impl LogKeeper {
    async fn keep_piece(&self, tenant: &TenantId, service: &str, mut messages: Vec<Message>) -> Result<(), KeepError> {
        messages.sort_by_key(|message| (message.at, message.seq));
        let place = |message: &Message| (message.seq, message.at);
        let ends = messages.first().map(place).zip(messages.last().map(place));
        let Some(((from_seq, from_at), (to_seq, to_at))) = ends else { return Ok(()) };
        let name = bus::subject::token(service);
        let object_key = format!("logs/{tenant}/{name}/{}-{from_seq}-{to_seq}.zst", from_at.as_microsecond());
        let (bytes, records) = gather::put(&self.store, &object_key, move || Ok(write(&messages)?)).await?;
        let (tenant, service) = (tenant.clone(), service.to_owned());
        let segment = ServiceSegment { tenant, service, from_seq, to_seq, from_at, to_at, records, bytes, object_key };
        Ok(self.services.insert_segment(&segment).await?)
    }
}

/// A piece as it is stored, and how many records it holds: a line that tells where everything stands, then a line a record.
fn write(messages: &[Message]) -> Result<(Vec<u8>, u64), serde_json::Error> {
    let mut index = Index::default();
    let (mut body, mut records) = (Vec::new(), 0);
    for Message { seq, at, payload } in messages {
        let lines = signals::lines(payload);
        records += lines.len() as u64;
        index.messages.push(Indexed {
            seq: *seq,
            at: at.as_microsecond(),
            lines: u32::try_from(lines.len()).unwrap_or(u32::MAX),
        });
        for line in lines {
            body.extend_from_slice(&line);
            body.push(b'\n');
        }
    }
    let mut plain = serde_json::to_vec(&index)?;
    plain.push(b'\n');
    plain.extend_from_slice(&body);
    Ok((plain, records))
}

/// A record in a piece.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    at: i64,
    seq: u64,
    /// Its place in the message, from 0.
    index: u32,
    text: Vec<u8>,
}

/// The records of a piece; those beyond what it says it has are no records.
fn records(plain: &[u8]) -> Result<Vec<Kept>, serde_json::Error> {
    let mut lines = plain.split(|byte| *byte == b'\n');
    let index: Index = serde_json::from_slice(lines.next().unwrap_or_default())?;
    let places = index.messages.iter().flat_map(|message| (0..message.lines).map(move |index| (message, index)));
    Ok(places
        .zip(lines)
        .map(|((message, index), text)| Kept { at: message.at, seq: message.seq, index, text: text.to_vec() })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_found_where_it_stood() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let message = |seq, at, text: &'static [u8]| Message { seq, at, payload: Bytes::from_static(text) };
        let messages = [message(7, at(1), b"{\"msg\":\"a\"}\n\nplain \xff\n"), message(9, at(2), b"[\"x\",\"y\"]")];
        let (plain, count) = write(&messages).unwrap();
        let records = records(&plain).unwrap();
        let shown: Vec<_> = records.iter().map(|kept| (kept.seq, kept.index, kept.text.as_slice())).collect();
        assert_eq!(count, 4);
        assert_eq!(shown, [(7, 0, &b"{\"msg\":\"a\"}"[..]), (7, 1, b"plain \xff"), (9, 0, b"x"), (9, 1, b"y")]);
        assert!(super::records(b"no index\n").is_err());
    }
}
