//! Counting tokens without a tokenizer.

/// About how many tokens a text takes: a quarter of its bytes, rounded up. English and code take less with every tokenizer
/// in use; text in other scripts takes more bytes per character and so is not undercounted.
#[must_use]
pub fn count(text: &str) -> u64 {
    of_bytes(text.len())
}

/// As [`count`], for a text of this many bytes.
#[must_use]
pub fn of_bytes(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}

/// About how many bytes fit into that many tokens.
#[must_use]
pub fn bytes(tokens: u64) -> usize {
    usize::try_from(tokens.saturating_mul(4)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_bytes_by_four() {
        assert_eq!(count(""), 0);
        assert_eq!(count("a"), 1);
        assert_eq!(count("abcde"), 2);
        assert_eq!(bytes(2), 8);
    }
}
