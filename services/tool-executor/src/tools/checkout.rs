//! `repo.checkout`: a repository from the operator's folder of repositories, into the run's workspace.
//!
//! A repository is a folder there: with its history, it is cloned by git at the wanted ref; without, it is copied as it
//! stands. It is made aside and then moved, and notes say how far that came, so that the same call may do it again.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;

use super::{Invocation, required, text};
use crate::outcome::{Content, Happened, ToolError};
use crate::workspace::{RESERVED, Workspace};

/// `repository` at `ref`, into the workspace itself or its folder `into`.
pub(super) async fn checkout(
    root: &Path,
    workspace: Workspace,
    invocation: Invocation<'_>,
) -> Result<Content, ToolError> {
    let name = required(invocation, "repository")?;
    let (wanted, into) = (text(invocation, "ref"), text(invocation, "into").filter(|into| *into != "."));
    if !is_name(name) {
        let words = "`repository` is a name of letters, digits, `.`, `-` and `_`";
        return Err(ToolError::final_("invalid_arguments", words));
    }
    if wanted.is_some_and(|wanted| !is_ref(wanted)) {
        return Err(ToolError::final_("invalid_arguments", "`ref` is not the name of a branch, tag or commit"));
    }
    let source = root.join(name);
    if !source.is_dir() {
        return Err(ToolError::final_("not_found", format!("there is no repository `{name}`")));
    }
    workspace.ensure().map_err(|error| failed(&error))?;
    let target = workspace.make_folder(into.unwrap_or_default())?;
    let place = Place::new(&workspace, target, invocation);
    if !place.is_ready() {
        place.prepare().map_err(|error| failed(&error))?;
        if is_git(&source) {
            clone(&source, &place.staging, wanted, invocation).await?;
        } else {
            let (from, to) = (source.clone(), place.staging.clone());
            blocking(move || copy(&from, &to)).await?;
        }
        if let Some(taken) = place.taken().map_err(|error| failed(&error))? {
            let words =
                format!("`{taken}` is in the workspace already: use what is there, or check out `into` a folder");
            return Err(ToolError::final_("exists", words));
        }
    }
    place.finish().map_err(|error| failed(&error))?;
    let kept_ref = wanted.filter(|_| is_git(&source));
    let note = if kept_ref == wanted { "" } else { "; it has no history, so there is no `ref` to choose" };
    let path = into.unwrap_or(".");
    let value = json!({ "repository": name, "path": path, "ref": kept_ref });
    Ok(Content::own(format!("checked out `{name}` into `{path}`{note}"), value))
}

/// Where a checkout is made, and where it goes.
struct Place {
    target: PathBuf,
    /// The whole, until it is moved piece by piece.
    staging: PathBuf,
    /// There once the whole is ready to be moved.
    ready: PathBuf,
}

impl Place {
    fn new(workspace: &Workspace, target: PathBuf, invocation: Invocation<'_>) -> Self {
        let own = workspace.root().join(RESERVED).join("checkouts");
        let call = invocation.call.to_string();
        Self { target, staging: own.join(&call), ready: own.join(format!("{call}.ready")) }
    }

    fn is_ready(&self) -> bool {
        self.ready.exists()
    }

    fn prepare(&self) -> io::Result<()> {
        if let Some(own) = self.staging.parent() {
            std::fs::create_dir_all(own)?;
        }
        gone(std::fs::remove_dir_all(&self.staging))
    }

    /// Something in the place of what would be moved.
    fn taken(&self) -> io::Result<Option<String>> {
        for entry in std::fs::read_dir(&self.staging)? {
            let name = entry?.file_name();
            if std::fs::symlink_metadata(self.target.join(&name)).is_ok() {
                return Ok(Some(name.to_string_lossy().into_owned()));
            }
        }
        std::fs::write(&self.ready, b"")?;
        Ok(None)
    }

    /// Moves what is not yet moved.
    fn finish(&self) -> io::Result<()> {
        if !self.staging.exists() {
            return Ok(());
        }
        for entry in std::fs::read_dir(&self.staging)? {
            let entry = entry?;
            std::fs::rename(entry.path(), self.target.join(entry.file_name()))?;
        }
        gone(std::fs::remove_dir(&self.staging))
    }
}

/// What is not there need not be removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=100).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with(['.', '-'])
}

fn is_ref(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/');
    (1..=200).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('-') && !name.contains("..")
}

fn is_git(source: &Path) -> bool {
    source.join(".git").exists() || (source.join("HEAD").is_file() && source.join("objects").is_dir())
}

/// Clones, then moves to the wanted ref. The repository is the operator's own; no hook of it runs.
async fn clone(source: &Path, to: &Path, wanted: Option<&str>, invocation: Invocation<'_>) -> Result<(), ToolError> {
    let source = std::path::absolute(source).map_err(|error| failed(&error))?;
    let arguments = [source.as_os_str(), to.as_os_str()];
    git(&["clone", "--quiet", "--no-hardlinks", "--"], &arguments, to.parent(), invocation).await?;
    if let Some(wanted) = wanted {
        let short = wanted.strip_prefix("refs/heads/").or(wanted.strip_prefix("refs/tags/")).unwrap_or(wanted);
        git(&["checkout", "--quiet", short, "--"], &[], Some(to), invocation).await?;
    }
    Ok(())
}

async fn git(
    words: &[&str],
    paths: &[&std::ffi::OsStr],
    within: Option<&Path>,
    invocation: Invocation<'_>,
) -> Result<(), ToolError> {
    let mut command = tokio::process::Command::new("git");
    command.args(["-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*"]).args(words).args(paths);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("GIT_TERMINAL_PROMPT", "0");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    if let Some(within) = within {
        command.current_dir(within);
    }
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match tokio::time::timeout(invocation.timeout, running).await {
        Err(_) => return Err(ToolError::transient("timeout", "git took too long", Happened::No)),
        Ok(output) => {
            output.map_err(|error| ToolError::final_("misconfigured", format!("git can't be run: {error}")))?
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(ToolError { trust: kernel::Trust::Untrusted, ..ToolError::final_("git", format!("git: {}", said.trim())) })
}

/// Copies a folder: regular files with their permissions, folders, and links as links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, to) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &to)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(entry.path())?, to)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<(), ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| failed(&error)),
        Err(error) => Err(ToolError::transient("io", error.to_string(), Happened::No)),
    }
}

fn failed(error: &io::Error) -> ToolError {
    ToolError::transient("io", format!("the repository can't be copied: {error}"), Happened::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        for name in ["app", "my-app.rs", "A_1"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".git", "-rf", "a/b", "a b", "a\n", "ü"] {
            assert!(!is_name(name), "{name}");
        }
        for name in ["main", "refs/heads/main", "v1.2.3", "0a1b2c3"] {
            assert!(is_ref(name), "{name}");
        }
        for name in ["", "-x", "--upload-pack=x", "a..b", "a b", "a;b", "@{-1}"] {
            assert!(!is_ref(name), "{name}");
        }
    }
}
