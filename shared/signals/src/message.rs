//! Messages on `log.<tenant>.<service>`: one record or many, and how many are made into messages.
//!
//! A message holds lines, each a JSON object or plain text; or one JSON array of objects; or one OTLP JSON document. Whatever
//! it is, everybody who reads it counts the same records under the same numbers.

use std::{borrow::Cow, collections::BTreeMap};

use memchr::memchr_iter;
use serde_json::Value;

use crate::{otlp, record::Record};

/// Most bytes of a message that is made here: far below what the server takes, so that a headers' worth more is no matter.
pub const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// The records of a message as lines, in order: what came as lines is left as it is, the rest is brought into the form of
/// [`Record`]. Blank lines are none.
#[must_use]
pub fn lines(payload: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let first = payload.iter().find(|byte| !byte.is_ascii_whitespace());
    let document = match first {
        Some(b'[') => {
            serde_json::from_slice::<Vec<Value>>(payload).ok().map(|items| items.iter().map(to_line).collect())
        }
        Some(b'{') => otlp::from_document(payload).map(|records| {
            let written = records.into_iter().filter_map(|(_, record)| serde_json::to_vec(&record).ok());
            written.map(Cow::Owned).collect()
        }),
        _ => None,
    };
    document.unwrap_or_else(|| split(payload))
}

fn to_line(item: &Value) -> Cow<'static, [u8]> {
    match item {
        Value::String(text) => Cow::Owned(text.clone().into_bytes()),
        other => Cow::Owned(other.to_string().into_bytes()),
    }
}

fn split(payload: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let mut start = 0;
    let mut lines = Vec::new();
    for end in memchr_iter(b'\n', payload).chain([payload.len()]) {
        let line = payload.get(start..end).unwrap_or_default().trim_ascii();
        if !line.is_empty() {
            lines.push(Cow::Borrowed(line));
        }
        start = end + 1;
    }
    lines
}

/// Records of one service, ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Whose they are.
    pub service: String,
    /// One JSON object a line.
    pub payload: Vec<u8>,
    /// How many.
    pub records: u64,
}

/// Brings records into messages: each of one service, in the order of the records, and none larger than
/// [`MAX_MESSAGE_BYTES`] by more than a record.
#[must_use]
pub fn batches(records: Vec<(String, Record)>) -> Vec<Batch> {
    let mut open: BTreeMap<String, Batch> = BTreeMap::new();
    let mut full = Vec::new();
    for (service, record) in records {
        let Ok(line) = serde_json::to_vec(&record) else { continue };
        let batch = open.entry(service).or_insert_with_key(|service| Batch {
            service: service.clone(),
            payload: Vec::new(),
            records: 0,
        });
        if !batch.payload.is_empty() && batch.payload.len() + line.len() >= MAX_MESSAGE_BYTES {
            full.push(Batch {
                service: batch.service.clone(),
                payload: std::mem::take(&mut batch.payload),
                records: batch.records,
            });
            batch.records = 0;
        }
        batch.payload.extend_from_slice(&line);
        batch.payload.push(b'\n');
        batch.records += 1;
    }
    // The full ones of a service come before its last one.
    full.extend(open.into_values());
    full
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bodies(payload: &str) -> Vec<String> {
        lines(payload.as_bytes()).iter().map(|line| Record::from_line(line).body).collect()
    }

    #[test]
    fn every_form_gives_its_records_in_order() {
        assert_eq!(bodies("{\"msg\":\"a\"}\n\nplain b\r\n{\"msg\":\"c\"}"), ["a", "plain b", "c"]);
        assert_eq!(bodies(r#"[{"msg":"a"}, "plain b", {"msg":"c"}]"#), ["a", "plain b", "c"]);
        let otlp = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"a"}},{"body":{"stringValue":"b"}}]}]}]}"#;
        assert_eq!(bodies(otlp), ["a", "b"]);
        assert!(lines(b" \n\n").is_empty());
        assert_eq!(bodies("[not json"), ["[not json"]);
    }

    #[test]
    fn batches_are_bounded_and_keep_the_order_of_a_service() {
        let record = |text: String| Record { body: text, ..Record::default() };
        let records = (0..40).map(|n| {
            let service = if n % 4 == 0 { "b" } else { "a" };
            (service.to_owned(), record(format!("{n} {}", "x".repeat(20_000))))
        });
        let batches = batches(records.collect());
        assert!(batches.iter().all(|batch| batch.payload.len() <= MAX_MESSAGE_BYTES + 40));
        assert_eq!(batches.iter().map(|batch| batch.records).sum::<u64>(), 40);
        for service in ["a", "b"] {
            let of = batches.iter().filter(|batch| batch.service == service);
            let numbers: Vec<u32> = of
                .flat_map(|batch| lines(&batch.payload).iter().map(|line| Record::from_line(line)).collect::<Vec<_>>())
                .map(|record| record.body.split(' ').next().unwrap().parse().unwrap())
                .collect();
            assert!(numbers.is_sorted(), "{numbers:?}");
        }
    }

    proptest! {
        #[test]
        fn anything_at_all_is_survived(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            for line in lines(&payload) {
                let record = Record::from_line(&line);
                prop_assert!(!record.body.contains('\0'));
                let _ = (record.shown(), record.mentions("x"));
            }
        }
    }
}
