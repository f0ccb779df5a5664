//! Keeps time and sees to it that nothing stays undone.

fn main() -> std::process::ExitCode {
    service::main("scheduler", scheduler::run)
}
