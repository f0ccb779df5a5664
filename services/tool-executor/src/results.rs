//! Making results fit for the log and for a model: bounded, clean, without secrets, with their trust.

use std::time::Duration;

use kernel::call::{ArtifactRef, CallFailure, CallResult};
use kernel::{Block, CallId, RunId, TenantId, excerpt};
use serde_json::Value;

use crate::artifacts::{ArtifactClient, NewArtifact};
use crate::outcome::{Content, ToolError};
use crate::secrets::Secrets;

/// Results up to this many bytes are kept in the log as they are.
pub(crate) const INLINE_BYTES: usize = 16 * 1024;
/// What is shown of larger ones, head and tail.
const EXCERPT_BYTES: usize = 8 * 1024;
/// What is shown of an error that came from outside.
const ERROR_BYTES: usize = 4 * 1024;

/// Longer media types are not worth keeping.
const MAX_MEDIA_TYPE: usize = 200;

/// Normalises results. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    artifacts: ArtifactClient,
    secrets: Secrets,
}

/// Whose result it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub tenant: &'a TenantId,
    pub run: RunId,
    pub call: CallId,
    pub tool: &'a str,
    /// The span that it came in.
    pub traceparent: &'a str,
}

impl Origin<'_> {
    fn source(&self) -> String {
        format!("tool:{}/{}", self.tool, self.call)
    }
}

impl Results {
    /// Keeps large content at `artifacts`, and shows none of `secrets`.
    pub fn new(artifacts: ArtifactClient, secrets: Secrets) -> Self {
        Self { artifacts, secrets }
    }

    /// The result as it is recorded.
    pub async fn complete(&self, origin: Origin<'_>, content: Content, took: Duration) -> CallResult {
        let duration_ms = millis(took);
        let bytes = self.secrets.redact_bytes(content.bytes);
        let is_text = is_text(&content.media_type, &bytes);
        let more = if content.truncated { "\n[there was more than is read]" } else { "" };
        let head = content.head.map(|head| format!("{head}\n\n")).unwrap_or_default();
        let trust = content.trust;
        let block = |text: String| Block::new(clean(text), trust, origin.source());
        if is_text && bytes.len() <= INLINE_BYTES {
            let text = format!("{head}{}{more}", String::from_utf8_lossy(&bytes));
            let value = content.value.map(|value| self.clean_value(value));
            return CallResult { block: block(text), value, artifact: None, duration_ms };
        }
        let length = bytes.len();
        let shown = if is_text { excerpt(&String::from_utf8_lossy(&bytes), EXCERPT_BYTES) } else { String::new() };
        let artifact = self.keep(origin, &content.media_type, is_text, trust, bytes).await;
        let text =
            format!("{head}{}{more}\n{shown}", describe(length, &content.media_type, is_text, artifact.as_ref()));
        CallResult { block: block(text.trim_end().to_owned()), value: None, artifact, duration_ms }
    }

    /// The failure as it is recorded.
    pub fn fail(&self, origin: Origin<'_>, error: &ToolError, took: Duration) -> CallFailure {
        let text = excerpt(&self.secrets.redact(&error.message), ERROR_BYTES);
        let block = Block::new(clean(text), error.trust, origin.source());
        CallFailure { block, code: error.code.to_owned(), duration_ms: millis(took) }
    }

    /// Text from outside as it may be shown: bounded, clean, without secrets.
    pub fn shown(&self, bytes: &[u8], most: usize) -> String {
        let text = self.secrets.redact(&String::from_utf8_lossy(bytes)).into_owned();
        clean(excerpt(&text, most))
    }

    /// The words of an error as they may be shown.
    pub fn redacted(&self, words: &str) -> String {
        clean(excerpt(&self.secrets.redact(words), ERROR_BYTES)).replace(['\r', '\n'], " ")
    }

    async fn keep(
        &self,
        origin: Origin<'_>,
        media_type: &str,
        is_text: bool,
        trust: kernel::Trust,
        bytes: Vec<u8>,
    ) -> Option<ArtifactRef> {
        let sound = media_type.len() <= MAX_MEDIA_TYPE && media_type.bytes().all(|byte| (32..127).contains(&byte));
        let media_type = match media_type {
            given if sound && !given.is_empty() => given,
            _ if is_text => "text/plain",
            _ => "application/octet-stream",
        };
        let name = format!("{}-{}", origin.tool, origin.call);
        let new = NewArtifact {
            tenant: origin.tenant,
            run: origin.run,
            name: &name,
            media_type,
            trust,
            traceparent: origin.traceparent,
        };
        match self.artifacts.put(new, bytes).await {
            Ok(artifact) => Some(artifact),
            Err(error) => {
                tracing::warn!(run_id = %origin.run, call = %origin.call, %error, "a large result could not be kept");
                None
            }
        }
    }

    /// A value as it may be shown: without secrets.
    pub fn visible(&self, value: Value) -> Value {
        self.clean_value(value)
    }

    fn clean_value(&self, mut value: Value) -> Value {
        bus::clean_nul(&mut value);
        self.secrets.redact_value(&mut value);
        value
    }
}

fn describe(length: usize, media_type: &str, is_text: bool, artifact: Option<&ArtifactRef>) -> String {
    let kind = match (media_type, is_text) {
        ("", true) => "of text".to_owned(),
        ("", false) => "of binary content".to_owned(),
        (media_type, _) => format!("of {media_type}"),
    };
    match artifact {
        Some(artifact) => {
            format!(
                "[{length} bytes {kind}, kept whole as artifact {} version {}]",
                artifact.artifact_id, artifact.version
            )
        }
        None => {
            format!("[{length} bytes {kind}; the artifact service could not be reached, so only this excerpt is left]")
        }
    }
}

/// What Postgres and terminals can't take is replaced.
fn clean(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{FFFD}") } else { text }
}

/// By its declared type; by itself if none was declared.
fn is_text(media_type: &str, bytes: &[u8]) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "" => std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')),
        "application/json" | "application/xml" | "application/javascript" | "application/x-ndjson" => true,
        "application/yaml" | "application/toml" | "application/x-www-form-urlencoded" | "application/sql" => true,
        kind => {
            kind.starts_with("text/") || kind.ends_with("+json") || kind.ends_with("+xml") || kind.ends_with("+yaml")
        }
    }
}

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kernel::Trust;
    use proptest::strategy::Strategy as _;
    use serde_json::json;

    use super::*;

    fn results() -> Results {
        // Nobody listens on the port of "discard".
        let artifacts = ArtifactClient::new("http://127.0.0.1:9/".parse().unwrap(), "".into()).unwrap();
        let env = [("ESC_SECRET_TOKEN".to_owned(), "s3cr3t-value".to_owned())];
        Results::new(artifacts, Secrets::new(env, None))
    }

    async fn complete(content: Content) -> CallResult {
        let tenant = TenantId::default();
        let origin =
            Origin { tenant: &tenant, run: RunId::mint(), call: CallId::mint(), tool: "http.get", traceparent: "" };
        results().complete(origin, content, Duration::from_millis(5)).await
    }

    #[tokio::test]
    async fn small_text_is_kept_clean_and_without_secrets() {
        let mut content = Content::outside(b"a\0b \xff s3cr3t-value".to_vec(), "text/plain");
        content.value = Some(json!({"token": "s3cr3t-value\0"}));
        let result = complete(content).await;
        assert_eq!(result.block.text, "a\u{FFFD}b \u{FFFD} ************");
        assert_eq!(result.block.trust, Trust::Untrusted);
        assert!(result.block.source.starts_with("tool:http.get/"));
        assert_eq!(result.value, Some(json!({"token": "[secret TOKEN]\u{FFFD}"})));
        assert_eq!(result.duration_ms, 5);
    }

    #[tokio::test]
    async fn large_text_is_an_excerpt_that_says_so() {
        let text = format!("first line\n{}last line", "x".repeat(40_000));
        let result = complete(Content::outside(text.into_bytes(), "")).await;
        assert!(result.block.text.len() < INLINE_BYTES);
        assert!(result.block.text.contains("first line") && result.block.text.ends_with("last line"));
        assert!(result.block.text.contains("40020 bytes of text; the artifact service could not be reached"));
        assert_eq!((result.value, result.artifact), (None, None));
    }

    #[tokio::test]
    async fn binary_content_is_not_shown() {
        let result = complete(Content::outside(vec![0, 159, 146, 150], "image/png")).await;
        assert_eq!(
            result.block.text,
            "[4 bytes of image/png; the artifact service could not be reached, so only this excerpt is left]"
        );
    }

    proptest::proptest! {
        #![proptest_config(cases())]

        /// Whatever a tool gives back: what is kept of it is bounded, can be stored, and holds no secret.
        #[test]
        fn results_of_any_kind_are_fit_for_the_log(
            parts in proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::prelude::any::<Vec<u8>>(),
                    proptest::strategy::Just(b"s3cr3t-value".to_vec()),
                    proptest::strategy::Just(b"\0\xed\xa0\x80\xf4\x90".to_vec()),
                    (proptest::prelude::any::<u8>(), 0..40_000_usize).prop_map(|(byte, times)| vec![byte; times]),
                ],
                0..4,
            ),
            media_type in proptest::prop_oneof![
                "\\PC{0,20}", "text/(plain|html)", "application/(x\\+)?json(; charset=\\PC{0,5})?", "[\u{0}-\u{ff}]{0,300}",
            ],
            value in proptest::option::of("\\PC{0,20}|s3cr3t-value"),
        ) {
            let mut content = Content::outside(parts.concat(), media_type.clone());
            content.value = value.map(|text| json!({text.clone(): [text, 1, null]}));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let result = runtime.block_on(complete(content));
            proptest::prop_assert!(result.block.text.len() <= INLINE_BYTES * 4 + EXCERPT_BYTES + media_type.len());
            let kept = serde_json::to_string(&result).unwrap();
            proptest::prop_assert!(!kept.contains("s3cr3t-value") && !kept.contains("\\u0000"), "{kept}");
            proptest::prop_assert_eq!(result.block.trust, Trust::Untrusted);
        }
    }

    /// Few by default, many with `ESC_TEST_LONG=1`.
    fn cases() -> proptest::test_runner::Config {
        let long = std::env::var_os("ESC_TEST_LONG").is_some_and(|value| value == "1");
        proptest::test_runner::Config::with_cases(if long { 20_000 } else { 100 })
    }
}
