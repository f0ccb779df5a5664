//! The commands that scenarios put through the engine by themselves.

use kernel::{
    Block, Command, RunState, TenantId, Trust,
    call::CallRequest,
    command::{AddMessage, CreateRun, TurnOutcome, WaitRequest},
    event::RunCreated,
};

/// Who says what is said here.
const SOURCE: &str = "operator:loadtest";

/// A run of an agent.
pub fn create(agent: &str, digest: &str) -> Command {
    let asked = said("measure the door");
    let created = RunCreated::new(TenantId::default(), agent, digest, asked.clone(), asked);
    Command::Create(Box::new(CreateRun { created, hold: None }))
}

/// A message of the operator, which wakes.
pub fn message() -> Command {
    Command::AddMessage(AddMessage { block: said("go on") })
}

/// The outcome of the open turn of `state`: one call.
///
/// None if no turn is open.
pub fn calling(state: &RunState, call: CallRequest) -> Option<Command> {
    outcome(state, |outcome| outcome.calls.push(call))
}

/// The outcome of the open turn of `state`: messages to the operator, and then a wait.
///
/// None if no turn is open.
pub fn turn(state: &RunState, say: usize, wait: WaitRequest) -> Option<Command> {
    outcome(state, |outcome| {
        outcome.wait = Some(wait);
        outcome.say = vec![Block::new("one more line of a long life", Trust::System, "agent:loadtest"); say];
    })
}

fn outcome(state: &RunState, fill: impl FnOnce(&mut TurnOutcome)) -> Option<Command> {
    let turn_id = state.turn.as_ref()?.turn_id;
    let mut outcome = TurnOutcome::empty(turn_id, state.seq, "loadtest", Trust::Operator);
    fill(&mut outcome);
    Some(Command::CommitTurn(Box::new(outcome)))
}

fn said(text: &str) -> Block {
    Block::new(text, Trust::Operator, SOURCE)
}
