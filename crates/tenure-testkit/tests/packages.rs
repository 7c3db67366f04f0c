//! Checks that the files that release packages are made from exist, and are not symbolic links: some ways of copying
//! a repository turn links into files that contain a path.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_crate_that_is_published_has_the_licences() {
    let mut published = 0;
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if manifest.contains("publish = false") {
            continue;
        }
        published += 1;
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let here = std::fs::read(folder.join(name)).unwrap_or_default();
            let is_same = here == std::fs::read(root().join(name)).unwrap();
            assert!(is_same, "copy {name} to {}", folder.display());
        }
    }
    assert!(published >= 7, "{published}");
}

#[test]
fn the_compiler_for_other_systems_can_be_started() {
    for name in ["zig", "zig-cc", "zig-ar"] {
        let path = root().join("scripts/packaging").join(name);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{name} has mode {mode:o}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("#!"), "{name}: {text}");
    }
}
