//! Secrets by reference: resolved when a request is sent, and taken out of whatever comes back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

/// What the environment variable of a secret begins with.
const PREFIX: &str = "ESC_SECRET_";
/// Shorter values are not searched for: they would be found everywhere.
const MIN_REDACTED: usize = 6;

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
    /// By name, all that were seen so far: what is taken out of results.
    known: RwLock<BTreeMap<String, String>>,
}

impl Secrets {
    /// Those in the given environment (`ESC_SECRET_<NAME>`), and the files of a folder.
    pub fn new(env: impl IntoIterator<Item = (String, String)>, dir: Option<PathBuf>) -> Self {
        let known = env.into_iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value)));
        Self { inner: Arc::new(Inner { dir, known: RwLock::new(known.collect()) }) }
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
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(missing());
        }
        let known = self.inner.known.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        // A file first: it may be rotated while the process runs.
        let file = self.inner.dir.as_ref().and_then(|dir| std::fs::read_to_string(dir.join(name)).ok());
        let value = file.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()).or(known).ok_or_else(missing)?;
        self.remember(name, &value);
        Ok(value)
    }

    fn remember(&self, name: &str, value: &str) {
        let mut known = self.inner.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.get(name).is_none_or(|have| have != value) {
            known.insert(name.to_owned(), value.to_owned());
        }
    }

    /// The text without any known secret.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let known = self.inner.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut text = Cow::Borrowed(text);
        for (name, value) in known.iter().filter(|(_, value)| value.len() >= MIN_REDACTED) {
            if text.contains(value.as_str()) {
                text = Cow::Owned(text.replace(value.as_str(), &format!("[secret {name}]")));
            }
        }
        text
    }

    /// The bytes without any known secret.
    #[must_use]
    pub fn redact_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        match String::from_utf8(bytes) {
            Ok(text) => match self.redact(&text) {
                Cow::Borrowed(_) => text.into_bytes(),
                Cow::Owned(redacted) => redacted.into_bytes(),
            },
            Err(error) => {
                let known = self.inner.known.read().unwrap_or_else(PoisonError::into_inner);
                let mut bytes = error.into_bytes();
                for value in known.values().filter(|value| value.len() >= MIN_REDACTED) {
                    mask(&mut bytes, value.as_bytes());
                }
                bytes
            }
        }
    }

    /// Takes known secrets out of every string and key.
    pub fn redact_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(redacted) = self.redact(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(fields) => {
                *fields = std::mem::take(fields)
                    .into_iter()
                    .map(|(key, mut field)| {
                        self.redact_value(&mut field);
                        (self.redact(&key).into_owned(), field)
                    })
                    .collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(***)")
    }
}

/// Overwrites every occurrence in place: binary content keeps its length.
fn mask(bytes: &mut [u8], secret: &[u8]) {
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(secret.len()).position(|window| window == secret) {
        at += found;
        bytes[at..at + secret.len()].fill(b'*');
        at += secret.len();
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
        assert_eq!(secrets.get("TOKEN").unwrap(), "from-file");
        assert_eq!(secrets.redact("from-file"), "[secret TOKEN]");
        assert_eq!(secrets.get("../TOKEN"), Err(MissingSecret("../TOKEN".into())));
        assert_eq!(secrets.get("GONE"), Err(MissingSecret("GONE".into())));
    }
}
