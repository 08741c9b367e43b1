//! Texts cut at character boundaries.

/// The longest start of `text` that has at most `limit` bytes and ends between two characters.
pub(super) fn at_most(text: &str, limit: usize) -> &str {
    &text[..boundary(text, limit)]
}

/// The text if it is short enough, else its start and an ellipsis.
pub(super) fn bounded(text: &str, limit: usize) -> String {
    let start = at_most(text, limit);
    if start.len() == text.len() {
        text.to_owned()
    } else {
        format!("{start}…")
    }
}

/// The last place at or before `at` that lies between two characters; the end, where `at` is past it.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}
