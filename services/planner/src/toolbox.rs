//! What a turn offers to the model: the kernel's verbs and the agent's tools, under names that every provider accepts.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use jsonschema::Validator;
use kernel::{
    CallId, Trust,
    call::{CallRequest, Compensation},
    tool::{ToolRun, ToolSpec},
};
use sha2::{Digest, Sha256};

use crate::{
    models::ToolDecl,
    tokens::{self, Counter, Encoding},
    verbs::{self, Verb},
};

/// Longest name that OpenAI takes.
const NAME_CHARS: usize = 64;

/// A tool of the catalogue, with the digest of its declaration.
#[derive(Clone, Debug)]
pub struct CatalogueTool {
    /// Its declaration.
    pub spec: Arc<ToolSpec>,
    /// Digest of that, kept with each call.
    pub digest: String,
}

impl CatalogueTool {
    /// A call of it.
    #[must_use]
    pub fn call(&self, call_id: CallId, arguments: serde_json::Value, trust: Trust) -> CallRequest {
        CallRequest {
            call_id,
            tool: self.spec.name.clone(),
            arguments,
            kind: self.spec.kind,
            effect: self.spec.effect,
            idempotent: self.spec.idempotent,
            schema_digest: self.digest.clone(),
            trust,
            compensation: if self.spec.compensate.is_some() { Compensation::Declared } else { Compensation::None },
            timeout: self.spec.timeout,
        }
    }
}

/// What a name stands for.
pub enum Offered {
    /// One of the kernel's own.
    Verb(Verb),
    /// A tool that the tool-executor runs.
    Tool(CatalogueTool),
}

/// A name that the model may call.
pub struct Offer {
    /// What it stands for.
    pub offered: Offered,
    schema: Validator,
}

/// A tool's declaration whose schema is none.
#[derive(Debug, thiserror::Error)]
#[error("the input schema of tool `{tool}` is not a JSON Schema: {problem}")]
pub struct BadSchema {
    /// Which tool.
    pub tool: String,
    /// What is wrong.
    pub problem: String,
}

/// All that one agent is offered.
pub struct Toolbox {
    declarations: Arc<[ToolDecl]>,
    offers: BTreeMap<String, Offer>,
    /// What the declarations take: in bytes, and in tokens of the encodings that somebody has asked for.
    bytes: usize,
    encoded: [OnceLock<u64>; Encoding::ALL.len()],
    trust: Trust,
    missing: Vec<String>,
    digest: String,
}

impl Toolbox {
    /// The verbs, and these tools; `names` are those of the agent's file, of which some may not be there. `agents` are those
    /// that may be started.
    ///
    /// # Errors
    /// [`BadSchema`] if the input schema of a tool of our own does not compile. One of a server is left out.
    pub fn new(names: &[String], agents: &[String], mut tools: Vec<CatalogueTool>) -> Result<Self, BadSchema> {
        let mut toolbox = Self::empty();
        let mut declarations = Vec::new();
        let mut hasher = Sha256::new();
        for verb in Verb::ALL {
            let declaration = verbs::declaration(verb);
            hasher.update(declaration.schema.to_string());
            toolbox.add(&mut declarations, declaration, Offered::Verb(verb))?;
        }
        if !agents.is_empty() {
            let declaration = verbs::spawn_declaration(agents);
            hasher.update(declaration.schema.to_string());
            toolbox.add(&mut declarations, declaration, Offered::Verb(Verb::SpawnAgent))?;
        }
        // The same order whatever the order in the file: a provider's cache sees the same beginning.
        tools.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
        tools.dedup_by(|one, other| one.spec.name == other.spec.name);
        let is_there = |name: &String| match name.strip_suffix(".*") {
            Some(server) => {
                tools.iter().any(|tool| matches!(&tool.spec.run, ToolRun::Mcp(run) if run.server == server))
            }
            None => tools.iter().any(|tool| tool.spec.name == *name),
        };
        toolbox.missing = names.iter().filter(|name| !is_there(name)).cloned().collect();
        for tool in tools {
            let declaration = ToolDecl {
                name: toolbox.wire_name(&tool.spec.name),
                description: tool.spec.description.clone(),
                schema: tool.spec.input.clone(),
            };
            let (name, digest, words) = (tool.spec.name.clone(), tool.digest.clone(), tool.spec.words());
            let is_ours = !matches!(tool.spec.run, ToolRun::Mcp(_));
            match toolbox.add(&mut declarations, declaration, Offered::Tool(tool)) {
                Ok(()) => {}
                Err(error) if is_ours => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a tool of an MCP server is left out");
                    toolbox.missing.push(name);
                    continue;
                }
            }
            hasher.update(&digest);
            toolbox.trust = toolbox.trust.join(words);
        }
        toolbox.bytes = tokens::bytes_of(&declarations);
        toolbox.declarations = declarations.into();
        toolbox.digest = hex::encode(hasher.finalize());
        Ok(toolbox)
    }

    /// The same with the opening of these skills, if there are any.
    ///
    /// # Errors
    /// None: the schema is of our own making.
    pub fn with_skills(mut self, skills: &[String]) -> Result<Self, BadSchema> {
        if !skills.is_empty() {
            self.offer(verbs::skill_declaration(skills), Verb::UseSkill)?;
        }
        Ok(self)
    }

    /// These verbs, and nothing else.
    ///
    /// # Errors
    /// None: the schemas are of our own making.
    pub fn only(verbs: &[Verb]) -> Result<Self, BadSchema> {
        let mut toolbox = Self::empty();
        for verb in verbs {
            toolbox.offer(verbs::declaration(*verb), *verb)?;
        }
        Ok(toolbox)
    }

    fn empty() -> Self {
        Self {
            declarations: Arc::new([]),
            offers: BTreeMap::new(),
            bytes: 0,
            encoded: Default::default(),
            trust: Trust::System,
            missing: Vec::new(),
            digest: String::new(),
        }
    }

    fn offer(&mut self, declaration: ToolDecl, verb: Verb) -> Result<(), BadSchema> {
        let mut declarations = self.declarations.to_vec();
        let hasher = Sha256::new().chain_update(&self.digest).chain_update(declaration.schema.to_string());
        self.digest = hex::encode(hasher.finalize());
        self.bytes += tokens::bytes_of(std::slice::from_ref(&declaration));
        self.encoded = Default::default();
        self.add(&mut declarations, declaration, Offered::Verb(verb))?;
        self.declarations = declarations.into();
        Ok(())
    }

    fn add(&mut self, all: &mut Vec<ToolDecl>, declaration: ToolDecl, offered: Offered) -> Result<(), BadSchema> {
        let schema = jsonschema::validator_for(&declaration.schema)
            .map_err(|error| BadSchema { tool: declaration.name.clone(), problem: error.to_string() })?;
        self.offers.insert(declaration.name.clone(), Offer { offered, schema });
        all.push(declaration);
        Ok(())
    }

    /// `shell.run` as `shell_run`; a name that is taken gets a number.
    fn wire_name(&self, name: &str) -> String {
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let base: String = name.chars().take(NAME_CHARS - 2).map(legal).collect();
        let numbered = (2..10).map(|number| format!("{base}_{number}"));
        std::iter::once(base.clone()).chain(numbered).find(|name| !self.offers.contains_key(name)).unwrap_or(base)
    }

    /// What a name stands for: as the provider was told, or as in the agent's file.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Offer> {
        self.offers.get(name).or_else(|| {
            let is_it = |offer: &&Offer| matches!(&offer.offered, Offered::Tool(tool) if tool.spec.name == name);
            self.offers.values().find(is_it)
        })
    }

    /// The names that the model may call.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.offers.keys().map(String::as_str)
    }

    /// Their declarations, verbs first.
    #[must_use]
    pub fn declarations(&self) -> Arc<[ToolDecl]> {
        Arc::clone(&self.declarations)
    }

    /// Tokens that the declarations take.
    #[must_use]
    pub fn tokens(&self, counter: Counter) -> u64 {
        match counter {
            Counter::ByLength(_) => counter.of_bytes(self.bytes),
            Counter::Own(encoding) => {
                *self.encoded[encoding as usize].get_or_init(|| counter.declarations(&self.declarations))
            }
        }
    }

    /// The least that any of the words may be believed that the declarations are made of: a server's own are data.
    #[must_use]
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// Names of the agent's file that the catalogue does not have.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Digest of everything that is offered.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl Offer {
    /// What is wrong with arguments, field by field; nothing if they fit the schema.
    #[must_use]
    pub fn problems(&self, arguments: &serde_json::Value) -> Vec<String> {
        self.schema
            .iter_errors(arguments)
            .take(5)
            .map(|error| {
                let at = error.instance_path().to_string();
                let field = if at.is_empty() { "the arguments".to_owned() } else { format!("`{at}`") };
                format!("{field}: {}", kernel::excerpt(&error.to_string(), 240))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use kernel::tool::{Effect, ToolRun};
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> CatalogueTool {
        let input = json!({"type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}});
        let run = ToolRun::Builtin(name.to_owned());
        let spec = ToolSpec {
            description: "Runs.".to_owned(),
            idempotent: true,
            timeout: kernel::units::Duration::from_secs(5),
            ..ToolSpec::new(name, input, Effect::Read, run)
        };
        CatalogueTool { spec: Arc::new(spec), digest: format!("digest of {name}") }
    }

    fn toolbox(names: &[&str]) -> Toolbox {
        let tools = names.iter().filter(|name| name.contains('.')).map(|name| tool(name)).collect();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Toolbox::new(&names, &[], tools).unwrap()
    }

    fn remote(name: &str, words: Trust, input: serde_json::Value) -> CatalogueTool {
        let (server, part) = name.split_once('.').unwrap();
        let part = kernel::tool::McpPart::Tool(part.to_owned());
        let run = ToolRun::Mcp(kernel::tool::McpRun { server: server.to_owned(), part, words, open_world: false });
        let spec = ToolSpec { run, input, ..ToolSpec::clone(&tool(name).spec) };
        CatalogueTool { spec: Arc::new(spec), digest: format!("digest of {name}") }
    }

    #[test]
    fn a_servers_words_are_data_and_its_bad_schema_costs_only_its_tool() {
        let object = || json!({"type": "object"});
        let tools = vec![
            tool("shell.run"),
            remote("forge.list", Trust::Untrusted, object()),
            remote("forge.bad", Trust::Untrusted, json!({"type": "no such type"})),
        ];
        let names = ["shell.run", "forge.*", "other.*"].map(str::to_owned);
        let toolbox = Toolbox::new(&names, &[], tools).unwrap();
        assert_eq!(toolbox.trust(), Trust::Untrusted);
        assert_eq!(toolbox.missing(), ["other.*", "forge.bad"]);
        assert!(toolbox.find("forge_list").is_some());
        let vouched = Toolbox::new(&names, &[], vec![remote("forge.list", Trust::System, object())]).unwrap();
        assert_eq!(vouched.trust(), Trust::System);
    }

    #[test]
    fn names_fit_every_provider_and_lead_back() {
        let toolbox = toolbox(&["shell.run", "wait.for", "nowhere"]);
        assert_eq!(toolbox.missing(), ["nowhere"]);
        assert!(
            matches!(&toolbox.find("shell_run").unwrap().offered, Offered::Tool(tool) if tool.spec.name == "shell.run")
        );
        assert!(toolbox.find("shell.run").is_some(), "by its own name too");
        assert!(matches!(toolbox.find("wait_for").unwrap().offered, Offered::Verb(Verb::WaitFor)));
        assert!(matches!(&toolbox.find("wait_for_2").unwrap().offered, Offered::Tool(_)), "a verb is never shadowed");
        assert!(toolbox.find("shell.stop").is_none());
        let by_length = toolbox.tokens(Counter::ESTIMATE);
        let own = toolbox.tokens(Counter::of("openai:gpt-5"));
        assert!(by_length > 200 && own > 200 && own != by_length, "{by_length} {own}");
    }

    #[test]
    fn problems_name_the_field() {
        let toolbox = toolbox(&["shell.run"]);
        let offer = toolbox.find("shell_run").unwrap();
        assert!(offer.problems(&json!({"command": "ls"})).is_empty());
        assert!(offer.problems(&json!({"command": 7}))[0].contains("`/command`"));
        assert!(offer.problems(&json!({}))[0].contains("\"command\" is a required property"));
    }

    #[test]
    fn agents_are_offered_by_name_to_those_who_may_start_them() {
        assert!(toolbox(&[]).find("spawn_agent").is_none());
        let toolbox = Toolbox::new(&[], &["reviewer".to_owned()], Vec::new()).unwrap();
        let offer = toolbox.find("spawn_agent").unwrap();
        assert!(offer.problems(&json!({"agent": "reviewer", "task": "look", "budget": {"turns": 3}})).is_empty());
        assert!(!offer.problems(&json!({"agent": "other", "task": "look"})).is_empty());
        assert!(!offer.problems(&json!({"agent": "reviewer", "task": "look", "budget": {"turns": 0}})).is_empty());
    }

    #[test]
    fn the_order_in_the_file_changes_nothing() {
        assert_eq!(toolbox(&["a.x", "b.y"]).digest(), toolbox(&["b.y", "a.x", "a.x"]).digest());
        assert_ne!(toolbox(&["a.x"]).digest(), toolbox(&["b.y"]).digest());
    }
}
