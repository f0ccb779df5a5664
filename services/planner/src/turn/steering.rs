//! What comes before a model is asked, and what is added to its answer: verdicts, summaries, remedies, checks of what is done.

use std::sync::Arc;

use checks::{About, No};
use engine::SubmitError;
use kernel::{
    ApprovalId, Block, Command, Rejection, RunState, Timestamp, Trust, TurnId,
    acceptance::Check,
    agent::{AgentSpec, DRIFT, Point},
    budget::Usage,
    call::{Approval, Binding},
    command::{ChargeTurn, EndRequest, Judge, NoteDrift, TurnOutcome},
    drift::Remedy,
    event::PaidFor,
    report::Report,
};
use serde_json::{Value, json};
use tokio_util::bytes::Bytes;

use super::{Asking, Consumed, Open, TurnError, Turns, recording::is_moot};
use crate::{
    acceptance::{self, Looked},
    compaction::{self, Why},
    drift,
    interrupt::Interrupt,
    report, spawn,
    toolbox::Toolbox,
};

/// Events that are read at a time.
const PAGE: u32 = 500;

/// A turn before a model is asked.
pub(super) struct Before<'a> {
    pub(super) agent: &'a AgentSpec,
    pub(super) turn_id: TurnId,
    pub(super) number: u32,
    pub(super) traceparent: Option<&'a str>,
    pub(super) interrupt: &'a Interrupt,
}

/// How it goes on.
pub(super) enum Steered {
    /// A model is asked, about the run as it is now.
    Ask(Arc<RunState>),
    /// Nothing is left to do in this turn; a word for metrics.
    Over(&'static str),
}

impl Turns {
    /// Sees to what comes before a model is asked.
    pub(super) async fn steer(&self, before: &Before<'_>, state: Arc<RunState>) -> Result<Steered, TurnError> {
        if state.is_to_be_judged() {
            return self.judge(before, &state).await.map(Steered::Over);
        }
        if let Err(no) = self.check(before.agent, &state, Point::BeforeModel, json!({})).await {
            if !no.said {
                return Err(TurnError::Check(no));
            }
            let asking = before.asking(&state);
            return self
                .refuse(&asking, "safety", vec![no.words()], &mut Consumed::of(before.turn_id))
                .await
                .map(Steered::Over);
        }
        let mut state = state;
        if before.agent.controls.is_on(DRIFT) {
            if drift::answer(&state) == Some(false) {
                let problems = vec!["It went in circles, and the operator did not want it to go on.".to_owned()];
                let asking = before.asking(&state);
                return self
                    .refuse(&asking, "no_progress", problems, &mut Consumed::of(before.turn_id))
                    .await
                    .map(Steered::Over);
            }
            if let Some(step) = drift::next_step(&state) {
                match self.remedy(before, state, step).await? {
                    Steered::Ask(now) => state = now,
                    over => return Ok(over),
                }
            }
        }
        match compaction::due(&state, before.agent) {
            Some(why) => self.compact(before, state, why).await,
            None => Ok(Steered::Ask(state)),
        }
    }

    /// Asks the operator's own checks.
    async fn check(&self, agent: &AgentSpec, state: &RunState, at: Point, about: Value) -> Result<(), No> {
        let turn = state.turn.as_ref().map_or(state.turns_opened, |turn| turn.number);
        let about = About { tenant: &state.tenant, run_id: state.run_id, agent: &agent.name, turn, about };
        self.checks.ask(&agent.checks, at, &about).await
    }

    /// Asks them about an outcome: what is wrong with it, in words for the model.
    async fn check_outcome(&self, open: &Open<'_>, outcome: &TurnOutcome) -> Result<Vec<String>, TurnError> {
        if open.agent.checks.is_empty() {
            return Ok(Vec::new());
        }
        let ends = acceptance::ends(&open.state, outcome);
        for at in [Some(Point::BeforeCommit), ends.then_some(Point::AtEnd)].into_iter().flatten() {
            match self.check(open.agent, &open.state, at, describe(outcome)).await {
                Ok(()) => {}
                Err(no) if no.said => return Ok(vec![no.words()]),
                Err(no) => return Err(TurnError::Check(no)),
            }
        }
        Ok(Vec::new())
    }

    /// Says what came of looking into the criteria.
    async fn judge(&self, before: &Before<'_>, state: &Arc<RunState>) -> Result<&'static str, TurnError> {
        let Some(verification) = &state.verification else { return Ok("stale") };
        let looked = self.looked(state, verification.asked).await?;
        let mut verdicts = Vec::with_capacity(verification.checks.len());
        for check in &verification.checks {
            let criterion = state.checked_criteria().find(|(number, _)| *number == check.asked.criterion);
            let Some((_, criterion)) = criterion else { continue };
            let content = self.content_of(state, &criterion.check).await?;
            verdicts.push(looked.verdict(check, criterion, content.as_deref()));
        }
        let mut artifacts = Vec::new();
        if verdicts.iter().all(|verdict| verdict.passed) {
            let report = Report::about_to_end(state, &verification.summary.text, &verdicts);
            for draft in report::drafts(&report) {
                match self.artifacts.store(state, &draft, state.lowest_trust).await {
                    Ok(stored) => artifacts.push(stored),
                    // The same can be read of the log at any time: a run is not kept from ending for it.
                    Err(error) => tracing::warn!(run_id = %state.run_id, %error, "the report of a run was not stored"),
                }
            }
        }
        let judge = Judge { turn_id: before.turn_id, verdicts, artifacts };
        let key = format!("judge/{}/{}", before.turn_id, uuid::Uuid::now_v7());
        match self.submit(&before.asking(state), Command::Judge(Box::new(judge)), &key).await {
            Ok(_) => Ok("judged"),
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => Ok("superseded"),
            Err(SubmitError::Rejected(rejection)) => Err(TurnError::Rejected(rejection)),
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }

    /// What became of the calls since it was asked, out of the log.
    async fn looked(&self, state: &RunState, asked: kernel::Seq) -> Result<Looked, TurnError> {
        let (reads, mut looked, mut after) = (self.engine.reads(), Looked::default(), asked);
        loop {
            let page = reads.events(&state.tenant, state.run_id, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(looked) };
            after = last.seq;
            for stored in &page {
                match stored.decode() {
                    Ok(event) => looked.see(&event),
                    Err(error) => {
                        tracing::warn!(run_id = %state.run_id, seq = stored.seq, %error, "an event can't be read")
                    }
                }
            }
        }
    }

    /// The content of the artifact that a check is about; none if there is none, or it cannot be had.
    async fn content_of(&self, state: &RunState, check: &Check) -> Result<Option<Bytes>, TurnError> {
        let Some(artifact) = acceptance::artifact(state, check) else { return Ok(None) };
        match self.artifacts.content(state, artifact).await {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.is_transient() => Err(error.into()),
            Err(error) => {
                tracing::warn!(run_id = %state.run_id, %error, "an artifact that is checked can't be read");
                Ok(None)
            }
        }
    }

    /// Does something about a run that goes in circles.
    async fn remedy(&self, before: &Before<'_>, state: Arc<RunState>, step: drift::Step) -> Result<Steered, TurnError> {
        let drift::Step { notice, remedy } = step;
        metrics::counter!("planner_drift_total", "kind" => notice.kind.as_str(), "remedy" => remedy.as_str())
            .increment(1);
        let why = match remedy {
            Remedy::Replan => Some(Why::Drift),
            Remedy::Reset => Some(Why::DriftReset),
            _ => None,
        };
        let state = match why {
            None => state,
            Some(why) => match self.compact(before, state, why).await? {
                Steered::Ask(now) => now,
                over => return Ok(over),
            },
        };
        let asked =
            (remedy == Remedy::Ask).then(|| ApprovalId::derive(state.run_id, &format!("{}/drift", before.turn_id)));
        let detail = format!("{} {}", notice.detail, drift::advice(remedy));
        let note = NoteDrift { turn_id: before.turn_id, kind: notice.kind, remedy, detail, asked };
        let Some(state) = self.advance(before, state, Command::NoteDrift(note), None).await? else {
            return Ok(Steered::Over("superseded"));
        };
        match asked {
            None => Ok(Steered::Ask(state)),
            Some(approval_id) => self.ask_to_go_on(before, &state, approval_id, &notice.detail).await,
        }
    }

    /// Asks a person whether the run may go on, without asking a model.
    async fn ask_to_go_on(
        &self,
        before: &Before<'_>,
        state: &Arc<RunState>,
        approval_id: ApprovalId,
        detail: &str,
    ) -> Result<Steered, TurnError> {
        let words = format!("The run goes in circles, and nothing that was tried has helped. {detail} May it go on?");
        let question = Approval {
            approval_id,
            call_id: None,
            question: Block::new(words, Trust::System, "runtime"),
            tool: None,
            arguments: None,
            binding: Binding::default(),
            trust: state.lowest_trust.join(Trust::System),
            reasons: Vec::new(),
            two_people: false,
            shown: Default::default(),
            expires_at: kernel::units::later(Timestamp::now(), before.agent.approval_expiry),
        };
        let outcome = runtime_outcome(state, before.turn_id, question);
        let key = format!("turn/{}/{}", before.turn_id, uuid::Uuid::now_v7());
        match self.submit(&before.asking(state), Command::CommitTurn(Box::new(outcome)), &key).await {
            Ok(_) => Ok(Steered::Over("asked")),
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => Ok(Steered::Over("superseded")),
            Err(SubmitError::Rejected(rejection)) => Err(TurnError::Rejected(rejection)),
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }

    /// Submits something that leaves the turn open. The run after it, if the turn still is; also if the run had moved on, so
    /// that nothing came of it: then what it cost is recorded alone.
    pub(super) async fn advance(
        &self,
        before: &Before<'_>,
        state: Arc<RunState>,
        command: Command,
        paid: Option<Usage>,
    ) -> Result<Option<Arc<RunState>>, TurnError> {
        let what = command.name();
        let key = format!("{what}/{}/{}", before.turn_id, uuid::Uuid::now_v7());
        let now = match self.submit(&before.asking(&state), command, &key).await {
            Ok(committed) => committed.state,
            Err(refused) => {
                if let Some(usage) = paid.filter(|usage| *usage != Usage::default()) {
                    let (reason, failures) = (refused.to_string(), Vec::new());
                    let charge =
                        ChargeTurn { turn_id: before.turn_id, paid_for: PaidFor::Summary, reason, usage, failures };
                    self.charge(&before.asking(&state), charge, &key).await;
                }
                match refused {
                    SubmitError::Rejected(Rejection::InvalidOutcome(problems)) => {
                        tracing::info!(run_id = %state.run_id, what, ?problems, "the run has moved on");
                        let Some(now) = self.engine.load(state.run_id).await? else { return Ok(None) };
                        now
                    }
                    SubmitError::Rejected(rejection) if is_moot(&rejection) => return Ok(None),
                    SubmitError::Rejected(rejection) => return Err(TurnError::Rejected(rejection)),
                    SubmitError::Engine(error) => return Err(error.into()),
                }
            }
        };
        Ok((now.is_open_turn(before.turn_id) && now.ending.is_none() && !now.paused).then_some(now))
    }

    /// Adds what looks into the criteria to an outcome that says that the run is done, and refuses what is blocked.
    pub(super) async fn complete_outcome(
        &self,
        open: &Open<'_>,
        outcome: &mut TurnOutcome,
    ) -> Result<Vec<String>, TurnError> {
        let problems = self.check_outcome(open, outcome).await?;
        if !problems.is_empty() {
            return Ok(problems);
        }
        let drifts = open.agent.controls.is_on(DRIFT);
        if drifts {
            let blocked = drift::blocked(&open.state, outcome);
            if !blocked.is_empty() {
                return Ok(blocked);
            }
        }
        let Some(summary) = acceptance::claims(&open.state, outcome) else { return Ok(Vec::new()) };
        let problems = self.add_checks(&open.state, open.agent, &open.toolbox, outcome, &summary).await?;
        if problems.is_empty()
            && drifts
            && let Some(notice) = drift::forgets_criteria(&open.state, outcome)
        {
            let detail = format!("{} {}", notice.detail, drift::advice(Remedy::Remind));
            let note =
                NoteDrift { turn_id: open.turn_id, kind: notice.kind, remedy: Remedy::Remind, detail, asked: None };
            let key = format!("drift/{}/{}", open.turn_id, uuid::Uuid::now_v7());
            // For the record and for the next turn: the commit does not depend on it.
            if let Err(error) = self.submit(&open.asking(), Command::NoteDrift(note), &key).await {
                tracing::debug!(%error, "going in circles was not noted");
            }
        }
        Ok(problems)
    }

    async fn add_checks(
        &self,
        state: &RunState,
        agent: &AgentSpec,
        toolbox: &Toolbox,
        outcome: &mut TurnOutcome,
        summary: &Block,
    ) -> Result<Vec<String>, TurnError> {
        let asked = match acceptance::ask(state, toolbox, outcome.turn_id, summary, outcome.trust) {
            Ok(asked) => asked,
            Err(problems) => return Ok(problems),
        };
        match spawn::resolve(&self.agents, state, agent, &asked.spawns).await? {
            Ok(spawns) => outcome.spawns = spawns,
            Err(problems) => return Ok(problems),
        }
        outcome.calls = asked.calls;
        outcome.end = Some(EndRequest::CompleteIf { summary: summary.clone(), checks: asked.checks });
        Ok(Vec::new())
    }
}

impl<'a> Before<'a> {
    fn asking(&self, state: &'a Arc<RunState>) -> Asking<'a> {
        Asking { state, turn_id: self.turn_id, traceparent: self.traceparent }
    }
}

/// What a check is told of an outcome.
fn describe(outcome: &TurnOutcome) -> Value {
    let call = |call: &kernel::call::CallRequest| json!({ "tool": call.tool, "arguments": call.arguments, "effect": call.effect });
    let end = match &outcome.end {
        Some(EndRequest::Complete(text) | EndRequest::CompleteIf { summary: text, .. }) => json!({ "complete": text }),
        Some(EndRequest::Fail(text)) => json!({ "fail": text }),
        None => Value::Null,
    };
    json!({
        "text": outcome.text,
        "calls": outcome.calls.iter().map(call).collect::<Vec<_>>(),
        "agents": outcome.spawns.iter().map(|spawn| &spawn.agent).collect::<Vec<_>>(),
        "waits_since": outcome.wait.as_ref().map(|wait| &wait.why),
        "plan": outcome.plan.as_ref().map(|plan| &plan.steps),
        "plan_reason": outcome.plan.as_ref().and_then(|plan| plan.reason.as_ref()),
        "say": outcome.say,
        "end": end,
        "model": outcome.model,
    })
}

/// An outcome that the runtime itself has: nothing but a question.
fn runtime_outcome(state: &RunState, turn_id: TurnId, question: Approval) -> TurnOutcome {
    let trust = state.lowest_trust.join(Trust::System);
    TurnOutcome { question: Some(question), ..TurnOutcome::empty(turn_id, state.seq, "runtime", trust) }
}
