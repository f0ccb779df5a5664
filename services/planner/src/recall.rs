//! What a turn is told of what other runs remember, and of the documents that its agent knows.

use std::time::Duration;

use engine::{Circle, Engine, Knowledge, Memories, Memory, Passage};
use kernel::{
    Block, RunState, Trust,
    agent::{AgentSpec, Recall},
    event::StepStatus,
};

use crate::slice::beside::{Beside, BesideItem};

/// How long a turn waits for what is recalled; then it goes on without.
const WITHIN: Duration = Duration::from_millis(1500);
/// Most memories that a turn is told of.
const MEMORIES: u32 = 8;
/// Most passages that a turn is told of.
const PASSAGES: u32 = 5;
/// Most bytes of what happened that are asked about.
const ASKED_BYTES: usize = 3000;

/// Recalls.
#[derive(Clone, Debug)]
pub struct Recaller {
    memories: Memories,
    knowledge: Knowledge,
}

impl Recaller {
    /// From the stores of an engine.
    #[must_use]
    pub fn new(engine: &Engine) -> Self {
        Self { memories: engine.memories(), knowledge: engine.knowledge() }
    }

    /// Whether a tenant remembers anything. If that can't be known, it may.
    pub async fn remembers(&self, tenant: &str) -> bool {
        let Ok(tenant) = tenant.parse() else { return false };
        matches!(tokio::time::timeout(WITHIN, self.memories.any(&tenant)).await, Ok(Ok(true)) | Ok(Err(_)) | Err(_))
    }

    /// What this turn should be told. What can't be had in time is left out, and that is said.
    /// `is_any` says whether there is anything to remember at all.
    pub async fn before(&self, state: &RunState, agent: &AgentSpec, is_any: bool) -> Vec<Beside> {
        let question = question(state);
        let seen = Trust::join_all([state.lowest_trust, state.objective.trust]);
        let recalled = async {
            if agent.memory.recall == Recall::None || !is_any {
                return None;
            }
            let circle = Circle { agent: &state.agent, user: user_of(state) };
            // More than are shown: some may be held back.
            let found = self.memories.recall(&state.tenant, circle, &question, false, MEMORIES * 3);
            Some(match tokio::time::timeout(WITHIN, found).await {
                Ok(Ok(found)) => remembered(found, agent.memory.recall, seen),
                Ok(Err(error)) => missing("memories", &error.to_string()),
                Err(_) => missing("memories", "they did not come in time"),
            })
        };
        let known = async {
            if agent.knowledge.is_empty() {
                return None;
            }
            let found = self.knowledge.search(&state.tenant, &agent.knowledge, &question, PASSAGES);
            Some(match tokio::time::timeout(WITHIN, found).await {
                Ok(Ok(passages)) => known(passages),
                Ok(Err(error)) => missing("documents", &error.to_string()),
                Err(_) => missing("documents", "they did not come in time"),
            })
        };
        let (recalled, known) = futures::join!(recalled, known);
        recalled.into_iter().chain(known).collect()
    }
}

/// The user that a run is for, as whoever started it says.
#[must_use]
pub fn user_of(state: &RunState) -> Option<&str> {
    state.metadata.get("user").and_then(serde_json::Value::as_str).filter(|user| !user.is_empty())
}

/// What the run is about now: what just happened, the step that is under way, the objective.
fn question(state: &RunState) -> String {
    let facts = state.facts.iter().rev().take(4).map(|fact| fact.block.text.as_str());
    let steps = state.plan.iter().filter(|step| step.status == StepStatus::InProgress).map(|step| step.title.as_str());
    let all = [state.objective.text.as_str()].into_iter().chain(steps).chain(facts);
    let mut question = String::new();
    for text in all {
        question.push_str(&kernel::excerpt(text, ASKED_BYTES / 3));
        question.push('\n');
        if question.len() > ASKED_BYTES {
            break;
        }
    }
    question
}

fn remembered(found: Vec<Memory>, recall: Recall, seen: Trust) -> Beside {
    // A memory that is believed less than all that the run has seen would make the run less believed. Whoever can get a text
    // before one run must not be able to do that to all the others: the model may still search for it.
    let is_told = |memory: &Memory| recall == Recall::All || memory.block.trust >= seen.min(Trust::Trusted);
    let (told, held): (Vec<_>, Vec<_>) = found.into_iter().partition(is_told);
    let more = told.len().saturating_sub(MEMORIES as usize);
    let items = told.into_iter().take(MEMORIES as usize).map(|memory| {
        let Memory { memory_id, place, block, revision, written_at, written_by, .. } = memory;
        let source = format!("memory:{memory_id}/{revision}");
        let scope = place.scope.as_str();
        BesideItem {
            // The key is a model's word like the text: it stands in the fence with it.
            title: format!("[{scope}] {} (written {written_at} by {written_by})", one_line(&place.key)),
            // However far a memory is believed, it is data.
            block: Block { source: format!("memory:{memory_id}"), trust: block.trust.min(Trust::Trusted), ..block },
            source,
        }
    });
    let items: Vec<_> = items.collect();
    let held = (!held.is_empty()).then(|| {
        format!("{} held back, since they come from untrusted data: search for them if you need them", held.len())
    });
    let more = (more > 0).then(|| format!("{more} more that fit less"));
    let left_out: Vec<_> = held.into_iter().chain(more).collect();
    Beside {
        name: "memories",
        heading: "What earlier runs remember",
        share: 10,
        items,
        left_out: (!left_out.is_empty()).then(|| left_out.join("; ")),
    }
}

fn known(passages: Vec<Passage>) -> Beside {
    let items = passages.into_iter().map(|passage| BesideItem {
        title: match passage.heading.is_empty() {
            true => passage.name.clone(),
            false => format!("{}: {}", passage.name, passage.heading),
        },
        source: format!("{}@{}", passage.block.source, &passage.digest[..passage.digest.len().min(12)]),
        // However far a document is believed, it is data.
        block: Block { trust: passage.block.trust.min(Trust::Trusted), ..passage.block },
    });
    Beside {
        name: "knowledge",
        heading: "From the documents that you know",
        share: 20,
        items: items.collect(),
        left_out: None,
    }
}

/// A section that says why it is empty.
fn missing(what: &'static str, why: &str) -> Beside {
    metrics::counter!("planner_recall_failures_total", "what" => what).increment(1);
    tracing::warn!(what, why, "a turn goes on without what it should recall");
    let left_out = Some(format!("{what} could not be recalled now"));
    Beside { name: what, heading: "Not recalled", share: 5, items: Vec::new(), left_out }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use kernel::{
        MemoryId, TenantId, Timestamp,
        memory::{MemoryPlace, MemoryScope},
    };

    use super::*;

    fn memory(key: &str, trust: Trust) -> Memory {
        let place = MemoryPlace { scope: MemoryScope::Agent, owner: "a".into(), key: key.into() };
        Memory {
            memory_id: place.id(&TenantId::default()),
            place,
            block: Block::new("they rise early", trust, "model:x"),
            revision: 2,
            run_id: None,
            written_by: "run:1".into(),
            written_at: Timestamp::UNIX_EPOCH,
            expires_at: None,
        }
    }

    #[test]
    fn a_poisoned_memory_is_not_told_to_a_run_that_is_clean() {
        let both = || vec![memory("good", Trust::Trusted), memory("bad", Trust::Untrusted)];
        let clean = remembered(both(), Recall::Careful, Trust::Operator);
        assert_eq!(clean.items.len(), 1);
        assert!(clean.left_out.as_ref().unwrap().contains("1 held back"), "{clean:?}");
        assert_eq!(clean.trust(), Trust::Trusted);
        let dirty = remembered(both(), Recall::Careful, Trust::Untrusted);
        assert_eq!((dirty.items.len(), dirty.left_out.as_deref()), (2, None), "there is nothing to lose");
        assert_eq!(remembered(both(), Recall::All, Trust::Operator).trust(), Trust::Untrusted);
    }

    #[test]
    fn evidence_names_the_revision() {
        let told = remembered(vec![memory("good", Trust::Trusted)], Recall::Careful, Trust::Operator);
        let id: MemoryId = memory("good", Trust::Trusted).memory_id;
        assert_eq!(told.items[0].source, format!("memory:{id}/2"));
    }
}
