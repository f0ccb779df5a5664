//! What a turn puts into the log: its outcome, that it is given up, or at least what it cost.

use std::time::Duration;

use bus::retry;
use engine::SubmitError;
use kernel::{
    Cause, Command, Rejection, RunState, Timestamp,
    command::{ChargeTurn, RejectTurn, TurnOutcome},
};

use super::{Asking, Consumed, Open, Tried, TurnError, Turns};

/// How long a paid outcome goes on being committed while the stores are away.
const COMMIT_WITHIN: Duration = Duration::from_secs(60);

impl Turns {
    pub(super) async fn commit(
        &self,
        open: &mut Open<'_>,
        outcome: TurnOutcome,
        traceparent: &str,
        consumed: &mut Consumed,
    ) -> Result<Tried, TurnError> {
        let is_false_wake = kernel::economics::changes_nothing(&open.state, &outcome);
        let command = Command::CommitTurn(Box::new(outcome));
        match self.submit(&Asking { traceparent: Some(traceparent), ..open.asking() }, command, &consumed.key).await {
            Ok(committed) => {
                // Also if somebody was faster: then it is there as cost.
                consumed.recorded();
                let is_ours = |event: &kernel::Event| matches!(event.data, kernel::EventData::TurnCompleted(_));
                let ours = committed.duplicate || committed.events.iter().any(is_ours);
                if ours && is_false_wake {
                    metrics::counter!("planner_false_wakes_total").increment(1);
                }
                Ok(if ours { Tried::Committed } else { Tried::Moot })
            }
            Err(SubmitError::Rejected(Rejection::InvalidOutcome(problems))) => {
                // The run has moved on since the slice was made: what is read next is read against it as it is.
                if let Some(state) = self.engine.load(open.state.run_id).await? {
                    open.state = state;
                }
                Ok(Tried::Problems(problems))
            }
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => Ok(Tried::Moot),
            Err(SubmitError::Rejected(rejection)) => Err(TurnError::Rejected(rejection)),
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }

    pub(super) async fn refuse(
        &self,
        asking: &Asking<'_>,
        code: &'static str,
        problems: Vec<String>,
        consumed: &mut Consumed,
    ) -> Result<&'static str, TurnError> {
        let Asking { state, turn_id, .. } = asking;
        tracing::warn!(run_id = %state.run_id, %turn_id, code, ?problems, "a turn is given up");
        let (usage, failures) = (consumed.usage, consumed.failures.clone());
        let reject = RejectTurn { turn_id: *turn_id, code: code.to_owned(), problems, usage, failures };
        match self.submit(asking, Command::RejectTurn(reject), &consumed.key).await {
            Ok(_) => {
                consumed.recorded();
                Ok("rejected")
            }
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => Ok("superseded"),
            Err(SubmitError::Rejected(rejection)) => Err(TurnError::Rejected(rejection)),
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }

    /// Records what was paid for and came to nothing. `key` is the one of what it was to be a part of: that may have been committed
    /// without anybody hearing of it, and it counts once.
    pub(super) async fn charge(&self, asking: &Asking<'_>, charge: ChargeTurn, key: &str) {
        let (run_id, tokens) = (asking.state.run_id, charge.usage.tokens());
        metrics::counter!("planner_charges_total").increment(1);
        match self.submit(asking, Command::ChargeTurn(charge), key).await {
            Ok(_) => {}
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => {
                tracing::info!(%run_id, tokens, %rejection, "the log of an ended run keeps nothing more of what it cost");
            }
            Err(error) => tracing::warn!(%run_id, tokens, %error, "what was paid for a turn is not in the log"),
        }
    }

    /// Submits for a while: what a model was paid for is not thrown away because the stores blink.
    pub(super) async fn submit(
        &self,
        asking: &Asking<'_>,
        command: Command,
        key: &str,
    ) -> Result<engine::Committed, SubmitError> {
        let opened_by =
            asking.state.turn.as_ref().filter(|turn| turn.turn_id == asking.turn_id).map(|turn| turn.opened_by);
        let cause = Cause {
            service: "planner".to_owned(),
            seq: opened_by,
            traceparent: asking.traceparent.map(str::to_owned),
            operator: None,
        };
        let policy =
            retry::Policy::exponential(Duration::from_millis(100), Duration::from_secs(3)).within(COMMIT_WITHIN);
        let submit = || self.engine.submit_on(asking.state, command.clone(), key, cause.clone());
        retry::when(policy, SubmitError::is_transient, submit).await
    }
}

/// Whether nothing is left to do for the turn.
pub(super) const fn is_moot(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::Ended(_) | Rejection::Ending | Rejection::StaleTurn(_) | Rejection::NoSuchRun | Rejection::Paused
    )
}

/// What the rules would say to an outcome, without asking for it.
pub(super) fn refused(state: &RunState, outcome: &TurnOutcome) -> Option<Vec<String>> {
    let command = Command::CommitTurn(Box::new(outcome.clone()));
    match kernel::decide(state.run_id, Some(state), &command, Timestamp::now()) {
        Err(Rejection::InvalidOutcome(problems)) => Some(problems),
        _ => None,
    }
}
