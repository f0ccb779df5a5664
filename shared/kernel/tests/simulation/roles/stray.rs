//! What comes from nowhere: a process that was held up for an hour, an old message, a bug. The rules take it or refuse it,
//! and keep their promises.

use kernel::{
    Block, CallId, Command, RunId, RunState, Trust,
    call::{Binding, CallFailure, CallResult},
    command::{CompleteCall, DenyCall, DoubtCall, ExpireApproval, FailCall, FireTimer, ReconcileCall, StartCall},
    event::Finding,
};

use crate::tasks::Hand;

/// Submits some command about something that is open.
pub fn submit(hand: &Hand, run: RunId) {
    let command = hand.with(|world| {
        let state = world.runs[&run].state.clone();
        let kind = world.choices.below(8);
        let by = world.choices.below(8);
        command(&state, kind, by)
    });
    if let Some(command) = command {
        let (worker, name) = (hand.clone(), hand.attempt());
        hand.spawn("stray", async move {
            let _ = worker.submit(run, &command, format!("stray/{name}")).await;
        });
    }
}

fn command(state: &RunState, kind: usize, by: usize) -> Option<Command> {
    let some = |count: usize| by.checked_rem(count);
    let call = || {
        let calls: Vec<CallId> = state.calls.keys().copied().collect();
        some(calls.len()).map(|number| calls[number])
    };
    let block = || Block::new("from nowhere", Trust::Untrusted, "tool:stray");
    Some(match kind {
        0 => {
            let result = CallResult { block: block(), value: None, artifact: None, duration_ms: 1 };
            Command::CompleteCall(CompleteCall { call_id: call()?, result })
        }
        1 => {
            let failure = CallFailure { block: block(), code: "stray".into(), duration_ms: 1 };
            Command::FailCall(FailCall { call_id: call()?, failure })
        }
        2 => Command::DenyCall(DenyCall { call_id: call()?, code: "policy".into(), reason: block() }),
        3 => {
            let binding = Binding { arguments: "other".into(), schema: "s".into(), policy: "0".into() };
            Command::StartCall(StartCall { call_id: call()?, executor: "stray".into(), binding })
        }
        4 => Command::DoubtCall(DoubtCall { call_id: call()?, reason: "stray".into() }),
        5 => {
            let reconcile = ReconcileCall {
                call_id: call()?,
                finding: Finding::Unknown,
                as_of: state.updated_at,
                evidence: block(),
                result: None,
            };
            Command::ReconcileCall(reconcile)
        }
        6 => {
            let timers: Vec<_> = state.timers.keys().copied().collect();
            Command::FireTimer(FireTimer { timer_id: timers[some(timers.len())?] })
        }
        _ => {
            let open: Vec<_> = state.approvals.keys().copied().collect();
            Command::ExpireApproval(ExpireApproval { approval_id: open[some(open.len())?] })
        }
    })
}
