//! Conditions on the values of arguments.

use regex::Regex;
use serde_json::Value;

use crate::catalog::matches;
use toolway_protocol::tool::JsonObject;

/// What one value of the arguments has to be.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Where the value is: a JSON pointer (RFC 6901) of at least one step.
    pub pointer: String,
    /// All of them have to hold.
    pub tests: Vec<Test>,
}

/// Tests of a value, or their contrary.
#[derive(Clone, Debug)]
pub struct Test {
    /// They hold where all of these do.
    pub all: Vec<TestKind>,
    /// It holds where they do not: also for a value that is absent or of another type.
    pub is_negated: bool,
}

/// A test of a value; it holds for no value that is absent or of another type.
#[derive(Clone, Debug)]
pub enum TestKind {
    /// The value; numbers are compared as numbers.
    Equals(Value),
    /// One of these values.
    OneOf(Vec<Value>),
    /// A text that the pattern matches as a whole; `*` stands for any characters.
    Glob(String),
    /// A text in which the expression is found.
    Regex(Regex),
    /// A number that is not smaller.
    Min(f64),
    /// A number that is not larger.
    Max(f64),
    /// An absolute path of this folder or of something in it, by its text: `.` and `..` are resolved, links are not.
    Inside(String),
}

impl Condition {
    /// The condition holds for these arguments.
    pub fn holds(&self, arguments: &JsonObject) -> bool {
        let value = find(&self.pointer, arguments);
        self.tests.iter().all(|test| test.holds(value))
    }
}

impl Test {
    fn holds(&self, value: Option<&Value>) -> bool {
        let holds = value.is_some_and(|value| self.all.iter().all(|kind| kind.holds(value)));
        holds != self.is_negated
    }
}

impl TestKind {
    fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (TestKind::Equals(expected), _) => is_same(expected, value),
            (TestKind::OneOf(expected), _) => expected.iter().any(|it| is_same(it, value)),
            (TestKind::Glob(pattern), Value::String(text)) => matches(pattern, text),
            (TestKind::Regex(regex), Value::String(text)) => regex.is_match(text),
            (TestKind::Min(least), Value::Number(number)) => {
                number.as_f64().is_some_and(|it| it >= *least)
            }
            (TestKind::Max(most), Value::Number(number)) => {
                number.as_f64().is_some_and(|it| it <= *most)
            }
            (TestKind::Inside(folder), Value::String(path)) => is_inside(folder, path),
            (
                TestKind::Glob(_)
                | TestKind::Regex(_)
                | TestKind::Min(_)
                | TestKind::Max(_)
                | TestKind::Inside(_),
                _,
            ) => false,
        }
    }
}

fn find<'a>(pointer: &str, arguments: &'a JsonObject) -> Option<&'a Value> {
    let steps = pointer.strip_prefix('/')?;
    let (first, rest) = match steps.find('/') {
        Some(at) => steps.split_at(at),
        None => (steps, ""),
    };
    let first = first.replace("~1", "/").replace("~0", "~");
    arguments.get(&first)?.pointer(rest)
}

fn is_same(expected: &Value, value: &Value) -> bool {
    match (expected, value) {
        (Value::Number(expected), Value::Number(value)) => {
            expected == value || expected.as_f64() == value.as_f64()
        }
        _ => expected == value,
    }
}

fn is_inside(folder: &str, path: &str) -> bool {
    match (steps(folder), steps(path)) {
        (Some(folder), Some(path)) => path.starts_with(&folder),
        _ => false,
    }
}

/// The steps of an absolute path; `None` if it is not absolute, leaves the root or holds a NUL.
fn steps(path: &str) -> Option<Vec<&str>> {
    let mut steps = Vec::new();
    if path.contains('\0') {
        return None;
    }
    for step in path.strip_prefix('/')?.split('/') {
        match step {
            "" | "." => {}
            ".." => {
                steps.pop()?;
            }
            step => steps.push(step),
        }
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(kind: &TestKind, yes: &[Value], no: &[Value]) {
        let holds = |value: &Value, is_negated| {
            let arguments = json!({"a/b": [{"c": value}]});
            let test = Test {
                all: vec![kind.clone()],
                is_negated,
            };
            let condition = Condition {
                pointer: "/a~1b/0/c".to_owned(),
                tests: vec![test],
            };
            condition.holds(arguments.as_object().unwrap())
        };
        for value in yes {
            assert!(
                holds(value, false) && !holds(value, true),
                "{kind:?} {value}"
            );
        }
        for value in no {
            assert!(
                !holds(value, false) && holds(value, true),
                "{kind:?} {value}"
            );
        }
    }

    #[test]
    fn each_test_holds_for_values_of_its_type_only() {
        let no_text = [json!(1), json!(null), json!(["x"])];
        check(
            &TestKind::Equals(json!(1)),
            &[json!(1), json!(1.0)],
            &[json!("1"), json!(2), json!(null)],
        );
        check(
            &TestKind::OneOf(vec![json!("a"), json!(true)]),
            &[json!("a"), json!(true)],
            &[json!("b"), json!("true")],
        );
        check(
            &TestKind::Glob("*.txt".to_owned()),
            &[json!("a.txt")],
            &[json!("a.txt.sh")],
        );
        check(&TestKind::Glob("x".to_owned()), &[json!("x")], &no_text);
        check(
            &TestKind::Regex(Regex::new("^a+$").unwrap()),
            &[json!("aa")],
            &[json!("ab"), json!(1)],
        );
        check(
            &TestKind::Min(2.0),
            &[json!(2), json!(2.5)],
            &[json!(1), json!("3")],
        );
        check(
            &TestKind::Max(2.0),
            &[json!(2), json!(-1)],
            &[json!(2.5), json!("1")],
        );
    }

    #[test]
    fn a_path_is_inside_a_folder_however_it_is_written() {
        check(
            &TestKind::Inside("/srv/data/".to_owned()),
            &[
                json!("/srv/data"),
                json!("/srv/data/x"),
                json!("//srv/./data/a/../b"),
            ],
            &[
                json!("/srv/data/../x"),
                json!("/srv/database"),
                json!("/srv"),
                json!("data/x"),
                json!("/../srv/data/x"),
                json!("/srv/data/x\0"),
                json!("file:///srv/data/x"),
                json!(1),
            ],
        );
    }

    #[test]
    fn a_value_that_is_absent_meets_only_contraries() {
        for (is_negated, expected) in [(false, false), (true, true)] {
            let condition = Condition {
                pointer: "/x".to_owned(),
                tests: vec![Test {
                    all: vec![TestKind::Equals(Value::Null)],
                    is_negated,
                }],
            };
            assert_eq!(condition.holds(&JsonObject::new()), expected);
        }
    }
}
