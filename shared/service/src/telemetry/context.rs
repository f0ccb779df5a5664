//! Where in a trace something happened: the W3C `traceparent`.

use std::fmt;
use std::str::FromStr;

use kernel::RunId;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// A place in a trace, as it travels between processes: `00-<trace>-<span>-<flags>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace; of a run, the bytes of its id. Never zero.
    pub trace_id: [u8; 16],
    /// The span in it. Never zero.
    pub span_id: [u8; 8],
    /// Whether the spans of this trace are exported.
    pub sampled: bool,
}

/// The text is not a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C traceparent")]
pub struct NotATraceparent;

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, NotATraceparent> {
        let mut parts = text.trim().splitn(5, '-');
        let mut next = || parts.next().ok_or(NotATraceparent);
        let [version] = unhex::<1>(next()?)?;
        let context =
            Self { trace_id: unhex(next()?)?, span_id: unhex(next()?)?, sampled: unhex::<1>(next()?)?[0] & 1 == 1 };
        // Later versions may append fields, this one may not.
        let legal = version != 0xff && (version != 0 || parts.next().is_none());
        if legal && context.is_valid() { Ok(context) } else { Err(NotATraceparent) }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", Hex(&self.trace_id), Hex(&self.span_id), u8::from(self.sampled))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TraceContext {
    /// The root span of a run's own trace: what everything in the run hangs under, if nothing nearer is known. Whether the
    /// trace is exported was decided when the run was created.
    #[must_use]
    pub fn of_run(run: RunId, sampled: bool) -> Self {
        Self { trace_id: run.0.into_bytes(), span_id: run.root_span_id(), sampled }
    }

    fn is_valid(&self) -> bool {
        self.trace_id != [0; 16] && self.span_id != [0; 8]
    }

    pub(super) fn span_context(&self, remote: bool) -> SpanContext {
        SpanContext::new(
            TraceId::from_bytes(self.trace_id),
            SpanId::from_bytes(self.span_id),
            TraceFlags::default().with_sampled(self.sampled),
            remote,
            TraceState::default(),
        )
    }
}

/// Bytes in lower-case hex.
pub(crate) struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// `N` bytes of lower-case hex, no more and no less.
fn unhex<const N: usize>(text: &str) -> Result<[u8; N], NotATraceparent> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Ok(c - b'0'),
        b'a'..=b'f' => Ok(c - b'a' + 10),
        _ => Err(NotATraceparent),
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return Err(NotATraceparent);
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn reads_what_it_writes() {
        for flags in ["00", "01"] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            assert_eq!(text.parse::<TraceContext>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_later_version_may_say_more() {
        let context: TraceContext = format!("01-{TRACE}-{SPAN}-03-more").parse().unwrap();
        assert!(context.sampled);
    }

    #[test]
    fn rejects_everything_else() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{TRACE}-{}é-01", &SPAN[..14]),
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(NotATraceparent), "{text}");
        }
    }
}
