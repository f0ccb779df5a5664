//! The console: a few static files, part of the program, so that nothing has to be deployed beside it and no page asks
//! anybody else for anything.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// What the pages may do: run these scripts, use these styles, talk to this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    path: &'static str,
    media_type: &'static str,
    content: &'static [u8],
    etag: String,
}

macro_rules! files {
    ($($path:literal: $media_type:expr,)*) => {
        vec![$(file($path, $media_type, include_bytes!(concat!("../console/", $path)))),*]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files! {
        "index.html": "text/html; charset=utf-8",
        "console.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml",
        "api.js": SCRIPT,
        "format.js": SCRIPT,
        "html.js": SCRIPT,
        "main.js": SCRIPT,
        "story.js": SCRIPT,
        "ui.js": SCRIPT,
        "vendor/hooks.js": SCRIPT,
        "vendor/htm.js": SCRIPT,
        "vendor/preact.js": SCRIPT,
        "views/agents.js": SCRIPT,
        "views/approvals.js": SCRIPT,
        "views/artifact.js": SCRIPT,
        "views/beginning.js": SCRIPT,
        "views/costs.js": SCRIPT,
        "views/economics.js": SCRIPT,
        "views/health.js": SCRIPT,
        "views/output.js": SCRIPT,
        "views/run.js": SCRIPT,
        "views/runs.js": SCRIPT,
        "views/schedules.js": SCRIPT,
        "views/sign-in.js": SCRIPT,
        "views/timeline.js": SCRIPT,
        "views/turn.js": SCRIPT,
        "views/waits.js": SCRIPT,
        "views/why.js": SCRIPT,
    }
});

fn file(path: &'static str, media_type: &'static str, content: &'static [u8]) -> File {
    let etag = format!("\"{}\"", hex::encode(&Sha256::digest(content)[..12]));
    File { path, media_type, content, etag }
}

/// `/` and what it is made of. Open to everybody: there is nothing in it but the program.
pub(crate) fn router() -> Router {
    let index = |headers: HeaderMap| async move { serve("index.html", &headers) };
    let part = |Path(path): Path<String>, headers: HeaderMap| async move { serve(&path, &headers) };
    Router::new().route("/", get(index)).route("/console/{*path}", get(part))
}

fn serve(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.path == path) else {
        return Problem::not_found("unknown_path", format!("the console has no `{path}`")).into_response();
    };
    // Asked for each time and sent only when it changed: after an update nobody sees old scripts with new data.
    let about: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, file.media_type),
        (header::ETAG, &file.etag),
        (header::CACHE_CONTROL, "no-cache"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let policy = [(header::CONTENT_SECURITY_POLICY, POLICY)];
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == file.etag.as_bytes());
    if known {
        return (StatusCode::NOT_MODIFIED, about, policy).into_response();
    }
    (about, policy, file.content).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn all_of_it_is_served_and_nothing_that_is_not_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut open = vec![root.clone()];
        let mut kept = BTreeSet::new();
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path: PathBuf = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    kept.insert(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        let served: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(served, kept);
    }

    #[test]
    fn it_asks_nobody_else_for_anything() {
        for file in FILES.iter().filter(|file| !file.path.starts_with("vendor/")) {
            let text = std::str::from_utf8(file.content).unwrap();
            for outside in ["http://", "https://", "//cdn", "eval(", "innerHTML", "style="] {
                let allowed = outside == "http://" && file.path.ends_with(".svg");
                assert!(allowed || !text.contains(outside), "`{outside}` in {}", file.path);
            }
        }
    }
}
