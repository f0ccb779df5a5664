//! A message of the stream of signals, read.

use bus::{Delivery, Subject, header};
use jiff::Timestamp;
use kernel::{CallId, RunId, TenantId, call::Exit};

use crate::conclude::Frame;

/// Where a frame belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) tenant: TenantId,
    pub(crate) run_id: RunId,
    pub(crate) call_id: CallId,
}

/// Why a message is no frame of a call.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAFrame {
    /// A log record of a watched service.
    #[error("a log record")]
    Log,
    /// Nobody here writes such a thing.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Whose output a message is.
pub(crate) fn address(delivery: &Delivery) -> Result<Address, NotAFrame> {
    let subject = Subject::parse(&delivery.subject).map_err(|_| NotAFrame::Malformed("its subject is none of ours"))?;
    match subject {
        Subject::Signal { tenant, run, call } => Ok(Address {
            tenant: tenant.parse().map_err(|_| NotAFrame::Malformed("its subject names no tenant"))?,
            run_id: run.parse().map_err(|_| NotAFrame::Malformed("its subject names no run"))?,
            call_id: call.parse().map_err(|_| NotAFrame::Malformed("its subject names no call"))?,
        }),
        Subject::Log { .. } => Err(NotAFrame::Log),
        _ => Err(NotAFrame::Malformed("its subject is no signal's")),
    }
}

/// What a message says.
pub(crate) fn frame(delivery: &Delivery) -> Result<Frame<'_>, NotAFrame> {
    let number = |name| delivery.headers.get(name).and_then(|text| text.parse::<u64>().ok());
    let offset = number(header::OFFSET).ok_or(NotAFrame::Malformed("it has no offset"))?;
    if offset.checked_add(delivery.payload.len() as u64).is_none() {
        return Err(NotAFrame::Malformed("its offset is beyond all numbers"));
    }
    let read_at = delivery.headers.get(header::TIME).and_then(|text| text.parse::<Timestamp>().ok());
    Ok(Frame {
        offset,
        first_line: number(header::LINE),
        at: delivery.published_at,
        read_at: read_at.unwrap_or(delivery.published_at),
        body: &delivery.payload,
        exit: delivery.headers.get(header::EXIT).map(|json| exit(json, offset)),
    })
}

/// An end that can't be read is an end all the same: without it the call would stay open for ever.
fn exit(json: &str, bytes: u64) -> Exit {
    serde_json::from_str(json).unwrap_or_else(|error| {
        tracing::warn!(%error, "the last frame of a call does not say how it ended");
        Exit { code: None, signal: None, reason: "lost".to_owned(), bytes, lines: 0 }
    })
}
