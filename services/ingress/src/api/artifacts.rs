//! `/v1/artifacts`: what runs have made. The content comes from the artifact service and only passes through here.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engine::{ArtifactRow, Engine, Reads};
use kernel::call::ArtifactRef;
use kernel::{ArtifactId, Cause, Command, RunId, Timestamp};
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use service::Secret;
use utoipa::{IntoParams, ToSchema};

use super::schema;
use crate::auth::{Principal, User, Viewer};
use crate::body::{Params, Segments, id};
use crate::problem::Problem;

/// How long the artifact service may take to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long it may be silent within a content.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// How long an upload may take, all of it.
const UPLOADED_WITHIN: Duration = Duration::from_secs(3600);

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ArtifactsApi {
    engine: Engine,
    reads: Reads,
    http: reqwest::Client,
    /// For contents on their way in: they take as long as whoever sends them.
    uploads: reqwest::Client,
    url: String,
    token: Secret<String>,
}

impl ArtifactsApi {
    /// Contents are had from the artifact service at `url`, which wants `token`.
    pub(crate) fn new(engine: &Engine, url: &str, token: Secret<String>) -> Result<Self, reqwest::Error> {
        let client = || reqwest::Client::builder().connect_timeout(CONNECT_WITHIN);
        let http = client().read_timeout(SILENT_FOR).build()?;
        // The time for reading begins with the request here, and not when it is sent: it would bound the whole upload.
        let uploads = client().timeout(UPLOADED_WITHIN).build()?;
        let (engine, reads) = (engine.clone(), engine.reads());
        Ok(Self { engine, reads, http, uploads, url: url.trim_end_matches('/').to_owned(), token })
    }
}

pub(crate) fn router(api: ArtifactsApi) -> Router {
    Router::new()
        .route("/artifacts", post(upload).layer(DefaultBodyLimit::disable()))
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

/// What is given to a run.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UploadParams {
    /// Which run.
    #[param(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Its name within the run: the same name again is the next version.
    name: String,
    /// What it is; `application/octet-stream` unless given.
    media_type: Option<String>,
}

/// Give a run something to use
///
/// The body is stored as it is, as an artifact of the run. It is untrusted, whoever gives it: what is in it may come from anywhere.
#[utoipa::path(
    post, path = "/v1/artifacts", tag = "artifacts", params(UploadParams),
    request_body(content = serde_json::Value, content_type = "application/octet-stream", description = "The content"),
    responses((status = 201, description = "It is stored, and the run knows of it", body = ArtifactView)),
)]
pub(crate) async fn upload(
    User(principal): User,
    State(api): State<ArtifactsApi>,
    Params(params): Params<UploadParams>,
    body: Body,
) -> Result<Response, Problem> {
    let run_id = params.run_id;
    if api.reads.run(&principal.tenant, run_id).await?.is_none() {
        return Err(Problem::unknown_run(run_id).field("run_id"));
    }
    let artifact = api.store(&principal, &params, body).await?;
    let cause = Cause { service: "ingress".into(), operator: Some(principal.name.clone()), ..Cause::default() };
    let key = format!("api/{}", uuid::Uuid::now_v7());
    let committed = api.engine.submit(run_id, Command::KeepArtifact(Box::new(artifact)), key, cause).await?;
    let unknown =
        || Problem::unavailable("artifact_unavailable", "the artifact is stored, and the run knows nothing of it");
    let artifact = committed.state.artifacts.back().cloned().ok_or_else(unknown)?;
    let created_at = committed.state.updated_at;
    let (id, version) = (artifact.artifact_id, artifact.version);
    let content_url = format!("/v1/artifacts/{id}/content?version={version}");
    let location = format!("/v1/artifacts/{id}?version={version}");
    let view = ArtifactView { artifact, run_id, created_at, content_url };
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(view)).into_response())
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

    /// Has the artifact service store a content as it comes.
    async fn store(&self, by: &Principal, params: &UploadParams, body: Body) -> Result<ArtifactRef, Problem> {
        let query = [
            ("tenant", by.tenant.to_string()),
            ("run_id", params.run_id.to_string()),
            ("name", params.name.clone()),
            ("media_type", params.media_type.clone().unwrap_or_default()),
        ];
        let url = reqwest::Url::parse(&format!("{}/internal/artifacts", self.url));
        let mut url = url.map_err(|error| Problem::internal(&error))?;
        url.query_pairs_mut().extend_pairs(query);
        let request = self.uploads.put(url).bearer_auth(self.token.expose());
        let sent = request.body(reqwest::Body::wrap_stream(body.into_data_stream())).send().await;
        let answer = sent.map_err(|error| unreachable(&error))?;
        match answer.status() {
            StatusCode::CREATED => answer.json().await.map_err(|error| unreachable(&error)),
            StatusCode::PAYLOAD_TOO_LARGE => {
                let words = "the content is larger than the artifact service takes";
                let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", words);
                Err(problem.remedy("keep it elsewhere, and give the run a link"))
            }
            StatusCode::BAD_REQUEST => {
                let told: serde_json::Value = answer.json().await.unwrap_or_default();
                let words = told.get("detail").and_then(serde_json::Value::as_str);
                let words = words.unwrap_or("the artifact can't be named so");
                Err(Problem::unprocessable("invalid_field", words).remedy("mend `name` or `media_type`"))
            }
            status => {
                tracing::warn!(%status, "the artifact service stores nothing: is `internal_token` the same on both sides?");
                Err(Problem::unavailable("artifact_unavailable", "the artifact service stores nothing at the moment"))
            }
        }
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
