//! Tools that the model finds by searching: `defer_loading` of clients and of `mcp` entries.

use serde_json::{Value, json};

use crate::{
    dialects::{over, plain, post, streamed, upstream},
    harness::toolway,
    model::{Model, say},
    same_api::searching,
    tools::tools,
};

/// The search for tools of each API that has one.
fn search(api: &str) -> Value {
    match api {
        "anthropic" => {
            json!({"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"})
        }
        _ => json!({"type": "tool_search"}),
    }
}

/// The names of the offered tools that are deferred.
fn deferred(asked: &Value) -> Vec<&str> {
    let tools = asked["tools"].as_array().unwrap().iter();
    let deferred = tools.filter(|tool| tool["defer_loading"] == true);
    deferred.filter_map(|it| it["name"].as_str()).collect()
}

#[tokio::test]
async fn the_tools_of_an_entry_are_found_by_searching_where_the_api_has_a_search() {
    for api in ["responses", "anthropic", "chat", "gemini"] {
        let gw = toolway(Model::start([say("hi")]).await)
            .config(&upstream(api))
            .server("calc", tools().add())
            .server("other", tools().add())
            .start()
            .await;
        let tools = json!([
            {"type": "mcp", "server_label": "calc", "require_approval": "never", "defer_loading": true},
            {"type": "mcp", "server_label": "other", "require_approval": "never"},
        ]);
        let request = json!({"model": "claude-x", "input": "1 + 2?", "tools": tools});
        let response = post(&gw, "/v1/responses", &request).await;
        let warning = response.headers().get("x-toolway-warning").cloned();
        let response: Value = response.json().await.unwrap();
        assert_eq!(response["output"][0]["type"], "mcp_list_tools", "{api}");
        let asked = &gw.model.asked()[0].body;
        let text = asked["tools"].to_string();
        assert!(
            text.contains("calc__add") && text.contains("other__add"),
            "{api}: {text}"
        );
        match api {
            "responses" | "anthropic" => {
                assert_eq!(asked["tools"][0], search(api));
                assert_eq!(deferred(asked), ["calc__add"]);
                assert_eq!(warning, None);
            }
            _ => {
                assert!(
                    !text.contains("defer") && !text.contains("search"),
                    "{api}: {text}"
                );
                assert_eq!(
                    warning.unwrap(),
                    "claude-x was asked without: defer_loading"
                );
            }
        }
        gw.join().await;
    }
}

#[tokio::test]
async fn tools_of_the_client_are_found_by_searching_in_either_api() {
    let own = |schema: &str| json!({"name": "own", schema: {"type": "object"}, "defer_loading": true, "strict": false});
    for (face, api) in [
        ("responses", "responses"),
        ("responses", "anthropic"),
        ("anthropic", "responses"),
        ("anthropic", "anthropic"),
        ("anthropic", "chat"),
    ] {
        let gw = over(api, vec![say("hi")]).await;
        let (path, request) = match face {
            "responses" => {
                let mut own = own("parameters");
                own["type"] = "function".into();
                (
                    "/v1/responses",
                    json!({"model": "claude-x", "input": "hi", "tools": [search(face), own]}),
                )
            }
            _ => {
                let question = json!({"role": "user", "content": "hi"});
                let tools = json!([search(face), own("input_schema")]);
                (
                    "/v1/messages",
                    json!({"model": "claude-x", "max_tokens": 9000, "messages": [question], "tools": tools}),
                )
            }
        };
        let response = post(&gw, path, &request).await;
        let warning = response.headers().get("x-toolway-warning").cloned();
        assert_eq!(response.status(), 200);
        let asked = &gw.model.asked()[0].body;
        match api {
            "chat" => assert_eq!(
                warning.unwrap(),
                "claude-x was asked without: defer_loading"
            ),
            _ => {
                let searches = asked["tools"].as_array().unwrap().iter();
                let searches = searches.filter(|tool| **tool == search(api)).count();
                assert_eq!(searches, 1, "{face} over {api}: {asked}");
                assert_eq!(deferred(asked), ["own"]);
                assert_eq!(warning, None);
            }
        }
        gw.join().await;
    }
}

#[tokio::test]
async fn a_client_sees_the_search_before_the_call_of_the_tool_that_it_found() {
    for is_streamed in [false, true] {
        // What the client sees of calls is streamed by the model in any case.
        let (_, _, replies) = searching("/v1/responses", true);
        let gw = over("responses", replies).await;
        let entry = json!({"type": "mcp", "server_label": "calc", "require_approval": "never", "defer_loading": true});
        let request = json!({"model": "m", "input": "1 + 2?", "tools": [entry]});
        let response = if is_streamed {
            let events = streamed(&gw, "/v1/responses", request).await;
            events.last().unwrap()["response"].clone()
        } else {
            plain(&gw, "/v1/responses", request).await
        };
        let output = response["output"].as_array().unwrap().iter();
        let kinds: Vec<&str> = output.map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "mcp_list_tools",
                "tool_search_call",
                "tool_search_output",
                "mcp_call",
                "message"
            ]
        );
        assert_eq!(response["output"][3]["output"], "3");
        let second = &gw.model.asked()[1].body;
        assert_eq!(
            deferred(second),
            ["calc__add"],
            "the tools of every round are the same"
        );
        gw.join().await;
    }
}

#[tokio::test]
async fn a_search_that_the_client_runs_is_named_where_the_model_has_none() {
    let search = json!({"type": "tool_search", "execution": "client", "description": "finds"});
    let request = json!({"model": "m", "input": "hi", "tools": [search]});
    for (api, warning) in [
        ("responses", None),
        (
            "anthropic",
            Some("not understood and left out: tool tool_search"),
        ),
    ] {
        let gw = over(api, vec![say("hi")]).await;
        let response = post(&gw, "/v1/responses", &request).await;
        let said = response.headers().get("x-toolway-warning");
        assert_eq!(said.map(|it| it.to_str().unwrap()), warning);
        if warning.is_none() {
            assert_eq!(gw.model.asked()[0].body["tools"][0], search);
        }
        gw.join().await;
    }
}
