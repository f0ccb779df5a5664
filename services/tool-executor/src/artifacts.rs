//! The artifact service, as far as results need it.

use std::time::Duration;

use kernel::call::ArtifactRef;
use kernel::{ArtifactId, RunId, TenantId, Trust};
use reqwest::{StatusCode, Url};
use service::Secret;

/// How long storing or reading one content may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Stores and reads content. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ArtifactClient {
    http: reqwest::Client,
    base: Url,
    token: Secret<String>,
}

/// The artifact service did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArtifactError {
    /// It is not there, or not this tenant's.
    #[error("there is no such artifact")]
    Missing,
    /// It answered with an error.
    #[error("the artifact service answered {0}")]
    Status(StatusCode),
    /// It did not answer.
    #[error("the artifact service does not answer")]
    Unreachable(#[from] reqwest::Error),
    /// The content is more than is read.
    #[error("the artifact has more than {0} bytes")]
    TooLarge(usize),
}

/// Content to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewArtifact<'a> {
    pub tenant: &'a TenantId,
    pub run: RunId,
    pub name: &'a str,
    pub media_type: &'a str,
    pub trust: Trust,
    /// The span that stores it.
    pub traceparent: &'a str,
}

impl ArtifactClient {
    /// For the service at `base`.
    pub fn new(base: Url, token: Secret<String>) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { http, base, token })
    }

    /// Stores content under a name of its run.
    pub async fn put(&self, new: NewArtifact<'_>, content: Vec<u8>) -> Result<ArtifactRef, ArtifactError> {
        let mut url = self.url("internal/artifacts");
        url.query_pairs_mut()
            .append_pair("tenant", new.tenant.as_str())
            .append_pair("run_id", &new.run.to_string())
            .append_pair("name", new.name)
            .append_pair("media_type", new.media_type)
            .append_pair("trust", new.trust.as_str());
        let request = self.http.put(url).bearer_auth(self.token.expose()).header("traceparent", new.traceparent);
        let answer = request.body(content).send().await?;
        Ok(checked(answer)?.json().await?)
    }

    /// Reads at most `cap` bytes of an artifact of this tenant.
    pub async fn get(
        &self,
        tenant: &TenantId,
        id: ArtifactId,
        version: Option<u32>,
        cap: usize,
    ) -> Result<(String, Vec<u8>), ArtifactError> {
        let mut url = self.url(&format!("internal/artifacts/{id}"));
        url.query_pairs_mut().append_pair("tenant", tenant.as_str());
        if let Some(version) = version {
            url.query_pairs_mut().append_pair("version", &version.to_string());
        }
        self.read(url, cap).await
    }

    /// Reads at most `cap` bytes of raw lines of this tenant.
    pub async fn signals(
        &self,
        tenant: &TenantId,
        path: &str,
        wanted: &[(&str, String)],
        cap: usize,
    ) -> Result<(String, Vec<u8>), ArtifactError> {
        let mut url = self.url(path);
        url.query_pairs_mut().append_pair("tenant", tenant.as_str()).extend_pairs(wanted);
        self.read(url, cap).await
    }

    async fn read(&self, url: Url, cap: usize) -> Result<(String, Vec<u8>), ArtifactError> {
        let mut answer = checked(self.http.get(url).bearer_auth(self.token.expose()).send().await?)?;
        let media_type = answer.headers().get("content-type").and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_owned();
        let mut content = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            content.extend_from_slice(&chunk);
            if content.len() > cap {
                return Err(ArtifactError::TooLarge(cap));
            }
        }
        Ok((media_type, content))
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{path}", self.base.path().trim_end_matches('/')));
        url
    }
}

fn checked(answer: reqwest::Response) -> Result<reqwest::Response, ArtifactError> {
    match answer.status() {
        status if status.is_success() => Ok(answer),
        StatusCode::NOT_FOUND => Err(ArtifactError::Missing),
        status => Err(ArtifactError::Status(status)),
    }
}
