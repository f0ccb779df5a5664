use std::fs;

use policy::{Policies, PolicyError};

use crate::{dir, shipped};

/// What loading these policies says.
fn complaint(policies: &str) -> String {
    match Policies::load(dir(policies).path()) {
        Err(error @ PolicyError::Invalid(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_mistake_names_file_line_and_remedy() {
    let free = "permit (principal, action, resource)";
    for (policies, wanted) in [
        ("\n@id(\"a\")\npermit (principal, action resource);".to_owned(), ["test.cedar:3:", "unexpected token"]),
        (format!("\n\n{free};"), ["test.cedar:3: the policy has no @id", "write @id(\"a-name\")"]),
        (format!("@id(\"A b\") {free};"), ["test.cedar:1: the id \"A b\" is not plain", "small letters"]),
        (format!("@id(\"a\") {free};\n@id(\"a\") {free};"), ["test.cedar:2:", "is taken by test.cedar:1"]),
        (format!("@id(\"a\") @aks(\"why\") {free};"), ["@aks means nothing here", "use @id, @reason, @ask"]),
        (format!("@id(\"a\") @ask(\" \") {free};"), ["@ask of a has no words", "say why"]),
        (format!("@id(\"a\") @ask {free};"), ["@ask of a has no words", "say why"]),
        (format!("@id(\"a\") @obligation(\"pray\") {free};"), ["obliges to \"pray\"", "use dry_run_first"]),
        ("@id(\"a\") forbid (principal, action, resource);".to_owned(), ["without saying why", "add @reason"]),
        (
            "@id(\"a\") @reason(\"x\") @ask(\"y\") forbid (principal, action, resource);".to_owned(),
            ["can neither ask nor oblige", "make it a permit"],
        ),
        ("@id(\"a\") permit (principal == ?principal, action, resource);".to_owned(), ["test.cedar:1: templates", ""]),
        (String::new(), ["there is no policy", "restore default.cedar"]),
    ] {
        let said = complaint(&policies);
        assert!(wanted.iter().all(|part| said.contains(part)), "{policies}\nsaid: {said}");
    }
}

#[test]
fn policies_are_checked_against_the_schema() {
    let when = |condition: &str| {
        complaint(&format!("@id(\"a\")\npermit (principal, action, resource)\nwhen {{\n  {condition}\n}};"))
    };
    for condition in [
        "context.no_such_fact",
        "context.named_host",
        "context.trust == \"untrusted\"",
        "context.trust == Trust::\"untrused\"",
        "resource.kind == ToolKind::\"proces\"",
        "context.arguments.getTag(\"/to\").text == \"x\"",
        "context.arguments.hasTag(\"/to\") && context.arguments.getTag(\"/to\").text > 3",
    ] {
        let said = when(condition);
        assert!(said.contains("test.cedar:4: "), "{condition}\nsaid: {said}");
    }
    // Never true, which is only a warning of Cedar's: a forbid like that would protect nothing.
    let said = when("context.trust == Trust::\"trusted\" && false");
    assert!(said.contains("test.cedar:"), "{said}");
    let said = complaint("@id(\"a\") permit (principal, action == Action::\"delete\", resource);");
    assert!(said.contains("test.cedar:1: "), "{said}");
}

#[test]
fn all_mistakes_of_a_stage_are_told_at_once() {
    let dir = dir("permit (principal, action, resource);\npermit (principal, action, resource);");
    fs::write(dir.path().join("other.cedar"), "nonsense").unwrap();
    let error = Policies::load(dir.path()).unwrap_err();
    let places: Vec<_> = error.problems().iter().map(|problem| (problem.file.as_str(), problem.line)).collect();
    assert_eq!(places, [("other.cedar", Some(1)), ("test.cedar", Some(1)), ("test.cedar", Some(2))]);
}

#[test]
fn a_schema_that_does_not_fit_is_refused() {
    let shipped = fs::read_to_string(shipped().join("schema.cedarschema")).unwrap();
    let dir = dir("@id(\"a\") permit (principal, action, resource);");
    let path = dir.path().join("schema.cedarschema");
    for (schema, wanted) in [
        (shipped.replace("confined: Bool,", "confined: Bool, moon: String,"), "does not fit this version"),
        (shipped.replace("confined: Bool,", ""), "does not fit this version"),
        (shipped.replace("physical in", "mental in"), "does not fit this version"),
        (format!("\n\nentity;{shipped}"), "schema.cedarschema:3: "),
    ] {
        fs::write(&path, schema).unwrap();
        let said = Policies::load(dir.path()).unwrap_err().to_string();
        assert!(said.contains(wanted) && said.contains("schema.cedarschema"), "{said}");
    }
    fs::remove_file(&path).unwrap();
    let said = Policies::load(dir.path()).unwrap_err().to_string();
    assert!(said.contains("the file is missing; restore the schema"), "{said}");
}

#[test]
fn only_policy_files_of_the_directory_itself_are_read() {
    let dir = dir("@id(\"a\") permit (principal, action, resource);");
    let version = Policies::load(dir.path()).unwrap().version().to_owned();
    fs::write(dir.path().join(".#test.cedar"), "nonsense").unwrap();
    fs::write(dir.path().join("README.md"), "nonsense").unwrap();
    fs::create_dir(dir.path().join("below")).unwrap();
    fs::write(dir.path().join("below/b.cedar"), "nonsense").unwrap();
    assert_eq!(Policies::load(dir.path()).unwrap().version(), version);
    let said = Policies::load(&dir.path().join("absent")).unwrap_err().to_string();
    assert!(said.contains("can't read") && said.contains("absent"), "{said}");
}
