//! What waking costs and saves, in total: counted where it is committed, once, by whichever service did it.

use kernel::{Event, EventData, economics::Economics};

/// Counts the events of a commit.
pub(crate) fn committed(events: &[Event]) {
    let mut counted = Economics::default();
    for event in events {
        counted.add(event);
        match &event.data {
            EventData::RunRunnable(runnable) => {
                if let Some(kind) = runnable.wake {
                    metrics::counter!("engine_wakes_total", "kind" => kind.as_str()).increment(1);
                }
            }
            EventData::ObservationRecorded(recorded) => {
                let needs = if recorded.observation.decision.is_some() { "decision" } else { "nothing" };
                metrics::counter!("engine_observations_total", "needs" => needs).increment(1);
            }
            _ => {}
        }
    }
    // Less the wakes, these are the requests that were gathered into another one's wake.
    metrics::counter!("engine_wake_requests_total").increment(counted.wake_requests);
    metrics::counter!("engine_tokens_total").increment(counted.tokens);
}
