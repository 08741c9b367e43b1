//! The entry for the settings of another MCP client that starts `toolway mcp`.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use super::args::{KnownClient, McpArgs};
use crate::config::{Config, DEFAULT_FILE, Environment, Given};

/// The text to paste, and where.
pub(super) fn lines(
    client: KnownClient,
    asked: &McpArgs,
    config: &Config,
) -> Result<(String, String)> {
    let program = std::env::current_exe().context("cannot tell where toolway is")?;
    let folder = std::env::current_dir().context("cannot tell where this is")?;
    let args = arguments(asked, &folder)?;
    let settings = settings(client, &text(program)?, &args);
    let mut advice = place(client, std::env::consts::OS);
    if asked.files.config().is_none() && args.iter().any(|it| it == "--config") {
        advice.push_str(&format!(
            "The entry names {DEFAULT_FILE} of this folder, which was found here; `--config FILE` names another.\n"
        ));
    }
    if config.servers.is_empty() && config.functions.is_empty() {
        advice.push_str(
            "warning: this entry offers no tools: there is no MCP server and no function; name a configuration with \
             `--config FILE`, or the file of another MCP client with `--mcp FILE`.\n",
        );
    }
    let names = variables(&asked.given(), &Environment::real());
    if !names.is_empty() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        advice.push_str(&format!(
            "The configuration uses environment variables, which the client may not pass on: add `\"env\"` to the \
             entry, with values for {}.\n",
            names.join(", ")
        ));
    }
    Ok((format!("{settings:#}\n"), advice))
}

/// The environment variables that the servers and functions of a configuration use, without those that have a default.
fn variables(given: &Given, environment: &Environment<'_>) -> BTreeSet<String> {
    let asked = RefCell::new(BTreeSet::new());
    let note = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        (environment.env)(name)
    };
    let load = |env: &dyn Fn(&str) -> Option<String>| {
        let (read, folder) = (environment.read, environment.folder.clone());
        let config = Config::load(given, &Environment { env, read, folder });
        config.map(|config| format!("{:?}", (config.servers, config.functions)))
    };
    let _ = load(&note);
    let mut names = asked.take();
    // Every client passes it on.
    names.remove("HOME");
    names.retain(|name| {
        let with = |value: Option<&str>| {
            load(&|asked| match asked == name {
                true => value.map(str::to_owned),
                false => (environment.env)(asked),
            })
        };
        let without = with(None);
        // A default also stands for an empty variable.
        without != with(Some("x")) && without != with(Some(""))
    });
    names
}

/// The arguments with which a client starts it, from any folder.
fn arguments(asked: &McpArgs, folder: &Path) -> Result<Vec<String>> {
    let mut args = vec!["mcp".to_owned()];
    let add = |args: &mut Vec<String>, option: &str, file: &Path| -> Result<()> {
        let path = folder.join(file);
        // Without `.` and `..`, but not canonicalized, because few programs on Windows accept that form.
        let plain = match cfg!(windows) {
            true => std::path::absolute(&path),
            false => path.canonicalize(),
        };
        let plain = plain.with_context(|| format!("cannot read {}", path.display()))?;
        args.extend([option.to_owned(), text(plain)?]);
        Ok(())
    };
    let default = || Some(PathBuf::from(DEFAULT_FILE)).filter(|it| folder.join(it).is_file());
    if let Some(config) = asked.files.config().cloned().or_else(default) {
        add(&mut args, "--config", &config)?;
    }
    for file in asked.files.mcp() {
        add(&mut args, "--mcp", file)?;
    }
    if let Some(data) = &asked.data.data_dir {
        let data = match data.to_str() {
            Some(":memory:") => data.clone(),
            _ => folder.join(data),
        };
        args.extend(["--data-dir".to_owned(), text(data)?]);
    }
    if let Some(file) = &asked.functions {
        add(&mut args, "--functions", file)?;
    }
    for (option, value) in [
        ("--endpoint", &asked.endpoint),
        ("--profile", &asked.profile),
    ] {
        args.extend(value.iter().flat_map(|it| [option.to_owned(), it.clone()]));
    }
    Ok(args)
}

fn text(path: PathBuf) -> Result<String> {
    let text = path.into_os_string().into_string();
    text.map_err(|path| anyhow!("the path {} is no text", path.display()))
}

fn settings(client: KnownClient, program: &str, args: &[String]) -> Value {
    match client {
        KnownClient::ClaudeCode => {
            json!({"mcpServers": {"toolway": {"type": "stdio", "command": program, "args": args}}})
        }
        KnownClient::Claude | KnownClient::Cursor => {
            json!({"mcpServers": {"toolway": {"command": program, "args": args}}})
        }
        KnownClient::VsCode => {
            json!({"servers": {"toolway": {"type": "stdio", "command": program, "args": args}}})
        }
    }
}

/// Where the settings are on this operating system.
fn place(client: KnownClient, os: &str) -> String {
    let user = |mac: &str, windows: &str, other: &str| match os {
        "macos" => format!("~/Library/Application Support/{mac}"),
        "windows" => format!("%APPDATA%\\{windows}"),
        _ => format!("~/.config/{other}"),
    };
    match client {
        KnownClient::Claude => {
            let file = user(
                "Claude/claude_desktop_config.json",
                "Claude\\claude_desktop_config.json",
                "Claude/claude_desktop_config.json",
            );
            format!(
                "Paste this into {file} (Claude: Settings, Developer, Edit Config) and start Claude again.\n"
            )
        }
        KnownClient::ClaudeCode => {
            let file = match os {
                "windows" => "%USERPROFILE%\\.claude.json",
                _ => "~/.claude.json",
            };
            format!("Paste this into .mcp.json of one project, or its `mcpServers` into {file}.\n")
        }
        KnownClient::Cursor => {
            let file = match os {
                "windows" => "%USERPROFILE%\\.cursor\\mcp.json",
                _ => "~/.cursor/mcp.json",
            };
            format!("Paste this into {file}, or into .cursor/mcp.json of one project.\n")
        }
        KnownClient::VsCode => {
            let file = user(
                "Code/User/mcp.json",
                "Code\\User\\mcp.json",
                "Code/User/mcp.json",
            );
            format!(
                "Paste this into {file} (\"MCP: Open User Configuration\"), or into .vscode/mcp.json of one workspace.\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_gets_what_it_reads() {
        let args = ["mcp".to_owned()];
        let claude = settings(KnownClient::Claude, "/bin/toolway", &args);
        assert_eq!(claude["mcpServers"]["toolway"]["command"], "/bin/toolway");
        assert_eq!(claude["mcpServers"]["toolway"]["args"], json!(["mcp"]));
        assert_eq!(settings(KnownClient::Cursor, "/bin/toolway", &args), claude);
        let claude_code = settings(KnownClient::ClaudeCode, "/bin/toolway", &args);
        assert_eq!(claude_code["mcpServers"]["toolway"]["type"], "stdio");
        let code = settings(KnownClient::VsCode, "/bin/toolway", &args);
        assert_eq!(code["servers"]["toolway"]["type"], "stdio");
    }

    #[test]
    fn every_system_has_its_place() {
        for client in [
            KnownClient::Claude,
            KnownClient::ClaudeCode,
            KnownClient::Cursor,
            KnownClient::VsCode,
        ] {
            let places: Vec<_> = ["linux", "macos", "windows"]
                .map(|os| place(client, os))
                .into();
            assert!(
                places[2].contains('%') && places[0].contains("~/"),
                "{places:?}"
            );
        }
        assert!(
            place(KnownClient::Claude, "macos").contains("Library/Application Support/Claude/")
        );
    }
}
