//! The keys of one issuer: where they come from, and how long they count.
//!
//! They are read again every so often, and at once when a token names one that is not among them, for that is how a new one shows.
//! Anybody can make up such a token: so one reading at a time, and no two within a while, whoever asks. What could not be read again
//! is used for a bounded time.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jsonwebtoken::Validation;
use metrics::{Counter, counter, gauge};
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Client, ClientBuilder, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::file::{Issuer, KeyPlace, KeySource, is_as_safe_as, is_here};
use super::jwt::Jwt;
use super::keys::{KeySet, KeySetError};
use super::refusal::Refusal;

/// How long a connection may take to come up.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long one answer may take, to its end.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const MOST_BYTES: usize = 512 * 1024;

/// Why keys could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0} does not answer")]
    Unreached(Url, #[source] reqwest::Error),
    #[error("{0} answers with {1}")]
    Status(Url, StatusCode),
    #[error("{0} leads elsewhere ({1}), and that is not followed: name the place itself")]
    Redirect(Url, StatusCode),
    #[error("{0} answers with more than {MOST_BYTES} bytes")]
    TooLarge(Url),
    #[error("{0} is no OpenID Connect discovery document")]
    NoDiscovery(Url, #[source] serde_json::Error),
    #[error("{0} is about the issuer `{1}`, and not about this one: `issuer` has to be written as the provider does")]
    OtherIssuer(Url, String),
    #[error("{0} sends to `{1}` for the keys, which is not as safe a place")]
    Unsafe(Url, String),
    #[error("{0} has no keys to use")]
    Keys(Url, #[source] KeySetError),
}

/// Who has the keys of an issuer.
#[derive(Debug)]
pub(super) struct Provider {
    issuer: String,
    source: KeySource,
    clients: Clients,
    counters: Counters,
    known: Arc<RwLock<Option<Known>>>,
    readings: Arc<Mutex<Readings>>,
}

#[derive(Clone, Debug)]
struct Known {
    keys: Arc<KeySet>,
    read: Instant,
}

/// What there is to remember of readings. Whoever holds it reads.
#[derive(Debug, Default)]
struct Readings {
    last: Option<Instant>,
    failing: bool,
}

/// How readings ended.
#[derive(Debug)]
struct Counters {
    done: Counter,
    failed: Counter,
}

impl Counters {
    /// There from the start, so that the first failure is an increase.
    fn new(issuer: &str) -> Self {
        let issuer = issuer.to_owned();
        let counters = Self {
            done: counter!("ingress_issuer_readings_total", "issuer" => issuer.clone(), "outcome" => "done"),
            failed: counter!("ingress_issuer_readings_total", "issuer" => issuer, "outcome" => "failed"),
        };
        service::metrics::announce(&counters.done);
        service::metrics::announce(&counters.failed);
        counters
    }
}

/// What of a discovery document is looked at.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// Ask providers. Their addresses are those that whoever runs this installation wrote down, so they may be in a private network,
/// and behind the proxy that the environment names; what they answer is shown to nobody. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    there: Client,
    /// Asks this very machine: what comes from there in clear text is believed, so no proxy may answer in its stead.
    here: Client,
}

impl Clients {
    pub(super) fn new() -> Result<Self, reqwest::Error> {
        Self::built_from(Client::builder)
    }

    fn built_from(begin: impl Fn() -> ClientBuilder) -> Result<Self, reqwest::Error> {
        let build = |builder: ClientBuilder| {
            builder
                .redirect(redirect::Policy::none())
                .connect_timeout(CONNECT_WITHIN)
                .timeout(ANSWER_WITHIN)
                .user_agent(concat!("escapement/", env!("CARGO_PKG_VERSION")))
                .build()
        };
        Ok(Self { there: build(begin())?, here: build(begin().no_proxy())? })
    }

    fn to(&self, place: &Url) -> &Client {
        if is_here(place) { &self.here } else { &self.there }
    }
}

impl Provider {
    /// Whoever has the keys now. What is known from the same place (`before`) is known here too, and so is what is being read there,
    /// however long the keys are good for by now: the provider may not answer just when the file changes.
    pub(super) fn new(issuer: &Issuer, clients: Clients, before: Option<&Self>) -> Self {
        let same = |before: &&Self| before.issuer == issuer.issuer && before.source.place == issuer.keys.place;
        let (known, readings) = before
            .filter(same)
            .map_or_else(Default::default, |before| (Arc::clone(&before.known), Arc::clone(&before.readings)));
        let counters = Counters::new(&issuer.issuer);
        Self { issuer: issuer.issuer.clone(), source: issuer.keys.clone(), clients, counters, known, readings }
    }

    /// What a token says, if one of the keys signed it.
    pub(super) async fn verify(
        self: &Arc<Self>,
        jwt: &Jwt<'_>,
        rules: &Validation,
    ) -> Result<Map<String, Value>, Refusal> {
        let before = self.usable();
        if let Some(keys) = &before {
            match keys.verify(jwt, rules) {
                Err(Refusal::UnknownKey) => {}
                known => return known,
            }
        }
        let is_current = self.read_again(before.as_ref()).await;
        match self.usable().ok_or(Refusal::Unavailable)?.verify(jwt, rules) {
            // It may be one that nobody could tell us of.
            Err(Refusal::UnknownKey) if !is_current => Err(Refusal::Unavailable),
            known => known,
        }
    }

    /// Reads the keys if it is time to. Waits for nothing.
    pub(super) fn refresh(self: &Arc<Self>) {
        let age = self.known().map(|known| known.read.elapsed());
        if let Some(age) = age {
            gauge!("ingress_issuer_keys_age_seconds", "issuer" => self.issuer.clone()).set(age.as_secs_f64());
        }
        if age.is_some_and(|age| age < self.source.refresh) {
            return;
        }
        // Somebody reads them just now.
        let Ok(mut readings) = Arc::clone(&self.readings).try_lock_owned() else { return };
        if readings.may_begin(self.source.again) {
            let provider = Arc::clone(self);
            tokio::spawn(async move { provider.read(&mut readings).await });
        }
    }

    /// Does what may be done to have keys that are not among `before`, and says whether the provider answers.
    async fn read_again(self: &Arc<Self>, before: Option<&Arc<KeySet>>) -> bool {
        let mut readings = Arc::clone(&self.readings).lock_owned().await;
        let now = self.usable();
        // Read while this waited its turn.
        let is_new = now.is_some_and(|now| !before.is_some_and(|before| Arc::ptr_eq(before, &now)));
        if is_new || !readings.may_begin(self.source.again) {
            return !readings.failing;
        }
        let provider = Arc::clone(self);
        // In a task of its own: who hangs up must not keep the others from getting the keys.
        let reading = tokio::spawn(async move {
            provider.read(&mut readings).await;
            !readings.failing
        });
        reading.await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading the keys of an issuer ended badly");
            false
        })
    }

    async fn read(&self, readings: &mut Readings) {
        match self.fetch().await {
            Ok(keys) => {
                self.take(keys, readings.failing);
                readings.failing = false;
                self.counters.done.increment(1);
            }
            Err(error) => {
                let (error, issuer) = (service::chain(&error), &self.issuer);
                let keep = self.source.keep;
                // Once, and then again only when it is over: the counter goes on.
                if readings.failing {
                    tracing::debug!(issuer, error, "the keys of an issuer still can't be read");
                } else if self.usable().is_some() {
                    tracing::error!(
                        issuer,
                        error,
                        ?keep,
                        "the keys of an issuer can't be read again: those that were are used on"
                    );
                } else {
                    tracing::error!(issuer, error, "the keys of an issuer can't be read: its tokens let nobody in");
                }
                readings.failing = true;
                self.counters.failed.increment(1);
            }
        }
        // From its end on: an answer that takes its time must not be followed by the next question at once.
        readings.last = Some(Instant::now());
    }

    fn take(&self, keys: KeySet, was_failing: bool) {
        let (issuer, many) = (&self.issuer, keys.len());
        let is_first = self.known().is_none();
        if is_first || was_failing {
            tracing::info!(issuer, keys = many, passed_over = ?keys.passed_over, "read the keys of an issuer");
        }
        let known = Known { keys: Arc::new(keys), read: Instant::now() };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    fn known(&self) -> Option<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn usable(&self) -> Option<Arc<KeySet>> {
        self.known().filter(|known| known.read.elapsed() <= self.source.keep).map(|known| known.keys)
    }

    async fn fetch(&self) -> Result<KeySet, ReadError> {
        let url = match &self.source.place {
            KeyPlace::Set(url) => url.clone(),
            KeyPlace::Discovery(url) => self.discover(url).await?,
        };
        KeySet::read(&self.get(&url).await?).map_err(|error| ReadError::Keys(url, error))
    }

    /// Where the issuer says that its keys are.
    async fn discover(&self, place: &Url) -> Result<Url, ReadError> {
        let document = self.get(place).await?;
        let found: Discovery =
            serde_json::from_slice(&document).map_err(|error| ReadError::NoDiscovery(place.clone(), error))?;
        if found.issuer != self.issuer {
            return Err(ReadError::OtherIssuer(place.clone(), kernel::excerpt(&found.issuer, 200)));
        }
        let keys = found.jwks_uri.parse::<Url>().ok().filter(|keys| is_as_safe_as(place, keys));
        keys.ok_or_else(|| ReadError::Unsafe(place.clone(), kernel::excerpt(&found.jwks_uri, 200)))
    }

    async fn get(&self, url: &Url) -> Result<Vec<u8>, ReadError> {
        let unreached = |error: reqwest::Error| ReadError::Unreached(url.clone(), error.without_url());
        let request =
            self.clients.to(url).get(url.clone()).header(ACCEPT, HeaderValue::from_static("application/json"));
        let mut response = request.send().await.map_err(unreached)?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err(ReadError::Redirect(url.clone(), status)),
            status => return Err(ReadError::Status(url.clone(), status)),
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreached)? {
            if body.len() + chunk.len() > MOST_BYTES {
                return Err(ReadError::TooLarge(url.clone()));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

impl Readings {
    /// Whether a reading may begin now. One that does counts from here on, so that none is begun twice if it comes to nothing.
    fn may_begin(&mut self, again: Duration) -> bool {
        let may = self.last.is_none_or(|last| last.elapsed() >= again);
        if may {
            self.last = Some(Instant::now());
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::super::file;
    use super::*;

    /// From RFC 8037 (A.2).
    const KEYS: &str =
        r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    fn issuer(keys: &str) -> Issuer {
        let text = format!(
            "[{{ issuer: http://127.0.0.1:1, audiences: [a], tenant: acme, keys: {{ {keys} }}, roles: {{ claim: r, map: {{ r: user }} }} }}]"
        );
        file::parse(&text).unwrap().remove(0)
    }

    #[test]
    fn keys_outlast_a_change_of_how_long_they_are_used_and_no_change_of_their_place() {
        let clients = Clients::new().unwrap();
        let place = "url: \"http://127.0.0.1:1/keys\"";
        let before = Provider::new(&issuer(place), clients.clone(), None);
        before.take(KeySet::read(KEYS.as_bytes()).unwrap(), false);
        let after = |keys: &str| Provider::new(&issuer(keys), clients.clone(), Some(&before));
        let longer = after(&format!("{place}, refresh: 1m, again: 1s, keep: 2d"));
        assert!(longer.usable().is_some() && longer.source.keep == Duration::from_secs(2 * 24 * 3600));
        assert!(Arc::ptr_eq(&longer.readings, &before.readings), "one reading at a time, all the same");
        assert!(after("url: \"http://127.0.0.1:1/others\"").usable().is_none());
    }

    #[tokio::test]
    async fn no_proxy_answers_for_this_machine() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = format!("url: \"http://{}/keys\"", listener.local_addr().unwrap());
        let routes = Router::new().route("/keys", get(|| async { KEYS }));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        // Nobody is there.
        let proxy = || Client::builder().proxy(reqwest::Proxy::all("http://127.0.0.1:1").unwrap());
        let provider = Provider::new(&issuer(&place), Clients::built_from(proxy).unwrap(), None);
        assert_eq!(provider.fetch().await.unwrap().len(), 1);
        serving.abort();
    }
}
