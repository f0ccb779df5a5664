//! Reads signals and says what changed; the end of an activity is its to tell.

use kernel::{
    CallId, Command, RunId,
    budget::Usage,
    call::{Exit, Observation, SignalCounts},
    command::ConcludeCall,
    opinion::SecondOpinion,
};

use crate::{
    bus::{Answer, Exited, Signal},
    tasks::Hand,
};

pub async fn read(hand: &Hand, run: RunId, call_id: CallId, offset: u32, signal: Signal) -> Answer {
    let (command, kind) = match signal {
        Signal::Progress => (Command::Observe(observation(call_id, "progress", false)), "progress"),
        Signal::Failure => (Command::Observe(observation(call_id, "failure", true)), "failure"),
        Signal::Exit(exited) => {
            let exit = exit(exited);
            let observation = observation(call_id, "completed", !exit.is_success());
            let asked = exit.is_success().then(opinion);
            let succeeded = exit.is_success();
            let conclude = ConcludeCall { call_id, succeeded, exit, observation, asked, duration_ms: 1 };
            (Command::ConcludeCall(Box::new(conclude)), "exit")
        }
    };
    // A refusal means that nobody wants to hear of the call any more.
    let _ = hand.submit(run, &command, format!("{call_id}/{kind}/{offset}")).await;
    Answer::Ack
}

fn observation(call_id: CallId, phase: &str, wakes: bool) -> Observation {
    Observation {
        call_id: Some(call_id),
        phase: phase.into(),
        changed: "more".into(),
        anomaly: wakes,
        decision: wakes.then(|| "look".into()),
        evidence: Vec::new(),
        missing: None,
        counts: SignalCounts::default(),
    }
}

/// Somebody was asked: that costs, and no turn was taken.
fn opinion() -> SecondOpinion {
    let usage = Usage { model_calls: 1, input_tokens: 3, output_tokens: 1, ..Usage::default() };
    SecondOpinion { usage, ..SecondOpinion::none("late") }
}

fn exit(exited: Exited) -> Exit {
    let (code, reason) = match exited {
        Exited::Well => (Some(0), "exited"),
        Exited::Badly => (Some(1), "exited"),
        Exited::Cancelled => (None, "cancelled"),
        Exited::Lost => (None, "lost"),
    };
    Exit { code, signal: None, reason: reason.into(), bytes: 1, lines: 1 }
}
