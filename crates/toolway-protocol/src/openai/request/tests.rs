use serde_json::{Value, json};

use super::*;
use serde_json::value::RawValue;

const BODY: &str = r#"{ "model":"gpt-x",  "messages":[{"role":"user","content":"hi é"}],"temperature":1.0,"x":{"y":[1e400]}}"#;

fn parse(body: &str) -> ChatRequest<'_> {
    ChatRequest::parse(body.as_bytes(), 64).unwrap()
}

/// A request with these members besides `model` and `messages`.
fn with(members: &str) -> String {
    format!(r#"{{"model":"m","messages":[],{members}}}"#)
}

#[track_caller]
fn refused(body: impl AsRef<[u8]>) -> RequestError {
    ChatRequest::parse(body.as_ref(), 64).unwrap_err()
}

#[track_caller]
fn check_refusal(members: &str, param: &str, message: &str) {
    let error = refused(with(members));
    assert_eq!(error.param.as_deref(), Some(param));
    assert_eq!(error.message, message);
}

mod members {
    use super::*;

    #[test]
    fn what_the_gateway_decides_on_is_read() {
        let body = with(
            r#""stream":true,"stream_options":{"include_usage":true},"n":2,"parallel_tool_calls":false"#,
        );
        let request = parse(&body);
        assert_eq!(request.model(), "m");
        assert!(request.stream() && request.include_usage());
        assert_eq!(
            (request.n(), request.parallel_tool_calls()),
            (2, Some(false))
        );
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let body = with(
            r#""stream":null,"stream_options":null,"n":null,"parallel_tool_calls":null,"tools":null,"tool_choice":null"#,
        );
        let request = parse(&body);
        assert!(!request.stream() && !request.include_usage());
        assert_eq!((request.n(), request.parallel_tool_calls()), (1, None));
        assert!(request.client_tools().is_empty());
        assert!(matches!(request.tool_choice(), ToolChoice::Absent));
    }

    #[test]
    fn the_last_of_two_members_counts() {
        let request = parse(r#"{"model":"a","messages":[],"mod\u0065l":"b"}"#);
        assert_eq!(request.model(), "b");
        assert_eq!(request.member("model").unwrap().get(), "\"b\"");
    }

    #[test]
    fn a_wrong_type_is_named() {
        let message = "Invalid type for 'stream': expected a boolean, but got a string instead.";
        check_refusal(r#""stream":"yes""#, "stream", message);
        let message = "Invalid type for 'n': expected a whole number, but got a number instead.";
        check_refusal(r#""n":1.5"#, "n", message);
        check_refusal(
            r#""n":0"#,
            "n",
            "Invalid value for 'n': it must be at least 1.",
        );
        let message =
            "Invalid type for 'tools': expected an array of objects, but got an object instead.";
        check_refusal(r#""tools":{}"#, "tools", message);
        let message = "Invalid type for 'tools[1]': expected an object, but got a number instead.";
        check_refusal(r#""tools":[{},5]"#, "tools[1]", message);
        let message = "Invalid type for 'tool_choice': expected a string or an object, but got an array instead.";
        check_refusal(r#""tool_choice":[]"#, "tool_choice", message);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = refused(r#"{"messages":[]}"#);
        assert_eq!(error.message, "Missing required parameter: 'model'.");
        let error = refused(r#"{"model":"m","messages":null}"#);
        assert_eq!(error.param.as_deref(), Some("messages"));
        let error = refused(r#"{"model":"m","messages":"hi"}"#);
        assert_eq!(error.code, Some("invalid_type"));
    }

    #[test]
    fn what_is_no_json_object_is_refused() {
        for body in [
            "",
            "{",
            "[]",
            "null",
            "{}x",
            "{\"a\":}",
            "{\"a\":1,}",
            "{'a':1}",
        ] {
            assert_eq!(refused(body).param, None, "{body}");
        }
        assert!(refused(b"{\"a\":\"\xff\"}").message.contains("UTF-8"));
    }

    #[test]
    fn a_body_that_is_nested_too_deep_is_refused_without_falling_over() {
        let body = with(&format!(r#""x":{}{}"#, "[".repeat(63), "]".repeat(63)));
        assert!(ChatRequest::parse(body.as_bytes(), 64).is_ok());
        assert!(ChatRequest::parse(body.as_bytes(), 63).is_err());
        assert!(
            refused(with(&format!(r#""x":{}"#, "[".repeat(1 << 20))))
                .message
                .contains("deep")
        );
    }

    #[test]
    fn a_body_of_too_many_values_is_refused_before_they_are_built() {
        for value in ["{}", "0", r#"{"a":0}"#] {
            for member in ["tools", "x"] {
                let list = vec![value; 500_000].join(",");
                let said = refused(with(&format!(r#""{member}":[{list}]"#))).message;
                assert!(said.contains("more than 500000 JSON values"), "{said}");
            }
        }
        let body = with(&format!(r#""x":[{}]"#, vec!["0"; 400_000].join(",")));
        assert!(ChatRequest::parse(body.as_bytes(), 64).is_ok());
    }

    #[test]
    fn without_a_bound_on_depth_it_does_not_fall_over_either() {
        let deep = format!("{}{}", "[".repeat(1 << 18), "]".repeat(1 << 18));
        let body = with(&format!(r#""x":{deep}"#));
        assert!(ChatRequest::parse(body.as_bytes(), usize::MAX).is_ok());
        for member in ["tools", "tool_choice", "n", "stream_options"] {
            let body = with(&format!(
                r#""{member}":[{{"type":"mcp","allowed_tools":{deep}}}]"#
            ));
            assert!(
                ChatRequest::parse(body.as_bytes(), usize::MAX).is_err(),
                "{member}"
            );
        }
    }

    #[test]
    fn a_refusal_does_not_repeat_a_long_value() {
        let long = "é".repeat(1 << 16);
        assert!(refused(format!("\"{long}\"")).message.len() < 600);
        let tools = format!(r#""tools":[{{"type":"function","function":"{long}"}}]"#);
        assert!(refused(with(&tools)).message.len() < 600);
        let choice = format!(r#""tool_choice":{{"type":"function","function":"{long}"}}"#);
        assert!(refused(with(&choice)).message.len() < 600);
    }

    #[test]
    fn a_body_of_thousands_of_members_is_refused() {
        let members: Vec<String> = (0..1000).map(|i| format!("\"m{i}\":1")).collect();
        assert!(refused(with(&members.join(","))).message.contains("512"));
    }

    #[test]
    fn a_megabyte_of_messages_stays_the_bytes_that_came() {
        let text = "x\\n\\\"[".repeat(1 << 18);
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let request = parse(&body);
        let messages = request.messages().get();
        assert!(body.as_bytes().as_ptr_range().contains(&messages.as_ptr()));
        assert_eq!(messages.len(), text.len() + 30);
    }
}

mod compose {
    use super::*;

    #[track_caller]
    fn check(changes: &[(&str, Change<'_, '_>)], expected: &str) {
        assert_eq!(parse(BODY).compose(changes).to_bytes(), expected);
    }

    #[test]
    fn nothing_changed_gives_the_bytes_that_came() {
        check(&[], BODY);
    }

    #[test]
    fn the_other_members_keep_their_bytes_and_their_order() {
        check(
            &[
                ("temperature", Change::Remove),
                ("model", Change::Set("\"b\"")),
                ("stream", Change::Set("true")),
                ("absent", Change::Remove),
            ],
            r#"{"model":"b","messages":[{"role":"user","content":"hi é"}],"x":{"y":[1e400]},"stream":true}"#,
        );
    }

    #[test]
    fn the_last_change_of_a_member_counts() {
        let twice = [("a", Change::Set("1")), ("a", Change::Set("2"))];
        let body = parse(BODY).compose(&twice).to_bytes();
        let body = String::from_utf8(body.into()).unwrap();
        assert!(
            body.ends_with(r#","a":2}"#) && !body.contains(r#""a":1"#),
            "{body}"
        );
    }

    #[test]
    fn of_a_member_that_comes_twice_one_is_written() {
        let request = parse(r#"{"model":"a","messages":[],"model":"b"}"#);
        let body = request.compose(&[("n", Change::Set("1"))]).to_bytes();
        assert_eq!(body, r#"{"messages":[],"model":"b","n":1}"#);
    }

    #[test]
    fn everything_taken_out_leaves_an_empty_object() {
        let request = parse(r#"{"model":"a","messages":[]}"#);
        let body = request.compose(&[("model", Change::Remove), ("messages", Change::Remove)]);
        assert_eq!(body.to_bytes(), "{}");
    }

    #[test]
    fn messages_are_added_at_the_end() {
        let spliced = |text: &str, appended: &str| splice_messages(text, appended).concat();
        assert_eq!(spliced("[ ]", "{}"), "[ {}]");
        assert_eq!(spliced(r#"[{"a":1} ]"#, "{},{}"), r#"[{"a":1} ,{},{}]"#);
        assert_eq!(spliced("[1]", ""), "[1]");
    }

    #[test]
    fn messages_can_be_had_one_by_one() {
        let raw = RawValue::from_string(r#"[{"a": [1]}, 2]"#.to_owned()).unwrap();
        let messages = messages_of((&*raw).into()).into_iter();
        let messages: Vec<&str> = messages.map(RawValue::get).collect();
        assert_eq!(messages, [r#"{"a": [1]}"#, "2"]);
    }
}

mod tools {
    use super::*;

    const TOOLS: &str = r#""tools":[
        {"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
        {"type":"mcp","server_label":"files","allowed_tools":["read_*"],"require_approval":"never"},
        {"type":"custom","custom":{"name":"c"}},
        {"type":"web_search"},
        {"type":"function","name":"flat"}
    ],"functions":[{"name":"old"}]"#;

    #[test]
    fn the_clients_own_tools_and_the_gateways_are_told_apart() {
        let body = with(TOOLS);
        let request = parse(&body);
        let own = request
            .client_tools()
            .iter()
            .map(|tool| (tool.kind, tool.name.as_deref()));
        assert_eq!(
            own.collect::<Vec<_>>(),
            [
                (ClientToolKind::Function, Some("f")),
                (ClientToolKind::Custom, Some("c")),
                (ClientToolKind::Other, None),
                (ClientToolKind::Function, Some("flat")),
                (ClientToolKind::LegacyFunction, Some("old")),
            ]
        );
        assert_eq!(request.client_names(), ["f", "c", "", "flat", "old"]);
        let names = Some(vec!["read_*".to_owned()]);
        let expected = McpTool {
            param: "tools[1]".into(),
            server_label: "files".into(),
            allowed_tools: Some(AllowedTools {
                names,
                read_only: false,
            }),
            require_approval: Some(RequireApproval::Never),
        };
        assert_eq!(request.mcp_tools(), [expected]);
    }

    #[test]
    fn the_gateways_tools_follow_the_clients_own_as_they_came() {
        let body = with(TOOLS);
        let tools = parse(&body).tools_with(&[r#"{"g":1}"#, r#"{"g":2}"#]);
        let tools = tools.unwrap().concat();
        let tools: Value = serde_json::from_str(&tools).unwrap();
        assert_eq!(tools.as_array().unwrap().len(), 6);
        assert_eq!(tools[0]["function"]["name"], "f");
        assert_eq!(tools[5], json!({"g": 2}));
        assert_eq!(parse(BODY).tools_with(&[""]), None);
        let tools = parse(BODY).tools_with(&["", "{}"]);
        assert_eq!(tools.unwrap().concat(), "[{}]");
    }

    #[track_caller]
    fn check_allowed(allowed: &str, names: Option<&[&str]>, read_only: bool) {
        let entry = format!(r#"{{"type":"mcp","server_label":"s","allowed_tools":{allowed}}}"#);
        let body = with(&format!(r#""tools":[{entry}]"#));
        let names = names.map(|names| names.iter().map(|it| (*it).to_owned()).collect());
        let expected = AllowedTools { names, read_only };
        let found = parse(&body).mcp_tools()[0].allowed_tools.clone();
        assert_eq!(found.unwrap_or_default(), expected, "{allowed}");
    }

    #[test]
    fn allowed_tools_are_a_list_or_a_filter() {
        check_allowed("null", None, false);
        check_allowed("[]", Some(&[]), false);
        check_allowed(r#"["a"]"#, Some(&["a"]), false);
        check_allowed(
            r#"{"tool_names":["a"],"read_only":true}"#,
            Some(&["a"]),
            true,
        );
        check_allowed(r#"{"read_only":true}"#, None, true);
    }

    #[test]
    fn an_mcp_entry_that_cannot_be_honoured_is_refused() {
        check_refusal(
            r#""tools":[{},{"type":"mcp"}]"#,
            "tools[1].server_label",
            "Missing required parameter: 'tools[1].server_label'.",
        );
        let error = refused(with(
            r#""tools":[{"type":"mcp","server_label":"s","require_approval":"sometimes"}]"#,
        ));
        assert_eq!(error.param.as_deref(), Some("tools[0]"));
        assert_eq!(
            error.message,
            "Invalid value for 'tools[0]': `require_approval` is neither \"always\", \"never\" nor an object of these."
        );
        let error = refused(with(
            r#""tools":[{"type":"mcp","server_label":"s","allowed_tools":5}]"#,
        ));
        assert_eq!(error.param.as_deref(), Some("tools[0]"));
    }

    #[test]
    fn a_function_whose_name_is_no_text_is_refused() {
        let error = refused(with(
            r#""tools":[{"type":"function","function":{"name":5}}]"#,
        ));
        assert_eq!(error.param.as_deref(), Some("tools[0]"));
    }
}

mod choice {
    use super::*;

    #[track_caller]
    fn check(choice: &str, expected: &str) {
        let body = with(&format!(r#""tool_choice":{choice}"#));
        let found = format!("{:?}", parse(&body).tool_choice());
        assert!(found.starts_with(expected), "{choice} is read as {found}");
    }

    #[test]
    fn every_form_of_tool_choice_is_read() {
        check(r#""none""#, "None");
        check(r#""auto""#, "Auto");
        check(r#""required""#, "Required");
        check(r#""any""#, "Required");
        check(
            r#"{"type":"function","function":{"name":"f"}}"#,
            r#"Function("f")"#,
        );
        check(
            r#"{"type":"custom","custom":{"name":"c"}}"#,
            r#"Custom("c")"#,
        );
        check(
            r#"{"type":"mcp","server_label":"s","name":"t"}"#,
            r#"Mcp(McpChoice { server_label: "s", name: Some("t") })"#,
        );
        check(
            r#"{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[
                {"type":"function","function":{"name":"f"}},{"type":"mcp","server_label":"s"}]}}"#,
            r#"AllowedTools { mode: Required, names: ["f"], mcp: [McpChoice { server_label: "s", name: None }] }"#,
        );
    }

    #[test]
    fn what_is_not_known_is_left_to_the_upstream() {
        check(r#""sometimes""#, "Other");
        check(r#"{"type":"web_search"}"#, "Other");
        check(r#"{"type":"function"}"#, "Other");
    }

    #[test]
    fn the_deprecated_function_call_counts_where_there_is_no_tool_choice() {
        let body = with(r#""function_call":{"name":"old"}"#);
        assert!(matches!(parse(&body).tool_choice(), ToolChoice::Function(name) if name == "old"));
        let body = with(r#""function_call":"none","tool_choice":"auto""#);
        assert!(matches!(parse(&body).tool_choice(), ToolChoice::Auto));
    }
}
