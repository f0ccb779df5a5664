//! A run as people see it: its state, with the open turn's lease looked up, since only that tells `running` from `runnable`.

use std::sync::Arc;

use engine::{Engine, Leases, Reads, RunRow};
use kernel::call::{Approval, ArtifactRef, CallStatus};
use kernel::event::{Ending, ExternalRef, PlanStep};
use kernel::{
    ApprovalId, CallId, ConversationId, RunId, RunState, Seq, Status, TenantId, Timestamp, TurnId, WaitId,
    agent::Criterion,
    budget::{Limits, Spent},
    report::Report,
    wait::{Condition, WakeKind},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::schema;
use crate::config::TRACE_ID;
use crate::problem::Problem;

/// What [`Status`] can't say, since only the lease knows.
pub(crate) const RUNNING: &str = "running";

/// A run as it stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunSnapshot {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    pub run_id: RunId,
    /// Whose.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// Name of its agent.
    pub agent: String,
    /// Digest of the agent definition that it follows.
    pub agent_digest: String,
    /// `queued`, `runnable`, `running`, `waiting`, `paused`, `cancelling`, `completed`, `failed` or `cancelled`.
    pub status: &'static str,
    /// Its last event.
    #[schema(value_type = u64)]
    pub seq: Seq,
    /// The W3C trace id of everything that it caused.
    pub trace_id: String,
    /// Where people look at that trace; nothing if this server does not know, or if the run's spans are not exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_url: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What is to be reached.
    #[schema(value_type = schema::Block)]
    pub objective: kernel::Block,
    /// How it is known that it was reached.
    #[schema(value_type = Vec<schema::Criterion>)]
    pub acceptance: Vec<Criterion>,
    /// The conversation it belongs to.
    #[schema(value_type = Option<uuid::Uuid>)]
    pub conversation_id: Option<ConversationId>,
    /// The user's labels.
    #[schema(value_type = Object)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The outside event that started it.
    #[schema(value_type = Option<schema::ExternalRef>)]
    pub trigger: Option<ExternalRef>,
    /// The run that it goes on from, if it is a fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginView>,
    /// The run that started it as its child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentView>,
    /// Its children, oldest first, ended ones too.
    pub children: Vec<ChildView>,
    /// The open turn.
    pub turn: Option<OpenTurn>,
    /// Everything that it waits for.
    pub waits: Vec<Waiting>,
    /// The plan.
    #[schema(value_type = Vec<schema::PlanStep>)]
    pub plan: Vec<PlanStep>,
    /// Its revision, from 1; 0 is no plan.
    pub plan_revision: u32,
    /// What it may spend.
    #[schema(value_type = schema::Limits)]
    pub budget: Limits,
    /// What it has spent.
    pub usage: RunUsage,
    /// What its ended children have spent, their own children included. It counts against the budget too.
    pub children_usage: RunUsage,
    /// Its artifacts, each in its latest version.
    #[schema(value_type = Vec<schema::ArtifactRef>)]
    pub artifacts: Vec<ArtifactRef>,
    /// How it is ending or has ended.
    #[schema(value_type = Option<schema::Ending>)]
    pub ending: Option<Ending>,
}

/// Where a fork goes on from.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OriginView {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    pub run_id: RunId,
    /// The number of its turn that the fork takes anew.
    pub turn: u32,
    /// Whether the fork's calls may change anything outside.
    pub effects: bool,
}

/// The run above a child.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ParentView {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    pub run_id: RunId,
    /// Its call that the child answers.
    #[schema(value_type = uuid::Uuid)]
    pub call_id: CallId,
    /// How far the child is below the run that nobody started as a child, from 1.
    pub depth: u32,
}

/// A child of a run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChildView {
    /// Which run. One that is not listed by itself has still to be created.
    #[schema(value_type = uuid::Uuid)]
    pub run_id: RunId,
    /// Name of its agent.
    pub agent: String,
    /// Where it stands; `starting` if it has still to be created.
    pub status: &'static str,
    /// The call of its parent that it answers, while that is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub call_id: Option<CallId>,
    /// What it has spent itself.
    pub usage: RunUsage,
}

/// The open turn of a run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OpenTurn {
    /// Which turn.
    #[schema(value_type = uuid::Uuid)]
    pub turn_id: TurnId,
    /// Its number, from 1.
    pub number: u32,
    /// What woke it.
    #[schema(value_type = Option<schema::WakeKind>)]
    pub wake: Option<WakeKind>,
    /// Not to be taken before.
    pub not_before: Option<Timestamp>,
    /// Whether a planner is at it.
    pub running: bool,
}

/// One thing that a run waits for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Waiting {
    /// What kind of wake it would be.
    #[schema(value_type = schema::WakeKind)]
    pub kind: WakeKind,
    /// Why, in words.
    pub why: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When it is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The registered wait that it is a condition of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub wait_id: Option<WaitId>,
    /// The condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Condition>)]
    pub condition: Option<Condition>,
    /// Whether the condition is met already, while others of the same wait are not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub met: bool,
    /// The open call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub call_id: Option<CallId>,
    /// The child run that answers the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub child_id: Option<RunId>,
    /// The call's tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// How far the call has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CallStatus>)]
    pub call_status: Option<CallStatus>,
    /// The open question.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub approval_id: Option<ApprovalId>,
}

/// What a run has spent.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct RunUsage {
    /// Turns committed or rejected.
    pub turns: u32,
    /// Tool calls requested.
    pub tool_calls: u32,
    /// Model calls made, re-asks included.
    pub model_calls: u32,
    /// Tokens sent.
    pub input_tokens: u64,
    /// Of those, tokens that the provider had cached.
    pub cached_tokens: u64,
    /// Tokens received.
    pub output_tokens: u64,
    /// Cost in US dollars.
    pub cost_usd: f64,
}

impl From<Spent> for RunUsage {
    #[expect(clippy::cast_precision_loss, reason = "exact up to nine billion dollars")]
    fn from(spent: Spent) -> Self {
        Self {
            turns: spent.turns,
            tool_calls: spent.tool_calls,
            model_calls: spent.usage.model_calls,
            input_tokens: spent.usage.input_tokens,
            cached_tokens: spent.usage.cached_tokens,
            output_tokens: spent.usage.output_tokens,
            cost_usd: spent.usage.cost_microusd as f64 / 1e6,
        }
    }
}

/// Reads runs of a tenant as they stand.
#[derive(Clone)]
pub(crate) struct Snapshots {
    engine: Engine,
    reads: Reads,
    leases: Leases,
    /// Where traces are looked at, with [`TRACE_ID`] in it; empty if nowhere.
    trace_url: Arc<str>,
}

impl Snapshots {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), reads: engine.reads(), leases: engine.leases(), trace_url: "".into() }
    }

    /// As it is, with links to where traces are looked at.
    pub(crate) fn linking(self, trace_url: &str) -> Self {
        Self { trace_url: trace_url.into(), ..self }
    }

    /// The run, never older than the log. Another tenant's run is as good as none.
    pub(crate) async fn of(&self, tenant: &TenantId, run: RunId) -> Result<RunSnapshot, Problem> {
        let state = self.engine.load(run).await?;
        let state = state.filter(|state| state.tenant == *tenant).ok_or_else(|| Problem::unknown_run(run))?;
        let running = match &state.turn {
            Some(turn) => self.is_running(turn.turn_id).await,
            None => false,
        };
        let artifacts = if state.artifacts.is_empty() { Vec::new() } else { self.artifacts(tenant, run).await? };
        let children = children(&state, &self.reads.children(tenant, run).await?);
        let trace_url = self.trace_url(&state);
        Ok(RunSnapshot { trace_url, ..RunSnapshot::new(&state, running, artifacts, children) })
    }

    fn trace_url(&self, state: &RunState) -> Option<String> {
        let shown = state.sampled && !self.trace_url.is_empty();
        shown.then(|| self.trace_url.replace(TRACE_ID, &state.run_id.trace_id()))
    }

    /// What a run hands over, as it stands.
    pub(crate) async fn report(&self, tenant: &TenantId, run: RunId) -> Result<Report, Problem> {
        let state = self.engine.load(run).await?;
        let state = state.filter(|state| state.tenant == *tenant).ok_or_else(|| Problem::unknown_run(run))?;
        Ok(Report::of(&state))
    }

    /// `status` as it is shown, for each of these: those with an open turn may be running.
    pub(crate) async fn shown(&self, runs: &[(Status, Option<TurnId>)]) -> Vec<&'static str> {
        let names: Vec<String> = runs.iter().filter_map(|(_, turn)| turn.map(lease_name)).collect();
        let held = self.leases.held_many(&names).await.unwrap_or_else(|error| {
            // Leases are hints: without them a running turn shows as runnable.
            tracing::debug!(error = &error as &dyn std::error::Error, "can't look up leases");
            vec![false; names.len()]
        });
        let mut held = held.into_iter();
        let mut shown = |(status, turn): &(Status, Option<TurnId>)| {
            let running = turn.is_some() && held.next().unwrap_or_default();
            if running && *status == Status::Runnable { RUNNING } else { status.as_str() }
        };
        runs.iter().map(&mut shown).collect()
    }

    async fn is_running(&self, turn: TurnId) -> bool {
        self.leases.is_held(&lease_name(turn)).await.unwrap_or_else(|error| {
            tracing::debug!(error = &error as &dyn std::error::Error, "can't look up a lease");
            false
        })
    }

    /// The latest version of each.
    async fn artifacts(&self, tenant: &TenantId, run: RunId) -> Result<Vec<ArtifactRef>, Problem> {
        let mut latest: Vec<ArtifactRef> = Vec::new();
        for row in self.reads.artifacts(tenant, run).await? {
            match latest.last_mut().filter(|last| last.artifact_id == row.artifact.artifact_id) {
                Some(last) => *last = row.artifact,
                None => latest.push(row.artifact),
            }
        }
        Ok(latest)
    }
}

fn lease_name(turn: TurnId) -> String {
    format!("turn/{turn}")
}

impl RunSnapshot {
    fn new(state: &RunState, running: bool, artifacts: Vec<ArtifactRef>, children: Vec<ChildView>) -> Self {
        let status = state.status();
        let turn = state.turn.as_ref().map(|turn| OpenTurn {
            turn_id: turn.turn_id,
            number: turn.number,
            wake: turn.wake,
            not_before: turn.not_before,
            running,
        });
        Self {
            run_id: state.run_id,
            tenant: state.tenant.clone(),
            agent: state.agent.clone(),
            agent_digest: state.agent_digest.clone(),
            status: if running && status == Status::Runnable { RUNNING } else { status.as_str() },
            seq: state.seq,
            trace_id: state.run_id.trace_id(),
            trace_url: None,
            created_at: state.created_at,
            updated_at: state.updated_at,
            objective: state.objective.clone(),
            acceptance: state.acceptance.clone(),
            conversation_id: state.conversation_id,
            metadata: state.metadata.clone(),
            trigger: state.trigger.clone(),
            origin: state.origin.map(|origin| OriginView {
                run_id: origin.run_id,
                turn: origin.turn,
                effects: !state.simulated,
            }),
            parent: state.parent.as_ref().map(|parent| ParentView {
                run_id: parent.run_id,
                call_id: parent.call_id,
                depth: parent.depth,
            }),
            children,
            turn,
            waits: waits(state),
            plan: state.plan.clone(),
            plan_revision: state.plan_revision,
            budget: state.limits.clone(),
            usage: state.spent.into(),
            children_usage: state.children_spent.into(),
            artifacts,
            ending: state.ending.clone(),
        }
    }
}

/// The children that exist, and those that have still to be created.
fn children(state: &RunState, rows: &[RunRow]) -> Vec<ChildView> {
    let open = |run: RunId| state.children.values().find(|child| child.child_id == run);
    let starting = state.children.values().filter(|child| rows.iter().all(|row| row.run_id != child.child_id));
    let starting = starting.map(|child| ChildView {
        run_id: child.child_id,
        agent: child.spawn.agent.clone(),
        status: "starting",
        call_id: Some(child.spawn.call_id),
        usage: Spent::default().into(),
    });
    let existing = rows.iter().map(|row| ChildView {
        run_id: row.run_id,
        agent: row.agent.clone(),
        status: row.status.as_str(),
        call_id: open(row.run_id).map(|child| child.spawn.call_id),
        usage: row.spent.into(),
    });
    existing.chain(starting).collect()
}

/// What people are asked, and who of two has agreed already.
fn asked(state: &RunState, approval: &Approval) -> String {
    let question = &approval.question.text;
    match state.endorsed.get(&approval.approval_id) {
        Some(first) => format!("{question}\n`{}` has agreed: one more person is needed.", first.by),
        None => question.clone(),
    }
}

fn waits(state: &RunState) -> Vec<Waiting> {
    let blank = |kind, why: String| Waiting {
        kind,
        why,
        since: None,
        until: None,
        wait_id: None,
        condition: None,
        met: false,
        call_id: None,
        child_id: None,
        tool: None,
        call_status: None,
        approval_id: None,
    };
    let registered = state.wait.iter().flat_map(|wait| {
        wait.on.leaves().into_iter().map(|leaf| Waiting {
            since: state.wait_since,
            until: wait.deadline,
            wait_id: Some(wait.wait_id),
            condition: Some(leaf.condition.clone()),
            met: leaf.met_by.is_some(),
            ..blank(leaf.condition.wake_kind(), wait.why.clone())
        })
    });
    let calls = state.calls.values().map(|call| Waiting {
        since: call.started_at,
        call_id: Some(call.request.call_id),
        tool: Some(call.request.tool.clone()),
        call_status: Some(call.status),
        approval_id: call.approval_id,
        ..blank(WakeKind::TaskResult, format!("the end of `{}`", call.request.tool))
    });
    let questions = state.approvals.values().map(|approval| Waiting {
        until: Some(approval.expires_at),
        call_id: approval.call_id,
        tool: approval.tool.clone(),
        approval_id: Some(approval.approval_id),
        ..blank(WakeKind::OperatorInput, asked(state, approval))
    });
    let children = state.children.values().map(|child| Waiting {
        call_id: Some(child.spawn.call_id),
        child_id: Some(child.child_id),
        ..blank(WakeKind::TaskResult, format!("the end of the agent `{}`", child.spawn.agent))
    });
    registered.chain(calls).chain(children).chain(questions).collect()
}
