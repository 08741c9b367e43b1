//! What a request says under `tools` and the deprecated `functions`, told apart by whose tools they are.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Members, RequestError, brief, choice::NamedFunction};

/// Most entries of `tools` and of `functions`; providers take far fewer.
const MAX_TOOLS: usize = 10_000;

/// A tool that the client runs itself.
#[derive(Clone, Debug)]
pub struct ClientTool<'a> {
    /// What it is.
    pub kind: ClientToolKind,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// The entry as it came.
    pub raw: &'a RawValue,
}

/// The kinds of tools a client can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientToolKind {
    /// `{"type": "function"}`.
    Function,
    /// `{"type": "custom"}`: takes free text.
    Custom,
    /// An entry of the deprecated `functions`.
    LegacyFunction,
    /// Anything else; the upstream may know it.
    Other,
}

/// An entry `{"type": "mcp"}`: the client wants these of the gateway's tools.
///
/// `server_url` and the like are not read: toolway talks to the servers of its configuration only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpTool {
    /// Its place in the request, such as `tools[2]`.
    pub param: String,
    /// The server's name in the configuration, or a pattern.
    pub server_label: String,
    /// Which of its tools; `None` for all.
    pub allowed_tools: Option<AllowedTools>,
    /// Which of them run only when the client has agreed; `None` where it does not say.
    pub require_approval: Option<RequireApproval>,
}

/// Before which calls the client is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequireApproval {
    /// Before each.
    Always,
    /// Before none.
    Never,
    /// Before those of the first list and not before those of the second. A tool of neither: where there is no first list.
    Lists(Option<AllowedTools>, Option<AllowedTools>),
}

/// The two forms of `allowed_tools`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedTools {
    /// Names or patterns; `None` for all.
    pub names: Option<Vec<String>>,
    /// Only tools that say that they change nothing.
    pub read_only: bool,
}

/// Everything under `tools` and `functions`.
#[derive(Debug, Default)]
pub(super) struct Tools<'a> {
    pub(super) client: Vec<ClientTool<'a>>,
    pub(super) mcp: Vec<McpTool>,
}

impl<'a> Tools<'a> {
    pub(super) fn read(members: &Members<'a>) -> Result<Tools<'a>, RequestError> {
        let mut tools = Tools::default();
        for (place, raw) in entries(members, "tools")?.into_iter().enumerate() {
            tools.add(raw, format!("tools[{place}]"))?;
        }
        for (place, raw) in entries(members, "functions")?.into_iter().enumerate() {
            let param = format!("functions[{place}]");
            let named: Result<NamedFunction, _> = serde_json::from_str(raw.get());
            let NamedFunction { name } = named.map_err(|_| {
                RequestError::wrong_type(&param, "an object with a string 'name'", raw.get())
            })?;
            tools.client.push(ClientTool {
                kind: ClientToolKind::LegacyFunction,
                name,
                raw,
            });
        }
        Ok(tools)
    }

    fn add(&mut self, raw: &'a RawValue, param: String) -> Result<(), RequestError> {
        if !raw.get().starts_with('{') {
            return Err(RequestError::wrong_type(&param, "an object", raw.get()));
        }
        let head: RawTool = serde_json::from_str(raw.get()).map_err(|error| {
            RequestError::value(
                &param,
                format!("Invalid value for '{param}': {}.", brief(&error)),
            )
        })?;
        let (kind, named) = match head.kind.as_deref() {
            Some("mcp") => {
                self.mcp.push(head.into_mcp(param)?);
                return Ok(());
            }
            Some("function") => (ClientToolKind::Function, head.function),
            Some("custom") => (ClientToolKind::Custom, head.custom),
            _ => (ClientToolKind::Other, head.function),
        };
        let name = named.and_then(|named| named.name).or(head.name);
        self.client.push(ClientTool { kind, name, raw });
        Ok(())
    }

    /// See [`super::ChatRequest::tools_with`].
    pub(super) fn with<'c>(&self, offered: &[&'c str]) -> Option<Vec<&'c str>>
    where
        'a: 'c,
    {
        let own = self
            .client
            .iter()
            .filter(|tool| tool.kind != ClientToolKind::LegacyFunction);
        let offered = offered.iter().copied().filter(|entry| !entry.is_empty());
        let mut list = Vec::new();
        for entry in own.map(|tool| tool.raw.get()).chain(offered) {
            list.push(if list.is_empty() { "[" } else { "," });
            list.push(entry);
        }
        if list.is_empty() {
            return None;
        }
        list.push("]");
        Some(list)
    }
}

fn entries<'a>(members: &Members<'a>, name: &str) -> Result<Vec<&'a RawValue>, RequestError> {
    let Some(raw) = members.present(name) else {
        return Ok(Vec::new());
    };
    let entries: Vec<&RawValue> = serde_json::from_str(raw.get())
        .map_err(|_| RequestError::wrong_type(name, "an array of objects", raw.get()))?;
    if entries.len() > MAX_TOOLS {
        let message = format!("Invalid value for '{name}': it has more than {MAX_TOOLS} entries.");
        return Err(RequestError::value(name, message));
    }
    Ok(entries)
}

/// What is read of an entry of `tools`.
#[derive(Deserialize)]
struct RawTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<NamedFunction>,
    custom: Option<NamedFunction>,
    name: Option<String>,
    server_label: Option<String>,
    allowed_tools: Option<RawAllowedTools>,
    require_approval: Option<RawApproval>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`require_approval` is neither \"always\", \"never\" nor an object of these"
)]
enum RawApproval {
    Word(ApprovalWord),
    Lists {
        always: Option<RawAllowedTools>,
        never: Option<RawAllowedTools>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ApprovalWord {
    Always,
    Never,
}

impl From<RawApproval> for RequireApproval {
    fn from(approval: RawApproval) -> RequireApproval {
        match approval {
            RawApproval::Word(ApprovalWord::Always) => RequireApproval::Always,
            RawApproval::Word(ApprovalWord::Never) => RequireApproval::Never,
            RawApproval::Lists { always, never } => RequireApproval::Lists(
                always.map(AllowedTools::from),
                never.map(AllowedTools::from),
            ),
        }
    }
}

impl From<RawAllowedTools> for AllowedTools {
    fn from(allowed: RawAllowedTools) -> AllowedTools {
        match allowed {
            RawAllowedTools::Names(names) => AllowedTools {
                names: Some(names),
                read_only: false,
            },
            RawAllowedTools::Filter {
                tool_names,
                read_only,
            } => AllowedTools {
                names: tool_names,
                read_only: read_only.unwrap_or(false),
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`allowed_tools` is neither a list of names nor an object"
)]
enum RawAllowedTools {
    Names(Vec<String>),
    Filter {
        tool_names: Option<Vec<String>>,
        read_only: Option<bool>,
    },
}

impl RawTool {
    fn into_mcp(self, param: String) -> Result<McpTool, RequestError> {
        let Some(server_label) = self.server_label else {
            return Err(RequestError::missing(&format!("{param}.server_label")));
        };
        Ok(McpTool {
            param,
            server_label,
            allowed_tools: self.allowed_tools.map(AllowedTools::from),
            require_approval: self.require_approval.map(RequireApproval::from),
        })
    }
}
