//! Where the arguments of a call come from, from what the log of its run says was seen.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use engine::{Engine, EngineError};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use kernel::agent::AgentSpec;
use kernel::call::CallRequest;
use kernel::event::{EventData, Speaker};
use kernel::tool::HttpRequest;
use kernel::{ApprovalId, Block, CallId, RunState, Trust};
use policy::{Care, Labels, Origin, Sources};
use serde_json::{Map, Value};

use crate::mcp::Mcp;
use crate::registry::{Registry, Tool};
use crate::template;
use crate::tools::Means;

/// Events that are read at a time.
const PAGE: u32 = 500;
/// Pages that are read. What a longer run saw after these counts as not seen, so what comes from there is asked about.
const MAX_PAGES: usize = 40;
/// Arguments whose origin a person is shown.
pub(crate) const MAX_SHOWN: usize = 40;
/// Longest pointer or source that is shown.
pub(crate) const MAX_LABEL: usize = 160;

/// Where it is known what was seen, and by which tools.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub engine: &'a Engine,
    pub registry: &'a Registry,
    pub mcp: &'a Mcp,
}

impl Known<'_> {
    /// The tool that was called: a server's as it was then.
    async fn called(self, request: &CallRequest) -> Result<Option<Arc<Tool>>, EngineError> {
        match self.registry.now(&request.tool) {
            None => self.mcp.as_called(&request.tool, &request.schema_digest).await,
            own => Ok(own),
        }
    }
}

/// The origin of each argument of a call that may have an effect outside; nothing if that makes no difference.
pub(crate) async fn trace(
    known: Known<'_>,
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
    if call.request.trust > Trust::Untrusted && !dangerous {
        return Ok(Vec::new());
    }
    if !decides {
        return if outside { of_links(known, state, tool, arguments, agent).await } else { Ok(Vec::new()) };
    }
    let seen = Seen::of(known, state, agent).await?;
    let care = if dangerous { Care::Strict } else { Care::Usual };
    Ok(policy::trace(&Value::Object(arguments.clone()), &tool.labels, &seen.sources, care))
}

/// Where a tool that only reads is sent, if its author does not say what matters: it could carry something away. What the
/// agent's file names as a host may be read from as a whole.
async fn of_links(
    known: Known<'_>,
    state: &RunState,
    tool: &Tool,
    arguments: &Map<String, Value>,
    agent: &AgentSpec,
) -> Result<Vec<Origin>, EngineError> {
    let arguments = Value::Object(arguments.clone());
    let Some(mut links) = policy::links(&arguments) else {
        let seen = Seen::of(known, state, agent).await?;
        return Ok(policy::trace(&arguments, &tool.labels, &seen.sources, Care::Usual));
    };
    links.retain(|(_, link)| !link.as_str().is_some_and(|link| crate::tools::is_named(link, &agent.allow)));
    if links.is_empty() {
        return Ok(Vec::new());
    }
    let seen = Seen::of(known, state, agent).await?;
    Ok(policy::trace_values(&links, &seen.sources, Care::Usual))
}

/// The same for the call that undoes `undone`, and how far what it is told is believed otherwise.
///
/// What that call was let do with its arguments may be undone with the same; new is only what the request that undoes it
/// takes from its result. If the model had read a stranger's data when it asked for the call, all of it is looked at.
pub(crate) async fn of_undoing(
    known: Known<'_>,
    state: &RunState,
    undone: CallId,
    call: Asked<'_>,
    agent: &AgentSpec,
) -> Result<(Vec<Origin>, Trust), EngineError> {
    let Asked { tool, means, arguments } = call;
    let seen = Seen::of(known, state, agent).await?;
    let care = if tool.spec.effect > kernel::tool::Effect::External { Care::Strict } else { Care::Usual };
    let believed = seen.calls.get(&undone).map(|(_, _, trust)| *trust).filter(|trust| *trust > Trust::Untrusted);
    let (Means::Http(http), Some(trust)) = (means, believed) else {
        let arguments = Value::Object(arguments.clone());
        return Ok((policy::trace(&arguments, &tool.labels, &seen.sources, care), Trust::Untrusted));
    };
    Ok((policy::trace_values(&of_result(http, arguments), &seen.sources, care), trust))
}

/// A call as it is to be carried out.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub tool: &'a Tool,
    pub means: &'a Means,
    pub arguments: &'a Map<String, Value>,
}

/// The parts of a result that a request has places for, each with its pointer.
fn of_result(http: &HttpRequest, arguments: &Map<String, Value>) -> Vec<(String, Value)> {
    let pointer = |name: &str| format!("/{}", name.replace('.', "/"));
    let value = |name: &str| {
        let mut parts = name.split('.');
        let first = parts.next().filter(|first| *first == "result").and_then(|first| arguments.get(first))?;
        parts.try_fold(first, |value, part| value.get(part)).cloned()
    };
    template::places_of(http).filter_map(|name| Some((pointer(name), value(name)?))).collect()
}

/// What a run has seen so far.
struct Seen {
    sources: Sources,
    /// Tool, if it is known, and arguments of each call, and how far what the model had read was believed.
    calls: HashMap<CallId, (Option<Arc<Tool>>, Value, Trust)>,
    /// The arguments that each question about a call showed.
    asked: HashMap<ApprovalId, Value>,
}

impl Seen {
    async fn of(known: Known<'_>, state: &RunState, agent: &AgentSpec) -> Result<Self, EngineError> {
        let mut seen = Self { sources: Sources::default(), calls: HashMap::new(), asked: HashMap::new() };
        seen.agent(agent);
        let reads = known.engine.reads();
        let mut after = 0;
        for number in 1..=MAX_PAGES {
            let page = reads.events(&state.tenant, state.run_id, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            for stored in &page {
                // An event that can't be read is as if it had not been seen.
                let Ok(event) = stored.decode() else {
                    seen.sources.incomplete();
                    continue;
                };
                if let EventData::ToolRequested(asked) = &event.data {
                    let tool = known.called(&asked.call).await?;
                    seen.calls.insert(asked.call.call_id, (tool, asked.call.arguments.clone(), asked.call.trust));
                }
                seen.event(event.data, TimeZone::UTC.to_datetime(event.at).date());
            }
            if page.len() < PAGE as usize {
                break;
            }
            if number == MAX_PAGES {
                seen.sources.incomplete();
            }
        }
        Ok(seen)
    }

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
            EventData::TrustDeclassified(vouched) => {
                let source = format!("vouched:{}", vouched.by);
                self.sources.text(&vouched.text, crate::pipeline::trust(vouched.trust), source, Some(day));
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
        let known = self.calls.get(&call).and_then(|(tool, arguments, _)| Some((tool.as_ref()?, arguments)));
        let labelled = known.is_some_and(|(tool, _)| tool.labels.output().is_some());
        // No tool speaks for an operator, not even one that gives back what a model kept of their words.
        let block = Block { trust: result.block.trust.join(Trust::System), ..result.block.clone() };
        match &result.value {
            Some(value) if labelled || block.trust != Trust::System => {
                // What the runtime itself gives back repeats what it was given, unless its file labels it.
                let trust = Some(block.trust).filter(|trust| *trust != Trust::System).unwrap_or(Trust::Untrusted);
                let nothing = (Labels::default(), Value::Null);
                let (labels, given) = known.map_or((&nothing.0, &nothing.1), |(tool, given)| (&tool.labels, given));
                self.sources.result(value, labels, given, crate::pipeline::trust(trust), &result.block.source);
                if !labelled && trust == Trust::Untrusted {
                    // Beside the document may stand more that a stranger wrote, such as headers.
                    self.block(&block, day);
                }
            }
            _ => self.block(&block, day),
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
    use serde_json::json;

    use super::*;

    #[test]
    fn what_undoes_a_call_is_judged_by_what_it_takes_from_the_result() {
        let mut http = HttpRequest::new("DELETE", "http://h/{order}/{result.id}");
        http.body = Some(json!({"was": "{result.at.day}", "gone": "{result.none}"}));
        let arguments = json!({"order": "7", "result": {"id": "o-1", "at": {"day": 3}, "note": "x"}});
        let taken = of_result(&http, arguments.as_object().unwrap());
        assert_eq!(taken, [("/result/id".to_owned(), json!("o-1")), ("/result/at/day".to_owned(), json!(3))]);
    }

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
