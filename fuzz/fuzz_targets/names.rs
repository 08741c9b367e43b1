//! Names of any tools: valid, all different, and marked as changed where they are.
//!
//! The input is lines; each is a server's name, a space and a tool's name.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use toolway_core::translate::names;
use toolway_protocol::tool::{FunctionName, ServerId};

fuzz_target!(|text: &str| {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    let tools: Vec<(ServerId, &str)> = pairs
        .filter_map(|(server, tool)| Some((ServerId::parse(server).ok()?, tool)))
        .collect();
    let assigned = names::assign(tools.iter().map(|(server, tool)| (server, *tool)));
    assert_eq!(assigned.len(), tools.len());
    let mut seen = HashSet::new();
    for (assigned, (server, tool)) in assigned.iter().zip(&tools) {
        assert!(FunctionName::parse(assigned.name.as_str()).is_ok());
        assert!(
            seen.insert(assigned.name.as_str()),
            "{} comes twice",
            assigned.name
        );
        assert_eq!(
            assigned.changed,
            assigned.name.as_str() != format!("{server}__{tool}")
        );
    }
});
