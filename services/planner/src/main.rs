//! Wakes on runnable runs: causal slice, model, candidate, committed turn.

fn main() -> std::process::ExitCode {
    service::main("planner", planner::run)
}
