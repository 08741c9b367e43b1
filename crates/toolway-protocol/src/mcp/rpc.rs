//! JSON-RPC 2.0 as MCP uses it: messages read with the right error for every way to be malformed, and written.

use serde_json::{Number, Value, json};

use self::members::Parsed;
use crate::{
    json_size::{JsonSize, check_values, measure},
    tool::JsonObject,
};

mod members;

/// The codes of errors (JSON-RPC 2.0, section 5.1; MCP 2026-07-28, "Error Codes").
pub mod code {
    /// The text is no JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The JSON is no message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method is unknown.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The method does not take these params; also a tool, prompt or resource that is not there.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something else went wrong.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// A resource is not there (before 2026-07-28).
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// A header says something else than the body (2026-07-28).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client lacks what the request needs (2026-07-28).
    pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
    /// The protocol version is not spoken here (2026-07-28).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// One of [`code`], or the sender's own.
    pub code: i64,
    /// What happened, in a sentence.
    pub message: String,
    /// More, for programs.
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> RpcError {
        RpcError {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// `Method not found`.
    pub fn method_not_found(method: &str) -> RpcError {
        RpcError::new(
            code::METHOD_NOT_FOUND,
            format!("Method not found: {method}"),
        )
    }

    /// `Invalid params`, with what is wrong with them.
    pub fn invalid_params(message: impl Into<String>) -> RpcError {
        RpcError::new(code::INVALID_PARAMS, message)
    }

    /// The same with data.
    #[must_use]
    pub fn with_data(self, data: Value) -> RpcError {
        RpcError {
            data: Some(data),
            ..self
        }
    }

    /// The `error` member.
    pub fn to_value(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }

    /// Reads an `error` member; what is missing or wrongly typed is filled in.
    pub fn read(error: &Value) -> RpcError {
        let message = match error {
            Value::String(message) => Some(message.as_str()),
            error => error.get("message").and_then(Value::as_str),
        };
        RpcError {
            code: error
                .get("code")
                .and_then(Value::as_i64)
                .unwrap_or(code::INTERNAL_ERROR),
            message: message.unwrap_or("unknown error").to_owned(),
            data: error.get("data").filter(|data| !data.is_null()).cloned(),
        }
    }
}

/// What ties an answer to its request: a text or a whole number, as it came.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RpcId {
    /// A whole number.
    Number(Number),
    /// A text.
    Text(String),
}

impl RpcId {
    /// Reads an id; `null`, fractions and everything else is none.
    pub fn read(value: &Value) -> Option<RpcId> {
        match value {
            Value::Number(number) if !number.is_f64() => Some(RpcId::Number(number.clone())),
            Value::String(text) => Some(RpcId::Text(text.clone())),
            _ => None,
        }
    }

    /// As it is written.
    pub fn to_value(&self) -> Value {
        match self {
            RpcId::Number(number) => Value::Number(number.clone()),
            RpcId::Text(text) => Value::String(text.clone()),
        }
    }
}

impl From<u64> for RpcId {
    fn from(number: u64) -> RpcId {
        RpcId::Number(number.into())
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum RpcMessage {
    /// Wants an answer.
    Request(RpcRequest),
    /// Wants none.
    Notification(RpcNotification),
    /// Is an answer.
    Response(RpcResponse),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcRequest {
    /// Which its answer repeats.
    pub id: RpcId,
    /// What is wanted.
    pub method: String,
    /// With what; empty where there are none.
    pub params: JsonObject,
}

/// A notification.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcNotification {
    /// What happened.
    pub method: String,
    /// With what; empty where there are none.
    pub params: JsonObject,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcResponse {
    /// The request's id.
    pub id: RpcId,
    /// The result or the error.
    pub outcome: Result<Value, RpcError>,
}

/// What came in one body or one line.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageOrBatch {
    /// One message.
    One(RpcMessage),
    /// Several (2024-11-05 and 2025-03-26 only); never empty.
    Batch(Vec<Result<RpcMessage, MalformedMessage>>),
}

/// What is no message, and the error that answers it.
#[derive(Clone, Debug, PartialEq)]
pub struct MalformedMessage {
    /// Whose answer it is, as far as that could be read.
    pub id: Option<RpcId>,
    /// What is wrong.
    pub error: RpcError,
}

impl MalformedMessage {
    fn new(id: Option<RpcId>, code: i64, message: impl Into<String>) -> MalformedMessage {
        MalformedMessage {
            id,
            error: RpcError::new(code, message),
        }
    }

    /// The answer.
    pub fn to_value(&self) -> Value {
        answer(self.id.as_ref(), Err(self.error.clone()))
    }
}

/// Reads what came in one body or one line; at most of this size, and never nested more than 127
/// levels.
#[expect(
    clippy::result_large_err,
    reason = "what is malformed is answered at once"
)]
pub fn read_within(bytes: &[u8], most: JsonSize) -> Result<MessageOrBatch, MalformedMessage> {
    let parse_error =
        |why: String| MalformedMessage::new(None, code::PARSE_ERROR, format!("Parse error: {why}"));
    let malformed = |error: serde_json::Error| parse_error(error.to_string());
    if let Err(error) = check_values(bytes, most.values) {
        let why = format!("Invalid request: the message has {error}");
        return Err(MalformedMessage::new(None, code::INVALID_REQUEST, why));
    }
    if most.depth < PARSER_DEPTH && measure(bytes).depth > most.depth {
        return Err(parse_error(format!(
            "it is nested more than {} levels deep",
            most.depth
        )));
    }
    sort(serde_json::from_slice(bytes).map_err(malformed)?)
}

/// Reads what came in one body or one line.
#[expect(
    clippy::result_large_err,
    reason = "what is malformed is answered at once"
)]
pub fn read(bytes: &[u8]) -> Result<MessageOrBatch, MalformedMessage> {
    read_within(bytes, JsonSize::up_to_depth(usize::MAX))
}

/// How deep the parser itself goes.
const PARSER_DEPTH: usize = 127;

#[expect(
    clippy::result_large_err,
    reason = "what is malformed is answered at once"
)]
fn sort(parsed: Parsed) -> Result<MessageOrBatch, MalformedMessage> {
    match parsed {
        Parsed::Message(members) => members.message().map(MessageOrBatch::One),
        Parsed::Other(Value::Array(batch)) if batch.is_empty() => Err(MalformedMessage::new(
            None,
            code::INVALID_REQUEST,
            "Invalid request: the batch is empty",
        )),
        Parsed::Other(Value::Array(batch)) => Ok(MessageOrBatch::Batch(
            batch.into_iter().map(read_message).collect(),
        )),
        Parsed::Other(other) => read_message(other).map(MessageOrBatch::One),
    }
}

/// Reads one message.
#[expect(
    clippy::result_large_err,
    reason = "what is malformed is answered at once"
)]
pub fn read_message(value: Value) -> Result<RpcMessage, MalformedMessage> {
    match Parsed::from(value) {
        Parsed::Message(members) => members.message(),
        Parsed::Other(_) => Err(MalformedMessage::new(
            None,
            code::INVALID_REQUEST,
            "Invalid request: a message is a JSON object",
        )),
    }
}

/// An answer; to `null` where the request's id could not be read.
pub fn answer(id: Option<&RpcId>, outcome: Result<Value, RpcError>) -> Value {
    let id = id.map_or(Value::Null, RpcId::to_value);
    match outcome {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error.to_value()}),
    }
}

/// An answer as it is sent, in one line.
pub fn write_answer(id: Option<&RpcId>, outcome: &Result<Value, RpcError>) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    let id = id.map_or(Value::Null, RpcId::to_value);
    // Values are written to memory, which does not fail.
    let _ = serde_json::to_writer(&mut line, &id);
    let _ = match outcome {
        Ok(result) => {
            line.extend_from_slice(br#","result":"#);
            serde_json::to_writer(&mut line, result)
        }
        Err(error) => {
            line.extend_from_slice(br#","error":"#);
            serde_json::to_writer(&mut line, &error.to_value())
        }
    };
    line.push(b'}');
    line
}

/// A request.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the params become part of it"
)]
pub fn request(id: &RpcId, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.to_value(), "method": method, "params": params})
}

/// A notification.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the params become part of it"
)]
pub fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "the cases read better")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json_size::MAX_VALUES;

    #[track_caller]
    fn check_malformed(text: &str, id: Value, code: i64) {
        let malformed = read(text.as_bytes()).expect_err("should be malformed");
        let answer = malformed.to_value();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&id, &json!(code))
        );
    }

    #[test]
    fn every_way_to_be_malformed_has_its_code() {
        use code::{INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR};
        let null = || Value::Null;
        check_malformed("", null(), PARSE_ERROR);
        check_malformed("{", null(), PARSE_ERROR);
        check_malformed("\u{feff}{}", null(), PARSE_ERROR);
        check_malformed(&"[".repeat(100_000), null(), PARSE_ERROR);
        check_malformed("5", null(), INVALID_REQUEST);
        check_malformed("[]", null(), INVALID_REQUEST);
        check_malformed("{}", null(), INVALID_REQUEST);
        check_malformed(r#"{"id":1,"method":"ping"}"#, json!(1), INVALID_REQUEST);
        check_malformed(
            r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#,
            json!("a"),
            INVALID_REQUEST,
        );
        check_malformed(r#"{"jsonrpc":"2.0","id":1}"#, json!(1), INVALID_REQUEST);
        check_malformed(
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
            json!(1),
            INVALID_REQUEST,
        );
        check_malformed(
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            null(),
            INVALID_REQUEST,
        );
        check_malformed(
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            null(),
            INVALID_REQUEST,
        );
        check_malformed(
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            null(),
            INVALID_REQUEST,
        );
        check_malformed(
            r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}"#,
            json!(7),
            INVALID_PARAMS,
        );
        check_malformed(
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
            json!(1),
            INVALID_REQUEST,
        );
    }

    #[test]
    fn each_kind_of_message_is_told_by_its_members() {
        let read = |text: &str| match read(text.as_bytes()) {
            Ok(MessageOrBatch::One(message)) => message,
            other => panic!("not one message: {other:?}"),
        };
        assert!(matches!(
            read(r#"{"jsonrpc":"2.0","id":"x","method":"ping"}"#),
            RpcMessage::Request(RpcRequest {
                id: RpcId::Text(_),
                ..
            })
        ));
        assert!(matches!(
            read(r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":null}"#),
            RpcMessage::Notification(_)
        ));
        let answered = read(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1}}"#);
        let error = RpcError::new(-1, "unknown error");
        assert_eq!(
            answered,
            RpcMessage::Response(RpcResponse {
                id: 3.into(),
                outcome: Err(error)
            })
        );
    }

    #[test]
    fn what_is_nested_too_deep_is_no_message() {
        let nested = |levels: usize| {
            let (open, close) = ("[".repeat(levels - 2), "]".repeat(levels - 2));
            format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"a":{open}{close}}}}}"#)
        };
        let most = JsonSize::up_to_depth(8);
        assert!(read_within(nested(8).as_bytes(), most).is_ok());
        let deep = read_within(nested(9).as_bytes(), most).unwrap_err();
        assert_eq!(deep.error.code, code::PARSE_ERROR);
        assert!(read(nested(120).as_bytes()).is_ok() && read(nested(130).as_bytes()).is_err());
    }

    #[test]
    fn a_message_of_too_many_values_is_refused_before_they_are_built() {
        let of = |items: usize| {
            let items = vec!["0"; items].join(",");
            format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"a":[{items}]}}}}"#)
        };
        assert!(read(of(MAX_VALUES - 5).as_bytes()).is_ok());
        let refused = read(of(MAX_VALUES).as_bytes()).unwrap_err().error;
        assert_eq!(refused.code, code::INVALID_REQUEST);
        assert!(
            refused.message.contains("more than 500000 JSON values"),
            "{refused}"
        );
    }

    #[test]
    fn a_broken_message_in_a_batch_costs_no_other() {
        let batch = read(br#"[5, {"jsonrpc":"2.0","id":1,"method":"ping"}]"#);
        let Ok(MessageOrBatch::Batch(batch)) = batch else {
            panic!("should be a batch")
        };
        assert!(batch[0].is_err() && batch[1].is_ok());
    }

    #[test]
    fn an_answer_is_written_as_it_is() {
        for outcome in [
            Ok(json!({"a": "\n"})),
            Err(RpcError::new(-1, "x").with_data(json!([1]))),
        ] {
            for id in [None, Some(RpcId::Text("\"".to_owned())), Some(7.into())] {
                let line = write_answer(id.as_ref(), &outcome);
                let line: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(line, answer(id.as_ref(), outcome.clone()));
            }
        }
    }

    /// Read at once, a text is what it is when its value is read first.
    #[track_caller]
    fn check_same(text: &str) {
        let read = read(text.as_bytes());
        match serde_json::from_str::<Value>(text) {
            Ok(value) => assert_eq!(read, sort(Parsed::from(value)), "{text}"),
            Err(error) => {
                let said = format!("Parse error: {error}");
                let expected = RpcError::new(code::PARSE_ERROR, said);
                assert_eq!(read.unwrap_err().error, expected, "{text}");
            }
        }
    }

    #[test]
    fn a_text_is_the_message_that_its_value_is() {
        for text in [
            r#" {"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[{}]},"more":{"b":1}} "#,
            r#"{"id":1,"jsonrpc":"1.0","id":2,"method":5,"jsonrpc":"2.0","method":"ping"}"#,
            r#"{"m\u0065thod":"ping","jsonrpc":"2.0","params":null}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":"a","error":"x","result":null}"#,
            r#"[{"jsonrpc":"2.0","method":"a"},[],3]"#,
            "[]",
            "{}",
            "null",
            "true",
            "-1",
            "18446744073709551615",
            "1.5",
            r#""x""#,
            r#"{"more":"\ud800"}"#,
            "{\"more\":\"\u{1}\"}",
            r#"{"jsonrpc":"2.0","method":"a"}x"#,
        ] {
            check_same(text);
        }
    }

    /// A text that is mostly a message, and mostly a wrong one.
    const STRANGE: &str = concat!(
        r#"\[?\{("jsonrpc":"2.0",){0,1}"#,
        r#"("(jsonrpc|id|method|params|result|error|m\\u0065thod|i\\ud800|x|)" ?:"#,
        r#"("2\.0"|"a"|"\\ud83d\\ude00"|null|true|tru|-?[0-9]{1,25}|1\.5|1e400|-0|\{\}|\{"a":\[\{\}\]\}|\[[0-9]?),?){0,5}"#,
        r#""?x?[}\]]{0,3}.{0,1}"#,
    );

    proptest! {
        #[test]
        fn any_text_is_the_message_that_its_value_is(text in STRANGE) {
            check_same(&text);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_request_survives_the_round_trip(number: u64, method in "[a-z/]{1,20}", key in "[a-z]{1,5}", value: i64) {
            let params = json!({key: value});
            let written = request(&number.into(), &method, params.clone());
            let Value::Object(params) = params else { unreachable!() };
            let expected = RpcMessage::Request(RpcRequest { id: number.into(), method, params });
            prop_assert_eq!(read_message(written), Ok(expected));
        }
    }
}
