//! A request in Cedar's terms: entities, action and context, as `schema.cedarschema` declares them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{PoisonError, RwLock};

use cedar_policy::{
    Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, Request as CedarRequest, RestrictedExpression,
    Schema,
};
use serde_json::json;

use crate::arguments::{self, Beyond, record_of};
use crate::request::{ArgumentProvenance, BudgetLeft, EFFECTS, Effect, Request, TRUSTS, ToolKind, Trust};

/// Why a request could not be put into policy terms.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The arguments are beyond a limit.
    #[error(transparent)]
    Beyond(#[from] Beyond),
    /// A fact that Cedar does not take, such as a time before the year 0; or the schema and the code differ.
    #[error("the call can't be put into policy terms: {0}")]
    Cedar(String),
}

impl FactsError {
    fn cedar(error: impl std::error::Error) -> Self {
        Self::Cedar(error.to_string())
    }
}

/// What the authorizer is given.
pub struct Facts {
    pub request: CedarRequest,
    pub entities: Entities,
}

/// The names that never change, made once: parsing them is most of the cost of a small request.
#[derive(Debug)]
pub struct Vocabulary {
    agent: EntityTypeName,
    tenant: EntityTypeName,
    tool: EntityTypeName,
    arguments: EntityUid,
    kinds: HashMap<ToolKind, EntityUid>,
    trusts: HashMap<Trust, EntityUid>,
    actions: HashMap<Effect, Entity>,
    /// By id, and where in it the tenant ends.
    agents: Remembered<(EntityUid, usize)>,
    tools: Remembered<(EntityUid, ToolKind, bool)>,
}

/// Entities that are the same in request after request, made once.
#[derive(Debug)]
struct Remembered<K>(RwLock<HashMap<K, Entity>>);

/// Entities of a kind that are remembered at most.
const MOST: usize = 1024;

impl<K> Default for Remembered<K> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Eq + Hash> Remembered<K> {
    fn get(&self, key: K, make: impl FnOnce() -> Result<Entity, FactsError>) -> Result<Entity, FactsError> {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known.clone());
        }
        let made = make()?;
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Forgets everything rather than grow: it is made again when it is wanted.
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, made.clone());
        Ok(made)
    }
}

impl Vocabulary {
    /// The vocabulary for a schema.
    ///
    /// # Errors
    /// If the schema lacks an action.
    pub fn new(schema: &Schema) -> Result<Self, FactsError> {
        let name = |name: &str| name.parse::<EntityTypeName>().map_err(FactsError::cedar);
        let (kind, trust, action) = (name("ToolKind")?, name("Trust")?, name("Action")?);
        let declared = schema.action_entities().map_err(FactsError::cedar)?;
        let actions = EFFECTS.into_iter().map(|effect| {
            let uid = uid(&action, effect.as_str());
            let entity = declared.get(&uid).cloned();
            entity.map(|entity| (effect, entity)).ok_or_else(|| FactsError::Cedar(format!("the schema lacks {uid}")))
        });
        Ok(Self {
            agent: name("Agent")?,
            tenant: name("Tenant")?,
            tool: name("Tool")?,
            arguments: uid(&name("Arguments")?, "call"),
            kinds: ToolKind::ALL.into_iter().map(|value| (value, uid(&kind, value.as_str()))).collect(),
            trusts: TRUSTS.into_iter().map(|value| (value, uid(&trust, value.as_str()))).collect(),
            actions: actions.collect::<Result<_, _>>()?,
            agents: Remembered::default(),
            tools: Remembered::default(),
        })
    }

    /// Puts `request` into Cedar's terms, checked against `schema` if it is given.
    ///
    /// # Errors
    /// If the arguments are beyond a limit, or a fact is one that Cedar does not take.
    pub fn facts(&self, request: &Request<'_>, schema: Option<&Schema>) -> Result<Facts, FactsError> {
        let agent = uid(&self.agent, &format!("{}/{}", request.tenant, request.agent));
        let tool = uid(&self.tool, request.tool);
        let action = &self.actions[&request.effect];
        let entities = [
            self.agents.get((agent.clone(), request.tenant.len()), || self.agent(&agent, request))?,
            self.tools.get((tool.clone(), request.kind, request.idempotent), || self.tool(&tool, request))?,
            self.arguments(request)?,
        ];
        // The schema brings its own actions; without it the one that is asked about is enough, as it knows its groups.
        let actions = schema.is_none().then(|| action.clone());
        let entities =
            Entities::from_entities(entities.into_iter().chain(actions), schema).map_err(FactsError::cedar)?;
        let context = Context::from_pairs(self.context(request)).map_err(FactsError::cedar)?;
        let request = CedarRequest::new(agent, action.uid(), tool, context, schema).map_err(FactsError::cedar)?;
        Ok(Facts { request, entities })
    }

    /// Requests that use every fact and none, for every effect: if these fit a schema, all do.
    ///
    /// # Errors
    /// With the first difference between the schema and the code.
    pub fn check(&self, schema: &Schema) -> Result<(), FactsError> {
        let arguments = json!({"text": "x", "whole": 1, "part": 0.5, "flag": true, "list": ["x"], "none": null});
        let matters =
            [ArgumentProvenance { pointer: "/text".into(), trust: Trust::Operator, source: "operator".into() }];
        for effect in EFFECTS {
            let bare = Request::new("tenant", "agent", "tool", ToolKind::Builtin, effect, &arguments);
            let full = Request {
                matters: &matters,
                named_host: Some(true),
                named_command: Some(true),
                named_path: Some(true),
                in_workspace: Some(true),
                budget_left: BudgetLeft {
                    turns: Some(1),
                    tokens: Some(1),
                    cost_micro_usd: Some(1),
                    tool_calls: Some(1),
                    wall_seconds: Some(1),
                },
                now: Some(jiff::Timestamp::UNIX_EPOCH),
                ..bare
            };
            self.facts(&bare, Some(schema))?;
            self.facts(&full, Some(schema))?;
        }
        Ok(())
    }

    fn agent(&self, agent: &EntityUid, request: &Request<'_>) -> Result<Entity, FactsError> {
        let attributes = [("name", request.agent), ("tenant", request.tenant)];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), string(value)));
        let tenant = uid(&self.tenant, request.tenant);
        Entity::new_with_tags(agent.clone(), attributes, [tenant], []).map_err(FactsError::cedar)
    }

    fn tool(&self, tool: &EntityUid, request: &Request<'_>) -> Result<Entity, FactsError> {
        let attributes = [
            ("name", string(request.tool)),
            ("kind", RestrictedExpression::new_entity_uid(self.kinds[&request.kind].clone())),
            ("idempotent", RestrictedExpression::new_bool(request.idempotent)),
        ];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value));
        Entity::new_with_tags(tool.clone(), attributes, [], []).map_err(FactsError::cedar)
    }

    fn arguments(&self, request: &Request<'_>) -> Result<Entity, FactsError> {
        let tags = arguments::tags(request.arguments, request.matters, |trust| self.trusts[&trust].clone())?;
        Entity::new_with_tags(self.arguments.clone(), [], [], tags).map_err(FactsError::cedar)
    }

    fn context(&self, request: &Request<'_>) -> Vec<(String, RestrictedExpression)> {
        let trust = |trust: Trust| RestrictedExpression::new_entity_uid(self.trusts[&trust].clone());
        let untrusted = request.matters.iter().filter(|argument| argument.trust == Trust::Untrusted);
        let mut facts = vec![
            ("trust", trust(request.trust)),
            ("deciding_trust", trust(request.deciding_trust())),
            ("untrusted", RestrictedExpression::new_set(untrusted.map(|argument| string(&argument.pointer)))),
            ("confined", RestrictedExpression::new_bool(request.confined)),
            ("environment", string(request.environment)),
            ("budget", budget(&request.budget_left)),
            ("arguments", RestrictedExpression::new_entity_uid(self.arguments.clone())),
        ];
        let known = [
            ("named_host", request.named_host),
            ("named_command", request.named_command),
            ("named_path", request.named_path),
            ("in_workspace", request.in_workspace),
        ];
        let known = known.into_iter().filter_map(|(name, value)| Some((name, RestrictedExpression::new_bool(value?))));
        facts.extend(known);
        // Cedar takes exactly three places of a second.
        facts.extend(request.now.map(|now| ("time", RestrictedExpression::new_datetime(format!("{now:.3}")))));
        facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

fn string(text: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(text.to_owned())
}

fn budget(left: &BudgetLeft) -> RestrictedExpression {
    let limits = [
        ("turns", left.turns),
        ("tokens", left.tokens),
        ("cost_micro_usd", left.cost_micro_usd),
        ("tool_calls", left.tool_calls),
        ("wall_seconds", left.wall_seconds),
    ];
    let long = |amount: u64| RestrictedExpression::new_long(i64::try_from(amount).unwrap_or(i64::MAX));
    record_of(limits.into_iter().filter_map(|(name, amount)| Some((name, long(amount?)))).collect())
}
