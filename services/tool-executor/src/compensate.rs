//! Undoing what a run has done, when it is cancelled or fails: newest effect first, one at a time, each as a call of its own
//! that goes the way of any other.

use engine::{EngineError, SubmitError};
use kernel::call::{CallRequest, CallResult, Compensation};
use kernel::command::{Command, CompensateCall};
use kernel::event::EventData;
use kernel::tool::CallKind;
use kernel::{CallId, Cause, RunId, RunState, Seq};
use serde_json::Value;

use crate::dispatch::Dispatcher;

/// Events that are read at once.
const PAGE: u32 = 500;

impl Dispatcher {
    /// Asks for the next call that undoes something, if there is to be one.
    pub async fn compensate(&self, run: RunId, seq: Option<Seq>) -> Result<(), SubmitError> {
        let Some(state) = self.engine.load(run).await? else { return Ok(()) };
        let Some(undone) = state.to_compensate() else { return Ok(()) };
        let Some((request, result)) = self.as_it_was(&state, undone).await? else {
            tracing::error!(run_id = %run, call = %undone, "the call that is to be undone is not in the log");
            return Ok(());
        };
        let request = self.undoing(run, undone, request, result);
        let cause = Cause { service: "tool-executor".to_owned(), seq, ..Cause::default() };
        let command = Command::CompensateCall(Box::new(CompensateCall { request }));
        match self.engine.submit_on(&state, command, format!("compensate/{undone}"), cause).await {
            Ok(_) => tracing::info!(run_id = %run, call = %undone, "what a call has done is undone"),
            Err(SubmitError::Rejected(rejection)) => {
                tracing::debug!(run_id = %run, call = %undone, code = rejection.code(), "somebody else undoes it");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The call that undoes another. Its arguments are those of that call and, as `result`, what came of it: what the tool's
    /// `compensate` has places for. Nothing says that it may be repeated.
    fn undoing(&self, run: RunId, undone: CallId, request: CallRequest, result: CallResult) -> CallRequest {
        let tool = self.pipeline.registry.now(&request.tool);
        let schema_digest = tool.map_or_else(|| request.schema_digest.clone(), |tool| tool.digest.clone());
        let mut arguments = request.arguments.as_object().cloned().unwrap_or_default();
        arguments.insert("result".to_owned(), result.value.unwrap_or(Value::Null));
        CallRequest {
            call_id: CallId::derive(run, &format!("compensation/{undone}")),
            arguments: Value::Object(arguments),
            kind: CallKind::Call,
            idempotent: false,
            schema_digest,
            trust: request.trust.join(result.block.trust),
            compensation: Compensation::Of(undone),
            ..request
        }
    }

    /// A call as it was asked for (with the arguments as a person edited them) and what came of it, from the log.
    async fn as_it_was(
        &self,
        state: &RunState,
        call_id: CallId,
    ) -> Result<Option<(CallRequest, CallResult)>, EngineError> {
        let reads = self.engine.reads();
        let (mut request, mut result, mut approval, mut after) = (None::<CallRequest>, None, None, 0);
        loop {
            let page = reads.events(&state.tenant, state.run_id, after, PAGE).await?;
            for event in &page {
                match event.decode()?.data {
                    EventData::ToolRequested(requested) if requested.call.call_id == call_id => {
                        request = Some(requested.call);
                    }
                    EventData::ApprovalRequested(asked) if asked.approval.call_id == Some(call_id) => {
                        approval = Some(asked.approval.approval_id);
                    }
                    EventData::ApprovalGranted(granted) if Some(granted.approval_id) == approval => {
                        if let (Some(request), Some(arguments)) = (&mut request, granted.arguments) {
                            request.arguments = arguments;
                        }
                    }
                    EventData::ToolCompleted(done) if done.call_id == call_id => result = Some(done.result),
                    _ => {}
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE as usize => after = last.seq,
                _ => return Ok(request.zip(result)),
            }
        }
    }
}
