//! Which objects are a store's, by their names: so that a folder or prefix around a store, or inside one, is not taken for another.
//!
//! Everything that is kept has a name of the form `NAMESPACE/FOLDER/...`, and there are few folders. A place that holds a store one
//! level down has `x/NAMESPACE/FOLDER/...`; one that is a namespace of the store above it has `FOLDER/...`.

use crate::Key;

/// The folders of a namespace. A queue beside the first has its own: `queue.3`.
const FOLDERS: [&str; 5] = ["cluster", "elections", "fences", "nodes", "queue"];

/// How many levels below a place a store is looked for.
const LEVELS_MAX: usize = 3;

/// What the name of one object says about the place below which it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Belongs<'a> {
    /// It is an object of a store in this place.
    Here,
    /// It is an object of a store in a place below.
    Below {
        /// Which.
        place: &'a str,
        /// The place with the namespace.
        namespace: &'a str,
    },
    /// It is an object of a store above, of which this place is a namespace.
    Above,
    /// It is something else.
    Nowhere,
}

/// To whom an object belongs that has this name below some place. A name that could be both is one of this place.
pub(crate) fn belongs(name: &str) -> Belongs<'_> {
    let Ok(key) = Key::new(name) else {
        return Belongs::Nowhere;
    };
    let segments: Vec<&str> = key.segments().collect();
    // Something is in the folder.
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
