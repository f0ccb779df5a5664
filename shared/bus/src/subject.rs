//! Subjects: built and taken apart in one place, so that no token can break out of its position.
//!
//! | subject | carries |
//! | --- | --- |
//! | `in.<tenant>.<source>.<type...>` | CloudEvents from outside |
//! | `log.<tenant>.<service>` | log records of watched services |
//! | `sig.<tenant>.<run>.<call>` | framed output of an activity |
//! | `evt.<entity>.<verb>.<tenant>.<run>` | committed events |
//! | `live.<tenant>.<run>` | deltas and ticks, lost without harm |
//! | `dlq.<consumer>` | what could not be handled |
//! | `svc.<service>.<verb>` | request-reply |
//!
//! Builders never fail. A token keeps ASCII letters, digits, `-` and `_`; every other byte becomes `%XX`, and an empty
//! token becomes a lone `%`, so that any text makes exactly one token and can be read back.

use std::fmt::{self, Display, Write as _};

/// A subject taken apart, without the namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// `in.<tenant>.<source>.<type...>`.
    Inbound {
        /// Who the event belongs to. The subject says so, not the event's headers.
        tenant: String,
        /// The publishing system.
        source: String,
        /// The event type, dots and all.
        event_type: String,
    },
    /// `log.<tenant>.<service>`.
    Log {
        /// Whose service it is.
        tenant: String,
        /// The watched service.
        service: String,
    },
    /// `sig.<tenant>.<run>.<call>`.
    Signal {
        /// Whose run it is.
        tenant: String,
        /// The run.
        run: String,
        /// The tool call whose output this is.
        call: String,
    },
    /// `evt.<entity>.<verb>.<tenant>.<run>`.
    Event {
        /// First half of the event type, as in `run`.
        entity: String,
        /// Second half of the event type, as in `runnable`.
        verb: String,
        /// Whose run it is.
        tenant: String,
        /// The run.
        run: String,
    },
    /// `live.<tenant>.<run>`.
    Live {
        /// Whose run it is.
        tenant: String,
        /// The run.
        run: String,
    },
    /// `dlq.<consumer>`.
    Dlq {
        /// The consumer that gave up.
        consumer: String,
    },
    /// `svc.<service>.<verb>`.
    Service {
        /// The service that answers.
        service: String,
        /// What it is asked for.
        verb: String,
    },
}

/// The text is no subject of this system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{subject}` is not a subject of this system: {reason}")]
pub struct InvalidSubject {
    /// The text, without the namespace.
    pub subject: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// `in.<tenant>.<source>.<type...>`. The dots of the type stay, each part of it is escaped.
pub fn in_(tenant: impl Display, source: impl Display, event_type: impl Display) -> String {
    let mut subject = join("in", &[&tenant, &source]);
    for part in event_type.to_string().split('.') {
        subject.push('.');
        push_token(&mut subject, part);
    }
    subject
}

/// `log.<tenant>.<service>`.
pub fn log(tenant: impl Display, service: impl Display) -> String {
    join("log", &[&tenant, &service])
}

/// `sig.<tenant>.<run>.<call>`.
pub fn sig(tenant: impl Display, run: impl Display, call: impl Display) -> String {
    join("sig", &[&tenant, &run, &call])
}

/// `evt.<entity>.<verb>.<tenant>.<run>`, with the event type as in `run.runnable`.
pub fn evt(event_type: &str, tenant: impl Display, run: impl Display) -> String {
    let (entity, verb) = event_type.split_once('.').unwrap_or((event_type, ""));
    join("evt", &[&entity, &verb, &tenant, &run])
}

/// `live.<tenant>.<run>`.
pub fn live(tenant: impl Display, run: impl Display) -> String {
    join("live", &[&tenant, &run])
}

/// `dlq.<consumer>`.
pub fn dlq(consumer: impl Display) -> String {
    join("dlq", &[&consumer])
}

/// `svc.<service>.<verb>`.
pub fn svc(service: impl Display, verb: impl Display) -> String {
    join("svc", &[&service, &verb])
}

/// Every committed event of one type: `evt.<entity>.<verb>.>`.
pub fn evt_of_type(event_type: &str) -> String {
    let (entity, verb) = event_type.split_once('.').unwrap_or((event_type, ""));
    join("evt", &[&entity, &verb]) + ".>"
}

/// Every committed event of one run: `evt.*.*.<tenant>.<run>`.
pub fn evt_of_run(tenant: impl Display, run: impl Display) -> String {
    join("evt.*.*", &[&tenant, &run])
}

/// Every committed event of one tenant: `evt.*.*.<tenant>.*`.
pub fn evt_of_tenant(tenant: impl Display) -> String {
    join("evt.*.*", &[&tenant]) + ".*"
}

/// The text as exactly one subject token.
pub fn token(text: &str) -> String {
    let mut token = String::with_capacity(text.len());
    push_token(&mut token, text);
    token
}

/// The text behind a token made by [`token`].
pub fn untoken(token: &str) -> Result<String, InvalidSubject> {
    let invalid = |reason| InvalidSubject { subject: token.to_owned(), reason };
    match token {
        "" => return Err(invalid("a token is empty")),
        "%" => return Ok(String::new()),
        _ => {}
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let [high, low, tail @ ..] = rest else { return Err(invalid("a `%` lacks its two hex digits")) };
                let (Some(high), Some(low)) = (hex(*high), hex(*low)) else {
                    return Err(invalid("a `%` lacks its two hex digits"));
                };
                bytes.push(high << 4 | low);
                rest = tail;
            }
            b'*' | b'>' => return Err(invalid("a token is or holds a wildcard")),
            byte if byte.is_ascii_whitespace() || byte.is_ascii_control() => {
                return Err(invalid("a token holds white space or a control character"));
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| invalid("a token is not UTF-8 once unescaped"))
}

impl Subject {
    /// Takes a subject apart; wildcards, empty tokens and unknown shapes are refused.
    pub fn parse(subject: &str) -> Result<Self, InvalidSubject> {
        let invalid = |reason| InvalidSubject { subject: subject.to_owned(), reason };
        let (kind, rest) = subject.split_once('.').ok_or_else(|| invalid("it has a single token"))?;
        let tokens = rest
            .split('.')
            .map(|part| untoken(part).map_err(|error| invalid(error.reason)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut tokens = tokens.into_iter();
        let mut next = || tokens.next().ok_or_else(|| invalid("it has too few tokens"));
        let parsed = match kind {
            "in" => {
                let (tenant, source, first) = (next()?, next()?, next()?);
                let event_type = tokens.by_ref().fold(first, |joined, part| joined + "." + &part);
                Self::Inbound { tenant, source, event_type }
            }
            "log" => Self::Log { tenant: next()?, service: next()? },
            "sig" => Self::Signal { tenant: next()?, run: next()?, call: next()? },
            "evt" => Self::Event { entity: next()?, verb: next()?, tenant: next()?, run: next()? },
            "live" => Self::Live { tenant: next()?, run: next()? },
            "dlq" => Self::Dlq { consumer: next()? },
            "svc" => Self::Service { service: next()?, verb: next()? },
            _ => return Err(invalid("its first token is unknown")),
        };
        if tokens.next().is_some() { Err(invalid("it has too many tokens")) } else { Ok(parsed) }
    }
}

impl Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Self::Inbound { tenant, source, event_type } => in_(tenant, source, event_type),
            Self::Log { tenant, service } => log(tenant, service),
            Self::Signal { tenant, run, call } => sig(tenant, run, call),
            Self::Event { entity, verb, tenant, run } => join("evt", &[entity, verb, tenant, run]),
            Self::Live { tenant, run } => live(tenant, run),
            Self::Dlq { consumer } => dlq(consumer),
            Self::Service { service, verb } => svc(service, verb),
        })
    }
}

impl std::str::FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(subject: &str) -> Result<Self, Self::Err> {
        Self::parse(subject)
    }
}

/// Whether a subject falls under a filter, by the server's rules for `*` and `>`.
pub(crate) fn matches(filter: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for want in filter.split('.') {
        match (want, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (want, Some(have)) if want == have => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

fn join(head: &str, parts: &[&dyn Display]) -> String {
    let mut subject = String::with_capacity(96);
    subject.push_str(head);
    for part in parts {
        subject.push('.');
        push_token(&mut subject, &part.to_string());
    }
    subject
}

fn push_token(subject: &mut String, text: &str) {
    if text.is_empty() {
        subject.push('%');
    }
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            subject.push(char::from(byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(subject, "%{byte:02X}");
        }
    }
}

/// Undoes `%XX`; a `%` without two hex digits stands for itself. `None` if the outcome is not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if let (b'%', [high, low, tail @ ..]) = (first, rest)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            bytes.push(high << 4 | low);
            rest = tail;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn builds_the_table() {
        assert_eq!(in_("default", "github", "com.github.push"), "in.default.github.com.github.push");
        assert_eq!(log("default", "checkout"), "log.default.checkout");
        assert_eq!(sig("default", "r1", "c1"), "sig.default.r1.c1");
        assert_eq!(evt("run.runnable", "default", "r1"), "evt.run.runnable.default.r1");
        assert_eq!(evt("tool.in_doubt", "default", "r1"), "evt.tool.in_doubt.default.r1");
        assert_eq!(live("default", "r1"), "live.default.r1");
        assert_eq!(dlq("planner"), "dlq.planner");
        assert_eq!(svc("approval", "decide"), "svc.approval.decide");
        assert_eq!(evt_of_type("run.runnable"), "evt.run.runnable.>");
        assert_eq!(evt_of_run("default", "r1"), "evt.*.*.default.r1");
        assert_eq!(evt_of_tenant("default"), "evt.*.*.default.*");
    }

    #[test]
    fn a_token_never_breaks_out() {
        assert_eq!(in_("a.b", "*", ">"), "in.a%2Eb.%2A.%3E");
        assert_eq!(log("", " "), "log.%.%20");
        assert_eq!(in_("t", "s", "a..b"), "in.t.s.a.%.b");
    }

    #[test]
    fn refuses_what_is_not_ours() {
        for bad in [
            "",
            "evt",
            "evt.a.b.c",
            "evt.a.b.c.d.e",
            "evt.*.b.c.d",
            "in.t.s",
            "in.t..x",
            "x.y",
            "log.a.%2",
            "log.a.%FF",
            "log.a.b\n",
        ] {
            assert!(Subject::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn matches_like_the_server() {
        assert!(matches("evt.>", "evt.a.b"));
        assert!(matches("evt.*.b", "evt.a.b"));
        assert!(!matches("evt.>", "evt"));
        assert!(!matches("evt.*", "evt.a.b"));
        assert!(!matches("evt.a.b", "evt.a"));
    }

    proptest! {
        #[test]
        fn every_text_reads_back(tenant in ".*", source in ".*", kind in ".*") {
            let subject = in_(&tenant, &source, &kind);
            prop_assert!(subject.is_ascii() && !subject.contains([' ', '*', '>']));
            prop_assert_eq!(Subject::parse(&subject).unwrap(), Subject::Inbound { tenant, source, event_type: kind });
        }

        #[test]
        fn display_is_the_inverse_of_parse(text in "[a-z%.*>A-F0-9]{0,40}") {
            if let Ok(subject) = Subject::parse(&format!("evt.{text}")) {
                prop_assert_eq!(Subject::parse(&subject.to_string()).unwrap(), subject);
            }
        }
    }
}
