//! What can become of a record, and of the log itself.

use std::sync::Arc;

use tenure_core::election::Leader;

/// Why a record was not committed, or the log cannot be used. Cheap to clone: all callers of one batch get
/// the same.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another leader has taken over. This one commits nothing any more and must step down. A record that
    /// was under way may have reached the log before the new leader read it; send it again, with the same
    /// id, to the new leader.
    #[error("another leader has taken over the log of the queue")]
    Fenced,
    /// The answer to a commit was lost, and the log ended before it could be settled. The record is in the
    /// log or not. Send it again, with the same id.
    #[error("the answer to a commit was lost; the commit may or may not have been applied")]
    Unknown {
        /// How it was lost, if the store said so.
        #[source]
        source: Option<Arc<tenure_store::Error>>,
    },
    /// The store failed. The record was not committed. Send it again after a while.
    #[error("the store failed; nothing was committed")]
    Store(#[source] Arc<tenure_store::Error>),
    /// What is stored is not what was written. Nothing was skipped and nothing was changed.
    #[error("{location} is damaged: {what}")]
    Corrupt {
        /// The object, or the file and the place in it.
        location: String,
        /// What is wrong with it.
        what: String,
    },
    /// A newer version of this program wrote the log, and this one does not know how to read it. Nothing is damaged
    /// and nothing was changed. Upgrade this process.
    #[error(
        "{location} was written by a newer version of tenure: {what}; nothing is damaged: upgrade this process"
    )]
    Newer {
        /// The object, or the file and the place in it.
        location: String,
        /// What this version does not know.
        what: String,
    },
    /// Replaying the log gave another state than its leader had. The log is as it was written and nothing was changed,
    /// but this version would answer otherwise than what was promised, so it serves nothing. Run the version that
    /// wrote the log, and report this.
    #[error(
        "replaying the log gave a different state at index {place} than its leader had, according to {location}; nothing was changed"
    )]
    Diverged {
        /// The place after which the states differ.
        place: u64,
        /// The object, or the file, that says what the leader had.
        location: String,
    },
    /// The request makes no sense. Nothing was committed.
    #[error("{what}")]
    Invalid {
        /// Where in the request, like `jobs[3].run_at`, if it is one field.
        field: Option<String>,
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: String,
    },
    /// The request is one record of the log, and that is larger than what is committed at once. Nothing was
    /// committed. Send fewer items at once.
    #[error("a record has {bytes} bytes, but at most {bytes_max} can be committed at once")]
    TooLarge {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        bytes_max: usize,
    },
    /// Too much is waiting to be committed. The record was not taken. Send it again after a while.
    #[error(
        "{records} records of {bytes} bytes are waiting to be committed; there is no room for more"
    )]
    Overloaded {
        /// How many records wait.
        records: usize,
        /// How many bytes they have.
        bytes: usize,
    },
    /// There are as many queues, types or schedules as this broker takes. Nothing was committed. Use names that
    /// are there, drop some, or raise the limit in [`Options::limits`](crate::queue::Options::limits).
    #[error("{what}")]
    Full {
        /// What there is too much of.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// This process does not serve the queue: it does not lead, or has not read the log yet. Nothing was
    /// done. Ask the leader, or wait.
    #[error("the queue is not served here{}", leader_hint(leader.as_ref()))]
    NotServing {
        /// Who leads, as this process saw last; itself, if it is still reading the log.
        leader: Option<Leader>,
    },
    /// The queue has stopped, or is about to. The record was not committed. Send it to the next leader.
    #[error("the queue has stopped; nothing was committed")]
    Stopped,
}

impl Error {
    /// Whether the record is certainly not in the log.
    #[must_use]
    pub fn is_not_applied(&self) -> bool {
        !matches!(self, Error::Unknown { .. } | Error::Fenced)
    }

    pub(crate) fn corrupt(location: &impl std::fmt::Display, what: impl Into<String>) -> Self {
        Error::Corrupt {
            location: location.to_string(),
            what: what.into(),
        }
    }

    pub(crate) fn newer(location: &impl std::fmt::Display, what: impl Into<String>) -> Self {
        Error::Newer {
            location: location.to_string(),
            what: what.into(),
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Invalid {
            field: None,
            what: what.into(),
            hint: hint.into(),
        }
    }
}

fn leader_hint(leader: Option<&Leader>) -> String {
    match leader {
        Some(leader) => format!(", {} leads in term {}", leader.node, leader.term),
        None => ", and nobody leads".to_owned(),
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::Queue(error) => error,
            crate::Error::Store(error) => error.into(),
            crate::Error::ShutDown => Error::Stopped,
            error => Error::invalid(error.to_string(), "nothing was started"),
        }
    }
}

impl From<tenure_store::Error> for Error {
    fn from(error: tenure_store::Error) -> Self {
        match error {
            tenure_store::Error::Corrupt { location, what } => Error::Corrupt { location, what },
            tenure_store::Error::Unknown { .. } => Error::Unknown {
                source: Some(Arc::new(error)),
            },
            error => Error::Store(Arc::new(error)),
        }
    }
}

/// Why a pass over what is stored did not come to its end.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Something is not there: it was cleaned up meanwhile, or it is lost.
    Missing(String),
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Halt::Failed(error)
    }
}

impl Halt {
    /// Whether what is stored is not what was written, or is not there.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Halt::Missing(_) | Halt::Failed(Error::Corrupt { .. }))
    }
}

impl std::fmt::Display for Halt {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Halt::Missing(location) => write!(formatter, "{location} is missing"),
            Halt::Failed(error) => error.fmt(formatter),
        }
    }
}
