//! What a file of a hook says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::HeaderName;
use engine::Filter;
use kernel::TenantId;
use kernel::units;
use serde::Deserialize;
use service::Secret;

use super::Named;
use super::secrets::{MissingSecret, Secrets, referred};
use std::sync::Arc;

/// How far from now a signed time may be.
const TOLERANCE: Duration = Duration::from_secs(5 * 60);
/// Longest name of a hook, in bytes.
const NAME_BYTES: usize = 63;
/// Most secrets of one hook: those in force while it is rotated.
const SECRETS: usize = 8;

/// A file that can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookFileError {
    /// It can't be read.
    #[error("can't read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// It says something that can't be.
    #[error("{}: {message}", path.display())]
    Wrong { path: PathBuf, message: String },
}

/// Somebody who may deliver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hook {
    /// What stands in the path.
    pub name: String,
    /// The source that waits and triggers know.
    pub source: String,
    /// Whose events they are.
    pub tenant: TenantId,
    /// How deliveries are signed.
    pub scheme: Scheme,
    /// How far from now a signed time may be.
    pub tolerance: Duration,
    /// What is made of a delivery in place of what its scheme says.
    pub map: Mapping,
    /// Those in force. None, if one is missing.
    pub secrets: Vec<Secret>,
    /// The one that is missing.
    pub missing: Option<MissingSecret>,
}

/// How deliveries are signed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scheme {
    /// `X-Hub-Signature-256`.
    Github,
    /// `X-Gitlab-Token`, or its signing token.
    Gitlab,
    /// `Stripe-Signature`.
    Stripe,
    /// `X-Slack-Signature`.
    Slack,
    /// Standard Webhooks.
    Standard,
    /// An HMAC-SHA256 in a header.
    #[serde(skip)]
    Hmac(Hmac),
}

/// Where an HMAC-SHA256 stands, and over what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hmac {
    /// The header of the signature.
    pub header: HeaderName,
    /// What stands before it.
    pub prefix: String,
    /// Whether it is base64, and not hex.
    pub base64: bool,
    /// The header of the time in seconds, if that is signed: as `<time>.<body>`.
    pub timestamp: Option<HeaderName>,
    /// The header of what makes a delivery the same when it comes again.
    pub id: Option<HeaderName>,
    /// The header of what happened.
    pub event: Option<HeaderName>,
}

/// CEL over the event that a scheme makes: its result stands in its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mapping {
    pub id: Option<Filter>,
    pub event_type: Option<Filter>,
    pub subject: Option<Filter>,
}

impl PartialEq for Mapping {
    fn eq(&self, other: &Self) -> bool {
        let sources = |mapping: &Self| {
            [&mapping.id, &mapping.event_type, &mapping.subject]
                .map(|each| each.as_ref().map(|it| it.source().to_owned()))
        };
        sources(self) == sources(other)
    }
}

/// A file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    source: Option<String>,
    #[serde(default)]
    tenant: TenantId,
    scheme: String,
    secrets: Vec<String>,
    tolerance: Option<units::Duration>,
    #[serde(default)]
    map: WrittenMapping,
    hmac: Option<WrittenHmac>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenMapping {
    id: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    subject: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHmac {
    header: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    encoding: Encoding,
    timestamp: Option<String>,
    id: Option<String>,
    event: Option<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Hex,
    Base64,
}

/// The hooks of a folder, by name.
pub(super) fn read(dir: &Path, secrets: &Secrets) -> Result<Named, HookFileError> {
    let mut named = Named::new();
    for path in files(dir)? {
        let source = |source| HookFileError::Read { path: path.clone(), source };
        let text = std::fs::read_to_string(&path).map_err(source)?;
        let wrong = |message| HookFileError::Wrong { path: path.clone(), message };
        let hook = parse(&text, stem(&path), secrets).map_err(wrong)?;
        let name = hook.name.clone();
        if named.insert(name.clone(), Arc::new(hook)).is_some() {
            return Err(wrong(format!("another file has a hook `{name}`: give this one another `name`")));
        }
    }
    Ok(named)
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, HookFileError> {
    let failed = |source| HookFileError::Read { path: dir.to_owned(), source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml"));
    paths.sort();
    Ok(paths)
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn parse(text: &str, stem: &str, secrets: &Secrets) -> Result<Hook, String> {
    let written: Written = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let name = written.name.as_deref().unwrap_or(stem).to_owned();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if !(1..=NAME_BYTES).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(format!("`{name}` can't stand in a path: `name` is 1 to {NAME_BYTES} of a-z, 0-9, `-` and `_`"));
    }
    let source = written.source.clone().unwrap_or_else(|| name.clone());
    if source == engine::OBSERVER || source.is_empty() || source.len() > NAME_BYTES {
        return Err(format!(
            "`source` can't be `{source}`: name the system that delivers, in {NAME_BYTES} bytes at most"
        ));
    }
    let scheme = scheme(&written)?;
    let (secrets, missing) = resolved(&written.secrets, secrets)?;
    Ok(Hook {
        name,
        source,
        tenant: written.tenant,
        scheme,
        tolerance: written.tolerance.map_or(TOLERANCE, units::Duration::std),
        map: written.map.compiled()?,
        secrets,
        missing,
    })
}

fn scheme(written: &Written) -> Result<Scheme, String> {
    let scheme = match (written.scheme.as_str(), &written.hmac) {
        ("hmac", Some(hmac)) => return hmac.checked().map(Scheme::Hmac),
        ("hmac", None) => {
            return Err("the scheme `hmac` needs `hmac: { header: ... }`: where the signature stands".into());
        }
        ("github", None) => Scheme::Github,
        ("gitlab", None) => Scheme::Gitlab,
        ("stripe", None) => Scheme::Stripe,
        ("slack", None) => Scheme::Slack,
        ("standard", None) => Scheme::Standard,
        (known @ ("github" | "gitlab" | "stripe" | "slack" | "standard"), Some(_)) => {
            return Err(format!("`hmac` is for the scheme `hmac`, and not for `{known}`: leave it out"));
        }
        (other, _) => {
            let known = "github, gitlab, stripe, slack, standard or hmac";
            return Err(format!("`{other}` is no scheme: there are {known}"));
        }
    };
    Ok(scheme)
}

impl WrittenHmac {
    fn checked(&self) -> Result<Hmac, String> {
        let header = |name: &str| name.parse::<HeaderName>().map_err(|_| format!("`{name}` is no name of a header"));
        let optional = |name: &Option<String>| name.as_deref().map(header).transpose();
        Ok(Hmac {
            header: header(&self.header)?,
            prefix: self.prefix.clone(),
            base64: self.encoding == Encoding::Base64,
            timestamp: optional(&self.timestamp)?,
            id: optional(&self.id)?,
            event: optional(&self.event)?,
        })
    }
}

impl WrittenMapping {
    fn compiled(&self) -> Result<Mapping, String> {
        let compile = |name: &str, expression: &Option<String>| {
            let compiled = expression.as_deref().map(Filter::compile).transpose();
            compiled.map_err(|error| format!("`map.{name}`: {error}"))
        };
        Ok(Mapping {
            id: compile("id", &self.id)?,
            event_type: compile("type", &self.event_type)?,
            subject: compile("subject", &self.subject)?,
        })
    }
}

/// The secrets behind the references, or the first one that is missing: with one of two missing, a rotation is half done, and
/// what is there still counts.
fn resolved(references: &[String], secrets: &Secrets) -> Result<(Vec<Secret>, Option<MissingSecret>), String> {
    if !(1..=SECRETS).contains(&references.len()) {
        return Err(format!("`secrets` lists 1 to {SECRETS} references such as `secret:GITHUB_WEBHOOK`"));
    }
    let (mut found, mut missing) = (Vec::new(), None);
    for reference in references {
        let name = referred(reference).ok_or_else(|| {
            "a secret is written as `secret:NAME`, and kept as ESC_SECRET_NAME or as a file in ESC_SECRETS_DIR"
                .to_owned()
        })?;
        match secrets.get(name) {
            Ok(value) => found.push(value),
            Err(error) => missing = missing.or(Some(error)),
        }
    }
    let missing = missing.filter(|_| found.is_empty());
    Ok((found, missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets::of(PathBuf::new(), |name| (name == "ESC_SECRET_ONE").then(|| "1".to_owned()))
    }

    fn error(text: &str) -> String {
        parse(text, "forge", &secrets()).unwrap_err()
    }

    #[test]
    fn a_file_needs_no_more_than_scheme_and_secrets() {
        let hook = parse("scheme: github\nsecrets: [secret:ONE]\n", "github", &secrets()).unwrap();
        assert_eq!((hook.name.as_str(), hook.source.as_str(), hook.tenant.as_str()), ("github", "github", "default"));
        assert_eq!(
            (hook.scheme, hook.tolerance, hook.secrets.len(), hook.missing),
            (Scheme::Github, TOLERANCE, 1, None)
        );
    }

    #[test]
    fn a_rotation_that_is_half_done_works_and_a_secret_that_is_missing_is_named() {
        let half = parse("scheme: stripe\nsecrets: [secret:TWO, secret:ONE]\n", "s", &secrets()).unwrap();
        assert_eq!((half.secrets.len(), half.missing), (1, None));
        let none = parse("scheme: stripe\nsecrets: [secret:TWO]\n", "s", &secrets()).unwrap();
        assert_eq!((none.secrets.len(), none.missing), (0, Some(MissingSecret("TWO".into()))));
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, expected) in [
            ("scheme: svix\nsecrets: [secret:ONE]\n", "`svix` is no scheme"),
            ("scheme: github\nsecrets: [hunter2]\n", "secret:NAME"),
            ("scheme: github\nsecrets: []\n", "`secrets`"),
            ("scheme: github\nsecret: secret:ONE\n", "secret"),
            ("scheme: hmac\nsecrets: [secret:ONE]\n", "where the signature stands"),
            ("scheme: github\nhmac: { header: x }\nsecrets: [secret:ONE]\n", "leave it out"),
            ("scheme: hmac\nhmac: { header: 'a b' }\nsecrets: [secret:ONE]\n", "no name of a header"),
            ("name: Forge!\nscheme: github\nsecrets: [secret:ONE]\n", "can't stand in a path"),
            ("source: observer\nscheme: github\nsecrets: [secret:ONE]\n", "`source`"),
            ("scheme: github\nmap: { subject: dta.x }\nsecrets: [secret:ONE]\n", "`map.subject`"),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
    }
}
