//! Lists of items, as clients read them page by page.

use serde_json::{Value, json};

use crate::translate::dialect::{Sealed, Source, Unsupported};

/// Items of a page, where the client does not say.
const LIMIT: usize = 20;
/// Most items of a page.
const MAX_LIMIT: usize = 100;

/// Which items a client wants to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// The last items come first.
    pub is_descending: bool,
    /// `1 <= limit <= 100`
    pub limit: usize,
    /// The page begins behind this item.
    pub after: Option<String>,
}

impl Default for PageQuery {
    fn default() -> PageQuery {
        PageQuery {
            is_descending: true,
            limit: LIMIT,
            after: None,
        }
    }
}

impl PageQuery {
    /// Reads the parameters `order`, `limit` and `after`. Others are passed over.
    ///
    /// # Errors
    /// When one of them makes no sense.
    pub fn read<N: AsRef<str>, V: AsRef<str>>(
        parameters: impl IntoIterator<Item = (N, V)>,
    ) -> Result<PageQuery, Unsupported> {
        let mut query = PageQuery::default();
        for (name, value) in parameters {
            let value = value.as_ref();
            match name.as_ref() {
                "order" => {
                    query.is_descending = match value {
                        "asc" => false,
                        "desc" => true,
                        _ => return Err(invalid("order", "`order` is `asc` or `desc`")),
                    }
                }
                "limit" => {
                    let limit = value.parse().ok();
                    query.limit = limit
                        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                        .ok_or_else(|| invalid("limit", "`limit` is a number from 1 to 100"))?;
                }
                "after" => query.after = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(query)
    }

    /// The page of these items, which come in the order in which they were said.
    ///
    /// # Errors
    /// When there is no item [`after`](PageQuery::after) which it could begin.
    pub fn page(&self, mut items: Vec<Value>) -> Result<Value, Unsupported> {
        if self.is_descending {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == after.as_str());
            let at =
                at.ok_or_else(|| invalid("after", "there is no item with the id of `after`"))?;
            items.drain(..=at);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        Ok(list(&items, has_more))
    }
}

/// Whether a client wants a response as events, and from which on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamQuery {
    /// The number of the first event; none if it wants the response as a whole.
    pub from: Option<u64>,
}

impl StreamQuery {
    /// Reads the parameters `stream` and `starting_after`. Others are passed over.
    ///
    /// # Errors
    /// When `starting_after` is no number.
    pub fn read<N: AsRef<str>, V: AsRef<str>>(
        parameters: impl IntoIterator<Item = (N, V)>,
    ) -> Result<StreamQuery, Unsupported> {
        let (mut is_streamed, mut from) = (false, 0);
        for (name, value) in parameters {
            match name.as_ref() {
                "stream" => is_streamed = value.as_ref() == "true",
                "starting_after" => {
                    let after: Option<u64> = value.as_ref().parse().ok();
                    from = after
                        .and_then(|after| after.checked_add(1))
                        .ok_or_else(|| {
                            invalid(
                                "starting_after",
                                "`starting_after` is the number of an event",
                            )
                        })?;
                }
                _ => {}
            }
        }
        Ok(StreamQuery {
            from: is_streamed.then_some(from),
        })
    }
}

/// A list of items as the API has it.
pub fn list(items: &[Value], has_more: bool) -> Value {
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    json!({"object": "list", "data": items, "first_id": id(items.first()), "last_id": id(items.last()),
        "has_more": has_more})
}

/// Gives each item without an id one, `prefix` and a number, because clients name items by id.
pub fn with_ids(mut items: Vec<Value>, prefix: &str) -> Vec<Value> {
    for (at, item) in items.iter_mut().enumerate() {
        if item.is_object() && item.get("id").is_none_or(Value::is_null) {
            item["id"] = format!("{prefix}_{at}").into();
        }
    }
    items
}

/// Items that toolway kept, for an upstream of this API: without the ids that toolway gave them, and with its own seals as
/// it made them. What another provider thought says nothing to it.
pub fn for_upstream(items: Vec<Value>) -> Vec<Value> {
    let restored = items.into_iter().filter_map(|mut item| {
        let id = item.as_object_mut()?.shift_remove("id");
        if item["type"] != "reasoning" {
            return Some(item);
        }
        let text = item["encrypted_content"].as_str()?;
        let id = id.as_ref().and_then(Value::as_str);
        let sealed = Sealed::unwrapped(text, Source::OpenAi, id);
        if sealed.source != Source::OpenAi {
            return None;
        }
        item["id"] = sealed.id.into();
        item["encrypted_content"] = sealed.data.into();
        Some(item)
    });
    restored.collect()
}

fn invalid(param: &str, message: &str) -> Unsupported {
    Unsupported {
        param: param.to_owned(),
        message: message.to_owned(),
        code: "invalid_value",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Vec<Value> {
        ["a", "b", "c"].map(|id| json!({"id": id})).to_vec()
    }

    #[track_caller]
    fn check(parameters: &[(&str, &str)], expected: &[&str], has_more: bool) {
        let query = PageQuery::read(parameters.iter().copied()).unwrap();
        let page = query.page(items()).unwrap();
        let ids = page["data"].as_array().unwrap().iter();
        let ids: Vec<&str> = ids.filter_map(|item| item["id"].as_str()).collect();
        assert_eq!(ids, expected);
        assert_eq!(page["has_more"], has_more);
        assert_eq!(page["first_id"].as_str(), expected.first().copied());
        assert_eq!(page["last_id"].as_str(), expected.last().copied());
    }

    #[test]
    fn a_page_begins_behind_an_item_and_the_last_items_come_first() {
        check(&[], &["c", "b", "a"], false);
        check(&[("order", "asc")], &["a", "b", "c"], false);
        check(&[("limit", "2"), ("include", "x")], &["c", "b"], true);
        check(&[("after", "b")], &["a"], false);
        check(
            &[("order", "asc"), ("limit", "1"), ("after", "a")],
            &["b"],
            true,
        );
        check(&[("after", "a")], &[], false);
    }

    #[test]
    fn an_upstream_gets_its_own_seals_back_and_no_others() {
        let items = vec![
            json!({"type": "message", "id": "msg_of_toolway", "role": "user", "content": "x"}),
            json!({"type": "reasoning", "id": "rs_of_toolway", "encrypted_content": "toolway:openai:rs_1:sealed"}),
            json!({"type": "reasoning", "id": "rs_2", "encrypted_content": "toolway:anthropic::signed"}),
            json!({"type": "reasoning", "id": "rs_3", "summary": []}),
            json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "short"}),
        ];
        let expected = vec![
            json!({"type": "message", "role": "user", "content": "x"}),
            json!({"type": "reasoning", "encrypted_content": "sealed", "id": "rs_1"}),
            json!({"type": "compaction", "encrypted_content": "short"}),
        ];
        assert_eq!(for_upstream(items), expected);
    }

    #[test]
    fn a_stream_begins_behind_an_event() {
        for (parameters, expected) in [
            (&[][..], None),
            (&[("starting_after", "3")], None),
            (&[("stream", "true")], Some(0)),
            (&[("stream", "true"), ("starting_after", "3")], Some(4)),
        ] {
            let query = StreamQuery::read(parameters.iter().copied()).unwrap();
            assert_eq!(query.from, expected, "{parameters:?}");
        }
        let refused = StreamQuery::read([("starting_after", "x")]).unwrap_err();
        assert_eq!(refused.param, "starting_after");
    }

    #[test]
    fn a_page_that_makes_no_sense_is_refused_by_name() {
        for (name, value) in [("order", "up"), ("limit", "0"), ("limit", "101")] {
            let refused = PageQuery::read([(name, value)]).unwrap_err();
            assert_eq!(refused.param, name);
        }
        let query = PageQuery::read([("after", "d")]).unwrap();
        assert_eq!(query.page(items()).unwrap_err().param, "after");
    }
}
