//! The public door, as a process.

fn main() -> std::process::ExitCode {
    service::main("ingress", ingress::run)
}
