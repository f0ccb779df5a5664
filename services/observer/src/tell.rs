//! Telling the log: one command a report, under the report's own key, tried until the log has answered.

use std::time::Duration;

use engine::{Engine, SubmitError};
use kernel::{Cause, Command, Rejection, command::ConcludeCall};
use service::{Parent, Span, SpanSpec, Tracer, telemetry::genai};

use crate::{call::Tracked, conclude::Report, meter};

/// Waits between two tries.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is in the log, or was before.
    Committed,
    /// Nobody wants to hear of the call any more.
    CallGone,
}

/// Tells. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Teller {
    engine: Engine,
    tracer: Tracer,
}

impl Teller {
    pub(crate) fn new(engine: Engine, tracer: Tracer) -> Self {
        Self { engine, tracer }
    }

    /// Tells a report. Returns when the log has answered, however long the stores are away: what was seen must not get lost.
    pub(crate) async fn tell(&self, call: &Tracked, report: Report) -> Told {
        let span = self.span(call, &report);
        let mut delays = bus::retry::exponential(RETRY_MIN, RETRY_MAX);
        let told = span.instrument(async {
            loop {
                let cause = Cause {
                    service: "observer".to_owned(),
                    seq: call.cause,
                    traceparent: Some(span.traceparent()),
                    ..Cause::default()
                };
                let (run, key) = (call.address.run_id, report.key().to_owned());
                match self.engine.submit(run, command(call, &report), key, cause).await {
                    Ok(committed) => {
                        if !committed.duplicate {
                            meter::observed(report.observation(), matches!(report, Report::Conclude { .. }));
                        }
                        break Told::Committed;
                    }
                    Err(SubmitError::Rejected(rejection)) => break refused(&span, &rejection),
                    Err(error) if error.is_transient() => {
                        tracing::warn!(%error, key = report.key(), "an observation could not be recorded, trying again");
                        tokio::time::sleep(delays.next().unwrap_or(RETRY_MAX)).await;
                    }
                    Err(error) => {
                        // It would fail again: the call goes on without it, and this line says so.
                        tracing::error!(%error, key = report.key(), "an observation can't be recorded");
                        span.record_error("not_recorded", &error);
                        meter::passed_over("not_recorded");
                        break Told::Committed;
                    }
                }
            }
        });
        let told = told.await;
        span.end();
        told
    }

    fn span(&self, call: &Tracked, report: &Report) -> Span {
        let observation = report.observation();
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let run = call.address.run_id.0.into_bytes();
        let spec = SpanSpec::new(format!("observe {}", call.tool), Parent::Traceparent(&call.traceparent))
            .run(run)
            .attribute(genai::RUN_ID, call.address.run_id.to_string())
            .attribute(genai::TENANT, call.address.tenant.to_string())
            .attribute(genai::TOOL_NAME, call.tool.clone())
            .attribute(genai::TOOL_CALL_ID, call.address.call_id.to_string())
            .attribute("escapement.observation.phase", observation.phase.clone())
            .attribute("escapement.observation.wakes", observation.decision.is_some())
            .attribute("escapement.observation.lines", count(observation.counts.lines))
            .attribute("escapement.observation.suppressed", count(observation.counts.suppressed));
        self.tracer.span(spec)
    }
}

fn command(call: &Tracked, report: &Report) -> Command {
    match report {
        Report::Observe { observation, .. } => Command::Observe(observation.clone()),
        Report::Conclude { exit, succeeded, observation, duration_ms, asked, .. } => {
            Command::ConcludeCall(Box::new(ConcludeCall {
                call_id: call.address.call_id,
                exit: exit.clone(),
                succeeded: *succeeded,
                observation: observation.clone(),
                asked: asked.clone(),
                duration_ms: *duration_ms,
            }))
        }
    }
}

fn refused(span: &Span, rejection: &Rejection) -> Told {
    meter::refused(rejection.code());
    match rejection {
        // Cancelled, or concluded by whoever read the same output before.
        Rejection::Ended(_) | Rejection::CallNotOpen(_) | Rejection::NoSuchRun => {
            tracing::debug!(%rejection, "an observation came too late");
        }
        rejection => {
            tracing::warn!(%rejection, "an observation was refused");
            span.record_error(rejection.code(), rejection);
        }
    }
    Told::CallGone
}
