//! What holds of the whole world when it has come to rest.

use std::collections::{HashMap, HashSet};

use kernel::{
    Event, EventData, RunId,
    audit::{Families, rules},
    event::ToolRequested,
    tool::needs_start,
};

use crate::{
    door::patterns,
    model::{Policy, tool_named},
    world::{External, World, timestamp},
};

impl World {
    /// What holds when nobody has had anything to do for a while.
    pub fn check_settled(&mut self) {
        // Clocks differ by a second or two.
        let at = timestamp(self.now - 3000);
        for row in self.runs.values_mut() {
            row.audit.settled(at);
            self.violations.append(&mut row.audit.take_violations());
        }
        self.check_families();
        let missed: Vec<_> = self.runs.iter().filter_map(|(run, row)| self.missed(*run, &row.log)).collect();
        for (run, position) in missed {
            self.violated(run, rules::NO_LOST_WAKE, format!("the event at {position} never reached its wait"));
        }
        let unpublished = self.outbox.len();
        let nobody = RunId(uuid::Uuid::nil());
        self.expect(unpublished == 0, nobody, "world.published", || format!("{unpublished} commits are not published"));
        let left = self.externals.iter().filter(|external| !external.dispatched).count();
        self.expect(left == 0, nobody, rules::SETTLED, || format!("{left} events are not dispatched"));
    }

    /// What parents and children say of each other, now that nobody is at anything.
    fn check_families(&mut self) {
        let mut families = Families::default();
        self.runs.values().for_each(|row| row.audit.tell(&mut families));
        self.violations.extend(families.violations(true));
    }

    /// An outside event that the registered wait of a run should have and has not: on its key, of its type, from after what
    /// the run had consumed when it began to wait, and not another's.
    fn missed(&self, run: RunId, log: &[Event]) -> Option<(RunId, i64)> {
        let state = &self.runs[&run].state;
        let wait = state.wait.as_ref().filter(|_| state.ending.is_none())?;
        let registered = log.iter().position(|event| {
            matches!(&event.data, EventData::WaitRegistered(registered) if registered.wait.wait_id == wait.wait_id)
        })?;
        let consumed = |subject: &str| {
            let of = log[..registered].iter().filter_map(|event| match &event.data {
                EventData::ExternalMatched(matched) => Some(&matched.external),
                _ => None,
            });
            of.filter(|external| external.resource_key == format!("forge:{subject}"))
                .map(|external| external.position)
                .max()
        };
        let wants = |external: &&External| {
            external.received_at >= state.created_at
                && consumed(external.subject).is_none_or(|position| external.position > position)
                && patterns(wait).iter().any(|(_, pattern)| {
                    external.is_meant(pattern) && !(pattern.exclusive && self.is_anothers(external, run))
                })
        };
        self.externals.iter().find(wants).map(|external| (run, external.position))
    }

    /// What holds when all is over.
    pub fn check_over(&mut self) {
        self.check_families();
        let mut wrong = Vec::new();
        let (mut started, mut asked, mut allowed) = (HashSet::new(), HashMap::new(), HashSet::new());
        let mut allowed_by_two = HashSet::new();
        for (run, row) in &self.runs {
            if !row.state.ended {
                wrong.push((*run, "world.all_end", format!("the run is {:?}", row.state.status())));
            }
            for event in &row.log {
                match &event.data {
                    EventData::ToolStarted(start) => _ = started.insert(start.call_id),
                    EventData::ApprovalRequested(question) => {
                        asked.insert(question.approval.approval_id, question.approval.call_id);
                    }
                    EventData::ApprovalGranted(granted) => {
                        let call = asked.get(&granted.approval_id).copied().flatten();
                        allowed.extend(call);
                        let other = granted.endorsed_by.as_ref().is_some_and(|first| *first != granted.by);
                        allowed_by_two.extend(call.filter(|_| other));
                    }
                    _ => {}
                }
            }
        }
        for (run, row) in &self.runs {
            for event in &row.log {
                match &event.data {
                    EventData::ArtifactCreated(created) if !self.content.contains(&created.artifact.digest) => {
                        wrong.push((*run, "world.content_kept", created.artifact.digest.clone()));
                    }
                    EventData::ToolRequested(ToolRequested { call, .. }) if self.outside.landed(call.call_id) > 0 => {
                        let id = call.call_id;
                        if needs_start(call.kind, call.effect, call.idempotent) && !started.contains(&id) {
                            wrong.push((*run, rules::STARTED_FIRST, format!("{id} happened without a start")));
                        }
                        let policy = tool_named(&call.tool).policy;
                        let holds = match policy {
                            Policy::Allow | Policy::Fickle => true,
                            Policy::Ask => allowed.contains(&id),
                            Policy::Two => allowed_by_two.contains(&id),
                            Policy::Deny => false,
                        };
                        if !holds {
                            wrong.push((*run, "world.policies_hold", format!("{id} ({}) happened", call.tool)));
                        }
                    }
                    _ => {}
                }
            }
        }
        for (run, rule, detail) in wrong {
            self.violated(run, rule, detail);
        }
    }
}
