//! Checks the documentation: the site has every page, and every link has a target.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Pages generated from the binary and from rustdoc when the site is built.
const MADE: [&str; 4] = [
    "docs/reference/cli.md",
    "docs/reference/http.md",
    "docs/reference/rust.md",
    "docs/reference/rust-client.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The pages below a folder.
fn pages(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && depth > 0 {
            pages(&path, depth - 1, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// All pages for people: the files at the root, the guides and the client's own page.
fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    pages(&root(), 0, &mut found);
    pages(&root().join("docs"), 5, &mut found);
    found.push(root().join("clients/python/README.md"));
    assert!(found.len() > 15, "{found:?}");
    found
}

/// The text without code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    let lines: Vec<&str> = lines.collect();
    lines.join("\n")
}

/// The targets of the links in a text.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1);
    let ends = targets.filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let name = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |one: &char| one.is_alphanumeric() || matches!(one, ' ' | '-' | '_');
        heading
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(name).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in all() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let is_elsewhere = path.contains(':');
            let is_made = MADE.iter().any(|made| made.ends_with(path)) && !path.is_empty();
            if is_elsewhere || is_made {
                continue;
            }
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let is_there = match anchor {
                "" => target.exists(),
                anchor => std::fs::read_to_string(&target)
                    .is_ok_and(|text| anchors(&text).contains(anchor)),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_site_has_every_page() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = links(&summary)
        .iter()
        .map(|link| docs.join(link))
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let mut expected: BTreeSet<PathBuf> = all().into_iter().collect();
    expected.remove(&docs.join("SUMMARY.md"));
    assert_eq!(listed, expected);
}
