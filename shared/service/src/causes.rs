//! What is behind an error, in words for people.

use std::error::Error;

/// An error and all its sources in one line. A source whose text the one above repeats is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        let part = source.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        below = source.source();
    }
    text
}

/// What is at the bottom of an error: of a failed exchange over HTTP, the only part that says something.
pub fn root(error: &dyn Error) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("the list can't be read")]
        List(#[source] Box<Failed>),
        #[error("the disk is gone")]
        Disk,
        #[error("{0}")]
        Repeats(#[source] Box<Failed>),
    }

    #[test]
    fn every_cause_is_said_once() {
        let error = Failed::List(Box::new(Failed::Repeats(Box::new(Failed::Disk))));
        assert_eq!(chain(&error), "the list can't be read: the disk is gone");
        assert_eq!(root(&error), "the disk is gone");
        assert_eq!((chain(&Failed::Disk), root(&Failed::Disk)), (Failed::Disk.to_string(), Failed::Disk.to_string()));
    }
}
