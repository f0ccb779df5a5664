//! What stands beside a turn's own run: what is recalled, which skills are open, what is remembered of it at its end.

use kernel::{
    RunState, Timestamp,
    agent::AgentSpec,
    command::{EndRequest, TurnOutcome},
    memory::{MAX_MEMORIES, SkillRef},
};

use super::{Consumed, Open, Tried, TurnError, Turns, recording::refused};
use crate::{
    candidate::{self, Candidate, Reading},
    models::{Prompt, TurnKind, router::CallSite},
    skills::SkillAsked,
    slice::beside::Beside,
    toolbox::Toolbox,
    verbs::Verb,
};

/// How often a turn may ask to read before it acts.
const READS: usize = 4;
/// Most tokens of what is said at the end about what to remember.
const EXTRACT_TOKENS: u64 = 1_024;

/// What stands beside the run of a turn.
#[derive(Default)]
pub(super) struct Around {
    recalled: Vec<Beside>,
    shelf: Vec<Beside>,
    /// Skills that this turn has opened.
    pub(super) opened: Vec<SkillRef>,
    asked: Vec<SkillAsked>,
    reads: usize,
}

impl Around {
    pub(super) fn all(&self) -> Vec<Beside> {
        self.shelf.iter().chain(&self.recalled).cloned().collect()
    }
}

impl Turns {
    /// What a turn begins with beside its run.
    pub(super) async fn around(&self, state: &RunState, agent: &AgentSpec, remembers: bool) -> Around {
        let (recalled, shelf) =
            futures::join!(self.recaller.before(state, agent, remembers), self.shelf.before(state, agent, &[], &[]));
        Around { recalled, shelf, ..Around::default() }
    }

    /// Opens the skills that an answer wants. If that is all that it wants, it is shown them and asked again.
    pub(super) async fn open_skills(
        &self,
        open: &mut Open<'_>,
        candidate: &Candidate,
    ) -> Result<Option<Tried>, TurnError> {
        if candidate.skills.is_empty() {
            return Ok(None);
        }
        let only_reads = candidate.only_reads();
        if only_reads && open.around.reads == READS {
            let problem = "you have read enough for one turn: act on it, or wait".to_owned();
            return Ok(Some(Tried::Problems(vec![problem])));
        }
        let mut problems = Vec::new();
        for asked in &candidate.skills {
            match self.shelf.open(&open.state, open.agent, &asked.name).await? {
                Ok(skill) => {
                    let is_open = open.state.skills.contains_key(&skill.name) || open.around.opened.contains(&skill);
                    if !is_open {
                        open.around.opened.push(skill);
                    }
                    if !open.around.asked.contains(asked) {
                        open.around.asked.push(asked.clone());
                    }
                }
                Err(problem) => problems.push(format!("`use_skill`: {problem}")),
            }
        }
        if !problems.is_empty() {
            return Ok(Some(Tried::Problems(problems)));
        }
        if !only_reads {
            return Ok(None);
        }
        let around = &mut open.around;
        around.reads += 1;
        around.shelf = self.shelf.before(&open.state, open.agent, &around.opened, &around.asked).await;
        open.slice = self.slice(&open.state, open.agent, (&open.toolbox, open.counter), &open.around);
        Ok(Some(Tried::Read))
    }

    /// Asks what of a run that reaches its end later runs should remember, if its agent wants that. It rides in the commit of
    /// the end. What does not come of it is not worth failing for.
    pub(super) async fn extract(&self, open: &Open<'_>, outcome: &mut TurnOutcome, consumed: &mut Consumed) {
        let ends = matches!(&outcome.end, Some(EndRequest::Complete(_)));
        if !ends || !open.agent.memory.extract || !outcome.memories.is_empty() || open.state.simulated {
            return;
        }
        let Some(EndRequest::Complete(summary)) = &outcome.end else { return };
        let Ok(toolbox) = Toolbox::only(&[Verb::Remember]) else { return };
        let prompt = Prompt {
            system: open.slice.system.clone(),
            user: open.slice.user_at_end(&summary.text),
            tools: toolbox.declarations(),
            tool_tokens: toolbox.tokens(open.counter),
            max_output_tokens: EXTRACT_TOKENS,
            run_id: open.state.run_id,
            turn: open.number,
            // After all that a turn can ask before its end.
            ask: u32::MAX,
        };
        let site = CallSite::of(&open.state, open.turn_id, open.traceparent.as_deref(), TurnKind::Routine);
        let asked = self.models.answer(open.agent, &prompt, &site, &self.tracer, &|_| {}).await;
        let answered = match asked {
            Ok(answered) => answered,
            Err(unanswered) => {
                tracing::info!(run_id = %open.state.run_id, error = %unanswered, "nothing is remembered of a run");
                consumed.spend(&unanswered.usage);
                outcome.usage = consumed.usage;
                return;
            }
        };
        // Should this end not be committed, it was paid for all the same.
        consumed.spend(&answered.answer.usage);
        outcome.usage = consumed.usage;
        outcome.model_ms = outcome.model_ms.saturating_add(answered.millis);
        let read = candidate::read(
            &answered.answer,
            &Reading {
                state: &open.state,
                agent: open.agent,
                toolbox: &toolbox,
                slice: &open.slice,
                turn_id: open.turn_id,
                now: Timestamp::now(),
                model: &answered.model,
                usage: answered.answer.usage,
                model_ms: answered.millis,
                failures: &[],
            },
        );
        let Ok(candidate) = read else { return };
        outcome.memories = candidate.outcome.memories;
        outcome.memories.truncate(MAX_MEMORIES);
        if refused(&open.state, outcome).is_some() {
            // A memory that the rules refuse must not keep the run from its end.
            outcome.memories.clear();
        }
    }
}
