//! Text for a terminal: colours, columns, plurals. Where the output is no terminal, `print` takes the
//! colours out.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use terminal_size::{Width, terminal_size};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::printable;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const RED: Style = AnsiColor::Red.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default();
const YELLOW: Style = AnsiColor::Yellow.on_default();

pub(super) fn bold(text: &str) -> String {
    styled(BOLD, text)
}

pub(super) fn dim(text: &str) -> String {
    styled(DIM, text)
}

pub(super) fn good(text: &str) -> String {
    styled(GREEN, text)
}

pub(super) fn odd(text: &str) -> String {
    styled(YELLOW, text)
}

pub(super) fn bad(text: &str) -> String {
    styled(RED, text)
}

/// `error: …`, as every command says it.
pub(super) fn error(text: &str) -> String {
    format!("{} {}", bad("error:"), safe(text))
}

fn styled(style: Style, text: &str) -> String {
    format!("{style}{}{style:#}", safe(text))
}

/// An external text without control characters and invisible characters.
pub(super) fn safe(text: &str) -> String {
    printable::text(text).into_owned()
}

/// The width of the terminal that this stream goes to, in columns; `None` where it goes elsewhere.
pub(super) fn width(stream: &impl IsTerminal) -> Option<usize> {
    let (Width(columns), _) = stream.is_terminal().then(terminal_size)??;
    Some(usize::from(columns))
}

/// The first line of a text, shortened to `width` columns.
pub(super) fn brief(text: &str, width: usize) -> String {
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default();
    if line.width() <= width {
        return line.to_owned();
    }
    let mut taken = 0;
    let fits = |c: &char| {
        taken += c.width().unwrap_or_default();
        taken < width
    };
    let start: String = line.chars().take_while(fits).collect();
    format!("{}…", start.trim_end())
}

/// `1 tool`, `2 tools`.
pub(super) fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// Rows in columns, each as wide as its widest cell; the last is not filled up.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns_of(cell));
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::from("  ");
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width - columns_of(cell) + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// How many columns a text takes.
pub(super) fn columns_of(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).to_string().width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_colours() {
        let rows = [
            vec![good("a"), "b".into()],
            vec!["long".into(), "c".into()],
            vec!["x".into()],
        ];
        let text = columns(&rows);
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "  a     b\n  long  c\n  x\n"
        );
    }

    #[test]
    fn a_text_from_outside_does_not_steer_the_terminal() {
        assert_eq!(
            safe("a\u{1b}[31mb\r\n\tc\u{9b}"),
            "a\\u{1b}[31mb\\u{d}\n\tc\\u{9b}"
        );
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!(brief("\n  grün ist die Farbe\nmehr", 6), "grün…");
        assert_eq!(brief("kurz", 6), "kurz");
        assert_eq!(brief("", 6), "");
        assert_eq!(brief("漢字漢字", 6), "漢字…");
        assert_eq!(brief("漢字漢字", 8), "漢字漢字");
    }
}
