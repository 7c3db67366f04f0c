//! Files and folders that only their owner can use.
//!
//! A user who can read a store can read every payload. One who can write to it, or hold its locks, can stop it or forge
//! anything in it. So what is created here is for this user alone, whatever the umask, and what others could have
//! tampered with is refused. What others can only read is accepted, with a warning: it may be that way on purpose.

#[cfg(feature = "file")]
use std::fs::DirBuilder;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
#[cfg(feature = "file")]
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::Error;

/// How many entries of a folder that others can enter are checked, and how deep: namespaces, what is in them, and what
/// is in that.
const LOOKED_AT_MAX: usize = 1_000;
const DEPTH_MAX: usize = 2;

/// Creates a folder for this user alone.
#[cfg(feature = "file")]
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)
}

/// Creates a folder, and those above it that are missing, for this user alone.
#[cfg(feature = "file")]
pub(super) fn create_folders(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Creates a file for this user alone. Fails if something is there already.
pub(super) fn create_file(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Takes away the access that an older version gave to others. Only for what certainly belongs to the store alone.
#[cfg(feature = "file")]
pub(super) fn tighten(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))
}

/// Refuses what others could have tampered with, and warns about what they can read.
pub(super) fn check(doing: &str, path: &Path) -> Result<(), Error> {
    let found = fs::metadata(path).map_err(|error| Error::unavailable(doing, error))?;
    let mut inside = Inside::default();
    match judge(doing, path, &found)? {
        Weakness::Readable if found.is_dir() => inside.look(doing, path, DEPTH_MAX)?,
        Weakness::Readable => inside.is_readable = true,
        _ => {}
    }
    if inside.is_readable {
        tracing::warn!(
            path = %path.display(),
            "other users can read the store: if they should not, run chmod -R go= on it"
        );
    }
    Ok(())
}

/// What others can reach in a folder that they can enter, which is the usual mode. What is created here is closed to
/// them.
#[derive(Default)]
struct Inside {
    is_readable: bool,
    looked_at: usize,
}

impl Inside {
    fn look(&mut self, doing: &str, folder: &Path, depth: usize) -> Result<(), Error> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let Ok(found) = entry.metadata() else {
                continue;
            };
            if is_hidden || self.looked_at == LOOKED_AT_MAX {
                continue;
            }
            self.looked_at += 1;
            let weakness = judge(doing, &entry.path(), &found)?;
            self.is_readable |= weakness == Weakness::Readable;
            let is_open = found.is_dir() && found.mode() & 0o011 != 0;
            if is_open && depth > 0 {
                self.look(doing, &entry.path(), depth - 1)?;
            }
        }
        Ok(())
    }
}

/// How others can access it, if that is tolerable.
fn judge(doing: &str, path: &Path, found: &Metadata) -> Result<Weakness, Error> {
    let user = rustix::process::geteuid().as_raw();
    let weakness = weakness(found, user);
    match weakness {
        Weakness::None | Weakness::Readable => Ok(weakness),
        Weakness::Owned(owner) => Err(Error::refused(
            doing,
            "run this as the user who owns it; or check what is in it, then give it to this user with \
             chown -R",
            format!(
                "{} belongs to user {owner}, who could change it at any time; this process runs as user {user}",
                path.display()
            ),
        )),
        Weakness::Writable => Err(Error::refused(
            doing,
            "check what is in it, then run chmod -R go= on it; or name something that does not exist yet: it will \
             be created for this user only",
            format!("other users can write to {}", path.display()),
        )),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Weakness {
    None,
    /// Others can read it.
    Readable,
    /// Others can write it.
    Writable,
    /// It belongs to this user, who is not the current one.
    Owned(u32),
}

fn weakness(found: &Metadata, user: u32) -> Weakness {
    of(found.uid(), found.mode(), user)
}

/// If root owns it, root has allowed the others to write to it: a container's volume belongs to root and is writable
/// for the container's group.
fn of(owner: u32, mode: u32, user: u32) -> Weakness {
    let is_roots = owner == 0 && user != 0;
    let writers = if is_roots { 0o002 } else { 0o022 };
    match mode {
        _ if owner != user && !is_roots => Weakness::Owned(owner),
        mode if mode & writers != 0 => Weakness::Writable,
        mode if mode & 0o055 != 0 => Weakness::Readable,
        _ => Weakness::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_write() {
        assert_eq!(of(7, 0o40700, 7), Weakness::None);
        assert_eq!(of(7, 0o40755, 7), Weakness::Readable);
        assert_eq!(of(7, 0o40775, 7), Weakness::Writable);
        assert_eq!(of(7, 0o41777, 7), Weakness::Writable, "a sticky one too");
        assert_eq!(of(8, 0o40700, 7), Weakness::Owned(8));
        assert_eq!(of(8, 0o40700, 0), Weakness::Owned(8), "root too");
    }

    #[test]
    fn a_volume_of_root_may_be_given_to_a_group() {
        assert_eq!(of(0, 0o42770, 7), Weakness::Readable);
        assert_eq!(of(0, 0o42775, 7), Weakness::Readable);
        assert_eq!(of(0, 0o40777, 7), Weakness::Writable);
        assert_eq!(of(0, 0o40775, 0), Weakness::Writable, "root's own is not");
    }
}
