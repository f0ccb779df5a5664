//! From a call of a run to a [`Request`]: the same for whoever looks at it beforehand and for whoever carries it out.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kernel::call::CallRequest;
use kernel::tool::{CallKind, DryRun, Effect, ToolRun, ToolSpec};
use kernel::{RunState, Trust};
use serde_json::Value;

use crate::decision::Obligation;
use crate::request::{ArgumentProvenance, BudgetLeft, Request, ToolKind};

/// How deep defaults are filled in.
const MAX_DEPTH: usize = 16;

/// A call that is judged, as far as everybody knows it who judges.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// The run that asks for it.
    pub state: &'a RunState,
    /// What it asks for.
    pub request: &'a CallRequest,
    /// Its tool, as it was shown to the model.
    pub spec: &'a ToolSpec,
    /// The arguments with their defaults, see [`with_defaults`].
    pub arguments: &'a Value,
    /// Where those that matter come from.
    pub matters: &'a [ArgumentProvenance],
    /// How far it is believed where that is not known.
    pub believed: Trust,
    /// When.
    pub now: Timestamp,
}

impl<'a> Judged<'a> {
    /// The request, without what only whoever carries the call out knows: what it reaches, whether it is confined, and the
    /// environment. Of those it says the least favourable.
    #[must_use]
    pub fn request(&self) -> Request<'a> {
        let Judged { state, request, spec, arguments, matters, believed, now } = *self;
        // What undoes a call is a request, however the call itself is carried out.
        let kind = if request.is_compensation() { ToolKind::Http } else { kind(&spec.run) };
        Request {
            idempotent: spec.idempotent,
            trust: believed,
            matters,
            budget_left: budget_left(state, now),
            now: Some(now),
            ..Request::new(state.tenant.as_str(), &state.agent, &request.tool, kind, spec.effect, arguments)
        }
    }
}

/// How a tool is carried out, as policies name it.
#[must_use]
pub fn kind(run: &ToolRun) -> ToolKind {
    match run {
        // What a command is told is as good as a command.
        ToolRun::Builtin(name) if matches!(name.as_str(), "shell.run" | "activity.send") => ToolKind::Process,
        ToolRun::Builtin(name) if matches!(name.as_str(), "http.get" | "http.request") => ToolKind::Http,
        ToolRun::Builtin(_) | ToolRun::Sql(_) => ToolKind::Builtin,
        ToolRun::Http(_) => ToolKind::Http,
        ToolRun::Process(_) => ToolKind::Process,
        ToolRun::Mcp(_) => ToolKind::Mcp,
    }
}

/// Whom a tool's file leaves out, in words. Who is let in instead is not said to whoever is not.
#[must_use]
pub fn not_permitted(state: &RunState, spec: &ToolSpec) -> Option<String> {
    let ToolSpec { permissions, name, .. } = spec;
    if !permissions.allow_tenant(state.tenant.as_str()) {
        return Some(format!("`{name}` is not for this tenant: its file does not name it"));
    }
    if !permissions.allow_roles(&state.roles) {
        return Some(format!(
            "`{name}` is not for whoever started this run: their role is not among those of its file"
        ));
    }
    let is_left_out = !permissions.allow_agent(&state.agent);
    is_left_out.then(|| format!("`{name}` is not for the agent `{}`: its file does not name it", state.agent))
}

/// The first obligation that can't be kept with this tool, in words. A call that is permitted on that condition is not
/// permitted then.
#[must_use]
pub fn unmet(obligations: &BTreeSet<Obligation>, spec: &ToolSpec) -> Option<&'static str> {
    let goes_on = spec.kind == CallKind::Activity;
    obligations.iter().find_map(|obligation| match obligation {
        Obligation::VerifyAfter if goes_on => {
            Some("read it back afterwards, and the tool goes on by itself: nobody reads back then")
        }
        Obligation::VerifyAfter if spec.probe.is_none() => Some("read it back afterwards, and the tool has no `probe`"),
        // A read changes nothing, so there is nothing to try out.
        Obligation::DryRunFirst if spec.effect == Effect::Read => None,
        Obligation::DryRunFirst if spec.dry_run.is_none() => Some("do a dry run first, and the tool has no `dry_run`"),
        // Its file is refused, but what is shown is not always from a file.
        Obligation::DryRunFirst if goes_on && matches!(spec.dry_run, Some(DryRun::Arguments(_))) => {
            Some("do a dry run first, and the tool goes on by itself: a dry run has to answer")
        }
        // Two people keep it, whatever the tool.
        Obligation::VerifyAfter | Obligation::DryRunFirst | Obligation::TwoPeople => None,
    })
}

/// What is left of a run's budget. The policies count what is left; nothing is left of what is overdrawn.
#[must_use]
pub fn budget_left(state: &RunState, now: Timestamp) -> BudgetLeft {
    let (limits, spent) = (&state.limits, &state.committed());
    let tokens = spent.usage.input_tokens.saturating_add(spent.usage.output_tokens);
    let age = u64::try_from(now.duration_since(state.created_at).as_secs()).unwrap_or_default();
    let left = |limit: Option<u64>, spent: u64| limit.map(|limit| limit.saturating_sub(spent));
    BudgetLeft {
        turns: left(limits.turns.map(u64::from), spent.turns.into()),
        tokens: left(limits.tokens, tokens),
        cost_micro_usd: left(limits.cost_usd.map(kernel::budget::microusd), spent.usage.cost_microusd),
        tool_calls: left(limits.tool_calls.map(u64::from), spent.tool_calls.into()),
        wall_seconds: left(limits.wall.map(|wall| wall.as_millis() / 1000), age),
    }
}

/// Whether a schema gives a default for anything.
#[must_use]
pub fn has_defaults(schema: &Value) -> bool {
    has_defaults_below(schema, 0)
}

fn has_defaults_below(schema: &Value, depth: usize) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flat_map(serde_json::Map::values);
    depth < MAX_DEPTH
        && properties
            .chain(schema.get("items"))
            .any(|property| property.get("default").is_some() || has_defaults_below(property, depth + 1))
}

/// Fills in what a schema gives a default for and is not there. Nothing that is there is changed.
pub fn with_defaults(value: &mut Value, schema: &Value) {
    fill(value, schema, 0);
}

fn fill(value: &mut Value, schema: &Value, depth: usize) {
    if depth >= MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if let Some(default) = property.get("default") {
                    fields.entry(name.clone()).or_insert_with(|| default.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    fill(field, property, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = schema.get("items") {
                items.iter_mut().for_each(|item| fill(item, of, depth + 1));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use kernel::tool::{HttpRequest, Probe};
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_filled_at_every_depth_and_change_nothing_that_is_there() {
        let schema = json!({
            "properties": {
                "mode": {"default": "a"},
                "page": {"default": {}, "properties": {"size": {"default": 10}}},
                "list": {"items": {"properties": {"k": {"default": true}}}},
            },
        });
        let filled = |mut value: Value| {
            with_defaults(&mut value, &schema);
            value
        };
        assert!(has_defaults(&schema) && !has_defaults(&json!({"properties": {"a": {"type": "string"}}})));
        assert_eq!(filled(json!({})), json!({"mode": "a", "page": {"size": 10}}));
        let given = json!({"mode": null, "page": {"size": "3"}, "list": [{"k": 0}, {}]});
        assert_eq!(filled(given), json!({"mode": null, "page": {"size": "3"}, "list": [{"k": 0}, {"k": true}]}));
    }

    #[test]
    fn an_obligation_that_a_tool_has_no_means_for_is_unmet() {
        let http = HttpRequest::new("POST", "https://h/");
        let bare = ToolSpec::new("x", json!({}), Effect::External, ToolRun::Http(http.clone()));
        let able = ToolSpec {
            probe: Some(Probe { http, done: "/done".to_owned() }),
            dry_run: Some(DryRun::Arguments(json!({"dry": true}).as_object().cloned().unwrap_or_default())),
            ..bare.clone()
        };
        let activity = ToolSpec { kind: CallKind::Activity, ..able.clone() };
        for obligation in Obligation::ALL {
            let obliged = BTreeSet::from([obligation]);
            let means = obligation != Obligation::TwoPeople;
            assert_eq!(unmet(&obliged, &bare).is_some(), means, "{obligation:?}");
            assert_eq!(unmet(&obliged, &activity).is_some(), means, "{obligation:?}");
            assert_eq!(unmet(&obliged, &able), None, "{obligation:?}");
        }
        assert_eq!(unmet(&BTreeSet::new(), &bare), None);
        let read = ToolSpec { effect: Effect::Read, ..bare };
        assert_eq!(unmet(&BTreeSet::from([Obligation::DryRunFirst]), &read), None);
    }
}
