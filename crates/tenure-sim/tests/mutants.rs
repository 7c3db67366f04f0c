//! The code that `scripts/mutants` breaks still exists: a change of the product fails here at once, and shows which
//! entry to adapt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};

/// One copy of the source contains all of these.
const RULES: [&str; 6] = ["elections", "cluster", "queue", "log", "outbox", "callers"];

fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("the workspace is two folders up")
}

fn table(name: &str) -> Table {
    let path = root().join(format!("crates/tenure-sim/mutants/{name}.toml"));
    let text = std::fs::read_to_string(&path).expect("the table can be read");
    text.parse()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn text<'a>(entry: &'a Table, key: &str) -> &'a str {
    let value = entry.get(key).and_then(Value::as_str);
    value.unwrap_or_else(|| panic!("it has no {key}: {entry:?}"))
}

/// The pieces of a mutant.
fn pieces(mutant: &Table) -> Vec<&Table> {
    let also = mutant.get("also").and_then(Value::as_array);
    let also = also.into_iter().flatten().filter_map(Value::as_table);
    std::iter::once(mutant).chain(also).collect()
}

/// Files of the product, with the pieces applied so far.
#[derive(Default)]
struct Copy(BTreeMap<String, String>);

impl Copy {
    /// Replaces a piece, which must occur exactly once.
    fn apply(&mut self, piece: &Table) -> Result<(), String> {
        let file = text(piece, "file");
        if !self.0.contains_key(file) {
            let original = std::fs::read_to_string(root().join(file))
                .map_err(|error| format!("{file}: {error}"))?;
            self.0.insert(file.to_owned(), original);
        }
        let (is, becomes) = (text(piece, "is"), text(piece, "becomes"));
        let now = self.0.get_mut(file).expect("it was just read");
        match now.matches(is).count() {
            1 => *now = now.replace(is, becomes),
            count => return Err(format!("{file} has {count} times, instead of once:\n{is}")),
        }
        Ok(())
    }
}

#[test]
fn every_rule_can_be_broken_in_one_copy() {
    let (mut copy, mut names, mut wrong) = (Copy::default(), BTreeSet::new(), Vec::new());
    for (name, mutant) in RULES.into_iter().flat_map(table) {
        let mutant = mutant.as_table().expect("a mutant is a table");
        let pieces = pieces(mutant);
        assert!(!text(mutant, "breaks").is_empty());
        if !pieces
            .iter()
            .any(|piece| text(piece, "becomes").contains("BROKEN"))
        {
            wrong.push(format!("{name} has no switch"));
        }
        for piece in pieces {
            let done = copy.apply(piece);
            wrong.extend(done.err().map(|error| format!("{name}: {error}")));
        }
        assert!(names.insert(name.clone()), "{name} is there twice");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_single_line_can_be_broken() {
    let mut wrong = Vec::new();
    for (name, mutant) in table("checks") {
        let mutant = mutant.as_table().expect("a mutant is a table");
        assert!(text(mutant, "check").starts_with("cargo "), "{name}");
        let mut copy = Copy::default();
        for piece in pieces(mutant) {
            let done = copy.apply(piece);
            wrong.extend(done.err().map(|error| format!("{name}: {error}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A promise whose rules were renamed or removed would look as if it were still tested, and a rule without a promise
/// has no purpose.
#[test]
fn each_promise_has_its_rules_and_each_rule_its_promise() {
    let names: BTreeSet<String> = RULES
        .into_iter()
        .flat_map(table)
        .map(|(name, _)| name)
        .collect();
    let document = std::fs::read_to_string(root().join("RELIABILITY.md")).expect("it can be read");
    let promises = document
        .split("\n## ")
        .find(|part| part.starts_with("What is promised"));
    let rows = promises.expect("it has promises").lines();
    let rows = rows.filter(|row| row.starts_with("| ")).skip(2);
    let mut named = BTreeSet::new();
    for row in rows {
        let rules = row
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        let is_rule = |word: &&str| word.starts_with(char::is_uppercase);
        let rules_named: Vec<&str> = rules.split('`').skip(1).step_by(2).collect();
        let why_none = rules.contains("none: ");
        assert!(
            why_none || !rules_named.is_empty(),
            "nothing breaks it: {row}"
        );
        for rule in rules_named.into_iter().filter(is_rule) {
            assert!(names.contains(rule), "there is no rule {rule}: {row}");
            named.insert(rule.to_owned());
        }
    }
    let missing: Vec<&String> = names.difference(&named).collect();
    assert!(missing.is_empty(), "they break no promise: {missing:?}");
}
