//! What the documents show as files can be read as such: what somebody copies must not be refused.

use std::path::{Path, PathBuf};

use engine::ToolCatalog;

use crate::program::{repository, said};

/// The YAML blocks of a document.
fn blocks(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join(document)).unwrap();
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).collect()
}

/// A part of an agent's file, made whole.
fn whole(part: &str) -> String {
    let needed =
        [("name:", "name: shown"), ("model:", "model: scripted:shown"), ("instructions:", "instructions: Help.")];
    let lacks = |field: &str| !part.lines().any(|line| line.starts_with(field));
    needed.into_iter().filter(|(field, _)| lacks(field)).map(|(_, line)| format!("{line}\n")).collect::<String>() + part
}

#[test]
fn parts_of_agent_files_can_be_read() {
    let documents =
        ["TUTORIAL.md", "services/planner/README.md", "services/observer/README.md", "shared/checks/README.md"];
    let mut read = 0;
    for document in documents {
        for block in blocks(document) {
            let part = match block.lines().next().unwrap_or_default() {
                // Settings of an OpenTelemetry collector.
                "exporters:" => continue,
                // Of a service that is watched, by an agent with these tools.
                "    actions:" => format!("tools: [orders.create, http.get]\nwatch:\n  - service: shop\n{block}"),
                _ => block,
            };
            let parsed = engine::parse(&whole(&part));
            assert!(parsed.is_ok(), "{document}: {}\n{part}", parsed.unwrap_err());
            read += 1;
        }
    }
    assert!(read >= 8, "{read}");
}

#[test]
fn the_schedule_that_is_shown_can_be_read() {
    let yaml = &blocks("services/scheduler/README.md")[0];
    let now = "2026-12-01T00:00:00Z".parse().unwrap();
    let schedule = engine::parse_schedule(yaml, now).unwrap();
    assert_eq!(schedule.spec.name, "nightly-report");
}

#[test]
fn the_server_that_is_shown_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = blocks("services/tool-executor/README.md");
    let server = blocks.iter().find(|block| block.contains("transport:")).unwrap();
    put(dir.path(), "servers/forge.yaml", server);
    let catalog = ToolCatalog::load(dir.path()).unwrap();
    assert!(catalog.servers().get("forge").is_some());
}

#[test]
fn the_policies_and_their_case_that_are_shown_can_be_tried() {
    let readme = std::fs::read_to_string(repository().join("infra/policies/README.md")).unwrap();
    let policies = readme.split("```cedar\n").skip(1).filter_map(|rest| rest.split("```").next());
    let policies: Vec<_> = policies.filter(|block| block.contains("stripe.refund")).collect();
    let schema = std::fs::read_to_string(repository().join("infra/policies/schema.cedarschema")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "policies/schema.cedarschema", &schema);
    put(dir.path(), "policies/refunds.cedar", &policies.join("\n"));
    let cases = blocks("infra/policies/README.md").into_iter().find(|block| block.contains("expect:")).unwrap();
    let file = put(dir.path(), "cases.yaml", &cases);
    let folder = dir.path().join("policies");
    let words = ["policy", "test", file.to_str().unwrap(), "--policies", folder.to_str().unwrap()];
    let (code, out, err) = said(&words);
    assert_eq!(code, 0, "{out}{err}");
}

fn put(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}
