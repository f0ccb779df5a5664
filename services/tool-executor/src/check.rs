//! Whether a model may be told what came of a call, by the operator's own checks (`after_tool`): its result, what its read-back
//! found, what a failure said in words from outside.
//!
//! The observer concludes how activities end. It has neither the secrets that checks are signed with nor a way out, so it asks
//! `svc.tool-executor.check` before it tells. What is asked about is an open call by the log, and which checks there are is in the
//! agent's file: the question decides neither.

use std::sync::Arc;

use bus::{Bus, BusError, Problem, ServeOptions, Serving};
use engine::EngineError;
use kernel::call::{Call, CallFailure, CallResult, Exit, Observation};
use kernel::tool::CallKind;
use kernel::{Block, CallId, RunId, RunState, TenantId, Trust};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatcher;

/// Questions at once: each waits for somebody outside, for 30 s at the most.
const AT_ONCE: usize = 256;

/// What is asked.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Question {
    tenant: TenantId,
    run_id: RunId,
    call_id: CallId,
    /// What the observer would tell.
    observation: Observation,
    /// How the activity ended.
    exit: Exit,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    /// Why the model may not be told; none if it may.
    withheld: Option<String>,
}

/// Answers until the token is cancelled.
pub(crate) async fn serve(
    bus: &Bus,
    dispatcher: Arc<Dispatcher>,
    stop: CancellationToken,
) -> Result<Serving, BusError> {
    let options = ServeOptions { concurrency: AT_ONCE, ..ServeOptions::new("tool-executor", "check") };
    let answer = move |question: Question| {
        let dispatcher = dispatcher.clone();
        async move { dispatcher.check_end(question).await }
    };
    bus.serve_json(options, answer, stop).await
}

impl Dispatcher {
    /// A result as the model may be told it. It has happened; what came of it is for nobody who is not let see it.
    pub async fn told(&self, state: &RunState, call: &Call, result: CallResult) -> Result<CallResult, EngineError> {
        Ok(match self.pipeline.check_result(state, call, &result).await? {
            Ok(()) => result,
            Err(no) => {
                let words = format!("The call has happened. Its result is withheld: {}", no.words());
                let block = Block::new(words, Trust::System, "runtime");
                CallResult { block, value: None, artifact: None, ..result }
            }
        })
    }

    /// A failure as the model may be told it. Nobody is asked about the runtime's own words.
    pub async fn told_failure(
        &self,
        state: &RunState,
        call: &Call,
        failure: CallFailure,
    ) -> Result<CallFailure, EngineError> {
        if failure.block.trust >= Trust::System {
            return Ok(failure);
        }
        let CallFailure { block, code, duration_ms } = &failure;
        let value = Some(json!({ "code": code }));
        let shown = CallResult { block: block.clone(), value, artifact: None, duration_ms: *duration_ms };
        Ok(match self.pipeline.check_result(state, call, &shown).await? {
            Ok(()) => failure,
            Err(no) => {
                let words = format!("The call has failed ({code}). What was said of it is withheld: {}", no.words());
                CallFailure { block: Block::new(words, Trust::System, "runtime"), ..failure }
            }
        })
    }

    async fn check_end(&self, question: Question) -> Result<Checked, Problem> {
        let Question { tenant, run_id, call_id, observation, exit } = question;
        let unavailable = |error: EngineError| Problem::new(503, error.to_string());
        let state = self.engine.load(run_id).await.map_err(unavailable)?;
        let state = state.filter(|state| !state.ended && state.tenant == tenant);
        let call = state.as_ref().and_then(|state| state.calls.get(&call_id));
        let call = call.filter(|call| call.request.kind == CallKind::Activity);
        let (Some(state), Some(call)) = (&state, call) else {
            return Err(Problem::not_found(format!("the activity {call_id} is not open any more")));
        };
        let block = Block::new(observation.text(), Trust::Untrusted, format!("observer/{call_id}"));
        let value = json!({ "phase": observation.phase, "exit": exit });
        let result = CallResult { block, value: Some(value), artifact: None, duration_ms: 0 };
        let told = self.pipeline.check_result(state, call, &result).await.map_err(unavailable)?;
        Ok(Checked { withheld: told.err().map(|no| no.words()) })
    }
}
