//! A text with places for arguments: `{city}` stands for the argument `city`.
//!
//! Only a name within braces is a place; any other brace is a brace, so that a prompt can show JSON. `{{city}}`
//! is `{city}` as it stands there.

/// A text with places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

/// A piece of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// As it is.
    Text(String),
    /// What is put in for this name.
    Place(String),
}

impl Template {
    /// Reads a template. Every text is one.
    pub fn parse(text: &str) -> Template {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(name) = place(rest, "{{", "}}") {
                plain.push_str(&rest[1..name.len() + 3]);
                rest = &rest[name.len() + 4..];
            } else if let Some(name) = place(rest, "{", "}") {
                parts.extend((!plain.is_empty()).then(|| TemplatePart::Text(plain.split_off(0))));
                parts.push(TemplatePart::Place(name.to_owned()));
                rest = &rest[name.len() + 2..];
            } else {
                plain.push('{');
                rest = &rest[1..];
            }
        }
        plain.push_str(rest);
        parts.extend((!plain.is_empty()).then_some(TemplatePart::Text(plain)));
        Template { parts }
    }

    /// The names of its places, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Place(name) => Some(name.as_str()),
            TemplatePart::Text(_) => None,
        })
    }

    /// The text with something in each place; `None` if there is nothing for one of them.
    pub fn fill(&self, mut value: impl FnMut(&str) -> Option<String>) -> Option<String> {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => Some(text.clone()),
            TemplatePart::Place(name) => value(name),
        };
        self.parts.iter().map(part).collect()
    }
}

/// The name between the braces that `text` begins with.
fn place<'t>(text: &'t str, open: &str, close: &str) -> Option<&'t str> {
    let (name, _) = text.strip_prefix(open)?.split_once(close)?;
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    (!name.is_empty() && name.chars().all(fits)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &str, expected: &str) {
        let filled = Template::parse(template).fill(|name| Some(format!("<{name}>")));
        assert_eq!(filled.as_deref(), Some(expected), "{template}");
    }

    #[test]
    fn names_in_braces_are_places_and_nothing_else_is() {
        check("", "");
        check("a {b} c{d-e}{f.g_1}", "a <b> c<d-e><f.g_1>");
        check("{\"a\": {b}}", "{\"a\": <b>}");
        check("{} { } {a b} {a", "{} { } {a b} {a");
        check("}{a}{", "}<a>{");
        check("{ä}", "<ä>");
    }

    #[test]
    fn two_braces_are_one() {
        check("{{a}}", "{a}");
        check("{{a}} {a} {{{a}}}", "{a} <a> {{a}}");
    }

    #[test]
    fn a_place_that_stays_empty_is_told() {
        let template = Template::parse("{a}{b}");
        assert_eq!(template.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(template.fill(|name| (name == "a").then(String::new)), None);
    }
}
