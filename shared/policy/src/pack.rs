//! From files to validated policies: read, parse, check the annotations, validate against the schema.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use miette::Diagnostic;
use sha2::{Digest, Sha256};

use crate::decision::Obligation;
use crate::error::{PolicyError, Problem};
use crate::facts::Vocabulary;

/// The schema's file name within a directory of policies.
const SCHEMA: &str = "schema.cedarschema";
/// How the names of policy files end.
const EXTENSION: &str = "cedar";
/// The annotations that mean something.
const ANNOTATIONS: [&str; 4] = ["id", "reason", "ask", "obligation"];

/// The files of a set, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files(BTreeMap<String, String>);

impl Files {
    /// The set that is shipped.
    pub fn embedded() -> Self {
        Self(BTreeMap::from([
            (SCHEMA.to_owned(), include_str!("../../../infra/policies/schema.cedarschema").to_owned()),
            ("default.cedar".to_owned(), include_str!("../../../infra/policies/default.cedar").to_owned()),
        ]))
    }

    /// Reads `schema.cedarschema` and every `*.cedar` of a directory, not of those below it.
    ///
    /// # Errors
    /// If something can't be read.
    pub fn read(dir: &Path) -> Result<Self, PolicyError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PolicyError::Read { path, source }
        };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed(dir))? {
            let path = entry.map_err(failed(dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let wanted = name == SCHEMA || path.extension().is_some_and(|extension| extension == EXTENSION);
            // Editors leave hidden files beside what they edit.
            if wanted && !name.starts_with('.') {
                let text = fs::read_to_string(&path).map_err(failed(&path))?;
                files.insert(name, text);
            }
        }
        Ok(Self(files))
    }

    /// SHA-256 in hexadecimal over the sorted names and contents.
    pub fn version(&self) -> String {
        let mut hash = Sha256::new();
        for (name, text) in &self.0 {
            for part in [name, text] {
                // The length keeps what is in one file from looking as if it were in another.
                hash.update(part.len().to_be_bytes());
                hash.update(part);
            }
        }
        hex::encode(hash.finalize())
    }
}

/// A policy's annotations, read once.
#[derive(Debug, Clone)]
pub struct Rule {
    pub reason: String,
    pub kind: RuleKind,
}

/// What a policy answers when it fits.
#[derive(Debug, Clone)]
pub enum RuleKind {
    Forbid,
    Permit { ask: bool, obligations: BTreeSet<Obligation> },
}

/// A validated set.
#[derive(Debug)]
pub struct Pack {
    pub set: PolicySet,
    pub rules: HashMap<PolicyId, Rule>,
    pub vocabulary: Arc<Vocabulary>,
}

impl Pack {
    /// Parses and validates.
    ///
    /// # Errors
    /// With everything that is wrong at the first stage at which something is: schema, policies, types.
    pub fn new(files: &Files) -> Result<Self, PolicyError> {
        let (schema, vocabulary) = schema(files).map_err(|problem| PolicyError::Invalid(vec![problem]))?;
        let mut reader = Reader::default();
        for (name, text) in files.0.iter().filter(|(name, _)| *name != SCHEMA) {
            reader.file(name, text);
        }
        if reader.policies.is_empty() && reader.problems.is_empty() {
            reader.problems.push(Problem {
                file: format!("*.{EXTENSION}"),
                line: None,
                message: "there is no policy, so every call would be denied".to_owned(),
                remedy: "restore default.cedar or write a policy".to_owned(),
            });
        }
        if reader.problems.is_empty() {
            reader.validate(schema, files);
        }
        if !reader.problems.is_empty() {
            return Err(PolicyError::Invalid(reader.problems));
        }
        Ok(Self { set: reader.set, rules: reader.rules, vocabulary: Arc::new(vocabulary) })
    }
}

fn schema(files: &Files) -> Result<(Schema, Vocabulary), Problem> {
    const RESTORE: &str = "restore the schema that was shipped with this version";
    let problem = |line, message: String, remedy: String| Problem { file: SCHEMA.to_owned(), line, message, remedy };
    let Some(text) = files.0.get(SCHEMA) else {
        return Err(problem(None, "the file is missing".to_owned(), RESTORE.to_owned()));
    };
    let (schema, _warnings) = Schema::from_cedarschema_str(text)
        .map_err(|error| problem(line(&error, text), error.to_string(), remedy(&error, RESTORE)))?;
    let vocabulary = Vocabulary::new(&schema)
        .and_then(|vocabulary| vocabulary.check(&schema).map(|()| vocabulary))
        .map_err(|error| problem(None, format!("it does not fit this version: {error}"), RESTORE.to_owned()))?;
    Ok((schema, vocabulary))
}

/// Collects policies and problems over the files.
#[derive(Default)]
struct Reader {
    set: PolicySet,
    rules: HashMap<PolicyId, Rule>,
    /// File and line of each policy.
    policies: HashMap<PolicyId, (String, usize)>,
    problems: Vec<Problem>,
}

impl Reader {
    fn file(&mut self, file: &str, text: &str) {
        let parsed = match text.parse::<PolicySet>() {
            Ok(parsed) => parsed,
            Err(errors) => {
                self.problems.extend(errors.iter().map(|error| Problem {
                    file: file.to_owned(),
                    line: line(error, text),
                    message: error.to_string(),
                    remedy: remedy(error, "correct the syntax"),
                }));
                return;
            }
        };
        if let Some(template) = parsed.templates().next() {
            let line = template.as_ref().loc().map(|place| line_of(text, place.start()));
            self.problem(file, line, "templates are not supported".to_owned(), "write out principal and resource");
        }
        for policy in parsed.policies() {
            self.policy(file, text, policy);
        }
    }

    fn policy(&mut self, file: &str, text: &str, policy: &Policy) {
        let line = policy.as_ref().loc().map_or(1, |place| line_of(text, place.start()));
        let id = match id(policy) {
            Ok(id) => id,
            Err((message, remedy)) => return self.problem(file, Some(line), message, remedy),
        };
        let policy_id = PolicyId::new(id);
        if let Some((other, at)) = self.policies.get(&policy_id) {
            let message = format!("the id {id:?} is taken by {other}:{at}");
            return self.problem(file, Some(line), message, "give each policy an id of its own");
        }
        match rule(id, policy) {
            Ok(rule) => {
                let added = self.set.add(policy.new_id(policy_id.clone()));
                if let Err(error) = added {
                    self.problem(file, Some(line), error.to_string(), "give each policy an id of its own");
                }
                self.rules.insert(policy_id.clone(), rule);
                self.policies.insert(policy_id, (file.to_owned(), line));
            }
            Err((message, remedy)) => self.problem(file, Some(line), message, remedy),
        }
    }

    /// Strict, and warnings count: they are about policies that can never fit, and about characters that look like others.
    fn validate(&mut self, schema: Schema, files: &Files) {
        let result = Validator::new(schema).validate(&self.set, ValidationMode::Strict);
        let errors = result.validation_errors().map(|error| (error.policy_id(), error as &dyn Diagnostic));
        let warnings = result.validation_warnings().map(|warning| (warning.policy_id(), warning as &dyn Diagnostic));
        let mut problems: Vec<_> = errors
            .chain(warnings)
            .map(|(policy, finding)| {
                let (file, first) = self.policies.get(policy).cloned().unwrap_or_default();
                let text = files.0.get(&file).map_or("", String::as_str);
                let line = line(finding, text).unwrap_or(first);
                let remedy = remedy(finding, "compare the policy with schema.cedarschema");
                Problem { file, line: Some(line), message: finding.to_string(), remedy }
            })
            .collect();
        problems.sort_by(|left, right| (&left.file, left.line).cmp(&(&right.file, right.line)));
        self.problems.append(&mut problems);
    }

    fn problem(&mut self, file: &str, line: Option<usize>, message: String, remedy: &str) {
        self.problems.push(Problem { file: file.to_owned(), line, message, remedy: remedy.to_owned() });
    }
}

/// What is wrong with an annotation, and the remedy.
type Complaint = (String, &'static str);

fn id(policy: &Policy) -> Result<&str, Complaint> {
    const REMEDY: &str = "write @id(\"a-name\") above it, of small letters, digits, dots, dashes and underscores";
    let id = policy.annotation("id").unwrap_or_default();
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if id.is_empty() {
        return Err(("the policy has no @id".to_owned(), REMEDY));
    }
    if !id.bytes().all(plain) {
        return Err((format!("the id {id:?} is not plain"), REMEDY));
    }
    Ok(id)
}

fn rule(id: &str, policy: &Policy) -> Result<Rule, Complaint> {
    if let Some((unknown, _)) = policy.annotations().find(|(name, _)| !ANNOTATIONS.contains(name)) {
        return Err((format!("@{unknown} means nothing here"), "use @id, @reason, @ask and @obligation"));
    }
    let words = |name| match policy.annotation(name).map(str::trim) {
        Some("") => Err((format!("@{name} of {id} has no words"), "say why, for the person and the model who read it")),
        other => Ok(other),
    };
    let (ask, reason, obligation) = (words("ask")?, words("reason")?, words("obligation")?);
    if policy.effect() == cedar_policy::Effect::Forbid {
        if ask.is_some() || obligation.is_some() {
            let message = format!("{id} forbids, so it can neither ask nor oblige");
            return Err((message, "make it a permit, or drop @ask and @obligation"));
        }
        let Some(reason) = reason else {
            let message = format!("{id} forbids without saying why");
            return Err((message, "add @reason(\"...\"), which the model reads"));
        };
        return Ok(Rule { reason: reason.to_owned(), kind: RuleKind::Forbid });
    }
    let obligations = obligation.map_or_else(|| Ok(BTreeSet::new()), |names| obligations(id, names))?;
    // Nobody but people can keep it, so whoever obliges to it asks.
    let two = obligations.contains(&Obligation::TwoPeople);
    let otherwise = if two { "takes two people" } else { "permits it" };
    let reason = ask.or(reason).map_or_else(|| format!("{id} {otherwise}"), str::to_owned);
    Ok(Rule { reason, kind: RuleKind::Permit { ask: ask.is_some() || two, obligations } })
}

fn obligations(id: &str, names: &str) -> Result<BTreeSet<Obligation>, Complaint> {
    let unknown = |name: &str| (format!("{id} obliges to {name:?}, which nobody knows how to do"), KNOWN_OBLIGATIONS);
    names.split(',').map(str::trim).map(|name| Obligation::parse(name).ok_or_else(|| unknown(name))).collect()
}

/// The remedy for an unknown obligation; a test keeps it in step with [`Obligation::ALL`].
const KNOWN_OBLIGATIONS: &str = "use dry_run_first, two_people or verify_after, separated by commas";

/// The line that a finding of Cedar's points at.
fn line(finding: &(impl Diagnostic + ?Sized), text: &str) -> Option<usize> {
    finding.labels()?.next().map(|label| line_of(text, label.offset()))
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Cedar's own help, if it has some.
fn remedy(finding: &(impl Diagnostic + ?Sized), otherwise: &str) -> String {
    finding.help().map_or_else(|| otherwise.to_owned(), |help| help.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_every_obligation() {
        for obligation in Obligation::ALL {
            assert!(KNOWN_OBLIGATIONS.contains(obligation.as_str()), "{obligation:?}");
        }
    }

    #[test]
    fn the_version_knows_which_file_says_what() {
        let version = |files: &[(&str, &str)]| {
            Files(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()).version()
        };
        let one = version(&[("a.cedar", "xy"), ("b.cedar", "")]);
        assert_ne!(one, version(&[("a.cedar", "x"), ("b.cedar", "y")]));
        assert_eq!(one, version(&[("b.cedar", ""), ("a.cedar", "xy")]));
    }
}
