//! `svc.tool-executor.verify`: a look at the world for the observer, who opens no connection of its own.
//!
//! It passes what every call passes (registry, schema, the agent's tools, policy), as if its arguments came from outside, since
//! parts of them do. Only tools that read are used, and only if the policies let them pass without a person: nobody is there to
//! be asked, and nothing is started in any log.

use std::sync::Arc;
use std::time::Instant;

use bus::{Bus, BusError, Problem, ServeOptions, Serving};
use kernel::tool::{CallKind, Effect};
use kernel::{CallId, RunId, TenantId};
use policy::{Answer, Obligation, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::dispatch::Dispatcher;
use crate::perform::OVERTIME;
use crate::registry::Refusal;
use crate::tools::Invocation;

/// Looks at once.
const LOOKS: usize = 16;
/// Most bytes of an answer, so that it fits a message with room to spare.
const ANSWER_BYTES: usize = 64 * 1024;

/// What is asked.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Question {
    tenant: TenantId,
    /// The agent whose tools and allowances count, by name: as its file is now.
    agent: String,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// What it is for; goes out as the idempotency key.
    purpose: String,
}

/// What the tool gave.
#[derive(Debug, Serialize)]
pub(crate) struct Seen {
    text: String,
    value: Value,
}

/// Answers until the token is cancelled.
pub(crate) async fn serve(
    bus: &Bus,
    dispatcher: Arc<Dispatcher>,
    stop: CancellationToken,
) -> Result<Serving, BusError> {
    let options = ServeOptions { concurrency: LOOKS, ..ServeOptions::new("tool-executor", "verify") };
    let answer = move |question: Question| {
        let dispatcher = dispatcher.clone();
        async move {
            let tool = question.tool.clone();
            let outcome = dispatcher.look(&question).await;
            let labels = [("tool", tool), ("outcome", if outcome.is_ok() { "seen" } else { "refused" }.to_owned())];
            metrics::counter!("tool_executor_verifications_total", &labels).increment(1);
            outcome
        }
    };
    bus.serve_json(options, answer, stop).await
}

impl Dispatcher {
    async fn look(&self, question: &Question) -> Result<Seen, Problem> {
        let Question { tenant, agent, tool: name, purpose, .. } = question;
        let pipeline = &self.pipeline;
        let version = pipeline.engine.agents().head(tenant, agent).await;
        let version = version.map_err(|error| Problem::internal(error.to_string()))?;
        let version = version.ok_or_else(|| Problem::not_found(format!("there is no agent `{agent}`")))?;
        if !version.spec.tools.contains(name) {
            return Err(Problem::new(403, format!("the agent `{agent}` has no tool `{name}`")));
        }
        let tool =
            pipeline.registry.now(name).ok_or_else(|| Problem::not_found(format!("there is no tool `{name}`")))?;
        if tool.spec.effect != Effect::Read || tool.spec.kind != CallKind::Call {
            return Err(Problem::new(403, format!("`{name}` does not only read")));
        }
        let permissions = &tool.spec.permissions;
        let for_nobody = permissions.allow_roles(&[]);
        if !permissions.allow_tenant(tenant.as_str()) || !permissions.allow_agent(agent) || !for_nobody {
            return Err(Problem::new(403, format!("`{name}` is not for the agent `{agent}`")));
        }
        let arguments = tool.check(&Value::Object(question.arguments.clone())).map_err(|refusal| refused(&refusal))?;
        let means = tool.means().map_err(|refusal| refused(&refusal))?;
        let reach = means.reach(&arguments, &version.spec.allow);
        if reach.in_workspace.is_some() {
            return Err(Problem::new(403, format!("`{name}` reads the workspace of a run, and this is none")));
        }
        let as_json = Value::Object(arguments.clone());
        let kind = policy::kind(&tool.spec.run);
        let bare = Request::new(tenant.as_str(), agent, name, kind, policy::Effect::Read, &as_json);
        let decision = pipeline.policies.current().decide(&Request {
            idempotent: tool.spec.idempotent,
            trust: policy::Trust::Untrusted,
            named_host: reach.named_host,
            named_command: reach.named_command,
            confined: kind == policy::ToolKind::Process && pipeline.confinement.holds(means.network()),
            environment: &pipeline.environment,
            now: Some(kernel::Timestamp::now()),
            ..bare
        });
        if decision.answer != Answer::Allow {
            return Err(Problem::new(
                403,
                format!("the policies do not let it pass unasked: {}", decision.explanation()),
            ));
        }
        // A look changes nothing, so there is nothing to try out.
        if let Some(obligation) = decision.obligations.iter().find(|obligation| **obligation != Obligation::DryRunFirst)
        {
            let words = format!("the policies oblige to `{}`, which a look has no means for", obligation.as_str());
            return Err(Problem::new(403, words));
        }
        let began = Instant::now();
        // Of no run's trace, and of none that is kept.
        let trace = Uuid::now_v7().simple().to_string();
        let traceparent = format!("00-{trace}-{}-00", &trace[16..]);
        let invocation = Invocation {
            tenant,
            run: RunId(Uuid::nil()),
            agent,
            trust: kernel::Trust::Untrusted,
            call: CallId::mint(),
            arguments: &arguments,
            idempotency_key: purpose,
            traceparent: &traceparent,
            allow: &version.spec.allow,
            timeout: tool.spec.timeout.std(),
        };
        let running = tokio::time::timeout(invocation.timeout + OVERTIME, self.tools.run(means, invocation));
        let content = running
            .await
            .map_err(|_| Problem::new(504, format!("`{name}` took longer than {:?}", invocation.timeout)))?
            .and_then(|content| tool.checked(content))
            .map_err(|error| Problem::new(502, self.results.redacted(&error.message)))?;
        tracing::debug!(%tenant, agent, tool = name, purpose, took = ?began.elapsed(), "looked at the world");
        // Of a part nobody can say what the whole shows.
        if content.truncated || content.bytes.len() > ANSWER_BYTES {
            let words = format!("`{name}` answered with more than {ANSWER_BYTES} bytes: ask for less");
            return Err(Problem::new(502, words));
        }
        let text = self.results.shown(&content.bytes, ANSWER_BYTES);
        // What the observer reads must not hold what nobody may see, so it is read from what is shown.
        let value = serde_json::from_str(&text).unwrap_or_default();
        Ok(Seen { text, value })
    }
}

fn refused(refusal: &Refusal) -> Problem {
    Problem::new(403, format!("{}: {}", refusal.code, refusal.words))
}
