//! The reference page, made from the comments on the fields in `raw.rs`: one text, never out of date.

use std::fmt::Write;

/// The tables of the configuration: the struct that describes one, its title and its path.
const TABLES: [(&str, &str); 14] = [
    ("RawConfig", "Top level"),
    ("RawUpstream", "`[[upstreams]]`"),
    ("RawModel", "`[models.NAME]`"),
    ("RawLoop", "`[loop]`"),
    ("RawServer", "`[servers.NAME]`"),
    ("RawIsolation", "`isolation` of a server"),
    ("RawFunctions", "`[functions.NAME]`"),
    ("RawProfile", "`[profiles.NAME]`"),
    ("RawKey", "`[keys.NAME]`"),
    ("RawPolicy", "`[policy]`"),
    ("RawRule", "`[[policy.rules]]`"),
    ("RawApprovals", "`[approvals]`"),
    ("RawAudit", "`[audit]`"),
    ("RawCondition", "A condition in `args` of a rule"),
];

/// Keys that are described by a table of their own.
const PARTS: [&str; 10] = [
    "approvals",
    "audit",
    "upstreams",
    "models",
    "loop",
    "servers",
    "functions",
    "profiles",
    "keys",
    "policy",
];

/// `docs/configuration.md` as it should be.
pub fn reference() -> String {
    let source = include_str!("raw.rs");
    let mut page = String::from(INTRODUCTION);
    for (name, title) in TABLES {
        _ = write!(
            page,
            "\n## {title}\n\n| key | value | meaning |\n|---|---|---|\n"
        );
        for field in fields(source, name) {
            if name != "RawConfig" || !PARTS.contains(&field.key.as_str()) {
                _ = writeln!(
                    page,
                    "| `{}` | {} | {} |",
                    field.key, field.value, field.meaning
                );
            }
        }
    }
    page
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from src/config/raw.rs by `UPDATE_DOCS=1 cargo test --test cli`; changes here are lost. -->

toolway reads `toolway.toml` in the working directory, or the file that `--config` names.
Every key has a default; with no file at all it listens on loopback and passes requests on to OpenAI with the client's own key.
`toolway check` names everything that is wrong with a file, each with its path, and `toolway serve` refuses to start on any of it.
An unknown key is an error.

**Secrets** are written as `env:NAME` (an environment variable) or `file:PATH` (a file, without the line end at its end).
A key in plain text works with a warning, and so does a file that every user of the machine can read.

**Within a text** of `headers`, `env`, `args`, `command`, `cwd`, `url`, `endpoint`, `openapi` and `base_url` of a server or a group of functions, and of `headers` of an upstream, `${NAME}` and `${env:NAME}` stand for an environment variable, `${NAME:-default}` for one that may be missing, `${file:PATH}` for a file; `$${` is a plain `${`.

**A child process** gets of toolway's own environment only `PATH`, `HOME`, `LANG`, `LC_ALL`, `TERM`, `USER`, `LOGNAME`, `SHELL` and `TMPDIR`.
Whatever else it needs goes into `env`, or is named in `inherit_env`: `inherit_env = [\"HTTPS_PROXY\", \"SSL_CERT_FILE\", \"NODE_EXTRA_CA_CERTS\"]` for `npx` and `uvx` behind a proxy of a company.

**A value that is not there** (an unset variable, a file that cannot be read) in the entry of an MCP server or a group of functions costs that one only: it counts as failed and has no tools, and `toolway check`, `GET /health` and the log say why.
`toolway serve` and `check` refuse a configuration in which a key of an upstream or of `api_keys` is not set; `toolway tools`, `call`, `mcp` and `check --offline` do not need them. A function with `model` then counts as failed if its upstream's key is not set.

**Files of other MCP clients** (`--mcp FILE`) are read as they are.
A server is not started if `disabled` is true or `enabled` or `isActive` false there (a text or number such as `yes` or `1` counts too), if `mcp.excluded` names it, or if `mcp.allowed` does not.
A switch that is neither true nor false, and a transport that toolway does not have (`tcp`), cost their server only.
`includeTools` and `tools` show tools, `excludeTools` and `disabledTools` hide them, by the server's own names.
`riskLevel` and `docker` of MCP Bridge are `risk` and `isolation`; `alwaysAllow`, `autoApprove`, `autoApproveTools` and `trust` become rules of the policy that allow these tools, after those of `[[policy.rules]]`; a key that is not understood is named in a warning, and so is `$NAME` without braces, which stays as it is.

**A program ends with toolway**, and so does everything that it started: each one runs under a small process of toolway's, `toolway __child`, which also hears of it when toolway is killed.
Without Linux, helpers that leave the process group are not found.

**toolway itself** heeds `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` for what it asks of models, functions and servers: with `HTTP_PROXY` set, a model on your own machine wants `NO_PROXY=localhost,127.0.0.1`.

**Times** are written with their unit: `\"500ms\"`, `\"30s\"`, `\"10m\"`, `\"1h\"`, at most `\"24h\"`.
**Paths** that are relative start at the folder of the configuration file.
";

/// One key of a table.
struct Field {
    key: String,
    value: &'static str,
    meaning: String,
}

/// The documented fields of a struct, read from its source.
fn fields(source: &str, name: &str) -> Vec<Field> {
    let start = format!("pub struct {name} {{");
    let body = source.lines().skip_while(|line| *line != start).skip(1);
    let mut fields = Vec::new();
    let mut meaning = String::new();
    let mut renamed = None;
    for line in body.map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            meaning.push_str(text);
        } else if let Some(rest) = line.strip_prefix("#[serde(rename = \"") {
            renamed = rest.split('"').next().map(str::to_owned);
        } else if let Some((key, kind)) = line
            .strip_prefix("pub ")
            .and_then(|field| field.trim_end_matches(',').split_once(": "))
        {
            fields.push(Field {
                key: renamed.take().unwrap_or_else(|| key.to_owned()),
                value: kind_in_words(kind),
                meaning: std::mem::take(&mut meaning).trim().to_owned(),
            });
        }
    }
    fields
}

fn kind_in_words(kind: &str) -> &'static str {
    match kind {
        "Option<String>" => "text",
        "Option<bool>" => "true or false",
        "Option<i64>" => "number",
        "Option<RawDuration>" => "time",
        "Option<Vec<String>>" => "list of texts",
        "Option<Vec<i64>>" => "list of numbers",
        "Option<BTreeMap<String, String>>" => "texts by name",
        _ => "table",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        RawConfig, RawFunctions, RawLoop, RawModel, RawServer, RawUpstream, keys::fields_of,
    };

    #[track_caller]
    fn check(name: &str, known: &[&str]) {
        let found = fields(include_str!("raw.rs"), name);
        let keys: Vec<&str> = found.iter().map(|field| field.key.as_str()).collect();
        assert_eq!(keys, known);
        assert!(found.iter().all(|field| !field.meaning.is_empty()));
    }

    #[test]
    fn every_key_is_described_under_the_name_it_is_read_by() {
        check("RawConfig", fields_of::<RawConfig>());
        check("RawUpstream", fields_of::<RawUpstream>());
        check("RawModel", fields_of::<RawModel>());
        check("RawLoop", fields_of::<RawLoop>());
        check("RawServer", fields_of::<RawServer>());
        check("RawFunctions", fields_of::<RawFunctions>());
    }
}
