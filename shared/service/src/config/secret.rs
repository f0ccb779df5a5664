//! Values that must not be printed.

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

const MASK: &str = "***";

thread_local! {
    /// Set while the loader turns the defaults into a layer: only then a secret serialises as itself.
    static REVEALED: Cell<bool> = const { Cell::new(false) };
}

/// A value that is masked wherever it is printed (`Debug`, `Display`, `Serialize`).
///
/// A URL keeps its host and user and loses only its password or token, so that logs still say where a service connects
/// to; anything else is masked whole. The value itself is had by [`Secret::expose`].
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret<T = String>(T);

impl<T: AsRef<str>> Secret<T> {
    /// A secret of any kind of text.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        self.0.as_ref()
    }

    /// Whether no value was given.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl From<String> for Secret<String> {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret<String> {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl<T: AsRef<str>> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask(self.expose()))
    }
}

impl<T: AsRef<str>> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", mask(self.expose()))
    }
}

impl<T: AsRef<str>> Serialize for Secret<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if REVEALED.get() {
            serializer.serialize_str(self.expose())
        } else {
            serializer.serialize_str(&mask(self.expose()))
        }
    }
}

/// Runs `f` with secrets serialising as themselves on this thread.
pub(super) fn revealed<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            REVEALED.set(self.0);
        }
    }
    let _restore = Restore(REVEALED.replace(true));
    f()
}

/// `value` as it may be shown: empty stays empty, a list of URLs loses its passwords, anything else is hidden.
fn mask(value: &str) -> String {
    if value.is_empty() {
        String::new()
    } else if value.split(',').all(|part| part.contains("://")) {
        value.split(',').map(mask_url).collect::<Vec<_>>().join(",")
    } else {
        MASK.to_owned()
    }
}

fn mask_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return MASK.to_owned();
    };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    // A password with an unescaped slash or at-sign moves the boundary: the last `@` of the whole is the safe one.
    let (authority, path) = match path.rfind('@') {
        Some(_) => (rest, ""),
        None => (authority, path),
    };
    let authority = match authority.rsplit_once('@') {
        Some((userinfo, host)) => format!("{}@{host}", mask_userinfo(scheme, userinfo)),
        None => authority.to_owned(),
    };
    let query = query.map(|query| format!("?{}", mask_query(query))).unwrap_or_default();
    format!("{scheme}://{authority}{path}{query}")
}

/// A lone name is a user, except to NATS, where it is a token.
fn mask_userinfo(scheme: &str, userinfo: &str) -> String {
    match userinfo.split_once(':') {
        Some((user, _)) => format!("{user}:{MASK}"),
        None if matches!(scheme, "nats" | "tls" | "ws" | "wss") => MASK.to_owned(),
        None => userinfo.to_owned(),
    }
}

fn mask_query(query: &str) -> String {
    let secret = |name: &str| ["pass", "token", "secret", "key"].iter().any(|word| name.to_lowercase().contains(word));
    query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if secret(name) => format!("{name}={MASK}"),
            _ => pair.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_their_password_and_nothing_else() {
        for (value, shown) in [
            ("", ""),
            ("s3cr3t", "***"),
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://planner:pw@h:4222", "nats://planner:***@h:4222"),
            ("nats://tok3n@h:4222", "nats://***@h:4222"),
            ("nats://a:b@h1:1,nats://a:b@h2:2", "nats://a:***@h1:1,nats://a:***@h2:2"),
            ("postgres://esc_planner@h/db", "postgres://esc_planner@h/db"),
            ("postgres://u:p/w@h/db", "postgres://u:***@h/db"),
            ("postgres://u:p@w@h/db?sslmode=require", "postgres://u:***@h/db?sslmode=require"),
            ("postgres://h/db?user=u&password=pw", "postgres://h/db?user=u&password=***"),
            ("redis://:pw@h:6379/0", "redis://:***@h:6379/0"),
        ] {
            let secret = Secret::from(value);
            assert_eq!(secret.to_string(), shown);
            assert_eq!(format!("{secret:?}"), format!("{shown:?}"));
            assert_eq!(serde_json::to_value(&secret).unwrap(), shown);
            assert_eq!(secret.expose(), value);
        }
    }

    #[test]
    fn revealing_ends_with_its_scope() {
        let secret = Secret::from("s3cr3t");
        assert_eq!(revealed(|| serde_json::to_value(&secret).unwrap()), "s3cr3t");
        assert_eq!(serde_json::to_value(&secret).unwrap(), "***");
    }
}
