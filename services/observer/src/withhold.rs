//! What the operator's own checks keep from a model: how an activity ended is told once they have seen it (`after_tool`).
//!
//! The tool-executor asks them, who has the secrets that they are signed with. While such a call runs, the model is told that
//! something was noticed, and none of the words that were printed.

use std::time::Duration;

use bus::{BusError, subject};
use kernel::{
    CallId, RunId, TenantId,
    agent::{NoAnswer, Point, PointCheck},
    call::{Exit, Observation},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{asking::Adviser, call::Tracked, conclude::Report, meter};

/// For the way to the tool-executor and back, beside what the checks may take.
const ON_THE_WAY: Duration = Duration::from_secs(3);
/// Between two tries to reach a tool-executor.
const AGAIN: Duration = Duration::from_millis(500);

/// What is told in place of what a call printed that goes on.
const UNSEEN: &str = "Something was noticed while it runs. What it printed is shown once the operator's checks have seen it, at its end.";

/// The checks that want to see what came of a call, as far as they matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// The longest that one of them may take.
    within: Duration,
    /// The first whose silence means no.
    strict: Option<String>,
}

/// What is asked of the tool-executor: `svc.tool-executor.check`.
#[derive(Serialize)]
struct Question<'a> {
    tenant: &'a TenantId,
    run_id: RunId,
    call_id: CallId,
    observation: &'a Observation,
    exit: &'a Exit,
}

/// What it says.
#[derive(Deserialize)]
struct Checked {
    withheld: Option<String>,
}

impl Gate {
    /// Of an agent's checks; none if none of them wants to see results.
    pub(crate) fn of(checks: &[PointCheck]) -> Option<Self> {
        let here = || checks.iter().filter(|check| check.at == Point::AfterTool);
        let within = here().map(|check| check.timeout.std()).max()?;
        let strict = here().find(|check| check.default == NoAnswer::Deny).map(|check| check.name.clone());
        Some(Self { within, strict })
    }

    /// What it means that nobody could ask them.
    fn by_default(&self, problem: &str) -> Option<String> {
        self.strict.as_ref().map(|check| format!("the check `{check}` could not be asked: {problem}"))
    }
}

impl Adviser {
    /// Why a model may not be told how a call has ended; none if it may.
    pub(crate) async fn withheld(&self, gate: &Gate, call: &Tracked, report: &Report) -> Option<String> {
        let Report::Conclude { exit, observation, .. } = report else { return None };
        // Whatever may be told in the end is in what is in doubt, if something is.
        let observation = report.doubt().unwrap_or(observation);
        let (tenant, run_id, call_id) = (&call.address.tenant, call.address.run_id, call.address.call_id);
        let question = Question { tenant, run_id, call_id, observation, exit };
        let until = Instant::now() + self.reaches_within();
        let withheld = loop {
            let subject = subject::svc("tool-executor", "check");
            match self.bus().request_json(&subject, &question, gate.within + ON_THE_WAY).await {
                Ok(Checked { withheld }) => break withheld,
                Err(error) if error.is_transient() && Instant::now() < until => tokio::time::sleep(AGAIN).await,
                Err(error) => {
                    tracing::warn!(%run_id, %call_id, %error, "the checks of an agent could not be asked about an activity");
                    break gate.by_default(&in_words(&error));
                }
            }
        };
        meter::checked(withheld.is_some());
        withheld
    }
}

/// Without what only says how the message went.
fn in_words(error: &BusError) -> String {
    match error {
        BusError::Refused { message, .. } => message.clone(),
        _ => "no tool-executor answers".to_owned(),
    }
}

impl Report {
    /// The same without anything that the call has printed, for this reason.
    #[must_use]
    pub(crate) fn without_words(mut self, why: &str) -> Self {
        let (Self::Observe { observation, .. } | Self::Conclude { observation, .. }) = &mut self;
        // How long it was silent is nothing that it said.
        if observation.phase != "silence" {
            observation.changed = why.to_owned();
        }
        observation.evidence.clear();
        if let Self::Conclude { doubt, .. } = &mut self {
            *doubt = None;
        }
        self
    }

    /// What is told of a call while it runs, if checks want to see its result first.
    #[must_use]
    pub(crate) fn guarded(self, gate: Option<&Gate>) -> Self {
        if gate.is_some() && matches!(self, Self::Observe { .. }) { self.without_words(UNSEEN) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use kernel::{call::Evidence, units};

    use super::*;

    fn check(name: &str, at: Point, seconds: u64, default: NoAnswer) -> PointCheck {
        PointCheck {
            name: name.to_owned(),
            at,
            url: None,
            secret: None,
            responder: Some("desk".to_owned()),
            timeout: units::Duration::from_secs(seconds),
            default,
        }
    }

    #[test]
    fn only_checks_of_results_hold_a_call_back() {
        let before = check("gate", Point::BeforeTool, 9, NoAnswer::Deny);
        assert_eq!(Gate::of(std::slice::from_ref(&before)), None);
        let (mild, strict) =
            (check("mild", Point::AfterTool, 2, NoAnswer::Allow), check("strict", Point::AfterTool, 1, NoAnswer::Deny));
        let gate = Gate::of(&[before, mild.clone(), strict]).unwrap();
        assert_eq!(gate, Gate { within: Duration::from_secs(2), strict: Some("strict".to_owned()) });
        assert!(gate.by_default("x").unwrap().contains("`strict`"));
        assert_eq!(Gate::of(&[mild]).unwrap().by_default("x"), None);
    }

    fn observation(phase: &str) -> Observation {
        Observation {
            call_id: None,
            phase: phase.to_owned(),
            changed: "SECRET 1".to_owned(),
            anomaly: true,
            decision: Some("`shell.run` failed".to_owned()),
            evidence: vec![Evidence { excerpt: "SECRET 2".to_owned(), ..Evidence::default() }],
            missing: None,
            counts: Default::default(),
        }
    }

    #[test]
    fn nothing_that_was_printed_is_left() {
        let exit = Exit { code: Some(1), signal: None, reason: "exited".into(), bytes: 9, lines: 1 };
        let report = Report::Conclude {
            key: "k".to_owned(),
            exit,
            succeeded: false,
            observation: observation("failed"),
            duration_ms: 1,
            doubt: Some(Box::new(observation("failed"))),
            asked: None,
        };
        let report = report.without_words("It is withheld.");
        assert!(!format!("{report:?}").contains("SECRET"), "{report:?}");
        assert!(report.observation().decision.is_some() && report.observation().anomaly, "it still wakes");
        assert_eq!(report.key(), "k");
        let noticed = Report::Observe { key: "n".to_owned(), observation: observation("failure") };
        assert_eq!(noticed.clone().guarded(None), noticed);
        let gate = Gate { within: Duration::ZERO, strict: None };
        assert!(!format!("{:?}", noticed.guarded(Some(&gate))).contains("SECRET"));
    }
}
