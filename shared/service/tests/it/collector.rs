//! An OTLP collector that keeps what it gets.

use std::collections::HashMap;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

pub struct Collector {
    pub endpoint: String,
    received: mpsc::UnboundedReceiver<Received>,
    _server: AbortOnDropHandle<()>,
}

/// A span and the resource that it came from.
#[derive(Debug)]
pub struct Received {
    pub resource: HashMap<String, String>,
    pub span: Span,
}

impl Received {
    /// An attribute of the span.
    pub fn attribute(&self, key: &str) -> Option<String> {
        texts(&self.span.attributes).remove(key)
    }
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, received) = mpsc::unbounded_channel();
        let server = Server::builder()
            .add_service(TraceServiceServer::new(Receiver(sender)))
            .serve_with_incoming(TcpIncoming::from(listener));
        let server = tokio::spawn(async move { server.await.unwrap() });
        Self { endpoint, received, _server: AbortOnDropHandle::new(server) }
    }

    /// The next `count` spans, by name.
    pub async fn spans(&mut self, count: usize) -> HashMap<String, Received> {
        let mut spans = HashMap::new();
        while spans.len() < count {
            let next = tokio::time::timeout(Duration::from_secs(60), self.received.recv()).await;
            let next = next.unwrap_or_else(|_| panic!("{count} spans, not only {spans:?}")).unwrap();
            spans.insert(next.span.name.clone(), next);
        }
        spans
    }

    /// What has come and was not asked for.
    pub fn rest(&mut self) -> Vec<Received> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

struct Receiver(mpsc::UnboundedSender<Received>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for group in request.into_inner().resource_spans {
            let resource = texts(&group.resource.unwrap_or_default().attributes);
            for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let _ = self.0.send(Received { resource: resource.clone(), span });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn texts(attributes: &[KeyValue]) -> HashMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    };
    attributes.iter().filter_map(|attribute| Some((attribute.key.clone(), text(attribute)?))).collect()
}
