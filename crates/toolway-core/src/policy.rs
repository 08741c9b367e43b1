//! May this call run?
//!
//! One question, asked before every call whatever face it came through. Nothing that runs a tool takes a call
//! without an [`Admitted`], and only [`evaluate`] makes one, so no face can go past it. Today there is one rule: a
//! tool that the request did not select is refused, even when the model guesses its name.

use std::{ops::Deref, sync::Arc};

use crate::catalog::Offered;

/// A call that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    /// The tool.
    pub tool: &'a Arc<Offered>,
    /// It is among the tools that the request, or the endpoint, shows.
    pub is_shown: bool,
}

/// The answer to "may this call run?".
#[derive(Debug)]
pub enum Verdict {
    /// It may.
    Allow(Admitted),
    /// It may not.
    Deny {
        /// Why, for the model.
        reason: String,
        /// The name of the rule that says so.
        rule: &'static str,
    },
}

/// A tool that may be called.
#[derive(Clone, Debug)]
pub struct Admitted(Arc<Offered>);

impl Deref for Admitted {
    type Target = Offered;

    fn deref(&self) -> &Offered {
        &self.0
    }
}

/// Decides on a call.
pub fn evaluate(request: &CallRequest<'_>) -> Verdict {
    if !request.is_shown {
        let name = &request.tool.name;
        return Verdict::Deny {
            reason: format!("the tool `{name}` is not among the tools chosen for this request"),
            rule: "selection",
        };
    }
    Verdict::Allow(Admitted(Arc::clone(request.tool)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, ServerTools};
    use toolway_protocol::tool::{Annotations, ServerId, Tool};

    #[test]
    fn a_tool_that_is_not_shown_is_refused_by_the_rule_of_selection() {
        let catalog = Catalog::build(&[ServerTools {
            server: ServerId::parse("s").unwrap(),
            stateful: false,
            tools: vec![Tool {
                name: "a".to_owned(),
                title: None,
                description: None,
                input_schema: serde_json::Map::new(),
                output_schema: None,
                annotations: Annotations::default(),
                extra: serde_json::Map::new(),
            }],
            dropped: Vec::new(),
        }]);
        let tool = catalog.find("s__a").unwrap();
        let decide = |is_shown| evaluate(&CallRequest { tool, is_shown });
        assert!(matches!(decide(true), Verdict::Allow(admitted) if admitted.name == tool.name));
        assert!(
            matches!(decide(false), Verdict::Deny { rule: "selection", reason } if reason.contains("s__a"))
        );
    }
}
