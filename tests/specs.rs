//! OpenAPI documents that others wrote. `scripts/specs` fetches them and runs this; what is expected of each
//! is in `scripts/specs.d/expected.tsv`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on should say where, and what was found is to be read"
)]

use std::{collections::HashSet, env, fs, path::Path};

use serde_json::Value;
use toolway::{
    tool::ServerId,
    translate::{calls::Validator, names, openapi, schema},
};

/// What became of a document: how many tools, how many operations skipped, or why it was refused.
enum Outcome {
    Loaded { tools: usize, skipped: usize },
    Refused(String),
}

fn load(path: &Path) -> Outcome {
    let text = fs::read_to_string(path).unwrap();
    let document: Value = match path.extension().is_some_and(|end| end == "json") {
        true => serde_json::from_str(&text).unwrap(),
        false => serde_yaml_ng::from_str(&text).unwrap(),
    };
    let api = match openapi::read(&document, &openapi::Fixed::default()) {
        Ok(api) => api,
        Err(refusal) => return Outcome::Refused(refusal.to_string()),
    };
    let server = ServerId::parse("api").unwrap();
    let tools = api.operations.iter().map(|it| it.tool.name.as_str());
    assert_eq!(
        names::assign(tools.clone().map(|name| (&server, name))).len(),
        tools.len()
    );
    assert_eq!(tools.clone().collect::<HashSet<&str>>().len(), tools.len());
    let mut unchecked = 0;
    for operation in &api.operations {
        let place = format!("{}: {}", path.display(), operation.place);
        assert_eq!(schema::fault(&operation.tool.input_schema), None, "{place}");
        if let Err(why) = Validator::compile(&operation.tool.input_schema) {
            unchecked += 1;
            if env::var_os("TOOLWAY_SPECS_VERBOSE").is_some() {
                println!("  unchecked {}: {why}", operation.place);
            }
        }
    }
    if env::var_os("TOOLWAY_SPECS_VERBOSE").is_some() {
        for skipped in &api.skipped {
            println!("  skipped {}: {}", skipped.place, skipped.reason);
        }
    }
    let largest = api
        .operations
        .iter()
        .map(|it| {
            Value::Object(it.tool.input_schema.clone())
                .to_string()
                .len()
        })
        .max();
    println!(
        "  {unchecked} unchecked, base {:?}, largest {largest:?}",
        api.base_url
    );
    Outcome::Loaded {
        tools: api.operations.len(),
        skipped: api.skipped.len(),
    }
}

#[test]
#[ignore = "needs the documents that scripts/specs fetches"]
fn every_document_loads_or_is_refused_as_written_down() {
    let folder =
        env::var("TOOLWAY_SPECS").expect("TOOLWAY_SPECS names the folder; run scripts/specs");
    let folder = Path::new(&folder);
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/specs.d/expected.tsv");
    let table = env::var_os("TOOLWAY_SPECS_TABLE").map_or(table, Into::into);
    let mut wrong = Vec::new();
    for line in fs::read_to_string(table).unwrap().lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let columns: Vec<&str> = line.split('\t').collect();
        let start = tokio::time::Instant::now();
        let outcome = load(&folder.join(columns[0]));
        let took = start.elapsed();
        let found = match outcome {
            Outcome::Loaded { tools, skipped } => format!("{tools} tools\t{skipped} skipped"),
            Outcome::Refused(why) => format!("refused\t{why}"),
        };
        println!("{}\t{found}\t({} ms)", columns[0], took.as_millis());
        if columns[1..].join("\t") != found {
            wrong.push(format!(
                "{}\n  expected {}\n  found    {found}",
                columns[0],
                columns[1..].join("\t")
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
