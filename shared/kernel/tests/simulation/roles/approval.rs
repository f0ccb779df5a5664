//! Takes decisions of people, and of their silence.

use kernel::{
    ApprovalId, Command, RunId,
    call::Verdict,
    command::{DecideApproval, ExpireApproval},
};

use crate::tasks::Hand;

/// A person decides. Every press of the button is a request of its own.
pub fn decide(hand: &Hand, run: RunId, approval_id: ApprovalId, verdict: Verdict, edits: bool) {
    let (worker, request) = (hand.clone(), hand.attempt());
    hand.spawn("decide", async move {
        let arguments = serde_json::json!({ "edited": request });
        let edited = edits.then(|| (arguments.clone(), arguments.to_string()));
        let decision = DecideApproval { approval_id, verdict, edited, reason: None, by: "ann".into(), standing: None };
        let key = format!("approval/{approval_id}/ann/{request}");
        let _ = worker.submit(run, &Command::DecideApproval(decision), key).await;
    });
}

/// No answer is a no.
pub fn tick(hand: &Hand) {
    let due: Vec<(RunId, ApprovalId)> = hand.with(|world| {
        let now = hand.clock(world);
        let open =
            world.runs.iter().flat_map(|(run, row)| row.state.approvals.values().map(|approval| (*run, approval)));
        open.filter(|(_, approval)| approval.expires_at <= now)
            .map(|(run, approval)| (run, approval.approval_id))
            .collect()
    });
    for (run, approval_id) in due {
        let worker = hand.clone();
        hand.spawn("expire", async move {
            let command = Command::ExpireApproval(ExpireApproval { approval_id });
            let _ = worker.submit(run, &command, format!("expire/{approval_id}")).await;
        });
    }
}
