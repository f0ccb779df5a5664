//! `POST /v1/logs` and `POST /v1/metrics`: OTLP over HTTP, as any OpenTelemetry Collector, Vector or Fluent Bit sends it.

use std::io::Read as _;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use flate2::read::GzDecoder;
use prost::Message as _;
use serde_json::json;
use sha2::{Digest, Sha256};
use signals::{DecodeError, Decoded, Encoding, Kind};

use crate::auth::{Principal, Publisher};
use crate::body::RawBody;
use crate::logs::{Busy, Logs};
use crate::problem::Problem;

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";
/// How much larger than the body what it unpacks to may be.
const UNPACKED: usize = 8;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct LogsApi {
    pub logs: Logs,
    /// Most bytes of a body.
    pub limit: usize,
}

pub(crate) fn router(api: LogsApi) -> Router {
    let limit = DefaultBodyLimit::max(api.limit);
    Router::new().route("/logs", post(logs)).route("/metrics", post(metrics)).layer(limit).with_state(api)
}

/// Hand in log records
///
/// OTLP over HTTP: an `ExportLogsServiceRequest` as protobuf or JSON, plain or `gzip`. The resource attribute `service.name` says
/// which service a record is of. Records that can't be taken are counted in `partialSuccess`. `429` and `503` mean: the same
/// again after `Retry-After`; nothing of it was taken, or what was is not taken twice.
#[utoipa::path(
    post, path = "/v1/logs", tag = "events",
    request_body(content = Object, content_type = "application/json", description = "Or `application/x-protobuf`"),
    responses(
        (status = 200, description = "Taken, but for what `partialSuccess` counts", body = Object),
        (status = 429, description = "More than this service may say, or than is read"),
    ),
)]
pub(crate) async fn logs(
    Publisher(principal): Publisher,
    State(api): State<LogsApi>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Response {
    take(&api, Kind::Logs, &principal, &headers, body).await
}

/// Hand in metrics
///
/// OTLP over HTTP, as for logs. Gauges, sums and histograms become records with the number under the metric's name, for rules
/// that watch a field.
#[utoipa::path(
    post, path = "/v1/metrics", tag = "events",
    request_body(content = Object, content_type = "application/json", description = "Or `application/x-protobuf`"),
    responses(
        (status = 200, description = "Taken, but for what `partialSuccess` counts", body = Object),
        (status = 429, description = "More than this service may say, or than is read"),
    ),
)]
pub(crate) async fn metrics(
    Publisher(principal): Publisher,
    State(api): State<LogsApi>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Response {
    take(&api, Kind::Metrics, &principal, &headers, body).await
}

async fn take(api: &LogsApi, kind: Kind, principal: &Principal, headers: &HeaderMap, body: Bytes) -> Response {
    let encoding = match encoding(headers) {
        Ok(encoding) => encoding,
        Err(problem) => return problem.into_response(),
    };
    match accept(api, kind, encoding, principal, headers, body).await {
        Ok(decoded) => accepted(kind, encoding, &decoded),
        Err(refused) => refused.answer(encoding),
    }
}

async fn accept(
    api: &LogsApi,
    kind: Kind,
    encoding: Encoding,
    principal: &Principal,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Decoded, Refused> {
    // The same body again is the same records again: the bus takes each of them once.
    let identity = hex::encode(&Sha256::digest(&body)[..16]);
    let packed = is_packed(headers)?;
    let most = api.limit.saturating_mul(UNPACKED);
    // Reading some megabytes takes longer than other requests should wait for.
    let reading = tokio::task::spawn_blocking(move || read(kind, encoding, packed, &body, most));
    let mut decoded = reading.await.map_err(|error| Refused::from(Problem::internal(&error)))??;
    let records = std::mem::take(&mut decoded.records);
    api.logs.publish(&principal.tenant, records, &identity).await?;
    Ok(decoded)
}

fn read(kind: Kind, encoding: Encoding, packed: bool, body: &[u8], most: usize) -> Result<Decoded, Refused> {
    if !packed {
        return Ok(signals::decode(kind, encoding, body)?);
    }
    let mut plain = Vec::new();
    let room = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    GzDecoder::new(body).take(room).read_to_end(&mut plain).map_err(|error| {
        Problem::bad_request("unreadable_body", format!("the body is no gzip: {error}")).field("Content-Encoding")
    })?;
    if plain.len() > most {
        let words = format!("the body unpacks to more than the {most} bytes that are taken");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", words)
            .remedy("send smaller batches")
            .into());
    }
    Ok(signals::decode(kind, encoding, &plain)?)
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(PROTOBUF) {
        Ok(Encoding::Protobuf)
    } else if essence.eq_ignore_ascii_case(JSON) {
        Ok(Encoding::Json)
    } else {
        let words = format!("`{essence}` is no encoding of OTLP");
        Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", words)
            .field("Content-Type")
            .remedy(format!("send `{PROTOBUF}` or `{JSON}`")))
    }
}

fn is_packed(headers: &HeaderMap) -> Result<bool, Problem> {
    let packed = headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("identity");
    match packed.trim().to_ascii_lowercase().as_str() {
        "gzip" => Ok(true),
        "identity" | "" => Ok(false),
        other => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            format!("`{other}` can't be unpacked here"),
        )
        .field("Content-Encoding")
        .remedy("send `gzip`, or plain")),
    }
}

/// `ExportLogsServiceResponse` or its like of metrics: they have the same shape.
#[derive(Clone, PartialEq, prost::Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// `google.rpc.Status`, which is how OTLP tells failures.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

fn accepted(kind: Kind, encoding: Encoding, decoded: &Decoded) -> Response {
    let words = decoded.why.clone().unwrap_or_default();
    match encoding {
        Encoding::Protobuf => {
            let rejected = i64::try_from(decoded.rejected).unwrap_or(i64::MAX);
            let partial_success = (rejected > 0).then_some(PartialSuccess { rejected, error_message: words });
            ([(header::CONTENT_TYPE, PROTOBUF)], ExportResponse { partial_success }.encode_to_vec()).into_response()
        }
        Encoding::Json => {
            let rejected = if kind == Kind::Logs { "rejectedLogRecords" } else { "rejectedDataPoints" };
            // 64-bit numbers are text in OTLP JSON.
            let answer = match decoded.rejected {
                0 => json!({}),
                count => json!({ "partialSuccess": { rejected: count.to_string(), "errorMessage": words } }),
            };
            axum::Json(answer).into_response()
        }
    }
}

/// Why records were not taken.
struct Refused(Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<DecodeError> for Refused {
    fn from(error: DecodeError) -> Self {
        let code = if matches!(error, DecodeError::NotOtlp(_)) { "invalid_otlp" } else { "unreadable_body" };
        Self(Problem::bad_request(code, error).remedy("send an OTLP export request, encoded as `Content-Type` says"))
    }
}

impl From<Busy> for Refused {
    fn from(busy: Busy) -> Self {
        let (status, code, after) = match &busy {
            Busy::TooFast { after, .. } => (StatusCode::TOO_MANY_REQUESTS, "too_fast", *after),
            Busy::Behind { after } => (StatusCode::TOO_MANY_REQUESTS, "behind", *after),
            Busy::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "bus_unavailable", Duration::from_secs(2)),
        };
        let seconds = HeaderValue::from(after.as_secs().max(1));
        Self(
            Problem::new(status, code, busy)
                .remedy("send the same again after `Retry-After`")
                .header(header::RETRY_AFTER, seconds),
        )
    }
}

impl Refused {
    /// As OTLP has it: a `Status` in the encoding of the request, which in JSON is a problem with a `message`.
    fn answer(self, encoding: Encoding) -> Response {
        let problem = self.0;
        let message = problem.detail().to_owned();
        match encoding {
            Encoding::Json => problem.with("message", message).into_response(),
            Encoding::Protobuf => {
                let mut response = problem.into_response();
                let status = Status { code: rpc_code(response.status()), message };
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
                response.headers_mut().remove(header::CONTENT_LENGTH);
                *response.body_mut() = status.encode_to_vec().into();
                response
            }
        }
    }
}

/// The gRPC code that stands for an HTTP status.
fn rpc_code(status: StatusCode) -> i32 {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE => 3,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        _ => 13,
    }
}
