//! A stand-in for an identity provider: it publishes keys, and signs what it is told to.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PSS_SHA384, RsaKeyPair,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kernel::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

/// The provider, until it is dropped.
pub struct Provider {
    /// Its name, which is where it is.
    pub url: String,
    shared: Arc<Shared>,
    serving: tokio::task::JoinHandle<()>,
}

struct Shared {
    url: String,
    keys: Mutex<Vec<Value>>,
    asked: AtomicUsize,
    is_down: AtomicBool,
    is_open: watch::Sender<bool>,
}

impl Provider {
    pub async fn start(keys: &[&Key]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/realm", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            url: url.clone(),
            keys: Mutex::new(keys.iter().map(|key| key.public()).collect()),
            asked: AtomicUsize::new(0),
            is_down: AtomicBool::new(false),
            is_open: watch::Sender::new(true),
        });
        let routes = Router::new()
            .route("/realm/.well-known/openid-configuration", get(discovery))
            .route("/realm/keys", get(published))
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, shared, serving }
    }

    /// What the file of issuers says of it, and more.
    pub fn rules(&self, more: &str) -> String {
        format!(
            "
- issuer: {}
  audiences: [escapement]
  person: {{ display: name }}
  roles: {{ claim: realm_access.roles, map: {{ see: viewer, use: user, run: operator, rule: admin, send: publisher }} }}
  {more}
",
            self.url
        )
    }

    /// What a token of it says, of somebody with a role.
    pub fn claims(&self, person: &str, role: &str) -> Value {
        let now = now();
        json!({
            "iss": self.url, "aud": "escapement", "sub": person, "name": format!("{person} of the realm"), "iat": now,
            "exp": now + 600, "realm_access": {"roles": [role, "offline_access"]}, "org": "acme",
        })
    }

    /// Publishes these keys from now on.
    pub fn publish(&self, keys: &[&Key]) {
        *self.shared.keys.lock().unwrap() = keys.iter().map(|key| key.public()).collect();
    }

    /// Answers, or does not.
    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Lets whoever asks for keys wait, or lets them have their answers.
    pub fn set_open(&self, is_open: bool) {
        self.shared.is_open.send_replace(is_open);
    }

    /// How often somebody asked for the keys.
    pub fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn discovery(State(shared): State<Arc<Shared>>) -> Response {
    if shared.is_down.load(Ordering::SeqCst) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    Json(json!({"issuer": shared.url, "jwks_uri": format!("{}/keys", shared.url)})).into_response()
}

async fn published(State(shared): State<Arc<Shared>>) -> Response {
    shared.asked.fetch_add(1, Ordering::SeqCst);
    shared.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
    if shared.is_down.load(Ordering::SeqCst) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    Json(json!({"keys": *shared.keys.lock().unwrap()})).into_response()
}

/// A key of a provider.
pub struct Key {
    pub id: String,
    algorithm: &'static str,
    pair: Pair,
}

enum Pair {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl Key {
    pub fn make(id: &str, algorithm: &'static str) -> Self {
        let pair = match algorithm {
            "ES256" => Pair::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()),
            "ES384" => Pair::Ec(EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap()),
            "EdDSA" => Pair::Ed(Ed25519KeyPair::generate().unwrap()),
            _ => Pair::Rsa(Box::new(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())),
        };
        Self { id: id.to_owned(), algorithm, pair }
    }

    /// What everybody may know of it, as a JWK.
    pub fn public(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Ec(pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if self.algorithm == "ES256" { "P-256" } else { "P-384" };
                json!({"kty": "EC", "crv": curve, "x": encoded(x), "y": encoded(y)})
            }
            Pair::Ed(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": encoded(pair.public_key())}),
            Pair::Rsa(pair) => {
                // RFC 8017: a sequence of both numbers, of 257 and 3 bytes.
                let der = pair.public_key().as_ref();
                json!({"kty": "RSA", "n": encoded(&der[9..265]), "e": encoded(&der[267..270])})
            }
        };
        jwk["kid"] = self.id.clone().into();
        jwk["use"] = "sig".into();
        jwk
    }

    /// A token as a provider makes it.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&json!({"alg": self.algorithm, "kid": self.id, "typ": "JWT"}), claims)
    }

    /// A token with any header.
    pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let (random, message) = (SystemRandom::new(), signed.as_bytes());
        let signature = match &self.pair {
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                if self.algorithm == "PS384" {
                    pair.sign(&RSA_PSS_SHA384, &random, message, &mut signature).unwrap();
                } else {
                    pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                }
                signature
            }
        };
        format!("{signed}.{}", encoded(signature))
    }
}

/// What of a token is signed.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()))
}

pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// In seconds, as tokens have it.
pub fn now() -> i64 {
    Timestamp::now().as_second()
}
