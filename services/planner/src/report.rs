//! The report of a run as artifacts: one for people, and the checklist with its evidence for programs.

use kernel::report::Report;

use crate::verbs::Draft;

/// What is stored of a report.
#[must_use]
pub fn drafts(report: &Report) -> Vec<Draft> {
    let markdown = Draft {
        name: "delivery-report.md".to_owned(),
        content: report.markdown(),
        media_type: "text/markdown".to_owned(),
    };
    let json = serde_json::to_string_pretty(report).ok().map(|content| Draft {
        name: "delivery-report.json".to_owned(),
        content,
        media_type: "application/json".to_owned(),
    });
    std::iter::once(markdown).chain(json).collect()
}
