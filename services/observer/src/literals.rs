//! Which words are on every line that a regular expression fits: what is cheap to look for, before what is dear.

use regex_syntax::{
    ParserBuilder,
    hir::{Class, Hir, HirKind},
};

/// Most words of one pattern.
const MAX_WORDS: usize = 64;
/// As often a repeated text is looked for at most.
const REPEATED: u32 = 8;
/// Most letters of a class that are looked for one by one.
const MAX_LETTERS: usize = 16;
/// A shorter word is on too many lines to spare any work.
const MIN_BYTES: usize = 2;

/// Words, in lower case, of which at least one is on every line that `pattern` fits, in any ASCII case. `None`: there are
/// no such words, and every line must be looked at.
pub(crate) fn required(pattern: &str, unicode: bool) -> Option<Vec<Vec<u8>>> {
    let hir = ParserBuilder::new().unicode(unicode).utf8(false).build().parse(pattern).ok()?;
    let mut words = of(&hir)?;
    words.sort_unstable();
    words.dedup();
    (shortest(&words) >= MIN_BYTES && words.len() <= MAX_WORDS).then_some(words)
}

fn of(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => None,
        HirKind::Literal(_) => exact(hir).filter(|text| !text.is_empty()).map(|text| vec![text]),
        HirKind::Class(class) => one_letter(class).map(|letter| vec![vec![letter]]).or_else(|| few_letters(class)),
        HirKind::Repetition(repetition) if repetition.min > 0 => match exact(&repetition.sub) {
            Some(text) if !text.is_empty() => Some(vec![text.repeat(repetition.min.min(REPEATED) as usize)]),
            _ => of(&repetition.sub),
        },
        HirKind::Repetition(_) => None,
        HirKind::Capture(capture) => of(&capture.sub),
        HirKind::Concat(parts) => of_sequence(parts),
        HirKind::Alternation(parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(of(part)?);
            }
            Some(all)
        }
    }
}

/// The best words of a sequence: the longest run of fixed text, or what one of its parts needs. A choice between fixed texts
/// goes on with what stands before it: of ` ... (?:FAIL|ERROR)` the words are ` ... fail` and ` ... error`, and no look is spent on
/// ` ... ok`. Of equals the last, since patterns go from what is common to what is special.
fn of_sequence(parts: &[Hir]) -> Option<Vec<Vec<u8>>> {
    let mut best: Option<Vec<Vec<u8>>> = None;
    let mut runs = vec![Vec::new()];
    let mut offer = |words: Vec<Vec<u8>>| {
        let is_some = words.iter().all(|word| !word.is_empty());
        if is_some && best.as_ref().is_none_or(|have| value(&words) >= value(have)) {
            best = Some(words);
        }
    };
    for part in parts {
        match texts(part) {
            Some(texts) if runs.len() * texts.len() <= MAX_WORDS => {
                runs = runs.iter().flat_map(|run| texts.iter().map(move |text| [&run[..], text].concat())).collect();
            }
            Some(texts) => offer(std::mem::replace(&mut runs, texts)),
            None => {
                offer(std::mem::replace(&mut runs, vec![Vec::new()]));
                if let Some(words) = of(part) {
                    offer(words);
                }
            }
        }
    }
    offer(runs);
    best
}

/// The few texts of which a part fits exactly one, but for its case.
fn texts(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Capture(capture) => texts(&capture.sub),
        HirKind::Alternation(parts) => parts.iter().map(exact).collect(),
        _ => exact(hir).map(|text| vec![text]),
    }
}

/// The one text that a part fits, but for its case; empty for what has no width.
fn exact(hir: &Hir) -> Option<Vec<u8>> {
    match hir.kind() {
        HirKind::Look(_) => Some(Vec::new()),
        HirKind::Literal(literal) => Some(literal.0.to_ascii_lowercase()),
        HirKind::Class(class) => one_letter(class).map(|letter| vec![letter]),
        HirKind::Capture(capture) => exact(&capture.sub),
        HirKind::Concat(parts) => {
            let texts: Option<Vec<Vec<u8>>> = parts.iter().map(exact).collect();
            Some(texts?.concat())
        }
        _ => None,
    }
}

/// The letter that a class stands for in both cases. What folds to a letter from beyond ASCII is left out of account.
fn one_letter(class: &Class) -> Option<u8> {
    let mut letters = Vec::new();
    match class {
        Class::Unicode(class) => {
            for range in class.ranges() {
                if range.start() != range.end() {
                    return None;
                }
                letters.extend(u8::try_from(range.start()).ok().filter(u8::is_ascii));
            }
        }
        Class::Bytes(class) => {
            for range in class.ranges() {
                if range.start() != range.end() || !range.start().is_ascii() {
                    return None;
                }
                letters.push(range.start());
            }
        }
    }
    let first = letters.first()?.to_ascii_lowercase();
    letters.iter().all(|letter| letter.to_ascii_lowercase() == first).then_some(first)
}

/// The letters of a class of few.
fn few_letters(class: &Class) -> Option<Vec<Vec<u8>>> {
    let Class::Unicode(class) = class else { return None };
    let mut letters = Vec::new();
    for letter in class.ranges().iter().flat_map(|range| range.start()..=range.end()) {
        if letters.len() == MAX_LETTERS {
            return None;
        }
        letters.push(letter.to_string().into_bytes());
    }
    Some(letters)
}

fn shortest(words: &[Vec<u8>]) -> usize {
    words.iter().map(Vec::len).min().unwrap_or(0)
}

/// How much a set of words spares: long words are on few lines, but more than this makes no difference.
fn value(words: &[Vec<u8>]) -> usize {
    shortest(words).min(6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: &str) -> Option<Vec<String>> {
        required(pattern, false).map(|words| words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect())
    }

    #[test]
    fn what_every_fitting_line_holds_is_found() {
        for (pattern, wanted) in [
            ("^error\\[E\\d{4}\\]: ", Some(vec!["error[e"])),
            ("(?i)\\bsegmentation fault\\b", Some(vec!["segmentation fault"])),
            ("(?:foo|barn) +x", Some(vec!["barn", "foo"])),
            ("^E   \\S", Some(vec!["e   "])),
            ("^\\s*--- FAIL: (?P<test>\\S+)", Some(vec!["--- fail: "])),
            ("(?:fatal )?error:", Some(vec!["error:"])),
            ("^_{3,} \\w+", Some(vec!["___"])),
            ("\\d+%", None),
            ("(?:foo)?", None),
            ("a|\\d", None),
            ("(?:●|✖) ", Some(vec!["●", "✖"])),
            ("^> Task :\\S+ FAILED", Some(vec![" failed"])),
            ("\\S+ \\.\\.\\. (?:FAIL|ERROR)\\b", Some(vec![" ... error", " ... fail"])),
            ("(?:no|more) (?:room|time)\\d", Some(vec!["more room", "more time", "no room", "no time"])),
        ] {
            let wanted = wanted.map(|words| words.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(words(pattern), wanted, "{pattern}");
        }
    }

    #[test]
    fn folding_beyond_ascii_does_not_hide_a_word() {
        assert_eq!(required("(?i)disk", true), Some(vec![b"disk".to_vec()]));
    }
}
