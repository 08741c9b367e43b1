//! The command `toolway`; everything it does is in `cli`.

use std::process::ExitCode;

use clap::Parser;
use toolway::cli;

/// Unlike glibc's allocator, it gives the memory of large requests back to the system.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(exit) = toolway::upstream::reaper::run_if_asked() {
        return exit;
    }
    cli::run(cli::Cli::parse())
}
