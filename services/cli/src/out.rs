//! What is said: tables and sentences for people on stdout, JSON for programs, errors on stderr.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use serde::Serialize;

use crate::{
    error::CliError,
    style::{Paint, Style, clean},
    table::Table,
};

/// Standard output.
#[derive(Clone, Debug)]
pub struct Out {
    json: bool,
    style: Style,
}

impl Out {
    /// For JSON or for people.
    pub fn new(json: bool, no_color: bool) -> Self {
        Self { json, style: Style::detect(no_color) }
    }

    /// How to paint.
    pub const fn style(&self) -> Style {
        self.style
    }

    /// Whether a program reads.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people; nothing with `--json`.
    pub fn say(&self, line: impl AsRef<str>) {
        if !self.json {
            write_line(line.as_ref());
        }
    }

    /// What people should know though it is done; on stderr, so that no program takes it for an answer.
    pub fn warn(&self, line: impl AsRef<str>) {
        if !self.json {
            let _ = writeln!(io::stderr().lock(), "{}", self.style.paint(Paint::Warn, &clean(line.as_ref())));
        }
    }

    /// Text as it is, without a line end.
    pub fn raw(&self, text: &[u8]) {
        end_if_closed(&io::stdout().lock().write_all(text));
    }

    /// A value on a line of its own; nothing for people.
    pub fn value(&self, value: &impl Serialize) {
        if self.json {
            write_line(&serde_json::to_string(value).unwrap_or_default());
        }
    }

    /// The same as JSON or as a table.
    pub fn table(&self, value: &impl Serialize, table: &Table) {
        if self.json {
            self.value(value);
        } else {
            table.lines(self.style).iter().for_each(|line| write_line(line));
        }
    }

    /// Text that is replaced by whatever comes next; only on a terminal. Empty removes it.
    pub fn fleeting(&self, text: &str) {
        if !self.json && self.style.has_colour() {
            let text = self.style.paint(Paint::Dim, text);
            let mut stdout = io::stdout().lock();
            end_if_closed(&write!(stdout, "\r\x1b[K{text}").and_then(|()| stdout.flush()));
        }
    }

    /// Says what went wrong and gives the exit code.
    pub fn fail(&self, error: &CliError) -> ExitCode {
        let mut stderr = io::stderr().lock();
        // If nobody reads stderr, the exit code still tells.
        let _ = if self.json {
            writeln!(stderr, "{}", error.to_json())
        } else {
            let remedy = error.remedy().map(|remedy| format!("\n  → {remedy}")).unwrap_or_default();
            writeln!(stderr, "esc: {error}{remedy}")
        };
        error.exit_code()
    }
}

fn write_line(line: &str) {
    let mut stdout = io::stdout().lock();
    end_if_closed(&writeln!(stdout, "{line}"));
}

/// Whoever read the output has seen enough (`esc runs | head`): that is no failure.
fn end_if_closed(written: &io::Result<()>) {
    if written.is_err() {
        std::process::exit(0);
    }
}
