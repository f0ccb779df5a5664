//! Agent Skills: folders with a `SKILL.md`, listed by name and description and opened when they are needed.
//!
//! A run keeps to what a skill said when it first opened it: the digest is in its log, the text in the store.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use engine::{EngineError, SkillFiles, SkillVersions};
use kernel::{Block, RunState, Trust, agent::AgentSpec, memory::SkillRef};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::slice::beside::{Beside, BesideItem};

/// Most bytes of one file of a skill, of all its files, and most files.
const FILE_BYTES: u64 = 64 * 1024;
const SKILL_BYTES: u64 = 512 * 1024;
const MAX_FILES: usize = 64;
/// How deep folders within a skill are looked into.
const DEPTH: usize = 4;
/// How long the folder is believed to be as it was.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Versions that are remembered beside the store.
const MAX_KEPT: usize = 64;
/// The file that makes a folder a skill.
const MAIN: &str = "SKILL.md";

/// A skill as its folder says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// Its name, which is its folder's.
    pub name: String,
    /// What it is for, and when.
    pub description: String,
    /// Digest of all its files.
    pub digest: String,
    /// Its files, by their path within its folder.
    pub files: SkillFiles,
}

/// The front matter of a `SKILL.md`. What else stands there is for others.
#[derive(Deserialize)]
struct FrontMatter {
    name: String,
    description: String,
}

/// What a folder of skills holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The skills, by name.
    pub skills: BTreeMap<String, Skill>,
    /// Folders that are none, and why.
    pub problems: BTreeMap<String, String>,
}

/// The skills of a folder, and the versions that runs have opened.
pub struct Shelf {
    folder: PathBuf,
    versions: Option<SkillVersions>,
    found: Mutex<Option<(Instant, Arc<Found>)>>,
    kept: Mutex<HashMap<String, Arc<SkillFiles>>>,
}

/// What a model asks to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillAsked {
    /// Which skill.
    pub name: String,
    /// Which file of it; `SKILL.md` if none is named.
    pub file: Option<String>,
}

impl Shelf {
    /// The skills in `folder`; without `versions` nothing is kept.
    #[must_use]
    pub fn new(folder: PathBuf, versions: Option<SkillVersions>) -> Self {
        Self { folder, versions, found: Mutex::default(), kept: Mutex::default() }
    }

    /// What the folder holds now, or did a moment ago.
    pub fn found(&self) -> Arc<Found> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, found)) = found.as_ref()
            && when.elapsed() < LOOK_AGAIN
        {
            return Arc::clone(found);
        }
        let now = Arc::new(discover(&self.folder));
        for (folder, problem) in &now.problems {
            let is_new = found.as_ref().is_none_or(|(_, before)| before.problems.get(folder) != Some(problem));
            if is_new {
                tracing::warn!(folder, problem, "a folder is no skill");
            }
        }
        *found = Some((Instant::now(), Arc::clone(&now)));
        now
    }

    /// The version of a skill that a run gets: the one that it has opened, or the one that there is now. Kept first, so that
    /// whoever reads the log later finds it.
    ///
    /// # Errors
    /// In words for the model, if there is no such skill; or when the store does not answer.
    pub async fn open(
        &self,
        state: &RunState,
        agent: &AgentSpec,
        name: &str,
    ) -> Result<Result<SkillRef, String>, EngineError> {
        if let Some(digest) = state.skills.get(name) {
            return Ok(Ok(SkillRef { name: name.to_owned(), digest: digest.clone() }));
        }
        let found = self.found();
        let Some(skill) = found.skills.get(name).filter(|_| agent.skills.iter().any(|named| named == name)) else {
            metrics::counter!("planner_skill_failures_total").increment(1);
            let why = found.problems.get(name).map(|problem| format!(": {problem}")).unwrap_or_default();
            let there = agent.skills.join(", ");
            return Ok(Err(format!("there is no skill `{}` here{why}; you have: {there}", kernel::excerpt(name, 80))));
        };
        let opened = SkillRef { name: skill.name.clone(), digest: skill.digest.clone() };
        if let Some(versions) = &self.versions {
            versions.keep(&opened, &skill.files).await?;
        }
        self.remember(&skill.digest, Arc::new(skill.files.clone()));
        metrics::counter!("planner_skills_opened_total", "skill" => skill.name.clone()).increment(1);
        Ok(Ok(opened))
    }

    fn remember(&self, digest: &str, files: Arc<SkillFiles>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(digest.to_owned(), files);
    }

    async fn files(&self, digest: &str) -> Option<Arc<SkillFiles>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned();
        if kept.is_some() {
            return kept;
        }
        let read = self.versions.as_ref()?.get(digest).await;
        let files = Arc::new(read.inspect_err(|error| tracing::warn!(%error, digest, "a skill was not read")).ok()??);
        self.remember(digest, Arc::clone(&files));
        Some(files)
    }

    /// What a turn is told: which skills there are, and what those say that are open. `opened` are those of this turn, `asked`
    /// the files of them.
    pub async fn before(
        &self,
        state: &RunState,
        agent: &AgentSpec,
        opened: &[SkillRef],
        asked: &[SkillAsked],
    ) -> Vec<Beside> {
        if agent.skills.is_empty() && state.skills.is_empty() {
            return Vec::new();
        }
        let open: BTreeMap<&str, &str> = state
            .skills
            .iter()
            .map(|(name, digest)| (name.as_str(), digest.as_str()))
            .chain(opened.iter().map(|skill| (skill.name.as_str(), skill.digest.as_str())))
            .collect();
        let mut shelf = vec![self.listed(agent)];
        let mut items = Vec::new();
        let mut failed = Vec::new();
        // What was asked for last comes first: it is what is needed now.
        for (name, digest) in open {
            let Some(files) = self.files(digest).await else {
                failed.push(format!("`{name}` could not be read now"));
                continue;
            };
            let named = asked.iter().rev().filter(|asked| asked.name == name).filter_map(|asked| asked.file.as_deref());
            for path in named.chain([MAIN]) {
                match files.get(path) {
                    Some(text) => items.push(item(name, path, text, digest, &files)),
                    None => failed.push(format!("`{name}` has no file `{}`", kernel::excerpt(path, 80))),
                }
            }
        }
        if !items.is_empty() || !failed.is_empty() {
            let left_out = (!failed.is_empty()).then(|| failed.join("; "));
            shelf.push(Beside { name: "skill", heading: "Skills that you opened", share: 40, items, left_out });
        }
        shelf
    }

    fn listed(&self, agent: &AgentSpec) -> Beside {
        let found = self.found();
        let (mut lines, mut missing) = (String::new(), Vec::new());
        for name in &agent.skills {
            match found.skills.get(name) {
                Some(skill) => lines.push_str(&format!("- {name}: {}\n", skill.description)),
                None => {
                    let why = found.problems.get(name).map_or("there is no such folder", String::as_str);
                    missing.push(format!("{name}: {why}"));
                }
            }
        }
        let block = Block::new(lines, Trust::Operator, "skills");
        let title = "What you know how to do; open one with `use_skill` before you need it".to_owned();
        let items =
            if block.text.is_empty() { Vec::new() } else { vec![BesideItem { title, block, source: String::new() }] };
        let left_out = (!missing.is_empty()).then(|| format!("not available: {}", missing.join("; ")));
        Beside { name: "skills", heading: "Skills", share: 10, items, left_out }
    }
}

fn item(name: &str, path: &str, text: &str, digest: &str, files: &SkillFiles) -> BesideItem {
    let others: Vec<_> = files.keys().filter(|file| file.as_str() != MAIN).map(String::as_str).collect();
    let also = if path == MAIN && !others.is_empty() {
        format!("; it also has {}: name one as `file` to read it", others.join(", "))
    } else {
        String::new()
    };
    BesideItem {
        title: format!("{name}/{path}{also}"),
        // Skills are part of what operators install, like the agent's file.
        block: Block::new(body(text), Trust::Operator, format!("skill:{name}")),
        source: format!("skill:{name}/{path}@{}", &digest[..digest.len().min(12)]),
    }
}

/// A `SKILL.md` without its front matter.
fn body(text: &str) -> &str {
    split(text).map_or(text, |(_, body)| body.trim_start())
}

/// Front matter and body.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rest =
        text.strip_prefix("---").and_then(|rest| rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n')))?;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

/// Looks through a folder of skills. A folder that is not there holds none.
#[must_use]
pub fn discover(folder: &Path) -> Found {
    let mut found = Found::default();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // What is linked from elsewhere is not looked at: a skill is what its folder holds.
        if name.starts_with('.') || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match read_skill(&name, &entry.path()) {
            Ok(skill) => {
                found.skills.insert(name, skill);
            }
            Err(problem) => {
                found.problems.insert(name, problem);
            }
        }
    }
    found
}

fn read_skill(folder_name: &str, folder: &Path) -> Result<Skill, String> {
    let mut files = SkillFiles::new();
    let mut left = SKILL_BYTES;
    gather(folder, folder, DEPTH, &mut left, &mut files)?;
    let main = files.get(MAIN).ok_or_else(|| format!("it has no readable {MAIN}"))?;
    let (front, _) =
        split(main).ok_or_else(|| format!("{MAIN} does not begin with front matter between two lines `---`"))?;
    let front: FrontMatter = serde_saphyr::from_str(front)
        .map_err(|error| format!("the front matter of {MAIN}: {}", kernel::excerpt(&error.to_string(), 200)))?;
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if front.name != folder_name || front.name.len() > 64 || !front.name.chars().all(legal) {
        return Err(format!(
            "`name` must be that of its folder, in a-z, 0-9 and `-`, not `{}`",
            kernel::excerpt(&front.name, 80)
        ));
    }
    let description = front.description.split_whitespace().collect::<Vec<_>>().join(" ");
    if description.is_empty() || description.chars().count() > 1024 {
        return Err(
            "`description` must have 1 to 1024 characters: it is all that tells when to open the skill".to_owned()
        );
    }
    let mut hasher = Sha256::new();
    for (path, text) in &files {
        hasher.update((path.len() as u64).to_be_bytes());
        hasher.update(path);
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text);
    }
    Ok(Skill { name: front.name, description, digest: hex::encode(hasher.finalize()), files })
}

/// The files of a folder that are text; what is none is left out.
fn gather(root: &Path, folder: &Path, depth: usize, left: &mut u64, files: &mut SkillFiles) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut entries: Vec<_> = entries.flatten().map(|entry| (entry.path(), entry.file_type())).collect();
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    for (path, kind) in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(kind) = kind else { continue };
        if name.starts_with('.') || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            if depth > 1 {
                gather(root, &path, depth - 1, left, files)?;
            }
            continue;
        }
        let bytes = std::fs::metadata(&path).map_err(|error| error.to_string())?.len();
        let shown = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        if bytes > FILE_BYTES || bytes > *left || files.len() == MAX_FILES {
            return Err(format!(
                "`{shown}` makes it too large: {FILE_BYTES} bytes a file, {SKILL_BYTES} in all, {MAX_FILES} files"
            ));
        }
        if let Ok(text) = std::fs::read_to_string(&path) {
            *left -= bytes;
            files.insert(shown, text.replace('\0', ""));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn folders_are_discovered_and_what_is_wrong_with_them_is_said() {
        let long = format!("---\nname: long\ndescription: {}\n---\n", "x".repeat(1100));
        let folder = folder(&[
            ("good/SKILL.md", "---\nname: good\ndescription: >\n  Does\n  good.\nlicense: MIT\n---\n# How\n"),
            ("good/references/more.md", "More."),
            ("none/README.md", "x"),
            ("bare/SKILL.md", "# No front matter\n"),
            ("other/SKILL.md", "---\nname: good\ndescription: x\n---\n"),
            ("mute/SKILL.md", "---\nname: mute\n---\n"),
            ("long/SKILL.md", &long),
            ("huge/SKILL.md", &"x".repeat(70_000)),
        ]);
        let found = discover(folder.path());
        assert_eq!(found.skills.keys().collect::<Vec<_>>(), ["good"]);
        let good = &found.skills["good"];
        assert_eq!(good.description, "Does good.");
        assert_eq!(good.files.len(), 2);
        assert_eq!(body(&good.files[MAIN]), "# How\n");
        for (name, word) in [
            ("none", "SKILL.md"),
            ("bare", "front matter"),
            ("other", "`name`"),
            ("mute", "description"),
            ("long", "1024"),
            ("huge", "too large"),
        ] {
            assert!(found.problems[name].contains(word), "{name}: {}", found.problems[name]);
        }
        assert_eq!(discover(&folder.path().join("nowhere")), Found::default());
    }

    #[test]
    fn every_change_is_another_version() {
        let folder = folder(&[("a/SKILL.md", "---\nname: a\ndescription: x\n---\n"), ("a/b.md", "1")]);
        let first = discover(folder.path()).skills["a"].digest.clone();
        assert_eq!(discover(folder.path()).skills["a"].digest, first);
        std::fs::write(folder.path().join("a/b.md"), "2").unwrap();
        assert_ne!(discover(folder.path()).skills["a"].digest, first);
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_read_from_outside_of_the_folder() {
        let folder = folder(&[("a/SKILL.md", "---\nname: a\ndescription: x\n---\n"), ("secret.md", "s")]);
        std::os::unix::fs::symlink(folder.path().join("secret.md"), folder.path().join("a/linked.md")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("a"), folder.path().join("b")).unwrap();
        let found = discover(folder.path());
        assert_eq!(found.skills.keys().collect::<Vec<_>>(), ["a"]);
        assert!(!found.skills["a"].files.contains_key("linked.md"));
    }
}
