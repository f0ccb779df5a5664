//! Named, versioned content: in and out.
//!
//! Storing makes a version known to its caller only; it becomes the run's when the caller commits it. Until then it is
//! content that nobody names.

use std::ops::Range;

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use kernel::{ArtifactId, RunId, TenantId, Trust, call::ArtifactRef};
use serde::Deserialize;
use service::{Parent, SpanSpec, TraceContext, telemetry::genai};

use crate::{App, names, problem::Problem};

const ANY_TYPE: &str = "application/octet-stream";

/// What content is stored as.
#[derive(Debug, Deserialize)]
pub(crate) struct Put {
    #[serde(default)]
    tenant: TenantId,
    run_id: RunId,
    name: String,
    media_type: Option<String>,
    trust: Option<Trust>,
}

/// Which content is wanted.
#[derive(Debug, Deserialize)]
pub(crate) struct Get {
    #[serde(default)]
    tenant: TenantId,
    version: Option<u32>,
}

/// `PUT /internal/artifacts`: stores the body, and answers with the reference to commit.
pub(crate) async fn put(
    State(app): State<App>,
    query: Result<Query<Put>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let Query(put) = query.map_err(|error| Problem::bad("bad_query", error.body_text()))?;
    names::check_name(&put.name).map_err(|why| Problem::bad("bad_name", format!("`name`: {why}")))?;
    let media_type = put.media_type.as_deref().filter(|text| !text.is_empty()).unwrap_or(ANY_TYPE);
    names::check_media_type(media_type)
        .map_err(|why| Problem::bad("bad_media_type", format!("`media_type`: {why}")))?;
    let reads = app.engine.reads();
    let run = reads.run(&put.tenant, put.run_id).await?;
    let run = run.ok_or_else(|| Problem::missing("no_such_run", format!("there is no run {}", put.run_id)))?;

    let parent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    let root = Parent::Span(TraceContext::of_run(put.run_id, run.sampled));
    let spec = SpanSpec::new("store_artifact", parent.map_or(root, Parent::Traceparent))
        .run(put.run_id.0.into_bytes())
        .attribute(genai::RUN_ID, put.run_id.to_string())
        .attribute("escapement.artifact.name", put.name.clone());
    let span = app.tracer.span(spec);
    let stored = span.instrument(app.store.put(body.into_data_stream(), app.max_bytes)).await.inspect_err(|error| {
        span.record_error("not_stored", error);
    })?;
    span.set_attribute("escapement.artifact.bytes", i64::try_from(stored.bytes).unwrap_or(i64::MAX));
    span.end();

    let artifact_id = ArtifactId::derive(put.run_id, &format!("artifact/{}", put.name));
    let latest = reads.artifact(&put.tenant, artifact_id, None).await?;
    let artifact = ArtifactRef {
        artifact_id,
        version: latest.map_or(0, |latest| latest.artifact.version) + 1,
        name: put.name,
        digest: stored.digest,
        bytes: stored.bytes,
        media_type: media_type.to_owned(),
        // Whoever does not say where content comes from has it taken for outside content.
        trust: put.trust.unwrap_or(Trust::Untrusted),
    };
    metrics::counter!("artifact_stored_total").increment(1);
    metrics::counter!("artifact_stored_bytes_total").increment(artifact.bytes);
    Ok((StatusCode::CREATED, Json(artifact)).into_response())
}

/// `GET /internal/artifacts/{id}`: the content of a version, the latest one if none is named.
pub(crate) async fn get(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<Get>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id: ArtifactId = id.parse().map_err(|error: kernel::IdError| Problem::bad("bad_id", error.to_string()))?;
    let Query(wanted) = query.map_err(|error| Problem::bad("bad_query", error.body_text()))?;
    let row = app.engine.reads().artifact(&wanted.tenant, id, wanted.version).await?;
    let artifact =
        row.ok_or_else(|| Problem::missing("no_such_artifact", "there is no such artifact or version"))?.artifact;
    let etag = format!("\"{}\"", artifact.digest);
    let mut answer = Response::builder()
        .header(header::ETAG, &etag)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .header("Esc-Version", artifact.version)
        .header("Esc-Trust", artifact.trust.as_str());
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_NONE_MATCH)
        .is_some_and(|tags| tags == "*" || tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == etag))
    {
        return Ok(answer.status(StatusCode::NOT_MODIFIED).body(Body::empty()).unwrap_or_default());
    }
    let asked = text(header::RANGE).filter(|_| text(header::IF_RANGE).is_none_or(|tag| tag == etag));
    let range = match asked.map(|asked| byte_range(asked, artifact.bytes)) {
        None | Some(Asked::Whole) => None,
        Some(Asked::Part(range)) => Some(range),
        Some(Asked::Beyond) => {
            let answer = answer.status(StatusCode::RANGE_NOT_SATISFIABLE);
            let answer = answer.header(header::CONTENT_RANGE, format!("bytes */{}", artifact.bytes));
            return Ok(answer.body(Body::empty()).unwrap_or_default());
        }
    };
    if let Some(range) = &range {
        let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, artifact.bytes);
        answer = answer.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, shown);
    }
    let length = range.as_ref().map_or(artifact.bytes, |range| range.end - range.start);
    let answer = answer.header(header::CONTENT_LENGTH, length).header(header::CONTENT_TYPE, &artifact.media_type);
    let content = app.store.get(&artifact.digest, range).await?;
    metrics::counter!("artifact_read_bytes_total").increment(length);
    answer.body(Body::from_stream(content)).map_err(|error| {
        tracing::error!(%error, "an answer could not be made");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the log has the reason")
    })
}

/// What a `Range` header asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Everything: it is malformed, of another unit, or asks for several parts.
    Whole,
    Part(Range<u64>),
    /// Nothing that there is.
    Beyond,
}

fn byte_range(asked: &str, size: u64) -> Asked {
    let Some((from, to)) = asked.strip_prefix("bytes=").and_then(|spec| spec.trim().split_once('-')) else {
        return Asked::Whole;
    };
    let range = match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => from..to.saturating_add(1).min(size),
        (Ok(from), Err(_)) if to.is_empty() => from..size,
        (Err(_), Ok(last)) if from.is_empty() => size.saturating_sub(last)..size,
        _ => return Asked::Whole,
    };
    if range.is_empty() { Asked::Beyond } else { Asked::Part(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (asked, wanted) in [
            ("bytes=0-3", Asked::Part(0..4)),
            ("bytes=2-", Asked::Part(2..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-99", Asked::Part(0..10)),
            ("bytes=5-99", Asked::Part(5..10)),
            ("bytes=10-", Asked::Beyond),
            ("bytes=-0", Asked::Beyond),
            ("bytes=3-1", Asked::Whole),
            ("bytes=0-1,3-4", Asked::Whole),
            ("lines=1-2", Asked::Whole),
            ("bytes=x-y", Asked::Whole),
            ("bytes=0-18446744073709551615", Asked::Part(0..10)),
        ] {
            assert_eq!(byte_range(asked, 10), wanted, "{asked}");
        }
    }
}
