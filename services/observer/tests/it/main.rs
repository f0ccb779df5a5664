//! The observer on real parts.

mod common;
mod conclusions;
mod crashes;
mod silence;
