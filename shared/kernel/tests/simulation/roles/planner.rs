//! Takes turns: under a lease that may lie, shown to a model, committed or given up.

use std::sync::Arc;

use kernel::{
    Block, Command, Rejection, RunId, RunState, Seq, Timestamp, Trust, TurnId,
    acceptance::CriterionVerdict,
    budget::Usage,
    command::{ChargeTurn, Compact, Judge, RejectTurn, TurnOutcome},
    context::Summary,
    event::PaidFor,
};

use crate::{bus::Answer, model::Author, tasks::Hand, world::turn_lease};

/// Times that a model is asked again.
const MAX_REASKS: usize = 2;

pub struct Doorbell {
    pub run: RunId,
    pub turn: TurnId,
    /// An event that the state has to know of; none if it has to be the log's.
    pub seq: Option<Seq>,
    pub not_before: Option<Timestamp>,
}

pub async fn take(hand: &Hand, doorbell: &Doorbell) -> Answer {
    let now = hand.now();
    if let Some(not_before) = doorbell.not_before.filter(|at| *at > now) {
        let left = not_before.duration_since(now).as_millis();
        return Answer::Again(i64::try_from(left).unwrap() + 1);
    }
    let lease = turn_lease(doorbell.turn);
    if !hand.acquire(&lease).await {
        return Answer::Again(2000);
    }
    let answer = match load(hand, doorbell).await {
        Some(state) => turn(hand, state).await,
        None => Answer::Ack,
    };
    hand.release(&lease);
    answer
}

/// The run, if the doorbell's turn is still its open one and may be taken.
async fn load(hand: &Hand, doorbell: &Doorbell) -> Option<Arc<RunState>> {
    let may_be_taken = |state: &RunState| state.is_open_turn(doorbell.turn) && state.ending.is_none() && !state.paused;
    hand.load_at_least(doorbell.run, doorbell.seq, may_be_taken).await.filter(|state| may_be_taken(state))
}

async fn turn(hand: &Hand, mut state: Arc<RunState>) -> Answer {
    let Some(turn) = state.turn.as_ref().map(|turn| turn.turn_id) else { return Answer::Ack };
    for _ in 0..=MAX_REASKS {
        if state.is_to_be_judged() {
            match judge(hand, &state, turn).await {
                Some(now) => state = now,
                None => return Answer::Ack,
            }
            continue;
        }
        if hand.with(|world| world.choices.chance(6)) {
            match compact(hand, &state, turn).await {
                Some(now) => state = now,
                None => return Answer::Ack,
            }
        }
        // The model thinks.
        hand.step().await;
        let troubled = hand.with(|world| world.choices.weighted(&[96, 3, 1]));
        match troubled {
            1 => {
                // It had answered before, and in vain.
                let key = format!("turn/{turn}/{}", hand.attempt());
                charge(hand, &state, turn, PaidFor::Answer, key).await;
                return Answer::Again(1000);
            }
            2 => return reject(hand, state.run_id, turn, "provider").await,
            _ => {}
        }
        let outcome = hand.with(|world| {
            let now = hand.clock(world);
            Author::new(world, &state, now).outcome()
        });
        store(hand, &outcome).await;
        let key = format!("turn/{turn}/{}", hand.attempt());
        match hand.submit(state.run_id, &Command::CommitTurn(Box::new(outcome)), key).await {
            Err(Rejection::InvalidOutcome(_)) => {
                let Some(now) = hand.load(state.run_id).await.filter(|now| now.is_open_turn(turn)) else {
                    return Answer::Ack;
                };
                state = now;
            }
            _ => return Answer::Ack,
        }
    }
    reject(hand, state.run_id, turn, "invalid_output").await
}

/// Says what came of looking into the criteria; now and then more than came of it. The run as it is after that, if it is still
/// this turn's.
async fn judge(hand: &Hand, state: &RunState, turn: TurnId) -> Option<Arc<RunState>> {
    let lies = hand.with(|world| world.choices.chance(30));
    let verification = state.verification.as_ref()?;
    let verdicts = verification.checks.iter().map(|check| CriterionVerdict {
        criterion: check.asked.criterion,
        passed: lies || check.ended_well.unwrap_or(true),
        how: "as it says".into(),
        evidence: Block::new("seen", Trust::Operator, "runtime"),
        call_id: check.asked.call_id,
    });
    let judge = Judge { turn_id: turn, verdicts: verdicts.collect(), artifacts: Vec::new() };
    let key = format!("judge/{turn}/{}", hand.attempt());
    let _ = hand.submit(state.run_id, &Command::Judge(Box::new(judge)), key).await;
    hand.load(state.run_id).await.filter(|now| now.is_open_turn(turn))
}

/// Makes a summary of what went before, of a run that may have moved on.
async fn compact(hand: &Hand, state: &RunState, turn: TurnId) -> Option<Arc<RunState>> {
    hand.step().await;
    let body = Block::new("so it was", Trust::Operator, "model:test");
    let compact = Compact {
        turn_id: turn,
        strategy: "model".into(),
        reason: "history".into(),
        before_tokens: 20,
        after_tokens: 3,
        usage: Usage { model_calls: 1, input_tokens: 10, output_tokens: 3, ..Usage::default() },
        kept: state.standing(),
        summary: Some(Summary { body, upto: state.seq, entries: 1 }),
        handoff: None,
        not_reset: None,
    };
    let key = format!("compact/{turn}/{}", hand.attempt());
    let refused = hand.submit(state.run_id, &Command::Compact(Box::new(compact)), key.clone()).await.is_err();
    if refused {
        charge(hand, state, turn, PaidFor::Summary, key).await;
    }
    hand.load(state.run_id).await.filter(|now| now.is_open_turn(turn))
}

/// What was paid for and came to nothing, told under the name under which it would have come to something.
async fn charge(hand: &Hand, state: &RunState, turn_id: TurnId, paid_for: PaidFor, key: String) {
    let usage = Usage { model_calls: 1, input_tokens: 10, output_tokens: 3, ..Usage::default() };
    let charge = ChargeTurn { turn_id, paid_for, reason: "in vain".into(), usage, failures: Vec::new() };
    let _ = hand.submit(state.run_id, &Command::ChargeTurn(charge), key).await;
}

/// The artifact service keeps the content before anybody may name it.
async fn store(hand: &Hand, outcome: &TurnOutcome) {
    if hand.with(|world| world.protocol.store_first) {
        for artifact in &outcome.artifacts {
            hand.step().await;
            hand.with(|world| world.content.insert(artifact.digest.clone()));
        }
    }
}

async fn reject(hand: &Hand, run: RunId, turn_id: TurnId, code: &str) -> Answer {
    let (problems, usage) = (vec!["unusable".to_owned()], Default::default());
    let command =
        Command::RejectTurn(RejectTurn { turn_id, code: code.to_owned(), problems, usage, failures: Vec::new() });
    let key = format!("turn/{turn_id}/{}", hand.attempt());
    let _ = hand.submit(run, &command, key).await;
    Answer::Ack
}
