//! What can go wrong, named by what the caller can do about it.

use std::time::Duration;

use tenure_api::{Code, JobId, LostReason, Problem};

use crate::transport::NO_TLS;

/// Why a call did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request cannot be carried out as it is. Nothing was done: correct it.
    #[error("{0}")]
    Invalid(Box<Problem>),
    /// The token is missing, wrong, or does not reach this far. Nothing was done.
    #[error("{0}")]
    Denied(Box<Problem>),
    /// There is no such thing, or no longer.
    #[error("{0}")]
    NotFound(Box<Problem>),
    /// Something else stands under this id. Nothing was done: choose another.
    #[error("{0}")]
    Conflict(Box<Problem>),
    /// The job's state does not allow this. Nothing was done: read the job.
    #[error("{0}")]
    State(Box<Problem>),
    /// The claim does not hold. Nothing was done: drop the work, somebody else has it or will.
    #[error("the claim of job {id} is lost: {}", reason_text(*reason))]
    Lost {
        /// The job.
        id: JobId,
        /// Why, as far as the server says.
        reason: Option<LostReason>,
    },
    /// There are as many jobs as the settings allow. Nothing was done: wait until some are done, or raise
    /// the limit.
    #[error("{0}")]
    Full(Box<Problem>),
    /// No server could do it in time. **Nothing was done**: try again later.
    #[error("no broker could do it within {}", seconds(*waited))]
    Unavailable {
        /// How long it was tried.
        waited: Duration,
        /// How the last try ended.
        source: Trouble,
    },
    /// The answer was lost. **It may have been done or not**: sending the same again is safe where the
    /// call says so; otherwise read back.
    #[error("no answer came within {}: the call was sent and may have been done", seconds(*waited))]
    Unknown {
        /// How long it was tried.
        waited: Duration,
        /// How the last try ended.
        source: Trouble,
    },
    /// The certificates of all servers were refused. **Nothing was sent**: trust the authority that signed them, or
    /// correct them. Trying again changes nothing.
    #[error("no broker has a valid certificate")]
    Untrusted(#[source] Trouble),
    /// The server failed, or what answers is not a Tenure server. The outcome of the request is not known.
    #[error("{url} gave an answer that makes no sense: {detail}")]
    Broken {
        /// Who answered.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
}

/// How one try ended.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{url}: {detail}")]
pub struct Trouble {
    /// Which server was asked.
    pub url: String,
    /// What it said, or why it said nothing.
    pub detail: String,
    /// What the server gave as the reason, if it answered.
    pub code: Option<Code>,
}

impl Error {
    /// What to do about it, if the server said so or it is known here.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Untrusted(trouble) if trouble.detail == NO_TLS => {
                Some("a broker without a certificate is at http://")
            }
            Error::Untrusted(_) => Some(
                "if you use your own authority, set SSL_CERT_FILE to the file with its certificate",
            ),
            _ => self.problem()?.hint.as_deref(),
        }
    }

    /// What the server answered.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Invalid(problem)
            | Error::Denied(problem)
            | Error::NotFound(problem)
            | Error::Conflict(problem)
            | Error::State(problem)
            | Error::Full(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the same call may succeed later, without anything being changed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Error::Unavailable { .. } | Error::Unknown { .. } | Error::Full(_)
        )
    }

    /// A mistake that was found before anything was sent.
    pub(crate) fn invalid(field: &str, detail: &(impl ToString + ?Sized)) -> Self {
        Error::Invalid(Box::new(
            Problem::new(Code::InvalidField, detail.to_string()).with_field(field),
        ))
    }

    /// What a server's refusal means.
    pub(crate) fn of(problem: Problem, id: Option<&JobId>) -> Self {
        let problem = Box::new(problem);
        match (problem.code, id) {
            (Code::Unauthorized | Code::Forbidden, _) => Error::Denied(problem),
            (Code::NotFound, _) => Error::NotFound(problem),
            (Code::Conflict, _) => Error::Conflict(problem),
            (Code::State, _) => Error::State(problem),
            (Code::Full, _) => Error::Full(problem),
            (Code::Lost, Some(id)) => Error::Lost {
                id: id.clone(),
                reason: problem.reason,
            },
            _ => Error::Invalid(problem),
        }
    }
}

fn reason_text(reason: Option<LostReason>) -> String {
    reason.map_or_else(
        || "the broker gave no reason".to_owned(),
        |reason| reason.to_string(),
    )
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        // Rounded up: nothing happens within 0 ms.
        0 => format!("{} ms", duration.as_micros().div_ceil(1000).max(1)),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_to_take_no_time() {
        for (microseconds, text) in [
            (0, "1 ms"),
            (300, "1 ms"),
            (1_200, "2 ms"),
            (1_000_000, "1 s"),
        ] {
            assert_eq!(seconds(Duration::from_micros(microseconds)), text);
        }
    }
}
