//! Runs one case a number of times and measures nothing: `scripts/instructions` counts from outside.
//!
//! `count` alone lists the cases and how often each is to be run; `count NAME TIMES` runs one.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => list(),
        [name, times] => return run(name, times),
        _ => return fail("usage: count [NAME TIMES]"),
    }
    ExitCode::SUCCESS
}

fn list() {
    for case in cases::all() {
        println!("{} {}", case.name, case.times);
    }
}

fn run(name: &str, times: &str) -> ExitCode {
    let Some(case) = cases::all().find(|case| case.name == name) else {
        return fail("there is no such case");
    };
    let Ok(times) = times.parse::<u32>() else {
        return fail("TIMES is a number");
    };
    let mut body = (case.setup)();
    for _ in 0..times {
        body();
    }
    ExitCode::SUCCESS
}

fn fail(why: &str) -> ExitCode {
    eprintln!("count: {why}");
    ExitCode::from(2)
}
