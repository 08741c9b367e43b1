//! `<think>…</think>` in plain text, split off as it arrives.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Where in the text we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThinkSection {
    /// At the start, or after thoughts: only here may thoughts begin.
    Start,
    Thoughts,
    Text,
}

/// Tells thoughts from text.
///
/// Thoughts begin only where nothing but space was said before, or only thoughts were. A `</think>` that
/// nothing opened is dropped once: some templates open the thoughts in the prompt. What came before it
/// was shown by then, and stays text.
#[derive(Debug)]
pub(super) struct Think {
    place: ThinkSection,
    held: String,
    /// Thoughts were closed, so that another `</think>` is text.
    closed: bool,
}

impl Think {
    pub(super) fn new() -> Think {
        Think {
            place: ThinkSection::Start,
            held: String::new(),
            closed: false,
        }
    }

    /// A text without `<` goes through as it is.
    pub(super) fn is_in_text(&self) -> bool {
        self.place == ThinkSection::Text && self.held.is_empty()
    }

    /// Takes the next text; gives `say` each piece, and whether it is a thought.
    pub(super) fn push(&mut self, text: &str, mut say: impl FnMut(&str, bool)) {
        self.held.push_str(text);
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        loop {
            match self.place {
                ThinkSection::Start => {
                    let said = rest.trim_start();
                    if let Some(after) = said.strip_prefix(OPEN) {
                        self.place = ThinkSection::Thoughts;
                        rest = after;
                    } else if OPEN.starts_with(said) {
                        break;
                    } else {
                        self.place = ThinkSection::Text;
                    }
                }
                ThinkSection::Thoughts => {
                    let Some((thought, after)) = rest.split_once(CLOSE) else {
                        rest = say_safe(rest, &[CLOSE], |text| say(text, true));
                        break;
                    };
                    say(thought, true);
                    (self.place, self.closed) = (ThinkSection::Start, true);
                    rest = after;
                }
                ThinkSection::Text if self.closed => {
                    say(rest, false);
                    rest = "";
                    break;
                }
                ThinkSection::Text => {
                    let Some((text, after)) = rest.split_once(CLOSE) else {
                        rest = say_safe(rest, &[CLOSE], |text| say(text, false));
                        break;
                    };
                    say(text, false);
                    (self.place, self.closed) = (ThinkSection::Start, true);
                    rest = after;
                }
            }
        }
        self.held = rest.to_owned();
    }

    /// Gives out what was held back.
    pub(super) fn finish(&mut self, mut say: impl FnMut(&str, bool)) {
        let held = std::mem::take(&mut self.held);
        say(&held, self.place == ThinkSection::Thoughts);
    }
}

/// Says all of a text that cannot be the beginning of a marker, and gives back the rest.
pub(super) fn say_safe<'a>(text: &'a str, markers: &[&str], say: impl FnOnce(&str)) -> &'a str {
    let (safe, held) = text.split_at(safe_length(text, markers));
    say(safe);
    held
}

/// Where the longest end of `text` begins that is the beginning of a marker and not a whole one.
pub(super) fn safe_length(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    let from = text.len().saturating_sub(longest.saturating_sub(1));
    let begins = |at: &usize| {
        let end = &text.as_bytes()[*at..];
        markers
            .iter()
            .any(|marker| marker.len() > end.len() && marker.as_bytes().starts_with(end))
    };
    (from..text.len()).find(begins).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, thoughts: &str, text: &str) {
        for cut in (0..=given.len()).filter(|&cut| given.is_char_boundary(cut)) {
            let (mut thought, mut said) = (String::new(), String::new());
            let mut think = Think::new();
            let mut say = |text: &str, is_thought: bool| {
                if is_thought {
                    thought.push_str(text);
                } else {
                    said.push_str(text);
                }
            };
            think.push(&given[..cut], &mut say);
            think.push(&given[cut..], &mut say);
            think.finish(&mut say);
            assert_eq!(
                (thought.as_str(), said.as_str()),
                (thoughts, text),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn thoughts_at_the_start_are_split_off() {
        check("<think>plan</think>Hello", "plan", "Hello");
        check("\n <think>a</think>\n\n<think>b</think>c", "ab", "c");
        check("<think>plan", "plan", "");
        check("<think></think>\n\nHi", "", "\n\nHi");
    }

    #[test]
    fn a_closing_tag_that_nothing_opened_goes() {
        check("plan</think>Hello", "", "planHello");
        check("</think>Hello", "", "Hello");
        check("<think>a</think>b</think>", "a", "b</think>");
    }

    #[test]
    fn other_text_stays() {
        check("a <think> b", "", "a <think> b");
        check("<thin air", "", "<thin air");
        check("1 < 2 </thin", "", "1 < 2 </thin");
        check("  ", "", "  ");
        check("ä<", "", "ä<");
    }
}
