//! Systems that can't confine a command.

use super::{Bounds, ConfineError, Support};

pub(super) fn try_out() -> Support {
    Support::default()
}

pub(super) fn confine_files(_: &Bounds) -> Result<(), ConfineError> {
    Err(ConfineError::new("this system has no Landlock"))
}

pub(super) fn confine_network() -> Result<(), ConfineError> {
    Err(ConfineError::new("this system has no seccomp"))
}
