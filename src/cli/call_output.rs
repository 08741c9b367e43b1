//! The result of one tool call, as text and as JSON.

use super::{inventory::ServerLine, terminal};
use crate::printable;
use toolway_core::translate::results::error_to_openai;
use toolway_protocol::{
    mcp::results::write_result,
    tool::{CallError, Content, ToolResult},
};

/// What a call ended with: the tool's answer, or why there is none.
pub(super) type CallOutcome = Result<ToolResult, CallError>;

/// What goes to standard output and what to standard error.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CallReport {
    pub(super) out: String,
    pub(super) err: String,
}

/// The kind of standard output. A terminal gets no control characters; a pipe gets a tool's text byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Terminal,
    Pipe,
}

impl Output {
    fn text(self, text: &str) -> String {
        match self {
            Output::Terminal => terminal::safe(text),
            Output::Pipe => text.to_owned(),
        }
    }

    fn note(self, text: &str) -> String {
        match self {
            Output::Terminal => terminal::dim(text),
            Output::Pipe => terminal::safe(text),
        }
    }
}

/// The tool was called and did not report a failure.
pub(super) fn has_worked(outcome: &CallOutcome) -> bool {
    outcome.as_ref().is_ok_and(|result| !result.is_error)
}

/// The answer as text: texts unchanged, everything else as one line each. `servers` are all servers.
pub(super) fn text(outcome: &CallOutcome, servers: &[ServerLine], output: Output) -> CallReport {
    let result = match outcome {
        Ok(result) => result,
        Err(error) => {
            return CallReport {
                err: failure(error, servers),
                ..CallReport::default()
            };
        }
    };
    // Standard error is always sanitized, even if it is not a terminal.
    let output = match result.is_error {
        true => Output::Terminal,
        false => output,
    };
    let mut out: String = result
        .content
        .iter()
        .map(|part| line(&part_in_words(part, output)))
        .collect();
    if let Some(value) = &result.structured_content
        && !result
            .content
            .iter()
            .any(|part| matches!(part, Content::Text(_)))
    {
        out.push_str(&line(&printable::json(&format!("{value:#}"))));
    }
    if result.is_error {
        let err = format!("{}\n{out}", terminal::error("the tool says that it failed"));
        return CallReport {
            err,
            ..CallReport::default()
        };
    }
    CallReport {
        out,
        ..CallReport::default()
    }
}

fn failure(error: &CallError, servers: &[ServerLine]) -> String {
    let what = match error {
        CallError::InvalidParams { path, message, .. } if path.is_empty() => message.clone(),
        CallError::InvalidArgumentsJson { message }
            if let Some((_, place)) = message.rsplit_once(", near ") =>
        {
            format!(
                "the arguments must be a JSON object such as '{{\"name\": \"value\"}}'; wrong near {place}"
            )
        }
        error => error.to_string(),
    };
    let mut text = line(&terminal::error(&what));
    match error {
        CallError::UnknownTool { name, .. }
            if let Some(why) = servers.iter().find_map(|it| it.why_not(name)) =>
        {
            text.push_str(&line(&terminal::safe(&why)));
        }
        CallError::UnknownTool { did_you_mean, .. } if !did_you_mean.is_empty() => {
            let names = terminal::safe(&did_you_mean.join(", "));
            text.push_str(&line(&format!("did you mean {names}?")));
        }
        CallError::UnknownTool { .. } => text.push_str(&what_there_is(servers)),
        CallError::InvalidParams { input_schema, .. } => {
            let schema = input_schema.to_string();
            text.push_str(&line(&format!(
                "it should fit {}",
                printable::json(&schema)
            )));
        }
        _ => {}
    }
    text
}

/// A hint where a missing tool could be.
fn what_there_is(servers: &[ServerLine]) -> String {
    if servers.is_empty() {
        return line("no MCP server is configured; `--mcp FILE` takes the file of another client");
    }
    let gone: String = servers
        .iter()
        .filter(|server| !server.is_ready)
        .map(|server| line(&terminal::safe(&server.what_is_wrong())))
        .collect();
    match gone.is_empty() {
        true => line("`toolway tools` lists those that there are"),
        false => gone,
    }
}

fn part_in_words(part: &Content, output: Output) -> String {
    match part {
        Content::Text(text) => output.text(text),
        Content::Image { mime_type, data } => output.note(&binary("image", mime_type, data)),
        Content::Audio { mime_type, data } => output.note(&binary("audio", mime_type, data)),
        Content::TextResource { text, .. } => output.text(text),
        Content::BlobResource {
            uri,
            mime_type,
            blob,
        } => output.note(&binary(
            uri,
            mime_type.as_deref().unwrap_or("application/octet-stream"),
            blob,
        )),
        Content::ResourceLink { uri, name, .. } => output.note(&format!("[{name}: {uri}]")),
        Content::Unknown(value) => printable::json(&value.to_string()).into_owned(),
    }
}

fn binary(what: &str, mime_type: &str, base64: &str) -> String {
    let bytes = base64.trim_end_matches('=').len() * 3 / 4;
    format!("[{what}: {mime_type}, {bytes} bytes]")
}

fn line(text: &str) -> String {
    if text.ends_with('\n') {
        text.to_owned()
    } else {
        format!("{text}\n")
    }
}

/// The answer as JSON: MCP's `CallToolResult`, or the error that a model would read.
pub(super) fn json(outcome: &CallOutcome) -> serde_json::Result<String> {
    let value = match outcome {
        Ok(result) => {
            let mut value = write_result(result.clone());
            value["isError"] = result.is_error.into();
            value
        }
        Err(error) => serde_json::from_str(&error_to_openai(error))?,
    };
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[track_caller]
    fn check(outcome: &CallOutcome, out: &str, err: &str, has_worked: bool) {
        let answer = text(outcome, &[], Output::Terminal);
        assert_eq!(
            (plain(&answer.out).as_str(), plain(&answer.err).as_str()),
            (out, err)
        );
        assert_eq!(super::has_worked(outcome), has_worked);
    }

    #[test]
    fn a_text_is_printed_as_it_is() {
        check(
            &Ok(ToolResult::text("hello\n\nworld")),
            "hello\n\nworld\n",
            "",
            true,
        );
    }

    #[test]
    fn a_terminal_is_not_steered_and_a_pipe_gets_every_byte() {
        let said = "a\u{202e}b\u{1b}[31m\r\n\u{e0041}";
        let outcome = Ok(ToolResult::text(said));
        let out = |output| text(&outcome, &[], output).out;
        assert_eq!(out(Output::Pipe), format!("{said}\n"));
        assert_eq!(
            out(Output::Terminal),
            "a\\u{202e}b\\u{1b}[31m\\u{d}\n\\u{e0041}\n"
        );
        let failed = Ok(ToolResult {
            is_error: true,
            ..ToolResult::text(said)
        });
        let err = text(&failed, &[], Output::Pipe).err;
        assert!(plain(&err).ends_with("a\\u{202e}b\\u{1b}[31m\\u{d}\n\\u{e0041}\n"));
    }

    #[test]
    fn pictures_are_named_and_not_poured_out() {
        let image = Content::Image {
            mime_type: "image/png".into(),
            data: "AAAA".into(),
        };
        let result = ToolResult {
            content: vec![image],
            ..ToolResult::default()
        };
        check(&Ok(result), "[image: image/png, 3 bytes]\n", "", true);
    }

    #[test]
    fn structured_content_is_shown_where_there_is_no_text() {
        let structured_content = Some(json!({"a": 1}));
        let bare = ToolResult {
            structured_content,
            ..ToolResult::default()
        };
        check(&Ok(bare.clone()), "{\n  \"a\": 1\n}\n", "", true);
        let text = ToolResult {
            content: vec![Content::Text("1".into())],
            ..bare
        };
        check(&Ok(text), "1\n", "", true);
    }

    #[test]
    fn what_the_tool_calls_a_failure_goes_to_standard_error() {
        let result = ToolResult {
            is_error: true,
            ..ToolResult::text("no such file")
        };
        check(
            &Ok(result),
            "",
            "error: the tool says that it failed\nno such file\n",
            false,
        );
    }

    #[test]
    fn a_wrong_name_comes_with_the_nearest() {
        let error = CallError::UnknownTool {
            name: "fles__read".into(),
            did_you_mean: vec!["files__read".into(), "files__write".into()],
        };
        check(
            &Err(error),
            "",
            "error: there is no tool named `fles__read`\ndid you mean files__read, files__write?\n",
            false,
        );
    }

    #[test]
    fn a_name_that_is_like_no_other_comes_with_where_it_could_be() {
        #[track_caller]
        fn check(servers: &[ServerLine], hint: &str) {
            let error = CallError::UnknownTool {
                name: "time__now".into(),
                did_you_mean: Vec::new(),
            };
            let said = plain(&text(&Err(error), servers, Output::Pipe).err);
            assert_eq!(
                said,
                format!("error: there is no tool named `time__now`\n{hint}\n")
            );
        }
        let files = ServerLine {
            server: "files".into(),
            state: "ready".into(),
            is_ready: true,
            ..ServerLine::default()
        };
        let time = ServerLine {
            server: "time".into(),
            state: "failed".into(),
            last_error: Some("the process ended (exit status: 2)".into()),
            ..ServerLine::default()
        };
        check(
            &[],
            "no MCP server is configured; `--mcp FILE` takes the file of another client",
        );
        check(
            std::slice::from_ref(&files),
            "`toolway tools` lists those that there are",
        );
        check(
            &[files, time],
            "server `time` is not ready (failed): the process ended (exit status: 2); `toolway check` says more",
        );
    }

    #[test]
    fn arguments_that_are_no_json_come_with_an_example() {
        let error = toolway_core::translate::calls::parse_arguments("timezone=x").unwrap_err();
        check(
            &Err(error),
            "",
            "error: the arguments must be a JSON object such as '{\"name\": \"value\"}'; wrong near `timezone=x`\n",
            false,
        );
    }

    #[test]
    fn wrong_arguments_come_with_what_they_should_fit() {
        let wrong = |path: &str| CallError::InvalidParams {
            path: path.into(),
            message: "\"b\" is a required property".into(),
            input_schema: json!({"required": ["b"]}),
        };
        let fit = "it should fit {\"required\":[\"b\"]}\n";
        let message = "\"b\" is a required property\n";
        check(
            &Err(wrong("")),
            "",
            &format!("error: {message}{fit}"),
            false,
        );
        check(
            &Err(wrong("/a")),
            "",
            &format!("error: /a: {message}{fit}"),
            false,
        );
    }

    #[test]
    fn scripts_get_mcps_own_words() {
        let link = Content::ResourceLink {
            uri: "file:///a".into(),
            name: "a".into(),
            description: None,
            mime_type: None,
        };
        let result = ToolResult {
            content: vec![link],
            ..ToolResult::default()
        };
        let value: Value = serde_json::from_str(&json(&Ok(result)).unwrap()).unwrap();
        assert_eq!(
            value,
            json!({"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}], "isError": false})
        );
        let value: Value =
            serde_json::from_str(&json(&Err(CallError::Cancelled)).unwrap()).unwrap();
        assert_eq!(value["error"]["type"], "cancelled");
    }
}
