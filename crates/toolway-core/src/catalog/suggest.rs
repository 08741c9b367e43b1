//! Offered names that look like an unknown name.

use std::sync::Arc;

use super::Offered;

/// Most names that are suggested.
const MOST: usize = 3;

/// Longest text that is compared; what is longer is no misspelt name.
const MAX_COMPARED: usize = 128;

/// The closest offered names, the closest first; of equals the first in the alphabet.
///
/// A name is close if at most a third of it differs. The server's own name of a tool counts as much as the
/// offered one, for models leave the first half out.
pub(super) fn suggest(name: &str, offered: &[Arc<Offered>]) -> Vec<String> {
    let wanted = folded(name);
    if wanted.is_empty() || wanted.len() > MAX_COMPARED {
        return Vec::new();
    }
    let mut close: Vec<(usize, &str)> = Vec::new();
    for tool in offered {
        let whole = distance(&wanted, &folded(tool.name.as_str()));
        let own = distance(&wanted, &folded(&tool.tool.name));
        if let Some(distance) = whole.into_iter().chain(own).min() {
            close.push((distance, tool.name.as_str()));
        }
    }
    close.sort_unstable();
    // Names of one server share their first half; beside a much closer one they are no suggestion.
    let most = close.first().map_or(0, |(closest, _)| closest + 1);
    close
        .into_iter()
        .take_while(|(distance, _)| *distance <= most)
        .take(MOST)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// A text fit to be quoted in a message.
pub(super) fn shortened(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_COMPARED)
        .collect()
}

/// The name with the differences taken out that models make most: case, and what stands between words.
fn folded(name: &str) -> Vec<char> {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters
        .flat_map(char::to_lowercase)
        .take(MAX_COMPARED + 1)
        .collect()
}

/// How many letters must be changed, added or taken out; `None` if it is more than a third.
fn distance(a: &[char], b: &[char]) -> Option<usize> {
    let most = a.len().max(b.len()) / 3;
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
        if row.iter().all(|distance| *distance > most) {
            return None;
        }
    }
    Some(row[b.len()]).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(a: &str, b: &str, expected: Option<usize>) {
        assert_eq!(distance(&folded(a), &folded(b)), expected, "{a} and {b}");
    }

    #[test]
    fn a_third_may_differ() {
        check("read_file", "readFile", Some(0));
        check("read_file", "read.fiel", Some(2));
        check("read_file", "read_files", Some(1));
        check("read_file", "write_file", None);
        check("", "a", None);
        check("abc", "abd", Some(1));
        check("abc", "acd", None);
    }
}
