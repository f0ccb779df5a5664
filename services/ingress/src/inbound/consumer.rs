//! CloudEvents on NATS: `in.<tenant>.<source>.<type...>`.

use bus::{BATCH_MEDIA_TYPE, CloudEvent, CloudEventLimits, Delivery, Outcome, Subject, header};
use kernel::TenantId;
use service::chain;

use super::{AcceptError, Inbound};

/// Takes one message. What is no event of ours becomes a dead letter with the reason.
///
/// Tenant and source are the subject's, since that is what the server lets a publisher write; what the event's own headers
/// say of them is data.
pub(crate) async fn handle(inbound: Inbound, delivery: Delivery) -> Outcome {
    let (tenant, source) = match address(&delivery.subject) {
        Ok(address) => address,
        Err(reason) => return refuse(&delivery, reason),
    };
    if source == engine::OBSERVER {
        // Only a bell: what the observer has to say it has recorded already, and what others say in its name is not read.
        return match inbound.dispatch_recorded().await {
            Ok(()) => Outcome::Ack,
            Err(error) => Outcome::defer(chain(&error)),
        };
    }
    let (events, mut wrong) = match events(&delivery) {
        Ok(found) => found,
        Err(reason) => return refuse(&delivery, reason),
    };
    for event in &events {
        let traceparent = event.traceparent().or_else(|| delivery.traceparent());
        match inbound.accept(&tenant, &source, event, traceparent).await {
            Ok(_) => {}
            Err(AcceptError::KeyTooLong(reason)) => wrong.push(named(&events, event, reason)),
            Err(error @ AcceptError::Reserved) => wrong.push(error.to_string()),
            // The whole message comes again; what is recorded by then is a duplicate.
            Err(AcceptError::Store(error)) if error.is_transient() => return Outcome::defer(chain(&error)),
            Err(AcceptError::Store(error)) => return Outcome::retry(chain(&error)),
        }
    }
    if wrong.is_empty() { Outcome::Ack } else { refuse(&delivery, wrong.join("; ")) }
}

/// The events of a message: one, or those of a batch, and what is wrong with the others.
fn events(delivery: &Delivery) -> Result<(Vec<CloudEvent>, Vec<String>), String> {
    let media_type = delivery.headers.get_any_case(header::CONTENT_TYPE).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case(BATCH_MEDIA_TYPE) {
        return delivery.cloud_event().map(|event| (vec![event], Vec::new())).map_err(|error| error.to_string());
    }
    let batch = CloudEvent::decode_batch(&delivery.payload, &CloudEventLimits::default());
    let (mut good, mut wrong) = (Vec::new(), Vec::new());
    for (index, event) in batch.map_err(|error| error.to_string())?.into_iter().enumerate() {
        match event {
            Ok(event) => good.push(event),
            Err(error) => wrong.push(format!("event {index} of the batch: {error}")),
        }
    }
    Ok((good, wrong))
}

/// What is wrong with an event, which is named if there are others.
fn named(all: &[CloudEvent], event: &CloudEvent, reason: String) -> String {
    if all.len() == 1 { reason } else { format!("event `{}` of the batch: {reason}", event.id) }
}

fn address(subject: &str) -> Result<(TenantId, String), String> {
    match Subject::parse(subject) {
        Ok(Subject::Inbound { tenant, source, .. }) => {
            tenant.parse().map(|tenant| (tenant, source)).map_err(|error: kernel::IdError| error.to_string())
        }
        Ok(_) => Err(format!("`{subject}` is not of the form in.<tenant>.<source>.<type>")),
        Err(error) => Err(error.to_string()),
    }
}

fn refuse(delivery: &Delivery, reason: String) -> Outcome {
    metrics::counter!("ingress_events_total", "outcome" => "malformed").increment(1);
    tracing::warn!(subject = delivery.subject, reason, "a message from outside is no event of ours");
    Outcome::Dead { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_says_whose_event_it_is() {
        let (tenant, source) = address("in.acme.github.github.push").unwrap();
        assert_eq!((tenant.as_str(), source.as_str()), ("acme", "github"));
        for bad in ["in.acme.github", "in.ACME.github.push", "log.acme.github", "in.acme.git%hub.push"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
