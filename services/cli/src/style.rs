//! Colours, where there is somebody to see them.

use std::io::IsTerminal;

/// Whether to colour, and how wide the terminal is.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    colour: bool,
    width: usize,
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// As it is.
    Plain,
    /// Beside the point.
    Dim,
    /// To be seen first.
    Bold,
    /// Went well.
    Good,
    /// Went badly.
    Bad,
    /// Asks for attention.
    Warn,
    /// The model's.
    Model,
    /// The outside world's.
    World,
    /// A person's.
    Person,
}

/// Columns of output that goes to no terminal.
const WIDTH: usize = 120;

impl Style {
    /// For standard output as it is: colours on a terminal, unless `NO_COLOR` is set or the terminal has none.
    pub fn detect(no_color: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let terminal = std::io::stdout().is_terminal();
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let colour = terminal && !no_color && !dumb && !set("NO_COLOR") || set("CLICOLOR_FORCE") && !no_color;
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        Self { colour, width: columns.unwrap_or(WIDTH).clamp(60, 200) }
    }

    /// No colours at all.
    #[cfg(test)]
    pub const fn plain() -> Self {
        Self { colour: false, width: 100 }
    }

    /// Columns of a line.
    pub const fn width(self) -> usize {
        self.width
    }

    /// Whether there are colours.
    pub const fn has_colour(self) -> bool {
        self.colour
    }

    /// `text`, painted.
    pub fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Plain => "",
            Paint::Dim => "2",
            Paint::Bold => "1",
            Paint::Good => "32",
            Paint::Bad => "31",
            Paint::Warn => "33",
            Paint::Model => "36",
            Paint::World => "35",
            Paint::Person => "34",
        };
        if self.colour && !code.is_empty() && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// `text` as safe for a terminal: control characters, which could move the cursor or fake a line, are shown as `·`.
pub fn clean(text: &str) -> String {
    let unsafe_ = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if unsafe_(c) { '·' } else { c }).collect()
}

/// `text` cut to `columns`, with an ellipsis if something is gone.
pub fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// `text` in lines of at most `columns`, broken between words where that is possible.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        let mut length = 0;
        for word in paragraph.split(' ') {
            let mut word = word;
            let mut size = word.chars().count();
            if length > 0 && length + 1 + size > columns {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            if length > 0 {
                line.push(' ');
                length += 1;
            }
            while size > columns {
                let end = word.char_indices().nth(columns).map_or(word.len(), |(index, _)| index);
                lines.push(format!("{line}{}", &word[..end]));
                line.clear();
                word = &word[end..];
                size -= columns;
            }
            line.push_str(word);
            length += size;
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_between_words_and_breaks_what_is_too_long() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefghijkl", 8), ["abcdefgh", "ijkl"]);
        assert_eq!(wrap("a\n\nb", 8), ["a", "", "b"]);
        assert!(wrap("", 8).is_empty());
    }

    #[test]
    fn output_of_others_cannot_drive_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\r\nc\u{202e}"), "a·[31mb··c·");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("äöü", 3), "äöü");
    }

    #[test]
    fn paints_only_where_it_is_wanted() {
        assert_eq!(Style::plain().paint(Paint::Bad, "x"), "x");
        let colour = Style { colour: true, width: 80 };
        assert_eq!(colour.paint(Paint::Bad, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(colour.paint(Paint::Plain, "x"), "x");
    }
}
