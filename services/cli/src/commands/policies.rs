//! Trying policies without running anything.

use std::path::Path;

use super::{json_of, read_file};
use crate::{error::CliError, out::Out, style::Paint};

/// Runs the cases of a file against a folder of policies.
pub fn test(file: &Path, policies: &Path, out: &Out) -> Result<(), CliError> {
    let cases = json_of(&read_file(file)?, &format!("{}", file.display()))?;
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
