//! Keeps what turns write, at the artifact service.

use std::time::Duration;

use bus::retry;
use kernel::{RunState, Trust, call::ArtifactRef};
use service::Secret;
use tokio_util::bytes::Bytes;

use crate::verbs::Draft;

/// For one request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Most bytes that are read of an artifact that a criterion is about.
const CONTENT_BYTES: u64 = 4 * 1024 * 1024;
/// How long a store goes on being tried.
const KEEP_TRYING: Duration = Duration::from_secs(15);

/// The artifact service, as the planner sees it.
#[derive(Clone, Debug)]
pub struct Artifacts {
    client: reqwest::Client,
    url: String,
    token: Secret<String>,
}

/// An artifact that could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// There is no HTTP client.
    #[error("no HTTP client for the artifact service")]
    Client(#[source] reqwest::Error),
    /// The service did not answer.
    #[error("the artifact service does not answer")]
    Unreachable(#[source] reqwest::Error),
    /// The service refused.
    #[error("the artifact service answered {status}: {detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What it said.
        detail: String,
    },
}

impl ArtifactError {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Client(_) => false,
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..=599),
        }
    }
}

impl Artifacts {
    /// The service at `url`.
    ///
    /// # Errors
    /// When there is no HTTP client.
    pub fn new(url: &str, token: Secret<String>) -> Result<Self, ArtifactError> {
        let client = reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build().map_err(ArtifactError::Client)?;
        Ok(Self { client, url: url.trim_end_matches('/').to_owned(), token })
    }

    /// Stores a draft as the next version of its name.
    ///
    /// # Errors
    /// When the service refuses, or does not answer for a while.
    pub async fn store(&self, state: &RunState, draft: &Draft, trust: Trust) -> Result<ArtifactRef, ArtifactError> {
        let policy = retry::Policy::exponential(Duration::from_millis(100), Duration::from_secs(2)).within(KEEP_TRYING);
        retry::when(policy, ArtifactError::is_transient, || self.put(state, draft, trust)).await
    }

    /// The content of a version of an artifact, if it is not larger than what a check reads.
    ///
    /// # Errors
    /// When the service refuses, or does not answer for a while.
    pub async fn content(&self, state: &RunState, artifact: &ArtifactRef) -> Result<Bytes, ArtifactError> {
        if artifact.bytes > CONTENT_BYTES {
            let detail = format!("{} bytes are more than the {CONTENT_BYTES} that are read", artifact.bytes);
            return Err(ArtifactError::Refused { status: 413, detail });
        }
        let policy = retry::Policy::exponential(Duration::from_millis(100), Duration::from_secs(2)).within(KEEP_TRYING);
        retry::when(policy, ArtifactError::is_transient, || self.get(state, artifact)).await
    }

    async fn get(&self, state: &RunState, artifact: &ArtifactRef) -> Result<Bytes, ArtifactError> {
        let version = artifact.version.to_string();
        let query = [("tenant", state.tenant.as_str()), ("version", version.as_str())];
        let url = format!("{}/internal/artifacts/{}", self.url, artifact.artifact_id);
        let url = reqwest::Url::parse_with_params(&url, query);
        let url = url.map_err(|error| ArtifactError::Refused { status: 400, detail: error.to_string() })?;
        let response = self.client.get(url).bearer_auth(self.token.expose()).send().await;
        let response = response.map_err(ArtifactError::Unreachable)?;
        let status = response.status();
        if !status.is_success() {
            let detail = kernel::excerpt(&response.text().await.unwrap_or_default(), 300);
            return Err(ArtifactError::Refused { status: status.as_u16(), detail });
        }
        response.bytes().await.map_err(ArtifactError::Unreachable)
    }

    async fn put(&self, state: &RunState, draft: &Draft, trust: Trust) -> Result<ArtifactRef, ArtifactError> {
        let run = state.run_id.to_string();
        let query = [
            ("tenant", state.tenant.as_str()),
            ("run_id", run.as_str()),
            ("name", draft.name.as_str()),
            ("media_type", draft.media_type.as_str()),
            ("trust", trust.as_str()),
        ];
        let url = reqwest::Url::parse_with_params(&format!("{}/internal/artifacts", self.url), query);
        let url = url.map_err(|error| ArtifactError::Refused { status: 400, detail: error.to_string() })?;
        let request = self.client.put(url).bearer_auth(self.token.expose()).body(draft.content.clone());
        let response = request.send().await.map_err(ArtifactError::Unreachable)?;
        let status = response.status();
        if !status.is_success() {
            let detail = kernel::excerpt(&response.text().await.unwrap_or_default(), 300);
            return Err(ArtifactError::Refused { status: status.as_u16(), detail });
        }
        response.json().await.map_err(ArtifactError::Unreachable)
    }
}
