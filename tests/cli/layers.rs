//! Keeps the shape of the program: which module may import which, and what ARCHITECTURE.md says about it.
//!
//! The compiler keeps the crates apart, and `clippy.toml` of the two lower crates refuses IO and clocks. The order of
//! the modules within a crate is read from the sources as text, without comments: every `crate::x` and
//! `crate::{x, y::z}`.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot continue should say where"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The folders of the crates, and the rows of their modules, lowest first. A module imports only from rows before its
/// own.
pub(crate) const CRATES: [(&str, &[&[&str]]); 3] = [
    (
        "crates/toolway-protocol",
        &[
            &["json_size", "segmented_body", "tool"],
            &["openai", "mcp", "sse", "websocket"],
        ],
    ),
    (
        "crates/toolway-core",
        &[
            &["translate"],
            &["catalog"],
            &["audit", "policy", "route"],
            &["agent"],
        ],
    ),
    (
        ".",
        &[
            &[
                "body_buffer",
                "byte_budget",
                "lines",
                "printable",
                "quota",
                "secret",
            ],
            &["health"],
            &["upstream", "store", "telemetry"],
            &["audit"],
            &["gateway"],
            &["server"],
            &["config"],
            &["cli"],
        ],
    ),
];

/// What is wrong with the imports of a source file of the top-level module `module`.
fn faults(rows: &[&[&str]], module: &str, source: &str) -> Vec<String> {
    let row_of = |module: &str| rows.iter().position(|row| row.contains(&module));
    let Some(row) = row_of(module) else {
        return vec![format!(
            "`{module}` has no row: add it to CRATES and to ARCHITECTURE.md"
        )];
    };
    let is_fault =
        |other: &String| other != module && row_of(other).is_some_and(|other| other >= row);
    let imports = imports(&without_comments(source)).into_iter();
    let faults = imports.filter(is_fault);
    faults
        .map(|other| format!("`{module}` must not import `{other}`"))
        .collect()
}

/// The top-level modules that the code names.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, root) in code.match_indices("crate::") {
        let rest = &code[at + root.len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(names_of_group(group)),
            None => _ = found.insert(name_at(rest)),
        }
    }
    found
}

/// The first name of each path in a group, which is closed by a `}`.
fn names_of_group(group: &str) -> Vec<String> {
    let (mut names, mut level) = (vec![name_at(group.trim_start())], 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => level += 1,
            '}' if level == 0 => break,
            '}' => level -= 1,
            ',' if level == 0 => names.push(name_at(group[i + 1..].trim_start())),
            _ => {}
        }
    }
    names
}

fn name_at(code: &str) -> String {
    let is_of_name = |c: &char| c.is_alphanumeric() || *c == '_';
    code.chars().take_while(is_of_name).collect()
}

fn without_comments(source: &str) -> String {
    let code = source.lines().map(|line| line.split("//").next().unwrap());
    code.collect::<Vec<_>>().join("\n")
}

/// The source files of a crate, each with its top-level module.
pub(crate) fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let src = root().join(folder).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    let with_module = files.into_iter().map(|path| {
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let module = inside.iter().next().unwrap().to_string_lossy().into_owned();
        (path, module)
    });
    with_module
        .filter(|(_, module)| module != "lib" && module != "main")
        .collect()
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

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

#[test]
fn every_module_imports_only_from_rows_below_its_own() {
    let mut all = Vec::new();
    for (folder, rows) in CRATES {
        for (path, module) in sources(folder) {
            let source = fs::read_to_string(&path).unwrap();
            let inside = path.strip_prefix(root()).unwrap().display();
            let faults = faults(rows, &module, &source).into_iter();
            all.extend(faults.map(|fault| format!("{inside}: {fault}")));
        }
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

#[test]
fn an_import_from_above_or_beside_is_found() {
    #[track_caller]
    fn check(module: &str, source: &str, expected: &[&str]) {
        let rows: &[&[&str]] = &[&["low", "beside"], &["middle"], &["high"]];
        assert_eq!(faults(rows, module, source), expected);
    }
    check("middle", "use crate::low::X;", &[]);
    check("middle", "use crate::middle::X;", &[]);
    check("middle", "// crate::high::f", &[]);
    let beside = "`low` must not import `beside`";
    check("low", "use crate::beside::X;", &[beside]);
    let above = "`middle` must not import `high`";
    check(
        "middle",
        "use crate::{\n    low::{A, b},\n    high::{self, X},\n};",
        &[above],
    );
    check("middle", "fn f() { crate::high::f() }", &[above]);
    let new = "`utils` has no row: add it to CRATES and to ARCHITECTURE.md";
    check("utils", "", &[new]);
}

/// A call of a tool in any other file would not be admitted by `policy`.
#[test]
fn one_file_of_the_gateway_calls_servers_and_functions() {
    let calls = |source: &str| {
        let code: String = without_comments(source).split_whitespace().collect();
        let receivers = ["servers", "functions", "functions()"];
        receivers.iter().any(|it| {
            code.contains(&format!("{it}.call(")) || code.contains(&format!("{it}.request("))
        })
    };
    let acting = ["gateway", "server", "cli"];
    let found = sources(".").into_iter().filter(|(path, module)| {
        acting.contains(&module.as_str())
            && !path
                .iter()
                .any(|part| part == "tests" || part == "tests.rs")
            && calls(&fs::read_to_string(path).unwrap())
    });
    let names = found.map(|(path, _)| path.file_name().unwrap().to_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["backends.rs"]);
}

#[test]
fn the_architecture_has_a_row_for_each_row_of_modules() {
    let page = read("ARCHITECTURE.md");
    for row in CRATES.iter().flat_map(|(_, rows)| *rows) {
        let names: Vec<String> = row.iter().map(|name| format!("`{name}`")).collect();
        let cell = format!("| {} |", names.join(", "));
        assert!(page.contains(&cell), "ARCHITECTURE.md has no row `{cell}`");
    }
}

#[test]
fn each_dependency_has_a_line_that_says_what_it_saves() {
    let manifests = [
        "Cargo.toml",
        "benches/Cargo.toml",
        "crates/toolway-protocol/Cargo.toml",
        "crates/toolway-core/Cargo.toml",
    ];
    let manifests = manifests.map(|path| read(path).parse::<toml::Table>().unwrap());
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
    for name in names.filter(|name| !name.starts_with("toolway")) {
        let start = format!("- `{name}`: ");
        assert!(
            page.contains(&start),
            "ARCHITECTURE.md has no line that begins `{start}`"
        );
    }
}
