//! An OTLP receiver that keeps the spans.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value},
    trace::v1::ScopeSpans,
};
use tonic::{Request, Response, Status, transport::Server};

/// A span, as far as the tests look at it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub service: String,
    pub name: String,
    pub trace_id: Vec<u8>,
    pub span_id: Vec<u8>,
    pub parent: Vec<u8>,
    pub links: usize,
    pub attributes: Vec<String>,
    /// Those of them that are lists.
    pub lists: Vec<String>,
}

/// The receiver.
#[derive(Clone, Default)]
pub struct Receiver {
    spans: Arc<Mutex<Vec<Seen>>>,
    /// All that came, each with its service.
    batches: Arc<Mutex<Vec<(String, ScopeSpans)>>>,
}

impl Receiver {
    /// Listens on a free port.
    pub async fn start() -> (Self, SocketAddr) {
        let receiver = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = async_stream(listener);
        let server = Server::builder().add_service(TraceServiceServer::new(receiver.clone()));
        tokio::spawn(async move { server.serve_with_incoming(incoming).await });
        (receiver, address)
    }

    /// The spans of one trace.
    pub fn of(&self, trace_id: &[u8]) -> Vec<Seen> {
        self.spans.lock().unwrap().iter().filter(|span| span.trace_id == trace_id).cloned().collect()
    }
}

fn async_stream(
    listener: tokio::net::TcpListener,
) -> impl futures::Stream<Item = std::io::Result<tokio::net::TcpStream>> {
    futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = attributes.into_iter().find(|each| each.key == "service.name").and_then(|each| {
                match each.value?.value? {
                    any_value::Value::StringValue(name) => Some(name),
                    _ => None,
                }
            });
            let service = service.unwrap_or_default();
            let is_list = |each: &KeyValue| {
                matches!(each.value.as_ref().and_then(|it| it.value.as_ref()), Some(any_value::Value::ArrayValue(_)))
            };
            for scope in resource.scope_spans {
                let batch = (service.clone(), scope);
                let mut batches = self.batches.lock().unwrap();
                // Whoever does not hear of an export in time sends the same again.
                if batches.contains(&batch) {
                    continue;
                }
                let spans = batch.1.spans.iter().cloned().map(|span| Seen {
                    service: service.clone(),
                    name: span.name,
                    trace_id: span.trace_id,
                    span_id: span.span_id,
                    parent: span.parent_span_id,
                    links: span.links.len(),
                    lists: span.attributes.iter().filter(|each| is_list(each)).map(|each| each.key.clone()).collect(),
                    attributes: span.attributes.into_iter().map(|each| each.key).collect(),
                });
                self.spans.lock().unwrap().extend(spans);
                batches.push(batch);
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
