//! The other wire: a `tools/call` read and written, and what came of it.

use serde_json::{Value, json};
use toolway_core::translate::{
    era::fit_call,
    functions::reply,
    results::{Media, cut_off, to_openai},
};
use toolway_protocol::{
    json_size::JsonSize,
    mcp::{
        results::{read_result, write_result},
        rpc::{self, RpcId},
        version::Version,
    },
};

use super::{Body, Table, body, tools::ARGUMENTS};

pub(super) const CASES: Table = &[
    ("rpc/read_a_call", 500, || read(&call())),
    ("rpc/read_an_answer", 500, || read(&answer())),
    ("rpc/write_a_call", 500, write_call),
    ("rpc/write_an_answer", 500, write_answer),
    ("result/read", 500, read_raw),
    ("result/write", 500, write_raw),
    ("result/fit", 500, fit_raw),
    ("result/of_a_function", 500, read_reply),
    ("result/to_openai", 500, || translate(&result(), 65_536)),
    ("result/to_openai_cut", 100, || translate(&long(), 65_536)),
];

/// As the configuration has it by default.
const MAX_DEPTH: usize = 127;

fn read(message: &Value) -> Body {
    let message = message.to_string();
    let most = JsonSize::up_to_depth(MAX_DEPTH);
    body(move || rpc::read_within(message.as_bytes(), most).expect("a message"))
}

fn write_call() -> Body {
    let params = call()["params"].clone();
    body(move || rpc::request(&RpcId::from(7), "tools/call", params.clone()).to_string())
}

fn write_answer() -> Body {
    let outcome = Ok(result());
    body(move || rpc::write_answer(Some(&RpcId::from(7)), &outcome))
}

fn read_raw() -> Body {
    let raw = result();
    body(move || read_result(raw.clone()))
}

fn write_raw() -> Body {
    let result = read_result(result());
    body(move || write_result(result.clone()))
}

fn fit_raw() -> Body {
    let raw = result();
    body(move || fit_call(raw.clone(), Version::V2025_11_25))
}

fn read_reply() -> Body {
    let reply = result()["structuredContent"].to_string();
    body(move || reply::read("forecast", 200, "application/json", reply.as_bytes()))
}

fn translate(raw: &Value, limit: usize) -> Body {
    let result = read_result(raw.clone());
    body(move || to_openai(&result, limit, Media::default(), cut_off))
}

fn call() -> Value {
    let arguments: Value = serde_json::from_str(ARGUMENTS).expect("JSON");
    let params = json!({
        "name": "forecast", "arguments": arguments, "_meta": {"progressToken": 7},
    });
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
}

fn answer() -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "result": result()})
}

/// Text, the same as structured content, and a link.
fn result() -> Value {
    let day = |at: u32| json!({"day": at, "temperature": 24.5, "wind": 3, "rain": false});
    let days: Value = (0..3).map(day).collect();
    let link = json!({
        "type": "resource_link", "uri": "weather://stations/zrh", "name": "zrh", "mimeType": "application/json",
    });
    json!({
        "content": [{"type": "text", "text": json!({"days": days}).to_string()}, link],
        "structuredContent": {"days": days},
        "isError": false,
    })
}

/// 200 KB of text.
fn long() -> Value {
    let text = "Zürich: sunny, 24 °C, wind 3 m/s from the west\n".repeat(4_000);
    json!({"content": [{"type": "text", "text": text}]})
}
