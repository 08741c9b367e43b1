//! What a model sends, mended, told apart into text and calls, and written for the client.

/// Forms of tool calls in plain text that an upstream's models use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextCalls {
    /// `<tool_call>{…}</tool_call>` (Hermes, Qwen) and `<function=…><parameter=…>` (Qwen3-Coder).
    pub tool_call_tags: bool,
    /// A fenced JSON block that names an offered tool.
    pub fenced_json: bool,
    /// `<|python_tag|>{…}` (Llama 3).
    pub python_tag: bool,
    /// `[TOOL_CALLS][{…}]` (Mistral).
    pub mistral: bool,
    /// `<|channel|>commentary to=functions.…` (gpt-oss, Harmony).
    pub harmony: bool,
}
