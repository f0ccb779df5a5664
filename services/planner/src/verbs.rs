//! The kernel's verbs as tools: how they are declared to a model, and how what it answers is read.

mod schema;
mod wait;

use kernel::{
    Timestamp,
    budget::Limits,
    child::OnFailure,
    command::PlanChange,
    event::{PlanStep, StepStatus},
    memory::{MEMORY_BYTES, MEMORY_KEY_BYTES, MemoryScope},
    units::{self, Duration},
};
use serde::Deserialize;
use serde_json::Value;

use crate::skills::SkillAsked;

pub use schema::{declaration, skill_declaration, spawn_declaration};
pub use wait::{Names, WaitFor, resolve};

/// Most steps of a plan.
pub const MAX_STEPS: usize = 40;
/// Most bytes of a step's title, a reason, a question or a name.
pub const LINE_BYTES: usize = 600;
/// Most bytes of an artifact that a model writes.
pub const ARTIFACT_BYTES: usize = 1024 * 1024;

/// One of the verbs that every agent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Replace the plan.
    UpdatePlan,
    /// Sleep until something happens.
    WaitFor,
    /// Tell the operator.
    Say,
    /// Ask the operator, and sleep until there is an answer.
    AskOperator,
    /// Keep a text.
    CreateArtifact,
    /// Keep something for later runs, or forget it.
    Remember,
    /// End: reached.
    Complete,
    /// End: not to be reached.
    Fail,
    /// Start another agent. Only for agents whose file names some.
    SpawnAgent,
    /// Read a skill. Only for agents whose file names some.
    UseSkill,
}

impl Verb {
    /// Those that every agent has, in the order in which they are declared.
    pub const ALL: [Self; 8] = [
        Self::UpdatePlan,
        Self::WaitFor,
        Self::Say,
        Self::AskOperator,
        Self::CreateArtifact,
        Self::Remember,
        Self::Complete,
        Self::Fail,
    ];

    /// The name that the model calls.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UpdatePlan => "update_plan",
            Self::WaitFor => "wait_for",
            Self::Say => "say",
            Self::AskOperator => "ask_operator",
            Self::CreateArtifact => "create_artifact",
            Self::Remember => "remember",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::SpawnAgent => "spawn_agent",
            Self::UseSkill => "use_skill",
        }
    }
}

/// What a verb was called with.
#[derive(Clone, Debug, PartialEq)]
pub enum Spoken {
    /// `update_plan`.
    UpdatePlan(PlanChange),
    /// `wait_for`.
    WaitFor(WaitFor),
    /// `say`.
    Say(String),
    /// `ask_operator`, with how long the question stays open.
    AskOperator {
        /// What is asked.
        question: String,
        /// None: as the agent's file says.
        expires: Option<When>,
    },
    /// `create_artifact`.
    CreateArtifact(Draft),
    /// `remember`.
    Remember(Remembered),
    /// `complete`.
    Complete(String),
    /// `fail`.
    Fail(String),
    /// `spawn_agent`.
    SpawnAgent(SpawnAgent),
    /// `use_skill`.
    UseSkill(SkillAsked),
}

/// What is to be remembered, or forgotten.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// Who else sees it.
    pub scope: MemoryScope,
    /// What it is about.
    pub key: String,
    /// What it says; none: it is forgotten.
    pub text: Option<String>,
    /// When it is forgotten by itself.
    pub expires: Option<When>,
}

/// An agent to start.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SpawnAgent {
    /// Its name.
    pub agent: String,
    /// What it is to do.
    pub task: String,
    /// What it may spend at most.
    #[serde(default)]
    pub budget: Limits,
    /// What becomes of this run if it fails.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// An artifact before it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its name within the run.
    pub name: String,
    /// Its content.
    pub content: String,
    /// Its media type.
    pub media_type: String,
}

/// A time as models write it: `30m` from now, or a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From now.
    In(Duration),
    /// At this time.
    At(Timestamp),
}

impl When {
    /// The point in time.
    #[must_use]
    pub fn after(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(span) => units::later(now, span),
            Self::At(at) => at,
        }
    }
}

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Ok(span) = text.parse() {
            return Ok(Self::In(span));
        }
        let wanted = "neither a span such as 250ms, 3s, 15m, 2h, 3d nor a time such as 2030-01-31T09:00:00Z";
        text.parse().map(Self::At).map_err(|_| serde::de::Error::custom(format!("`{text}` is {wanted}")))
    }
}

/// Reads arguments that fit the verb's schema.
///
/// # Errors
/// What is wrong with them, in words for the model.
pub fn read(verb: Verb, arguments: Value) -> Result<Spoken, String> {
    match verb {
        Verb::UpdatePlan => read_plan(arguments),
        Verb::WaitFor => parse::<wait::Arguments>(arguments)?.read().map(Spoken::WaitFor),
        Verb::Say => Ok(Spoken::Say(text("text", parse::<Text>(arguments)?.text)?)),
        Verb::AskOperator => {
            let asked = parse::<Question>(arguments)?;
            Ok(Spoken::AskOperator { question: text("question", asked.question)?, expires: asked.expires })
        }
        Verb::CreateArtifact => read_draft(arguments).map(Spoken::CreateArtifact),
        Verb::Complete => Ok(Spoken::Complete(text("summary", parse::<Summary>(arguments)?.summary)?)),
        Verb::Remember => read_memory(arguments).map(Spoken::Remember),
        Verb::UseSkill => {
            let asked = parse::<Skill>(arguments)?;
            Ok(Spoken::UseSkill(SkillAsked { name: text("name", asked.name)?, file: asked.file }))
        }
        Verb::SpawnAgent => {
            let mut asked = parse::<SpawnAgent>(arguments)?;
            asked.task = text("task", asked.task)?;
            Ok(Spoken::SpawnAgent(asked))
        }
        Verb::Fail => Ok(Spoken::Fail(text("reason", parse::<Reason>(arguments)?.reason)?)),
    }
}

#[derive(Deserialize)]
struct Text {
    text: String,
}

#[derive(Deserialize)]
struct Question {
    question: String,
    #[serde(default)]
    expires: Option<When>,
}

#[derive(Deserialize)]
struct Summary {
    summary: String,
}

#[derive(Deserialize)]
struct Reason {
    reason: String,
}

#[derive(Deserialize)]
struct Plan {
    steps: Vec<Step>,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Step {
    title: String,
    status: StepStatus,
}

#[derive(Deserialize)]
struct Skill {
    name: String,
    #[serde(default)]
    file: Option<String>,
}

#[derive(Deserialize)]
struct Memory {
    key: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    scope: Option<MemoryScope>,
    #[serde(default)]
    expires: Option<When>,
    #[serde(default)]
    forget: bool,
}

#[derive(Deserialize)]
struct NewArtifact {
    name: String,
    content: String,
    #[serde(default)]
    media_type: Option<String>,
}

fn parse<T: serde::de::DeserializeOwned>(arguments: Value) -> Result<T, String> {
    serde_json::from_value(arguments).map_err(|error| error.to_string())
}

fn text(field: &str, text: String) -> Result<String, String> {
    if text.trim().is_empty() { Err(format!("`/{field}` is empty")) } else { Ok(text) }
}

fn read_plan(arguments: Value) -> Result<Spoken, String> {
    let Plan { steps, reason } = parse(arguments)?;
    if steps.is_empty() || steps.len() > MAX_STEPS {
        return Err(format!("`/steps`: a plan has 1 to {MAX_STEPS} steps, not {}", steps.len()));
    }
    let read = |(index, step): (usize, Step)| {
        let title = text(&format!("steps/{index}/title"), step.title)?;
        Ok(PlanStep { title: kernel::excerpt(&title, LINE_BYTES), status: step.status })
    };
    let steps = steps.into_iter().enumerate().map(read).collect::<Result<_, String>>()?;
    let reason = reason.map(|reason| kernel::excerpt(reason.trim(), LINE_BYTES)).filter(|reason| !reason.is_empty());
    Ok(Spoken::UpdatePlan(PlanChange { steps, reason }))
}

fn read_memory(arguments: Value) -> Result<Remembered, String> {
    let Memory { key, text: said, scope, expires, forget } = parse(arguments)?;
    // What Postgres can't keep in a text is nothing to remember.
    let clean = |text: String| text.replace('\0', "");
    let key = clean(key).split_whitespace().collect::<Vec<_>>().join(" ");
    if key.is_empty() || key.len() > MEMORY_KEY_BYTES {
        return Err(format!("`/key`: name what it is about in 1 to {MEMORY_KEY_BYTES} bytes"));
    }
    let said = match (forget, said) {
        (true, None) => None,
        (true, Some(_)) => return Err("give either `text` or `forget`".to_owned()),
        (false, said) => Some(clean(text("text", said.unwrap_or_default())?)),
    };
    if let Some(said) = said.as_ref().filter(|said| said.len() > MEMORY_BYTES) {
        return Err(format!(
            "`/text`: {} bytes are more than {MEMORY_BYTES}: say it shorter, or keep an artifact",
            said.len()
        ));
    }
    Ok(Remembered { scope: scope.unwrap_or(MemoryScope::Agent), key, text: said, expires })
}

fn read_draft(arguments: Value) -> Result<Draft, String> {
    let NewArtifact { name, content, media_type } = parse(arguments)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ' ');
    if !(1..=128).contains(&name.len()) || !name.chars().all(legal) || name.starts_with('.') {
        let rule = "1 to 128 of letters, digits, `.`, `_`, `-` and spaces, the first not a `.`";
        return Err(format!("`/name`: a name has {rule}"));
    }
    if content.len() > ARTIFACT_BYTES {
        return Err(format!("`/content`: {} bytes are more than {ARTIFACT_BYTES}", content.len()));
    }
    let media_type = media_type.unwrap_or_else(|| media_type_of(&name).to_owned());
    let is_type = media_type.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    if !is_type || media_type.len() > 127 || !media_type.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
        return Err("`/media_type`: not a media type such as text/markdown".to_owned());
    }
    Ok(Draft { name, content, media_type })
}

fn media_type_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("md") => "text/markdown",
        Some("json") => "application/json",
        Some("csv") => "text/csv",
        Some("html") => "text/html",
        _ => "text/plain",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn good_verbs_are_read() {
        let plan =
            json!({"steps": [{"title": "look", "status": "in_progress"}, {"title": "mend", "status": "pending"}]});
        let Ok(Spoken::UpdatePlan(plan)) = read(Verb::UpdatePlan, plan) else { panic!("no plan") };
        assert_eq!((plan.steps[0].status, plan.reason), (StepStatus::InProgress, None));
        let plan = json!({"steps": [{"title": "look", "status": "dropped"}], "reason": " it is not there\n"});
        let Ok(Spoken::UpdatePlan(plan)) = read(Verb::UpdatePlan, plan) else { panic!("no plan") };
        assert_eq!(plan.reason.as_deref(), Some("it is not there"));
        assert_eq!(read(Verb::Say, json!({"text": "hello"})), Ok(Spoken::Say("hello".into())));
        assert_eq!(
            read(Verb::AskOperator, json!({"question": "go?", "expires": "2h"})),
            Ok(Spoken::AskOperator { question: "go?".into(), expires: Some(When::In(Duration::from_secs(7200))) })
        );
        let Ok(Spoken::CreateArtifact(draft)) =
            read(Verb::CreateArtifact, json!({"name": "report.md", "content": "#"}))
        else {
            panic!("no draft")
        };
        assert_eq!(draft.media_type, "text/markdown");
        assert_eq!(read(Verb::Complete, json!({"summary": "done"})), Ok(Spoken::Complete("done".into())));
        assert_eq!(read(Verb::Fail, json!({"reason": "no"})), Ok(Spoken::Fail("no".into())));
        let Ok(Spoken::Remember(kept)) = read(Verb::Remember, json!({"key": " their\n habit ", "text": "early\u{0}"}))
        else {
            panic!("nothing kept")
        };
        assert_eq!(
            (kept.key.as_str(), kept.text.as_deref(), kept.scope),
            ("their habit", Some("early"), MemoryScope::Agent)
        );
        let Ok(Spoken::Remember(gone)) = read(Verb::Remember, json!({"key": "habit", "forget": true})) else {
            panic!("nothing forgotten")
        };
        assert_eq!(gone.text, None);
    }

    #[test]
    fn bad_verbs_say_what_is_wrong() {
        for (verb, arguments, word) in [
            (Verb::UpdatePlan, json!({"steps": []}), "/steps"),
            (Verb::UpdatePlan, json!({"steps": [{"title": " ", "status": "done"}]}), "/steps/0/title"),
            (Verb::UpdatePlan, json!({"steps": [{"title": "x", "status": "finished"}]}), "finished"),
            (Verb::Say, json!({"text": ""}), "/text"),
            (Verb::AskOperator, json!({"question": "go?", "expires": "soon"}), "soon"),
            (Verb::CreateArtifact, json!({"name": "../x", "content": ""}), "/name"),
            (Verb::CreateArtifact, json!({"name": "x", "content": "", "media_type": "text"}), "/media_type"),
            (Verb::Complete, json!({}), "summary"),
            (Verb::Remember, json!({"key": " ", "text": "x"}), "/key"),
            (Verb::Remember, json!({"key": "x"}), "/text"),
            (Verb::Remember, json!({"key": "x", "text": "y", "forget": true}), "`forget`"),
            (Verb::Remember, json!({"key": "x", "text": "y".repeat(5000)}), "/text"),
            (Verb::Remember, json!({"key": "x", "text": "y", "scope": "world"}), "world"),
        ] {
            let problem = read(verb, arguments).unwrap_err();
            assert!(problem.contains(word), "{problem}");
        }
    }

    #[test]
    fn every_verb_is_declared_with_a_schema_that_compiles() {
        for verb in Verb::ALL {
            let declaration = declaration(verb);
            assert_eq!(declaration.name, verb.name());
            jsonschema::validator_for(&declaration.schema).unwrap();
        }
    }
}
