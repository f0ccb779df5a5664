//! The text of an API token: `esc_`, 64 hex digits of chance, and 8 that tell whether it was copied whole, so that no nonsense
//! is looked for in the database.

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// What tokens begin with, so that scanners for leaked secrets find them.
const PREFIX: &str = "esc_";
/// Digits of chance.
const RANDOM: usize = 64;
/// Ids that chance is taken from: for 256 bits it takes eight, and twice as many cost nothing.
const SOURCES: usize = 16;
/// Digits that check them.
const CHECK: usize = 8;

/// A new token.
pub(crate) fn mint() -> String {
    // Each of them holds at least 32 bits from the system's source of randomness, beside the time and a counter.
    let mut hash = Sha256::new();
    for _ in 0..SOURCES {
        hash.update(Uuid::now_v7());
    }
    let random = hex::encode(hash.finalize());
    let check = check(&random);
    format!("{PREFIX}{random}{check}")
}

/// Whether it can be a token of ours.
pub(crate) fn is_well_formed(token: &str) -> bool {
    let Some(digits) = token.strip_prefix(PREFIX) else { return false };
    let parts = digits.split_at_checked(RANDOM).filter(|_| digits.len() == RANDOM + CHECK);
    parts.is_some_and(|(random, given)| check(random) == given)
}

/// What is kept of a token.
pub(crate) fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn check(random: &str) -> String {
    let mut digits = hex::encode(Sha256::digest(format!("{PREFIX}{random}")));
    digits.truncate(CHECK);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_minted_is_known_and_what_was_cut_or_changed_is_not() {
        let token = mint();
        assert!(is_well_formed(&token) && token != mint());
        let mut changed = token.clone().into_bytes();
        changed[10] = if changed[10] == b'0' { b'1' } else { b'0' };
        let changed = String::from_utf8(changed).unwrap();
        for wrong in
            ["", "esc_", &token[1..], &token[..token.len() - 1], &changed, &"é".repeat(38), &format!("{token}0")]
        {
            assert!(!is_well_formed(wrong), "{wrong}");
        }
    }
}
