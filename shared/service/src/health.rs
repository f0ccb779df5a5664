//! Is the process alive, may it get work, and what does it measure?

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::future::join_all;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

/// What a scraper accepts that knows exemplars.
const OPEN_METRICS: &str = "application/openmetrics-text";
/// A check that takes longer has failed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

type Outcome = Result<(), String>;
type Probe = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// What one service knows about its own health. Cheap to clone.
#[derive(Clone)]
pub struct Health {
    inner: Arc<Inner>,
}

struct Inner {
    service: String,
    draining: CancellationToken,
    checks: Mutex<BTreeMap<String, Check>>,
}

#[derive(Clone)]
enum Check {
    /// As last told.
    Told(Outcome),
    /// Asked whenever readiness is.
    Asked(Probe),
}

/// Whether a service may get work, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// The service that answers.
    pub service: String,
    /// Whether nothing speaks against it.
    pub ready: bool,
    /// What does.
    pub not_ready: Vec<NotReady>,
}

/// One thing that isn't ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotReady {
    /// Name of the check.
    pub check: String,
    /// For people.
    pub detail: String,
}

impl Health {
    /// The health of `service`; it stops being ready when `draining` is cancelled.
    pub fn new(service: &str, draining: CancellationToken) -> Self {
        Self { inner: Arc::new(Inner { service: service.to_owned(), draining, checks: Mutex::default() }) }
    }

    /// Names a thing that has to be there first: not ready until [`Health::set`] says so.
    pub fn expect(&self, check: &str) {
        self.checks().entry(check.to_owned()).or_insert_with(|| Check::Told(Err("not there yet".to_owned())));
    }

    /// Says whether the named thing is there; `detail` is shown if not.
    pub fn set(&self, check: &str, ok: bool, detail: impl Into<String>) {
        let outcome = if ok { Ok(()) } else { Err(detail.into()) };
        self.checks().insert(check.to_owned(), Check::Told(outcome));
    }

    /// Asks `probe` whenever readiness is asked for; it has two seconds.
    pub fn check<F, Fut>(&self, check: &str, probe: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.checks().insert(check.to_owned(), Check::Asked(Arc::new(move || Box::pin(probe()))));
    }

    /// Forgets a check.
    pub fn remove(&self, check: &str) {
        self.checks().remove(check);
    }

    /// Whether the service may get work. All checks are asked at the same time.
    pub async fn readiness(&self) -> Readiness {
        let checks: Vec<_> = self.checks().iter().map(|(name, check)| (name.clone(), check.clone())).collect();
        let asked = checks.into_iter().map(async |(check, state)| {
            let outcome = match state {
                Check::Told(outcome) => outcome,
                Check::Asked(probe) => tokio::time::timeout(CHECK_TIMEOUT, probe())
                    .await
                    .unwrap_or_else(|_| Err(format!("no answer in {CHECK_TIMEOUT:?}"))),
            };
            outcome.err().map(|detail| NotReady { check, detail })
        });
        let mut not_ready: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        if self.inner.draining.is_cancelled() {
            not_ready.push(NotReady { check: "shutdown".to_owned(), detail: "the service is draining".to_owned() });
        }
        Readiness { service: self.inner.service.clone(), ready: not_ready.is_empty(), not_ready }
    }

    /// `/healthz`, `/readyz`, `/metrics`, to be merged into the service's own router.
    pub fn router<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self.clone())
    }

    fn checks(&self) -> MutexGuard<'_, BTreeMap<String, Check>> {
        self.inner.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("service", &self.inner.service).finish_non_exhaustive()
    }
}

async fn healthz(State(health): State<Health>) -> impl IntoResponse {
    Json(serde_json::json!({
        "service": health.inner.service,
        "version": env!("CARGO_PKG_VERSION"),
        "status": "ok",
    }))
}

async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    let readiness = health.readiness().await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CACHE_CONTROL, "no-store")], Json(readiness))
}

async fn metrics(headers: HeaderMap) -> impl IntoResponse {
    // Prometheus names OpenMetrics first; `curl` and others that don't ask for it get what they know.
    let accepts = |accept: &HeaderValue| accept.to_str().is_ok_and(|accept| accept.contains(OPEN_METRICS));
    if headers.get_all(header::ACCEPT).iter().any(accepts) {
        let content_type = format!("{OPEN_METRICS}; version=1.0.0; charset=utf-8");
        ([(header::CONTENT_TYPE, content_type)], crate::metrics::render_open())
    } else {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8".to_owned())], crate::metrics::render())
    }
}
