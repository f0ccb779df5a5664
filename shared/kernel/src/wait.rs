//! Durable waits: what may wake a run, why it paused, what it assumed, what it expects, until when.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ApprovalId, CallId, Seq, TimerId, WaitId},
    mutants::{Mutant, broken},
};

/// The only four kinds of wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WakeKind {
    /// A point in time came.
    Timer,
    /// A tool call or an activity ended, or an observation of one needs a decision.
    TaskResult,
    /// An event from outside.
    External,
    /// A person answered, decided, or wrote.
    OperatorInput,
}

impl WakeKind {
    /// The name used on the wire and in Postgres.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::TaskResult => "task_result",
            Self::External => "external",
            Self::OperatorInput => "operator_input",
        }
    }
}

/// One thing that may happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Condition {
    /// `due` has come.
    Timer {
        /// The timer's id, derived from the turn that asked.
        timer_id: TimerId,
        /// When.
        #[schemars(with = "String")]
        due: Timestamp,
    },
    /// The call has ended, in whatever way.
    TaskResult {
        /// Which call.
        call_id: CallId,
    },
    /// An event from outside that matches.
    External(ExternalPattern),
    /// A decision on this approval, or with none given any message from an operator.
    OperatorInput {
        /// Which approval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        approval_id: Option<ApprovalId>,
    },
}

/// Which events from outside are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalPattern {
    /// The source token of the subject, such as `github`.
    pub source: String,
    /// The CloudEvent type; a `*` at the end stands for any rest.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The CloudEvent subject. With the source it forms the resource key.
    #[serde(default)]
    pub subject: String,
    /// A CEL expression over the event that must hold.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "where")]
    pub filter: Option<String>,
    /// Only one waiting run may have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// How to find out that it has happened, should the event never come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Box<Verify>>,
}

/// A question to the outside: what would an event say that may have been lost?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// A tool of the agent that only reads.
    pub tool: String,
    /// What it is called with.
    #[serde(default)]
    pub arguments: serde_json::Value,
    /// A CEL expression over its result, as `data`: whether it has happened.
    pub when: String,
}

impl ExternalPattern {
    /// `<source>:<subject>`: what the event and the wait meet on.
    #[must_use]
    pub fn resource_key(&self) -> String {
        resource_key(&self.source, &self.subject)
    }

    /// Whether an event of this type is meant (the filter is another question).
    #[must_use]
    pub fn matches_type(&self, event_type: &str) -> bool {
        match self.event_type.strip_suffix('*') {
            Some(start) => event_type.starts_with(start),
            None => event_type == self.event_type,
        }
    }
}

/// `<source>:<subject>`.
#[must_use]
pub fn resource_key(source: &str, subject: &str) -> String {
    format!("{source}:{subject}")
}

impl Condition {
    /// What kind of wake it would be.
    #[must_use]
    pub const fn wake_kind(&self) -> WakeKind {
        match self {
            Self::Timer { .. } => WakeKind::Timer,
            Self::TaskResult { .. } => WakeKind::TaskResult,
            Self::External(_) => WakeKind::External,
            Self::OperatorInput { .. } => WakeKind::OperatorInput,
        }
    }
}

/// Conditions joined by `any` and `all`, nested at will (to [`WaitExpr::MAX_DEPTH`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitExpr {
    /// The first one satisfies.
    Any(Vec<WaitExpr>),
    /// All are needed.
    All(Vec<WaitExpr>),
    /// A single condition.
    On(Leaf),
}

/// A condition and the event that met it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leaf {
    /// What has to happen.
    pub condition: Condition,
    /// The seq of the event that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met_by: Option<Seq>,
}

impl Leaf {
    fn has_long_key(&self) -> bool {
        matches!(&self.condition, Condition::External(on) if on.source.len() + on.subject.len() >= WaitExpr::MAX_KEY)
    }
}

impl From<Condition> for WaitExpr {
    fn from(condition: Condition) -> Self {
        Self::On(Leaf { condition, met_by: None })
    }
}

impl WaitExpr {
    /// Deepest nesting that a wait may have.
    pub const MAX_DEPTH: usize = 8;
    /// Most conditions that a wait may have.
    pub const MAX_LEAVES: usize = 256;
    /// Most bytes of a resource key: what Postgres can index.
    pub const MAX_KEY: usize = 1024;

    /// Whether it holds. An empty `any` never does, an empty `all` always would: both are refused at the door.
    #[must_use]
    pub fn is_met(&self) -> bool {
        match self {
            Self::Any(of) if broken(Mutant::AnyIsAll) => of.iter().all(Self::is_met),
            Self::All(of) if broken(Mutant::AllIsAny) => of.iter().any(Self::is_met),
            Self::Any(of) => of.iter().any(Self::is_met),
            Self::All(of) => of.iter().all(Self::is_met),
            Self::On(leaf) => leaf.met_by.is_some(),
        }
    }

    /// All conditions, in order; their positions are the leaf numbers.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Leaf> {
        let mut leaves = Vec::new();
        self.collect(&mut leaves);
        leaves
    }

    fn collect<'a>(&'a self, into: &mut Vec<&'a Leaf>) {
        match self {
            Self::Any(of) | Self::All(of) => of.iter().for_each(|each| each.collect(into)),
            Self::On(leaf) => into.push(leaf),
        }
    }

    /// Marks every unmet condition that `meets` says yes to. Returns whether any was.
    pub fn meet(&mut self, by: Seq, meets: &mut dyn FnMut(usize, &Condition) -> bool) -> bool {
        self.meet_from(by, meets, &mut 0)
    }

    fn meet_from(&mut self, by: Seq, meets: &mut dyn FnMut(usize, &Condition) -> bool, next: &mut usize) -> bool {
        match self {
            Self::Any(of) | Self::All(of) => {
                // Not `any`: every leaf has to be numbered and asked, also after the first that is met.
                let met = of.iter_mut().map(|each| each.meet_from(by, meets, next));
                met.filter(|met| *met).count() > 0
            }
            Self::On(leaf) => {
                let number = *next;
                *next += 1;
                let met = leaf.met_by.is_none() && meets(number, &leaf.condition);
                if met {
                    leaf.met_by = Some(by);
                }
                met
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Any(of) | Self::All(of) => 1 + of.iter().map(Self::depth).max().unwrap_or(0),
            Self::On(_) => 1,
        }
    }

    fn has_empty(&self) -> bool {
        match self {
            Self::Any(of) | Self::All(of) => of.is_empty() || of.iter().any(Self::has_empty),
            Self::On(_) => false,
        }
    }

    /// What is wrong with its shape, in words for the model.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.depth() > Self::MAX_DEPTH {
            Some(format!("a wait may be nested {} deep at most", Self::MAX_DEPTH))
        } else if self.leaves().len() > Self::MAX_LEAVES {
            Some(format!("a wait may have {} conditions at most", Self::MAX_LEAVES))
        } else if self.has_empty() {
            Some("`any` and `all` need at least one condition".to_owned())
        } else if self.leaves().iter().any(|leaf| leaf.has_long_key()) {
            Some(format!("`source` and `subject` may have {} bytes together", Self::MAX_KEY))
        } else {
            None
        }
    }
}

/// A registered wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// Its id, derived from the turn that asked.
    pub wait_id: WaitId,
    /// What may satisfy it.
    pub on: WaitExpr,
    /// Why the run pauses here.
    pub why: String,
    /// What it takes for granted meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumes: Option<String>,
    /// What it expects to happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expects: Option<String>,
    /// When it gives up: then the run wakes all the same and is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
}

impl Wait {
    /// The timer of its deadline.
    #[must_use]
    pub fn deadline_timer(&self, run: crate::RunId) -> TimerId {
        TimerId::derive(run, &format!("deadline/{}", self.wait_id))
    }

    /// The kinds of wake that it waits for.
    #[must_use]
    pub fn kinds(&self) -> BTreeSet<WakeKind> {
        self.on.leaves().iter().map(|leaf| leaf.condition.wake_kind()).collect()
    }

    /// Whether it names this call.
    #[must_use]
    pub fn names_call(&self, call: CallId) -> bool {
        self.on
            .leaves()
            .iter()
            .any(|leaf| matches!(leaf.condition, Condition::TaskResult { call_id } if call_id == call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator() -> WaitExpr {
        Condition::OperatorInput { approval_id: None }.into()
    }

    fn external(subject: &str) -> WaitExpr {
        Condition::External(ExternalPattern {
            source: "github".into(),
            event_type: "github.push*".into(),
            subject: subject.into(),
            filter: None,
            exclusive: false,
            verify: None,
        })
        .into()
    }

    #[test]
    fn nested_waits_are_met_by_the_right_leaf() {
        let mut on = WaitExpr::Any(vec![WaitExpr::All(vec![operator(), external("a")]), external("b")]);
        assert!(!on.is_met());
        assert!(on.meet(7, &mut |number, _| number == 1));
        assert!(!on.is_met(), "`all` still lacks the operator");
        assert!(!on.meet(8, &mut |number, _| number == 1), "met once only");
        assert!(on.meet(9, &mut |_, condition| matches!(condition, Condition::OperatorInput { .. })));
        assert!(on.is_met());
    }

    #[test]
    fn shapes_that_could_never_or_always_hold_are_refused() {
        assert!(WaitExpr::Any(vec![]).problem().is_some());
        assert!(WaitExpr::All(vec![operator(), WaitExpr::All(vec![])]).problem().is_some());
        let deep = (0..9).fold(operator(), |inner, _| WaitExpr::Any(vec![inner]));
        assert!(deep.problem().is_some());
        assert!(operator().problem().is_none());
    }

    #[test]
    fn types_match_exactly_or_by_prefix() {
        let pattern = |event_type: &str| ExternalPattern {
            source: "github".into(),
            event_type: event_type.into(),
            subject: String::new(),
            filter: None,
            exclusive: false,
            verify: None,
        };
        assert!(pattern("github.push").matches_type("github.push"));
        assert!(!pattern("github.push").matches_type("github.push.more"));
        assert!(pattern("github.*").matches_type("github.push"));
    }
}
