//! What the models of Anthropic take, by their names. Models of others, behind the same API, are taken to take everything.

/// What is known of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClaudeAbilities {
    /// `temperature` and `top_p`; since 4.7 they are refused.
    pub(super) sampling: bool,
    /// `thinking: adaptive`, `output_config.effort`, and system messages within the conversation.
    pub(super) adaptive: bool,
    /// Longest answer in tokens, thoughts included.
    pub(super) max_tokens: u64,
}

/// What is known of the model of this name. An unknown Claude counts as a new one.
pub(super) fn abilities(model: &str) -> ClaudeAbilities {
    let Some(name) = model.strip_prefix("claude-") else {
        return ClaudeAbilities {
            sampling: true,
            adaptive: false,
            max_tokens: 16_384,
        };
    };
    let (major, minor) = version(name);
    let is_old = major < 4 || (major == 4 && minor <= 6);
    ClaudeAbilities {
        sampling: is_old,
        adaptive: !is_old || (major == 4 && minor == 6),
        max_tokens: match (major, minor) {
            (..=2, _) | (3, 0) => 4096,
            (3, 5) => 8192,
            _ => 32_000,
        },
    }
}

/// The version in `opus-4-8`, `3-5-haiku-20241022`, `sonnet-4-20250514`, `2.1`, `instant-1.2`; 99 for a name without a version.
fn version(name: &str) -> (u32, u32) {
    // A date is longer than a version.
    let parts = name.split(['-', '.', '@']).filter(|part| part.len() <= 2);
    let mut numbers = parts.filter_map(|part| part.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor),
        (Some(major), None) => (major, 0),
        (None, _) => (99, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        for (name, expected) in [
            ("opus-4-8", (4, 8)),
            ("3-5-haiku-20241022", (3, 5)),
            ("3-opus-20240229", (3, 0)),
            ("sonnet-4-20250514", (4, 0)),
            ("haiku-4-5@20251001", (4, 5)),
            ("2.1", (2, 1)),
            ("instant-1.2", (1, 2)),
            ("opus-5-5", (5, 5)),
            ("fable", (99, 0)),
        ] {
            assert_eq!(version(name), expected, "{name}");
        }
    }

    #[test]
    fn an_unknown_claude_is_new_and_a_foreign_model_takes_everything() {
        assert!(!abilities("claude-mythos").sampling);
        assert!(abilities("claude-opus-4-6").sampling);
        assert!(!abilities("claude-opus-4-7").sampling);
        assert!(abilities("glm-5").sampling);
    }
}
