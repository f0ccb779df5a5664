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
    Command::Create(Box::new(CreateRun {
        created: RunCreated {
            tenant: TenantId::default(),
            agent: agent.to_owned(),
            agent_digest: digest.to_owned(),
            objective: said("measure the door"),
            input: said("measure the door"),
            acceptance: Vec::new(),
            limits: Default::default(),
            conversation_id: None,
            metadata: Default::default(),
            parallel_wake: Default::default(),
            debounce: Default::default(),
            sampled: false,
            trigger: None,
            parent: None,
            roles: Vec::new(),
            tools: None,
        },
        hold: None,
    }))
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
    let mut outcome = TurnOutcome {
        turn_id: state.turn.as_ref()?.turn_id,
        based_on: state.seq,
        model: "loadtest".to_owned(),
        text: None,
        calls: Vec::new(),
        wait: None,
        spawns: Vec::new(),
        plan: None,
        say: Vec::new(),
        question: None,
        artifacts: Vec::new(),
        memories: Vec::new(),
        skills: Vec::new(),
        end: None,
        usage: Default::default(),
        trust: Trust::Operator,
        manifest: Default::default(),
        finish_reason: None,
        model_ms: 0,
        failures: Vec::new(),
    };
    fill(&mut outcome);
    Some(Command::CommitTurn(Box::new(outcome)))
}

fn said(text: &str) -> Block {
    Block::new(text, Trust::Operator, SOURCE)
}
