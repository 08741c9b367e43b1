//! The tool loop as a client does it without a gateway: ask the model, call the tool, ask the model again.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    http::{Connection, Target, shown},
    mcp::Session,
    report::Done,
};

/// A client with a connection to the model and a session with the server.
pub(crate) struct ToolLoop {
    connection: Connection,
    target: Target,
    session: Session,
    streamed: bool,
    message: String,
}

impl ToolLoop {
    pub(crate) async fn open(
        target: &Target,
        server: &Target,
        streamed: bool,
        message: &str,
    ) -> Result<Self, String> {
        Ok(ToolLoop {
            connection: Connection::open(target).await?,
            target: target.clone(),
            session: Session::open(server, true).await?,
            streamed,
            message: message.to_owned(),
        })
    }

    pub(crate) async fn once(&mut self) -> Result<Done, String> {
        let begun = Instant::now();
        let user = json!({"role": "user", "content": self.message});
        let asked = self.turn(&[&user]).await?;
        let Call {
            id,
            name,
            arguments,
        } = asked.call.ok_or("the model called no tool")?;
        let result = self.session.call(&name, &arguments).await?;
        let function = json!({"name": name, "arguments": arguments});
        let calls = json!([{"id": id, "type": "function", "function": function}]);
        let assistant = json!({"role": "assistant", "content": null, "tool_calls": calls});
        let tool = json!({"role": "tool", "tool_call_id": id, "content": result});
        let answered = self.turn(&[&user, &assistant, &tool]).await?;
        if !answered.text.contains(&self.message) {
            return Err(format!("the answer is {}", answered.text));
        }
        Ok(Done {
            bytes: self.connection.body.len(),
            first: self.streamed.then(|| begun.elapsed()),
        })
    }

    /// Asks the model once.
    async fn turn(&mut self, messages: &[&serde_json::Value]) -> Result<Said, String> {
        let body = json!({
            "model": "call-echo",
            "messages": messages,
            "stream": self.streamed,
            "tools": [{"type": "function", "function": {
                "name": "echo",
                "description": "Says what it is told",
                "parameters": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
            }}],
        });
        let request = self.target.post(body.to_string().as_bytes());
        self.connection.exchange(&request).await?;
        Said::read(&self.connection.body, self.streamed)
    }

    pub(crate) async fn close(self) {
        self.session.close().await;
    }
}

/// What the model said in one turn.
#[derive(Default)]
struct Said {
    text: String,
    call: Option<Call>,
}

struct Call {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, alias = "delta")]
    message: Message<'a>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(default)]
    id: Option<&'a str>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(default)]
    name: Option<&'a str>,
    #[serde(borrow, default)]
    arguments: Cow<'a, str>,
}

impl Said {
    fn read(body: &[u8], streamed: bool) -> Result<Said, String> {
        let mut said = Said::default();
        if streamed {
            let events = body
                .split(|&byte| byte == b'\n')
                .filter_map(|line| line.strip_prefix(b"data: "));
            for event in events.filter(|event| event.starts_with(b"{")) {
                said.add(event)?;
            }
        } else {
            said.add(body)?;
        }
        Ok(said)
    }

    fn add(&mut self, json: &[u8]) -> Result<(), String> {
        let answer: Answer<'_> =
            serde_json::from_slice(json).map_err(|error| format!("{error}: {}", shown(json)))?;
        for Choice { message } in answer.choices {
            self.text += &message.content.unwrap_or_default();
            for ToolCall { id, function } in message.tool_calls {
                let call = self.call.get_or_insert_with(|| Call {
                    id: id.unwrap_or_default().to_owned(),
                    name: function.name.unwrap_or_default().to_owned(),
                    arguments: String::new(),
                });
                call.arguments += &function.arguments;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_call_is_put_together() {
        let stream = [
            r#"{"choices":[{"delta":{"content":null,"tool_calls":[{"id":"c","function":{"name":"echo","arguments":""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\"message\""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":":\"hi\"}"}}]}}]}"#,
            r#"{"choices":[]}"#,
        ];
        let body: String = stream
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect();
        let said = Said::read((body + "data: [DONE]\n\n").as_bytes(), true).unwrap();
        let call = said.call.expect("there is a call");
        assert_eq!((call.id.as_str(), call.name.as_str()), ("c", "echo"));
        assert_eq!(call.arguments, r#"{"message":"hi"}"#);
    }

    #[test]
    fn a_plain_answer_has_its_text() {
        let body = br#"{"choices":[{"message":{"role":"assistant","content":"hi"}}]}"#;
        assert_eq!(Said::read(body, false).unwrap().text, "hi");
    }
}
