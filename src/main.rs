//! The command `toolway`; everything it does is in `cli`.

use std::process::ExitCode;

use clap::Parser;
use toolway::cli;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(exit) = toolway::upstream::reaper::run_if_asked() {
        return exit;
    }
    cli::run(cli::Cli::parse())
}
