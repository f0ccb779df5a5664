//! What outlives a run: what its turns remember for later runs, and which skills they opened.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ids::{MemoryId, TenantId},
    trust::Block,
};

/// Most memories that one turn may change.
pub const MAX_MEMORIES: usize = 16;
/// Most bytes of the text of a memory.
pub const MEMORY_BYTES: usize = 4096;
/// Most bytes of the key of a memory.
pub const MEMORY_KEY_BYTES: usize = 128;
/// Most skills that a run may open.
pub const MAX_SKILLS: usize = 16;

/// Who else sees a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScope {
    /// Every run of the tenant.
    Tenant,
    /// The runs of the same agent.
    Agent,
    /// The runs for the same user.
    User,
}

impl MemoryScope {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Agent => "agent",
            Self::User => "user",
        }
    }
}

impl std::str::FromStr for MemoryScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tenant" => Ok(Self::Tenant),
            "agent" => Ok(Self::Agent),
            "user" => Ok(Self::User),
            other => Err(format!("`{}` is no scope: give tenant, agent or user", crate::excerpt(other, 40))),
        }
    }
}

/// The place of a memory: what is written there again replaces it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct MemoryPlace {
    /// Who else sees it.
    pub scope: MemoryScope,
    /// Name of the agent or of the user; empty for the tenant's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// What it is about, in a word or a few.
    pub key: String,
}

impl MemoryPlace {
    /// Its id, the same for whoever names the place.
    #[must_use]
    pub fn id(&self, tenant: &TenantId) -> MemoryId {
        // No part holds a zero byte: two places never make the same name.
        let name = [tenant.as_str(), self.scope.as_str(), &self.owner, &self.key].join("\0");
        MemoryId(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
    }
}

/// What a turn wants to remember, or to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryChange {
    /// Keep this, in place of what was there.
    Write {
        /// Where.
        place: MemoryPlace,
        /// What, with its trust.
        block: Block,
        /// When it is forgotten by itself.
        expires_at: Option<Timestamp>,
    },
    /// Forget what is there.
    Delete {
        /// Where.
        place: MemoryPlace,
    },
}

impl MemoryChange {
    /// What it is about.
    #[must_use]
    pub const fn place(&self) -> &MemoryPlace {
        match self {
            Self::Write { place, .. } | Self::Delete { place } => place,
        }
    }
}

/// A skill as it was when a run opened it: what it says by then is what it says for the rest of that run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkillRef {
    /// Its name.
    pub name: String,
    /// Digest of all its files.
    pub digest: String,
}
