//! The members of the request object, raw and in their order, and the body written again from them.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{RequestError, brief, scan};
use crate::segmented_body::SegmentedBody;

/// Most members a request may have. OpenAI documents about forty; the bound keeps look-ups, which are
/// linear, cheap for every body.
const MAX_MEMBERS: usize = 512;

/// A value as it is written: a JSON text without space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a>(&'a str);

impl<'a> Raw<'a> {
    /// The text.
    pub fn get(self) -> &'a str {
        self.0
    }
}

impl<'a> From<&'a RawValue> for Raw<'a> {
    fn from(raw: &'a RawValue) -> Raw<'a> {
        Raw(raw.get())
    }
}

/// What becomes of a member when the body is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'s, 'c> {
    /// It gets this value, a JSON text; a member that is not there is added at the end.
    Set(&'s str),
    /// The same with a text in parts, which are lent and not copied.
    Lend(&'s [&'c str]),
    /// It is left out.
    Remove,
}

/// The members of the request object.
#[derive(Debug)]
pub(super) struct Members<'a> {
    body: &'a str,
    list: Vec<(Cow<'a, str>, Raw<'a>)>,
}

impl<'a> Members<'a> {
    /// Splits a JSON object, nested at most `max_depth` levels, into its members; their values are checked to be JSON
    /// and not read.
    pub(super) fn parse(body: &'a str, max_depth: usize) -> Result<Members<'a>, RequestError> {
        if let Some(list) = scan::members(body, max_depth, MAX_MEMBERS) {
            let list = list.into_iter();
            let list = list.map(|(key, value)| (Cow::Borrowed(key), Raw(value)));
            return Ok(Members {
                body,
                list: list.collect(),
            });
        }
        scan::check_size(body, max_depth)?;
        let MemberList(list) = serde_json::from_str(body).map_err(|error| {
            let what = match error.is_data() {
                true => "The request body must be a JSON object",
                false => "The request body is not valid JSON",
            };
            RequestError::body(format!("{what}: {}.", brief(&error)))
        })?;
        Ok(Members { body, list })
    }

    /// The value of a member; of several with this name the last.
    pub(super) fn find(&self, name: &str) -> Option<Raw<'a>> {
        self.list
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| *value)
    }

    /// The value of a member unless it is null, which OpenAI treats like an absent one.
    pub(super) fn present(&self, name: &str) -> Option<Raw<'a>> {
        self.find(name).filter(|value| value.get() != "null")
    }

    /// Some member comes more than once, and readers may differ on which of them counts.
    pub(super) fn repeat(&self) -> bool {
        (0..self.list.len()).any(|place| self.comes_again(place))
    }

    /// A later member has the name of the one at this place.
    fn comes_again(&self, place: usize) -> bool {
        let mut later = self.list[place + 1..].iter();
        later.any(|(name, _)| *name == self.list[place].0)
    }

    /// See [`super::ChatRequest::compose`].
    pub(super) fn compose<'c>(&self, changes: &[(&str, Change<'_, 'c>)]) -> SegmentedBody<'c>
    where
        'a: 'c,
    {
        if changes.is_empty() && !self.repeat() {
            return SegmentedBody::of(self.body.as_bytes());
        }
        let mut out = ObjectWriter(SegmentedBody::new());
        for (place, (key, value)) in self.list.iter().enumerate() {
            match changes.iter().rev().find(|(name, _)| name == key) {
                _ if self.comes_again(place) => {}
                None => out.member(key, Change::Lend(&[value.get()])),
                Some((_, change)) => out.member(key, *change),
            }
        }
        for (place, (name, change)) in changes.iter().enumerate() {
            let comes_again = changes[place + 1..].iter().any(|(later, _)| later == name);
            if !comes_again && self.find(name).is_none() {
                out.member(name, *change);
            }
        }
        out.finish()
    }
}

/// Writes an object member by member.
struct ObjectWriter<'c>(SegmentedBody<'c>);

impl<'c> ObjectWriter<'c> {
    fn member(&mut self, key: &str, value: Change<'_, 'c>) {
        let parts = match value {
            Change::Remove => return,
            Change::Set(text) => {
                self.key(key);
                return self.0.copy(text.as_bytes());
            }
            Change::Lend(parts) => parts,
        };
        self.key(key);
        for part in parts {
            self.0.push(part.as_bytes());
        }
    }

    fn key(&mut self, key: &str) {
        self.0.copy(if self.0.is_empty() { b"{" } else { b"," });
        self.0.json(key);
        self.0.copy(b":");
    }

    fn finish(mut self) -> SegmentedBody<'c> {
        let end: &[u8] = if self.0.is_empty() { b"{}" } else { b"}" };
        self.0.copy(end);
        self.0
    }
}

/// The messages, a JSON array, with more at the end, in parts; `appended` holds JSON objects joined by commas and may be empty.
pub fn splice_messages<'c>(messages: &'c str, appended: &'c str) -> Vec<&'c str> {
    let inner = messages
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or_default();
    let has_both = !inner.trim_ascii().is_empty() && !appended.is_empty();
    let comma = if has_both { "," } else { "" };
    let opened = messages.strip_suffix(']').unwrap_or_default();
    vec![opened, comma, appended, "]"]
}

/// The single messages, raw; empty for what is no array.
pub fn messages_of(messages: Raw<'_>) -> Vec<&RawValue> {
    serde_json::from_str(messages.get()).unwrap_or_default()
}

struct MemberList<'a>(Vec<(Cow<'a, str>, Raw<'a>)>);

impl<'de> Deserialize<'de> for MemberList<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;

        impl<'de> Visitor<'de> for ListVisitor {
            type Value = MemberList<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MemberList<'de>, A::Error> {
                let mut list = Vec::with_capacity(16);
                while let Some(JsonString(key)) = map.next_key()? {
                    if list.len() == MAX_MEMBERS {
                        let message = format_args!("it has more than {MAX_MEMBERS} members");
                        return Err(de::Error::custom(message));
                    }
                    let value: &RawValue = map.next_value()?;
                    list.push((key, value.into()));
                }
                Ok(MemberList(list))
            }
        }

        deserializer.deserialize_map(ListVisitor)
    }
}

/// A JSON string, borrowed unless it is written with escapes.
#[derive(Default, Deserialize)]
pub struct JsonString<'a>(#[serde(borrow)] pub Cow<'a, str>);
