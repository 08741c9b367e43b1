//! Messages of MCP clients and servers: never a panic, and what was read is read again from what is written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolway_core::translate::era;
use toolway_protocol::mcp::{
        asks, envelope,
        features::{FeatureEntries, FeatureKind},
        progress,
        results::{asks_for_input, read_result, write_result},
        rpc::{self, MessageOrBatch, RpcMessage},
        stateless::{ListenFilter, RequestMeta},
        tools::{Listing, write_tool},
        version::Version,
    };

fuzz_target!(|bytes: &[u8]| {
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    envelope::id_of_cut_response(head, tail);
    match rpc::read(bytes) {
        Ok(MessageOrBatch::One(message)) => check(message),
        Ok(MessageOrBatch::Batch(messages)) => messages.into_iter().flatten().for_each(check),
        Err(malformed) => assert!(malformed.to_value()["error"]["code"].is_i64()),
    }
});

fn check(message: RpcMessage) {
    match message {
        RpcMessage::Request(request) => {
            let written = rpc::request(&request.id, &request.method, request.params.clone().into());
            match rpc::read_message(written) {
                Ok(RpcMessage::Request(again)) => assert_eq!(again, request),
                other => panic!("a request became {other:?}"),
            }
            _ = RequestMeta::read(&request.params);
            if let Ok(filter) = ListenFilter::read(&request.params) {
                filter.to_value();
            }
            let params = Value::from(request.params);
            asks::refusal(&params, &request.method, &params);
        }
        RpcMessage::Notification(notification) => {
            progress::read_progress(&notification.params.into());
        }
        RpcMessage::Response(response) => {
            let line = rpc::write_answer(Some(&response.id), &response.outcome);
            let written = rpc::answer(Some(&response.id), response.outcome.clone());
            assert_eq!(serde_json::from_slice::<Value>(&line).ok(), Some(written));
            if let Ok(result) = response.outcome {
                check_result(result);
            }
        }
    }
}

/// A result may answer any request.
fn check_result(result: Value) {
    asks_for_input(&result);
    envelope::mend_initialize(result.clone());
    let mut listing = Listing::default();
    _ = listing.add_page(&result);
    for tool in &listing.tools {
        write_tool(tool, &tool.name);
    }
    for kind in [FeatureKind::Prompts, FeatureKind::Resources, FeatureKind::Templates] {
        _ = FeatureEntries::new(kind).add_page(&result);
    }
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] {
        let version = Version::parse(version).expect("a version that is known");
        era::fit_call(result.clone(), version);
        era::fit_prompt(result.clone(), version);
    }
    let once = write_result(read_result(result));
    assert_eq!(write_result(read_result(once.clone())), once);
}
