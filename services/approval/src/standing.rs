//! Decides in the name of whoever allowed all calls of a shape, and keeps what is given in step with the decision that it was
//! given with.

use std::sync::Arc;

use engine::{
    ApprovalRow, AuditEntry, AuditTrail, Engine, EngineError, NewStanding, Shape, StandingApprovals, SubmitError,
};
use kernel::{Command, RunState, StandingId, Timestamp, call::Verdict, command::DecideApproval};
use serde_json::json;
use service::Tracer;
use uuid::Uuid;

use crate::span_of;

/// Decides where a standing approval covers the call. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Steward {
    engine: Engine,
    standing: StandingApprovals,
    trail: AuditTrail,
    tracer: Tracer,
}

impl Steward {
    pub(crate) fn new(engine: &Engine, tracer: Tracer) -> Self {
        Self { engine: engine.clone(), standing: engine.standing(), trail: engine.trail(), tracer }
    }

    /// Whether a standing approval decided this open question, or somebody else did meanwhile.
    pub(crate) async fn decide(&self, row: &ApprovalRow, run: &Arc<RunState>) -> Result<bool, EngineError> {
        // What one person allowed for good is no answer of two.
        let shape = row.shown.shape.as_ref().filter(|_| !row.two_people);
        let (Some(shape), Some(tool), Some(_)) = (shape, &row.tool, row.call_id) else { return Ok(false) };
        let shape = Shape { agent_digest: &run.agent_digest, tool, schema_digest: &row.binding.schema, shape };
        let Some(standing) = self.standing.covering(&row.tenant, shape, &row.reasons).await? else { return Ok(false) };
        let id = standing.standing_id;
        let (span, mut cause) = span_of(&self.tracer, "approve_standing", run);
        span.set_attribute("escapement.approval.id", row.approval_id.to_string());
        span.set_attribute("escapement.standing.id", id.to_string());
        cause.operator = Some(standing.given_by.clone());
        let command = Command::DecideApproval(DecideApproval {
            approval_id: row.approval_id,
            verdict: Verdict::Approve,
            edited: None,
            // The words of then were about another call.
            reason: None,
            by: standing.given_by.clone(),
            aliases: Vec::new(),
            standing: Some(id),
        });
        let key = format!("standing/{}/{id}", row.approval_id);
        match span.instrument(self.engine.submit_on(run, command, key, cause)).await {
            Ok(committed) if committed.duplicate => Ok(true),
            Ok(_) => {
                span.in_scope(
                    || tracing::info!(approval_id = %row.approval_id, standing = %id, "allowed once and for all"),
                );
                metrics::counter!("approval_standing_total").increment(1);
                self.note(row, &standing.given_by, id).await;
                Ok(true)
            }
            // Somebody decided, or the run ended, meanwhile.
            Err(SubmitError::Rejected(rejection)) => {
                tracing::debug!(approval_id = %row.approval_id, %rejection, "not decided by a standing approval");
                Ok(true)
            }
            Err(SubmitError::Engine(error)) => Err(error),
        }
    }

    /// The decision is in the log already, with the standing approval that took it: this makes it easy to find.
    async fn note(&self, row: &ApprovalRow, given_by: &str, id: StandingId) {
        let entry = AuditEntry {
            id: Uuid::new_v5(&row.approval_id.0, b"standing"),
            at: Timestamp::now(),
            tenant: row.tenant.clone(),
            actor: given_by.to_owned(),
            roles: Vec::new(),
            token_id: None,
            action: "approvals.decide".to_owned(),
            resource: format!("/v1/approvals/{}", row.approval_id),
            outcome: "done".to_owned(),
            address: None,
            forwarded: None,
            user_agent: None,
            evidence: Some(json!({
                "decision": "approve", "standing": id, "run_id": row.run_id, "tool": row.tool, "trust": row.trust,
                "reasons": row.reasons, "binding": row.binding, "shape": row.shown.shape,
            })),
        };
        let noted = futures::join!(self.standing.used(id), self.trail.add(std::slice::from_ref(&entry)));
        for error in [noted.0.err(), noted.1.err()].into_iter().flatten() {
            tracing::error!(error = &error as &dyn std::error::Error, standing = %id, "the use of a standing approval is not noted");
        }
    }

    /// What a person gives with their decision has one id, however often they ask.
    pub(crate) fn id_of(row: &ApprovalRow, by: &str) -> StandingId {
        StandingId::derive(row.run_id, &format!("standing/{}/{by}", row.approval_id))
    }

    /// Writes down what is given with a decision that is about to be taken.
    pub(crate) async fn propose(
        &self,
        row: &ApprovalRow,
        run: &RunState,
        note: Option<&str>,
        by: &str,
    ) -> Result<Option<StandingId>, EngineError> {
        let (Some(shape), Some(tool), Some(arguments)) = (&row.shown.shape, &row.tool, &row.arguments) else {
            return Ok(None);
        };
        let standing_id = Self::id_of(row, by);
        let new = NewStanding {
            standing_id,
            tenant: row.tenant.clone(),
            agent: run.agent.clone(),
            agent_digest: run.agent_digest.clone(),
            tool: tool.clone(),
            schema_digest: row.binding.schema.clone(),
            shape: shape.clone(),
            reasons: row.reasons.clone(),
            arguments: serde_json::from_str(arguments.get()).unwrap_or_default(),
            approval_id: row.approval_id,
            run_id: row.run_id,
            note: note.map(str::to_owned),
            given_by: by.to_owned(),
        };
        self.standing.propose(&new).await?;
        Ok(Some(standing_id))
    }

    pub(crate) async fn confirm(&self, id: StandingId) -> Result<(), EngineError> {
        self.standing.confirm(id).await
    }

    /// Takes back what was written down with a decision that was refused.
    pub(crate) async fn withdraw(&self, id: StandingId) -> Result<(), EngineError> {
        self.standing.withdraw(id).await
    }

    /// Ends what somebody began and died over.
    pub(crate) async fn settle(&self) -> Result<(), EngineError> {
        self.standing.settle().await.map(|settled| {
            if settled > 0 {
                tracing::info!(settled, "settled standing approvals whose giver had gone");
            }
        })
    }
}
