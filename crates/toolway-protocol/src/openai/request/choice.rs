//! `tool_choice` and the deprecated `function_call`.

use serde::Deserialize;

use super::{Members, Raw, RequestError, brief};

/// What the client says about the use of tools.
#[derive(Clone, Debug)]
pub enum ToolChoice<'a> {
    /// Nothing.
    Absent,
    /// `"none"`: no tool is called.
    None,
    /// `"auto"`: as the model likes.
    Auto,
    /// `"required"`: some tool is called.
    Required,
    /// This function is called.
    Function(String),
    /// This custom tool is called.
    Custom(String),
    /// A tool of this server is called, or this one.
    Mcp(McpChoice),
    /// Only these are called.
    AllowedTools {
        /// Whether one of them must be.
        mode: AllowedToolsMode,
        /// The functions and custom tools among them, by name.
        names: Vec<String>,
        /// The MCP tools among them.
        mcp: Vec<McpChoice>,
    },
    /// Something else; the upstream may know it.
    Other(Raw<'a>),
}

/// The mode of `allowed_tools`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedToolsMode {
    /// As the model likes.
    Auto,
    /// One of them is called.
    Required,
}

/// An MCP tool as `tool_choice` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpChoice {
    /// The server's name in the configuration.
    pub server_label: String,
    /// The tool's name on the server; `None` for any.
    pub name: Option<String>,
}

impl<'a> ToolChoice<'a> {
    pub(super) fn read(members: &Members<'a>) -> Result<ToolChoice<'a>, RequestError> {
        if let Some(raw) = members.present("tool_choice") {
            return from_raw(raw, "tool_choice");
        }
        match members.present("function_call") {
            Some(raw) => from_raw(raw, "function_call"),
            None => Ok(ToolChoice::Absent),
        }
    }
}

fn from_raw<'a>(raw: Raw<'a>, param: &str) -> Result<ToolChoice<'a>, RequestError> {
    match raw.get().as_bytes().first() {
        Some(b'"') => Ok(match raw.get() {
            "\"none\"" => ToolChoice::None,
            "\"auto\"" => ToolChoice::Auto,
            // "any" is what Mistral calls it.
            "\"required\"" | "\"any\"" => ToolChoice::Required,
            _ => ToolChoice::Other(raw),
        }),
        Some(b'{') => {
            let entry: RawChoice = serde_json::from_str(raw.get()).map_err(|error| {
                RequestError::value(
                    param,
                    format!("Invalid value for '{param}': {}.", brief(&error)),
                )
            })?;
            Ok(entry.into_choice().unwrap_or(ToolChoice::Other(raw)))
        }
        _ => Err(RequestError::wrong_type(
            param,
            "a string or an object",
            raw.get(),
        )),
    }
}

/// A `function` or `custom` member.
#[derive(Deserialize)]
pub(super) struct NamedFunction {
    pub(super) name: Option<String>,
}

#[derive(Deserialize)]
struct AllowedToolsChoice {
    mode: Option<String>,
    #[serde(default)]
    tools: Vec<RawChoice>,
}

/// A choice, or one of the `allowed_tools` in it: both are written alike.
#[derive(Deserialize)]
struct RawChoice {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<NamedFunction>,
    custom: Option<NamedFunction>,
    name: Option<String>,
    server_label: Option<String>,
    allowed_tools: Option<AllowedToolsChoice>,
}

impl RawChoice {
    fn into_choice<'a>(self) -> Option<ToolChoice<'a>> {
        let named =
            |named: Option<NamedFunction>, flat| named.and_then(|named| named.name).or(flat);
        Some(match self.kind.as_deref() {
            Some("function") | None => ToolChoice::Function(named(self.function, self.name)?),
            Some("custom") => ToolChoice::Custom(named(self.custom, self.name)?),
            Some("mcp") => ToolChoice::Mcp(McpChoice {
                server_label: self.server_label?,
                name: self.name,
            }),
            Some("allowed_tools") => self.allowed_tools?.into_choice(),
            Some(_) => return None,
        })
    }
}

impl AllowedToolsChoice {
    fn into_choice<'a>(self) -> ToolChoice<'a> {
        let mode = match self.mode.as_deref() {
            Some("required") => AllowedToolsMode::Required,
            _ => AllowedToolsMode::Auto,
        };
        let (mut names, mut mcp) = (Vec::new(), Vec::new());
        for entry in self.tools {
            match entry.into_choice() {
                Some(ToolChoice::Function(name) | ToolChoice::Custom(name)) => names.push(name),
                Some(ToolChoice::Mcp(choice)) => mcp.push(choice),
                _ => {}
            }
        }
        ToolChoice::AllowedTools { mode, names, mcp }
    }
}
