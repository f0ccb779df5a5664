//! Takes decisions of people, and of their silence.

use kernel::{
    ApprovalId, Command, RunId,
    call::Verdict,
    command::{DecideApproval, ExpireApproval},
};

use crate::tasks::Hand;

/// Those who decide, and under which other names they are known. The last is the first with another token.
pub const PEOPLE: [(&str, &[&str]); 3] = [("ann", &[]), ("bob", &[]), ("laptop", &["ann"])];

/// With which arguments somebody agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// With those that were asked about.
    None,
    /// With others.
    Anew,
    /// With those that the first of two people has agreed to, as they are shown then.
    AsEndorsed,
}

/// A person decides. Every press of the button is a request of its own.
pub fn decide(hand: &Hand, run: RunId, approval_id: ApprovalId, verdict: Verdict, person: usize, edit: Edit) {
    let (worker, request) = (hand.clone(), hand.attempt());
    hand.spawn("decide", async move {
        let shown = worker.with(|world| world.runs[&run].state.endorsed.get(&approval_id).cloned());
        let arguments = match edit {
            Edit::None => None,
            Edit::Anew => Some(serde_json::json!({ "edited": request })),
            Edit::AsEndorsed => shown.and_then(|first| first.arguments),
        };
        let edited = arguments.map(|arguments| (arguments.clone(), arguments.to_string()));
        let (by, aliases) = PEOPLE[person];
        let decision = DecideApproval {
            approval_id,
            verdict,
            edited,
            reason: None,
            by: by.into(),
            aliases: aliases.iter().map(|name| (*name).into()).collect(),
            standing: None,
        };
        let key = format!("approval/{approval_id}/{by}/{request}");
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
