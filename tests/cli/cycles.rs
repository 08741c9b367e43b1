//! Files beside each other do not import each other in a circle: whoever reads one can first read what it stands on.
//!
//! A file and the folder below it may know each other. Imports are followed through `pub use` to the file that has what
//! is imported. Tests within the sources do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use syn::{
    Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use super::layers::{CRATES, root, sources};

/// The names of the modules from the root of the crate to a file.
type Module = Vec<String>;

/// What a file imports, as written: each a path of names.
#[derive(Default)]
struct Imports {
    paths: Vec<Vec<String>>,
    /// Those that others can import from here.
    passed_on: Vec<Vec<String>>,
}

impl Visit<'_> for Imports {
    fn visit_item(&mut self, item: &Item) {
        let is_test = match item {
            Item::Mod(ItemMod { attrs, .. }) | Item::Use(ItemUse { attrs, .. }) => is_test(attrs),
            _ => false,
        };
        if !is_test {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        let mut paths = Vec::new();
        flatten(&item.tree, &[], &mut paths);
        if !matches!(item.vis, Visibility::Inherited) {
            self.passed_on.extend_from_slice(&paths);
        }
        self.paths.extend(paths);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.paths.push(names.collect());
        visit::visit_path(self, path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        let is_on_condition = it.path().is_ident("cfg");
        is_on_condition
            && it
                .parse_args::<syn::Path>()
                .is_ok_and(|it| it.is_ident("test"))
    })
}

/// The paths of a tree of imports; a name that is changed counts as it was.
fn flatten(tree: &UseTree, before: &[String], out: &mut Vec<Vec<String>>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &with(&path.ident), out),
        UseTree::Group(group) => group.items.iter().for_each(|it| flatten(it, before, out)),
        UseTree::Name(name) if name.ident == "self" => out.push(before.to_vec()),
        UseTree::Name(name) => out.push(with(&name.ident)),
        UseTree::Rename(renamed) => out.push(with(&renamed.ident)),
        UseTree::Glob(_) => out.push(before.to_vec()),
    }
}

/// The path from the root of the crate; `None` if it leaves the crate.
fn from_root(
    module: &[String],
    path: &[String],
    all: &BTreeMap<Module, Imports>,
) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let above = &module[..module.len().checked_sub(1)?];
            let stays = matches!(rest.first().map(String::as_str), Some("super"));
            match stays {
                true => from_root(above, rest, all),
                false => Some([above, rest].concat()),
            }
        }
        // A module below this one.
        name => {
            let below = [module, &[name.to_owned()]].concat();
            all.contains_key(&below).then(|| [&below, rest].concat())
        }
    }
}

/// The file that has what this path from the root names.
fn owner(path: &[String], all: &BTreeMap<Module, Imports>, depth: usize) -> Option<Module> {
    let length = (1..=path.len())
        .rev()
        .find(|length| all.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let passed_on = rest.first().filter(|_| depth < 8).and_then(|name| {
        let passed_on = &all[module].passed_on;
        let found = passed_on.iter().find(|path| path.last() == Some(name))?;
        let found = from_root(module, found, all)?;
        owner(&[&found, &rest[1..]].concat(), all, depth + 1)
    });
    Some(passed_on.unwrap_or_else(|| module.to_vec()))
}

/// The files in circles, each with what it imports of the others.
fn circles(all: &BTreeMap<Module, Imports>) -> Vec<String> {
    let is_beside =
        |one: &Module, other: &Module| !one.starts_with(other) && !other.starts_with(one);
    let mut edges: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, imports) in all {
        let paths = imports.paths.iter();
        let found = paths.filter_map(|path| owner(&from_root(module, path, all)?, all, 0));
        edges.insert(
            module,
            found.filter(|other| is_beside(module, other)).collect(),
        );
    }
    // Whoever imports nothing that is left, or is imported by nothing that is left, is in no circle.
    loop {
        let left: BTreeSet<Module> = edges.keys().map(|module| (*module).clone()).collect();
        let imported: BTreeSet<Module> = edges.values().flatten().cloned().collect();
        edges
            .values_mut()
            .for_each(|others| others.retain(|other| left.contains(other)));
        edges.retain(|module, others| !others.is_empty() && imported.contains(*module));
        if edges.len() == left.len() {
            break;
        }
    }
    let name = |module: &Module| module.join("::");
    let lines = edges.iter().map(|(module, others)| {
        let others: Vec<String> = others.iter().map(name).collect();
        format!("{} imports {}", name(module), others.join(", "))
    });
    lines.collect()
}

fn parse(source: &str) -> Imports {
    let file: File = syn::parse_file(source).unwrap();
    let mut imports = Imports::default();
    imports.visit_file(&file);
    imports
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    for (folder, _) in CRATES {
        let src = root().join(folder).join("src");
        let files = sources(folder).into_iter().filter_map(|(path, _)| {
            let inside = path.strip_prefix(&src).unwrap().with_extension("");
            let names = inside
                .iter()
                .map(|name| name.to_string_lossy().into_owned());
            let module: Module = names.collect();
            let is_test = module.iter().any(|name| name == "tests");
            (!is_test).then(|| (module, parse(&fs::read_to_string(&path).unwrap())))
        });
        let found = circles(&files.collect());
        assert!(found.is_empty(), "in {folder}:\n{}", found.join("\n"));
    }
}

#[test]
fn a_circle_of_imports_is_found() {
    #[track_caller]
    fn check(sources: &[(&str, &str)], expected: &[&str]) {
        let all = sources.iter().map(|(module, source)| {
            let module = module.split("::").map(str::to_owned).collect();
            (module, parse(source))
        });
        assert_eq!(circles(&all.collect()), expected);
    }
    let circle = ["a imports b", "b imports a"];
    check(
        &[
            ("a", "use super::b::X;"),
            ("b", "use crate::{a::{self, Y}, c};"),
        ],
        &circle,
    );
    check(
        &[("a", "fn f() { crate::b::f() }"), ("b", "use super::a;")],
        &circle,
    );
    check(&[("a", "use crate::b::X;"), ("b", "")], &[]);
    // A third file that only leads to the circle is not named.
    check(
        &[
            ("a", "use super::b;"),
            ("b", "use super::a;"),
            ("c", "use super::a;"),
        ],
        &circle,
    );
    let through = [
        ("a", "use crate::m::X;"),
        ("m", "mod n;\npub use self::n::X;"),
        ("m::n", "use crate::a;"),
    ];
    check(&through, &["a imports m::n", "m::n imports a"]);
    check(&[("m", "use self::n::X;"), ("m::n", "use super::Y;")], &[]);
    check(
        &[
            ("a", "use super::b;"),
            ("b", "#[cfg(test)]\nmod tests { use crate::a; }"),
        ],
        &[],
    );
}
