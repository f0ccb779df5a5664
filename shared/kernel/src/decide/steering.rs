//! Keeping a run on its way: whether it is done, what it remembers, whether it goes in circles, and what happens at a limit.

use std::collections::BTreeSet;

use super::Decider;
use crate::{
    acceptance::{Check, CriterionVerdict, MAX_REFUSALS, Verification},
    budget::{AtLimit, LimitName},
    call::{Approval, ArtifactRef, Binding},
    command::{Compact, EndRequest, Judge, NoteDrift, TurnOutcome},
    context::SUMMARY_BYTES,
    event::{AcceptanceJudged, BudgetExceeded, ContextCompacted, ContextReset, DriftNoticed, Ending, Outcome, Rule},
    ids::ApprovalId,
    mutants::{Mutant, broken},
    rejection::Rejection,
    trust::{Block, Trust},
    units::{Duration, later},
};

/// How long an operator may take to say whether a run goes on that has reached a limit.
const LIMIT_EXPIRY: Duration = Duration::from_secs(24 * 3600);

impl Decider {
    /// What is wrong with how an outcome wants the run to be completed: with checked criteria, only if all of them are looked
    /// into, each by what its author named.
    pub(super) fn acceptance_problems(&self, outcome: &TurnOutcome) -> Vec<String> {
        let mut wanted: BTreeSet<u16> = self.state.checked_criteria().map(|(number, _)| number).collect();
        let Some(EndRequest::CompleteIf { checks, .. }) = &outcome.end else {
            let refused = self.may_complete(outcome) && !wanted.is_empty() && !broken(Mutant::CompletesUnchecked);
            let words = "the criteria of this run are checked before it is complete: call `complete`";
            return if refused { vec![words.to_owned()] } else { Vec::new() };
        };
        let mut problems = Vec::new();
        let mut named = BTreeSet::new();
        for asked in checks {
            named.extend(asked.call_id);
            let criterion = self.state.checked_criteria().find(|(number, _)| *number == asked.criterion);
            let fits = criterion.is_some_and(|(_, criterion)| looks_into(outcome, asked.call_id, &criterion.check));
            if !wanted.remove(&asked.criterion) || !fits {
                problems.push(format!("criterion {} is not looked into as it says", asked.criterion));
            }
        }
        problems.extend(wanted.iter().map(|number| format!("nothing looks into criterion {number}")));
        let spawned = outcome.spawns.iter().map(|spawn| spawn.call_id);
        let mut asked = outcome.calls.iter().map(|call| call.call_id).chain(spawned);
        if checks.is_empty() || asked.any(|call| !named.contains(&call)) {
            problems.push("`complete` cannot stand beside tool calls, waits or questions".to_owned());
        }
        problems
    }

    /// Whether an outcome may end the run with its objective reached: by saying so, or by words alone. What has come in since its
    /// slice was built may still keep the run from ending, but that is not to be relied on.
    fn may_complete(&self, outcome: &TurnOutcome) -> bool {
        let asks = !outcome.calls.is_empty() || !outcome.spawns.is_empty();
        let asks = asks || outcome.wait.is_some() || outcome.question.is_some();
        match &outcome.end {
            Some(EndRequest::Complete(_)) => true,
            Some(_) => false,
            None => outcome.text.is_some() && !asks && !self.sleeps_on_something(),
        }
    }

    /// Says what came of looking into the criteria. The run ends if all of them hold; if not, the model is told, or has said it
    /// once too often.
    pub(super) fn judge(&mut self, judge: &Judge) -> Result<(), Rejection> {
        if !self.state.is_open_turn(judge.turn_id) {
            return Err(Rejection::StaleTurn(judge.turn_id));
        }
        let ready = self.state.verification.clone().filter(Verification::is_ready);
        let verification = ready.ok_or_else(|| invalid("nothing that was looked into is to be judged"))?;
        if let Some(problem) = verdict_problem(&verification, &judge.verdicts) {
            return Err(invalid(problem));
        }
        let most = self.state.lowest_trust;
        let believed = |verdict: &CriterionVerdict| {
            let mut verdict = verdict.clone();
            verdict.evidence.trust = verdict.evidence.trust.join(most);
            verdict.evidence = verdict.evidence.excerpt(crate::acceptance::EVIDENCE_BYTES);
            verdict
        };
        let verdicts: Vec<_> = judge.verdicts.iter().map(believed).collect();
        let holds = verdicts.iter().all(|verdict| verdict.passed);
        let accepted = holds && !self.has_fresh_message(verification.asked);
        if accepted {
            judge.artifacts.iter().for_each(|artifact| self.keep_artifact(&believed_artifact(artifact, most)));
        }
        let wake = self.state.turn.as_ref().and_then(|turn| turn.wake);
        self.emit(AcceptanceJudged { verdicts, accepted, number: self.state.judged + 1 });
        if accepted {
            let text = verification.summary;
            self.begin_end(Ending { outcome: Outcome::Completed, rule: Rule::GoalVerified, text });
        } else if self.state.refusals >= MAX_REFUSALS {
            let words = format!("It was said to be done {MAX_REFUSALS} times, and was not.");
            let text = Block::new(words, Trust::System, "runtime");
            self.begin_end(Ending { outcome: Outcome::Failed, rule: Rule::NotAccepted, text });
        } else {
            self.open_turn(wake, None);
        }
        Ok(())
    }

    /// Older history becomes a summary, if it is shorter and nothing else changes by it.
    pub(super) fn compact(&mut self, compact: &Compact) -> Result<(), Rejection> {
        if !self.state.is_open_turn(compact.turn_id) {
            return Err(Rejection::StaleTurn(compact.turn_id));
        }
        if compact.kept != self.state.standing() && !broken(Mutant::CompactsBlindly) {
            return Err(invalid("what a compaction must keep is not what the run has now: look again"));
        }
        let most = if broken(Mutant::BelievesSummaries) { Trust::Operator } else { self.state.lowest_trust };
        let mut summary = compact.summary.clone();
        if let Some(summary) = &mut summary {
            let shrinks = compact.after_tokens < compact.before_tokens || compact.handoff.is_some();
            if !shrinks || summary.upto > self.state.seq || summary.body.text.len() > SUMMARY_BYTES {
                return Err(invalid("a summary is shorter than what it stands for, and about the past"));
            }
            summary.body.trust = summary.body.trust.join(most);
        }
        let Compact { turn_id, strategy, reason, before_tokens, after_tokens, usage, kept, not_reset, .. } =
            compact.clone();
        match (summary, &compact.handoff) {
            (Some(summary), Some(handoff)) => {
                let handoff = believed_artifact(handoff, self.state.lowest_trust);
                self.keep_artifact(&handoff);
                self.emit(ContextReset {
                    turn_id,
                    strategy,
                    reason,
                    before_tokens,
                    after_tokens,
                    usage,
                    kept,
                    summary,
                    handoff,
                });
            }
            (summary, _) => self.emit(ContextCompacted {
                turn_id,
                strategy,
                reason,
                before_tokens,
                after_tokens,
                usage,
                kept,
                summary,
                not_reset,
            }),
        }
        if self.state.settled().forbids_turn(&self.state.limits).is_some() {
            // It used up what was left: the turn is not for a model any more.
            self.open_turn(None, None);
        }
        Ok(())
    }

    pub(super) fn note_drift(&mut self, note: &NoteDrift) -> Result<(), Rejection> {
        if !self.state.is_open_turn(note.turn_id) {
            return Err(Rejection::StaleTurn(note.turn_id));
        }
        let NoteDrift { turn_id, kind, remedy, detail, asked } = note.clone();
        self.emit(DriftNoticed { turn_id, kind, remedy, detail, asked });
        Ok(())
    }

    /// A limit is reached: a person is asked whether the run may have as much again, or it ends.
    pub(super) fn reach_limit(&mut self, limit: LimitName, words: &str) {
        // Of one that has never begun there is nothing to lose, and it must not stand in the way of others in the queue.
        let late = self.state.queued && limit == LimitName::Wall;
        // A child spends what its parent set aside for it: nobody but the parent can give it more.
        let is_child = self.state.parent.is_some();
        if self.state.limits.at_limit == Some(AtLimit::Ask) && !late && !is_child {
            if self.state.parked.is_none() {
                let ask = Some(Box::new(self.ask_for_more(limit)));
                self.emit(BudgetExceeded { limit, ask });
            }
            return;
        }
        self.emit(BudgetExceeded { limit, ask: None });
        if !broken(Mutant::BudgetEndsNothing) {
            let text = Block::new(words, Trust::System, "runtime");
            self.begin_end(Ending { outcome: Outcome::Failed, rule: limit.into(), text });
        }
    }

    fn ask_for_more(&self, limit: LimitName) -> Approval {
        let spent = self.state.settled();
        let dollars = spent.usage.cost_microusd as f64 / 1e6;
        let words = format!(
            "The run has reached its limit of {limit} after {} turns, {} tool calls, {} tokens and ${dollars:.4}. May it have as \
             much again? Without a yes it ends.",
            spent.turns,
            spent.tool_calls,
            spent.usage.tokens(),
        );
        Approval {
            approval_id: ApprovalId::derive(self.state.run_id, &format!("limit/{}", self.state.seq)),
            call_id: None,
            question: Block::new(words, Trust::System, "runtime"),
            tool: None,
            arguments: None,
            binding: Binding::default(),
            trust: Trust::System,
            reasons: Vec::new(),
            two_people: false,
            shown: Default::default(),
            expires_at: later(self.now, LIMIT_EXPIRY),
        }
    }

    /// Nobody lets a run go on that has reached a limit: it ends by that.
    pub(super) fn end_if_refused(&mut self) {
        let refused = self.state.parked.filter(|parked| parked.refused && !broken(Mutant::RefusalEndsNothing));
        if let Some(parked) = refused {
            let words = format!("The limit of {} was reached, and nobody raised it.", parked.limit);
            let text = Block::new(words, Trust::System, "runtime");
            self.begin_end(Ending { outcome: Outcome::Failed, rule: parked.limit.into(), text });
        }
    }
}

fn invalid(problem: impl Into<String>) -> Rejection {
    Rejection::InvalidOutcome(vec![problem.into()])
}

fn believed_artifact(artifact: &ArtifactRef, most: Trust) -> ArtifactRef {
    ArtifactRef { trust: artifact.trust.join(most), ..artifact.clone() }
}

/// Whether this call of an outcome is what its author wants the criterion to be looked into with.
fn looks_into(outcome: &TurnOutcome, call_id: Option<crate::CallId>, check: &Check) -> bool {
    match (check, call_id) {
        (Check::Artifact(_), None) => true,
        (Check::Evaluator(agent), Some(id)) => {
            outcome.spawns.iter().any(|spawn| spawn.call_id == id && spawn.agent == *agent)
        }
        (check, Some(id)) => check.call().is_some_and(|(tool, arguments)| {
            let is_it = |call: &&crate::call::CallRequest| call.call_id == id && call.arguments == arguments;
            outcome.calls.iter().find(is_it).is_some_and(|call| call.tool == tool)
        }),
        (_, None) => false,
    }
}

/// What is wrong with verdicts: there is one for each check, and none holds whose call did not end well.
fn verdict_problem(verification: &Verification, verdicts: &[CriterionVerdict]) -> Option<String> {
    if verdicts.len() != verification.checks.len() {
        return Some(format!("{} verdicts for {} checks", verdicts.len(), verification.checks.len()));
    }
    verification.checks.iter().find_map(|check| {
        let found = verdicts.iter().find(|verdict| verdict.criterion == check.asked.criterion);
        let Some(verdict) = found else { return Some(format!("no verdict on criterion {}", check.asked.criterion)) };
        let ended_badly = check.asked.call_id.is_some() && check.ended_well != Some(true);
        let lies = verdict.passed && ended_badly && !broken(Mutant::BelievesVerdicts);
        let other = verdict.call_id != check.asked.call_id;
        (lies || other).then(|| format!("criterion {} cannot have passed by that call", verdict.criterion))
    })
}
