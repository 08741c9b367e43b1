//! What is true of a file, or wrong with it: one helper per idea, many small cases.

mod functions;
mod listening;
mod models;
mod other_clients;
mod policy;
mod providers;
mod tool_servers;
mod whole;

use std::{collections::BTreeMap, io, path::Path, time::Duration};

use indoc::indoc;

use super::*;
use crate::upstream::mcp::{HttpKind, Transport};

/// The files and variables that every case sees.
fn load(files: &[(&str, &str)], given: &Given) -> Result<Config, Vec<Problem>> {
    let files: BTreeMap<String, String> = files
        .iter()
        .map(|(name, text)| (format!("/w/{name}"), (*text).to_owned()))
        .collect();
    let env = |name: &str| match name {
        "KEY" => Some("sk-1".to_owned()),
        "EMPTY" => Some(String::new()),
        "HOME" => Some("/home/me".to_owned()),
        _ => None,
    };
    let read = |path: &Path| {
        let text = files
            .get(&path.display().to_string())
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(FileText {
            text: text.clone(),
            open_to_all: path.ends_with("open.key"),
        })
    };
    Config::load(
        given,
        &Environment {
            env: &env,
            read: &read,
            folder: "/w".into(),
        },
    )
}

fn from_toml(text: &str) -> Result<Config, Vec<Problem>> {
    load(
        &[
            ("toolway.toml", text),
            ("closed.key", "sk-file\n"),
            ("open.key", "sk-open"),
        ],
        &Given::default(),
    )
}

fn from_mcp(text: &str) -> Result<Config, Vec<Problem>> {
    load(
        &[("mcp.json", text)],
        &Given {
            mcp: vec!["mcp.json".into()],
            ..Given::default()
        },
    )
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(Problem::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[track_caller]
fn ok(text: &str) -> Config {
    from_toml(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

/// The one problem of a file.
#[track_caller]
fn refused(text: &str, problem: &str) {
    let problems = from_toml(text).expect_err("the file should be refused");
    assert_eq!(lines(&problems), problem);
}

/// The one warning of a file.
#[track_caller]
fn warned(text: &str, warning: &str) {
    assert_eq!(lines(&ok(text).warnings), warning);
}
