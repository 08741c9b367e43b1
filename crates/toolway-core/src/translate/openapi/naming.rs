//! Names of tools, arguments and definitions: within an alphabet, and each only once.

use std::collections::HashSet;

use toolway_protocol::tool::MAX_NAME;

/// The text as a name of `A-Z a-z 0-9 _ -`, at most [`MAX_NAME`] long; `otherwise`, where nothing is left.
///
/// Every run of other characters becomes one `_`, none at the ends.
pub(super) fn spelled(text: &str, otherwise: &str) -> String {
    let mut name = String::new();
    let mut is_gap = false;
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            if is_gap && !name.is_empty() {
                name.push('_');
            }
            is_gap = false;
            name.push(c);
        } else {
            is_gap = true;
        }
        if name.len() >= MAX_NAME {
            break;
        }
    }
    name.truncate(MAX_NAME);
    if name.is_empty() {
        otherwise.to_owned()
    } else {
        name
    }
}

/// The name, or where it is taken the name with the first free number from 2 at its end.
pub(super) fn unused(name: &str, taken: &mut HashSet<String>) -> String {
    let mut free = name.to_owned();
    let mut number = 2_usize;
    while taken.contains(&free) {
        let end = format!("_{number}");
        let start = name.get(..MAX_NAME - end.len()).unwrap_or(name);
        free = format!("{start}{end}");
        number += 1;
    }
    taken.insert(free.clone());
    free
}

/// What an operation is called: by its `operationId`, else by method and path (`get_pets_petId`).
pub(super) fn operation(id: Option<&str>, method: &str, path: &str) -> String {
    let made = format!("{} {path}", method.to_ascii_lowercase());
    let made = spelled(&made, "operation");
    match id {
        Some(id) => spelled(id, &made),
        None => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_named_by_its_id_or_by_method_and_path() {
        for (id, expected) in [
            (Some("listPets"), "listPets"),
            (Some("repos/list-for-org"), "repos_list-for-org"),
            (Some(" pets.list: all "), "pets_list_all"),
            (Some("_private"), "_private"),
            (Some("…"), "get_pets_petId"),
            (Some(""), "get_pets_petId"),
            (None, "get_pets_petId"),
        ] {
            assert_eq!(operation(id, "GET", "/pets/{petId}"), expected);
        }
        assert_eq!(operation(None, "DELETE", "/"), "delete");
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number_and_still_fits() {
        let mut taken = HashSet::new();
        let long = "x".repeat(70);
        let long = spelled(&long, "");
        let names: Vec<String> = (0..3).map(|_| unused(&long, &mut taken)).collect();
        assert_eq!(names[0].len(), 64);
        assert_eq!(names[1], format!("{}_2", "x".repeat(62)));
        assert_eq!(names[2], format!("{}_3", "x".repeat(62)));
        assert_eq!(unused("a", &mut taken), "a");
        assert_eq!(unused("a", &mut taken), "a_2");
    }
}
