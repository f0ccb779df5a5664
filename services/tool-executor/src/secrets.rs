//! Secrets by reference: resolved when they are used, and taken out of whatever comes back, also where it was encoded on
//! the way.

mod finder;
mod forms;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use finder::Finder;

/// What the environment variable of a secret begins with.
const PREFIX: &str = "ESC_SECRET_";
/// Values of one secret that are searched for: the one in force, and those that it had before.
const KEPT_VALUES: usize = 4;

/// A secret that was referred to and is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{0}` is not set: give it as ESC_SECRET_{0}, or as a file of that name in the secrets folder")]
pub struct MissingSecret(pub String);

/// The secrets that tools may refer to. Cheap to clone; never printed.
#[derive(Clone, Default)]
pub struct Secrets {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    dir: Option<PathBuf>,
    known: RwLock<Known>,
}

/// All that were seen so far: what is taken out of results.
#[derive(Default)]
struct Known {
    /// By name, newest value last.
    values: BTreeMap<String, Vec<String>>,
    finder: Arc<Finder>,
}

impl Secrets {
    /// Those in the given environment (`ESC_SECRET_<NAME>`), and the files of a folder.
    pub fn new(env: impl IntoIterator<Item = (String, String)>, dir: Option<PathBuf>) -> Self {
        let mut values = BTreeMap::new();
        for (key, value) in env {
            if let Some(name) = key.strip_prefix(PREFIX) {
                values.insert(name.to_owned(), vec![value]);
            }
        }
        // Read ahead: what another process used must not be shown by this one only because it has not used it yet.
        for (name, value) in files(dir.as_deref()) {
            values.entry(name).or_default().push(value);
        }
        let finder = Arc::new(Finder::new(&values));
        Self { inner: Arc::new(Inner { dir, known: RwLock::new(Known { values, finder }) }) }
    }

    /// Adds a value that must not appear in results, though no tool can refer to it.
    pub fn hide(&self, label: &str, value: &str) {
        if !value.is_empty() {
            self.remember(&format!("({label})"), value);
        }
    }

    /// The value behind `secret:<name>`.
    ///
    /// # Errors
    /// [`MissingSecret`] if it is neither in the environment nor a file.
    pub fn get(&self, name: &str) -> Result<String, MissingSecret> {
        let missing = || MissingSecret(name.to_owned());
        if !is_name(name) {
            return Err(missing());
        }
        // A file first: it may be rotated while the process runs.
        let file = self.inner.dir.as_ref().and_then(|dir| std::fs::read_to_string(dir.join(name)).ok());
        let value = file.as_deref().map(trimmed).or_else(|| self.known_value(name)).ok_or_else(missing)?;
        self.remember(name, &value);
        Ok(value)
    }

    /// The text with every `secret:NAME` in it resolved, and whether there was one.
    ///
    /// # Errors
    /// [`MissingSecret`] names the first that is not there.
    pub fn resolve(&self, mut text: &str) -> Result<(String, bool), MissingSecret> {
        let mut resolved = String::with_capacity(text.len());
        let mut any = false;
        while let Some((before, rest)) = text.split_once("secret:") {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            resolved += before;
            resolved += &self.get(name)?;
            any = true;
            text = after;
        }
        resolved += text;
        Ok((resolved, any))
    }

    fn known_value(&self, name: &str) -> Option<String> {
        let known = self.inner.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values.get(name).and_then(|values| values.last()).cloned()
    }

    fn remember(&self, name: &str, value: &str) {
        if self.known_value(name).is_some_and(|have| have == value) {
            return;
        }
        let mut known = self.inner.known.write().unwrap_or_else(PoisonError::into_inner);
        let values = known.values.entry(name.to_owned()).or_default();
        values.retain(|have| have != value);
        values.push(value.to_owned());
        let surplus = values.len().saturating_sub(KEPT_VALUES);
        values.drain(..surplus);
        known.finder = Arc::new(Finder::new(&known.values));
    }

    fn finder(&self) -> Arc<Finder> {
        Arc::clone(&self.inner.known.read().unwrap_or_else(PoisonError::into_inner).finder)
    }

    /// The text without any known secret.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.finder().named(text)
    }

    /// The bytes without any known secret.
    #[must_use]
    pub fn redact_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        match String::from_utf8(bytes) {
            Ok(text) => match self.redact(&text) {
                Cow::Borrowed(_) => text.into_bytes(),
                Cow::Owned(redacted) => redacted.into_bytes(),
            },
            // Binary content keeps its length.
            Err(error) => {
                let mut bytes = error.into_bytes();
                self.mask(&mut bytes);
                bytes
            }
        }
    }

    /// Overwrites every known secret in place, so that all else stays where it is.
    pub fn mask(&self, bytes: &mut [u8]) {
        self.finder().mask(bytes);
    }

    /// How many of the first `length` bytes of a stream that goes on behind `bytes` can be let go: no secret is cut in two,
    /// neither one that stands in `bytes` nor one that may only have begun there.
    #[must_use]
    pub fn safe_cut(&self, bytes: &[u8], length: usize) -> usize {
        self.finder().safe_cut(bytes, length)
    }

    /// Takes known secrets out of every string and key.
    pub fn redact_value(&self, value: &mut Value) {
        redact_value(&self.finder(), value);
    }
}

fn redact_value(finder: &Finder, value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(redacted) = finder.named(text) {
                *text = redacted;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact_value(finder, item)),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(key, mut field)| {
                    redact_value(finder, &mut field);
                    (finder.named(&key).into_owned(), field)
                })
                .collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches(['\r', '\n']).to_owned()
}

/// The secrets of a folder; what can't be read is none.
fn files(dir: Option<&std::path::Path>) -> impl Iterator<Item = (String, String)> {
    let entries = dir.and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten();
    entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok().filter(|name| is_name(name))?;
        Some((name, trimmed(&std::fs::read_to_string(entry.path()).ok()?)))
    })
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(***)")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secrets() -> Secrets {
        let env = [("ESC_SECRET_TOKEN", "s3cr3t-value"), ("ESC_SECRET_SHORT", "abc"), ("PATH", "/bin-is-no-secret")];
        Secrets::new(env.map(|(key, value)| (key.to_owned(), value.to_owned())), None)
    }

    #[test]
    fn results_lose_known_secrets() {
        let secrets = secrets();
        assert_eq!(
            secrets.redact("x s3cr3t-value y abc /bin-is-no-secret"),
            "x [secret TOKEN] y abc /bin-is-no-secret"
        );
        let mut value = json!({"s3cr3t-value": ["s3cr3t-value", 1]});
        secrets.redact_value(&mut value);
        assert_eq!(value, json!({"[secret TOKEN]": ["[secret TOKEN]", 1]}));
        assert_eq!(secrets.redact_bytes(b"\xff s3cr3t-value".to_vec()), b"\xff ************");
        assert_eq!(format!("{secrets:?}"), "Secrets(***)");
    }

    #[test]
    fn files_win_and_names_stay_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("TOKEN"), "from-file\n").unwrap();
        let env = [("ESC_SECRET_TOKEN".to_owned(), "from-env".to_owned())];
        let secrets = Secrets::new(env, Some(dir.path().to_owned()));
        assert_eq!(secrets.redact("from-file from-env"), "[secret TOKEN] [secret TOKEN]", "also before it was used");
        assert_eq!(secrets.get("TOKEN").unwrap(), "from-file");
        assert_eq!(secrets.get("../TOKEN"), Err(MissingSecret("../TOKEN".into())));
        assert_eq!(secrets.get("GONE"), Err(MissingSecret("GONE".into())));
        // A value that was rotated away is still one.
        std::fs::write(dir.path().join("TOKEN"), "rotated-value").unwrap();
        assert_eq!(secrets.get("TOKEN").unwrap(), "rotated-value");
        assert_eq!(secrets.redact("from-file rotated-value"), "[secret TOKEN] [secret TOKEN]");
    }

    #[test]
    fn references_are_resolved_where_they_stand() {
        let secrets = secrets();
        assert_eq!(secrets.resolve("Bearer secret:TOKEN!").unwrap(), ("Bearer s3cr3t-value!".to_owned(), true));
        assert_eq!(secrets.resolve("plain").unwrap(), ("plain".to_owned(), false));
        assert_eq!(secrets.resolve("secret:GONE"), Err(MissingSecret("GONE".into())));
    }
}
