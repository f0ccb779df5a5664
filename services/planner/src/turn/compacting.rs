//! History becomes a summary, or a run begins anew with a handoff.

use std::sync::Arc;

use kernel::{Command, RunState, Trust, budget::Usage, command::Compact};

use super::{
    TurnError, Turns,
    steering::{Before, Steered},
};
use crate::{
    compaction::{self, Handoff, Material, Why, Written},
    models::{Prompt, TurnKind, router::CallSite},
    tokens::Counter,
    verbs::Draft,
};

/// Most tokens of a summary.
const SUMMARY_TOKENS: u64 = 2_048;

impl Turns {
    /// Makes a summary of what went before.
    pub(super) async fn compact(
        &self,
        before: &Before<'_>,
        state: Arc<RunState>,
        why: Why,
    ) -> Result<Steered, TurnError> {
        let Some(material) = Material::of(&state, why) else { return Ok(Steered::Ask(state)) };
        let asked = if compaction::asks_model(before.agent, why) {
            let Some(asked) = before.interrupt.or_ended(self.ask_for_summary(before, &state, &material)).await else {
                return Ok(Steered::Over("aborted"));
            };
            asked
        } else {
            (None, Usage::default())
        };
        let (written, usage) = asked;
        let (summary, strategy) = match &written {
            Some((written, model)) => (material.summary(written, &format!("model:{model}")), "model"),
            None => (material.extract(), "extract"),
        };
        let (handoff, not_reset) = if why.is_reset() {
            let written = written.map(|(written, _)| written).unwrap_or_else(|| of_lines(&summary.body.text));
            match self.store_handoff(&state, &written, summary.body.trust).await {
                Ok(stored) => (Some(stored), None),
                Err(problem) => (None, Some(problem)),
            }
        } else {
            (None, None)
        };
        let (before_tokens, after_tokens) = (material.tokens(), Counter::ESTIMATE.count(&summary.body.text));
        // Nothing at all is shorter, too, but stands for nothing.
        let says_something = !summary.body.text.trim().is_empty();
        let shrinks = (says_something && after_tokens < before_tokens) || handoff.is_some();
        metrics::counter!("planner_compactions_total", "strategy" => strategy, "shrinks" => if shrinks { "yes" } else { "no" })
            .increment(1);
        let compact = Compact {
            turn_id: before.turn_id,
            strategy: strategy.to_owned(),
            reason: why.as_str().to_owned(),
            before_tokens,
            after_tokens,
            usage,
            kept: state.standing(),
            summary: shrinks.then_some(summary),
            handoff,
            not_reset,
        };
        drop(material);
        let command = Command::Compact(Box::new(compact));
        Ok(self.advance(before, state, command, Some(usage)).await?.map_or(Steered::Over("superseded"), Steered::Ask))
    }

    /// A summary in a model's words, if it writes one, and what asking cost.
    async fn ask_for_summary(
        &self,
        before: &Before<'_>,
        state: &RunState,
        material: &Material<'_>,
    ) -> (Option<(Written, String)>, Usage) {
        let declaration = compaction::declaration();
        let prompt = Prompt {
            system: compaction::INSTRUCTIONS.to_owned(),
            user: material.prompt(state),
            tool_tokens: Counter::ESTIMATE.declarations(std::slice::from_ref(&declaration)),
            tools: Arc::new([declaration]),
            max_output_tokens: SUMMARY_TOKENS.min(self.limits.output_tokens),
            run_id: state.run_id,
            turn: before.number,
            ask: 0,
        };
        let site = CallSite::of(state, before.turn_id, before.traceparent, TurnKind::Routine);
        match self.models.answer(before.agent, &prompt, &site, &self.tracer, &|_| {}).await {
            Ok(answered) => {
                let written = compaction::read(&answered.answer).map(|written| (written, answered.model));
                (written, answered.answer.usage)
            }
            Err(unanswered) => {
                tracing::info!(run_id = %state.run_id, error = %unanswered.error, "no model wrote a summary: titles are taken");
                (None, unanswered.usage)
            }
        }
    }

    /// Keeps the handoff as an artifact, or says why it could not be kept.
    async fn store_handoff(
        &self,
        state: &RunState,
        written: &Written,
        trust: Trust,
    ) -> Result<kernel::call::ArtifactRef, String> {
        let stored = match serde_json::to_string_pretty(&Handoff::new(state, written)) {
            Ok(content) => {
                let draft =
                    Draft { name: "handoff.json".to_owned(), content, media_type: "application/json".to_owned() };
                self.artifacts.store(state, &draft, trust).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        stored.map_err(|error| {
            metrics::counter!("planner_handoffs_failed_total").increment(1);
            let failed = state.resets_failed.saturating_add(1);
            tracing::warn!(run_id = %state.run_id, error, failed, "a handoff was not stored: history is summarised instead");
            format!("the handoff was not stored: {error}")
        })
    }
}

/// What was found, out of a summary that is made of titles.
fn of_lines(text: &str) -> Written {
    let facts = text.lines().map(|line| line.trim_start_matches("- ").to_owned()).collect();
    Written { facts, ..Written::default() }
}
