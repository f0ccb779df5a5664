//! What a token says, once it is believed: who comes, until when, and what they may do.

use kernel::{TenantId, Timestamp};
use serde_json::{Map, Value};

use super::file::{Issuer, Kind, TenantRule};
use super::refusal::Refusal;
use crate::auth::{Principal, Role};

/// Longest name that an issuer may have for a person, in bytes: that of OpenID Connect.
const PERSON_BYTES: usize = 255;
/// Longest name to call somebody by, in bytes; longer ones are cut.
const DISPLAY_BYTES: usize = 200;

/// Where a claim is, from the outside in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimPath(Vec<String>);

impl ClaimPath {
    /// Reads a path such as `realm_access.roles`. A dot that is part of a name stands as `\.`; a name that is a URL, as some
    /// providers have them, is one name as it stands.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut names = vec![String::new()];
        let mut chars = text.chars();
        if text.contains("://") {
            return Some(Self(vec![text.to_owned()]));
        }
        while let Some(next) = chars.next() {
            let name = names.last_mut()?;
            match next {
                '\\' => name.push(chars.next()?),
                '.' => names.push(String::new()),
                other => name.push(other),
            }
        }
        names.iter().all(|name| !name.is_empty()).then_some(Self(names))
    }

    /// What stands there. An address that nobody has verified counts as none: whoever may write it could be anybody.
    fn find<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a Value> {
        if self.0 == ["email"] && claims.get("email_verified") != Some(&Value::Bool(true)) {
            return None;
        }
        self.find_as_it_is(claims)
    }

    fn find_as_it_is<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a Value> {
        let (first, rest) = self.0.split_first()?;
        rest.iter().try_fold(claims.get(first)?, |value, name| value.as_object()?.get(name))
    }

    /// The texts that stand there: one, or a list of them. Scopes are words of one text.
    fn texts<'a>(&self, claims: &'a Map<String, Value>) -> Vec<&'a str> {
        match self.find(claims) {
            Some(Value::String(text)) if self.0.last().is_some_and(|name| name == "scope" || name == "scp") => {
                text.split_ascii_whitespace().collect()
            }
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

/// Who comes with a token whose signature and registered claims are believed, by what is said of its issuer. `kind` is what its
/// header says that it is.
pub(super) fn principal(
    kind: Option<&str>,
    claims: &Map<String, Value>,
    issuer: &Issuer,
    now: Timestamp,
) -> Result<Principal, Refusal> {
    check_kind(kind, claims, issuer)?;
    let until = check_times(claims, issuer, now)?;
    let person = match issuer.person.find(claims) {
        Some(Value::String(person)) if is_name(person) => person,
        _ => return Err(Refusal::Person),
    };
    check_not_revoked(claims, person, issuer)?;
    let display = issuer.display.as_ref().and_then(|path| path.find_as_it_is(claims)).and_then(Value::as_str);
    Ok(Principal {
        name: format!("{}#{person}", issuer.issuer),
        tenant: tenant(claims, &issuer.tenant)?,
        roles: roles(claims, issuer),
        token_id: None,
        display: display.map(shortened),
        until: Some(until),
    })
}

/// What to call somebody, in one line.
fn shortened(display: &str) -> String {
    let mut text = display.replace(char::is_control, "\u{fffd}");
    text.truncate(text.floor_char_boundary(DISPLAY_BYTES));
    text
}

/// Whether it is meant for this API. Whatever a key was asked about has passed this already.
pub(super) fn check_audience(claims: &Map<String, Value>, issuer: &Issuer) -> Result<(), Refusal> {
    let is_ours = |value: &Value| value.as_str().is_some_and(|audience| issuer.audiences.contains(audience));
    let is_for_us = match claims.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().any(is_ours),
        Some(audience) => is_ours(audience),
        None => false,
    };
    if is_for_us { Ok(()) } else { Err(Refusal::Audience) }
}

/// Whether it is a token of the kind that is taken. What tells an ID token from an access token is, above all, whom it is for: the
/// program that signed somebody in, or an API.
fn check_kind(kind: Option<&str>, claims: &Map<String, Value>, issuer: &Issuer) -> Result<(), Refusal> {
    let kind = kind.unwrap_or("JWT").to_ascii_lowercase();
    let kind = kind.strip_prefix("application/").unwrap_or(&kind);
    let is_access = kind == "at+jwt";
    // A security event (RFC 8417) signs nobody in.
    if (!is_access && kind != "jwt") || claims.contains_key("events") {
        return Err(Refusal::Type);
    }
    // A proof of possession that nobody asks for here would be worth nothing.
    if claims.contains_key("cnf") {
        return Err(Refusal::Bound);
    }
    // Keycloak says it in a claim. The hashes are of what comes beside an ID token.
    let said = claims.get("typ").and_then(Value::as_str);
    let has_hash = ["at_hash", "c_hash"].iter().any(|name| claims.contains_key(*name));
    let is_kind = match issuer.accept {
        Kind::Access => !has_hash && said.is_none_or(|said| said == "Bearer"),
        Kind::Id => !is_access && said.is_none_or(|said| said == "ID"),
    };
    if !is_kind {
        return Err(Refusal::Kind);
    }
    // OpenID Connect, 3.1.3.7: one that is for several says who asked for it.
    let is_for_several = claims.get("aud").and_then(Value::as_array).is_some_and(|audiences| audiences.len() > 1);
    let party = claims.get("azp").and_then(Value::as_str);
    if issuer.accept == Kind::Id && is_for_several && !party.is_some_and(|party| issuer.audiences.contains(party)) {
        return Err(Refusal::Audience);
    }
    Ok(())
}

/// Until when it is good, if it was made in the past, and for no longer than it may be.
fn check_times(claims: &Map<String, Value>, issuer: &Issuer, now: Timestamp) -> Result<Timestamp, Refusal> {
    let now = now.as_millisecond() as f64 / 1000.0;
    let leeway = issuer.leeway.as_secs() as f64;
    let expires = time(claims, "exp")?.ok_or(Refusal::Claim)?;
    let issued = time(claims, "iat")?;
    if issued.is_some_and(|issued| now < issued - leeway) {
        return Err(Refusal::Future);
    }
    if expires - issued.unwrap_or(now) > issuer.longest.as_secs_f64() + leeway {
        return Err(Refusal::TooLasting);
    }
    // In whole seconds, with the last one to its end: so long it is taken.
    let until = expires.round() + leeway + 1.0;
    Ok(Timestamp::from_second(until as i64).unwrap_or(Timestamp::MAX))
}

/// A time in seconds since 1970 (RFC 7519, `NumericDate`).
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, Refusal> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().filter(|time| time.is_finite()).map(Some).ok_or(Refusal::Claim),
    }
}

fn is_name(text: &str) -> bool {
    (1..=PERSON_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn check_not_revoked(claims: &Map<String, Value>, person: &str, issuer: &Issuer) -> Result<(), Refusal> {
    let refuse = &issuer.refuse;
    let token = match claims.get("jti") {
        None => None,
        Some(Value::String(token)) => Some(token.as_str()),
        Some(_) => return Err(Refusal::Claim),
    };
    // What does not say which it is, or since when, can't be told from what is refused.
    let is_named = refuse.people.contains(person)
        || (!refuse.tokens.is_empty() && token.is_none_or(|token| refuse.tokens.contains(token)));
    let is_old = match refuse.issued_before {
        None => false,
        Some(before) => {
            let before = before.as_millisecond() as f64 / 1000.0;
            time(claims, "iat")?.is_none_or(|issued| issued < before)
        }
    };
    if is_named || is_old { Err(Refusal::Revoked) } else { Ok(()) }
}

fn tenant(claims: &Map<String, Value>, rule: &TenantRule) -> Result<TenantId, Refusal> {
    let (path, map) = match rule {
        TenantRule::Fixed(tenant) => return Ok(tenant.clone()),
        TenantRule::Claim { path, map } => (path, map),
    };
    let [said] = path.texts(claims)[..] else { return Err(Refusal::NoTenant) };
    let tenant = match map {
        Some(map) => map.get(said).cloned(),
        // The admins of `default` run the whole house: nobody gets there by a name that the provider's people choose.
        None => said.parse().ok().filter(|tenant| *tenant != TenantId::default()),
    };
    tenant.ok_or(Refusal::NoTenant)
}

fn roles(claims: &Map<String, Value>, issuer: &Issuer) -> Vec<Role> {
    let said = issuer.roles.path.texts(claims).into_iter();
    let mut roles: Vec<Role> = said.filter_map(|value| issuer.roles.map.get(value).copied()).collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

#[cfg(test)]
mod tests;
