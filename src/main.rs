//! The command `toolway`; everything it does is in `cli`.

use std::process::ExitCode;

use clap::Parser;
use toolway::cli;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse())
}
