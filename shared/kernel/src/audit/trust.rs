//! Where content comes from, and how far what was made of it may be believed.

use super::{Report, calls::Calls, rules};
use crate::{
    context::Summary,
    event::{Event, EventData, Finding, Speaker, TurnCompleted},
    ids::Seq,
    memory::MemoryScope,
    trust::Trust,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Provenance {
    /// The lowest trust of all content of the run so far, and the events at which it fell (three at most).
    falls: Vec<(Seq, Trust)>,
    /// How far the last committed turn may be believed, and so whatever it says.
    turn: Option<Trust>,
}

impl Provenance {
    pub(super) fn see(&mut self, event: &Event, calls: &Calls, report: &mut Report) {
        match &event.data {
            EventData::RunCreated(created) => {
                self.enters(event, created.objective.trust);
                self.enters(event, created.input.trust);
                let outside = created.trigger.is_none() || created.input.trust == Trust::Untrusted;
                report.expect(outside, event, rules::TRUST, || "an outside event is believed".to_owned());
            }
            EventData::RunForked(forked) => forked.carried.trusts().for_each(|trust| self.enters(event, trust)),
            EventData::RunRevised(revised) => {
                if let Some(objective) = &revised.objective {
                    self.enters(event, objective.trust);
                }
            }
            EventData::TurnCompleted(turn) => self.turn(event, turn, report),
            EventData::MessageAdded(message) => match message.role {
                Speaker::Operator => self.enters(event, message.block.trust),
                Speaker::Agent => self.derived(event, message.block.trust, report),
            },
            EventData::ToolRequested(requested) if requested.call.is_compensation() => {
                let undone = calls.trust_to_undo().unwrap_or(Trust::Untrusted);
                let most = undone.min(self.lowest(event.seq));
                report.expect(requested.call.trust <= most, event, rules::TRUST, || {
                    format!("undoing what was believed {most:?} is taken for {:?}", requested.call.trust)
                });
            }
            EventData::ToolRequested(requested) => self.derived(event, requested.call.trust, report),
            EventData::ToolProgressed(progressed) => {
                if let Some(asks) = &progressed.asks {
                    self.enters(event, asks.trust);
                }
            }
            // Another child's task is the one that a turn asked for, who may have been another turn than the last.
            EventData::SubagentStarted(started) if started.attempt == 1 => {
                self.derived(event, started.spawn.task.trust, report);
            }
            EventData::SubagentCompleted(done) => self.enters(event, done.result.trust),
            EventData::SubagentFailed(failed) => self.enters(event, failed.reason.trust),
            EventData::SubagentCancelled(cancelled) => self.enters(event, cancelled.reason.trust),
            EventData::ArtifactCreated(created) => self.derived(event, created.artifact.trust, report),
            EventData::ArtifactUpdated(updated) => self.derived(event, updated.artifact.trust, report),
            EventData::MemoryWritten(written) => {
                self.derived(event, written.block.trust, report);
                self.for_all(event, written.place.scope, report);
            }
            EventData::MemoryDeleted(deleted) => self.for_all(event, deleted.place.scope, report),
            EventData::ApprovalRequested(requested) => {
                let approval = &requested.approval;
                let asked = approval.call_id.map_or(self.turn, |call| calls.trust(call));
                let shown = asked.is_none_or(|asked| approval.trust <= asked);
                report
                    .expect(shown, event, rules::TRUST, || "the arguments look more trusted than they are".to_owned());
            }
            EventData::TrustDeclassified(vouched) => {
                let bounded = vouched.trust == Trust::Trusted && vouched.from < event.seq && !vouched.by.is_empty();
                report.expect(bounded, event, rules::TRUST, || "a text is taken for an operator's own".to_owned());
            }
            EventData::ExternalMatched(matched) => {
                let outside = matched.block.trust == Trust::Untrusted;
                report.expect(outside, event, rules::TRUST, || "an outside event is believed".to_owned());
                self.enters(event, matched.block.trust);
            }
            EventData::ToolCompleted(done) => self.enters(event, done.result.block.trust),
            EventData::ToolFailed(failed) => self.enters(event, failed.failure.block.trust),
            EventData::ToolDenied(denied) => self.enters(event, denied.reason.trust),
            EventData::ToolReconciled(reconciled) if reconciled.finding == Finding::Unknown => {
                self.enters(event, reconciled.evidence.trust);
            }
            EventData::AcceptanceJudged(judged) => {
                judged.verdicts.iter().for_each(|verdict| self.enters(event, verdict.evidence.trust));
            }
            EventData::ContextCompacted(compacted) => self.summary(event, compacted.summary.as_ref(), report),
            EventData::ContextReset(reset) => self.summary(event, Some(&reset.summary), report),
            EventData::ObservationRecorded(_) => self.enters(event, Trust::Untrusted),
            _ => {}
        }
    }

    /// What went before, in fewer words, is believed no more than any of it.
    fn summary(&self, event: &Event, summary: Option<&Summary>, report: &mut Report) {
        let lowest = self.lowest(event.seq);
        let holds = summary.is_none_or(|summary| summary.body.trust <= lowest);
        report.expect(holds, event, rules::TRUST, || format!("a summary of what is {lowest:?} is taken for more"));
    }

    /// The lowest trust of all that ever came in.
    pub(super) fn lowest_of_all(&self) -> Trust {
        self.falls.last().map_or(Trust::Operator, |(_, trust)| *trust)
    }

    fn enters(&mut self, event: &Event, trust: Trust) {
        if self.falls.last().is_none_or(|(_, lowest)| trust < *lowest) {
            self.falls.push((event.seq, trust));
        }
    }

    /// The lowest trust of what had come in by then.
    fn lowest(&self, seq: Seq) -> Trust {
        let fallen = self.falls.iter().rev().find(|(at, _)| *at <= seq);
        fallen.map_or(Trust::Operator, |(_, trust)| *trust)
    }

    fn turn(&mut self, event: &Event, turn: &TurnCompleted, report: &mut Report) {
        let seen = turn.manifest.sections.iter().map(|section| section.trust).min();
        let seen = self.lowest(turn.based_on).min(seen.unwrap_or(Trust::Operator));
        report.expect(turn.trust <= seen, event, rules::TRUST, || {
            format!("a turn that saw {seen:?} is taken for {:?}", turn.trust)
        });
        self.turn = Some(turn.trust);
        self.enters(event, turn.trust);
        if let Some(text) = &turn.text {
            self.derived(event, text.trust, report);
        }
    }

    /// The last turn changed what every run of the tenant sees.
    fn for_all(&self, event: &Event, scope: MemoryScope, report: &mut Report) {
        let fooled = self.turn.unwrap_or(Trust::Operator) < Trust::Trusted;
        report.expect(!fooled || scope != MemoryScope::Tenant, event, rules::TRUST, || {
            "a turn that saw untrusted data changes what the whole tenant remembers".to_owned()
        });
    }

    /// Something that the last turn made.
    fn derived(&self, event: &Event, trust: Trust, report: &mut Report) {
        let seen = self.turn.unwrap_or(Trust::Operator);
        report.expect(trust <= seen, event, rules::TRUST, || {
            format!("`{}` is taken for {trust:?}, its turn for {seen:?}", event.data.type_name())
        });
    }
}
