//! Identities: one type each, so that a call can never be taken for a turn.
//!
//! Ids minted at a door are UUIDv7 (they sort by time). Ids that the kernel itself needs are *derived* (UUIDv5 over the
//! run and a name), since `decide` has no randomness: two instances that decide the same thing name it the same.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Number of an event within its run, from 1. 0 is "before the first".
pub type Seq = u64;

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind}: {remedy}")]
pub struct IdError {
    /// What was wanted, such as "run id".
    pub kind: &'static str,
    /// What was given (cut to 80 characters).
    pub text: String,
    /// What would be accepted.
    pub remedy: &'static str,
}

impl IdError {
    fn new(kind: &'static str, text: &str, remedy: &'static str) -> Self {
        Self { kind, text: text.chars().take(80).collect(), remedy }
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new one from a UUIDv7 made by the caller's clock and randomness.
            #[must_use]
            pub const fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// A fresh UUIDv7. Reads the clock and randomness: for doors and tests, never inside `decide`.
            #[must_use]
            pub fn mint() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id that `name` has within `run`, the same for whoever derives it (UUIDv5).
            #[must_use]
            pub fn derive(run: RunId, name: &str) -> Self {
                Self(Uuid::new_v5(&run.0, name.as_bytes()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::parse_str(text).map(Self).map_err(|_| IdError::new($kind, text, "give a UUID"))
            }
        }
    };
}

uuid_id!(
    /// One execution of a task. Its 16 bytes are also the run's trace id.
    RunId, "run id");
uuid_id!(
    /// One activation of the planner within a run.
    TurnId, "turn id");
uuid_id!(
    /// One requested tool execution.
    CallId, "call id");
uuid_id!(
    /// A durable contract about what may wake a run.
    WaitId, "wait id");
uuid_id!(
    /// A point in time at which something of a run is due.
    TimerId, "timer id");
uuid_id!(
    /// A question to a person.
    ApprovalId, "approval id");
uuid_id!(
    /// A person's yes to all calls of one shape.
    StandingId, "standing approval id");
uuid_id!(
    /// A named, versioned content.
    ArtifactId, "artifact id");
uuid_id!(
    /// An ordered set of runs that share history with one user.
    ConversationId, "conversation id");
uuid_id!(
    /// Something that somebody did to a watched service.
    ActionId, "action id");

uuid_id!(
    /// Something that outlives the run that wrote it.
    MemoryId, "memory id");

impl RunId {
    /// The W3C trace id of everything that this run causes (32 hex digits).
    #[must_use]
    pub fn trace_id(self) -> String {
        self.0.simple().to_string()
    }

    /// The span id of the run's root span `invoke_agent` (8 bytes), the same for whoever derives it.
    #[must_use]
    pub fn root_span_id(self) -> [u8; 8] {
        let mut span = [0; 8];
        span.copy_from_slice(&Uuid::new_v5(&self.0, b"root").as_bytes()[..8]);
        span
    }
}

/// Who a run belongs to: `[a-z0-9][a-z0-9-]{0,62}`, so that it fits a NATS token, a Redis key and a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(String);

impl TenantId {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TenantId {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TenantId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let fits = (1..=63).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !text.starts_with('-');
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::new("tenant", text, "1 to 63 of a-z, 0-9 and `-`, not first"))
        }
    }
}

impl TryFrom<String> for TenantId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<TenantId> for String {
    fn from(tenant: TenantId) -> Self {
        tenant.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_agree_and_differ_by_name_and_run() {
        let run = RunId::mint();
        assert_eq!(TurnId::derive(run, "turn/1"), TurnId::derive(run, "turn/1"));
        assert_ne!(TurnId::derive(run, "turn/1"), TurnId::derive(run, "turn/2"));
        assert_ne!(TurnId::derive(run, "turn/1"), TurnId::derive(RunId::mint(), "turn/1"));
    }

    #[test]
    fn a_bad_tenant_is_named() {
        let error = "Acme.Corp".parse::<TenantId>().unwrap_err();
        assert!(error.to_string().contains("Acme.Corp"), "{error}");
        assert!("".parse::<TenantId>().is_err());
        assert!("-a".parse::<TenantId>().is_err());
        assert_eq!("acme-1".parse::<TenantId>().unwrap().as_str(), "acme-1");
    }
}
