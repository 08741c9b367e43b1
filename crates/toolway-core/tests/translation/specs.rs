//! OpenAPI documents that others wrote. `scripts/specs` fetches them and runs this; what is expected of each
//! is in `scripts/specs.d/expected.tsv`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on should say where, and what was found is to be read"
)]

use std::{collections::HashSet, env, fs, path::Path};

use serde_json::{Map, Value, json};
use toolway_core::translate::{
    calls::Validator,
    openapi::{self, Fixed, MAX_DOCUMENT, Operation},
    schema,
};
use url::Url;

/// What becomes of a document: how many tools, or why it is refused.
fn outcome(path: &Path) -> String {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if text.len() > MAX_DOCUMENT {
        return openapi::parse(&text).unwrap_err();
    }
    let document = openapi::parse(&text).unwrap();
    let api = match openapi::read(&document, &Fixed::default()) {
        Ok(api) => api,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    let names: HashSet<&str> = api
        .operations
        .iter()
        .map(|it| it.tool.name.as_str())
        .collect();
    assert_eq!(names.len(), api.operations.len());
    let mut unchecked = 0;
    for operation in &api.operations {
        if let Err(why) = check(operation) {
            unchecked += 1;
            say(&format!("unchecked {}: {why}", operation.place));
        }
    }
    for skipped in &api.skipped {
        say(&format!("skipped {}: {}", skipped.place, skipped.reason));
    }
    let (tools, skipped) = (api.operations.len(), api.skipped.len());
    let unchecked = match unchecked {
        0 => String::new(),
        unchecked => format!(", {unchecked} unchecked"),
    };
    format!("{tools} tools, {skipped} skipped{unchecked}")
}

/// A tool can be offered, and a call with what it requires makes a request. The error says why arguments
/// cannot be checked.
fn check(operation: &Operation) -> Result<(), String> {
    let (place, tool) = (&operation.place, &operation.tool);
    assert_eq!(schema::fault(&tool.input_schema), None, "{place}");
    let properties = tool.input_schema["properties"].as_object().unwrap();
    let required = tool.input_schema.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let arguments: Map<String, Value> = required
        .map(|name| (name.to_owned(), sample(&properties[name])))
        .collect();
    let request = operation.plan.request(&arguments);
    let request = request.unwrap_or_else(|error| panic!("{place}: {error}"));
    let url = Url::parse(&request.url("https://api.example/base")).unwrap();
    assert_eq!(url.host_str(), Some("api.example"), "{place}");
    Validator::compile(&tool.input_schema).map(|_| ())
}

/// Something of the schema's type; it need not fit.
fn sample(schema: &Value) -> Value {
    let first = schema.get("enum").and_then(|values| values.get(0));
    match (first, schema.get("type").and_then(Value::as_str)) {
        (Some(first), _) => first.clone(),
        (None, Some("integer" | "number")) => json!(1),
        (None, Some("boolean")) => json!(true),
        (None, Some("array")) => json!(["a/b", "c"]),
        (None, Some("object")) => json!({"k": "v"}),
        (None, _) => json!("a/b?c"),
    }
}

fn say(text: &str) {
    if env::var_os("TOOLWAY_SPECS_VERBOSE").is_some() {
        println!("  {text}");
    }
}

#[test]
#[ignore = "needs the documents that scripts/specs fetches"]
fn every_document_loads_or_is_refused_as_written_down() {
    let folder =
        env::var("TOOLWAY_SPECS").expect("TOOLWAY_SPECS names a folder; run scripts/specs");
    let table = crate::project("scripts/specs.d/expected.tsv");
    let mut found = String::new();
    let expected = fs::read_to_string(&table).unwrap();
    for line in expected.lines() {
        let (path, _) = line
            .split_once('\t')
            .expect("a path, a tab, and what is expected");
        let started = std::time::Instant::now();
        let outcome = outcome(&Path::new(&folder).join(path));
        println!("{path}\n  {outcome} ({} ms)", started.elapsed().as_millis());
        found.push_str(&format!("{path}\t{outcome}\n"));
    }
    if env::var_os("UPDATE_SPECS").is_some() {
        fs::write(table, found).unwrap();
        return;
    }
    let lines = expected.lines().zip(found.lines());
    let wrong: Vec<String> = lines
        .filter(|(expected, found)| expected != found)
        .map(|(expected, found)| format!("expected {expected}\nfound    {found}"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
