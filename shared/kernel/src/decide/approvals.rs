//! Questions to people, and their answers.

use super::Decider;
use crate::{
    call::{Approval, CallStatus, Verdict},
    command::{DecideApproval, ExpireApproval},
    event::{ApprovalDenied, ApprovalExpired, ApprovalGranted, ApprovalRequested, ToolDenied},
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
        let call_id = approval.call_id;
        match decision.verdict {
            Verdict::Approve => {
                let mut binding = approval.binding.clone();
                if broken(Mutant::BindsOtherwise) {
                    binding.schema.clear();
                }
                let edited = decision.edited.clone().map(|(arguments, digest)| {
                    binding.arguments = digest;
                    arguments
                });
                let wall = self.state.limits.wall;
                self.emit(ApprovalGranted {
                    approval_id,
                    by: decision.by.clone(),
                    arguments: edited,
                    binding,
                    reason: decision.reason.clone(),
                    standing: decision.standing,
                });
                // It may have been asked whether the run may go on beyond its time.
                self.follow_wall(wall);
            }
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
