//! Listing folders in the byte order of keys.
//!
//! A folder `n` stands for keys that start with `n/`, and `/` sorts between `.` and `0`: `a-b`,
//! `a/b` and `a0` come in this order. So folders are sorted by their names with the slash.
//!
//! A page costs one look at every name in the folders that it touches, memory for the names after
//! its start, and one open file per entry for its version. Folders that lie wholly before the start
//! are not opened. A folder of 100,000 objects takes 100 passes over its names, some 30 ms each.
//! Keeping cursors for readers that may never come back would cost more than it saves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::fault;
use super::names::Names;
use super::object::ObjectFile;
use crate::{Entry, Error, Key, PAGE_ENTRIES_MAX, Page, Prefix};

/// How often to look at a folder that keeps changing.
const SCANS_MAX: usize = 3;

/// Changes closer together than this may carry the same time.
const TICK: Duration = Duration::from_millis(20);

/// The objects under `prefix` after the key `after`.
pub(super) fn page(root: &Path, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
    let mut walk = Walk {
        root,
        after: after.map_or("", Key::as_str),
        names: Names::new(),
        entries: Vec::new(),
    };
    walk.visit(prefix.as_str())
        .map_err(|error| fault::not_applied(&format!("listing {prefix}*"), error))?;
    let more = walk.entries.len() > PAGE_ENTRIES_MAX;
    walk.entries.truncate(PAGE_ENTRIES_MAX);
    Ok(Page {
        entries: walk.entries,
        more,
    })
}

struct Walk<'a> {
    root: &'a Path,
    after: &'a str,
    names: Names,
    entries: Vec<Entry>,
}

impl Walk<'_> {
    /// Appends what comes after the key in one folder, until there is one more than a page. It
    /// recurses as deep as the folders go, which the length of a key bounds.
    fn visit(&mut self, folder: &str) -> io::Result<()> {
        let mut paths = self.paths(folder)?;
        let mut last = String::new();
        while let Some(Reverse(path)) = paths.pop() {
            if self.entries.len() > PAGE_ENTRIES_MAX {
                break;
            }
            // Two scans found it.
            if path == last {
                continue;
            }
            if path.ends_with('/') {
                // This also bounds the depth: no prefix is longer than a key may be.
                if Prefix::new(&path).is_ok() {
                    self.visit(&path)?;
                }
            } else if let Ok(key) = Key::new(&path) {
                self.entries.extend(self.entry(key)?);
            }
            last = path;
        }
        Ok(())
    }

    fn entry(&self, key: Key) -> io::Result<Option<Entry>> {
        let version = match ObjectFile::open(&self.root.join(key.as_str())) {
            Ok(Some(file)) => file.version(),
            // It has disappeared since.
            Ok(None) => return Ok(None),
            Err(error) => Err(error),
        };
        match version {
            Ok(version) => Ok(Some(Entry { key, version })),
            // Larger than any object, or cut short while it was read: not one of ours.
            Err(error)
                if [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof]
                    .contains(&error.kind()) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The names in a folder that may lead past `after`, the smallest on top, folders with their
    /// slash. A heap, because a page takes a few names of many and need not sort the rest.
    ///
    /// An object that is renewed all the time must not vanish from listings, but a single scan can
    /// miss it: see [`Names`]. On btrfs that happens even in a small folder, because the end of a
    /// scan is fixed when the folder is opened, and the name of a replaced file moves past it. So a
    /// folder that has changed is scanned again, and the names are merged.
    fn paths(&mut self, folder: &str) -> io::Result<BinaryHeap<Reverse<String>>> {
        let mut paths = Vec::new();
        for _ in 0..SCANS_MAX {
            match self.scan(folder, &mut paths) {
                Ok(Scan::Exact) => break,
                Ok(Scan::Disturbed) => {}
                // The folder has disappeared, or never was one.
                Err(error) if is_missing(&error) => break,
                // Not ours: many file systems have this folder at their top, and only root may read
                // it.
                Err(error)
                    if folder == "lost+found/"
                        && error.kind() == io::ErrorKind::PermissionDenied =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(paths.into())
    }

    fn scan(&mut self, folder: &str, paths: &mut Vec<Reverse<String>>) -> io::Result<Scan> {
        let place = self.root.join(folder);
        let before = changed(&place)?;
        let mut path = folder.to_owned();
        self.names.read(&place, |name| {
            path.truncate(folder.len());
            path.push_str(name);
            // A folder that sorts before `after` may still hold it.
            if path.as_str() > self.after || (path.ends_with('/') && self.after.starts_with(&path))
            {
                paths.push(Reverse(path.clone()));
            }
        })?;
        if is_settled(before) && changed(&place)? == before {
            Ok(Scan::Exact)
        } else {
            Ok(Scan::Disturbed)
        }
    }
}

enum Scan {
    /// Nothing changed during the scan.
    Exact,
    /// Something changed, or may have.
    Disturbed,
}

fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

fn changed(folder: &Path) -> io::Result<Duration> {
    let metadata = fs::metadata(folder)?;
    let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
    let nanoseconds = u32::try_from(metadata.ctime_nsec()).unwrap_or(0);
    Ok(Duration::new(seconds, nanoseconds))
}

/// Whether a change from now on would get a different time.
fn is_settled(changed: Duration) -> bool {
    SystemTime::now()
        .duration_since(UNIX_EPOCH + changed)
        .is_ok_and(|since| since > TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_in_the_order_of_keys_is_continued_from() {
        let root = tempfile::tempdir().unwrap();
        let mut keys = [
            "a-b", "a.c", "a/b", "a/c/d", "a/c/e", "a0", "ab/c", "b", "c/a", "c/b-c", "c/b/x",
            "c/b0",
        ];
        keys.sort_unstable();
        for key in keys {
            let path = root.path().join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "by hand").unwrap();
        }
        // None of these is an object.
        fs::create_dir(root.path().join("empty")).unwrap();
        fs::create_dir(root.path().join(".tenure")).unwrap();
        fs::write(root.path().join(".tenure/x"), "").unwrap();
        fs::write(root.path().join("a b"), "").unwrap();
        std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();

        let list = |prefix: &str, after: Option<&str>| -> Vec<String> {
            let prefix = Prefix::new(prefix).unwrap();
            let after = after.map(|after| Key::new(after).unwrap());
            let page = page(root.path(), &prefix, after.as_ref()).unwrap();
            page.entries
                .iter()
                .map(|entry| entry.key.to_string())
                .collect()
        };
        for prefix in ["", "a", "a/c", "c", "c/b", "none"] {
            let under = |key: &&&str| prefix.is_empty() || key.starts_with(&format!("{prefix}/"));
            let all: Vec<&str> = keys.iter().filter(under).copied().collect();
            assert_eq!(list(prefix, None), all, "under {prefix:?}");
            // Also behind keys that do not exist, and that lie before or after the prefix.
            for after in keys.iter().chain(&["0", "a", "a/c", "a/c/d0", "c/b", "zz"]) {
                let rest: Vec<&str> = all.iter().filter(|key| *key > after).copied().collect();
                assert_eq!(
                    list(prefix, Some(after)),
                    rest,
                    "{prefix:?} after {after:?}"
                );
            }
        }
    }
}
