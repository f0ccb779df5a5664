//! What artifacts may be called.

/// Most bytes of a name.
const NAME_BYTES: usize = 200;
/// Most bytes of a media type.
const MEDIA_TYPE_BYTES: usize = 120;

/// Whether the text can be the name of an artifact: what a person would call a file, with `/` between folders.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    let legal = |letter: char| {
        letter.is_alphanumeric() || matches!(letter, '.' | '_' | '-' | ' ' | '(' | ')' | '+' | ',' | '@')
    };
    if name.is_empty() || name.len() > NAME_BYTES {
        return Err("a name has 1 to 200 bytes");
    }
    for part in name.split('/') {
        if part.is_empty() || part == "." || part == ".." {
            return Err("no part between `/` may be empty, `.` or `..`");
        }
        if part.trim() != part || !part.chars().all(legal) {
            return Err("letters, digits, spaces inside and . _ - ( ) + , @ only");
        }
    }
    Ok(())
}

/// Whether the text can be a media type, and nothing else in a header.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_media_type(text: &str) -> Result<(), &'static str> {
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_essence = essence.split_once('/').is_some_and(|(kind, sub)| is_token(kind) && is_token(sub.trim_end()));
    let is_plain = parameters.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if text.len() <= MEDIA_TYPE_BYTES && is_essence && is_plain { Ok(()) } else { Err("not of the form type/subtype") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_like_files() {
        for good in ["report.md", "logs/build (2).txt", "Übersicht.pdf", "a"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = "x".repeat(201);
        for bad in ["", "/etc/passwd", "a//b", "../x", "a/..", "a\nb", "a\0", " a", "a\\b", "a\"b", &long] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn media_types_fit_a_header() {
        for good in ["text/plain", "text/markdown; charset=utf-8", "application/vnd.api+json"] {
            assert_eq!(check_media_type(good), Ok(()), "{good}");
        }
        for bad in ["", "text", "text/", "/x", "text/plain\r\nx: y", "text/plain; a=\u{1}", "é/x"] {
            assert!(check_media_type(bad).is_err(), "{bad:?}");
        }
    }
}
