//! `GET /internal/signals`: records of a service's log, around one or within a time.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use engine::ServiceSegment;
use kernel::{TenantId, Timestamp};
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::{Kept, records};
use crate::{App, problem::Problem, segment};

/// Records on either side of the wanted one, unless said otherwise, and at most.
const CONTEXT: usize = 20;
const MAX_CONTEXT: usize = 500;
/// Records within a time, unless said otherwise, and at most.
const LIMIT: usize = 200;
const MAX_LIMIT: usize = 1000;
/// Pieces that are opened for one answer.
const SEGMENTS: u32 = 64;
/// How far on either side of a record its neighbours are looked for.
const AROUND: Duration = Duration::from_secs(120);
/// How far back a record is looked for of which it is not said when it came.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// The time that is looked at, if only its end is said.
const USUAL: Duration = Duration::from_secs(3600);
/// Most bytes of an answer.
const ANSWER_BYTES: usize = 1 << 20;

/// What is wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    #[serde(default)]
    tenant: TenantId,
    service: String,
    seq: Option<u64>,
    line: Option<u32>,
    at: Option<Timestamp>,
    context: Option<usize>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    #[serde(rename = "match")]
    text: Option<String>,
    limit: Option<usize>,
}

/// Records as they came.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    service: String,
    lines: Vec<Shown>,
    /// Whether there are more than could be shown.
    more: bool,
}

/// One of them.
#[derive(Debug, Serialize)]
struct Shown {
    seq: u64,
    /// From 1.
    line: u32,
    at: Timestamp,
    text: String,
}

/// Answers with the records around one, or with those within a time.
pub(crate) async fn get(
    State(app): State<App>,
    query: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Found>, Problem> {
    let Query(wanted) = query.map_err(|error| Problem::bad("bad_query", error.body_text()))?;
    let found = match wanted.seq {
        Some(seq) => around(&app, &wanted, seq).await?,
        None => within(&app, &wanted).await?,
    };
    Ok(Json(found))
}

async fn around(app: &App, wanted: &Wanted, seq: u64) -> Result<Found, Problem> {
    let now = Timestamp::now();
    let (from, to) = match wanted.at {
        Some(at) => (before(at, AROUND), after(at, AROUND)),
        None => (before(now, EVER), now),
    };
    let mut segments =
        app.engine.services().segments(&wanted.tenant, &wanted.service, from, to, engine::MAX_ROWS).await?;
    if wanted.at.is_none() {
        // Numbers begin anew with a new stream: the latest that fits is meant.
        let last = segments.iter().rposition(|segment| (segment.from_seq..=segment.to_seq).contains(&seq));
        let last = last.ok_or_else(not_archived)?;
        let first = last.saturating_sub(4);
        segments = segments.drain(first..(last + 5).min(segments.len())).collect();
    }
    let mut kept = open(app, segments).await?;
    kept.sort_unstable();
    kept.dedup();
    let index = wanted.line.unwrap_or(1).saturating_sub(1);
    let is_it = |kept: &Kept| {
        let near =
            wanted.at.is_none_or(|at| (kept.at - at.as_microsecond()).unsigned_abs() <= AROUND.as_micros() as u64);
        kept.seq == seq && kept.index == index && near
    };
    let place = kept.iter().rposition(is_it).ok_or_else(not_archived)?;
    let context = wanted.context.unwrap_or(CONTEXT).min(MAX_CONTEXT);
    let (first, end) = (place.saturating_sub(context), (place + context + 1).min(kept.len()));
    Ok(shown(wanted, kept.drain(first..end), false))
}

async fn within(app: &App, wanted: &Wanted) -> Result<Found, Problem> {
    let to = wanted.to.unwrap_or_else(Timestamp::now);
    let from = wanted.from.unwrap_or_else(|| before(to, USUAL));
    if from > to {
        return Err(Problem::bad("bad_query", "`from` is after `to`"));
    }
    let limit = wanted.limit.unwrap_or(LIMIT).clamp(1, MAX_LIMIT);
    let segments = app.engine.services().segments(&wanted.tenant, &wanted.service, from, to, SEGMENTS + 1).await?;
    let mut more = segments.len() > SEGMENTS as usize;
    let mut kept: Vec<Kept> = Vec::new();
    let needle = wanted.text.as_deref().unwrap_or_default().as_bytes().to_vec();
    for segment in segments.into_iter().take(SEGMENTS as usize) {
        let found = open(app, vec![segment]).await?;
        let wants = |kept: &Kept| {
            (from.as_microsecond()..=to.as_microsecond()).contains(&kept.at)
                && (needle.is_empty() || memmem::find(&kept.text, &needle).is_some())
        };
        kept.extend(found.into_iter().filter(wants));
        kept.sort_unstable();
        kept.dedup();
        if kept.len() > limit {
            more = true;
            break;
        }
    }
    kept.truncate(limit);
    Ok(shown(wanted, kept.into_iter(), more))
}

fn shown(wanted: &Wanted, kept: impl Iterator<Item = Kept>, mut more: bool) -> Found {
    let mut room = ANSWER_BYTES;
    let mut lines = Vec::new();
    for Kept { at, seq, index, text } in kept {
        let Some(left) = room.checked_sub(text.len()) else {
            more = true;
            break;
        };
        room = left;
        let text = String::from_utf8_lossy(&text).into_owned();
        let at = Timestamp::from_microsecond(at).unwrap_or(Timestamp::UNIX_EPOCH);
        lines.push(Shown { seq, line: index + 1, at, text });
    }
    Found { service: wanted.service.clone(), lines, more }
}

/// The records of pieces.
async fn open(app: &App, segments: Vec<ServiceSegment>) -> Result<Vec<Kept>, Problem> {
    let mut kept = Vec::new();
    for segment in segments {
        let read = async {
            let small = app.store.get_object(&segment.object_key).await?;
            let size = usize::try_from(segment.bytes).map_err(std::io::Error::other)?;
            let unpacked = tokio::task::spawn_blocking(move || -> std::io::Result<Vec<Kept>> {
                Ok(records(&segment::decompress(&small, size)?)?)
            });
            unpacked.await.map_err(std::io::Error::other)?
        };
        kept.extend(read.await.map_err(|error: std::io::Error| {
            tracing::error!(%error, key = segment.object_key, "a piece of a log can't be read");
            Problem::new(
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "segment_unreadable",
                "a piece of the log can't be read",
            )
        })?);
    }
    Ok(kept)
}

fn before(at: Timestamp, span: Duration) -> Timestamp {
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

fn after(at: Timestamp, span: Duration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

fn not_archived() -> Problem {
    Problem::missing(
        "not_archived",
        "nothing is archived there: it may be too young (seconds), or never have been said",
    )
}
