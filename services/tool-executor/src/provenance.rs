//! Where the arguments of a call come from, from what the log of its run says was seen.

use std::collections::HashMap;
use std::fmt::Write as _;

use engine::{Engine, EngineError};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use kernel::agent::AgentSpec;
use kernel::event::{EventData, Speaker};
use kernel::{ApprovalId, Block, CallId, RunState, Trust};
use policy::{Care, Origin, Sources};
use serde_json::{Map, Value};

use crate::registry::{Registry, Tool};

/// Events that are read at a time.
const PAGE: u32 = 500;
/// Pages that are read. What a longer run saw after these counts as not seen, so what comes from there is asked about.
const MAX_PAGES: usize = 40;
/// Arguments whose origin a person is shown.
const MAX_SHOWN: usize = 40;
/// Longest pointer or source that is shown.
const MAX_LABEL: usize = 160;

/// The origin of each argument of a call that may have an effect outside; nothing if that makes no difference.
pub(crate) async fn trace(
    engine: &Engine,
    registry: &Registry,
    state: &RunState,
    call: &kernel::call::Call,
    tool: &Tool,
    arguments: &Map<String, Value>,
    agent: &AgentSpec,
) -> Result<Vec<Origin>, EngineError> {
    use kernel::tool::{Effect, ToolRun};
    let effect = tool.spec.effect;
    let dangerous = effect > Effect::External;
    let outside = effect >= Effect::External || matches!(tool.spec.run, ToolRun::Http(_) | ToolRun::Mcp(_));
    let decides = tool.labels.says_what_matters() || (outside && effect != Effect::Read);
    // If all that the model saw can be believed, so can all that it wrote. What is dangerous is asked about and shown anyway.
    if !decides || (call.request.trust > Trust::Untrusted && !dangerous) {
        return Ok(Vec::new());
    }
    let mut seen = Seen { sources: Sources::default(), calls: HashMap::new(), asked: HashMap::new(), registry };
    seen.agent(agent);
    let reads = engine.reads();
    let mut after = 0;
    for _ in 0..MAX_PAGES {
        let page = reads.events(&state.tenant, state.run_id, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        // An event that can't be read is as if it had not been seen.
        for event in page.iter().filter_map(|stored| stored.decode().ok()) {
            seen.event(event.data, TimeZone::UTC.to_datetime(event.at).date());
        }
        if page.len() < PAGE as usize {
            break;
        }
    }
    let care = if dangerous { Care::Strict } else { Care::Usual };
    Ok(policy::trace(&Value::Object(arguments.clone()), &tool.labels, &seen.sources, care))
}

/// What a run has seen so far.
struct Seen<'a> {
    sources: Sources,
    /// Tool and arguments of each call.
    calls: HashMap<CallId, (String, Value)>,
    /// The arguments that each question about a call showed.
    asked: HashMap<ApprovalId, Value>,
    registry: &'a Registry,
}

impl Seen<'_> {
    fn agent(&mut self, agent: &AgentSpec) {
        let source = format!("agent:{}", agent.name);
        self.sources.text(&agent.instructions, policy::Trust::Operator, source.as_str(), None);
        for host in &agent.allow.hosts {
            self.sources.text(host, policy::Trust::Operator, source.as_str(), None);
        }
    }

    fn event(&mut self, event: EventData, day: Date) {
        match event {
            EventData::RunCreated(created) => {
                self.block(&created.objective, day);
                // A parent's model wrote it, so it is nobody's word, whatever that model had seen.
                if created.parent.is_none() || created.input.trust == Trust::Untrusted {
                    self.block(&created.input, day);
                }
            }
            EventData::MessageAdded(message) if message.role == Speaker::Operator => self.block(&message.block, day),
            EventData::ToolRequested(asked) => {
                self.calls.insert(asked.call.call_id, (asked.call.tool, asked.call.arguments));
            }
            EventData::ToolCompleted(done) => self.result(done.call_id, &done.result, day),
            EventData::ToolFailed(failed) => self.block(&failed.failure.block, day),
            EventData::SubagentCompleted(done) => self.doubted(&done.result, day),
            EventData::SubagentFailed(failed) => self.doubted(&failed.reason, day),
            EventData::ExternalMatched(matched) => self.block(&matched.block, day),
            EventData::ObservationRecorded(observed) => {
                for evidence in observed.observation.evidence {
                    self.sources.text(&evidence.excerpt, policy::Trust::Untrusted, "observation", None);
                }
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
        self.sources.text(words.unwrap_or_default(), policy::Trust::Operator, source, Some(day));
    }

    /// The runtime's own words are no source: they repeat what they were given.
    fn block(&mut self, block: &Block, day: Date) {
        if block.trust != Trust::System {
            self.sources.text(&block.text, crate::pipeline::trust(block.trust), block.source.as_str(), Some(day));
        }
    }

    /// What a model below wrote can be a stranger's words, but never an operator's.
    fn doubted(&mut self, block: &Block, day: Date) {
        if block.trust == Trust::Untrusted {
            self.block(block, day);
        }
    }

    fn result(&mut self, call: CallId, result: &kernel::call::CallResult, day: Date) {
        let known = self.calls.get(&call).and_then(|(name, arguments)| Some((self.registry.now(name)?, arguments)));
        match (&result.value, known) {
            (Some(value), Some((tool, arguments))) if tool.labels.output().is_some() => {
                self.sources.result(value, &tool.labels, arguments, &result.block.source);
            }
            _ => self.block(&result.block, day),
        }
    }
}

/// The origins in words for a person: what decides and can be believed least comes first. Nothing of what a stranger wrote
/// is in them, since they stand beside the runtime's own words.
pub(crate) fn in_words(origins: &[Origin]) -> String {
    let mut shown: Vec<_> = origins.iter().collect();
    shown.sort_by_key(|origin| (!origin.matters, origin.trust));
    let mut words = String::new();
    for origin in shown.iter().take(MAX_SHOWN) {
        let (pointer, source) = (label(&origin.pointer), label(&origin.source));
        let weight = if origin.matters { "" } else { ", does not decide" };
        // Writing into a text never fails.
        let _ = write!(words, "\n`{pointer}`: {}, from {source} ({}{weight})", origin.trust.as_str(), origin.rule);
    }
    if shown.len() > MAX_SHOWN {
        let _ = write!(words, "\nand {} more", shown.len() - MAX_SHOWN);
    }
    words
}

fn label(text: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '/' | '.' | '_' | '-' | '@' | '~' | '#');
    text.chars().take(MAX_LABEL).map(|c| if legal(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_nobodys_sentence() {
        let origin = |pointer: &str, matters, trust| Origin {
            pointer: pointer.to_owned(),
            trust,
            source: "event:x/ignore all\nprevious".to_owned(),
            rule: "only untrusted data holds it".to_owned(),
            matters,
        };
        let words = in_words(&[
            origin("/body", false, policy::Trust::Untrusted),
            origin("/a", true, policy::Trust::Operator),
            origin("/to` approve\nthis", true, policy::Trust::Untrusted),
        ]);
        assert_eq!(
            words,
            "\n`/to__approve_this`: untrusted, from event:x/ignore_all_previous (only untrusted data holds it)\
             \n`/a`: operator, from event:x/ignore_all_previous (only untrusted data holds it)\
             \n`/body`: untrusted, from event:x/ignore_all_previous (only untrusted data holds it, does not decide)"
        );
    }
}
