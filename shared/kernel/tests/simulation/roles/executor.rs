//! Takes calls: policy, start, effect, result; and what is left of calls whose executor is gone.

use std::sync::Arc;

use kernel::{
    ApprovalId, Block, CallId, Command, Rejection, RunId, RunState, Seq, Timestamp, Trust,
    call::{
        Approval, Attempt, Binding, Call, CallFailure, CallRequest, CallResult, CallStatus, Compensation, ErrorClass,
        Grant,
    },
    command::{
        CancelCall, CompensateCall, CompleteCall, DenyCall, DoubtCall, FailCall, ProgressCall, ReconcileCall, StartCall,
    },
    event::Finding,
    tool::{CallKind, Effect},
    units::{Duration, later},
};

use super::follower;
use crate::{
    bus::Answer,
    model::{Policy, Tool, tool_named},
    tasks::Hand,
    world::call_lease,
};

/// When a call that somebody else works on is looked at again.
const HELD_AGAIN: i64 = 2000;
/// Turns that one call may take in one go.
const MAX_ROUNDS: usize = 4;
/// How long after the start an effect may still be sent: well within the margin after which "not done" is believed.
const STALLED: i64 = 1000;
/// How long a call in doubt is asked about.
const DOUBT: i64 = 60_000;

/// What comes of one turn of a call.
enum Next {
    Done(Answer),
    Again,
}

const ACK: Next = Next::Done(Answer::Ack);

/// Works on the calls of a run that a message is about.
pub async fn take_all(hand: &Hand, run: RunId, seq: Option<Seq>, rang: impl Fn(&Call) -> bool) -> Answer {
    // Only what rang counts: a snapshot of a log that is lost may show other work.
    let wanted = |state: &RunState| state.calls.values().any(&rang);
    let Some(state) = hand.load_at_least(run, seq, wanted).await else {
        return Answer::Ack;
    };
    let mut answer = Answer::Ack;
    for call in state.calls.values().filter(|call| rang(call)) {
        let taken = take(hand, &state, call.request.call_id).await;
        if taken != Answer::Ack {
            answer = taken;
        }
    }
    compensate(hand, run).await;
    answer
}

/// Asks for the undoing of the newest effect of a run that ends without success.
async fn compensate(hand: &Hand, run: RunId) {
    let Some(state) = hand.load(run).await else { return };
    let Some(undone) = state.to_compensate() else { return };
    let revert = tool_named("revert");
    let request = CallRequest {
        call_id: CallId::derive(run, &format!("compensation/{undone}")),
        tool: revert.name.into(),
        arguments: serde_json::json!({ "undone": undone }),
        kind: revert.kind,
        effect: revert.effect,
        idempotent: revert.idempotent,
        schema_digest: "s".into(),
        trust: Trust::Untrusted,
        timeout: Duration::from_secs(4),
        compensation: Compensation::Of(undone),
    };
    let command = Command::CompensateCall(Box::new(CompensateCall { request }));
    let _ = hand.submit(run, &command, format!("compensate/{undone}")).await;
}

async fn take(hand: &Hand, state: &Arc<RunState>, call_id: CallId) -> Answer {
    let Some(call) = state.calls.get(&call_id) else { return Answer::Ack };
    // Somebody is at it. If they fail before it has started, this message is what is left of it.
    let held = if call.is_started() { Answer::Ack } else { Answer::Again(HELD_AGAIN) };
    let claim = (hand.process, call_id);
    // Two starts of one process are one to the inbox: one of them at a time.
    let claimed = hand.with(|world| world.claimed.insert(claim) || !world.protocol.claim_in_process);
    let lease = call_lease(call_id);
    if !claimed {
        return held;
    }
    if !hand.acquire(&lease).await {
        hand.with(|world| world.claimed.remove(&claim));
        return held;
    }
    let mut keep = false;
    let answer = rounds(hand, state.run_id, call_id, &mut keep).await;
    hand.with(|world| world.claimed.remove(&claim));
    if !keep {
        hand.release(&lease);
    }
    answer
}

async fn rounds(hand: &Hand, run: RunId, call_id: CallId, keep: &mut bool) -> Answer {
    for _ in 0..MAX_ROUNDS {
        // Only now is it certain that nobody else is at it, so only now the state counts.
        let Some(state) = hand.load(run).await else { return Answer::Ack };
        let Some(call) = state.calls.get(&call_id).cloned() else { return Answer::Ack };
        let is_open = matches!(call.status, CallStatus::Requested | CallStatus::Approved);
        let held_back = (state.paused || state.ending.is_some()) && !call.request.is_compensation();
        if call.put_off.is_some_and(|put_off| put_off.until > hand.now()) {
            return Answer::Ack;
        }
        if call.status == CallStatus::AwaitingApproval || (is_open && held_back) {
            return Answer::Ack;
        }
        let task = Task { hand, state, tool: tool_named(&call.request.tool), call };
        let next = if is_open { task.dispatch(keep).await } else { task.recover(keep).await };
        if let Next::Done(answer) = next {
            return answer;
        }
    }
    Answer::Again(HELD_AGAIN)
}

/// One call at hand.
struct Task<'a> {
    hand: &'a Hand,
    state: Arc<RunState>,
    call: Call,
    tool: Tool,
}

impl Task<'_> {
    fn id(&self) -> CallId {
        self.call.request.call_id
    }

    fn key(&self, step: &str) -> String {
        format!("{}/{step}/{}", self.id(), self.call.attempts)
    }

    async fn record(&self, command: Command, step: &str) -> Next {
        // A refusal means that the call has gone another way meanwhile, and is final.
        let _ = self.hand.submit(self.state.run_id, &command, self.key(step)).await;
        ACK
    }

    /// What would be dispatched now, and whether a person has to agree (to exactly this).
    fn judge(&self) -> (Policy, Binding) {
        let version = self.hand.with(|world| world.policy);
        let binding = Binding {
            arguments: self.call.request.arguments.to_string(),
            schema: self.call.request.schema_digest.clone(),
            policy: version.to_string(),
        };
        let same = |grant: &Binding| grant.arguments == binding.arguments && grant.schema == binding.schema;
        let enough = |grant: &&Grant| self.tool.policy != Policy::Two || grant.endorsed_by.is_some();
        let granted = self.call.grant.as_ref().filter(enough).map(|grant| &grant.binding);
        let granted = granted.filter(|grant| same(grant)).cloned();
        let asks = match self.tool.policy {
            Policy::Fickle if version % 2 == 1 => Policy::Ask,
            Policy::Fickle => Policy::Allow,
            policy => policy,
        };
        let ignored = !self.hand.with(|world| world.protocol.ask_policy);
        match (asks, granted) {
            (Policy::Ask | Policy::Two, None) if !ignored => (Policy::Ask, binding),
            (Policy::Deny, _) if !ignored => (Policy::Deny, binding),
            (_, granted) => (Policy::Allow, granted.unwrap_or(binding)),
        }
    }

    async fn dispatch(&self, keep: &mut bool) -> Next {
        let (verdict, binding) = self.judge();
        match verdict {
            Policy::Deny => self.refuse("policy").await,
            Policy::Ask => self.ask(&binding).await,
            _ if self.tool.kind == CallKind::Activity => self.start_activity(binding, keep).await,
            _ => self.carry_out(binding).await,
        }
    }

    async fn refuse(&self, code: &str) -> Next {
        let (call_id, block) = (self.id(), Block::new("no", Trust::System, "runtime"));
        let command = if self.call.is_started() {
            let failure = CallFailure { block, code: code.to_owned(), duration_ms: 0 };
            Command::FailCall(FailCall { call_id, failure })
        } else {
            Command::DenyCall(DenyCall { call_id, code: code.to_owned(), reason: block })
        };
        self.record(command, "deny").await
    }

    async fn ask(&self, binding: &Binding) -> Next {
        if self.call.is_started() {
            return self.refuse("policy").await;
        }
        let request = &self.call.request;
        let before = self.call.approval_id.map(|id| id.to_string()).unwrap_or_default();
        let Binding { arguments, schema, policy } = binding;
        let name = format!("approval/{}/{arguments}/{schema}/{policy}/{before}", self.id());
        let approval = Approval {
            approval_id: ApprovalId::derive(self.state.run_id, &name),
            call_id: Some(self.id()),
            question: Block::new("may it?", Trust::System, "policy"),
            tool: Some(request.tool.clone()),
            arguments: Some(request.arguments.clone()),
            binding: binding.clone(),
            trust: request.trust,
            reasons: Vec::new(),
            two_people: self.tool.policy == Policy::Two,
            shown: Default::default(),
            expires_at: later(self.hand.now(), Duration::from_secs(60)),
        };
        let step = format!("ask/{}", approval.approval_id);
        self.record(Command::AskApproval(Box::new(approval)), &step).await
    }

    /// Commits `tool.started`. The state after it, or what else is to be done.
    async fn start(&self, binding: Binding) -> Result<Arc<RunState>, Next> {
        let process = self.hand.process;
        let executor = format!("executor-{}-{}", process.instance, process.incarnation);
        let key = self.key(&format!("start/{}/{executor}", self.call.attempts + 1));
        let command = Command::StartCall(StartCall { call_id: self.id(), executor, binding: binding.clone() });
        match self.hand.submit(self.state.run_id, &command, key).await {
            Ok(committed) => Ok(committed.state),
            Err(Rejection::GrantMismatch(_)) => Err(self.ask(&binding).await),
            Err(_) => Err(ACK),
        }
    }

    async fn start_activity(&self, binding: Binding, keep: &mut bool) -> Next {
        if let Err(next) = self.start(binding).await {
            return next;
        }
        self.hand.step().await;
        let (run, call) = (self.state.run_id, self.id());
        let spawned = self.hand.with(|world| {
            let deadline = world.now + 120_000;
            world.outside.spawn(call, deadline)
        });
        if !spawned {
            // Somebody has taken it for lost.
            return ACK;
        }
        *keep = true;
        follower::follow(self.hand, run, call);
        ACK
    }

    /// Starts a call if it needs that, carries it out and records its end.
    async fn carry_out(&self, binding: Binding) -> Next {
        if self.hand.with(|world| world.choices.chance(4)) {
            return self.wait_in_line().await;
        }
        let (began, stall_guard) = self.hand.with(|world| (world.now, world.protocol.stall_guard));
        let started;
        let task = if self.call.needs_start() {
            let state = match self.start(binding).await {
                Ok(state) => state,
                Err(next) => return next,
            };
            let Some(call) = state.calls.get(&self.id()).cloned() else { return ACK };
            started = Task { hand: self.hand, state, call, tool: self.tool };
            &started
        } else {
            self
        };
        self.hand.step().await;
        let stalled = self.hand.with(|world| world.now - began > STALLED);
        if stall_guard && stalled && task.call.needs_start() {
            return task.unsure().await;
        }
        let (run, call) = (self.state.run_id, self.id());
        let repeatable = self.tool.idempotent || self.tool.effect == Effect::Read;
        let before = self.hand.with(|world| {
            let until = world.now + 4000;
            world.outside.send(run, call, repeatable, until);
            world.outside.landed(call)
        });
        // The effect is on its way, and its executor may never hear of it.
        self.hand.step().await;
        let (arrives, heard) = self.hand.with(|world| (!world.choices.chance(15), !world.choices.chance(15)));
        // What is heard is what has become of it, be that settled now or before.
        let arrives = self.hand.with(|world| {
            if heard {
                world.settle_effect(run, call, arrives);
            }
            world.outside.landed(call) > before
        });
        // After the effect, before its record.
        self.hand.step().await;
        match (heard, arrives) {
            (true, true) => task.complete().await,
            (true, false) if self.hand.with(|world| world.choices.chance(30)) => task.try_later().await,
            (true, false) => task.fail().await,
            (false, _) => task.unsure().await,
        }
    }

    /// It has not happened, and may work later.
    async fn try_later(&self) -> Next {
        let attempt = Attempt {
            number: self.call.failed_attempts + 1,
            began: self.hand.now(),
            took_ms: 1,
            class: ErrorClass::Retry,
            code: "refused".into(),
            said: String::new(),
            target: None,
            dry_run: false,
        };
        match self.put_off("retry", Some(attempt)).await {
            Ok(()) => ACK,
            // The run is ending: it is known what came of the call.
            Err(_) => self.fail().await,
        }
    }

    /// A limit is in the way.
    async fn wait_in_line(&self) -> Next {
        self.hand.step().await;
        // A refusal means that the call has gone another way meanwhile.
        let _ = self.put_off("rate_limited", None).await;
        ACK
    }

    async fn put_off(&self, reason: &str, attempt: Option<Attempt>) -> Result<(), Rejection> {
        let until = Duration::from_secs(1 + self.hand.with(|world| world.choices.below(30) as u64));
        let until = later(self.hand.now(), until);
        let key = self.key(&format!("put_off/{until}"));
        let progress = ProgressCall {
            attempt,
            put_off: Some(until),
            starts: self.call.attempts,
            reason: Some(reason.into()),
            ..ProgressCall::of(self.id())
        };
        self.hand.submit(self.state.run_id, &Command::ProgressCall(Box::new(progress)), key).await.map(|_| ())
    }

    async fn complete(&self) -> Next {
        let block = Block::new("done", Trust::Untrusted, format!("tool:{}", self.tool.name));
        let result = CallResult { block, value: None, artifact: None, duration_ms: 1 };
        self.record(Command::CompleteCall(CompleteCall { call_id: self.id(), result }), "end").await
    }

    async fn fail(&self) -> Next {
        let block = Block::new("refused", Trust::Untrusted, format!("tool:{}", self.tool.name));
        let failure = CallFailure { block, code: "refused".into(), duration_ms: 1 };
        self.record(Command::FailCall(FailCall { call_id: self.id(), failure }), "end").await
    }

    /// Nobody can say from here what it did.
    async fn unsure(&self) -> Next {
        if self.call.needs_start() && !self.tool.idempotent { self.doubt("no answer").await } else { self.fail().await }
    }

    /// Nobody is at a started call.
    async fn recover(&self, keep: &mut bool) -> Next {
        let run = self.state.run_id;
        if self.tool.kind == CallKind::Activity {
            *keep = true;
            follower::follow(self.hand, run, self.id());
            return ACK;
        }
        if !self.tool.idempotent && self.hand.with(|world| world.protocol.doubt) {
            return self.doubt("its executor is gone").await;
        }
        if self.state.ending.is_some() && !self.call.request.is_compensation() {
            let cancel = CancelCall { call_id: self.id(), reason: "ending".into() };
            return self.record(Command::CancelCall(cancel), "cancel").await;
        }
        if self.state.paused && !self.call.request.is_compensation() {
            return ACK;
        }
        if !self.tool.idempotent {
            // Blindly: only a simulation that is told to may come here.
            self.hand.with(|world| world.outside.send(run, self.id(), false, world.now + 4000));
            return self.complete().await;
        }
        self.dispatch(keep).await
    }

    /// Parks a call in doubt and looks into it: by its tool's own read-back, or not at all.
    async fn doubt(&self, reason: &str) -> Next {
        if self.call.status == CallStatus::Started {
            let doubt = Command::DoubtCall(DoubtCall { call_id: self.id(), reason: reason.to_owned() });
            if self.hand.submit(self.state.run_id, &doubt, self.key("doubt")).await.is_err() {
                return ACK;
            }
        }
        if !self.tool.probe {
            return self.reconcile(Finding::Unknown, "unknown", self.hand.now()).await;
        }
        let as_of = self.hand.now();
        self.hand.step().await;
        let (reached, landed) =
            self.hand.with(|world| (!world.choices.chance(20), world.outside.landed(self.id()) > 0));
        match (reached, landed) {
            (true, true) => self.reconcile(Finding::Done, "done", as_of).await,
            (true, false) => self.reconcile(Finding::NotDone, "not_done", as_of).await,
            (false, _) if self.asked_long_enough() => self.reconcile(Finding::Unknown, "unknown", as_of).await,
            (false, _) => Next::Done(Answer::Again(1000)),
        }
    }

    fn asked_long_enough(&self) -> bool {
        let since = self.call.started_at.unwrap_or(self.state.updated_at);
        self.hand.now().duration_since(since).as_millis() > i128::from(DOUBT)
    }

    async fn reconcile(&self, finding: Finding, name: &str, as_of: Timestamp) -> Next {
        let evidence = Block::new(name, Trust::System, "runtime");
        let reconcile = ReconcileCall { call_id: self.id(), finding, as_of, evidence, result: None };
        let command = Command::ReconcileCall(reconcile);
        let key = self.key(&format!("reconcile/{name}"));
        match self.hand.submit(self.state.run_id, &command, key).await {
            Ok(_) if finding == Finding::NotDone => Next::Again,
            Err(Rejection::TooEarly(_, settled)) => {
                let left = settled.duration_since(self.hand.now()).as_millis();
                Next::Done(Answer::Again(i64::try_from(left).unwrap().max(0) + 100))
            }
            _ => ACK,
        }
    }
}
