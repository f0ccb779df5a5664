//! `svc.tool-executor.preview`: whether a call could pass with the arguments that a person wants to give it. The approval
//! service asks before it takes such a decision, so that the person hears at once what is wrong with them. The call is judged
//! again when it is dispatched: this answer binds nobody.

use std::sync::Arc;

use bus::{Bus, BusError, Problem, ServeOptions, Serving};
use kernel::call::{Binding, Grant};
use kernel::{ApprovalId, CallId, RunId, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatcher;
use crate::pipeline::Verdict;

/// What is asked.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Question {
    tenant: TenantId,
    run_id: RunId,
    call_id: CallId,
    approval_id: ApprovalId,
    arguments: Value,
}

/// That it could.
#[derive(Debug, Serialize)]
pub(crate) struct Passes {
    passes: bool,
}

/// Answers until the token is cancelled.
pub(crate) async fn serve(
    bus: &Bus,
    dispatcher: Arc<Dispatcher>,
    stop: CancellationToken,
) -> Result<Serving, BusError> {
    let answer = move |question: Question| {
        let dispatcher = dispatcher.clone();
        async move { dispatcher.preview(question).await }
    };
    bus.serve_json(ServeOptions::new("tool-executor", "preview"), answer, stop).await
}

impl Dispatcher {
    async fn preview(&self, question: Question) -> Result<Passes, Problem> {
        let unavailable = |error: engine::EngineError| Problem::new(503, error.to_string());
        let state = self.engine.load(question.run_id).await.map_err(unavailable)?;
        let state = state.filter(|state| state.tenant == question.tenant);
        let call = state.as_ref().and_then(|state| state.calls.get(&question.call_id)).cloned();
        let (Some(state), Some(mut call)) = (state, call) else {
            return Err(Problem::not_found(format!("the call {} is not open any more", question.call_id)));
        };
        // As if everybody who has to had said yes to it: only what they can't allow is in the way then.
        let binding = Binding {
            arguments: policy::digest(&question.arguments),
            schema: call.request.schema_digest.clone(),
            policy: self.pipeline.policies.current().version().to_owned(),
        };
        let (approval_id, endorsed_by) = (question.approval_id, Some("somebody else".to_owned()));
        call.grant = Some(Grant { approval_id, binding, standing: None, endorsed_by });
        call.request.arguments = question.arguments;
        match self.pipeline.judge(&state, &call).await.map_err(unavailable)? {
            Verdict::Refused(refusal) => Err(Problem::new(422, format!("{}: {}", refusal.code, refusal.words))),
            Verdict::Ask(_) | Verdict::Go(_) => Ok(Passes { passes: true }),
        }
    }
}
