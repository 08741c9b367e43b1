//! The members of a message, read without a map that only they would be in.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::{Map, Number, Value};

use super::{
    MalformedMessage, RpcError, RpcId, RpcMessage, RpcNotification, RpcRequest, RpcResponse, code,
};

/// A JSON text as far as it may be a message.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it was read"
)]
pub(super) enum Parsed {
    /// An object.
    Message(MessageMembers),
    /// Anything else.
    Other(Value),
}

/// What a message may have; of a member that comes twice the last counts.
#[derive(Default)]
pub(super) struct MessageMembers {
    jsonrpc: Option<Value>,
    id: Option<Value>,
    method: Option<Value>,
    params: Option<Value>,
    result: Option<Value>,
    error: Option<Value>,
}

impl MessageMembers {
    /// The place of a member.
    fn place(&mut self, name: &str) -> Option<&mut Option<Value>> {
        match name {
            "jsonrpc" => Some(&mut self.jsonrpc),
            "id" => Some(&mut self.id),
            "method" => Some(&mut self.method),
            "params" => Some(&mut self.params),
            "result" => Some(&mut self.result),
            "error" => Some(&mut self.error),
            _ => None,
        }
    }

    /// The message.
    #[expect(
        clippy::result_large_err,
        reason = "what is malformed is answered at once"
    )]
    pub(super) fn message(self) -> Result<RpcMessage, MalformedMessage> {
        let id = self.id.as_ref().and_then(RpcId::read);
        let invalid = |id: Option<RpcId>, why: &str| {
            MalformedMessage::new(id, code::INVALID_REQUEST, format!("Invalid request: {why}"))
        };
        if self.jsonrpc.as_ref().and_then(Value::as_str) != Some("2.0") {
            return Err(invalid(id, "`jsonrpc` must be \"2.0\""));
        }
        let Some(method) = self.method else {
            let response = response(id.clone(), self.result, self.error);
            return response.map_err(|why| invalid(id, why));
        };
        let Value::String(method) = method else {
            return Err(invalid(id, "`method` must be a string"));
        };
        let params = match self.params {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => {
                let why = "Invalid params: `params` must be an object";
                return Err(MalformedMessage::new(id, code::INVALID_PARAMS, why));
            }
        };
        match (self.id, id) {
            (None, _) => Ok(RpcMessage::Notification(RpcNotification { method, params })),
            (Some(_), Some(id)) => Ok(RpcMessage::Request(RpcRequest { id, method, params })),
            (Some(_), None) => Err(invalid(None, "`id` must be a string or a whole number")),
        }
    }
}

fn response(
    id: Option<RpcId>,
    result: Option<Value>,
    error: Option<Value>,
) -> Result<RpcMessage, &'static str> {
    let id = id.ok_or("there is neither a `method` nor the `id` of an answer")?;
    let outcome = match (result, error) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(RpcError::read(&error)),
        (Some(_), Some(_)) => return Err("an answer has a `result` or an `error`, not both"),
        (None, None) => return Err("there is no `method`, no `result` and no `error`"),
    };
    Ok(RpcMessage::Response(RpcResponse { id, outcome }))
}

impl From<Value> for Parsed {
    fn from(value: Value) -> Parsed {
        let Value::Object(object) = value else {
            return Parsed::Other(value);
        };
        let mut members = MessageMembers::default();
        for (name, value) in object {
            if let Some(place) = members.place(&name) {
                *place = Some(value);
            }
        }
        Parsed::Message(members)
    }
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_any(Json)
    }
}

/// Takes any JSON.
struct Json;

impl<'de> Visitor<'de> for Json {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let mut members = MessageMembers::default();
        while let Some(name) = map.next_key::<Name>()? {
            // Others are read as well, so that what is no JSON is found wherever it is.
            let value = map.next_value()?;
            if let Some(place) = members.place(name.0) {
                *place = Some(value);
            }
        }
        Ok(Parsed::Message(members))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Parsed, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(Parsed::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Parsed, E> {
        Ok(Parsed::Other(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Parsed, E> {
        Ok(Parsed::Other(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Parsed, E> {
        Ok(Parsed::Other(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Parsed, E> {
        Ok(Parsed::Other(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Parsed, E> {
        Ok(Parsed::Other(Number::from_f64(value).into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Parsed, E> {
        Ok(Parsed::Other(value.into()))
    }
}

/// A member's name, if it is one that a message may have; else empty.
struct Name(&'static str);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_str(Name(""))
    }
}

impl Visitor<'_> for Name {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
        const KNOWN: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
        let known = KNOWN.into_iter().find(|known| *known == name);
        Ok(Name(known.unwrap_or_default()))
    }
}
