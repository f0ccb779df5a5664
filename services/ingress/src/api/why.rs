//! Because of what an event happened: its causes within the log, back to what came from outside.

use std::collections::{BTreeMap, BTreeSet};

use engine::{EngineError, Reads, StoredEvent};
use kernel::event::{ApprovalRequested, Cause, EventData, ExternalRef, Speaker};
use kernel::{CallId, RunId, Seq, TenantId, Timestamp, excerpt};
use serde::Serialize;
use utoipa::ToSchema;

use super::event::event_id;
use super::schema;
use crate::problem::Problem;

/// How far back in the log causes are looked for, in events.
const WINDOW: u64 = 10_000;
/// Most links of a chain.
const LINKS: usize = 200;
/// Most bytes of a summary.
const SUMMARY_BYTES: usize = 160;

/// Why an event happened.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Why {
    /// The event and its causes, latest first.
    chain: Vec<ChainLink>,
    /// What came from outside, and who had a say.
    origins: Vec<Origin>,
    /// Whether there was more than is shown.
    truncated: bool,
}

/// An event in the chain.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChainLink {
    /// `<run>-<seq>`.
    event_id: String,
    /// Its number within the run.
    #[schema(value_type = u64)]
    seq: Seq,
    /// Its type.
    #[serde(rename = "type")]
    event_type: String,
    /// When it was decided.
    at: Timestamp,
    /// The service that asked for it.
    service: String,
    /// What it says, in short.
    summary: String,
    /// What it happened because of; nothing if that is outside.
    because: Vec<Because>,
}

/// A cause of an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Because {
    /// The event behind it.
    #[schema(value_type = u64)]
    seq: Seq,
    /// In which way: `acted_on`, `committed_with`, `met_by`, `woken_by`, `opened_by`, `saw`, `about`, `answers`, `agrees_with`.
    how: &'static str,
}

/// Something from outside of the log.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Origin {
    /// An event from outside.
    Event {
        /// The event in the log that it led to.
        #[schema(value_type = u64)]
        seq: Seq,
        /// Which event.
        #[schema(value_type = schema::ExternalRef)]
        event: Box<ExternalRef>,
    },
    /// A person.
    Operator {
        /// The event in the log that they led to.
        #[schema(value_type = u64)]
        seq: Seq,
        /// Their name.
        name: String,
    },
}

/// The causes of event `seq`, if there is such an event.
pub(crate) async fn explain(reads: &Reads, tenant: &TenantId, run: RunId, seq: Seq) -> Result<Option<Why>, Problem> {
    let log = Log::read(reads, tenant, run, seq).await?;
    Ok(log.events.contains_key(&seq).then(|| log.explain(run, seq)))
}

/// A piece of a run's log.
struct Log {
    events: BTreeMap<Seq, Entry>,
    complete: bool,
}

struct Entry {
    event_type: String,
    at: Timestamp,
    cause: Cause,
    data: EventData,
}

impl Log {
    async fn read(reads: &Reads, tenant: &TenantId, run: RunId, until: Seq) -> Result<Self, Problem> {
        let first = until.saturating_sub(WINDOW);
        let mut log = Self { events: BTreeMap::new(), complete: first == 0 };
        let mut after = first;
        while after < until {
            let most = u32::try_from(until - after).unwrap_or(u32::MAX).min(engine::MAX_ROWS);
            let page = reads.events(tenant, run, after, most).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            for stored in page {
                log.add(stored)?;
            }
        }
        Ok(log)
    }

    fn add(&mut self, stored: StoredEvent) -> Result<(), Problem> {
        let data = stored.decode().map_err(EngineError::from)?.data;
        let StoredEvent { seq, event_type, at, cause, .. } = stored;
        self.events.insert(seq, Entry { event_type, at, cause, data });
        Ok(())
    }

    fn explain(&self, run: RunId, seq: Seq) -> Why {
        let mut why = Why { chain: Vec::new(), origins: Vec::new(), truncated: false };
        let mut open = BTreeSet::from([seq]);
        // Causes lie before their effects, so that taking the latest first takes each one once.
        while let Some(seq) = open.pop_last() {
            let Some(entry) = self.events.get(&seq) else {
                why.truncated |= !self.complete;
                continue;
            };
            if why.chain.len() == LINKS {
                why.truncated = true;
                break;
            }
            let because = self.causes(seq, entry);
            open.extend(because.iter().map(|because| because.seq));
            why.origins.extend(origins(seq, entry));
            why.chain.push(ChainLink {
                event_id: event_id(run, seq),
                seq,
                event_type: entry.event_type.clone(),
                at: entry.at,
                service: entry.cause.service.clone(),
                summary: excerpt(&self.summary(entry), SUMMARY_BYTES),
                because,
            });
        }
        why
    }

    fn causes(&self, seq: Seq, entry: &Entry) -> Vec<Because> {
        let first = self.first_of_commit(seq, entry);
        let mut causes = self.own_causes(seq, entry, first);
        if first < seq && causes.is_empty() {
            causes.push((first, "committed_with"));
        }
        if first == seq {
            causes.extend(entry.cause.seq.map(|cause| (cause, "acted_on")));
        }
        let mut seen = BTreeSet::new();
        causes.retain(|(cause, _)| *cause > 0 && *cause < seq && seen.insert(*cause));
        causes.into_iter().map(|(seq, how)| Because { seq, how }).collect()
    }

    /// What the event itself says of its causes.
    fn own_causes(&self, seq: Seq, entry: &Entry, first: Seq) -> Vec<(Seq, &'static str)> {
        let before = |how, is: &dyn Fn(&EventData) -> bool| self.last_before(seq, is).map(|found| (found, how));
        match &entry.data {
            EventData::WaitSatisfied(satisfied) => vec![(satisfied.by, "met_by")],
            EventData::RunRunnable(_) => self.wakers(seq, first),
            EventData::TurnCompleted(turn) => {
                let opened = before("opened_by", &|data| opens(data, turn.turn_id));
                let facts = turn.manifest.sections.iter().filter(|section| section.name == "facts");
                opened.into_iter().chain(facts.flat_map(|facts| &facts.seqs).map(|seq| (*seq, "saw"))).collect()
            }
            EventData::TurnRejected(turn) => {
                before("opened_by", &|data| opens(data, turn.turn_id)).into_iter().collect()
            }
            EventData::TurnCharged(charged) => {
                before("opened_by", &|data| opens(data, charged.turn_id)).into_iter().collect()
            }
            EventData::ApprovalEndorsed(answer) => self.question(seq, answer.approval_id),
            EventData::ApprovalGranted(answer) => {
                let first = |data: &EventData| matches!(data, EventData::ApprovalEndorsed(first) if first.approval_id == answer.approval_id);
                let first = before("agrees_with", &first).filter(|_| answer.endorsed_by.is_some());
                self.question(seq, answer.approval_id).into_iter().chain(first).collect()
            }
            EventData::ApprovalDenied(answer) => self.question(seq, answer.approval_id),
            EventData::ApprovalExpired(answer) => self.question(seq, answer.approval_id),
            EventData::TimerFired(fired) => {
                let set = |data: &EventData| matches!(data, EventData::TimerSet(set) if set.timer_id == fired.timer_id);
                before("about", &set).into_iter().collect()
            }
            EventData::ExternalMatched(matched) => {
                let wait = |data: &EventData| matches!(data, EventData::WaitRegistered(registered) if registered.wait.wait_id == matched.wait_id);
                before("answers", &wait).into_iter().collect()
            }
            EventData::ToolRequested(_) => Vec::new(),
            data => match call_of(data) {
                Some(call) => before("about", &|data| call_of(data) == Some(call)).into_iter().collect(),
                None => Vec::new(),
            },
        }
    }

    /// What a turn was opened for: what satisfied or ended the wait, else what this commit began with, else the facts that
    /// came while the turn before was under way.
    fn wakers(&self, seq: Seq, first: Seq) -> Vec<(Seq, &'static str)> {
        let mut commit = self.events.range(first..seq).rev();
        let wait_over =
            commit.find(|(_, entry)| matches!(entry.data, EventData::WaitSatisfied(_) | EventData::WaitExpired(_)));
        if let Some((seq, _)) = wait_over {
            return vec![(*seq, "woken_by")];
        }
        match self.events.get(&first).map(|entry| &entry.data) {
            Some(EventData::TurnCompleted(turn)) => {
                let missed = self.events.range(turn.based_on + 1..first).filter(|(_, entry)| is_fact(&entry.data));
                missed.map(|(seq, _)| (*seq, "woken_by")).chain([(first, "committed_with")]).collect()
            }
            Some(data) if first < seq && is_fact(data) => vec![(first, "woken_by")],
            _ => Vec::new(),
        }
    }

    fn question(&self, seq: Seq, approval: kernel::ApprovalId) -> Vec<(Seq, &'static str)> {
        let asks = |data: &EventData| match data {
            EventData::ApprovalRequested(asked) => asked.approval.approval_id == approval,
            EventData::BudgetExceeded(exceeded) => {
                exceeded.ask.as_ref().is_some_and(|asked| asked.approval_id == approval)
            }
            _ => false,
        };
        self.last_before(seq, &asks).map(|asked| (asked, "answers")).into_iter().collect()
    }

    fn last_before(&self, seq: Seq, is: &dyn Fn(&EventData) -> bool) -> Option<Seq> {
        self.events.range(..seq).rev().find(|(_, entry)| is(&entry.data)).map(|(seq, _)| *seq)
    }

    /// The first event of the commit: all of a commit have one time and one cause.
    fn first_of_commit(&self, seq: Seq, entry: &Entry) -> Seq {
        let same = |other: &Entry| other.at == entry.at && other.cause == entry.cause;
        let commit = self.events.range(..seq).rev().take_while(|(_, other)| same(other));
        commit.last().map_or(seq, |(first, _)| *first)
    }

    fn tool(&self, call: CallId) -> &str {
        let requests = self.events.values().find_map(|entry| match &entry.data {
            EventData::ToolRequested(requested) if requested.call.call_id == call => Some(requested.call.tool.as_str()),
            EventData::SubagentStarted(started) if started.spawn.call_id == call => Some(started.spawn.agent.as_str()),
            _ => None,
        });
        requests.unwrap_or("a tool")
    }

    fn summary(&self, entry: &Entry) -> String {
        match &entry.data {
            EventData::RunCreated(created) => format!("a run of `{}`: {}", created.agent, created.objective.text),
            EventData::RunRunnable(turn) => format!("turn {} is open", turn.number),
            EventData::TurnCompleted(turn) => format!("turn {} by {}", turn.number, turn.model),
            EventData::TurnRejected(turn) => format!("an answer was refused: {}", turn.code),
            EventData::TurnCharged(charged) => format!("paid for in vain: {}", charged.reason),
            EventData::PlanUpdated(plan) => plan.reason.clone().unwrap_or_default(),
            EventData::MessageAdded(message) => message.block.text.clone(),
            EventData::ObservationRecorded(recorded) => recorded.observation.changed.clone(),
            EventData::WaitRegistered(registered) => registered.wait.why.clone(),
            EventData::ExternalMatched(matched) => {
                format!("`{}` from `{}`", matched.external.event_type, matched.external.source)
            }
            EventData::ApprovalRequested(ApprovalRequested { approval }) => approval.question.text.clone(),
            EventData::ApprovalEndorsed(first) => format!("{} said yes, and another person has to", first.by),
            EventData::ApprovalGranted(granted) => match &granted.endorsed_by {
                Some(first) => format!("{} said yes, as {first} had", granted.by),
                None => format!("{} said yes", granted.by),
            },
            EventData::ApprovalDenied(denied) => format!("{} said no", denied.by),
            EventData::TimerSet(set) => format!("due at {}", set.due),
            EventData::TimerFired(fired) => format!("it was due at {}", fired.due),
            data => match call_of(data) {
                Some(call) => format!("`{}`", self.tool(call)),
                None => String::new(),
            },
        }
    }
}

fn origins(seq: Seq, entry: &Entry) -> Vec<Origin> {
    let external = match &entry.data {
        EventData::RunCreated(created) => created.trigger.clone(),
        EventData::ExternalMatched(matched) => Some(matched.external.clone()),
        _ => None,
    };
    let event = external.map(|event| Origin::Event { seq, event: Box::new(event) });
    // Only where the person acted, not on all that came of it.
    let acted = match &entry.data {
        EventData::MessageAdded(message) => message.role == Speaker::Operator,
        EventData::RunCreated(_)
        | EventData::RunPaused(_)
        | EventData::RunResumed(_)
        | EventData::RunCancelRequested(_)
        | EventData::RunCancelled(_)
        | EventData::BudgetChanged(_)
        | EventData::RunForked(_)
        | EventData::RunRevised(_)
        | EventData::TrustDeclassified(_)
        | EventData::ApprovalEndorsed(_)
        | EventData::ApprovalGranted(_)
        | EventData::ApprovalDenied(_) => true,
        _ => false,
    };
    let person = entry.cause.operator.clone().filter(|_| acted).map(|name| Origin::Operator { seq, name });
    event.into_iter().chain(person).collect()
}

fn opens(data: &EventData, turn: kernel::TurnId) -> bool {
    matches!(data, EventData::RunRunnable(opened) if opened.turn_id == turn)
}

/// Whether it can be what a turn is opened for.
fn is_fact(data: &EventData) -> bool {
    match data {
        EventData::MessageAdded(message) => message.role == Speaker::Operator,
        EventData::ObservationRecorded(recorded) => recorded.observation.decision.is_some(),
        EventData::ToolCompleted(_)
        | EventData::ToolFailed(_)
        | EventData::ToolDenied(_)
        | EventData::ToolCancelled(_)
        | EventData::ToolReconciled(_)
        | EventData::SubagentCompleted(_)
        | EventData::SubagentFailed(_)
        | EventData::SubagentCancelled(_)
        | EventData::ExternalMatched(_)
        | EventData::TimerFired(_)
        | EventData::ApprovalGranted(_)
        | EventData::ApprovalDenied(_)
        | EventData::ApprovalExpired(_)
        | EventData::RunResumed(_) => true,
        _ => false,
    }
}

fn call_of(data: &EventData) -> Option<CallId> {
    match data {
        EventData::ToolRequested(requested) => Some(requested.call.call_id),
        EventData::ToolDenied(denied) => Some(denied.call_id),
        EventData::ToolStarted(started) => Some(started.call_id),
        EventData::ToolCompleted(completed) => Some(completed.call_id),
        EventData::ToolFailed(failed) => Some(failed.call_id),
        EventData::ToolCancelled(cancelled) => Some(cancelled.call_id),
        EventData::ToolInDoubt(doubt) => Some(doubt.call_id),
        EventData::ToolReconciled(reconciled) => Some(reconciled.call_id),
        EventData::SubagentStarted(started) => Some(started.spawn.call_id),
        EventData::SubagentCompleted(completed) => Some(completed.call_id),
        EventData::SubagentFailed(failed) => Some(failed.call_id),
        EventData::SubagentCancelled(cancelled) => Some(cancelled.call_id),
        EventData::ApprovalRequested(asked) => asked.approval.call_id,
        EventData::ObservationRecorded(recorded) => recorded.observation.call_id,
        _ => None,
    }
}
