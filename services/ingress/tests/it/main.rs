//! The public door against real parts.
