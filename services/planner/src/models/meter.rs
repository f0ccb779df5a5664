//! What calls to models took, under the names of the OpenTelemetry conventions for generative AI as Prometheus writes them.

use std::time::Duration;

use service::{TraceContext, metrics::exemplar};

use super::{Answer, ModelError, Provider};

/// Notes a call that was answered or failed, in this trace.
pub(super) fn asked(provider: &dyn Provider, result: &Result<Answer, ModelError>, took: Duration, trace: TraceContext) {
    let mut labels = vec![
        ("gen_ai_operation_name", "chat".to_owned()),
        ("gen_ai_provider_name", provider.provider().to_owned()),
        ("gen_ai_request_model", provider.model().to_owned()),
    ];
    let usage = match result {
        Ok(answer) => &answer.usage,
        Err(error) => {
            labels.push(("error_type", error.kind.as_str().to_owned()));
            &error.usage
        }
    };
    metrics::histogram!("gen_ai_client_operation_duration_seconds", &labels).record(took);
    exemplar("gen_ai_client_operation_duration_seconds", &labels, took.as_secs_f64(), trace);
    for (kind, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
        if tokens > 0 {
            let mut labels = labels.clone();
            labels.push(("gen_ai_token_type", kind.to_owned()));
            #[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
            let tokens = tokens as f64;
            metrics::histogram!("gen_ai_client_token_usage", &labels).record(tokens);
            exemplar("gen_ai_client_token_usage", &labels, tokens, trace);
        }
    }
}
