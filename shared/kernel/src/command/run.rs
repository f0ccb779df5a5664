//! What may be asked of a run as a whole: by people, by the scheduler, by its parent, and from outside.

use crate::{
    acceptance::Criterion,
    budget::{Limits, Spent},
    event::{ExternalRef, Outcome, Rule, RunCreated, RunForked},
    ids::{CallId, RunId, Seq, TimerId, WaitId},
    trust::Block,
};

/// For `Command::Create`. The run's id is the one that the command is submitted for.
#[derive(Clone, Debug, PartialEq)]
pub struct CreateRun {
    /// What will be recorded.
    pub created: RunCreated,
    /// Whether it may begin at once; if not, why.
    pub hold: Option<String>,
}

/// For `Command::Fork`. The run's id is the one that the command is submitted for.
#[derive(Clone, Debug, PartialEq)]
pub struct ForkRun {
    /// The run as if it were new.
    pub create: CreateRun,
    /// What it brings along.
    pub forked: RunForked,
}

/// For `Command::AddMessage`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddMessage {
    /// What the operator writes.
    pub block: Block,
}

/// For commands that need nothing but a person.
#[derive(Clone, Debug, PartialEq)]
pub struct ByOperator {
    /// The authenticated operator.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// For `Command::ChangeBudget`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeBudget {
    /// The limits from now on.
    pub limits: Limits,
    /// The authenticated operator.
    pub by: String,
}

/// For `Command::Revise`. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReviseRun {
    /// What is to be reached.
    pub objective: Option<Block>,
    /// How it is known that it was reached.
    pub acceptance: Option<Vec<Criterion>>,
    /// The only tools that it may use.
    pub tools: Option<Vec<String>>,
    /// What it may spend.
    pub limits: Option<Limits>,
    /// The authenticated operator.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// For `Command::Declassify`.
#[derive(Clone, Debug, PartialEq)]
pub struct Declassify {
    /// What is to be believed, word for word.
    pub text: String,
    /// The event that it came in with.
    pub from: Seq,
    /// The authenticated operator.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// For `Command::FireTimer`.
#[derive(Clone, Debug, PartialEq)]
pub struct FireTimer {
    /// Which timer.
    pub timer_id: TimerId,
}

/// For `Command::DeliverExternal`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliverExternal {
    /// Which event.
    pub external: ExternalRef,
    /// Which wait.
    pub wait_id: WaitId,
    /// Which condition of it.
    pub leaf: u16,
    /// What the event says.
    pub block: Block,
}

/// For `Command::SettleChild`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReport {
    /// The call that the child answers.
    pub call_id: CallId,
    /// The child's run.
    pub child_id: RunId,
    /// How it ended.
    pub outcome: Outcome,
    /// By which rule.
    pub rule: Rule,
    /// What it came to, as far as it may be believed.
    pub answer: Block,
    /// What it and its own children spent.
    pub spent: Spent,
}

/// For `Command::EndChild`.
#[derive(Clone, Debug, PartialEq)]
pub struct ByParent {
    /// The parent.
    pub parent: RunId,
    /// Why.
    pub reason: String,
}

/// For `Command::HoldChild`.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldChild {
    /// The parent.
    pub parent: RunId,
    /// Whether it is held from now on.
    pub hold: bool,
}
