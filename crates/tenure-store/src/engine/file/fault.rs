//! What the system's errors mean for the caller.

use std::io;

use crate::{Error, Key};

/// An error from before the write took place, or of a read.
pub(super) fn not_applied(doing: &str, error: io::Error) -> Error {
    match refusal(&error) {
        Some(hint) => Error::refused(doing, hint, error),
        None => Error::unavailable(doing, error),
    }
}

/// An error of the very call that makes the write take place. The kernel checks rights, space and names before it
/// changes anything; any other error may have come half way through.
pub(super) fn maybe_applied(key: &Key, doing: &str, error: io::Error) -> Error {
    match refusal(&error) {
        Some(hint) => Error::refused(doing, hint, error),
        None => Error::unknown(key, error),
    }
}

/// What has to be fixed before a retry can help; `None` if nothing has to be.
fn refusal(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    Some(match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => {
            "free some space on the store's file system, or raise the quota"
        }
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            "give the user of this process read and write access to the store's folder and everything in it"
        }
        Kind::NotADirectory | Kind::IsADirectory | Kind::AlreadyExists => {
            "a name cannot be both an object and a folder of other objects: choose another"
        }
        Kind::CrossesDevices => {
            "keep the whole store on one file system, without mounts below its folder"
        }
        Kind::InvalidFilename => "use a shorter path for the store's folder",
        // Creating the folder again would start a new history on an empty mount point.
        Kind::NotFound => {
            "a folder of the store is gone: mount or restore it, then start this process again"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn only_what_is_certainly_not_applied_is_refused() {
        let key = Key::new("a").unwrap();
        for errno in [
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::ROFS,
            Errno::ACCESS,
            Errno::XDEV,
            Errno::NOTDIR,
        ] {
            let refused = maybe_applied(&key, "writing", errno.into());
            assert!(matches!(refused, Error::Refused { .. }), "{errno}");
        }
        for errno in [Errno::IO, Errno::MFILE, Errno::NOMEM] {
            let early = not_applied("writing", errno.into());
            assert!(matches!(early, Error::Unavailable { .. }), "{errno}");
            let late = maybe_applied(&key, "writing", errno.into());
            assert!(matches!(late, Error::Unknown { .. }), "{errno}");
        }
    }
}
