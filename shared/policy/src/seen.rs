//! What a run has seen, from the events of its log: the places that values of arguments may come from.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use kernel::agent::AgentSpec;
use kernel::call::CallRequest;
use kernel::event::{DecodeError, Event, EventData, Speaker};
use kernel::tool::{Effect, ToolRun, ToolSpec};
use kernel::{ApprovalId, Block, CallId, Seq, Trust};
use serde_json::Value;

use crate::provenance::{Care, Labels, Sources};

/// Events that are read at a time to find out what a run has seen.
pub const SEEN_PAGE: u32 = 500;
/// Pages that are read. What a longer run saw after these counts as not seen, so what comes from there is asked about.
const PAGES: usize = 40;

/// Which arguments of a call are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// None: it makes no difference where they come from.
    Nothing,
    /// All of them.
    Arguments(Care),
    /// What they lead to, as the links in them.
    Links,
}

impl Traced {
    /// For a call that was asked for by a model that had seen nothing below `trust`.
    #[must_use]
    pub fn of(trust: Trust, spec: &ToolSpec, labels: &Labels) -> Self {
        let effect = spec.effect;
        let dangerous = effect > Effect::External;
        let leads_out = match &spec.run {
            ToolRun::Http(_) | ToolRun::Mcp(_) => true,
            // One that does more is asked about for what it does.
            ToolRun::Process(process) => process.network && effect == Effect::Read,
            ToolRun::Builtin(_) | ToolRun::Sql(_) => false,
        };
        let outside = effect >= Effect::External || leads_out;
        let decides = labels.says_what_matters() || (outside && effect != Effect::Read);
        // If all that the model saw can be believed, so can all that it wrote. What is dangerous is asked about and shown anyway.
        if trust > Trust::Untrusted && !dangerous {
            return Self::Nothing;
        }
        match (decides, outside) {
            (true, _) => Self::Arguments(Self::care(effect)),
            // A tool that only reads, and whose author does not say what matters, could carry something away.
            (false, true) => Self::Links,
            (false, false) => Self::Nothing,
        }
    }

    /// How closely to look for what the arguments of a call are that does this.
    #[must_use]
    pub fn care(effect: Effect) -> Care {
        if effect > Effect::External { Care::Strict } else { Care::Usual }
    }
}

/// Events of a log in order, each with its number, and of one that can't be read why.
pub type LogPage = Vec<(Seq, Result<Event, DecodeError>)>;

/// The log of a run, and who knows the tools that are called in it.
pub trait RunLog {
    /// Why it can't be read.
    type Error;

    /// The next [`SEEN_PAGE`] events behind number `after`; fewer only at the end.
    fn page(&self, after: Seq) -> impl Future<Output = Result<LogPage, Self::Error>> + Send;

    /// What the author of the tool that was called says about its results; none if nobody knows the tool any more.
    fn labels(&self, call: &CallRequest) -> impl Future<Output = Result<Option<Arc<Labels>>, Self::Error>> + Send;
}

/// What a run has seen so far.
#[derive(Debug)]
pub struct Seen {
    sources: Sources,
    calls: HashMap<CallId, Called>,
    /// The arguments that each question about a call showed.
    asked: HashMap<ApprovalId, Value>,
}

/// A call that was asked for.
#[derive(Debug)]
struct Called {
    /// What its tool's author says about results; none if nobody knows the tool any more.
    labels: Option<Arc<Labels>>,
    arguments: Value,
    /// How far what the model had read was believed.
    trust: Trust,
}

impl Seen {
    /// What the log of a run of this agent says that it has seen.
    ///
    /// # Errors
    /// When the log can't be read, or nobody can say which tool was called.
    pub async fn read<L: RunLog>(log: &L, agent: &AgentSpec) -> Result<Self, L::Error> {
        let (mut seen, mut after) = (Self::nothing_but(agent), 0);
        for _ in 0..PAGES {
            let page = log.page(after).await?;
            let is_last = page.len() < SEEN_PAGE as usize;
            for (seq, event) in page {
                after = seq;
                // An event that can't be read is as if it had not been seen.
                let Ok(event) = event else {
                    seen.sources.incomplete();
                    continue;
                };
                if let EventData::ToolRequested(asked) = &event.data {
                    seen.call(&asked.call, log.labels(&asked.call).await?);
                }
                seen.on(event.data, TimeZone::UTC.to_datetime(event.at).date());
            }
            if is_last {
                return Ok(seen);
            }
        }
        seen.sources.incomplete();
        Ok(seen)
    }

    /// All of it, to look for values in.
    #[must_use]
    pub const fn sources(&self) -> &Sources {
        &self.sources
    }

    /// How far what the model had read was believed when it asked for a call.
    #[must_use]
    pub fn believed(&self, call: CallId) -> Option<Trust> {
        self.calls.get(&call).map(|called| called.trust)
    }

    fn nothing_but(agent: &AgentSpec) -> Self {
        let mut seen = Self { sources: Sources::default(), calls: HashMap::new(), asked: HashMap::new() };
        let source = format!("agent:{}", agent.name);
        seen.sources.text(&agent.instructions, Trust::Operator, source.as_str(), None);
        for host in &agent.allow.hosts {
            seen.sources.text(host, Trust::Operator, source.as_str(), None);
        }
        seen
    }

    /// A call that was asked for; its result may be labelled.
    fn call(&mut self, request: &CallRequest, labels: Option<Arc<Labels>>) {
        let called = Called { labels, arguments: request.arguments.clone(), trust: request.trust };
        self.calls.insert(request.call_id, called);
    }

    fn on(&mut self, event: EventData, day: Date) {
        match event {
            EventData::RunCreated(created) => {
                self.block(&created.objective, day);
                // A parent's model wrote it, so it is nobody's word, whatever that model had seen.
                if created.parent.is_none() || created.input.trust == Trust::Untrusted {
                    self.block(&created.input, day);
                }
            }
            EventData::MessageAdded(message) if message.role == Speaker::Operator => self.block(&message.block, day),
            EventData::ToolCompleted(done) => self.result(done.call_id, &done.result, day),
            EventData::ToolFailed(failed) => self.block(&failed.failure.block, day),
            // What a dry run said is in its words.
            EventData::ToolDenied(denied) => self.block(&denied.reason, day),
            EventData::SubagentCompleted(done) => self.doubted(&done.result, day),
            EventData::SubagentFailed(failed) => self.doubted(&failed.reason, day),
            EventData::ExternalMatched(matched) => self.block(&matched.block, day),
            EventData::ObservationRecorded(observed) => {
                for evidence in observed.observation.evidence {
                    self.sources.text(&evidence.excerpt, Trust::Untrusted, "observation", None);
                }
            }
            EventData::TrustDeclassified(vouched) => {
                let source = format!("vouched:{}", vouched.by);
                self.sources.text(&vouched.text, vouched.trust, source, Some(day));
            }
            EventData::ApprovalRequested(asked) => {
                if let Some(arguments) = asked.approval.arguments {
                    self.asked.insert(asked.approval.approval_id, arguments);
                }
            }
            EventData::ApprovalGranted(granted) => {
                let source = format!("operator:{}", granted.by);
                if let (Some(before), Some(after)) = (self.asked.get(&granted.approval_id), &granted.arguments) {
                    self.sources.edited(before, after, &source);
                }
                self.words(granted.reason.as_deref(), source, day);
            }
            EventData::ApprovalDenied(denied) => {
                self.words(denied.reason.as_deref(), format!("operator:{}", denied.by), day)
            }
            _ => {}
        }
    }

    fn words(&mut self, words: Option<&str>, source: String, day: Date) {
        self.sources.text(words.unwrap_or_default(), Trust::Operator, source, Some(day));
    }

    /// The runtime's own words are no source: they repeat what they were given.
    fn block(&mut self, block: &Block, day: Date) {
        if block.trust != Trust::System {
            self.sources.text(&block.text, block.trust, block.source.as_str(), Some(day));
        }
    }

    /// What a model below wrote can be a stranger's words, but never an operator's.
    fn doubted(&mut self, block: &Block, day: Date) {
        if block.trust == Trust::Untrusted {
            self.block(block, day);
        }
    }

    fn result(&mut self, call: CallId, result: &kernel::call::CallResult, day: Date) {
        let known = self.calls.get(&call).and_then(|called| Some((called.labels.as_ref()?, &called.arguments)));
        let labelled = known.is_some_and(|(labels, _)| labels.output().is_some());
        // No tool speaks for an operator, not even one that gives back what a model kept of their words.
        let block = Block { trust: result.block.trust.join(Trust::System), ..result.block.clone() };
        match &result.value {
            Some(value) if labelled || block.trust != Trust::System => {
                // What the runtime itself gives back repeats what it was given, unless its file labels it.
                let trust = Some(block.trust).filter(|trust| *trust != Trust::System).unwrap_or(Trust::Untrusted);
                let nothing = (Labels::default(), Value::Null);
                let (labels, given) = known.map_or((&nothing.0, &nothing.1), |(labels, given)| (&**labels, given));
                self.sources.result(value, labels, given, trust, &result.block.source);
                if !labelled && trust == Trust::Untrusted {
                    // Beside the document may stand more that a stranger wrote, such as headers.
                    self.block(&block, day);
                }
            }
            _ => self.block(&block, day),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::provenance::trace_values;

    /// A log of messages: who speaks, and what is said.
    struct Messages<F>(Seq, F, AtomicUsize);

    impl<F: Fn(Seq) -> (Speaker, String) + Sync> Messages<F> {
        fn new(count: Seq, said: F) -> Self {
            Self(count, said, AtomicUsize::new(0))
        }

        /// How far a word that is too short to be sure of is believed, once all of this is read.
        fn trust(&self, word: &str) -> Trust {
            let agent = json!({"name": "a", "model": "scripted:a", "instructions": ""});
            let agent = serde_json::from_value(agent).unwrap();
            let Poll::Ready(seen) = pin!(Seen::read(self, &agent)).poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("there is nothing to wait for");
            };
            trace_values(&[("/a".to_owned(), json!(word))], seen.unwrap().sources(), Care::Strict)[0].trust
        }
    }

    impl<F: Fn(Seq) -> (Speaker, String) + Sync> RunLog for Messages<F> {
        type Error = std::convert::Infallible;

        async fn page(&self, after: Seq) -> Result<LogPage, Self::Error> {
            self.2.fetch_add(1, Ordering::Relaxed);
            let event = |seq| {
                let (role, text) = self.1(seq);
                let block = json!({"text": text, "trust": "operator", "source": "operator:ann"});
                // Nothing said is an event that can't be read.
                let content = if text.is_empty() { json!({}) } else { json!({"role": role, "block": block}) };
                let data = EventData::decode("message.added", 1, &content.to_string());
                (seq, data.map(|data| Event { seq, at: Timestamp::UNIX_EPOCH, data }))
            };
            Ok((after + 1..=self.0).take(SEEN_PAGE as usize).map(event).collect())
        }

        async fn labels(&self, _: &CallRequest) -> Result<Option<Arc<Labels>>, Self::Error> {
            Ok(None)
        }
    }

    #[test]
    fn the_whole_of_a_log_is_read_page_by_page() {
        let (page, said) = (u64::from(SEEN_PAGE), |seq| (Speaker::Operator, format!("w{seq}")));
        for count in [page, page + 1, 2 * page] {
            let log = Messages::new(count, said);
            assert_eq!(log.trust(&format!("w{count}")), Trust::Operator, "of {count}");
            assert_eq!(log.2.load(Ordering::Relaxed) as u64, count / page + 1);
        }
        assert_eq!(Messages::new(1, said).trust("w2"), Trust::Untrusted);
    }

    #[test]
    fn who_could_not_read_all_is_sure_of_nothing_short() {
        let said =
            |gap: Seq| move |seq| (Speaker::Operator, if seq == gap { String::new() } else { format!("w{seq}") });
        assert_eq!(Messages::new(3, said(0)).trust("w3"), Trust::Operator);
        assert_eq!(Messages::new(3, said(2)).trust("w3"), Trust::Untrusted, "one could not be read");

        let most = PAGES as u64 * u64::from(SEEN_PAGE);
        let said = |seq| (if seq == 1 { Speaker::Operator } else { Speaker::Agent }, "w1".to_owned());
        assert_eq!(Messages::new(most - 1, said).trust("w1"), Trust::Operator);
        let long = Messages::new(most + 1, said);
        assert_eq!((long.trust("w1"), long.2.load(Ordering::Relaxed)), (Trust::Untrusted, PAGES), "it is too long");
    }

    #[test]
    fn a_program_that_may_use_the_network_is_traced_where_it_reads() {
        let traced = |effect: Effect, network: bool, trust: Trust| {
            let run = json!({"process": {"command": ["curl", "{url}"], "network": network}});
            let input = json!({"type": "object", "properties": {"url": {"type": "string"}}});
            let spec = ToolSpec::new("site.status", input.clone(), effect, serde_json::from_value(run).unwrap());
            Traced::of(trust, &spec, &Labels::new(&input, None).unwrap())
        };
        assert_eq!(traced(Effect::Read, true, Trust::Untrusted), Traced::Links);
        assert_eq!(traced(Effect::Read, false, Trust::Untrusted), Traced::Nothing);
        assert_eq!(traced(Effect::Read, true, Trust::Operator), Traced::Nothing);
        assert_eq!(traced(Effect::External, false, Trust::Untrusted), Traced::Arguments(Care::Usual));
    }
}
