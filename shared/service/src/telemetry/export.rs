//! The way of spans to the collector.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_otlp::{
    ExporterBuildError, RetryPolicy, SpanExporter as OtlpExporter, WithExportConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData, SpanExporter,
};

use super::trace::GivenIds;

/// A collector that doesn't answer in this time is taken for down, if nothing else is said.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Spans kept while the collector is slow or down; more are dropped, never waited for.
const QUEUE: usize = 16_384;
/// Spans sent in one request.
const BATCH: usize = 1_024;
/// Longest time between the end of a span and its export.
const DELAY: Duration = Duration::from_millis(500);

/// A provider that exports the spans of `service` to `endpoint` in the background, on a thread of its own. What is not
/// taken there within `timeout` is lost.
pub(super) fn provider(
    service: &str,
    instance: &str,
    endpoint: &str,
    timeout: Duration,
) -> Result<SdkTracerProvider, ExporterBuildError> {
    let exporter = OtlpExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(timeout)
        .with_retry_policy(RetryPolicy::recommended().with_max_retries(1))
        .build()?;
    let exporter = Announced {
        exporter,
        service: service.to_owned(),
        endpoint: endpoint.to_owned(),
        down: AtomicBool::new(false),
    };
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(DELAY)
        .build();
    let resource = Resource::builder()
        .with_service_name(service.to_owned())
        .with_attribute(opentelemetry::KeyValue::new("service.namespace", "escapement"))
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(opentelemetry::KeyValue::new("service.instance.id", instance.to_owned()))
        .build();
    Ok(SdkTracerProvider::builder()
        // Only spans of sampled traces get here: the decision was made with the run.
        .with_sampler(Sampler::AlwaysOn)
        .with_id_generator(GivenIds::default())
        .with_resource(resource)
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
        .build())
}

/// An exporter that says once that the collector is gone, and once that it is back.
#[derive(Debug)]
struct Announced<E> {
    exporter: E,
    service: String,
    endpoint: String,
    down: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Announced<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (service, endpoint) = (&self.service, &self.endpoint);
        let result = self.exporter.export(batch).await;
        let was_down = self.down.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_down => {
                tracing::warn!(service, endpoint, %error, "can't export traces: spans are dropped until the collector answers");
            }
            Ok(()) if was_down => tracing::info!(service, endpoint, "traces are exported again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;

    /// Up or down, as it is told.
    #[derive(Debug)]
    struct Switch(AtomicBool);

    impl SpanExporter for Switch {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            if self.0.load(Ordering::SeqCst) { Ok(()) } else { Err(OTelSdkError::InternalFailure("refused".into())) }
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_collector_that_goes_and_comes_is_said_once_each() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let exporter = Announced {
            exporter: Switch(AtomicBool::new(false)),
            service: "planner".into(),
            endpoint: "http://127.0.0.1:4317".into(),
            down: AtomicBool::new(false),
        };
        tracing::subscriber::with_default(subscriber, || {
            for up in [false, false, false, true, true, false] {
                exporter.exporter.0.store(up, Ordering::SeqCst);
                assert_eq!(futures::executor::block_on(exporter.export(Vec::new())).is_ok(), up);
            }
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("can't export traces").count(), 2, "{text}");
        assert_eq!(text.matches("exported again").count(), 1, "{text}");
        assert!(text.contains("refused") && text.contains("127.0.0.1:4317"), "{text}");
    }
}
