//! Checks that the code uses the words of the glossary in ARCHITECTURE.md, that no idea has two names, and that every
//! public name has one path, which users find in `tenure`.

#![allow(clippy::unwrap_used, reason = "also what tests share is test code")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PRODUCT: [&str; 7] = [
    "tenure",
    "tenure-api",
    "tenure-cli",
    "tenure-client",
    "tenure-core",
    "tenure-server",
    "tenure-store",
];

/// Words that must not occur in the product's names, and what to use instead.
const NOT_OURS: [(&str, &str); 9] = [
    ("epoch", "term"),
    ("lockfile", "lease"),
    ("mastership", "leadership"),
    ("manager", "what it does"),
    ("helper", "what it does"),
    ("util", "what it does"),
    ("utils", "what it does"),
    ("upkeep", "due, or clean-up"),
    ("maintenance", "due, or clean-up"),
];

/// Names of types that had several meanings, or none that a reader could guess.
const NOT_TYPES: [&str; 12] = [
    "Bells",
    "Fed",
    "Judge",
    "Nap",
    "Namespaced",
    "Numbers",
    "Outlook",
    "Passage",
    "Place",
    "Revoked",
    "Told",
    "Way",
];

#[test]
fn every_word_of_the_glossary_is_one_of_the_code() {
    let said: BTreeSet<String> = product()
        .values()
        .flat_map(|text| code(text).flat_map(identifiers).flat_map(parts))
        .collect();
    let words = glossary();
    assert!(words.len() > 30, "{words:?}");
    for word in words {
        assert!(said.contains(&word), "{word} is not a word of the code");
    }
}

#[test]
fn names_have_no_synonyms() {
    for (path, text) in product() {
        for name in code(&text).filter_map(declared) {
            for (word, instead) in NOT_OURS {
                let is_said = parts(name).any(|part| part == word);
                assert!(!is_said, "{name} in {}: say {instead}", path.display());
            }
            assert!(!NOT_TYPES.contains(&name), "{name} in {}", path.display());
        }
    }
}

#[test]
fn every_name_has_one_path() {
    for (path, text) in product() {
        for module in code(&text).filter_map(|line| line.strip_prefix("pub mod ")) {
            let exported = format!("pub use {}::", module.trim_end_matches([';', '{', ' ']));
            let is_twice = code(&text).any(|line| line.starts_with(&exported));
            assert!(!is_twice, "{exported} in {}: it is public", path.display());
        }
    }
}

#[test]
fn tenure_has_every_type_of_the_core_that_its_signatures_use() {
    let sources = files_of("tenure");
    let exported: BTreeSet<&str> = sources
        .values()
        .flat_map(|text| statements(text, "pub use "))
        .flat_map(identifiers)
        .collect();
    for (path, text) in &sources {
        let imported: BTreeSet<&str> = statements(text, "use tenure_core::")
            .into_iter()
            // The whole module is re-exported, as `tenure::session`.
            .filter(|import| !import.starts_with("use tenure_core::session::"))
            .flat_map(identifiers)
            .filter(|name| name.starts_with(char::is_uppercase))
            .collect();
        let functions = ["pub fn ", "pub async fn ", "pub const fn "];
        let signatures = functions.iter().flat_map(|start| statements(text, start));
        let fields = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub "))
            .filter(|line| line.ends_with(',') && line.contains(": "));
        for name in signatures.chain(fields).flat_map(identifiers) {
            let is_found = !imported.contains(name) || exported.contains(name);
            assert!(is_found, "{name}, used by {}", path.display());
        }
    }
}

/// The first column of the glossary, as a name would spell it.
fn glossary() -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, words) = text.split_once("\n## Words\n").unwrap();
    let (words, _) = words.split_once("\n## ").unwrap();
    let rows = words.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| row.split(" |").next())
        .filter(|word| *word != "word" && !word.starts_with('-'))
        .map(|word| word.replace('-', ""))
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn product() -> BTreeMap<PathBuf, String> {
    PRODUCT.into_iter().flat_map(files_of).collect()
}

/// Every file of a crate's source, without its tests.
fn files_of(name: &str) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root().join("crates").join(name).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
                let text = fs::read_to_string(&path).unwrap();
                files.insert(path, text);
            }
        }
    }
    assert!(!files.is_empty(), "{name}");
    files
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.starts_with("//"))
}

/// The statements that begin a line with `start`, up to their end or body.
fn statements<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let starts = text.match_indices(start).map(|(at, _)| at);
    starts
        .filter(|at| text[..*at].ends_with('\n') || text[..*at].ends_with("    "))
        .map(|at| {
            let rest = &text[at..];
            let end = if start.contains("use ") {
                rest.find(';')
            } else {
                rest.find([';', '{'])
            };
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect()
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split(move |character| !is_part(character))
        .filter(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()))
}

/// What a line declares.
fn declared(line: &str) -> Option<&str> {
    const KINDS: [&str; 8] = [
        "const", "enum", "fn", "mod", "static", "struct", "trait", "type",
    ];
    let mut names = identifiers(line).skip_while(|name| !KINDS.contains(name));
    let is_declaration = identifiers(line)
        .take_while(|name| !KINDS.contains(name))
        .all(|name| ["pub", "crate", "super", "async", "in", "const"].contains(&name));
    names.next().filter(|_| is_declaration)?;
    names.next()
}

/// `LeaseState` and `lease_state` are `lease` and `state`.
fn parts(name: &str) -> impl Iterator<Item = String> {
    let mut parts = vec![String::new()];
    for character in name.chars() {
        if character == '_' || character.is_uppercase() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| character != '_') {
            last.push(character.to_ascii_lowercase());
        }
    }
    parts.into_iter().filter(|part| !part.is_empty())
}
