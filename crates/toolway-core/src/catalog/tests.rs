use serde_json::json;

use super::*;
use toolway_protocol::{
    openai::request::{AllowedTools, McpChoice, McpTool, RequireApproval},
    tool::{Annotations, JsonObject},
};

fn server(name: &str, tools: &[&str]) -> ServerTools {
    let tool = |name: &&str| tool(name, &json!({"type": "object"}));
    ServerTools {
        server: ServerId::parse(name).unwrap(),
        stateful: false,
        risk: Default::default(),
        tools: tools.iter().map(tool).collect(),
        dropped: Vec::new(),
    }
}

fn tool(name: &str, schema: &serde_json::Value) -> Tool {
    Tool {
        name: name.to_owned(),
        title: None,
        description: None,
        input_schema: schema.as_object().unwrap().clone(),
        output_schema: None,
        annotations: Annotations::default(),
        extra: JsonObject::new(),
    }
}

/// Two servers: `files` with three tools, one of them read-only, and `web` with two.
fn small() -> Catalog {
    let mut files = server("files", &["write", "read", "list"]);
    files.tools[1].annotations.read_only = Some(true);
    Catalog::build(&[server("web", &["fetch", "search"]), files])
}

fn names(tools: &[Arc<Offered>]) -> Vec<&str> {
    tools.iter().map(|tool| tool.name.as_str()).collect()
}

mod build {
    use super::*;

    #[test]
    fn tools_are_in_the_order_of_servers_and_names_whatever_came_first() {
        let expected = [
            "files__list",
            "files__read",
            "files__write",
            "web__fetch",
            "web__search",
        ];
        assert_eq!(names(small().offered()), expected);
    }

    #[test]
    fn a_catalog_can_be_shared_between_threads() {
        fn check<T: Send + Sync>() {}
        check::<Catalog>();
        check::<Selected>();
    }

    #[test]
    fn a_tool_is_found_by_its_offered_name_only() {
        let catalog = small();
        assert_eq!(catalog.find("files__read").unwrap().tool.name, "read");
        assert!(catalog.find("read").is_none());
        assert!(catalog.find("files__").is_none());
        assert!(catalog.find("no name at all").is_none());
    }

    #[test]
    fn a_broken_tool_is_dropped_alone() {
        let mut files = server("files", &["read", "read", ""]);
        files.tools.push(tool("broken", &json!({"type": "string"})));
        files.dropped.push(DroppedTool {
            name: "#4".into(),
            reason: "it is no object".into(),
        });
        let catalog = Catalog::build(&[files]);
        assert_eq!(names(catalog.offered()), ["files__read"]);
        let dropped: Vec<(&str, &str)> = catalog
            .dropped()
            .iter()
            .map(|(_, it)| (&*it.name, &*it.reason))
            .collect();
        assert_eq!(
            dropped,
            [
                ("", "it has no name"),
                ("#4", "it is no object"),
                (
                    "broken",
                    "its input schema has type \"string\", not \"object\""
                ),
                ("read", "the server lists it more than once"),
            ]
        );
    }

    #[test]
    fn a_schema_that_cannot_be_compiled_is_noted_and_the_tool_stays() {
        let mut files = server("files", &[]);
        files
            .tools
            .push(tool("a", &json!({"properties": {"x": {"pattern": "["}}})));
        files.tools.push(tool(
            "b",
            &json!({"properties": {"x": {"$ref": "http://127.0.0.1:1/"}}}),
        ));
        let catalog = Catalog::build(&[files]);
        assert_eq!(names(catalog.offered()), ["files__a", "files__b"]);
        for offered in catalog.offered() {
            assert!(offered.validator.is_none());
            assert!(offered.notes[0].starts_with("its arguments are not checked: "));
        }
    }

    #[test]
    fn a_long_description_is_cut_between_characters_and_noted() {
        let mut files = server("files", &["a", "b"]);
        files.tools[0].description = Some("é".repeat(20_000));
        files.tools[1].description = Some("é".repeat(8192));
        let catalog = Catalog::build(&[files]);
        let shown = |offered: &Offered| -> String {
            let json: serde_json::Value = serde_json::from_str(&offered.json).unwrap();
            json["function"]["description"].as_str().unwrap().to_owned()
        };
        let [a, b] = catalog.offered() else {
            panic!("both are offered")
        };
        assert_eq!((shown(a), shown(b)), ("é".repeat(8192), "é".repeat(8192)));
        assert!(
            a.notes[0].contains("longer than 16384 bytes"),
            "{:?}",
            a.notes
        );
        assert!(b.notes.is_empty());
        // For clients of MCP it stays what the server says.
        assert_eq!(a.tool.description.as_ref().unwrap().len(), 40_000);
    }

    #[test]
    fn what_openai_does_not_take_at_the_top_is_noted() {
        let mut files = server("files", &[]);
        files
            .tools
            .push(tool("a", &json!({"oneOf": [{"required": ["x"]}]})));
        let catalog = Catalog::build(&[files]);
        assert!(catalog.offered()[0].notes[0].contains("oneOf"));
        assert!(catalog.offered()[0].validator.is_some());
    }

    #[test]
    fn a_name_that_does_not_fit_is_reported_as_renamed() {
        let catalog = Catalog::build(&[server("files", &["read.me", "write"])]);
        let renamed: Vec<&str> = catalog.renamed().map(|it| it.tool.name.as_str()).collect();
        assert_eq!(renamed, ["read.me"]);
    }

    #[test]
    fn what_has_not_changed_is_taken_over() {
        let before = small();
        let mut web = server("web", &["fetch", "search"]);
        web.tools[0].description = Some("new".into());
        let after = before.rebuild(&[web, server("files", &["list"])]);
        assert_eq!(
            names(after.offered()),
            ["files__list", "web__fetch", "web__search"]
        );
        let same = |name: &str| Arc::ptr_eq(before.find(name).unwrap(), after.find(name).unwrap());
        assert!(same("files__list") && same("web__search"));
        assert!(!same("web__fetch"));
    }

    #[test]
    fn a_server_that_becomes_stateful_is_so_at_once() {
        let mut files = server("files", &["list"]);
        let before = Catalog::build(std::slice::from_ref(&files));
        files.stateful = true;
        let after = before.rebuild(&[files]);
        assert!(after.find("files__list").unwrap().stateful);
    }

    #[test]
    fn a_name_that_nobody_offers_is_answered_with_those_that_look_like_it() {
        let catalog = small();
        assert_eq!(catalog.suggest("read"), ["files__read"]);
        assert_eq!(catalog.suggest("Files.Read"), ["files__read"]);
        assert_eq!(catalog.suggest("files__raed"), ["files__read"]);
        assert_eq!(catalog.suggest("web__serach")[0], "web__search");
        assert!(catalog.suggest("weather").is_empty());
        assert!(catalog.suggest("").is_empty());
        assert!(catalog.suggest(&"x".repeat(1 << 20)).is_empty());
    }

    #[test]
    fn five_thousand_tools_are_taken_up() {
        let tools: Vec<String> = (0..1000).map(|i| format!("tool_{i:04}")).collect();
        let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
        let servers: Vec<ServerTools> = ["a", "b", "c", "d", "e"]
            .iter()
            .map(|name| server(name, &tools))
            .collect();
        let catalog = Catalog::build(&servers);
        assert_eq!(catalog.offered().len(), 5000);
        let selected = catalog.select(&Selection::everything(), &[], 128);
        assert_eq!(selected.tools.len(), 128);
        assert_eq!(selected.left_out.len(), 4872);
        let again = catalog.select(&Selection::everything(), &[], 128);
        assert!(Arc::ptr_eq(&selected, &again), "it is made once");
    }
}

mod select {
    use super::*;

    /// What is offered to a request with these two headers.
    #[track_caller]
    fn check(tools: Option<&str>, servers: Option<&str>, expected: &[&str]) {
        let catalog = small();
        let selection = Selection::parse(tools, servers, &[], catalog.servers()).unwrap();
        let selected = catalog.select(&selection, &[], 128);
        assert_eq!(
            names(&selected.tools),
            expected,
            "tools {tools:?}, servers {servers:?}"
        );
    }

    const ALL: &[&str] = &[
        "files__list",
        "files__read",
        "files__write",
        "web__fetch",
        "web__search",
    ];

    #[test]
    fn without_a_header_everything_is_offered() {
        check(None, None, ALL);
    }

    #[test]
    fn an_empty_header_and_none_select_nothing() {
        check(Some(""), None, &[]);
        check(Some("none"), None, &[]);
        check(None, Some(" , "), &[]);
        check(None, Some("none"), &[]);
    }

    #[test]
    fn none_is_not_the_name_of_a_tool() {
        let catalog = Catalog::build(&[server("a", &["none"])]);
        let selection = Selection::parse(Some("none"), None, &[], catalog.servers()).unwrap();
        assert!(catalog.select(&selection, &[], 128).tools.is_empty());
    }

    #[test]
    fn a_tool_is_named_by_its_offered_name_its_own_or_with_its_server() {
        check(Some("files__read"), None, &["files__read"]);
        check(Some("read, fetch"), None, &["files__read", "web__fetch"]);
        check(Some("files/*"), None, &ALL[..3]);
        check(Some("*/search"), None, &["web__search"]);
        check(Some("*e*"), None, ALL);
        check(Some("nothing"), None, &[]);
    }

    #[test]
    fn an_exclamation_mark_takes_out() {
        check(
            Some("!write"),
            None,
            &["files__list", "files__read", "web__fetch", "web__search"],
        );
        check(
            Some("files/*, !write"),
            None,
            &["files__list", "files__read"],
        );
        check(
            Some("!write, files/*"),
            None,
            &["files__list", "files__read"],
        );
        check(None, Some("!web"), &ALL[..3]);
        check(Some("*, !*"), None, &[]);
    }

    #[test]
    fn both_headers_must_agree() {
        check(Some("read,search"), Some("files"), &["files__read"]);
        check(Some("*"), Some("w*"), &ALL[3..]);
    }

    fn entry(label: &str, allowed_tools: Option<AllowedTools>) -> McpTool {
        McpTool {
            param: "tools[0]".into(),
            server_label: label.into(),
            allowed_tools,
            require_approval: Some(RequireApproval::Never),
        }
    }

    fn only(names: &[&str]) -> Option<AllowedTools> {
        let names = Some(names.iter().map(|name| (*name).to_owned()).collect());
        Some(AllowedTools {
            names,
            read_only: false,
        })
    }

    #[track_caller]
    fn check_entries(entries: &[McpTool], servers: Option<&str>, expected: &[&str]) {
        let catalog = small();
        let selection = Selection::parse(None, servers, entries, catalog.servers()).unwrap();
        let selected = catalog.select(&selection, &[], 128);
        assert_eq!(
            names(&selected.tools),
            expected,
            "{entries:?}, servers {servers:?}"
        );
    }

    #[test]
    fn with_mcp_entries_only_what_they_name_is_offered() {
        check_entries(&[entry("web", None)], None, &ALL[3..]);
        check_entries(&[entry("w*", None)], None, &ALL[3..]);
        check_entries(&[entry("toolway", None)], None, ALL);
        check_entries(&[entry("*", None)], None, ALL);
        check_entries(
            &[entry("files", only(&["read", "files__list"]))],
            None,
            &ALL[..2],
        );
        check_entries(&[entry("files", only(&[]))], None, &[]);
        check_entries(
            &[entry("files", only(&["read"])), entry("web", only(&["s*"]))],
            None,
            &["files__read", "web__search"],
        );
        let read_only = AllowedTools {
            names: None,
            read_only: true,
        };
        check_entries(&[entry("*", Some(read_only))], None, &["files__read"]);
    }

    #[test]
    fn a_request_is_asked_before_what_its_entries_say() {
        let asked = |require_approval: Option<RequireApproval>| {
            let catalog = small();
            let entry = McpTool {
                require_approval,
                ..entry("*", None)
            };
            let selection = Selection::parse(None, None, &[entry], catalog.servers()).unwrap();
            let tools = catalog.offered().iter();
            let asked = tools.filter(|tool| selection.asks_before(tool));
            asked.map(|tool| tool.name.to_string()).collect::<Vec<_>>()
        };
        let all = asked(Some(RequireApproval::Always));
        assert_eq!(all, ALL);
        assert_eq!(asked(None), ALL, "as OpenAI has it");
        assert!(asked(Some(RequireApproval::Never)).is_empty());
        let read = || only(&["files__read"]);
        let lists = |always, never| asked(Some(RequireApproval::Lists(always, never)));
        assert_eq!(lists(read(), None), ["files__read"]);
        let others = ALL.iter().copied().filter(|it| *it != "files__read");
        let others: Vec<&str> = others.collect();
        assert_eq!(lists(None, read()), others);
        assert!(lists(only(&[]), only(&[])).is_empty());
    }

    #[test]
    fn a_server_has_its_own_label_before_a_pattern() {
        let labels = ["toolway", "f*", "files"].map(str::to_owned);
        let label = |server, labels| label_of(&ServerId::parse(server).unwrap(), labels);
        assert_eq!(label("files", &labels[..]), Some("files"));
        assert_eq!(label("web", &labels[..]), Some("toolway"));
        assert_eq!(label("web", &labels[1..]), None);
    }

    #[test]
    fn headers_narrow_what_mcp_entries_name() {
        check_entries(&[entry("*", None)], Some("web"), &ALL[3..]);
        check_entries(&[entry("files", None)], Some("web"), &[]);
    }

    #[test]
    fn a_server_that_is_not_known_is_refused_with_those_that_are() {
        let catalog = small();
        let entries = [entry("flies", None)];
        let error = Selection::parse(None, None, &entries, catalog.servers()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[0].server_label"));
        assert!(error.message.contains("'flies'") && error.message.contains("files, web"));
    }

    #[test]
    fn thousands_of_patterns_are_refused() {
        let catalog = small();
        let many = vec!["a"; 1000].join(",");
        let parse = |entries| Selection::parse(Some(&many), None, entries, catalog.servers());
        assert!(parse(&[]).is_ok());
        let entries = [entry("files", only(&["a"; 100]))];
        assert!(parse(&entries).unwrap_err().message.contains("1024"));
    }

    #[test]
    fn a_known_server_without_tools_is_no_error() {
        let catalog = Catalog::build(&[server("down", &[])]);
        let entries = [entry("down", None)];
        let selection = Selection::parse(None, None, &entries, catalog.servers()).unwrap();
        assert!(catalog.select(&selection, &[], 128).tools.is_empty());
    }

    #[test]
    fn a_server_that_is_called_toolway_is_meant_by_that_name() {
        let catalog = Catalog::build(&[server("toolway", &["a"]), server("web", &["b"])]);
        let entries = [entry("toolway", None)];
        let selection = Selection::parse(None, None, &entries, catalog.servers()).unwrap();
        assert_eq!(
            names(&catalog.select(&selection, &[], 128).tools),
            ["toolway__a"]
        );
    }

    #[test]
    fn a_tool_of_the_client_wins_over_one_of_the_gateway() {
        let catalog = small();
        let selected = catalog.select(&Selection::everything(), &["files__read", "own"], 128);
        assert_eq!(
            names(&selected.tools),
            ["files__list", "files__write", "web__fetch", "web__search"]
        );
        let name = FunctionName::parse("files__read").unwrap();
        assert_eq!(
            selected.left_out,
            [LeftOut {
                name,
                reason: LeftOutReason::ClientsOwn
            }]
        );
        assert!(!selected.json.contains("files__read"));
    }

    #[test]
    fn tool_choice_finds_what_it_means() {
        let selected = small().select(&Selection::everything(), &[], 128);
        let chosen = |label: &str, name: Option<&str>| {
            let name = name.map(str::to_owned);
            let choice = McpChoice {
                server_label: label.into(),
                name,
            };
            selected
                .chosen(&choice)
                .iter()
                .map(|it| it.name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen("files", Some("read")), ["files__read"]);
        assert_eq!(chosen("web", None), ["web__fetch", "web__search"]);
        assert_eq!(chosen("toolway", Some("read")), ["files__read"]);
        assert!(chosen("web", Some("read")).is_empty());
    }

    #[test]
    fn the_entries_are_joined_by_commas() {
        let selected = small().select(&Selection::everything(), &[], 128);
        let tools: serde_json::Value =
            serde_json::from_str(&format!("[{}]", selected.json)).unwrap();
        assert_eq!(tools[4]["function"]["name"], "web__search");
        assert_eq!(
            tools[4]["function"]["parameters"],
            json!({"type": "object", "properties": {}})
        );
        assert_eq!(selected.find("web__search").unwrap().tool.name, "search");
    }
}

mod limit {
    use super::*;

    #[track_caller]
    fn check(tools: Option<&str>, clients: &[&str], max: usize, expected: &[&str]) {
        let catalog = small();
        let selection = Selection::parse(tools, None, &[], catalog.servers()).unwrap();
        let selected = catalog.select(&selection, clients, max);
        assert_eq!(
            names(&selected.tools),
            expected,
            "{tools:?}, {clients:?}, {max}"
        );
        let too_many = selected
            .left_out
            .iter()
            .filter(|it| it.reason == LeftOutReason::TooMany { max });
        assert!(too_many.count() > 0);
    }

    #[test]
    fn the_biggest_server_gives_up_its_last_tools_first() {
        check(
            None,
            &[],
            4,
            &["files__list", "files__read", "web__fetch", "web__search"],
        );
        check(None, &[], 3, &["files__list", "files__read", "web__fetch"]);
        check(None, &[], 2, &["files__list", "web__fetch"]);
        check(None, &[], 1, &["files__list"]);
        check(None, &[], 0, &[]);
    }

    #[test]
    fn the_clients_own_tools_count() {
        check(None, &["x", "y"], 4, &["files__list", "web__fetch"]);
        check(None, &["x", "y", "z"], 2, &[]);
    }

    #[test]
    fn the_clients_own_tools_count_where_all_of_the_gateways_would_fit_alone() {
        check(
            None,
            &["x"],
            5,
            &["files__list", "files__read", "web__fetch", "web__search"],
        );
    }

    #[test]
    fn a_server_that_is_named_is_no_more_than_a_pattern() {
        let catalog = small();
        let headers = (Some("*, read"), Some("files"));
        let selection = Selection::parse(headers.0, headers.1, &[], catalog.servers()).unwrap();
        assert_eq!(
            names(&catalog.select(&selection, &[], 1).tools),
            ["files__read"]
        );
    }

    #[test]
    fn what_is_named_stays_longer_than_what_a_pattern_meets() {
        check(
            Some("write, search, *"),
            &[],
            3,
            &["files__list", "files__write", "web__search"],
        );
        check(
            Some("*, write, search, fetch"),
            &[],
            2,
            &["files__write", "web__fetch"],
        );
    }

    #[test]
    fn what_tool_choice_names_stays() {
        let catalog = small();
        let mut selection = Selection::everything();
        selection.prefer(["web__search".to_owned()]);
        assert_eq!(
            names(&catalog.select(&selection, &[], 1).tools),
            ["web__search"]
        );
        let mut selection =
            Selection::parse(Some("files/*"), None, &[], catalog.servers()).unwrap();
        selection.prefer(["web__search".to_owned()]);
        let selected = catalog.select(&selection, &[], 128);
        assert!(selected.find("web__search").is_none(), "it adds nothing");
    }
}
