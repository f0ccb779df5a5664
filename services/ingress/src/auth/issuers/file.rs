//! What the file of issuers says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jsonwebtoken::{Algorithm, Validation};
use kernel::{TenantId, Timestamp, units};
use reqwest::Url;
use serde::Deserialize;

use super::claims::ClaimPath;
use crate::auth::{Role, is_persons};

/// Longest name of an issuer, in bytes. It is part of the name of each of its people.
const ISSUER_BYTES: usize = 1024;
/// Most issuers of a file.
const MOST_ISSUERS: usize = 100;
/// How far apart the clocks of provider and server may be, unless it is said.
const LEEWAY: units::Duration = units::Duration::from_secs(60);
/// And at most: more would make an expired token as good as a valid one.
const MOST_LEEWAY: units::Duration = units::Duration::from_secs(10 * 60);
/// For how long a token may be good, unless it is said.
const LONGEST: units::Duration = units::Duration::from_secs(24 * 3600);
/// And at most.
const MOST_LONGEST: units::Duration = units::Duration::from_secs(366 * 24 * 3600);
/// How often keys are read again, unless it is said.
const REFRESH: units::Duration = units::Duration::from_secs(10 * 60);
/// How far apart two readings are at least, unless it is said.
const AGAIN: units::Duration = units::Duration::from_secs(10);
/// How long keys are used that could not be read again, unless it is said.
const KEEP: units::Duration = units::Duration::from_secs(24 * 3600);

/// What follows the name of an issuer where it says where its keys are.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Why the file of issuers can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssuerFileError {
    /// It can't be read.
    #[error("can't read the file of issuers {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It says something that can't be.
    #[error("the file of issuers {}: {message}", path.display())]
    Wrong { path: PathBuf, message: String },
    /// Nothing could be asked for keys.
    #[error("can't make an HTTP client for the keys of issuers: {0}")]
    Http(#[from] reqwest::Error),
}

/// A provider, and what its tokens are good for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Issuer {
    /// `iss`, to the letter.
    pub issuer: String,
    /// One of them has to be in `aud`.
    pub audiences: BTreeSet<String>,
    /// Where its keys are.
    pub keys: KeySource,
    /// Which kind of token is taken.
    pub accept: Kind,
    /// Whose tenant its people are in.
    pub tenant: TenantRule,
    /// What they may do.
    pub roles: RoleRule,
    /// The claim that says who they are.
    pub person: ClaimPath,
    /// The claim that says what to call them.
    pub display: Option<ClaimPath>,
    /// How far apart the clocks may be.
    pub leeway: Duration,
    /// For how long a token may be good.
    pub longest: Duration,
    /// What is not accepted any more.
    pub refuse: Refused,
}

/// Where keys are, and how long they last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeySource {
    /// Whom to ask.
    pub place: KeyPlace,
    /// How often they are read again.
    pub refresh: Duration,
    /// How far apart two readings are at least, whoever asks for what.
    pub again: Duration,
    /// How long they are used if they can't be read again.
    pub keep: Duration,
}

/// Whom to ask for keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyPlace {
    /// A JWK set.
    Set(Url),
    /// A document that says where one is (OpenID Connect Discovery).
    Discovery(Url),
}

/// Which kind of token is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Access tokens: made for an API.
    #[default]
    Access,
    /// ID tokens: made for the program that signed somebody in.
    Id,
}

/// Whose tenant people are in.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TenantRule {
    /// All of them in one.
    Fixed(TenantId),
    /// As a claim says.
    Claim {
        path: ClaimPath,
        /// What its values mean; without any they are the tenants' own names.
        map: Option<BTreeMap<String, TenantId>>,
    },
}

/// What people may do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RoleRule {
    pub path: ClaimPath,
    /// What its values mean. Any other value means nothing.
    pub map: BTreeMap<String, Role>,
}

/// What is not accepted any more, though it is not over.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Refused {
    /// People, as `person.id` names them.
    pub people: BTreeSet<String>,
    /// Tokens, by their `jti`.
    pub tokens: BTreeSet<String>,
    /// Whatever was issued before.
    pub issued_before: Option<Timestamp>,
}

/// An issuer as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    issuer: String,
    audiences: BTreeSet<String>,
    #[serde(default)]
    keys: WrittenKeys,
    #[serde(default)]
    accept: Kind,
    tenant: Option<TenantId>,
    tenant_claim: Option<WrittenTenant>,
    roles: WrittenRoles,
    #[serde(default)]
    person: WrittenPerson,
    leeway: Option<units::Duration>,
    longest: Option<units::Duration>,
    #[serde(default)]
    refuse: Refused,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenKeys {
    url: Option<String>,
    refresh: Option<units::Duration>,
    again: Option<units::Duration>,
    keep: Option<units::Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTenant {
    claim: String,
    map: Option<BTreeMap<String, TenantId>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRoles {
    claim: String,
    map: BTreeMap<String, Role>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenPerson {
    id: Option<String>,
    display: Option<String>,
}

impl Issuer {
    /// What a token has to say at least, whatever it is good for. Each key adds what it signs with.
    pub(super) fn validation(&self) -> Validation {
        let mut rules = Validation::new(Algorithm::RS256);
        rules.leeway = self.leeway.as_secs();
        rules.validate_nbf = true;
        rules.set_required_spec_claims(&["exp", "iss", "aud"]);
        rules.set_issuer(&[&self.issuer]);
        rules.aud = Some(self.audiences.iter().cloned().collect());
        rules
    }
}

/// The issuers of the file.
pub(super) fn read(path: &Path) -> Result<Vec<Issuer>, IssuerFileError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| IssuerFileError::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|message| IssuerFileError::Wrong { path: path.to_owned(), message })
}

pub(super) fn parse(text: &str) -> Result<Vec<Issuer>, String> {
    let written: Vec<Written> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    // Nothing at all reads as an empty list: so does a file that was cut off, and nobody would get in.
    if written.is_empty() && !text.lines().any(|line| line.trim_start().starts_with('[')) {
        return Err("it says nothing: write `[]` for none".to_owned());
    }
    if written.len() > MOST_ISSUERS {
        return Err(format!("there are {} issuers, and {MOST_ISSUERS} at most may be there", written.len()));
    }
    let mut names = BTreeSet::new();
    let mut issuers = Vec::new();
    for written in written {
        let name = written.issuer.clone();
        let issuer = written.checked().map_err(|message| format!("issuer `{name}`: {message}"))?;
        if !names.insert(name.clone()) {
            return Err(format!("issuer `{name}` is there twice: list all its audiences in one"));
        }
        issuers.push(issuer);
    }
    Ok(issuers)
}

impl Written {
    fn checked(self) -> Result<Issuer, String> {
        if self.issuer.len() > ISSUER_BYTES {
            return Err(format!("`issuer` is longer than {ISSUER_BYTES} bytes"));
        }
        let issuer = url("issuer", &self.issuer)?;
        // What reads as a URL all the same, such as `HTTPS://`, would not be told from the name of an API token.
        if !is_persons(&self.issuer) {
            return Err("`issuer` has to begin with `https://` or `http://`, to the letter".to_owned());
        }
        // The name of a person is the issuer's, `#`, and their own: so there is none in the first.
        if issuer.query().is_some() || issuer.fragment().is_some() {
            return Err("`issuer` has a query or a fragment, and no issuer has".to_owned());
        }
        if self.audiences.is_empty() || self.audiences.contains("") {
            return Err("`audiences` is empty: name what `aud` says of tokens that are meant for this API".to_owned());
        }
        if self.roles.map.is_empty() {
            return Err(
                "`roles.map` is empty, so nobody could do anything: say which values mean which role".to_owned()
            );
        }
        let path =
            |field: &str, claim: &str| ClaimPath::parse(claim).ok_or_else(|| format!("`{field}` names no claim"));
        let display = self.person.display.as_deref().map(|claim| path("person.display", claim)).transpose()?;
        Ok(Issuer {
            keys: self.keys.checked(&issuer)?,
            issuer: self.issuer,
            audiences: self.audiences,
            accept: self.accept,
            tenant: tenant(self.tenant, self.tenant_claim)?,
            roles: RoleRule { path: path("roles.claim", &self.roles.claim)?, map: self.roles.map },
            person: path("person.id", self.person.id.as_deref().unwrap_or("sub"))?,
            display,
            leeway: span("leeway", self.leeway, LEEWAY, units::Duration::default(), MOST_LEEWAY)?,
            longest: span("longest", self.longest, LONGEST, units::Duration::from_secs(1), MOST_LONGEST)?,
            refuse: self.refuse,
        })
    }
}

impl WrittenKeys {
    fn checked(self, issuer: &Url) -> Result<KeySource, String> {
        let place = match self.url.as_deref().map(|text| url("keys.url", text)).transpose()? {
            Some(url) if is_as_safe_as(issuer, &url) => KeyPlace::Set(url),
            Some(_) => return Err("`keys.url` is not https, though the issuer is".to_owned()),
            None => {
                KeyPlace::Discovery(url("issuer", &format!("{}{DISCOVERY}", issuer.as_str().trim_end_matches('/')))?)
            }
        };
        let (second, most) = (units::Duration::from_secs(1), units::Duration::from_secs(7 * 24 * 3600));
        let source = KeySource {
            place,
            refresh: span("keys.refresh", self.refresh, REFRESH, second, most)?,
            again: span("keys.again", self.again, AGAIN, second, most)?,
            keep: span("keys.keep", self.keep, KEEP, second, most)?,
        };
        if source.keep < source.refresh || source.again > source.refresh {
            return Err("`keys`: `again` is at most `refresh`, and that is at most `keep`".to_owned());
        }
        Ok(source)
    }
}

fn tenant(fixed: Option<TenantId>, claim: Option<WrittenTenant>) -> Result<TenantRule, String> {
    match (fixed, claim) {
        (Some(tenant), None) => Ok(TenantRule::Fixed(tenant)),
        (None, Some(WrittenTenant { claim, map })) => {
            let path = ClaimPath::parse(&claim).ok_or("`tenant_claim.claim` names no claim")?;
            Ok(TenantRule::Claim { path, map })
        }
        _ => Err("say either `tenant`, for all its people, or `tenant_claim`, which says it of each".to_owned()),
    }
}

fn span(
    field: &str,
    said: Option<units::Duration>,
    usual: units::Duration,
    least: units::Duration,
    most: units::Duration,
) -> Result<Duration, String> {
    let span = said.unwrap_or(usual);
    if (least..=most).contains(&span) {
        Ok(span.std())
    } else {
        Err(format!("`{field}` is {span}, and has to be from {least} to {most}"))
    }
}

/// A place that may be believed: nobody on the way can answer in its stead.
fn url(field: &str, text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|_| format!("`{field}` is no URL"))?;
    if !is_safe(&url) {
        return Err(format!(
            "`{field}` has to be https; http is good for this very machine (127.0.0.1, localhost) only"
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("`{field}` has a user in it"));
    }
    Ok(url)
}

fn is_safe(url: &Url) -> bool {
    url.host_str().is_some() && (url.scheme() == "https" || is_at_home(url))
}

/// Over clear text, and on this machine.
fn is_at_home(url: &Url) -> bool {
    url.scheme() == "http" && is_here(url)
}

/// On this very machine.
pub(super) fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Whether keys may come from there. An issuer that is reached over TLS does not lead to clear text.
pub(super) fn is_as_safe_as(issuer: &Url, keys: &Url) -> bool {
    is_safe(keys) && (keys.scheme() == "https" || is_at_home(issuer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "
- issuer: https://id.example.com/realms/main
  audiences: [escapement]
  tenant: acme
  roles: { claim: groups, map: { esc-operators: operator } }
";

    fn error(text: &str) -> String {
        parse(text).unwrap_err()
    }

    #[test]
    fn the_least_that_has_to_be_said() {
        let issuer = parse(LEAST).unwrap().remove(0);
        assert_eq!((issuer.accept, issuer.leeway, issuer.longest), (Kind::Access, LEEWAY.std(), LONGEST.std()));
        let discovery = "https://id.example.com/realms/main/.well-known/openid-configuration".parse().unwrap();
        assert_eq!((issuer.keys.place, issuer.keys.again), (KeyPlace::Discovery(discovery), AGAIN.std()));
        assert_eq!(issuer.tenant, TenantRule::Fixed("acme".parse().unwrap()));
        assert_eq!(Some(issuer.person), ClaimPath::parse("sub"));
        assert_eq!(issuer.roles.map["esc-operators"], Role::Operator);
    }

    #[test]
    fn that_there_are_none_has_to_be_said() {
        for text in ["[]", "# none yet\n[]\n", "---\n  [ ] # none\n"] {
            assert!(parse(text).unwrap().is_empty(), "{text}");
        }
        for text in ["", "\n\n", "# x", "# [x]\n", "---\n", "~", "null"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(error("").contains("write `[]`") && error("# x").contains("write `[]`"));
    }

    #[test]
    fn all_that_can_be_said() {
        let text = "
- issuer: https://id.example.com/
  audiences: [a, b]
  keys: { url: https://keys.example.com/jwks, refresh: 5m, again: 2s, keep: 1h }
  accept: id
  tenant_claim: { claim: org_id, map: { org_1: acme } }
  roles: { claim: https://example.com/roles, map: { a: admin, p: publisher } }
  person: { id: oid, display: preferred_username }
  leeway: 0s
  longest: 1h
  refuse: { people: [mallory], tokens: [t-1], issued_before: 2026-11-30T12:00:00Z }
";
        let issuer = parse(text).unwrap().remove(0);
        assert_eq!((issuer.accept, issuer.leeway), (Kind::Id, Duration::ZERO));
        assert!(matches!(issuer.keys.place, KeyPlace::Set(_)));
        assert!(matches!(issuer.tenant, TenantRule::Claim { map: Some(map), .. } if map.len() == 1));
        assert!(issuer.refuse.people.contains("mallory") && issuer.refuse.issued_before.is_some());
    }

    #[test]
    fn what_the_readme_shows_can_be_said() {
        let readme = include_str!("../../../README.md");
        let examples = readme.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let mut names = Vec::new();
        for example in examples.filter(|example| example.contains("issuer:")) {
            names.extend(parse(example).unwrap().into_iter().map(|issuer| issuer.issuer));
        }
        assert!(names.len() > 4 && names.contains(&"https://accounts.google.com".to_owned()), "{names:?}");
    }

    #[test]
    fn each_mistake_is_named() {
        let changed = |from: &str, to: &str| error(&LEAST.replace(from, to));
        for (said, expected) in [
            (changed("https://id", "http://id"), "`issuer` has to be https"),
            (changed("https://id.example.com/realms/main", "accounts.example.com"), "`issuer` is no URL"),
            (changed("https://id", "https://u:p@id"), "has a user"),
            (changed("https://id", "HTTPS://id"), "to the letter"),
            (changed("https://id.example.com/realms/main", "\" https://id.example.com\""), "to the letter"),
            (changed("realms/main", &"x".repeat(ISSUER_BYTES)), "longer than 1024 bytes"),
            (changed("realms/main", "?x=1"), "query"),
            (changed("realms/main", "#x"), "fragment"),
            (changed("[escapement]", "[]"), "`audiences` is empty"),
            (changed("  audiences: [escapement]\n", ""), "audiences"),
            (changed("  tenant: acme\n", ""), "either `tenant`"),
            (changed("tenant: acme", "tenant: Acme"), "tenant"),
            (changed("tenant: acme", "tenant: acme\n  tenant_claim: { claim: o }"), "either `tenant`"),
            (changed("{ esc-operators: operator }", "{}"), "`roles.map` is empty"),
            (changed(": operator", ": root"), "root"),
            (changed("claim: groups", "claim: groups."), "`roles.claim` names no claim"),
            (changed("tenant: acme", "tenant: acme\n  leeway: 1h"), "`leeway` is 1h"),
            (changed("tenant: acme", "tenant: acme\n  longest: 0s"), "`longest`"),
            (changed("tenant: acme", "tenant: acme\n  keys: { url: http://127.0.0.1/k }"), "`keys.url` is not https"),
            (changed("tenant: acme", "tenant: acme\n  keys: { keep: 1s }"), "at most `keep`"),
            (changed("tenant: acme", "tenant: acme\n  secret: x"), "secret"),
            (changed("tenant: acme", "tenant: acme\n  accept: refresh"), "refresh"),
            (error(&LEAST.repeat(2)), "there twice"),
            (error("issuer: x"), ""),
        ] {
            assert!(said.contains(expected), "{said} / {expected}");
        }
    }

    #[test]
    fn clear_text_stays_on_this_machine() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        let (far, near) = (url("https://id.example.com/"), url("http://127.0.0.1:8080/realm"));
        for (keys, of_far, of_near) in [
            ("https://keys.example.com/", true, true),
            ("http://127.0.0.1:8080/keys", false, true),
            ("http://[::1]/keys", false, true),
            ("http://localhost/keys", false, true),
            ("http://localhost.example.com/keys", false, false),
            ("http://10.0.0.1/keys", false, false),
            ("http://keys.example.com/", false, false),
            ("file:///etc/passwd", false, false),
        ] {
            assert_eq!(
                (is_as_safe_as(&far, &url(keys)), is_as_safe_as(&near, &url(keys))),
                (of_far, of_near),
                "{keys}"
            );
        }
    }
}
