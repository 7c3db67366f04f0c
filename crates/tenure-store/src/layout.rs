//! Tells from an object's name which store it belongs to, so that a folder or prefix around a store, or inside one, is
//! not taken for a store.
//!
//! Every object is named `NAMESPACE/FOLDER/...`, and there are only a few folders. If a location holds names like
//! `x/NAMESPACE/FOLDER/...`, there is a store one level down. If it holds names like `FOLDER/...`, it is a namespace of
//! the store above it.

use crate::Key;

/// The folders of a namespace. Every further queue has its own: `queue.3`.
const FOLDERS: [&str; 5] = ["cluster", "elections", "fences", "nodes", "queue"];

/// How many levels below a location to look for a store.
const LEVELS_MAX: usize = 3;

/// What an object's name says about the location it was found under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Belongs<'a> {
    /// The object belongs to a store at this location.
    Here,
    /// The object belongs to a store further down.
    Below {
        /// The location of that store.
        place: &'a str,
        /// The location of that store, with the namespace.
        namespace: &'a str,
    },
    /// The object belongs to a store above; this location is one of its namespaces.
    Above,
    /// The object belongs to no store.
    Nowhere,
}

/// Decides which store an object belongs to, by its name below some location. A name that fits more than one counts as
/// an object of a store at this location.
pub(crate) fn belongs(name: &str) -> Belongs<'_> {
    let Ok(key) = Key::new(name) else {
        return Belongs::Nowhere;
    };
    let segments: Vec<&str> = key.segments().collect();
    // Only a name that goes on is a folder.
    let is_folder = |at: usize| at + 1 < segments.len() && is_folder(segments[at]);
    if is_folder(1) {
        return Belongs::Here;
    }
    if is_folder(0) {
        return Belongs::Above;
    }
    let Some(levels) = (1..=LEVELS_MAX).find(|levels| is_folder(levels + 1)) else {
        return Belongs::Nowhere;
    };
    let length = |count: usize| segments[..count].join("/").len();
    Belongs::Below {
        place: &name[..length(levels)],
        namespace: &name[..length(levels + 1)],
    }
}

fn is_folder(name: &str) -> bool {
    FOLDERS.contains(&name) || name.starts_with("queue.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_where_its_store_is() {
        for name in [
            "default/elections/reports",
            "default/nodes/a/0f",
            "default/queue.3/origin",
            "nodes/elections/reports",
        ] {
            assert_eq!(belongs(name), Belongs::Here, "{name}");
        }
        for name in ["elections/reports", "nodes/a/0f", "queue/log/1"] {
            assert_eq!(belongs(name), Belongs::Above, "{name}");
        }
        for (name, place, namespace) in [
            ("x/default/elections/reports", "x", "x/default"),
            ("a/b/default/nodes/c/0f", "a/b", "a/b/default"),
        ] {
            assert_eq!(belongs(name), Belongs::Below { place, namespace });
        }
        for name in [
            "",
            "notes.txt",
            "ns/a",
            "default/nodes",
            "elections",
            "x y/elections/a",
            "a/b/c/d/e/nodes/x",
            "tenure-check/0f/a",
        ] {
            assert_eq!(belongs(name), Belongs::Nowhere, "{name}");
        }
    }
}
