//! What outlives a turn or the run itself: memories, skills, artifacts.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    call::ArtifactRef,
    ids::{MemoryId, TurnId},
    memory::{MemoryPlace, SkillRef},
    trust::Block,
};

content! {
    /// Content of `memory.written`.
    MemoryWritten {
        /// Which memory: always the same for its place.
        memory_id: MemoryId,
        /// Where it is kept.
        place: MemoryPlace,
        /// What is remembered, with its trust.
        block: Block,
        /// When it is forgotten by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        expires_at: Option<Timestamp>,
        /// The turn that wrote it.
        turn_id: TurnId,
    }
    /// Content of `memory.deleted`.
    MemoryDeleted {
        /// Which memory.
        memory_id: MemoryId,
        /// Where it was kept.
        place: MemoryPlace,
        /// The turn that wants it gone.
        turn_id: TurnId,
    }
    /// Content of `skill.opened`.
    SkillOpened {
        /// The skill as it was then.
        skill: SkillRef,
        /// The turn that opened it.
        turn_id: TurnId,
    }
    /// Content of `artifact.created`.
    ArtifactCreated {
        /// The artifact.
        artifact: ArtifactRef,
    }
    /// Content of `artifact.updated`.
    ArtifactUpdated {
        /// The artifact at its new version.
        artifact: ArtifactRef,
    }
}
