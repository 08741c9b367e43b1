//! What the models of Google take, by their names.

/// How a model is told how much to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// By a level.
    Level,
    /// By a number of tokens, at least this one.
    Budget(u64),
    /// It does not think.
    None,
}

/// What is known of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GeminiAbilities {
    pub(super) thinking: Thinking,
    /// Since 3: it checks the signatures of calls, gives them ids, takes pictures within results, and formats beside tools.
    pub(super) is_new: bool,
}

/// What is known of the model of this name. A name without a version counts as that of a new one.
pub(super) fn abilities(model: &str) -> GeminiAbilities {
    let name = model.rsplit('/').next().unwrap_or(model);
    let version = match name.starts_with("gemma") {
        true => (2, 0),
        false => version(name),
    };
    GeminiAbilities {
        thinking: match version {
            (3.., _) => Thinking::Level,
            (2, 5..) if name.contains("pro") => Thinking::Budget(128),
            (2, 5..) => Thinking::Budget(0),
            _ => Thinking::None,
        },
        is_new: version >= (3, 0),
    }
}

/// The version in `gemini-2.5-flash-preview-09-2025`, `gemini-3-pro-preview`; 99 for a name without one.
fn version(name: &str) -> (u32, u32) {
    let Some(rest) = name.strip_prefix("gemini-") else {
        return (99, 0);
    };
    let parts = rest.split('-');
    let numbered = parts.filter_map(|part| {
        let (major, minor) = part.split_once('.').unwrap_or((part, "0"));
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    numbered.into_iter().next().unwrap_or((99, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_takes_is_read_from_its_name() {
        for (name, is_new, thinking) in [
            ("gemini-2.0-flash-001", false, Thinking::None),
            (
                "gemini-2.5-flash-preview-09-2025",
                false,
                Thinking::Budget(0),
            ),
            ("models/gemini-2.5-pro", false, Thinking::Budget(128)),
            ("gemini-3-pro-preview", true, Thinking::Level),
            ("gemini-3.1-flash-lite", true, Thinking::Level),
            ("gemini-flash-latest", true, Thinking::Level),
            ("an-alias", true, Thinking::Level),
            ("gemma-3-27b-it", false, Thinking::None),
        ] {
            assert_eq!(
                abilities(name),
                GeminiAbilities { thinking, is_new },
                "{name}"
            );
        }
    }
}
