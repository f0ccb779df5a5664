//! How bad it is what a service says, under whatever name.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How far into a line its severity is looked for.
const SEVERITY_WITHIN: usize = 120;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Finer than debugging.
    Trace,
    /// For those who debug.
    Debug,
    /// Ordinary.
    Info,
    /// Perhaps a fault.
    Warn,
    /// A fault.
    Error,
    /// The end.
    Fatal,
}

impl Severity {
    /// From the number that OTLP gives it, 1 to 24.
    #[must_use]
    pub const fn from_number(number: i64) -> Option<Self> {
        match number {
            1..=4 => Some(Self::Trace),
            5..=8 => Some(Self::Debug),
            9..=12 => Some(Self::Info),
            13..=16 => Some(Self::Warn),
            17..=20 => Some(Self::Error),
            21..=24 => Some(Self::Fatal),
            _ => None,
        }
    }

    /// Whether it is a fault.
    #[must_use]
    pub fn is_fault(self) -> bool {
        self >= Self::Error
    }

    /// The first word near the start of a line that names a severity in capitals, as most loggers write it.
    pub(crate) fn in_text(text: &str) -> Option<Self> {
        let end = (0..=text.len().min(SEVERITY_WITHIN)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let words = text[..end].split(|letter: char| !letter.is_ascii_alphanumeric());
        words
            .filter(|word| (4..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase()))
            .find_map(|word| word.parse().ok())
    }
}

impl FromStr for Severity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // OTLP also knows `ERROR2` and so on.
        let word = text.trim().trim_end_matches(|letter: char| letter.is_ascii_digit()).to_ascii_lowercase();
        Ok(match word.as_str() {
            "trace" | "finest" | "finer" => Self::Trace,
            "debug" | "fine" | "verbose" => Self::Debug,
            "info" | "information" | "informational" | "notice" => Self::Info,
            "warn" | "warning" => Self::Warn,
            "error" | "err" | "severe" => Self::Error,
            "fatal" | "critical" | "crit" | "alert" | "emerg" | "emergency" | "panic" => Self::Fatal,
            _ => return Err(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_it_near_its_start_and_in_capitals() {
        for (line, severity) in [
            ("16:42:22.382 WARN t.s.Travel#5 [ERROR codes read]", Some(Severity::Warn)),
            ("2026-01-02 [main] SEVERE no room", Some(Severity::Error)),
            ("all is well, no error", None),
            ("INFORMATION desk", None),
        ] {
            assert_eq!(Severity::in_text(line), severity, "{line}");
        }
        assert_eq!(Severity::in_text(&format!("{} ERROR", "x".repeat(SEVERITY_WITHIN))), None);
    }

    #[test]
    fn words_and_numbers_of_otlp_are_known() {
        assert_eq!(("ERROR2".parse(), Severity::from_number(18)), (Ok(Severity::Error), Some(Severity::Error)));
        assert_eq!(("loud".parse::<Severity>(), Severity::from_number(0)), (Err(()), None));
        assert!(Severity::Fatal.is_fault() && !Severity::Warn.is_fault());
    }
}
