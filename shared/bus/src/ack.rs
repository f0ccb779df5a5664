//! The reply subject of a stored message, which says where it stands in its stream and consumer.

use jiff::Timestamp;

pub(crate) const ACK: &[u8] = b"+ACK";
pub(crate) const PROGRESS: &[u8] = b"+WPI";
pub(crate) const NAK: &[u8] = b"-NAK";

/// What the server says about a delivery in `$JS.ACK...`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AckReply {
    pub delivered: u64,
    pub stream_seq: u64,
    pub consumer_seq: u64,
    pub published_at: Timestamp,
    pub pending: u64,
}

impl AckReply {
    /// Reads both shapes: `$JS.ACK.<stream>.<consumer>.<numbers>` and the longer one that has a domain and an account
    /// in front and may have more behind.
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let names = match rest.split('.').count() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut numbers = rest.split('.').skip(names);
        let mut next = || numbers.next();
        Some(Self {
            delivered: next()?.parse().ok()?,
            stream_seq: next()?.parse().ok()?,
            consumer_seq: next()?.parse().ok()?,
            published_at: Timestamp::from_nanosecond(next()?.parse().ok()?).ok()?,
            pending: next()?.parse().ok()?,
        })
    }
}

/// A negative acknowledgement that asks for the message again after a while.
pub(crate) fn nak_after(delay: std::time::Duration) -> bytes::Bytes {
    format!("-NAK {{\"delay\":{}}}", delay.as_nanos()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAMP: &str = "1795974257939108330";

    #[test]
    fn reads_both_shapes() {
        let want = AckReply {
            delivered: 3,
            stream_seq: 100,
            consumer_seq: 7,
            published_at: Timestamp::from_nanosecond(1_795_974_257_939_108_330).unwrap(),
            pending: 42,
        };
        for reply in [
            format!("$JS.ACK.EVENTS.planner.3.100.7.{STAMP}.42"),
            format!("$JS.ACK._.hash.EVENTS.planner.3.100.7.{STAMP}.42"),
            format!("$JS.ACK.hub.hash.EVENTS.planner.3.100.7.{STAMP}.42.more"),
        ] {
            assert_eq!(AckReply::parse(&reply).as_ref(), Some(&want), "{reply}");
        }
    }

    #[test]
    fn refuses_other_replies() {
        for reply in ["", "_INBOX.a.b", "$JS.ACK.EVENTS.planner.3.100.7.1", "$JS.ACK.E.p.3.x.7.1.42"] {
            assert_eq!(AckReply::parse(reply), None, "{reply}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = AckReply::parse(&format!("$JS.ACK.{text}"));
        }
    }
}
