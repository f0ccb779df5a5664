//! NATS, its streams, Postgres and Redis, as far as this shell was told where they are. Each is looked at by itself, so that
//! one that is down hides no other.

use std::time::Duration;

use bus::{Bus, Topology};
use service::{Common, config::Settings};

use super::{Check, State};
use crate::commands::migrate;

/// How long the server may take to tell of its streams: to users who may not ask, it says nothing.
const STREAMS_WITHIN: Duration = Duration::from_secs(6);
/// Clocks that are further apart fire timers and end approvals at the wrong time.
const APART_MS: i64 = 2000;
/// Share of its memory that Redis may use before it is said, in percent.
const FULL_PERCENT: u64 = 90;

/// Looks at all of them.
pub async fn look(settings: &Settings<Common>) -> Vec<Check> {
    let common = &settings.value;
    let told = |key: &str| settings.origins.contains_key(key);
    let of_nats = nats(common);
    let of_postgres = async {
        if told("database_url") { postgres(common).await } else { vec![unseen("postgres", "ESC_DATABASE_URL")] }
    };
    let of_redis = async { if told("redis_url") { redis(common).await } else { unseen("redis", "ESC_REDIS_URL") } };
    let (nats, postgres, redis) = futures::join!(of_nats, of_postgres, of_redis);
    nats.into_iter().chain(postgres).chain([redis]).collect()
}

fn unseen(name: &str, variable: &str) -> Check {
    let words = format!("not looked at: {variable} is not set; the services below say how it is");
    Check::new(name, State::Unseen, words)
}

async fn nats(common: &Common) -> Vec<Check> {
    match migrate::connect(common).await {
        Ok(bus) => vec![Check::ok("nats", "connected"), streams(&bus).await],
        Err(error) => vec![Check::failed("nats", &error)],
    }
}

async fn streams(bus: &Bus) -> Check {
    let looked = tokio::time::timeout(STREAMS_WITHIN, bus.differences(&Topology::default())).await;
    match looked {
        Ok(Ok(differences)) if differences.is_empty() => Check::ok("streams", "as declared"),
        Ok(Ok(differences)) => {
            Check::wrong("streams", differences.join("; "), "run `esc migrate` as the NATS user `operator`")
        }
        Ok(Err(_)) | Err(_) => {
            Check::new("streams", State::Unseen, "not looked at: this NATS user may not; `operator` may")
        }
    }
}

async fn postgres(common: &Common) -> Vec<Check> {
    let state = match engine::schema_state(common.database_url.expose(), &common.schema).await {
        Ok(state) => state,
        Err(error) => return vec![Check::failed("postgres", &error.into())],
    };
    let schema = if !state.ahead.is_empty() {
        let ahead = state.ahead.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let words = format!("was migrated by a newer version: this one does not know {ahead}");
        Check::wrong("postgres", words, "bring this program to that version")
    } else if state.pending.is_empty() {
        Check::ok("postgres", format!("schema `{}` is up to date", common.schema))
    } else {
        let words = format!("schema `{}` lacks {}", common.schema, state.pending.join(", "));
        Check::wrong("postgres", words, "run `esc migrate` with ESC_DATABASE_URL of the owner")
    };
    vec![schema, clock("the clock of Postgres", state.clock_ms)]
}

/// A clock that is so many milliseconds ahead of this machine's.
pub fn clock(whose: &str, ahead_ms: i64) -> Check {
    let apart = ahead_ms.unsigned_abs();
    let seconds = format!("{}.{} s", apart / 1000, apart % 1000 / 100);
    if apart <= APART_MS.unsigned_abs() {
        return Check::ok(whose, "agrees with this machine's");
    }
    let way = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let remedy = "let both follow a time server (chrony, systemd-timesyncd): timers and approvals go by these clocks";
    Check::wrong(whose, format!("is {seconds} {way} this machine's"), remedy)
}

async fn redis(common: &Common) -> Check {
    match engine::redis_state(common.redis_url.expose(), common.namespace.as_str()).await {
        Ok(state) if state.max_bytes > 0 && state.used_bytes > state.max_bytes / 100 * FULL_PERCENT => Check::wrong(
            "redis",
            format!("uses {} of {} MiB", state.used_bytes >> 20, state.max_bytes >> 20),
            "give it more memory (maxmemory); what it holds can be rebuilt, but not for want of room",
        ),
        Ok(_) => Check::ok("redis", "answers and takes what is written"),
        Err(error) => {
            let check = Check::failed("redis", &error.into());
            if check.detail.contains("OOM") || check.detail.contains("maxmemory") {
                let remedy = "it is full: give it more memory (maxmemory), or an eviction policy of allkeys-lru";
                return Check::wrong("redis", check.detail, remedy);
            }
            check
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_a_little() {
        assert_eq!(clock("it", 1_900).state, State::Ok);
        assert_eq!(clock("it", -1_900).state, State::Ok);
        let ahead = clock("it", 61_250);
        assert_eq!((ahead.state, ahead.detail.as_str()), (State::Wrong, "is 61.2 s ahead of this machine's"));
        assert!(clock("it", -3_000).detail.contains("behind"));
    }
}
