//! What stands between a call that was asked for and its effect: registry, schema, policy.

use std::sync::Arc;

use checks::{About, Checks, No};
use engine::{Engine, EngineError};
use jiff::Timestamp;
use kernel::agent::{AgentSpec, Allow, Point};
use kernel::call::{Approval, ArgumentOrigin, Binding, Call, CallRequest, CallResult, Compensation, Grant, Shown};
use kernel::units::{Duration, later};
use kernel::{ApprovalId, Block, RunState, Trust};
use policy::{Answer, Decision, Judged, Obligation, Origin, PolicyStore, Request};
use serde_json::{Map, Value, json};

use crate::confine::Confinement;
use crate::dry_run::Rehearsal;
use crate::mcp::Mcp;
use crate::provenance::{self, Asked, Known, MAX_LABEL, MAX_SHOWN};
use crate::registry::{Refusal, Registry, Tool};
use crate::tools::Means;

/// Judges calls. Touches nothing.
pub(crate) struct Pipeline {
    pub engine: Engine,
    pub registry: Registry,
    pub mcp: Mcp,
    pub policies: PolicyStore,
    pub checks: Checks,
    pub environment: String,
    pub confinement: Confinement,
}

/// What may come of a call.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It may not happen.
    Refused(Refusal),
    /// Only if a person agrees to exactly this.
    Ask(Box<Question>),
    /// It may happen.
    Go(Box<Ready>),
}

/// What a person is asked.
#[derive(Debug)]
pub(crate) struct Question {
    pub approval: Approval,
    /// What is done before, so that they see what would come of it.
    pub rehearsal: Option<Rehearsal>,
}

/// What was found out about a call, to judge it by.
#[derive(Clone, Copy)]
pub(crate) struct Looked<'a> {
    pub tool: &'a Arc<Tool>,
    pub means: &'a Means,
    pub arguments: &'a Map<String, Value>,
    pub origins: &'a [Origin],
    /// How far it is believed where the origins don't say.
    pub believed: Trust,
}

/// A call that may happen.
#[derive(Debug)]
pub(crate) struct Ready {
    pub tool: Arc<Tool>,
    pub means: Means,
    pub arguments: Map<String, Value>,
    /// What the agent's file allows by name.
    pub allow: Allow,
    /// It is read back afterwards, since a policy wants that.
    pub verify: bool,
    /// It is tried out before it begins, since a policy wants that.
    pub rehearsal: Option<Rehearsal>,
    /// What is dispatched, to be compared with what was granted.
    pub binding: Binding,
    /// What a person is asked if that comparison fails.
    pub approval: Approval,
}

impl Pipeline {
    /// Judges a call as the policies are now. Deny wins; what asks is satisfied by a grant for exactly this.
    pub async fn judge(&self, state: &RunState, call: &Call) -> Result<Verdict, EngineError> {
        let request = &call.request;
        let found = match self.registry.now(&request.tool) {
            Some(_) => self.registry.find(&request.tool, &request.schema_digest),
            None => self.mcp.find(&state.tenant, &request.tool, &request.schema_digest).await?,
        };
        let checked = found.and_then(|tool| {
            if request.is_compensation() {
                let (means, arguments) = tool.undo(&request.arguments)?;
                return Ok((tool, means, arguments));
            }
            let means = tool.means()?.clone();
            let arguments = tool.check(&request.arguments)?;
            Ok((tool, means, arguments))
        });
        let (tool, means, arguments) = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Verdict::Refused(refusal)),
        };
        let agents = self.engine.agents();
        let Some(version) = agents.by_digest(&state.tenant, &state.agent, &state.agent_digest).await? else {
            let words = format!("the definition of the agent `{}` is not stored", state.agent);
            return Ok(Verdict::Refused(Refusal::new("policy", words)));
        };
        let agent: &AgentSpec = &version.spec;
        // The rules see to it that no child asks for more; who touches the world looks for itself.
        let may = state.may_use(&request.tool) || request.is_compensation();
        if !may || !agent.may_use(&request.tool, &tool.spec.run) {
            let words = format!("the agent `{}` has no tool `{}`", state.agent, request.tool);
            return Ok(Verdict::Refused(Refusal::new("unknown_tool", words)));
        }
        if let Some(words) = policy::not_permitted(state, &tool.spec) {
            return Ok(Verdict::Refused(Refusal::new("not_permitted", words)));
        }
        let known = Known { engine: &self.engine, registry: &self.registry, mcp: &self.mcp };
        let (origins, believed) = match request.compensation {
            Compensation::Of(undone) => {
                let asked = Asked { tool: &tool, means: &means, arguments: &arguments };
                provenance::of_undoing(known, state, undone, asked, agent).await?
            }
            Compensation::None | Compensation::Declared => {
                let origins = provenance::trace(known, state, call, &tool, &arguments, agent).await?;
                (origins, request.trust)
            }
        };
        let looked = Looked { tool: &tool, means: &means, arguments: &arguments, origins: &origins, believed };
        let decision = self.decide(state, call, looked, &agent.allow);
        let binding = Binding {
            arguments: policy::digest(&request.arguments),
            schema: tool.digest.clone(),
            policy: decision.policy_version.clone(),
        };
        let mut approval = approval(state, call, &decision, &binding, &origins, agent.approval_expiry);
        if decision.answer == Answer::Ask && !approval.two_people {
            approval.shown.shape = shape(call, &tool, &arguments);
        }
        let granted = self.granted(state, call, &decision, &binding).await?;
        if let Some(words) = unmet(&decision, call, &tool) {
            return Ok(Verdict::Refused(Refusal::new("policy", words)));
        }
        let rehearsal = match self.rehearsal(state, call, looked, &decision, agent).await? {
            Ok(rehearsal) => rehearsal,
            Err(refusal) => return Ok(Verdict::Refused(refusal)),
        };
        // What undoes a call has no read-back: that of its tool tells of the call.
        let verify = !request.is_compensation() && decision.obligations.contains(&Obligation::VerifyAfter);
        let asks = decision.answer == Answer::Ask && granted.is_none();
        if decision.answer == Answer::Deny {
            return Ok(Verdict::Refused(Refusal::new("policy", decision.explanation())));
        }
        // Trying it out is the beginning of a call too.
        if (!asks || rehearsal.is_some())
            && let Err(no) = self.check(state, agent, call).await
        {
            return Ok(Verdict::Refused(Refusal::new("check", no.words())));
        }
        if asks {
            return Ok(Verdict::Ask(Box::new(Question { approval, rehearsal })));
        }
        let (binding, allow) = (granted.unwrap_or(binding), agent.allow.clone());
        Ok(Verdict::Go(Box::new(Ready { tool, means, arguments, allow, verify, rehearsal, binding, approval })))
    }

    /// Asks the operator's own checks whether a call may begin.
    async fn check(&self, state: &RunState, agent: &AgentSpec, call: &Call) -> Result<(), No> {
        if call.request.is_compensation() {
            // What undoes an effect was agreed to with the effect.
            return Ok(());
        }
        let CallRequest { call_id, tool, arguments, effect, .. } = &call.request;
        let about = json!({ "call_id": call_id, "tool": tool, "arguments": arguments, "effect": effect });
        self.checks.ask(&agent.checks, Point::BeforeTool, &about_run(state, about)).await
    }

    /// Asks the operator's own checks whether the model may be told what came of a call.
    pub async fn check_result(
        &self,
        state: &RunState,
        call: &Call,
        result: &CallResult,
    ) -> Result<Result<(), No>, EngineError> {
        let version = self.engine.agents().by_digest(&state.tenant, &state.agent, &state.agent_digest).await?;
        let Some(version) = version.filter(|version| !version.spec.checks.is_empty()) else { return Ok(Ok(())) };
        let CallRequest { call_id, tool, .. } = &call.request;
        let about = json!({ "call_id": call_id, "tool": tool, "result": result.block, "value": result.value });
        Ok(self.checks.ask(&version.spec.checks, Point::AfterTool, &about_run(state, about)).await)
    }

    /// What the agent of a run allows by name; nothing if its definition can't be found.
    pub async fn allow(&self, state: &RunState) -> Result<Allow, EngineError> {
        let version = self.engine.agents().by_digest(&state.tenant, &state.agent, &state.agent_digest).await?;
        Ok(version.map(|version| version.spec.allow.clone()).unwrap_or_default())
    }

    pub(crate) fn decide(&self, state: &RunState, call: &Call, looked: Looked<'_>, allow: &Allow) -> Decision {
        let Looked { tool, means, arguments, origins, believed } = looked;
        let matters: Vec<_> = origins.iter().filter_map(Origin::deciding).collect();
        let reach = means.reach(arguments, allow);
        let arguments = Value::Object(arguments.clone());
        let judged = Judged {
            state,
            request: &call.request,
            spec: &tool.spec,
            arguments: &arguments,
            matters: &matters,
            believed,
            now: Timestamp::now(),
        };
        let request = judged.request();
        self.policies.current().decide(&Request {
            named_host: reach.named_host,
            named_command: reach.named_command,
            in_workspace: reach.in_workspace,
            confined: request.kind == policy::ToolKind::Process && self.confinement.holds(means.network()),
            environment: &self.environment,
            ..request
        })
    }

    /// The binding of the grant, if there is one for these arguments and this tool, by as many people as it takes now. Policies
    /// that have changed since need a new yes only if somebody else asks now than did then, or if they want more people.
    async fn granted(
        &self,
        state: &RunState,
        call: &Call,
        decision: &Decision,
        binding: &Binding,
    ) -> Result<Option<Binding>, EngineError> {
        let same =
            |grant: &&Grant| grant.binding.arguments == binding.arguments && grant.binding.schema == binding.schema;
        let Some(grant) = call.grant.as_ref().filter(same) else { return Ok(None) };
        if takes_two(decision) && grant.endorsed_by.is_none() {
            return Ok(None);
        }
        // What a standing approval gave is void if that was revoked meanwhile.
        if let Some(id) = grant.standing
            && !self.engine.standing().is_in_force(&state.tenant, id).await?
        {
            return Ok(None);
        }
        if grant.binding.policy != binding.policy && decision.answer == Answer::Ask {
            let asked = self.engine.reads().approval(&state.tenant, grant.approval_id).await?;
            let asked = asked.map(|approval| approval.reasons).unwrap_or_default();
            if reasons(decision).iter().any(|reason| !asked.contains(reason)) {
                return Ok(None);
            }
        }
        Ok(Some(grant.binding.clone()))
    }
}

fn about_run(state: &RunState, about: Value) -> About<'_> {
    About { tenant: &state.tenant, run_id: state.run_id, agent: &state.agent, turn: state.turns_opened, about }
}

/// What a person is asked. Its id follows from what is asked and from what was asked before, so that whoever asks the same
/// asks it once.
fn approval(
    state: &RunState,
    call: &Call,
    decision: &Decision,
    binding: &Binding,
    origins: &[Origin],
    expiry: Duration,
) -> Approval {
    let request = &call.request;
    let Binding { arguments, schema, policy } = binding;
    let before = call.approval_id.map(|id| id.to_string()).unwrap_or_default();
    let name = format!("approval/{}/{arguments}/{schema}/{policy}/{before}", request.call_id);
    // Of the arguments that matter, if it is known where they come from, but never more than of all that the model saw: the
    // call may be a stranger's wish though all its arguments are somebody else's.
    let deciding = origins.iter().filter(|origin| origin.matters).map(|origin| origin.trust).min();
    let dangerous = request.effect > kernel::tool::Effect::External;
    let read = "\nThe model had read untrusted data when it asked for this.";
    let read = if dangerous && request.trust == Trust::Untrusted { read } else { "" };
    let two_people = takes_two(decision);
    let two = if two_people { "\nTwo people have to agree to it." } else { "" };
    let question = format!(
        "May `{}` be called with these arguments? {}{two}{read}{}",
        request.tool,
        decision.explanation(),
        provenance::in_words(origins)
    );
    Approval {
        approval_id: ApprovalId::derive(state.run_id, &name),
        call_id: Some(request.call_id),
        question: Block::new(question, Trust::System, "policy"),
        tool: Some(request.tool.clone()),
        arguments: Some(request.arguments.clone()),
        binding: binding.clone(),
        trust: deciding.map_or(request.trust, |deciding| deciding.join(request.trust)),
        reasons: reasons(decision),
        two_people,
        shown: Shown { origins: shown(origins), ..Shown::default() },
        expires_at: later(Timestamp::now(), expiry),
    }
}

/// The shape of the call, if a person may allow all calls of that shape for good. What can't be undone is asked about each
/// time.
fn shape(call: &Call, tool: &Tool, arguments: &Map<String, Value>) -> Option<String> {
    let dangerous = call.request.effect.max(tool.spec.effect) > kernel::tool::Effect::External;
    let usual = !dangerous && !call.request.is_compensation();
    usual.then(|| policy::shape(&Value::Object(arguments.clone()), &tool.labels)).flatten()
}

/// The origins as a person is shown them: what decides and can be believed least comes first.
fn shown(origins: &[Origin]) -> Vec<ArgumentOrigin> {
    let mut origins: Vec<_> = origins.iter().collect();
    origins.sort_by_key(|origin| (!origin.matters, origin.trust));
    let origin = |origin: &Origin| ArgumentOrigin {
        pointer: kernel::excerpt(&origin.pointer, MAX_LABEL),
        trust: origin.trust,
        source: kernel::excerpt(&origin.source, MAX_LABEL),
        rule: origin.rule.clone(),
        matters: origin.matters,
    };
    origins.into_iter().take(MAX_SHOWN).map(origin).collect()
}

/// Whether two people have to agree.
fn takes_two(decision: &Decision) -> bool {
    decision.obligations.contains(&Obligation::TwoPeople)
}

/// What a policy obliges to and can't be done here. A call that was permitted on that condition is not permitted then. What
/// undoes a call is neither tried out nor read back, so it can't fail for want of that.
fn unmet(decision: &Decision, call: &Call, tool: &Tool) -> Option<String> {
    if call.request.is_compensation() {
        return None;
    }
    let obligations = &decision.obligations;
    let blind = obligations.contains(&Obligation::VerifyAfter) && tool.probe.is_none();
    let words = policy::unmet(obligations, &tool.spec)
        .or_else(|| blind.then_some("read it back afterwards, and the tool's `probe` can't be used"))?;
    Some(format!("a policy obliges to {words}; {}", decision.explanation()))
}

fn reasons(decision: &Decision) -> Vec<String> {
    decision.reasons.iter().map(|reason| format!("{}: {}", reason.policy, reason.text)).collect()
}
