//! What keeps a run on its way, folded: checks of what is done, summaries, circles, limits.

use crate::{
    acceptance::{OpenCheck, Verification},
    budget::{LimitName, Usage},
    call::Approval,
    context::Summary,
    drift::{self, Drift, RecentCall},
    event::{
        AcceptanceJudged, AcceptanceRequested, BudgetChanged, BudgetExceeded, DriftNoticed, Event, EventData,
        PlanUpdated, StepStatus,
    },
    ids::{ApprovalId, CallId},
    mutants::{Mutant, broken},
    state::{FactKind, Parked, RunState},
    trust::{Block, Trust},
    units::Duration,
};

impl RunState {
    pub(super) fn fold_steering(&mut self, event: &Event) {
        match &event.data {
            EventData::AcceptanceRequested(requested) => self.fold_verification(event, requested),
            EventData::AcceptanceJudged(judged) => self.fold_judgement(event, judged),
            EventData::ContextCompacted(compacted) => {
                self.fold_summary(event, &compacted.usage, compacted.summary.as_ref());
                if compacted.not_reset.is_some() {
                    self.resets_failed = self.resets_failed.saturating_add(1);
                    self.reset_tried = self.turn.as_ref().map_or(self.turns_opened, |turn| turn.number);
                }
            }
            EventData::ContextReset(reset) => {
                self.fold_summary(event, &reset.usage, Some(&reset.summary));
                self.last_reset = self.turn.as_ref().map_or(self.turns_opened, |turn| turn.number);
                self.resets_failed = 0;
            }
            EventData::DriftNoticed(noticed) => self.fold_drift(event, noticed),
            EventData::BudgetExceeded(exceeded) => self.fold_limit(exceeded),
            EventData::BudgetChanged(changed) => self.fold_limits(changed),
            EventData::PlanUpdated(plan) => self.fold_plan(plan),
            _ => {}
        }
    }

    fn fold_verification(&mut self, event: &Event, requested: &AcceptanceRequested) {
        let checks = requested.checks.iter().map(|asked| OpenCheck { asked: *asked, ended_well: None }).collect();
        let summary = requested.summary.clone();
        self.verification = Some(Verification { summary, asked: event.seq, checks });
    }

    fn fold_judgement(&mut self, event: &Event, judged: &AcceptanceJudged) {
        self.judged = judged.number;
        self.verification = None;
        self.verdicts.clone_from(&judged.verdicts);
        if judged.accepted {
            return;
        }
        self.turn = None;
        let failed: Vec<_> = judged.verdicts.iter().filter(|verdict| !verdict.passed).collect();
        self.refusals += u32::from(!failed.is_empty());
        let mut words = String::new();
        let mut trust = Trust::System;
        for verdict in &failed {
            let text = self.acceptance.get(usize::from(verdict.criterion)).map_or("", |criterion| criterion.text());
            words.push_str(&format!("- {text} ({}): {}\n", verdict.how, verdict.evidence.text));
            trust = trust.join(verdict.evidence.trust);
        }
        let title = if failed.is_empty() {
            words.push_str("All criteria hold, but an operator wrote in the meantime: read that first.\n");
            "`complete` was put off"
        } else {
            "`complete` was refused: these criteria do not hold"
        };
        self.fact(event, FactKind::Notice, title, Block::new(words, trust, "acceptance"), None);
    }

    fn fold_summary(&mut self, event: &Event, usage: &Usage, summary: Option<&Summary>) {
        self.spent.add(usage);
        let Some(summary) = summary else {
            self.compaction_stopped = Some(event.seq);
            return;
        };
        self.compactions += 1;
        self.compaction_stopped = None;
        self.history.retain(|entry| entry.seq > summary.upto);
        self.history_lost = 0;
        self.lowest_trust = self.lowest_trust.join(summary.body.trust);
        self.summary = Some(summary.clone());
    }

    fn fold_drift(&mut self, event: &Event, noticed: &DriftNoticed) {
        let turn = self.turn.as_ref().map_or(self.turns_opened, |turn| turn.number);
        let DriftNoticed { kind, remedy, asked, .. } = *noticed;
        self.drift = Some(Drift { kind, remedy, at: event.seq, turn, asked });
        let block = Block::new(&noticed.detail, Trust::System, "runtime");
        self.fact(event, FactKind::Notice, "The runtime notices that you go in circles", block, None);
    }

    fn fold_limit(&mut self, exceeded: &BudgetExceeded) {
        let Some(ask) = &exceeded.ask else { return };
        let approval_id = ask.approval_id;
        self.approvals.insert(approval_id, Approval::clone(ask));
        self.parked = Some(Parked { limit: exceeded.limit, approval_id, refused: false });
        self.queued = false;
        if exceeded.limit != LimitName::Wall {
            // It was about to begin, or to go on. Time runs out also for one that is at work.
            self.turn = None;
        }
    }

    fn fold_limits(&mut self, changed: &BudgetChanged) {
        self.limits = changed.limits.clone();
        let stays =
            |parked: &Parked| parked.limit != LimitName::Wall && self.settled().forbids_turn(&self.limits).is_some();
        self.parked = self.parked.filter(stays);
    }

    /// The answer to the question whether a run that has reached a limit may have as much again.
    pub(super) fn fold_limit_answer(&mut self, event: &Event, approval: ApprovalId, granted: bool) {
        let Some(parked) = self.parked.filter(|parked| parked.approval_id == approval) else { return };
        if granted {
            let age = event.at.duration_since(self.created_at).as_millis();
            let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
            self.limits = self.limits.with_more(parked.limit, &self.given, age);
            self.parked = None;
        } else {
            self.parked = Some(Parked { refused: true, ..parked });
        }
    }

    fn fold_plan(&mut self, plan: &PlanUpdated) {
        let done =
            |steps: &[crate::event::PlanStep]| steps.iter().filter(|step| step.status == StepStatus::Done).count();
        let open =
            plan.steps.iter().filter(|step| !matches!(step.status, StepStatus::Done | StepStatus::Dropped)).count();
        let open = u32::try_from(open).unwrap_or(u32::MAX);
        if done(&plan.steps) > done(&self.plan) || self.plan.is_empty() {
            self.plan_idle = 0;
            self.plan_scope = open;
        } else {
            self.plan_idle += 1;
        }
        self.plan.clone_from(&plan.steps);
        self.plan_revision = plan.revision;
    }

    pub(super) fn remember_asked(&mut self, event: &Event, call_id: CallId, tool: &str, arguments: &serde_json::Value) {
        let asked = drift::fingerprint_of_call(tool, arguments);
        let call = RecentCall { call_id, seq: event.seq, tool: tool.to_owned(), asked, came: None, failed: false };
        drift::remember(&mut self.recent, call);
    }

    /// What a call came to, for the checks that it was made for and for what is remembered of it.
    pub(super) fn note_end(&mut self, call_id: CallId, well: bool, block: &Block) {
        if let Some(recent) = self.recent.iter_mut().find(|recent| recent.call_id == call_id) {
            recent.came = Some(drift::fingerprint(&[&block.text]));
            recent.failed = !well;
        }
        if let Some(verification) = &mut self.verification {
            verification.end_call(call_id, well || broken(Mutant::AllChecksEndWell));
        }
    }
}
