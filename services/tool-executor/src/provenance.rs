//! Where the arguments of a call come from, from what the log of its run says was seen.

use std::fmt::Write as _;
use std::sync::Arc;

use engine::{Engine, EngineError};
use kernel::agent::AgentSpec;
use kernel::call::CallRequest;
use kernel::tool::HttpRequest;
use kernel::{CallId, RunState, Seq, Trust};
use policy::{Care, Labels, LogPage, Origin, RunLog, SEEN_PAGE, Seen, Traced};
use serde_json::{Map, Value};

use crate::mcp::Mcp;
use crate::registry::{Registry, Tool};
use crate::template;
use crate::tools::Means;

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
    match Traced::of(call.request.trust, &tool.spec, &tool.labels) {
        Traced::Nothing => Ok(Vec::new()),
        Traced::Links => of_links(known, state, tool, arguments, agent).await,
        Traced::Arguments(care) => {
            let seen = seen(known, state, agent).await?;
            Ok(policy::trace(&Value::Object(arguments.clone()), &tool.labels, seen.sources(), care))
        }
    }
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
        let seen = seen(known, state, agent).await?;
        return Ok(policy::trace(&arguments, &tool.labels, seen.sources(), Care::Usual));
    };
    links.retain(|(_, link)| !link.as_str().is_some_and(|link| crate::tools::is_named(link, &agent.allow)));
    if links.is_empty() {
        return Ok(Vec::new());
    }
    let seen = seen(known, state, agent).await?;
    Ok(policy::trace_values(&links, seen.sources(), Care::Usual))
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
    let seen = seen(known, state, agent).await?;
    let care = Traced::care(tool.spec.effect);
    let believed = seen.believed(undone).filter(|trust| *trust > Trust::Untrusted);
    let (Means::Http(http), Some(trust)) = (means, believed) else {
        let arguments = Value::Object(arguments.clone());
        return Ok((policy::trace(&arguments, &tool.labels, seen.sources(), care), Trust::Untrusted));
    };
    Ok((policy::trace_values(&of_result(http, arguments), seen.sources(), care), trust))
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

/// What a run has seen so far, as its log says.
async fn seen(known: Known<'_>, state: &RunState, agent: &AgentSpec) -> Result<Seen, EngineError> {
    Seen::read(&Log { known, state }, agent).await
}

/// The log of a run.
struct Log<'a> {
    known: Known<'a>,
    state: &'a RunState,
}

impl RunLog for Log<'_> {
    type Error = EngineError;

    async fn page(&self, after: Seq) -> Result<LogPage, EngineError> {
        let RunState { tenant, run_id, .. } = self.state;
        let page = self.known.engine.reads().events(tenant, *run_id, after, SEEN_PAGE).await?;
        Ok(page.iter().map(|stored| (stored.seq, stored.decode())).collect())
    }

    async fn labels(&self, call: &CallRequest) -> Result<Option<Arc<Labels>>, EngineError> {
        Ok(self.known.called(call).await?.map(|tool| tool.labels.clone()))
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
