//! Long lists in pages: a cursor is the last key of the page before.

/// Entries on one page.
///
/// Many clients read the first page only, so it is long.
pub const PAGE: usize = 1000;

/// A cursor that leads nowhere: it was made up, or the list has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Invalid cursor: the list has changed or the cursor is not of this list; begin again without one"
)]
pub struct InvalidCursor;

/// The page after the cursor, and the cursor of the next one.
pub fn page<'i, T>(
    items: &'i [T],
    cursor: Option<&str>,
    key: impl Fn(&T) -> &str,
) -> Result<(&'i [T], Option<String>), InvalidCursor> {
    let rest = match cursor {
        None => items,
        Some(cursor) => {
            let last = items.iter().position(|it| key(it) == cursor);
            &items[last.ok_or(InvalidCursor)? + 1..]
        }
    };
    match rest.get(..PAGE) {
        Some(page) if page.len() < rest.len() => {
            Ok((page, page.last().map(|it| key(it).to_owned())))
        }
        _ => Ok((rest, None)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_put_together_are_the_list(length in 0_usize..3500) {
            let items: Vec<String> = (0..length).map(|n| n.to_string()).collect();
            let mut read = Vec::new();
            let mut cursor = None;
            loop {
                let (page, next) = page(&items, cursor.as_deref(), |it| it)?;
                prop_assert!(page.len() <= PAGE && (next.is_none() || !page.is_empty()));
                read.extend_from_slice(page);
                cursor = next;
                if cursor.is_none() {
                    break;
                }
            }
            prop_assert_eq!(read, items);
        }
    }

    #[test]
    fn a_cursor_of_another_list_is_refused() {
        assert_eq!(page(&["a"], Some("b"), |it| it), Err(InvalidCursor));
    }
}
