//! Keeps the shape of the program: who may import whom, who may act at all, and what the map says about it.
//!
//! The sources are read as text, with comments and string literals taken out. That is coarse and enough: it
//! finds `crate::x`, `use crate::{x, y::z}` and `super::` paths that leave a module.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should say where"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The rows, lowest first. A module imports only from rows before its own.
///
/// `catalog` gives tools the names and schemas that `translate` makes, so row 3 is two rows in truth.
const ROWS: [(&str, &[&str]); 12] = [
    (
        "1",
        &[
            "tool",
            "secret",
            "body_buffer",
            "segmented_body",
            "json_size",
            "byte_budget",
            "quota",
            "printable",
        ],
    ),
    ("2", &["openai", "mcp", "sse"]),
    ("3a", &["translate"]),
    ("3b", &["catalog", "health"]),
    ("4", &["policy", "route"]),
    ("5", &["agent"]),
    ("6", &["upstream", "store", "telemetry"]),
    ("7", &["gateway"]),
    ("8", &["sim"]),
    ("9", &["server"]),
    ("10", &["config"]),
    ("11", &["cli"]),
];

/// Rows up to this index decide and never act.
const LAST_PURE: usize = 5;

/// What a module that only decides has no use for. (The address types of `std::net` do nothing.)
const ACTING: [&str; 23] = [
    "async ",
    ".await",
    "tokio::",
    "futures::",
    "reqwest::",
    "axum::",
    "rmcp::",
    "tracing::",
    "std::fs",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "std::env",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "rand::",
    "println!",
    "print!",
    "dbg!",
    "File::open",
];

/// The parts of `std` that act, when they are imported in a group.
const ACTING_STD: [&str; 4] = ["fs", "env", "process", "thread"];

fn row_of(module: &str) -> Option<usize> {
    ROWS.iter()
        .position(|(_, modules)| modules.contains(&module))
}

/// What is wrong with a source file of this top-level module, `depth` modules below the crate.
fn faults(module: &str, depth: usize, source: &str) -> Vec<String> {
    let Some(row) = row_of(module) else {
        return vec![format!(
            "`{module}` has no row; add it to ROWS and to ARCHITECTURE.md"
        )];
    };
    let code = without_comments_and_texts(source);
    let mut faults = Vec::new();
    for other in imports(&code, depth) {
        if other != module && row_of(&other).is_some_and(|its| its >= row) {
            let (mine, its) = (ROWS[row].0, ROWS[row_of(&other).unwrap()].0);
            faults.push(format!(
                "`{module}` (row {mine}) must not import `{other}` (row {its})"
            ));
        }
    }
    if row <= LAST_PURE {
        let code = before_tests(&code);
        let acting = ACTING
            .iter()
            .filter(|word| holds(code, word))
            .map(|word| word.trim());
        let grouped = group_after(code, "std::")
            .into_iter()
            .filter(|part| ACTING_STD.contains(&part.as_str()))
            .map(|part| format!("std::{part}"));
        for word in acting.map(str::to_owned).chain(grouped) {
            faults.push(format!(
                "`{module}` decides and never acts, but says `{word}`"
            ));
        }
    }
    faults
}

/// The word is there, and not as the end of a longer one.
fn holds(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !word.starts_with(char::is_alphanumeric) || !before.is_some_and(is_of_name)
    })
}

/// Top-level modules that the code names, through `crate::` or by climbing out with `super::`.
fn imports(code: &str, depth: usize) -> BTreeSet<String> {
    let climb = "super::".repeat(depth);
    let mut found: BTreeSet<String> = BTreeSet::new();
    for root in ["crate::", climb.as_str()] {
        found.extend(group_after(code, root));
        found.extend(
            code.match_indices(root)
                .map(|(at, _)| name_at(&code[at + root.len()..])),
        );
    }
    found.retain(|name| !name.is_empty());
    found
}

/// The first names within each `root{…}`.
fn group_after(code: &str, root: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, start) in code.match_indices(&format!("{root}{{")) {
        let mut level = 1;
        let mut is_first = true;
        for (i, c) in code[at + start.len()..].char_indices() {
            match c {
                '{' => level += 1,
                '}' => level -= 1,
                ',' if level == 1 => is_first = true,
                c if level == 1 && is_first && is_of_name(c) => {
                    names.push(name_at(&code[at + start.len() + i..]));
                    is_first = false;
                }
                _ => {}
            }
            if level == 0 {
                break;
            }
        }
    }
    names
}

fn name_at(code: &str) -> String {
    code.chars().take_while(|c| is_of_name(*c)).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn before_tests(code: &str) -> &str {
    code.find("#[cfg(test)]").map_or(code, |at| &code[..at])
}

/// The code alone: comments and the insides of string literals are left out.
fn without_comments_and_texts(source: &str) -> String {
    let mut out = String::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_text(rest, out.chars().next_back()) {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = hashes + 2;
            rest[open..]
                .find(&close)
                .map_or(rest.len(), |end| open + end + close.len())
        } else if c == '"' {
            end_of_text(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") {
            4
        } else {
            0
        };
        if skipped == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            rest = &rest[skipped..];
        }
    }
    out
}

/// How many `#` a raw string literal that begins here has.
fn raw_text(rest: &str, before: Option<char>) -> Option<usize> {
    let after = rest
        .strip_prefix('r')
        .filter(|_| !before.is_some_and(is_of_name))?;
    let hashes = after.chars().take_while(|c| *c == '#').count();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn end_of_text(rest: &str) -> usize {
    let mut is_escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return i + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Each source file with its top-level module and its depth below the crate.
fn sources() -> Vec<(PathBuf, String, usize)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    let mut found = Vec::new();
    for path in files {
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let parts: Vec<String> = inside
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if !matches!(parts[0].as_str(), "lib" | "main") {
            found.push((path, parts[0].clone(), parts.len()));
        }
    }
    found
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

fn is_test_file(path: &Path) -> bool {
    path.file_stem().is_some_and(|name| name == "tests")
        || path.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn every_module_imports_downward_only_and_the_lower_ones_do_not_act() {
    let mut all = Vec::new();
    for (path, module, depth) in sources() {
        let source = fs::read_to_string(&path).unwrap();
        let inside = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
        // What only tests do may act; what it imports is still looked at.
        let source = if is_test_file(inside) {
            format!("#[cfg(test)]\n{source}")
        } else {
            source
        };
        all.extend(
            faults(&module, depth, &source)
                .into_iter()
                .map(|fault| format!("{}: {fault}", inside.display())),
        );
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// Whatever calls a tool in another place would get past `policy`: only there is its leave asked for.
#[test]
fn one_file_of_the_gateway_calls_servers_and_functions() {
    let calls = |source: &str| {
        let code: String = without_comments_and_texts(source)
            .split_whitespace()
            .collect();
        let receivers = ["servers", "functions", "functions()"];
        receivers.iter().any(|it| {
            code.contains(&format!("{it}.call(")) || code.contains(&format!("{it}.request("))
        })
    };
    let acting = ["gateway", "server", "cli"];
    let found = sources().into_iter().filter(|(path, module, _)| {
        acting.contains(&module.as_str())
            && !is_test_file(path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap())
            && calls(&fs::read_to_string(path).unwrap())
    });
    let names = found.map(|(path, ..)| path.file_name().unwrap().to_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["backends.rs"]);
}

#[track_caller]
fn check(module: &str, depth: usize, source: &str, expected: &[&str]) {
    assert_eq!(faults(module, depth, source), expected);
}

#[test]
fn an_import_from_above_or_beside_is_found() {
    check(
        "tool",
        1,
        "use crate::secret::Secret;",
        &["`tool` (row 1) must not import `secret` (row 1)"],
    );
    check(
        "agent",
        1,
        "use crate::{\n    tool::{A, b},\n    gateway::{self, X},\n};",
        &["`agent` (row 5) must not import `gateway` (row 7)"],
    );
    check(
        "translate",
        2,
        "fn f() { super::super::catalog::build() }",
        &["`translate` (row 3a) must not import `catalog` (row 3b)"],
    );
    check(
        "translate",
        1,
        "use super::{tool, cli};",
        &["`translate` (row 3a) must not import `cli` (row 11)"],
    );
}

#[test]
fn an_import_from_below_or_within_is_fine() {
    check(
        "catalog",
        1,
        "use crate::{tool::Tool, translate::names};",
        &[],
    );
    check(
        "upstream",
        2,
        "use crate::upstream::model; use super::mcp;",
        &[],
    );
    check("config", 2, "use super::server;", &[]);
}

#[test]
fn a_lower_module_that_acts_is_found() {
    check(
        "route",
        1,
        "async fn f() { g().await }",
        &[
            "`route` decides and never acts, but says `async`",
            "`route` decides and never acts, but says `.await`",
        ],
    );
    check(
        "mcp",
        2,
        "use std::{collections::{HashMap}, fs, fmt};",
        &["`mcp` decides and never acts, but says `std::fs`"],
    );
    check("gateway", 1, "async fn f() { tracing::info!() }", &[]);
}

#[test]
fn comments_texts_and_tests_may_say_what_they_like() {
    check(
        "route",
        1,
        "// async fn\n/* crate::cli */ const A: &str = \"tokio::x \\\" crate::cli\";",
        &[],
    );
    check(
        "route",
        1,
        "const A: &str = r#\"crate::cli \" std::fs\"#; const B: char = '\"';",
        &[],
    );
    check(
        "route",
        1,
        "#[cfg(test)]\nmod tests { fn f() { std::fs::read(x) } }",
        &[],
    );
}

#[test]
fn a_module_without_a_row_is_found() {
    check(
        "utils",
        1,
        "",
        &["`utils` has no row; add it to ROWS and to ARCHITECTURE.md"],
    );
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[test]
fn the_row_table_of_the_architecture_is_the_one_that_is_kept() {
    let page = read("ARCHITECTURE.md");
    for (row, modules) in ROWS {
        let names: Vec<String> = modules.iter().map(|name| format!("`{name}`")).collect();
        let start = format!("| {row} | {} |", names.join(", "));
        assert!(
            page.contains(&start),
            "ARCHITECTURE.md has no row that begins `{start}`"
        );
    }
}

#[test]
fn each_dependency_has_a_line_that_says_what_it_saves() {
    let manifests =
        ["Cargo.toml", "benches/Cargo.toml"].map(|path| read(path).parse::<toml::Table>().unwrap());
    let page = read("ARCHITECTURE.md");
    let mut tables: Vec<&toml::Table> = manifests.iter().collect();
    if let Some(targets) = manifests[0].get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let parts = ["dependencies", "dev-dependencies", "build-dependencies"];
    let parts = tables
        .iter()
        .flat_map(|table| parts.iter().filter_map(|part| table.get(*part)));
    let names = parts.flat_map(|part| part.as_table().unwrap().keys());
    for name in names.filter(|name| *name != "toolway") {
        let start = format!("- `{name}`: ");
        assert!(
            page.contains(&start),
            "ARCHITECTURE.md has no line that begins `{start}`"
        );
    }
}
