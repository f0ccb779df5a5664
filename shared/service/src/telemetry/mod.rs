//! Traces over OTLP, log lines on stderr.

mod context;
mod export;
pub mod genai;
mod trace;

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::EnvFilter;

pub(crate) use context::Hex;
pub use context::{NotATraceparent, TraceContext};
pub use trace::{KeyValue, Link, Parent, Span, SpanKind, SpanSpec, Tracer};

use crate::config::{Common, LogFormat};

/// Why there are no traces.
#[derive(Debug, thiserror::Error)]
#[error("can't export traces to {endpoint}: {source}")]
pub struct TelemetryError {
    endpoint: String,
    source: opentelemetry_otlp::ExporterBuildError,
}

/// The telemetry of one service, as long as it is held; [`Telemetry::shutdown`] sends what is left.
#[derive(Debug)]
pub struct Telemetry {
    tracer: Tracer,
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts the telemetry of `service`. Needs a Tokio runtime if there is a collector.
    ///
    /// A collector that is down is no error: it is warned about once, and nothing ever waits for it.
    pub fn init(service: &str, common: &Common) -> Result<Self, TelemetryError> {
        init_logs(common);
        let endpoint = &common.otlp_endpoint;
        if endpoint.is_empty() {
            return Ok(Self { tracer: Tracer::disabled(service), provider: None });
        }
        let instance = uuid::Uuid::now_v7().to_string();
        let timeout = common.patience.unwrap_or(export::EXPORT_TIMEOUT);
        let provider = export::provider(service, &instance, endpoint, timeout)
            .map_err(|source| TelemetryError { endpoint: endpoint.clone(), source })?;
        Ok(Self { tracer: Tracer::new(service, Some(provider.tracer("escapement"))), provider: Some(provider) })
    }

    /// The handle that makes spans.
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Sends the spans that have ended, and goes on.
    pub async fn flush(&self) {
        self.blocking(|provider| provider.force_flush()).await;
    }

    /// Sends the spans that have ended, for `timeout` at the longest. Spans that end later are lost.
    pub async fn shutdown(self, timeout: Duration) {
        self.blocking(move |provider| provider.shutdown_with_timeout(timeout)).await;
    }

    /// The SDK waits by blocking. That a flush failed was said by the exporter.
    async fn blocking(
        &self,
        f: impl FnOnce(SdkTracerProvider) -> opentelemetry_sdk::error::OTelSdkResult + Send + 'static,
    ) {
        if let Some(provider) = self.provider.clone() {
            let _ = tokio::task::spawn_blocking(move || f(provider)).await;
        }
    }
}

/// Sends log lines to stderr, in the format and from the level of the first service of the process that asks.
pub fn init_logs(common: &Common) {
    let terminal = std::io::stderr().is_terminal();
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter(&common.log)).with_writer(std::io::stderr).with_ansi(terminal);
    // An error says that a subscriber is there already: another service of this process, or the test's own.
    let _ = match common.log_format {
        LogFormat::Auto if terminal => builder.try_init(),
        LogFormat::Text => builder.try_init(),
        LogFormat::Auto | LogFormat::Json => {
            builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
        }
    };
}

/// The OpenTelemetry SDK repeats itself on every export: the exporter says the same once. Who wants it names it.
fn filter(log: &str) -> EnvFilter {
    let quiet = if log.contains("opentelemetry") { "" } else { ",opentelemetry=off" };
    EnvFilter::try_new(format!("{log}{quiet}")).unwrap_or_else(|_| EnvFilter::new("info,opentelemetry=off"))
}
