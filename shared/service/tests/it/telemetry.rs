//! Spans as a collector sees them.

use std::time::{Duration, Instant, SystemTime};

use opentelemetry_proto::tonic::trace::v1::span::SpanKind as ReceivedKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use service::config::Common;
use service::telemetry::{SpanKind, genai};
use service::{Link, Parent, SpanSpec, Telemetry, TraceContext};

use crate::collector::Collector;

const RUN: [u8; 16] = *b"\x01\x93run-id-bytes\x00\x07";
const ROOT: [u8; 8] = *b"root-id!";

fn common(endpoint: &str) -> Common {
    Common { otlp_endpoint: endpoint.into(), ..Common::default() }
}

/// As [`common`], for a collector that answers, if only later: no span is lost because the machine is busy.
fn patient(endpoint: &str) -> Common {
    Common { patience: Some(Duration::from_secs(60)), ..common(endpoint) }
}

/// The root of the run's trace.
fn root(sampled: bool) -> TraceContext {
    TraceContext { trace_id: RUN, span_id: ROOT, sampled }
}

#[tokio::test]
async fn a_run_is_one_trace_through_several_services_of_one_process() {
    let mut collector = Collector::start().await;
    let common = patient(&collector.endpoint);
    let ingress = Telemetry::init("ingress", &common).unwrap();
    let planner = Telemetry::init("planner", &common).unwrap();

    let outside = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let root = ingress.tracer().span(
        SpanSpec::new("invoke_agent ci-keeper", Parent::Root(root(true)))
            .attribute(genai::OPERATION_NAME, genai::INVOKE_AGENT)
            .link(Link::to(outside))
            .start(start),
    );
    assert_eq!((root.trace_id(), root.span_id()), (RUN, ROOT));
    let traceparent = root.traceparent();
    root.end_at(start + Duration::from_millis(5));

    let spec = SpanSpec::new("chat scripted", Parent::Traceparent(&traceparent));
    let chat = planner.tracer().span(spec.kind(SpanKind::Client));
    chat.set_attribute(genai::USAGE_INPUT_TOKENS, 42_i64);
    chat.record_error("timeout", "no answer in 60 s");
    let parent = Parent::Span(chat.context());
    let tool = planner.tracer().span(SpanSpec::new("execute_tool shell.run", parent));
    let (chat_id, tool_id) = (chat.span_id(), tool.span_id());
    tool.end();
    chat.end();
    ingress.shutdown(Duration::from_secs(30)).await;
    planner.shutdown(Duration::from_secs(30)).await;

    let spans = collector.spans(3).await;
    let (root, chat, tool) =
        (&spans["invoke_agent ci-keeper"], &spans["chat scripted"], &spans["execute_tool shell.run"]);
    assert!(spans.values().all(|received| received.span.trace_id == RUN));
    assert_eq!(root.span.span_id, ROOT);
    assert!(root.span.parent_span_id.is_empty(), "the root has no parent");
    assert_eq!((chat.span.span_id.as_slice(), tool.span.span_id.as_slice()), (&chat_id[..], &tool_id[..]));
    assert_eq!(chat.span.parent_span_id, ROOT);
    assert_eq!(tool.span.parent_span_id, chat_id);
    assert_eq!(root.span.links[0].trace_id, outside.parse::<TraceContext>().unwrap().trace_id);
    assert_eq!(root.span.end_time_unix_nano - root.span.start_time_unix_nano, 5_000_000);
    assert_eq!(root.attribute(genai::OPERATION_NAME).as_deref(), Some("invoke_agent"));
    assert_eq!(chat.attribute(genai::USAGE_INPUT_TOKENS).as_deref(), Some("42"));
    assert_eq!(chat.attribute("error.type").as_deref(), Some("timeout"));
    assert_eq!(chat.span.kind(), ReceivedKind::Client);
    let status = chat.span.status.as_ref().unwrap();
    assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "no answer in 60 s"));
    for (received, service) in [(root, "ingress"), (chat, "planner"), (tool, "planner")] {
        assert_eq!(received.resource["service.name"], service);
        assert_eq!(received.resource["service.version"], env!("CARGO_PKG_VERSION"));
        assert!(!received.resource["service.instance.id"].is_empty());
    }
    assert_ne!(root.resource["service.instance.id"], chat.resource["service.instance.id"]);
}

#[tokio::test]
async fn the_sampling_decision_is_the_parents() {
    let mut collector = Collector::start().await;
    let telemetry = Telemetry::init("planner", &patient(&collector.endpoint)).unwrap();
    let tracer = telemetry.tracer();
    let root = Parent::Root(root(false));
    let dropped = tracer.span(SpanSpec::new("dropped", root));
    assert!(!dropped.is_recording());
    let traceparent = dropped.traceparent();
    assert!(traceparent.ends_with("-00"), "{traceparent}");
    let child = tracer.span(SpanSpec::new("its child", Parent::Traceparent(&traceparent)));
    assert_eq!(child.trace_id(), RUN, "ids are passed on all the same");
    assert_ne!(child.span_id(), ROOT);
    assert!(child.traceparent().ends_with("-00"));
    drop((dropped, child));
    tracer.span(SpanSpec::new("kept", Parent::Traceparent("nonsense"))).end();
    telemetry.flush().await;
    assert!(collector.spans(1).await.contains_key("kept"));
    telemetry.shutdown(Duration::from_secs(30)).await;
    assert!(collector.rest().is_empty());
}

#[tokio::test]
async fn without_a_collector_ids_are_made_all_the_same() {
    let telemetry = Telemetry::init("planner", &common("")).unwrap();
    let root = Parent::Root(root(true));
    let root = telemetry.tracer().span(SpanSpec::new("root", root));
    assert!(!root.is_recording());
    let text = "00-019372756e2d69642d62797465730007-726f6f742d696421-01";
    assert_eq!(root.traceparent(), text);
    telemetry.shutdown(Duration::ZERO).await;
}

/// Neither a collector that is gone nor one that accepts and never answers may hold anybody up.
#[tokio::test]
async fn a_dead_collector_holds_nobody_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for addr in [silent.local_addr().unwrap(), gone] {
        let telemetry = Telemetry::init("planner", &common(&format!("http://{addr}"))).unwrap();
        let begun = Instant::now();
        for _ in 0..50_000 {
            telemetry.tracer().span(SpanSpec::new("lost", Parent::New)).end();
        }
        // An export that waits for its answer waits ten seconds, and these fill a hundred of them.
        assert!(begun.elapsed() < Duration::from_secs(120), "{addr}: {:?}", begun.elapsed());
        let begun = Instant::now();
        telemetry.shutdown(Duration::from_millis(500)).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "{addr}: {:?}", begun.elapsed());
    }
}
