//! The configuration from outside: every example loads, and the reference page is up to date.

use std::{
    fs,
    path::{Path, PathBuf},
};

use toolway::config::{Config, Environment, Given, reference};

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Loads an example with every variable set and every secret file there.
#[track_caller]
fn load(folder: &Path) -> Config {
    let real = Environment::real();
    let secret = |path: &Path| match path.extension().is_some_and(|end| end == "key") {
        true => Ok(toolway::config::FileText {
            text: "sk-example\n".into(),
            open_to_all: false,
        }),
        false => (real.read)(path),
    };
    let environment = Environment {
        env: &|_| Some("example".into()),
        read: &secret,
        folder: folder.to_owned(),
    };
    let mcp = folder.join("mcp.json");
    let given = Given {
        mcp: if mcp.exists() {
            vec!["mcp.json".into()]
        } else {
            Vec::new()
        },
        ..Given::default()
    };
    Config::load(&given, &environment).unwrap_or_else(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("{}:\n{}", folder.display(), lines.join("\n"))
    })
}

#[test]
fn every_example_loads_without_a_warning_and_has_a_page() {
    let mut count = 0;
    for entry in fs::read_dir(project().join("examples")).unwrap() {
        let folder = entry.unwrap().path();
        let config = load(&folder);
        assert!(!config.files.is_empty(), "{} has no file", folder.display());
        assert_eq!(config.warnings, [], "{}", folder.display());
        assert!(
            folder.join("README.md").exists(),
            "{} has no README.md",
            folder.display()
        );
        count += 1;
    }
    assert!(count >= 7, "only {count} examples");
}

#[test]
fn every_example_is_named_in_the_readme() {
    let readme = fs::read_to_string(project().join("README.md")).unwrap();
    for entry in fs::read_dir(project().join("examples")).unwrap() {
        let link = format!("examples/{}", entry.unwrap().file_name().to_string_lossy());
        assert!(readme.contains(&link), "README.md does not name {link}");
    }
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = project().join("docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, reference()).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(
        page == reference(),
        "run `UPDATE_DOCS=1 cargo test --test cli`"
    );
}

#[test]
fn a_real_file_is_read_with_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("toolway.toml"),
        "api_keys = ['file:key']",
    )
    .unwrap();
    fs::write(folder.path().join("key"), "sk-1\n").unwrap();
    let environment = Environment {
        folder: folder.path().to_owned(),
        ..Environment::real()
    };
    let config = Config::load(&Given::default(), &environment).unwrap();
    assert_eq!(config.server.api_keys[0].secret.expose(), "sk-1");
    assert_eq!(config.files, [PathBuf::from("toolway.toml")]);
}
