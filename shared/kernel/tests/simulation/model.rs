//! What a model might want: anything that the rules have to bear.

use kernel::{
    ApprovalId, ArtifactId, Block, CallId, RunId, RunState, TimerId, Timestamp, Trust,
    acceptance::{AskedCheck, Check},
    agent::ParallelWake,
    budget::Usage,
    call::{Approval, ArtifactRef, Binding, CallRequest, Compensation},
    child::{OnFailure, SpawnRequest},
    command::{EndRequest, PlanChange, TurnOutcome, WaitRequest},
    event::{PlanStep, StepStatus},
    memory::{MemoryChange, MemoryPlace, MemoryScope},
    tool::{CallKind, Effect},
    units::{Duration, later},
    wait::{Condition, ExternalPattern, WaitExpr},
};

use crate::{schedule::limits, world::World};

/// A tool, as far as executor and rules care.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    pub name: &'static str,
    pub kind: CallKind,
    pub effect: Effect,
    pub idempotent: bool,
    /// Whether it can be found out what became of a call.
    pub probe: bool,
    /// What undoes it.
    pub undone_by: Option<&'static str>,
    pub policy: Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Allow,
    Deny,
    Ask,
    /// Asks two people.
    Two,
    /// Asks while the version of the policies is odd.
    Fickle,
}

const fn tool(name: &'static str, effect: Effect, idempotent: bool, probe: bool, policy: Policy) -> Tool {
    Tool { name, kind: CallKind::Call, effect, idempotent, probe, undone_by: None, policy }
}

pub const TOOLS: [Tool; 12] = [
    tool("read", Effect::Read, true, false, Policy::Allow),
    tool("write", Effect::Write, true, false, Policy::Allow),
    tool("put", Effect::External, true, false, Policy::Allow),
    tool("merge", Effect::External, false, true, Policy::Allow),
    tool("pay", Effect::Payment, false, false, Policy::Allow),
    tool("deploy", Effect::External, false, true, Policy::Ask),
    tool("mail", Effect::External, false, true, Policy::Fickle),
    tool("wipe", Effect::Destructive, false, false, Policy::Deny),
    Tool { undone_by: Some("revert"), ..tool("book", Effect::External, false, true, Policy::Allow) },
    tool("revert", Effect::External, false, true, Policy::Allow),
    Tool { kind: CallKind::Activity, ..tool("build", Effect::Write, false, false, Policy::Allow) },
    tool("transfer", Effect::Payment, false, true, Policy::Two),
];

pub const SUBJECTS: [&str; 2] = ["1", "2"];
pub const TYPES: [&str; 2] = ["forge.merged", "forge.closed"];

pub fn tool_named(name: &str) -> Tool {
    TOOLS.into_iter().find(|tool| tool.name == name).unwrap()
}

/// A planner that believes itself: how far a turn is to be believed is for the rules to say.
const TRUST: Trust = Trust::Operator;

fn block(text: &str) -> Block {
    Block::new(text, TRUST, "model:test")
}

/// Writes one outcome of the open turn of a run.
pub struct Author<'a> {
    pub world: &'a mut World,
    pub state: &'a RunState,
    pub now: Timestamp,
}

impl<'a> Author<'a> {
    pub fn new(world: &'a mut World, state: &'a RunState, now: Timestamp) -> Self {
        Self { world, state, now }
    }

    fn run(&self) -> RunId {
        self.state.run_id
    }

    fn blank(&mut self) -> TurnOutcome {
        let turn_id = self.state.turn.as_ref().unwrap().turn_id;
        let input_tokens = 10 + 10 * self.world.choices.below(4) as u64;
        TurnOutcome {
            usage: Usage { model_calls: 1, input_tokens, output_tokens: 5, ..Usage::default() },
            model_ms: 1,
            ..TurnOutcome::empty(turn_id, self.state.seq, "test", TRUST)
        }
    }

    pub fn outcome(&mut self) -> TurnOutcome {
        let mut outcome = self.blank();
        if self.world.choices.is_calm() {
            return self.wind_up(outcome);
        }
        match self.world.choices.weighted(&[4, 10, 3, 8, 2, 1, 1, 1, 3]) {
            0 => self.complete(&mut outcome),
            1 => outcome.calls = self.calls(),
            2 => {
                outcome.calls = self.calls();
                let calls: Vec<_> = outcome.calls.iter().map(|call| call.call_id).collect();
                let on = self.expression(&calls, 2);
                outcome.wait = Some(self.wait(on));
            }
            3 => {
                let on = self.expression(&[], 2);
                outcome.wait = Some(self.wait(on));
            }
            4 => outcome.question = Some(self.question()),
            5 => outcome.text = Some(block("so it is")),
            6 => outcome.end = Some(EndRequest::Fail(block("no way"))),
            8 => {
                outcome.spawns = self.spawns();
                if self.world.choices.chance(40) {
                    let calls: Vec<_> = outcome.spawns.iter().map(|spawn| spawn.call_id).collect();
                    let on = self.expression(&calls, 1);
                    outcome.wait = Some(self.wait(on));
                }
            }
            // Nothing: refused, asked again, and in the end given up.
            _ => {}
        }
        self.decorate(&mut outcome);
        outcome
    }

    fn memory(&mut self) -> MemoryChange {
        let scope = if self.world.choices.chance(30) { MemoryScope::Tenant } else { MemoryScope::Agent };
        let place = MemoryPlace { scope, owner: String::new(), key: "habit".into() };
        if self.world.choices.chance(20) {
            return MemoryChange::Delete { place };
        }
        MemoryChange::Write { place, block: block("they rise early"), expires_at: None }
    }

    /// Comes to an end as soon as nothing is open.
    fn wind_up(&mut self, mut outcome: TurnOutcome) -> TurnOutcome {
        let open: Vec<_> = self.state.calls.keys().chain(self.state.children.keys()).collect();
        if open.is_empty() {
            self.complete(&mut outcome);
        } else {
            let of = open.into_iter().map(|call| Condition::TaskResult { call_id: *call }.into()).collect();
            outcome.wait = Some(self.wait(WaitExpr::All(of)));
        }
        outcome
    }

    /// Says that it is done: with what looks into that, if something does, or as if nothing did.
    fn complete(&mut self, outcome: &mut TurnOutcome) {
        let wanted: Vec<_> =
            self.state.checked_criteria().map(|(number, criterion)| (number, criterion.check.clone())).collect();
        if wanted.is_empty() || (self.world.choices.chance(10) && !self.world.choices.is_calm()) {
            outcome.end = Some(EndRequest::Complete(block("done")));
            return;
        }
        let mut checks = Vec::new();
        for (criterion, check) in wanted {
            let call_id = match &check {
                Check::Evaluator(_) => {
                    let spawn = self.spawn();
                    outcome.spawns.push(spawn);
                    outcome.spawns.last().map(|spawn| spawn.call_id)
                }
                Check::Artifact(_) => None,
                check => {
                    let (tool, arguments) = check.call().unwrap();
                    let call = CallRequest { arguments, ..self.call_of(tool_named(tool)) };
                    outcome.calls.push(call);
                    outcome.calls.last().map(|call| call.call_id)
                }
            };
            checks.push(AskedCheck { criterion, call_id });
        }
        outcome.end = Some(EndRequest::CompleteIf { summary: block("done"), checks });
    }

    fn decorate(&mut self, outcome: &mut TurnOutcome) {
        match self.world.choices.below(8) {
            1 => outcome.say = vec![block("a word")],
            2 => {
                let steps = vec![PlanStep { title: "look".into(), status: StepStatus::Pending }];
                outcome.plan = Some(PlanChange { steps, reason: Some("to see".into()) });
            }
            3 => outcome.artifacts = vec![self.artifact()],
            4 => outcome.memories = vec![self.memory()],
            _ => {}
        }
    }

    fn calls(&mut self) -> Vec<CallRequest> {
        let count = 1 + self.world.choices.weighted(&[5, 2, 1]);
        (0..count).map(|_| self.call()).collect()
    }

    /// One to three children, with some of the tools.
    fn spawns(&mut self) -> Vec<SpawnRequest> {
        let count = 1 + self.world.choices.weighted(&[5, 2, 1]);
        (0..count).map(|_| self.spawn()).collect()
    }

    fn spawn(&mut self) -> SpawnRequest {
        let name = self.world.name();
        let tools: Vec<String> = match &self.state.tools {
            Some(tools) if !self.world.choices.chance(5) => tools.iter().cloned().collect(),
            _ => TOOLS.iter().map(|tool| tool.name.to_owned()).collect(),
        };
        let some = self.world.choices.below(tools.len() + 1);
        SpawnRequest {
            call_id: CallId::derive(self.run(), &format!("call/{name}")),
            agent: "helper".into(),
            agent_digest: "digest".into(),
            task: block("help"),
            tools: tools.into_iter().take(some).collect(),
            limits: limits(&mut self.world.choices),
            on_failure: self.world.choices.pick(&[OnFailure::Continue, OnFailure::Retry, OnFailure::Fail]),
            acceptance: Vec::new(),
            parallel_wake: ParallelWake::All,
            debounce: Duration::default(),
        }
    }

    /// A tool that the run may use; now and then any.
    fn tool(&mut self) -> Tool {
        let allowed: Vec<Tool> = match &self.state.tools {
            Some(tools) if !self.world.choices.chance(10) => {
                TOOLS.into_iter().filter(|tool| tools.contains(tool.name)).collect()
            }
            _ => Vec::new(),
        };
        if allowed.is_empty() { self.world.choices.pick(&TOOLS) } else { self.world.choices.pick(&allowed) }
    }

    fn call(&mut self) -> CallRequest {
        let tool = self.tool();
        self.call_of(tool)
    }

    fn call_of(&mut self, tool: Tool) -> CallRequest {
        let name = self.world.name();
        CallRequest {
            call_id: CallId::derive(self.run(), &format!("call/{name}")),
            tool: tool.name.into(),
            arguments: serde_json::json!({ "n": name }),
            kind: tool.kind,
            effect: tool.effect,
            idempotent: tool.idempotent,
            schema_digest: "s".into(),
            trust: TRUST,
            timeout: Duration::from_secs(4),
            compensation: if tool.undone_by.is_some() { Compensation::Declared } else { Compensation::None },
        }
    }

    fn artifact(&mut self) -> ArtifactRef {
        let name = self.world.name();
        ArtifactRef {
            artifact_id: ArtifactId::derive(self.run(), "notes"),
            name: "notes".into(),
            version: 1 + self.state.artifacts.back().map_or(0, |last| last.version),
            digest: format!("digest-{name}"),
            bytes: 1,
            media_type: "text/plain".into(),
            trust: TRUST,
        }
    }

    fn wait(&mut self, on: WaitExpr) -> WaitRequest {
        let deadline = self.world.choices.chance(40).then(|| self.in_a_while());
        WaitRequest { on, why: "to see".into(), assumes: None, expects: None, deadline }
    }

    fn in_a_while(&mut self) -> Timestamp {
        later(self.now, Duration::from_secs(1 + self.world.choices.below(60) as u64))
    }

    /// A wait on one thing, or on several, nested.
    fn expression(&mut self, calls: &[CallId], depth: usize) -> WaitExpr {
        let several = if depth > 0 { self.world.choices.weighted(&[5, 3, 3]) } else { 0 };
        if several == 0 {
            return self.condition(calls).into();
        }
        let count = 2 + self.world.choices.below(2);
        let of = (0..count).map(|_| self.expression(calls, depth - 1)).collect();
        if several == 1 { WaitExpr::Any(of) } else { WaitExpr::All(of) }
    }

    fn condition(&mut self, calls: &[CallId]) -> Condition {
        match self.world.choices.weighted(&[3, 6, 1, 4]) {
            0 => {
                let name = self.world.name();
                let timer_id = TimerId::derive(self.run(), &format!("timer/{name}"));
                Condition::Timer { timer_id, due: self.in_a_while() }
            }
            3 if !calls.is_empty() => {
                let call = self.world.choices.below(calls.len());
                Condition::TaskResult { call_id: calls[call] }
            }
            2 => Condition::OperatorInput { approval_id: None },
            _ => Condition::External(ExternalPattern {
                source: "forge".into(),
                event_type: self.world.choices.pick(&["forge.*", TYPES[0], TYPES[1]]).into(),
                subject: self.world.choices.pick(&SUBJECTS).into(),
                filter: None,
                exclusive: self.world.choices.chance(40),
                verify: None,
            }),
        }
    }

    fn question(&mut self) -> Approval {
        let name = self.world.name();
        Approval {
            approval_id: ApprovalId::derive(self.run(), &format!("question/{name}")),
            call_id: None,
            question: block("which one?"),
            tool: None,
            arguments: None,
            binding: Binding::default(),
            trust: TRUST,
            reasons: Vec::new(),
            two_people: false,
            shown: Default::default(),
            expires_at: self.in_a_while(),
        }
    }
}
