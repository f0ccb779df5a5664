//! How many requests a caller may make: each token by itself, and each hook, in each instance. Every answer says what is left.
//!
//! A hook's allowance is its senders': only what is signed with its secret takes of it. What is not counts against the address
//! that it came from, so that nobody can keep a server busy with checking what they made up.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::auth::Principal;
use crate::problem::Problem;

/// Callers that are remembered; when there are more, those that have not called for a while are forgotten, and all if that is
/// not enough.
const CALLERS: usize = 10_000;
/// Body bytes of a stranger's post that count as one post, since checking it takes the longer the larger it is.
const POST_BYTES: usize = 64 * 1024;
/// The longest that a stranger's posts keep the next one out, however many came at once.
const MOST_OWED: Duration = Duration::from_secs(2);

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
        make_room(&mut full_at, now);
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

    /// Answers a caller who has something left.
    pub(crate) async fn answer(&self, caller: &str, answer: impl Future<Output = Response>) -> Response {
        if self.per_second == 0 {
            return answer.await;
        }
        let left = self.take(caller, Instant::now());
        let mut response = match left.wait {
            None => answer.await,
            Some(wait) => {
                metrics::counter!("ingress_paced_total").increment(1);
                let words = format!("more than {} requests in a second", self.per_second);
                too_many(&words, wait)
                    .remedy(
                        "wait for `Retry-After`, and keep to what the header `RateLimit` says; `requests_per_second` sets \
                         the limit",
                    )
                    .into_response()
            }
        };
        self.describe(&left, response.headers_mut());
        response
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
    let Some(Principal { tenant, name, .. }) = request.extensions().get::<Principal>() else {
        return next.run(request).await;
    };
    let caller = format!("{tenant}/{name}");
    pacing.answer(&caller, next.run(request)).await
}

/// Counts posts that nobody signed, by the address that they came from. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Strangers {
    per_second: u64,
    full_at: Arc<Mutex<HashMap<IpAddr, Instant>>>,
    one_by_one: Arc<Semaphore>,
}

impl Strangers {
    /// So many posts of one address in a second; 0 is no limit.
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second, full_at: Arc::default(), one_by_one: Arc::new(Semaphore::new(1)) }
    }

    /// What to answer an address that has posted more than it may that nobody signed, unless this post is.
    pub(crate) fn owes(&self, address: IpAddr) -> Option<Problem> {
        let wait = self.wait(place(address), Instant::now())?;
        metrics::counter!("ingress_strangers_paced_total").increment(1);
        let words = format!("more than {} posts in a second from this address that nobody signed", self.per_second);
        Some(too_many(&words, wait).remedy(
            "sign what is delivered, and wait for `Retry-After`; `unsigned_posts_per_second` sets the limit, for all that \
             share an address",
        ))
    }

    /// The turn of one post from such an address to be checked, until it is dropped.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.one_by_one.acquire().await.ok()
    }

    /// Counts a post of so many bytes that was not believed.
    pub(crate) fn count(&self, address: IpAddr, bytes: usize) {
        self.charge(place(address), 1 + bytes / POST_BYTES, Instant::now());
    }

    fn wait(&self, place: IpAddr, now: Instant) -> Option<Duration> {
        let each = self.each()?;
        let full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let owed = full_at.get(&place)?.saturating_duration_since(now) + each;
        // A hair of room, since seconds are not divided without rest.
        (owed > Duration::from_secs(1) + Duration::from_micros(1)).then(|| owed.saturating_sub(Duration::from_secs(1)))
    }

    fn charge(&self, place: IpAddr, posts: usize, now: Instant) {
        let Some(each) = self.each() else { return };
        let posts = u32::try_from(posts).unwrap_or(u32::MAX);
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut full_at, now);
        let full = full_at.get(&place).copied().filter(|full| *full > now).unwrap_or(now);
        full_at.insert(place, (full + each.saturating_mul(posts).min(MOST_OWED)).min(now + MOST_OWED));
    }

    fn each(&self) -> Option<Duration> {
        (self.per_second > 0).then(|| Duration::from_secs(1).div_f64(self.per_second as f64))
    }
}

/// What counts as one address: of IPv6 the half that names a network, since whoever has one has all addresses in it.
fn place(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

fn make_room<K>(full_at: &mut HashMap<K, Instant>, now: Instant) {
    if full_at.len() >= CALLERS {
        full_at.retain(|_, full| *full > now);
    }
    if full_at.len() >= CALLERS {
        full_at.clear();
    }
}

fn too_many(words: &str, wait: Duration) -> Problem {
    // In whole seconds, since that is all the header knows.
    let seconds = wait.as_secs() + 1;
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", words)
        .header(header::RETRY_AFTER, HeaderValue::from(seconds))
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

    #[test]
    fn a_stranger_pays_by_the_post_and_by_the_byte_and_for_their_own_address_only() {
        let strangers = Strangers::new(10);
        let now = Instant::now();
        let (one, other): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        (0..9).for_each(|_| strangers.charge(one, 1, now));
        assert_eq!(strangers.wait(one, now), None);
        strangers.charge(one, 1, now);
        assert!(strangers.wait(one, now).is_some_and(|wait| wait > Duration::from_millis(90)));
        assert_eq!(strangers.wait(other, now), None);
        assert_eq!(strangers.wait(one, now + Duration::from_millis(101)), None);
        // However much came at once, it is forgiven soon.
        (0..100).for_each(|_| strangers.charge(other, 16, now));
        assert!(strangers.wait(other, now + Duration::from_millis(900)).is_some());
        assert_eq!(strangers.wait(other, now + MOST_OWED), None);
        let unlimited = Strangers::new(0);
        (0..100).for_each(|_| unlimited.charge(one, 16, now));
        assert_eq!(unlimited.wait(one, now), None);
    }

    #[test]
    fn a_network_is_one_address_and_so_is_one_that_is_written_in_two_ways() {
        let place = |text: &str| place(text.parse().unwrap());
        assert_eq!(place("2001:db8:1:2::1"), place("2001:db8:1:2:ffff::7"));
        assert_ne!(place("2001:db8:1:2::1"), place("2001:db8:1:3::1"));
        assert_eq!(place("::ffff:192.0.2.1"), place("192.0.2.1"));
        assert_ne!(place("192.0.2.1"), place("192.0.2.2"));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let strangers = Strangers::new(1);
        let now = Instant::now();
        for number in 0..u32::try_from(CALLERS).unwrap() + 10 {
            strangers.charge(IpAddr::V4(number.into()), 1, now);
        }
        assert!(strangers.full_at.lock().unwrap().len() <= CALLERS);
    }
}
