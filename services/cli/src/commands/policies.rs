//! Trying policies without running anything.

use std::path::Path;

use serde_json::Value;

use super::read_file;
use crate::{error::CliError, out::Out, style::Paint};

/// Runs the cases of a file against a folder of policies.
pub fn test(file: &Path, policies: &Path, out: &Out) -> Result<(), CliError> {
    let cases = cases(file)?;
    let report = policy::testing::run(policies, &cases).map_err(|error| CliError::usage(error.to_string()))?;
    out.value(&report);
    let style = out.style();
    for failure in &report.failures {
        out.say(format!("{} {}", style.paint(Paint::Bad, "failed"), failure.name));
        out.say(format!("       {}; decided: {}", failure.difference, failure.decision));
    }
    for id in &report.untested {
        out.say(style.paint(Paint::Warn, &format!("no case is decided by {id}")));
    }
    let summary = format!("{} cases, {} failed", report.cases, report.failures.len());
    if !report.passed() {
        return Err(CliError::failed(summary));
    }
    out.say(format!("{} (policies {})", style.paint(Paint::Good, &summary), report.policy_version));
    Ok(())
}

/// The cases of a file, by its name in JSON or in YAML.
fn cases(file: &Path) -> Result<Value, CliError> {
    let text = read_file(file)?;
    let is_yaml = file.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    let read: Result<Value, String> = if is_yaml {
        serde_saphyr::from_str(&text).map_err(|error| error.to_string())
    } else {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    let remedy = "a list of cases, as in infra/policies/tests.json; a file of YAML ends in .yaml";
    read.map_err(|error| CliError::usage_with(format!("{}: {error}", file.display()), remedy))
}
