//! The schemas that are generated from the code and committed beside it.

use std::{collections::BTreeMap, fs, path::Path};

use kernel::EventData;
use serde_json::{Map, Value, json};

use crate::{args::SchemasArgs, error::CliError, out::Out, style::Paint};

/// Lines of a difference that are shown for each file.
const SHOWN: usize = 6;

/// How a file on disk stands to what it should be.
#[derive(Debug, PartialEq, Eq)]
enum Drift {
    Missing,
    Stale(Vec<String>),
    Unknown,
}

/// Writes the files or compares them.
pub fn run(args: &SchemasArgs, out: &Out) -> Result<(), CliError> {
    let wanted = generate()?;
    let drifts = compare(&args.dir, &wanted)?;
    if args.check {
        return check(&drifts, wanted.len(), out);
    }
    for name in drifts.keys() {
        let path = args.dir.join(name);
        let failed = |error| CliError::failed(format!("can't write {}: {error}", path.display()));
        match wanted.get(name) {
            Some(text) => {
                fs::create_dir_all(path.parent().unwrap_or(&args.dir)).map_err(failed)?;
                fs::write(&path, text).map_err(failed)?;
                out.say(format!("wrote {}", path.display()));
            }
            None => {
                fs::remove_file(&path).map_err(failed)?;
                out.say(format!("removed {}", path.display()));
            }
        }
    }
    out.say(format!("{} schemas, {} changed", wanted.len(), drifts.len()));
    out.value(&json!({"schemas": wanted.len(), "changed": drifts.keys().collect::<Vec<_>>()}));
    Ok(())
}

fn check(drifts: &BTreeMap<String, Drift>, count: usize, out: &Out) -> Result<(), CliError> {
    out.value(&json!({"schemas": count, "drifted": drifts.keys().collect::<Vec<_>>()}));
    if drifts.is_empty() {
        out.say(format!("{count} schemas are as the code says"));
        return Ok(());
    }
    for (name, drift) in drifts {
        let (what, lines) = match drift {
            Drift::Missing => ("is missing", &[][..]),
            Drift::Unknown => ("is not generated any more", &[][..]),
            Drift::Stale(lines) => ("differs", lines.as_slice()),
        };
        out.say(format!("{name} {what}"));
        for line in lines {
            let paint = if line.starts_with('+') { Paint::Good } else { Paint::Bad };
            out.say(format!("  {}", out.style().paint(paint, line)));
        }
    }
    Err(CliError::failed(format!(
        "{} of {count} schemas drifted from the code: run `esc schemas --write`, and commit what changed if it is meant",
        drifts.len()
    )))
}

/// Every file by its path under the folder.
fn generate() -> Result<BTreeMap<String, String>, CliError> {
    let mut files = BTreeMap::new();
    for (event_type, version, schema) in EventData::schemas() {
        let schema = serde_json::to_value(schema).map_err(|error| CliError::failed(error.to_string()))?;
        let name = format!("{event_type}.v{version}.json");
        let name = format!("events/{name}");
        files.insert(name.clone(), pretty(&titled(schema, event_type, &name))?);
    }
    for (kind, schema) in engine::file_schemas() {
        let schema = serde_json::to_value(schema).map_err(|error| CliError::failed(error.to_string()))?;
        let name = format!("files/{kind}.json");
        files.insert(name.clone(), pretty(&titled(schema, kind, &name))?);
    }
    let api: Value = serde_json::from_str(ingress::openapi()).map_err(|error| CliError::failed(error.to_string()))?;
    files.insert("openapi.json".to_owned(), pretty(&api)?);
    Ok(files)
}

/// The schema under the name by which it is referred to, as events do (`dataschema`).
fn titled(schema: Value, event_type: &str, name: &str) -> Value {
    let mut titled = Map::new();
    let mut rest = match schema {
        Value::Object(rest) => rest,
        other => return other,
    };
    if let Some(dialect) = rest.remove("$schema") {
        titled.insert("$schema".to_owned(), dialect);
    }
    titled.insert("$id".to_owned(), format!("/schemas/{name}").into());
    titled.insert("title".to_owned(), event_type.into());
    rest.remove("title");
    titled.extend(rest);
    Value::Object(titled)
}

fn pretty(value: &Value) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::failed(error.to_string()))?;
    Ok(text + "\n")
}

fn compare(dir: &Path, wanted: &BTreeMap<String, String>) -> Result<BTreeMap<String, Drift>, CliError> {
    let mut drifts = BTreeMap::new();
    for (name, want) in wanted {
        match fs::read_to_string(dir.join(name)) {
            Ok(have) if have == *want => {}
            Ok(have) => {
                drifts.insert(name.clone(), Drift::Stale(difference(&have, want)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                drifts.insert(name.clone(), Drift::Missing);
            }
            Err(error) => return Err(CliError::failed(format!("can't read {name} of {}: {error}", dir.display()))),
        }
    }
    // Other folders hold what people write; these are all generated.
    for folder in ["events", "files"] {
        for entry in fs::read_dir(dir.join(folder)).into_iter().flatten().flatten() {
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if name.ends_with(".json") && !wanted.contains_key(&name) {
                drifts.insert(name, Drift::Unknown);
            }
        }
    }
    Ok(drifts)
}

/// The first lines that only one side has, `-` for what is on disk and `+` for what should be.
fn difference(have: &str, want: &str) -> Vec<String> {
    let (have, want): (Vec<_>, Vec<_>) = (have.lines().collect(), want.lines().collect());
    let same = have.iter().zip(&want).take_while(|(have, want)| have == want).count();
    let (have, want) = (&have[same..], &want[same..]);
    let tail = have.iter().rev().zip(want.iter().rev()).take_while(|(have, want)| have == want).count();
    let (gone, new) = (&have[..have.len() - tail], &want[..want.len() - tail]);
    let show = |sign: char, lines: &[&str]| {
        let mut shown: Vec<_> = lines.iter().take(SHOWN).map(|line| format!("{sign} {}", line.trim_start())).collect();
        if lines.len() > SHOWN {
            shown.push(format!("{sign} … {} lines more", lines.len() - SHOWN));
        }
        shown
    };
    [show('-', gone), show('+', new)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_type_has_one_named_schema() {
        let files = generate().unwrap();
        for event_type in EventData::TYPES {
            let text = &files[&format!("events/{event_type}.v1.json")];
            let schema: Value = serde_json::from_str(text).unwrap();
            assert_eq!(schema["title"], *event_type);
            assert_eq!(schema["$id"], format!("/schemas/events/{event_type}.v1.json"));
        }
    }

    #[test]
    fn drift_of_every_kind_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = BTreeMap::from([
            ("events/a.v1.json".to_owned(), "1\n2\n3\n".to_owned()),
            ("events/b.v1.json".to_owned(), "b\n".to_owned()),
        ]);
        fs::create_dir(dir.path().join("events")).unwrap();
        fs::write(dir.path().join("events/a.v1.json"), "1\nx\n3\n").unwrap();
        fs::write(dir.path().join("events/old.v1.json"), "").unwrap();
        let drifts = compare(dir.path(), &wanted).unwrap();
        assert_eq!(drifts["events/a.v1.json"], Drift::Stale(vec!["- x".into(), "+ 2".into()]));
        assert_eq!(drifts["events/b.v1.json"], Drift::Missing);
        assert_eq!(drifts["events/old.v1.json"], Drift::Unknown);
    }
}
