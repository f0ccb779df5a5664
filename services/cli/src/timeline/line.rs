//! One entry of the story, laid out.

use jiff::Timestamp;

use super::words::since;
use crate::style::{Paint, Style, clean, cut, wrap};

/// Columns of the time.
const TIME: usize = 8;
/// Columns of the label.
const LABEL: usize = 9;
/// Columns before the text.
const INDENT: usize = TIME + 2 + 2 + LABEL + 1;
/// Most lines of one text.
const MOST: usize = 6;

/// An entry.
#[derive(Clone, Debug)]
pub struct Line {
    glyph: char,
    label: &'static str,
    paint: Paint,
    text: Vec<(Paint, String)>,
    more: Vec<(Paint, String)>,
}

impl Line {
    /// With a sign, a label in its colour, and nothing said yet.
    pub const fn new(glyph: char, label: &'static str, paint: Paint) -> Self {
        Self { glyph, label, paint, text: Vec::new(), more: Vec::new() }
    }

    /// Says something more, in the same line if it fits.
    #[must_use]
    pub fn say(self, text: impl AsRef<str>) -> Self {
        self.painted(Paint::Plain, text)
    }

    /// As [`Line::say`], beside the point.
    #[must_use]
    pub fn aside(self, text: impl AsRef<str>) -> Self {
        self.painted(Paint::Dim, text)
    }

    /// As [`Line::say`], to be seen first.
    #[must_use]
    pub fn stress(self, text: impl AsRef<str>) -> Self {
        self.painted(Paint::Bold, text)
    }

    /// As [`Line::say`], in a colour.
    #[must_use]
    pub fn painted(mut self, paint: Paint, text: impl AsRef<str>) -> Self {
        if !text.as_ref().is_empty() {
            self.text.push((paint, clean(text.as_ref())));
        }
        self
    }

    /// Adds lines below.
    #[must_use]
    pub fn below(mut self, paint: Paint, text: impl AsRef<str>) -> Self {
        self.more.extend(text.as_ref().lines().map(|line| (paint, clean(line))));
        self
    }

    /// As text.
    pub fn render(&self, at: Timestamp, start: Timestamp, style: Style) -> Vec<String> {
        let time = style.paint(Paint::Dim, &format!("{:>TIME$}", since(at, start)));
        let label = style.paint(self.paint, &format!("{} {:<LABEL$}", self.glyph, self.label));
        let room = style.width().saturating_sub(INDENT).max(24);
        let mut lines = Vec::new();
        let mut line = format!("{time}  {label} ");
        let mut used = 0;
        let mut before = Paint::Plain;
        for (paint, text) in &self.text {
            let length = text.chars().count();
            if used > 0 && used + 3 + length > room {
                lines.push(std::mem::replace(&mut line, " ".repeat(INDENT)));
                used = 0;
            }
            if used > 0 {
                let apart = *paint == Paint::Dim || before == Paint::Dim;
                let gap = if apart && !text.starts_with(['—', '{']) { " · " } else { " " };
                line += &style.paint(Paint::Dim, gap);
                used += gap.chars().count();
            }
            before = *paint;
            for (index, piece) in shortened(text, room).into_iter().enumerate() {
                if index > 0 {
                    lines.push(std::mem::replace(&mut line, " ".repeat(INDENT)));
                    used = 0;
                }
                used += piece.chars().count();
                line += &style.paint(*paint, &piece);
            }
        }
        lines.push(line.trim_end().to_owned());
        let bar = style.paint(Paint::Dim, "│");
        for (paint, text) in &self.more {
            lines.push(format!("{}{bar} {}", " ".repeat(INDENT), style.paint(*paint, &cut(text, room - 2))));
        }
        lines
    }
}

/// `text` wrapped, and cut after a few lines.
fn shortened(text: &str, room: usize) -> Vec<String> {
    let mut lines = wrap(text, room);
    if lines.len() > MOST {
        lines.truncate(MOST);
        if let Some(last) = lines.last_mut() {
            last.push_str(" …");
        }
    }
    lines
}
