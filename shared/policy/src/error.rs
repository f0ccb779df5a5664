//! Why a set of policies could not be taken: always the file, the line if there is one, and the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Policies could not be loaded or tested. Nothing was changed. Retrying helps only once a file has changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file or the directory could not be read.
    #[error("can't read {}: {source}; it must be a readable directory with schema.cedarschema and *.cedar files", path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// Why it could not be.
        source: io::Error,
    },
    /// The files were read but are not a valid set. Never empty.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
    /// The test cases are not what they must be.
    #[error("test case {index}: {message}; a case is {{name, request, expect}}, see infra/policies/README.md")]
    Cases {
        /// Which case, from 0.
        index: usize,
        /// What is wrong with it.
        message: String,
    },
}

impl PolicyError {
    /// The problems of an invalid set; empty for other errors.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid(problems) => problems,
            Self::Read { .. } | Self::Cases { .. } => &[],
        }
    }
}

/// One thing wrong in a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name within the directory.
    pub file: String,
    /// The line, from 1, if the problem has a place.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}; {}", self.message, self.remedy)
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
