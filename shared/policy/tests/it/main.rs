//! The crate from outside: the shipped pack, loading, strictness, hot reload, and hostile arguments.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod default_pack;
mod examples;
mod foresight;
mod hostile;
mod loading;
mod reload;
mod strictness;

use std::path::{Path, PathBuf};

use policy::{Effect, Policies, Request, ToolKind};
use serde_json::Value;

/// The directory of the shipped policies.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/policies")
}

/// A directory with the shipped schema and these policies.
fn dir(policies: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(shipped().join("schema.cedarschema"), dir.path().join("schema.cedarschema")).unwrap();
    std::fs::write(dir.path().join("test.cedar"), policies).unwrap();
    dir
}

/// These policies, with the shipped schema.
fn policies(text: &str) -> Policies {
    Policies::load(dir(text).path()).unwrap()
}

/// A request of `default/keeper` for `github.merge`.
fn merge(arguments: &Value) -> Request<'_> {
    Request::new("default", "keeper", "github.merge", ToolKind::Http, Effect::External, arguments)
}
