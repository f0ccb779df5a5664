//! The HTTP calls of the other services. Nobody else gets past the token.

use axum::{
    Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use engine::{Engine, Reads, Segments};
use kernel::{ArtifactId, CallId, RunId, TenantId, Trust, call::ArtifactRef};
use serde::Deserialize;
use serde_json::json;
use service::{Parent, Secret, SpanSpec, Tracer};
use subtle::ConstantTimeEq;

use crate::{
    archive::{self, ArchiveError},
    blobs::{BlobError, Blobs},
    segments::Range,
};

/// Bytes of raw output in one answer at most.
const MAX_RANGE: u64 = 4 << 20;
/// The longest name of an artifact, in bytes.
const MAX_NAME: usize = 255;

/// What the calls need.
#[derive(Clone)]
pub struct Api {
    reads: Reads,
    segments: Segments,
    blobs: Blobs,
    tracer: Tracer,
    token: Secret<String>,
}

impl Api {
    /// Over these stores, for whoever shows `token`.
    pub fn new(engine: &Engine, blobs: Blobs, tracer: Tracer, token: Secret<String>) -> Self {
        Self { reads: engine.reads(), segments: engine.segments(), blobs, tracer, token }
    }
}

/// The calls.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/internal/artifacts", put(store))
        .route("/internal/artifacts/{artifact}", get(content))
        .route("/internal/signals/{call}", get(signals))
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(api.clone(), authenticate))
        .with_state(api)
}

async fn authenticate(State(api): State<Api>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    if bool::from(shown.as_bytes().ct_eq(api.token.expose().as_bytes())) {
        next.run(request).await
    } else {
        problem(StatusCode::UNAUTHORIZED, "unauthorized", "this is for the other services, with their internal token")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Naming {
    tenant: TenantId,
    run_id: RunId,
    name: String,
    #[serde(default = "octets")]
    media_type: String,
    trust: Trust,
}

fn octets() -> String {
    "application/octet-stream".to_owned()
}

/// Stores content as the next version of a name within a run. It counts once the reference is committed; until then a
/// repetition gets the same version.
async fn store(State(api): State<Api>, Query(naming): Query<Naming>, headers: HeaderMap, body: Body) -> Response {
    if let Some(wrong) = bad_name(&naming.name) {
        return problem(StatusCode::BAD_REQUEST, "bad_name", wrong);
    }
    if naming.media_type.len() > MAX_NAME || !naming.media_type.bytes().all(|byte| (32..127).contains(&byte)) {
        return problem(StatusCode::BAD_REQUEST, "bad_media_type", "`media_type` is no media type");
    }
    let parent = headers.get("traceparent").and_then(|value| value.to_str().ok()).map(Parent::Traceparent);
    let span = parent.map(|parent| {
        let spec = SpanSpec::new("store artifact", parent).attribute("esc.artifact.name", naming.name.clone());
        api.tracer.span(spec.run(naming.run_id.0.into_bytes()))
    });
    let answer = match api.blobs.put(body.into_data_stream()).await {
        Ok(blob) => api.name(naming, blob).await,
        Err(error) => refused(&error),
    };
    drop(span);
    answer
}

impl Api {
    async fn name(&self, naming: Naming, blob: crate::blobs::Blob) -> Response {
        let artifact_id = ArtifactId::derive(naming.run_id, &format!("artifact/{}", naming.name));
        let latest = match self.reads.artifact(&naming.tenant, artifact_id, None).await {
            Ok(latest) => latest.map_or(0, |row| row.artifact.version),
            Err(error) => return unavailable(&error),
        };
        metrics::counter!("artifact_stored_bytes_total").increment(blob.bytes);
        Json(ArtifactRef {
            artifact_id,
            name: naming.name,
            version: latest + 1,
            digest: blob.digest,
            bytes: blob.bytes,
            media_type: naming.media_type,
            trust: naming.trust,
        })
        .into_response()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    tenant: TenantId,
    #[serde(default)]
    version: Option<u32>,
}

/// The content of a committed version; the latest, if none is given.
async fn content(State(api): State<Api>, Path(artifact): Path<ArtifactId>, Query(which): Query<Which>) -> Response {
    let row = match api.reads.artifact(&which.tenant, artifact, which.version).await {
        Ok(Some(row)) => row.artifact,
        Ok(None) => return problem(StatusCode::NOT_FOUND, "unknown_artifact", "there is no such artifact"),
        Err(error) => return unavailable(&error),
    };
    let content = match api.blobs.get(&row.digest).await {
        Ok(content) => content,
        Err(error) => return refused(&error),
    };
    let headers = [
        (header::CONTENT_TYPE, row.media_type),
        (header::ETAG, format!("\"{}\"", row.digest)),
        (header::CONTENT_LENGTH, row.bytes.to_string()),
    ];
    (headers, Body::from_stream(content)).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bytes {
    tenant: TenantId,
    #[serde(default)]
    from: u64,
    #[serde(default)]
    to: Option<u64>,
}

/// Raw output of a call: the bytes `from..to`, as far as they are archived without a gap, at most 4 MiB.
async fn signals(State(api): State<Api>, Path(call): Path<CallId>, Query(bytes): Query<Bytes>) -> Response {
    let most = bytes.from.saturating_add(MAX_RANGE);
    let to = bytes.to.map_or(most, |to| to.min(most));
    let segments = match api.segments.list(&bytes.tenant, call, bytes.from, to).await {
        Ok(segments) => segments,
        Err(error) => return unavailable(&error),
    };
    let mut range = Range::new(bytes.from, to);
    for segment in &segments {
        match archive::read(&api.blobs, segment).await {
            Ok(content) => {
                if !range.take(segment.from_offset, &content) {
                    break;
                }
            }
            Err(ArchiveError::Blobs(error)) => return refused(&error),
            Err(error) => return unavailable(&error),
        }
    }
    ([(header::CONTENT_TYPE, octets())], range.into_bytes()).into_response()
}

/// What is wrong with a name, if anything is.
fn bad_name(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > MAX_NAME {
        Some("`name` must have 1 to 255 bytes")
    } else if name.chars().any(char::is_control) || name.starts_with('/') || name.split('/').any(|part| part == "..") {
        Some("`name` must be a plain name: no control characters, no leading `/`, no `..`")
    } else {
        None
    }
}

fn refused(error: &BlobError) -> Response {
    match error {
        BlobError::TooLarge(_) => problem(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &error.to_string()),
        BlobError::Cut(_) => problem(StatusCode::BAD_REQUEST, "cut", &error.to_string()),
        missing if missing.is_missing() => problem(StatusCode::NOT_FOUND, "content_gone", "the content is gone"),
        _ => unavailable(error),
    }
}

fn unavailable(error: &(dyn std::error::Error + 'static)) -> Response {
    tracing::error!(error, "a store failed");
    problem(StatusCode::SERVICE_UNAVAILABLE, "store_failed", "a store failed; the log of the artifact service says how")
}

/// RFC 9457.
fn problem(status: StatusCode, code: &str, detail: &str) -> Response {
    let body = json!({ "status": status.as_u16(), "code": code, "title": status.canonical_reason(), "detail": detail });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
