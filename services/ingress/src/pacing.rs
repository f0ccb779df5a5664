//! How many requests a caller may make: each token by itself, and each hook, in each instance. Every answer says what is left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::auth::Principal;
use crate::problem::Problem;

/// Callers that are remembered; when there are more, those that have not called for a while are forgotten.
const CALLERS: usize = 10_000;

/// Most bytes of a path that are remembered: a hook's is shorter.
const PATH_BYTES: usize = 128;

/// Counts requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pacing {
    per_second: u64,
    full_at: Arc<Mutex<HashMap<String, Instant>>>,
}

/// What a caller may still do.
struct Left {
    requests: u64,
    /// Until there is one more, if there is none.
    wait: Option<Duration>,
}

impl Pacing {
    /// So many requests of one caller in a second; 0 is no limit.
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second, full_at: Arc::default() }
    }

    /// Takes one of what the caller may do. What was not used of a second is there for the next, and no more than that: a
    /// bucket of so many, filled evenly. All that is kept of it is when it will be full.
    fn take(&self, caller: &str, now: Instant) -> Left {
        let each = Duration::from_secs(1).div_f64(self.per_second as f64);
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if full_at.len() >= CALLERS {
            full_at.retain(|_, full| *full > now);
        }
        let full = full_at.get(caller).copied().filter(|full| *full > now).unwrap_or(now);
        let missing = full.duration_since(now) + each;
        // A hair of room, since seconds are not divided without rest.
        if missing > Duration::from_secs(1) + Duration::from_micros(1) {
            return Left { requests: 0, wait: Some(missing.saturating_sub(Duration::from_secs(1))) };
        }
        full_at.insert(caller.to_owned(), full + each);
        // And a hair here, for the same reason.
        let left = (1.0 - missing.as_secs_f64()).max(0.0) * self.per_second as f64 + 1e-6;
        Left { requests: left as u64, wait: None }
    }

    fn describe(&self, left: &Left, headers: &mut HeaderMap) {
        let values = [
            ("ratelimit-policy", format!("\"caller\";q={};w=1", self.per_second)),
            ("ratelimit", format!("\"caller\";r={};t=1", left.requests)),
        ];
        for (name, value) in values {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
    }
}

/// Lets a caller through who has something left.
pub(crate) async fn pace(State(pacing): State<Pacing>, request: Request, next: Next) -> Response {
    if pacing.per_second == 0 {
        return next.run(request).await;
    }
    let caller = match request.extensions().get::<Principal>() {
        Some(principal) => format!("{}/{}", principal.tenant, principal.name),
        // Anybody may make one up, of any length.
        None => kernel::excerpt(request.uri().path(), PATH_BYTES),
    };
    let left = pacing.take(&caller, Instant::now());
    let mut response = match left.wait {
        None => next.run(request).await,
        Some(wait) => {
            metrics::counter!("ingress_paced_total").increment(1);
            too_many(pacing.per_second, wait)
        }
    };
    pacing.describe(&left, response.headers_mut());
    response
}

fn too_many(per_second: u64, wait: Duration) -> Response {
    let words = format!("more than {per_second} requests in a second");
    // In whole seconds, since that is all the header knows.
    let seconds = wait.as_secs() + 1;
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", words)
        .remedy("wait for `Retry-After`, and keep to what the header `RateLimit` says; `requests_per_second` sets the limit")
        .header(header::RETRY_AFTER, HeaderValue::from(seconds))
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holds_so_many_and_they_come_back_evenly() {
        let pacing = Pacing::new(10);
        let now = Instant::now();
        let taken: Vec<_> = (0..10).map(|_| pacing.take("a", now)).collect();
        assert!(taken.iter().all(|left| left.wait.is_none()));
        assert_eq!(taken.iter().map(|left| left.requests).collect::<Vec<_>>(), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        let refused = pacing.take("a", now);
        assert!(refused.wait.is_some_and(|wait| wait > Duration::from_millis(90)));
        assert!(pacing.take("b", now).wait.is_none(), "another caller has its own");
        assert!(pacing.take("a", now + Duration::from_millis(101)).wait.is_none());
        assert!(pacing.take("a", now + Duration::from_millis(102)).wait.is_some());
        assert_eq!(pacing.take("a", now + Duration::from_secs(60)).requests, 9, "no more than a second's worth");
    }
}
