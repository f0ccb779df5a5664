//! Questions to people, and their answers.

use super::Decider;
use crate::{
    call::{Approval, Binding, CallStatus, Endorsement, Verdict},
    command::{DecideApproval, ExpireApproval},
    event::{ApprovalDenied, ApprovalEndorsed, ApprovalExpired, ApprovalGranted, ApprovalRequested, ToolDenied},
    ids::{ApprovalId, CallId},
    mutants::{Mutant, broken},
    rejection::Rejection,
    trust::{Block, Trust},
};

impl Decider {
    pub(super) fn ask_approval(&mut self, approval: &Approval) -> Result<(), Rejection> {
        if !approval.call_id.is_some_and(|call| self.is_compensation(call)) {
            self.refuse_if_ending()?;
        }
        if let Some(call_id) = approval.call_id {
            let call = self.state.calls.get(&call_id).ok_or(Rejection::CallNotOpen(call_id))?;
            if !matches!(call.status, CallStatus::Requested | CallStatus::Approved) {
                return Err(Rejection::CallStatus(call_id, call.status));
            }
        }
        self.emit(ApprovalRequested { approval: approval.clone() });
        Ok(())
    }

    fn open_approval(&self, approval_id: ApprovalId) -> Result<&Approval, Rejection> {
        self.state.approvals.get(&approval_id).ok_or_else(|| {
            let decided = self.state.decided.iter().find(|(id, _)| *id == approval_id);
            match decided {
                Some((_, verdict)) => Rejection::AlreadyDecided(approval_id, verdict.clone()),
                None => Rejection::ApprovalNotOpen(approval_id),
            }
        })
    }

    pub(super) fn decide_approval(&mut self, decision: &DecideApproval) -> Result<(), Rejection> {
        let approval_id = decision.approval_id;
        let approval = self.open_approval(approval_id)?;
        if self.now >= approval.expires_at && !broken(Mutant::DecidesTooLate) {
            return Err(Rejection::ApprovalExpired(approval_id));
        }
        let (call_id, approval) = (approval.call_id, approval.clone());
        match decision.verdict {
            Verdict::Approve => return self.approve(decision, &approval),
            Verdict::Deny => {
                let (by, reason) = (decision.by.clone(), decision.reason.clone());
                let words = reason.clone().unwrap_or_else(|| "no reason given".to_owned());
                self.emit(ApprovalDenied { approval_id, by: by.clone(), reason });
                let block = Block::new(words, Trust::Operator, format!("operator:{by}"));
                self.deny_held_call(call_id, "operator", block);
            }
        }
        Ok(())
    }

    fn approve(&mut self, decision: &DecideApproval, approval: &Approval) -> Result<(), Rejection> {
        let approval_id = approval.approval_id;
        let mut binding = approval.binding.clone();
        if broken(Mutant::BindsOtherwise) {
            binding.schema.clear();
        }
        let mut arguments = decision.edited.clone().map(|(arguments, digest)| {
            binding.arguments = digest;
            arguments
        });
        let (by, aliases, reason) = (decision.by.clone(), decision.aliases.clone(), decision.reason.clone());
        let mut endorsed_by = None;
        if approval.two_people && !broken(Mutant::OnePersonIsEnough) {
            if decision.standing.is_some() {
                return Err(Rejection::TakesTwoPeople(approval_id));
            }
            let Some(first) = self.state.endorsed.get(&approval_id) else {
                self.emit(ApprovalEndorsed { approval_id, by, aliases, arguments, binding, reason });
                return Ok(());
            };
            second(decision, first, &binding)?;
            if !broken(Mutant::SecondsAnything) {
                arguments = first.arguments.clone();
            }
            endorsed_by = Some(first.by.clone());
        }
        let wall = self.state.limits.wall;
        let (standing, aliases) = (decision.standing, if approval.two_people { aliases } else { Vec::new() });
        self.emit(ApprovalGranted { approval_id, by, arguments, binding, reason, standing, endorsed_by, aliases });
        // It may have been asked whether the run may go on beyond its time.
        self.follow_wall(wall);
        Ok(())
    }

    pub(super) fn expire_approval(&mut self, expire: &ExpireApproval) -> Result<(), Rejection> {
        let approval = self.open_approval(expire.approval_id)?;
        if self.now < approval.expires_at && !broken(Mutant::ExpiresTooEarly) {
            return Ok(());
        }
        let call_id = approval.call_id;
        self.emit(ApprovalExpired { approval_id: expire.approval_id, reason: "no_answer".to_owned() });
        let block = Block::new("Nobody approved it in time.", Trust::System, "runtime");
        self.deny_held_call(call_id, "expired", block);
        Ok(())
    }

    fn deny_held_call(&mut self, call_id: Option<CallId>, code: &str, reason: Block) {
        let held = call_id.filter(|call| self.state.calls.contains_key(call) && !broken(Mutant::NoLeavesCallOpen));
        if let Some(call_id) = held {
            self.emit(ToolDenied { call_id, code: code.to_owned(), reason });
        }
    }
}

/// Whether this is a second person, who agrees to what the first one has agreed to.
fn second(decision: &DecideApproval, first: &Endorsement, binding: &Binding) -> Result<(), Rejection> {
    if first.may_be_of(&decision.by, &decision.aliases) && !broken(Mutant::OnePersonTwice) {
        return Err(Rejection::AlreadyEndorsed(decision.approval_id, first.by.clone()));
    }
    if first.binding != *binding && !broken(Mutant::SecondsAnything) {
        return Err(Rejection::EndorsedOtherwise(decision.approval_id, first.by.clone()));
    }
    Ok(())
}
