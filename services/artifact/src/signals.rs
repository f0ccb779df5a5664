//! Raw output back from the archive: a range of bytes, or lines around a line.

use std::ops::Range;

use axum::{
    body::Body,
    extract::{Path, Query, State},
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use engine::Segment;
use futures::StreamExt as _;
use kernel::{CallId, TenantId};
use memchr::{memchr, memchr_iter};
use serde::Deserialize;

use crate::{App, problem::Problem, segment, store::Store};

/// Lines on either side of the wanted one, unless said otherwise, and at most.
const CONTEXT: u64 = 20;
const MAX_CONTEXT: u64 = 2000;
/// Most bytes of an answer of lines.
const LINES_BYTES: usize = 1 << 20;

const FIRST_OFFSET: HeaderName = HeaderName::from_static("esc-offset");
const FIRST_LINE: HeaderName = HeaderName::from_static("esc-first-line");
const GAPS: HeaderName = HeaderName::from_static("esc-gaps");
const CUT: HeaderName = HeaderName::from_static("esc-cut");

/// What is wanted: bytes `from..to`, the last `tail` bytes, or `context` lines on either side of `line` (from 1).
#[derive(Debug, Deserialize)]
pub(crate) struct Wanted {
    #[serde(default)]
    tenant: TenantId,
    #[serde(default)]
    from: u64,
    to: Option<u64>,
    tail: Option<u64>,
    line: Option<u64>,
    context: Option<u64>,
}

/// A part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    segment: Segment,
    /// Which bytes, counted from the segment's first.
    range: Range<usize>,
}

/// `GET /internal/signals/{call_id}`. The header `esc-offset` says where the answer begins, `esc-gaps` which bytes of it
/// were never archived (`from-to`, comma-separated), and, of lines, `esc-first-line` the number of the first (from 1).
pub(crate) async fn get(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let call: CallId = id.parse().map_err(|error: kernel::IdError| Problem::bad("bad_id", error.to_string()))?;
    let Query(wanted) = query.map_err(|error| Problem::bad("bad_query", error.body_text()))?;
    match wanted.line {
        None => bytes(&app, call, &wanted).await,
        Some(0) => Err(Problem::bad("bad_query", "lines are numbered from 1")),
        Some(line) => lines(&app, call, &wanted, line).await,
    }
}

async fn bytes(app: &App, call: CallId, wanted: &Wanted) -> Result<Response, Problem> {
    let mut range = wanted.from..wanted.to.unwrap_or(i64::MAX.unsigned_abs());
    if range.start > range.end {
        return Err(Problem::bad("bad_query", "`from` is beyond `to`"));
    }
    let segments = app.engine.segments().list(&wanted.tenant, call, range.start, range.end).await?;
    if let Some(tail) = wanted.tail {
        let end = segments.iter().map(|segment| segment.to_offset.min(range.end)).max().unwrap_or_default();
        range.start = range.start.max(end.saturating_sub(tail));
    }
    let (parts, gaps) = plan(segments, &range);
    let Some(first) = parts.first() else { return Err(not_archived()) };
    let offset = first.segment.from_offset + first.range.start as u64;
    let store = app.store.clone();
    let content = futures::stream::iter(parts).then(move |part| {
        let store = store.clone();
        async move { read(&store, &part).await.map(|whole| whole.slice(part.range)) }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (FIRST_OFFSET, offset.to_string()),
        (GAPS, shown(&gaps)),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(content)).into_response())
}

async fn lines(app: &App, call: CallId, wanted: &Wanted, line: u64) -> Result<Response, Problem> {
    let context = wanted.context.unwrap_or(CONTEXT).min(MAX_CONTEXT);
    let first = (line - 1).saturating_sub(context);
    let last = (line - 1).saturating_add(context);
    let all = 0..i64::MAX.unsigned_abs();
    let segments = app.engine.segments().list(&wanted.tenant, call, all.start, all.end).await?;
    let (parts, gaps) = plan(segments, &all);
    let mut found = Excerpt::new(first, last);
    // A line that is cut by the end of a segment counts to that segment as well.
    for part in parts.iter().skip_while(|part| part.segment.to_line <= first) {
        let bytes = read(&app.store, part).await.map_err(|error| {
            tracing::error!(%error, %call, "a segment can't be read");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "segment_unreadable", "a segment can't be read")
        })?;
        if !found.add(part, &bytes) {
            break;
        }
    }
    if found.bytes.is_empty() {
        return Err(not_archived());
    }
    let end = found.offset + found.bytes.len() as u64;
    let gaps: Vec<_> = gaps.into_iter().filter(|gap| gap.start >= found.offset && gap.start < end).collect();
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (FIRST_OFFSET, found.offset.to_string()),
        (FIRST_LINE, (found.line + 1).to_string()),
        (GAPS, shown(&gaps)),
        (CUT, found.is_cut.to_string()),
    ];
    Ok((StatusCode::OK, headers, found.bytes).into_response())
}

/// The lines that are wanted, as they come together.
struct Excerpt {
    first: u64,
    last: u64,
    bytes: Vec<u8>,
    offset: u64,
    line: u64,
    is_cut: bool,
}

impl Excerpt {
    fn new(first: u64, last: u64) -> Self {
        Self { first, last, bytes: Vec::new(), offset: 0, line: 0, is_cut: false }
    }

    /// Takes the wanted lines of a part; says whether more may follow.
    fn add(&mut self, part: &Part, whole: &Bytes) -> bool {
        let (before, mut rest) = whole.split_at(part.range.start.min(whole.len()));
        let mut offset = part.segment.from_offset + before.len() as u64;
        let mut line = part.segment.from_line + memchr_iter(b'\n', before).count() as u64;
        while !rest.is_empty() && line <= self.last {
            let length = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            if line >= self.first {
                if self.bytes.is_empty() {
                    (self.offset, self.line) = (offset, line);
                }
                let room = LINES_BYTES - self.bytes.len();
                self.bytes.extend_from_slice(&rest[..length.min(room)]);
                if length > room {
                    self.is_cut = true;
                    return false;
                }
            }
            line += u64::from(rest[length - 1] == b'\n');
            offset += length as u64;
            rest = &rest[length..];
        }
        line <= self.last
    }
}

/// Which parts of which segments make up the range, each byte once, and what is missing between them.
fn plan(segments: Vec<Segment>, wanted: &Range<u64>) -> (Vec<Part>, Vec<Range<u64>>) {
    let (mut parts, mut gaps) = (Vec::new(), Vec::new());
    let mut next = wanted.start;
    for segment in segments {
        let (start, end) = (segment.from_offset.max(next), segment.to_offset.min(wanted.end));
        if start >= end {
            continue;
        }
        if start > next {
            gaps.push(next..start);
        }
        next = end;
        let within = |at: u64| usize::try_from(at - segment.from_offset).unwrap_or(usize::MAX);
        let range = within(start)..within(end);
        parts.push(Part { segment, range });
    }
    (parts, gaps)
}

/// The whole segment of a part, unpacked.
async fn read(store: &Store, part: &Part) -> Result<Bytes, std::io::Error> {
    let small = store.get_object(&part.segment.object_key).await?;
    let size = usize::try_from(part.segment.to_offset - part.segment.from_offset).map_err(std::io::Error::other)?;
    let whole = tokio::task::spawn_blocking(move || segment::decompress(&small, size))
        .await
        .map_err(std::io::Error::other)??;
    Ok(Bytes::from(whole))
}

fn shown(gaps: &[Range<u64>]) -> String {
    gaps.iter().map(|gap| format!("{}-{}", gap.start, gap.end)).collect::<Vec<_>>().join(",")
}

fn not_archived() -> Problem {
    Problem::missing(
        "not_archived",
        "nothing is archived there: it may be too young (seconds), or never have been said",
    )
}

#[cfg(test)]
mod tests {
    use kernel::RunId;

    use super::*;

    fn segment(from_offset: u64, to_offset: u64, from_line: u64) -> Segment {
        Segment {
            call_id: CallId::from_uuid(uuid::Uuid::nil()),
            run_id: RunId::from_uuid(uuid::Uuid::nil()),
            tenant: TenantId::default(),
            from_offset,
            to_offset,
            from_line,
            to_line: from_line,
            object_key: String::new(),
            stored_at: None,
        }
    }

    fn ranges(parts: &[Part]) -> Vec<(u64, u64)> {
        let at = |part: &Part, at: usize| part.segment.from_offset + at as u64;
        parts.iter().map(|part| (at(part, part.range.start), at(part, part.range.end))).collect()
    }

    #[test]
    fn each_byte_is_planned_once_and_gaps_are_named() {
        let segments = vec![segment(0, 10, 0), segment(4, 8, 0), segment(5, 20, 0), segment(30, 40, 0)];
        let (parts, gaps) = plan(segments.clone(), &(0..100));
        assert_eq!(ranges(&parts), [(0, 10), (10, 20), (30, 40)]);
        assert_eq!(gaps, vec![20..30]);
        let (parts, gaps) = plan(segments, &(6..35));
        assert_eq!(ranges(&parts), [(6, 10), (10, 20), (30, 35)]);
        assert_eq!(shown(&gaps), "20-30");
    }

    #[test]
    fn an_excerpt_spans_segments_and_overlaps() {
        let text = b"l0\nl1\nl2\nl3\nl4\n";
        let mut found = Excerpt::new(1, 3);
        let first = Part { segment: segment(0, 7, 0), range: 0..7 };
        assert!(found.add(&first, &Bytes::copy_from_slice(&text[..7])));
        let second = Part { segment: segment(3, 15, 1), range: 4..12 };
        assert!(!found.add(&second, &Bytes::copy_from_slice(&text[3..])));
        assert_eq!(found.bytes, b"l1\nl2\nl3\n");
        assert_eq!((found.line, found.offset, found.is_cut), (1, 3, false));
    }
}
