//! Every `esc` command that a document, an error or a comment of this repository names can be typed.

use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, error::ErrorKind};

use super::{Args, FIRST_STEPS};

/// Folders that are not ours to read.
const SKIPPED: [&str; 4] = ["target", "node_modules", "__pycache__", "vendor"];

#[test]
fn the_commands_that_are_named_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let mut named = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        for (index, line) in text.lines().enumerate() {
            for command in quoted(line) {
                named += 1;
                let problem = problem(command);
                assert!(problem.is_none(), "{}:{}: `{command}`: {}", file.display(), index + 1, problem.unwrap());
            }
        }
    }
    assert!(named > 60, "{named}");
}

#[test]
fn the_first_steps_can_be_taken() {
    let steps = FIRST_STEPS.lines().filter(|line| line.starts_with("  esc "));
    let commands: Vec<&str> =
        steps.flat_map(|line| line.trim().split("  ").next().unwrap_or_default().split(", ")).collect();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands {
        assert_eq!(problem(command), None, "{command}");
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        let known =
            path.extension().is_none_or(|kind| ["md", "rs", "py", "js", "yaml"].iter().any(|known| kind == *known));
        if path.is_dir() {
            collect(&path, files);
        } else if known && path.metadata().is_ok_and(|about| about.len() < 1 << 20) {
            files.push(path);
        }
    }
}

/// The commands that a line names in backquotes. What a program fills in (`{'...'}`) and what stands for several is left out.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let commands = line.split('`').skip(1).step_by(2).filter(|text| text.starts_with("esc "));
    commands
        .map(|text| text.split(" | ").next().unwrap_or(text))
        .filter(|text| !text.contains("{'") && !text.contains('|'))
}

/// Why a command can't be typed so; a word in capitals stands for whatever fits.
fn problem(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let stands_for = |word: &&str| word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
    let error = Args::command().try_get_matches_from(&words).err()?;
    match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => None,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if words.iter().any(stands_for) => None,
        _ => Some(error.to_string()),
    }
}
