//! `/v1/artifacts`: what runs have made. The content comes from the artifact service and only passes through here.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::{ArtifactRow, Reads};
use kernel::call::ArtifactRef;
use kernel::{ArtifactId, RunId, Timestamp};
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use service::Secret;
use utoipa::{IntoParams, ToSchema};

use super::schema;
use crate::auth::{Principal, Viewer};
use crate::body::{Params, Segments, id};
use crate::problem::Problem;

/// How long the artifact service may take to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long it may be silent within a content.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ArtifactsApi {
    reads: Reads,
    http: reqwest::Client,
    url: String,
    token: Secret<String>,
}

impl ArtifactsApi {
    /// Contents are had from the artifact service at `url`, which wants `token`.
    pub(crate) fn new(reads: Reads, url: &str, token: Secret<String>) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder().connect_timeout(CONNECT_WITHIN).read_timeout(SILENT_FOR).build()?;
        Ok(Self { reads, http, url: url.trim_end_matches('/').to_owned(), token })
    }
}

pub(crate) fn router(api: ArtifactsApi) -> Router {
    Router::new()
        .route("/artifacts/{artifact_id}", get(show))
        .route("/artifacts/{artifact_id}/content", get(content))
        .with_state(api)
}

/// Which version.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionParams {
    /// The latest, if it is not given.
    #[param(minimum = 1)]
    version: Option<u32>,
}

/// A version of an artifact.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArtifactView {
    /// The version itself.
    #[serde(flatten)]
    #[schema(value_type = schema::ArtifactRef)]
    artifact: ArtifactRef,
    /// The run that made it.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// When.
    created_at: Timestamp,
    /// Where its content is.
    content_url: String,
}

/// Look at an artifact
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact_id}", tag = "artifacts",
    params(("artifact_id" = uuid::Uuid, Path, description = "Which artifact"), VersionParams),
    responses((status = 200, description = "What is known of it", body = ArtifactView)),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(api): State<ArtifactsApi>,
    Segments(artifact): Segments<String>,
    Params(params): Params<VersionParams>,
) -> Result<Json<ArtifactView>, Problem> {
    let ArtifactRow { artifact, run_id, created_at, .. } = api.find(&principal, &artifact, params.version).await?;
    let content_url = format!("/v1/artifacts/{}/content?version={}", artifact.artifact_id, artifact.version);
    Ok(Json(ArtifactView { artifact, run_id, created_at, content_url }))
}

/// Download an artifact
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact_id}/content", tag = "artifacts",
    params(("artifact_id" = uuid::Uuid, Path, description = "Which artifact"), VersionParams),
    responses((status = 200, description = "Its content", content_type = "application/octet-stream", body = Vec<u8>)),
)]
pub(crate) async fn content(
    Viewer(principal): Viewer,
    State(api): State<ArtifactsApi>,
    Segments(artifact): Segments<String>,
    Params(params): Params<VersionParams>,
) -> Result<Response, Problem> {
    let row = api.find(&principal, &artifact, params.version).await?;
    let answer = api.fetch(&row).await?;
    let artifact = row.artifact;
    let header = |text: &str| HeaderValue::from_str(text).ok();
    let mut response = Body::from_stream(answer.bytes_stream()).into_response();
    let headers = response.headers_mut();
    let media_type = header(&artifact.media_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_TYPE, media_type);
    headers.insert(header::CONTENT_LENGTH, artifact.bytes.into());
    headers.extend(header(&format!("\"{}\"", artifact.digest)).map(|tag| (header::ETAG, tag)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600"));
    // It may be anything, made from anything: a browser must neither guess what it is nor run it as a part of this site.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.extend(header(&disposition(&artifact.name)).map(|value| (header::CONTENT_DISPOSITION, value)));
    Ok(response)
}

fn unreachable(error: &reqwest::Error) -> Problem {
    tracing::warn!(%error, "the artifact service does not answer");
    Problem::unavailable("artifact_unavailable", "the artifact service does not answer at the moment")
}

/// RFC 6266, with the name percent-encoded throughout.
fn disposition(name: &str) -> String {
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    format!("attachment; filename*=UTF-8''{encoded}")
}

impl ArtifactsApi {
    /// What the artifact service answers on a path of its own, with its headers that say where the answer stands.
    pub(crate) async fn pass(&self, path: &str) -> Result<Response, Problem> {
        let answer = self.http.get(format!("{}{path}", self.url)).bearer_auth(self.token.expose()).send().await;
        let answer = answer.map_err(|error| unreachable(&error))?;
        let status = answer.status();
        if status.is_server_error() || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            tracing::warn!(%status, "the artifact service failed, or refuses us: is `internal_token` the same on both sides?");
            return Err(Problem::unavailable("artifact_unavailable", "the artifact service failed"));
        }
        let is_told = |name: &&reqwest::header::HeaderName| {
            **name == header::CONTENT_TYPE
                || **name == header::X_CONTENT_TYPE_OPTIONS
                || name.as_str().starts_with("esc-")
        };
        let headers: Vec<_> = answer
            .headers()
            .iter()
            .filter(|(name, _)| is_told(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let mut response = Body::from_stream(answer.bytes_stream()).into_response();
        *response.status_mut() = status;
        response.headers_mut().extend(headers);
        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
        Ok(response)
    }

    async fn find(&self, by: &Principal, artifact: &str, version: Option<u32>) -> Result<ArtifactRow, Problem> {
        let artifact_id: ArtifactId = id(artifact, "unknown_artifact")?;
        self.reads.artifact(&by.tenant, artifact_id, version).await?.ok_or_else(|| {
            let version = version.map(|version| format!(" in version {version}")).unwrap_or_default();
            Problem::not_found("unknown_artifact", format!("there is no artifact `{artifact_id}`{version}"))
                .remedy("a run's snapshot lists its artifacts")
        })
    }

    async fn fetch(&self, row: &ArtifactRow) -> Result<reqwest::Response, Problem> {
        let (artifact, version) = (row.artifact.artifact_id, row.artifact.version);
        let url = format!("{}/internal/artifacts/{artifact}?tenant={}&version={version}", self.url, row.tenant);
        let answer =
            self.http.get(url).bearer_auth(self.token.expose()).send().await.map_err(|error| unreachable(&error))?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::NOT_FOUND => {
                Err(Problem::not_found("content_gone", "the artifact is known, its content is gone"))
            }
            status if status.is_server_error() => {
                tracing::warn!(%status, "the artifact service failed");
                Err(Problem::unavailable("artifact_unavailable", "the artifact service failed"))
            }
            status => {
                tracing::error!(%status, "the artifact service refuses us: is `internal_token` the same on both sides?");
                Err(Problem::unavailable("artifact_unavailable", "the artifact service refuses to answer"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_forge_a_header() {
        assert_eq!(disposition("a b\"\r\n.txt"), "attachment; filename*=UTF-8''a%20b%22%0D%0A.txt");
    }
}
