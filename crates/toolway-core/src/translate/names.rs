//! The names tools are offered under. The only place that knows alphabet, join, cut and hash.
//!
//! A tool is offered as `server__tool`. What does not fit into [`FunctionName`], and what would be offered
//! twice, gets a hash of server and tool at its end. The hash makes names stable: whether a tool is renamed
//! depends on its own name and on those that read the same, never on the order of arrival.

use std::collections::{HashMap, HashSet};

use toolway_protocol::tool::{FunctionName, MAX_NAME, ServerId};

/// Stands between server and tool.
pub const SEPARATOR: &str = "__";

/// Characters of a hash, without the `_` before it. Eight of 32 letters: 40 bits.
const HASH: usize = 8;

/// Most characters of the server's name that stay where a name is cut.
const SERVER_SHARE: usize = 20;

/// The name of one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The name for the model.
    pub name: FunctionName,
    /// It is not just `server__tool`.
    pub changed: bool,
}

/// Names these tools, each given by its server and by its name there, in their order.
///
/// All names differ, even where a pair comes twice. Tools that would have the same plain name are all
/// renamed, so that a server cannot take a name over from another by listing a tool that reads like it.
pub fn assign<'a>(tools: impl Iterator<Item = (&'a ServerId, &'a str)>) -> Vec<Assigned> {
    let tools: Vec<(&ServerId, &str)> = tools.collect();
    let plain: Vec<Option<FunctionName>> = tools
        .iter()
        .map(|(server, tool)| plain(server, tool))
        .collect();
    let mut uses: HashMap<&str, usize> = HashMap::with_capacity(plain.len());
    for name in plain.iter().flatten() {
        *uses.entry(name.as_str()).or_default() += 1;
    }
    let is_free = |name: &FunctionName| uses.get(name.as_str()) == Some(&1);
    let mut assigned: Vec<Option<Assigned>> = plain
        .iter()
        .map(|name| {
            let name = name.clone().filter(is_free)?;
            Some(Assigned {
                name,
                changed: false,
            })
        })
        .collect();

    let mut taken: HashSet<FunctionName> = plain.iter().flatten().cloned().collect();
    let mut rest: Vec<usize> = (0..tools.len())
        .filter(|i| assigned[*i].is_none())
        .collect();
    rest.sort_by_key(|i| (tools[*i], *i));
    for place in rest {
        let (server, tool) = tools[place];
        let name = (0_u32..)
            .map(|attempt| hashed(server, tool, attempt))
            .find(|name| taken.insert(name.clone()))
            .expect("one of four thousand million hashes is free");
        assigned[place] = Some(Assigned {
            name,
            changed: true,
        });
    }
    assigned.into_iter().flatten().collect()
}

/// `server__tool`, where that is a name.
fn plain(server: &ServerId, tool: &str) -> Option<FunctionName> {
    if tool.is_empty() || server.as_str().len() + SEPARATOR.len() + tool.len() > MAX_NAME {
        return None;
    }
    FunctionName::parse(&format!("{server}{SEPARATOR}{tool}")).ok()
}

/// As much of `server__tool` as fits, and a hash of the whole; each `attempt` gives another hash.
fn hashed(server: &ServerId, tool: &str, attempt: u32) -> FunctionName {
    let room = MAX_NAME - 1 - HASH;
    let server = server.as_str();
    let start = if server.starts_with(|c: char| c.is_ascii_alphabetic()) {
        ""
    } else {
        "s"
    };
    let readable: String = tool.chars().take(room).map(spelled).collect();
    let share = (room - SEPARATOR.len())
        .saturating_sub(readable.len())
        .max(SERVER_SHARE);
    let mut name: String = start.chars().chain(server.chars()).take(share).collect();
    name.push_str(SEPARATOR);
    let left = room - name.len();
    name.extend(readable.chars().take(left));
    name.push('_');
    push_letters(&mut name, hash([server, tool, &attempt.to_string()]));
    FunctionName::parse(&name).expect("it is made of the alphabet, starts with a letter and fits")
}

/// What stands for a character that a name cannot have.
fn spelled(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
        c
    } else {
        '_'
    }
}

/// FNV-1a, 64 bits, of the parts with a separator between them. Written down here because names must be
/// the same in every process and every release; it need not resist attacks, because [`assign`] keeps
/// names apart whatever their hashes are.
fn hash<const N: usize>(parts: [&str; N]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn push_letters(name: &mut String, mut hash: u64) {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    // The upper half takes part too: the low bits of FNV alone mix badly.
    hash ^= hash >> 40;
    for _ in 0..HASH {
        name.push(char::from(LETTERS[(hash & 31) as usize]));
        hash >>= 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tools: &[(&str, &str)]) -> Vec<String> {
        let tools: Vec<(ServerId, &str)> = tools
            .iter()
            .map(|(server, tool)| (ServerId::parse(server).unwrap(), *tool))
            .collect();
        let assigned = assign(tools.iter().map(|(server, tool)| (server, *tool)));
        assigned
            .into_iter()
            .map(|assigned| assigned.name.to_string())
            .collect()
    }

    #[track_caller]
    fn check(server: &str, tool: &str, expected: &str) {
        assert_eq!(names(&[(server, tool)]), [expected]);
    }

    #[test]
    fn a_name_that_fits_is_joined_and_nothing_else() {
        check("files", "read_file", "files__read_file");
        check("a-b_c", "X-1", "a-b_c__X-1");
        check("s", &"t".repeat(61), &format!("s__{}", "t".repeat(61)));
    }

    #[test]
    fn what_is_outside_the_alphabet_becomes_an_underscore_and_a_hash() {
        check("files", "read.file", "files__read_file_isizc6sa");
        check("files", "read/file", "files__read_file_nqauv6bz");
        check("files", "読む", "files_____y7zwqdkz");
    }

    #[test]
    fn a_long_name_is_cut_to_64_with_both_halves_in_it() {
        for name in names(&[(&"s".repeat(64), &"t".repeat(200)), ("s", &"t".repeat(62))]) {
            assert_eq!(name.len(), 64, "{name}");
            assert!(name.contains("s__tttttttt"), "{name}");
        }
    }

    #[test]
    fn a_server_that_starts_with_a_digit_still_gives_names_that_start_with_a_letter() {
        assert!(names(&[("9p", "read")])[0].starts_with("s9p__read_"));
        assert!(names(&[("_", "")])[0].starts_with("s____"));
    }

    #[test]
    fn tools_that_read_the_same_are_both_renamed_whatever_their_order() {
        let one = names(&[("a", "b__c"), ("a__b", "c"), ("a", "d")]);
        let other = names(&[("a", "d"), ("a__b", "c"), ("a", "b__c")]);
        assert_eq!(one, [other[2].clone(), other[1].clone(), other[0].clone()]);
        assert_eq!(one[2], "a__d");
        assert_ne!(one[0], one[1]);
        assert!(!one.contains(&"a__b__c".to_owned()));
    }

    #[test]
    fn a_pair_that_comes_twice_still_gets_two_names() {
        let twice = names(&[("a", "b"), ("a", "b")]);
        assert_ne!(twice[0], twice[1]);
    }

    #[test]
    fn a_tool_named_like_a_hashed_one_does_not_take_its_name() {
        let hashed = names(&[("a", "b.c")])[0].clone();
        let tool = hashed.strip_prefix("a__").unwrap();
        let both = names(&[("a", "b.c"), ("a", tool)]);
        assert_eq!(both[1], hashed);
        assert_ne!(both[0], hashed);
    }
}
