//! `golden/names`, `tools`, `calls`, `results`, `eras` and `dialects`. `UPDATE_GOLDEN=1 cargo test -p toolway-core` writes what is now.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use toolway_core::translate::{
    calls::{self, Validator},
    dialect::{AnswerReader, anthropic, chat, gemini, responses},
    era,
    ids::Ids,
    names, results, schema, tools,
};
use toolway_protocol::{
    mcp::{
        rpc::RpcError,
        tools::{read_tool, write_tool},
        version::Version,
    },
    sse::SseEvent,
    tool::{CallError, Content, FunctionName, JsonObject, ServerId, Tool, ToolResult},
};

#[test]
fn names_are_as_written_down() -> Result<()> {
    each("names", |given| {
        let tools = given["tools"].as_array().context("tools")?;
        let pairs: Vec<(ServerId, String)> = tools
            .iter()
            .map(|tool| {
                Ok((
                    ServerId::parse(&text(&tool["server"])?)?,
                    text(&tool["tool"])?,
                ))
            })
            .collect::<Result<_>>()?;
        let named = names::assign(pairs.iter().map(|(server, tool)| (server, tool.as_str())));
        let name = |it: names::Assigned| json!({"name": it.name.as_str(), "changed": it.changed});
        Ok(named.into_iter().map(name).collect())
    })
}

#[test]
fn tools_are_as_written_down() -> Result<()> {
    each("tools", |given| {
        let tool = tool(&given["tool"])?;
        if let Some(fault) = schema::fault(&tool.input_schema) {
            return Ok(json!({"fault": fault}));
        }
        let function = tools::to_openai(&FunctionName::parse(&text(&given["name"])?)?, &tool);
        let offered: Value = serde_json::from_str(&function.json)?;
        Ok(match function.lost.is_empty() {
            true => json!({"offered": offered}),
            false => json!({"offered": offered, "lost": function.lost}),
        })
    })
}

#[test]
fn calls_are_as_written_down() -> Result<()> {
    each("calls", |given| {
        let error = |error: CallError| serde_json::from_str(&results::error_to_openai(&error));
        let arguments = match calls::parse_arguments(&text(&given["arguments"])?) {
            Ok(arguments) => arguments,
            Err(broken) => return Ok(error(broken)?),
        };
        if let Some(schema) = given["inputSchema"].as_object() {
            let validator = Validator::compile(schema).map_err(anyhow::Error::msg)?;
            if let Err(misfit) = validator.check(&arguments) {
                return Ok(error(misfit)?);
            }
        }
        Ok(json!({"arguments": arguments}))
    })
}

#[test]
fn results_are_as_written_down() -> Result<()> {
    each("results", |given| {
        let media = results::Media {
            images: given["images"] == json!(true),
            audio: given["audio"] == json!(true),
        };
        let limit = given["limit"]
            .as_u64()
            .map_or(65536, |limit| limit as usize);
        let result = result(&given["result"])?;
        let message = results::to_openai(&result, limit, media, results::cut_off);
        let mut out = json!({"text": message.text});
        if let Some(cut) = message.cut {
            out["shown"] = json!(cut.shown);
            out["total"] = json!(cut.full.len());
        }
        if !message.parts.is_empty() {
            out["parts"] = Value::Array(message.parts);
        }
        Ok(out)
    })
}

#[test]
fn what_each_version_of_mcp_gets_is_as_written_down() -> Result<()> {
    each("eras", |given| {
        let fit = |version| {
            Ok(match given["kind"].as_str() {
                Some("call") => era::fit_call(given["result"].clone(), version),
                Some("prompt") => era::fit_prompt(given["result"].clone(), version),
                Some("read") => era::cacheable(given["result"].clone(), version),
                Some("error") => {
                    era::fit_error(RpcError::read(&given["error"]), version).to_value()
                }
                Some("tool") => {
                    let tool = read_tool(&given["tool"], 0).map_err(|it| anyhow!(it.reason))?;
                    Value::Object(era::fit_tool(write_tool(&tool, "shown"), version))
                }
                other => bail!("{other:?} is no kind"),
            })
        };
        // Only what changed since the version before is written down.
        let mut all = serde_json::Map::new();
        let mut before = Value::Null;
        for version in Version::ALL {
            let now = fit(version)?;
            if now != before {
                all.insert(version.to_string(), now.clone());
            }
            before = now;
        }
        Ok(Value::Object(all))
    })
}

/// A chat in the words of another API (`chat`), or its answer as a chat (`answer` or the `events` of a stream).
#[test]
fn dialects_are_as_written_down() -> Result<()> {
    each("dialects", |given| {
        let api = text(&given["api"])?;
        if given["chat"].is_object() {
            let request = chat::read_request(object(&given["chat"])?)?;
            let written = match api.as_str() {
                "responses" => responses::write_request(&request, true),
                "anthropic" => anthropic::write_request(&request),
                "gemini" => gemini::write_request(&request, true),
                other => bail!("{other} is no API"),
            };
            return Ok(json!({"body": written.body, "left_out": written.left_out}));
        }
        let reader = || -> Result<Box<dyn AnswerReader>> {
            Ok(match api.as_str() {
                "responses" => Box::new(responses::EventReader::default()),
                "anthropic" => Box::new(anthropic::EventReader::default()),
                "gemini" => Box::new(gemini::EventReader::new(Ids::new(1))),
                other => bail!("{other} is no API"),
            })
        };
        let (mut reader, mut by_text) = (reader()?, reader()?);
        let deltas = match given["events"].as_array() {
            None => reader.read_whole(object(&given["answer"])?),
            Some(events) => {
                let mut deltas = Vec::new();
                for event in events {
                    let read = reader.read(object(event)?);
                    let quickly = by_text.read_quickly(&SseEvent::from_data(&event.to_string()));
                    let alike = match quickly {
                        Some(deltas) => deltas,
                        None => by_text.read(object(event)?),
                    };
                    ensure!(read == alike, "{event} is read in two ways");
                    deltas.extend(read);
                }
                deltas.extend(reader.end());
                deltas
            }
        };
        Ok(match chat::write_answer(deltas, 1) {
            Ok(answer) => answer.into(),
            Err(error) => error.to_value(),
        })
    })
}

/// Runs one loop over `golden/FOLDER` and compares, or rewrites when asked to.
pub(super) fn each(folder: &str, translate: impl Fn(&Value) -> Result<Value>) -> Result<()> {
    let folder = crate::project("golden").join(folder);
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with(".in.json"));
    paths.sort();
    ensure!(!paths.is_empty(), "{} holds no case", folder.display());
    let mut wrong = Vec::new();
    for path in paths {
        let out = PathBuf::from(path.to_string_lossy().replace(".in.json", ".out.json"));
        let now = fs::read_to_string(&path)
            .map_err(anyhow::Error::from)
            .and_then(|given| translate(&serde_json::from_str(&given)?))
            .with_context(|| path.display().to_string())?;
        let now = format!("{now:#}\n");
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&out, now)?;
        } else if fs::read_to_string(&out).ok().as_ref() != Some(&now) {
            wrong.push(format!(
                "{} should hold, if this is right:\n{now}",
                out.display()
            ));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

pub(super) fn text(value: &Value) -> Result<String> {
    Ok(value
        .as_str()
        .with_context(|| format!("{value} is no text"))?
        .to_owned())
}

fn maybe(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

pub(super) fn object(value: &Value) -> Result<JsonObject> {
    Ok(value
        .as_object()
        .with_context(|| format!("{value} is no object"))?
        .clone())
}

/// A tool as `tools/list` has it.
fn tool(value: &Value) -> Result<Tool> {
    Ok(Tool {
        name: text(&value["name"])?,
        title: maybe(&value["title"]),
        description: maybe(&value["description"]),
        input_schema: object(&value["inputSchema"])?,
        output_schema: None,
        annotations: Default::default(),
        extra: Default::default(),
    })
}

/// A result as `tools/call` has it.
fn result(value: &Value) -> Result<ToolResult> {
    let blocks = value["content"].as_array().into_iter().flatten();
    Ok(ToolResult {
        content: blocks.map(block).collect::<Result<_>>()?,
        structured_content: value.get("structuredContent").cloned(),
        is_error: value["isError"] == json!(true),
        ..ToolResult::default()
    })
}

fn block(value: &Value) -> Result<Content> {
    let resource = &value["resource"];
    Ok(match value["type"].as_str() {
        Some("text") => Content::Text(text(&value["text"])?),
        Some("image") => Content::Image {
            mime_type: text(&value["mimeType"])?,
            data: text(&value["data"])?,
        },
        Some("audio") => Content::Audio {
            mime_type: text(&value["mimeType"])?,
            data: text(&value["data"])?,
        },
        Some("resource") if resource["text"].is_string() => Content::TextResource {
            uri: text(&resource["uri"])?,
            mime_type: maybe(&resource["mimeType"]),
            text: text(&resource["text"])?,
        },
        Some("resource") => Content::BlobResource {
            uri: text(&resource["uri"])?,
            mime_type: maybe(&resource["mimeType"]),
            blob: text(&resource["blob"])?,
        },
        Some("resource_link") => Content::ResourceLink {
            uri: text(&value["uri"])?,
            name: text(&value["name"])?,
            description: maybe(&value["description"]),
            mime_type: maybe(&value["mimeType"]),
        },
        _ => Content::Unknown(value.clone()),
    })
}
