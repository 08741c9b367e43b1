//! What a server lists besides tools: prompts, resources and resource templates, page by page, entry by entry.
//!
//! The entries are kept as they came. One that cannot be told from the others costs itself and never its neighbours.

use std::collections::HashSet;

use serde_json::Value;

use super::pages::{PageFault, Pages};
use crate::tool::JsonObject;

/// One of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureKind {
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
}

impl FeatureKind {
    /// The request that lists them.
    pub fn method(self) -> &'static str {
        match self {
            FeatureKind::Prompts => "prompts/list",
            FeatureKind::Resources => "resources/list",
            FeatureKind::Templates => "resources/templates/list",
        }
    }

    /// The member of the result that holds them.
    fn member(self) -> &'static str {
        match self {
            FeatureKind::Prompts => "prompts",
            FeatureKind::Resources => "resources",
            FeatureKind::Templates => "resourceTemplates",
        }
    }

    /// The member that tells one from another.
    fn key(self) -> &'static str {
        match self {
            FeatureKind::Prompts => "name",
            FeatureKind::Resources => "uri",
            FeatureKind::Templates => "uriTemplate",
        }
    }
}

/// What is wrong with a whole list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{method}: {}", what(.fault))]
pub struct FeatureError {
    /// The request that listed it.
    pub method: &'static str,
    /// What is wrong.
    pub fault: PageFault,
}

fn what(fault: &PageFault) -> String {
    match fault {
        PageFault::NoEntries => "the answer has no list".to_owned(),
        PageFault::Circle => "the pages run in a circle".to_owned(),
    }
}

/// A list being read, page by page.
#[derive(Debug)]
pub struct FeatureEntries {
    /// What can be told from the others, in the server's order.
    pub entries: Vec<JsonObject>,
    /// How many could not, or were listed before; all that are beyond the bounds of a list count as one.
    pub broken: usize,
    kind: FeatureKind,
    keys: HashSet<String>,
    pages: Pages,
}

impl FeatureEntries {
    /// A list of which nothing was read yet.
    pub fn new(kind: FeatureKind) -> FeatureEntries {
        FeatureEntries {
            entries: Vec::new(),
            broken: 0,
            kind,
            keys: HashSet::new(),
            pages: Pages::default(),
        }
    }

    /// Adds the result of one request and returns the cursor of the next page, if there is one.
    pub fn add_page(&mut self, page: &Value) -> Result<Option<String>, FeatureError> {
        let (listed, cursor) =
            self.pages
                .turn(page, self.kind.member())
                .map_err(|fault| FeatureError {
                    method: self.kind.method(),
                    fault,
                })?;
        for entry in listed {
            let key = entry.get(self.kind.key()).and_then(Value::as_str);
            match (entry.as_object(), key) {
                (Some(object), Some(key))
                    if !key.is_empty() && self.keys.insert(key.to_owned()) =>
                {
                    self.entries.push(object.clone());
                }
                _ => self.broken += 1,
            }
        }
        self.broken += usize::from(self.pages.cut().is_some());
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::pages::{MAX_ENTRIES, MAX_PAGES};

    #[test]
    fn entries_are_kept_as_they_came_and_a_broken_one_costs_itself() {
        let mut prompts = FeatureEntries::new(FeatureKind::Prompts);
        let good = json!({"name": "a", "x-new": [1], "icons": null});
        let page =
            json!({"prompts": [good, {"title": "b"}, 5, {"name": ""}, {"name": "a"}, {"name": 7}]});
        assert_eq!(prompts.add_page(&page), Ok(None));
        assert_eq!(prompts.entries, [good.as_object().unwrap().clone()]);
        assert_eq!(prompts.broken, 5);
    }

    #[test]
    fn each_list_has_its_own_member_and_key() {
        for (kind, page) in [
            (FeatureKind::Prompts, json!({"prompts": [{"name": "p"}]})),
            (
                FeatureKind::Resources,
                json!({"resources": [{"uri": "r:1"}]}),
            ),
            (
                FeatureKind::Templates,
                json!({"resourceTemplates": [{"uriTemplate": "r:{n}"}]}),
            ),
        ] {
            let mut list = FeatureEntries::new(kind);
            assert_eq!(list.add_page(&page), Ok(None), "{kind:?}");
            assert_eq!(list.entries.len(), 1, "{kind:?}");
        }
    }

    #[test]
    fn pages_follow_their_cursor_and_do_not_run_in_a_circle() {
        let mut list = FeatureEntries::new(FeatureKind::Resources);
        let page = json!({"resources": [{"uri": "a:1"}], "nextCursor": "2"});
        assert_eq!(list.add_page(&page), Ok(Some("2".to_owned())));
        let error = list.add_page(&page).unwrap_err();
        assert_eq!(
            error.to_string(),
            "resources/list: the pages run in a circle"
        );
    }

    #[test]
    fn a_list_without_end_is_read_to_its_bound() {
        let mut list = FeatureEntries::new(FeatureKind::Prompts);
        let many: Vec<_> = (0..=MAX_ENTRIES)
            .map(|n| json!({"name": n.to_string()}))
            .collect();
        assert_eq!(list.add_page(&json!({"prompts": many})), Ok(None));
        assert_eq!((list.entries.len(), list.broken), (MAX_ENTRIES, 1));

        let mut list = FeatureEntries::new(FeatureKind::Prompts);
        let page = |n: &usize| json!({"prompts": [], "nextCursor": n.to_string()});
        let read = (1..).find(|n| list.add_page(&page(n)) == Ok(None));
        assert_eq!(read, Some(MAX_PAGES));
    }

    #[test]
    fn an_answer_without_a_list_is_an_error() {
        let error = FeatureEntries::new(FeatureKind::Templates)
            .add_page(&json!({"resources": []}))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "resources/templates/list: the answer has no list"
        );
    }
}
