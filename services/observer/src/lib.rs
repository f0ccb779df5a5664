//! Turns a flood of signals into a few sound observations, and wakes nobody without need.

pub mod conclude;
pub mod evidence;
pub mod lines;
pub mod offline;
pub mod packs;
pub mod rules;
pub mod text;
