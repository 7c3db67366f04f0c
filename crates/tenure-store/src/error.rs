//! Errors, named by what the caller can do next.

use crate::Key;

/// The cause of an error: the engine's own error, without secrets.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a request failed.
///
/// `Display` says what happened, and what happened to the data; [`Error::hint`] what to do next; the engine's own error
/// is in `source()`. None of them ever holds a password or key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object is not in the state that the write expected. Nothing was written. Read it again and decide again. If
    /// an earlier write of your own ended as `Unknown`, look for that one first.
    #[error("{key} is not at the expected version; nothing was written")]
    Conflict {
        /// The object.
        key: Key,
    },

    /// The answer to a write was lost: it may have been applied, or may still be. Read back and look for your own write
    /// in the value. Delete nothing and repeat nothing until you know.
    #[error("the answer to a write of {key} was lost; the write may or may not have been applied")]
    Unknown {
        /// The object.
        key: Key,
        /// How the answer was lost.
        source: Cause,
    },

    /// The engine could not be reached or is too busy. Nothing was written. Try again after a while.
    #[error("{doing} failed because the store is unavailable; nothing was written")]
    Unavailable {
        /// What was tried.
        doing: String,
        /// The engine's own error.
        source: Cause,
    },

    /// The engine refused: missing rights, a missing bucket or database, a full disk. Nothing was written, and retrying
    /// is useless until someone fixes the cause.
    #[error("{doing} was refused; nothing was written")]
    Refused {
        /// What was tried.
        doing: String,
        /// What to do about it.
        hint: String,
        /// The engine's own error.
        source: Cause,
    },

    /// The store is no longer where it was opened: somebody moved, replaced or deleted the folder or the database file
    /// while it was in use. This process would read data that it did not write, and nobody would find what it writes,
    /// so it does neither. Open the store again.
    #[error(
        "{doing} was refused because the store at {location} was replaced or deleted: restart this process to use \
         what is there now"
    )]
    Gone {
        /// What was tried.
        doing: String,
        /// Where the store was.
        location: String,
    },

    /// The request is invalid on every engine: a bad key, URL or value. Nothing was sent.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: String,
    },

    /// What is stored is not what Tenure wrote. Nothing was changed.
    #[error("{location} is damaged: {what}")]
    Corrupt {
        /// The object, file or row.
        location: String,
        /// What is wrong with it.
        what: String,
    },
}

/// What a read-only command reports where there is no store.
#[cfg(any(
    feature = "file",
    feature = "object",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
const NO_STORE: &str = "there is no such store";

impl Error {
    /// Whether the request certainly changed nothing.
    #[must_use]
    pub fn is_not_applied(&self) -> bool {
        !matches!(self, Error::Unknown { .. })
    }

    /// What to do next, for people.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Error::Conflict { .. } => "read the object again, then decide again",
            Error::Unknown { .. } => {
                "read the object back and look for this write before you do anything else"
            }
            Error::Unavailable { .. } => {
                "check that the store is running and reachable, then try again"
            }
            Error::Refused { hint, .. } | Error::Invalid { hint, .. } => hint,
            Error::Gone { .. } => {
                "find out who replaced it and why, then restart this process; restore a store only \
                 while nothing uses it"
            }
            Error::Corrupt { .. } => "restore it from a backup, or move it out of the way manually",
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Invalid {
            what: what.into(),
            hint: hint.into(),
        }
    }

    pub(crate) fn unavailable(doing: impl Into<String>, source: impl Into<Cause>) -> Self {
        Error::Unavailable {
            doing: doing.into(),
            source: source.into(),
        }
    }

    pub(crate) fn refused(
        doing: impl Into<String>,
        hint: impl Into<String>,
        source: impl Into<Cause>,
    ) -> Self {
        Error::Refused {
            doing: doing.into(),
            hint: hint.into(),
            source: source.into(),
        }
    }

    pub(crate) fn unknown(key: &Key, source: impl Into<Cause>) -> Self {
        Error::Unknown {
            key: key.clone(),
            source: source.into(),
        }
    }

    /// There is no store, and the caller is read-only.
    #[cfg(any(
        feature = "file",
        feature = "object",
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql"
    ))]
    pub(crate) fn no_store(doing: impl Into<String>) -> Self {
        Self::refused(
            doing,
            "check the store's URL; the first program that uses a store creates it, such as tenure \
             serve, run or elect",
            NO_STORE,
        )
    }

    /// As `no_store`, where something else was found that may have been meant.
    #[cfg(any(feature = "file", feature = "object"))]
    pub(crate) fn no_store_but(doing: impl Into<String>, found: &str) -> Self {
        Self::refused(doing, format!("check the store's URL: {found}"), NO_STORE)
    }

    pub(crate) fn conflict(key: &Key) -> Self {
        Error::Conflict { key: key.clone() }
    }
}
