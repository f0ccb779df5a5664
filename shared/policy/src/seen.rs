//! What a run has seen, from the events of its log: the places that values of arguments may come from.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use kernel::agent::AgentSpec;
use kernel::call::CallRequest;
use kernel::event::{EventData, Speaker};
use kernel::tool::{Effect, ToolRun, ToolSpec};
use kernel::{ApprovalId, Block, CallId, Trust};
use serde_json::Value;

use crate::provenance::{Care, Labels, Sources};

/// Events that are read at a time to find out what a run has seen.
pub const SEEN_PAGE: u32 = 500;
/// Pages that are read. What a longer run saw after these counts as not seen, so what comes from there is asked about.
pub const SEEN_PAGES: usize = 40;

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
    /// Nothing yet but the agent's file.
    #[must_use]
    pub fn new(agent: &AgentSpec) -> Self {
        let mut seen = Self { sources: Sources::default(), calls: HashMap::new(), asked: HashMap::new() };
        seen.agent(agent);
        seen
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

    /// Not all of the log was read, or could be: nobody knows what strangers said in the rest.
    pub const fn incomplete(&mut self) {
        self.sources.incomplete();
    }

    /// A call that was asked for; its result may be labelled.
    pub fn call(&mut self, request: &CallRequest, labels: Option<Arc<Labels>>) {
        let called = Called { labels, arguments: request.arguments.clone(), trust: request.trust };
        self.calls.insert(request.call_id, called);
    }

    /// The next event of the log. Of one that asks for a call, [`call`](Self::call) is told too.
    pub fn event(&mut self, event: EventData, at: Timestamp) {
        self.on(event, TimeZone::UTC.to_datetime(at).date());
    }

    fn agent(&mut self, agent: &AgentSpec) {
        let source = format!("agent:{}", agent.name);
        self.sources.text(&agent.instructions, crate::Trust::Operator, source.as_str(), None);
        for host in &agent.allow.hosts {
            self.sources.text(host, crate::Trust::Operator, source.as_str(), None);
        }
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
                    self.sources.text(&evidence.excerpt, crate::Trust::Untrusted, "observation", None);
                }
            }
            EventData::TrustDeclassified(vouched) => {
                let source = format!("vouched:{}", vouched.by);
                self.sources.text(&vouched.text, vouched.trust.into(), source, Some(day));
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
        self.sources.text(words.unwrap_or_default(), crate::Trust::Operator, source, Some(day));
    }

    /// The runtime's own words are no source: they repeat what they were given.
    fn block(&mut self, block: &Block, day: Date) {
        if block.trust != Trust::System {
            self.sources.text(&block.text, block.trust.into(), block.source.as_str(), Some(day));
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
                self.sources.result(value, labels, given, trust.into(), &result.block.source);
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
    use serde_json::json;

    use super::*;

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
