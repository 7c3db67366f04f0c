//! How a queue is opened, and how it stands.

use std::time::Duration;

use tenure_core::election::{Leader, PRIORITY_DEFAULT, Term};
use tenure_core::queue::Limits;
use tenure_core::{ElectionName, Wall};

use super::{Config, Error, Progress};

/// How to open a queue. The defaults are right for most.
#[derive(Debug, Clone)]
pub struct Options {
    /// The election whose leader serves the queue: `tenure.queue`, or a name below it, such as `tenure.queue.3`.
    /// Nobody else can stand there. It belongs to one log, whose folder ([`Config::folder`]) has the same name
    /// without `tenure.`: two elections of one log would fence each other off without end.
    pub election: String,
    /// How the log is written and read.
    pub log: Config,
    /// What a request may ask for.
    pub limits: Limits,
    /// The priority as a candidate; `None` never serves, and only knows who does.
    pub priority: Option<u8>,
    /// How many claims may wait for jobs at once. Beyond that callers are turned away.
    pub waiting_claims_max: usize,
    /// About how much memory the claims that wait may take. Beyond that callers are turned away. A claim costs
    /// some 150 bytes and its length for each queue and type that it names; claims of the same names share them.
    pub waiting_claims_bytes_max: usize,
    /// How many commands a follower may fall behind before it is cut off.
    pub follow_max: usize,
    /// How far ahead of the queue's time this host's clock may be when a term begins, and still be believed: longer
    /// than the queue is ever left unused. Default 366 days.
    pub clock_ahead_max: Duration,
    /// How far this host's clock may run ahead of the time that has passed since the host was started, later in the
    /// term, and still be believed. Longer than clocks are ever set by in use; what is due at a time of day may come early
    /// by this much. Default 5 minutes.
    pub clock_step_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            election: ElectionName::QUEUE.to_owned(),
            log: Config::default(),
            limits: Limits::default(),
            priority: Some(PRIORITY_DEFAULT),
            waiting_claims_max: 10_000,
            waiting_claims_bytes_max: 64 * 1024 * 1024,
            follow_max: 1_024,
            clock_ahead_max: Duration::from_secs(366 * 24 * 3600),
            clock_step_max: Duration::from_secs(5 * 60),
        }
    }
}

/// What of a record is not the payload or result in it: names and keys of at most 200 bytes each, escaped.
const RECORD_BYTES_BESIDE: usize = 16 * 1024;

impl Options {
    /// Checks all of it, and says in which election to stand.
    pub(crate) fn check(&self) -> Result<ElectionName, Error> {
        self.log.check()?;
        let election = ElectionName::new(&self.election)
            .ok()
            .filter(|name| name.is_of_queue())
            .ok_or_else(|| {
                let election: String = self.election.chars().take(40).collect();
                Error::invalid(
                    format!("the leader of the election {election:?} cannot serve a queue"),
                    "leave it out, or use tenure.queue or a name below it, such as tenure.queue.3",
                )
            })?;
        if self.election.strip_prefix(ElectionName::RESERVED) != Some(&self.log.folder) {
            return Err(Error::invalid(
                format!(
                    "the queue of the election {election} cannot be stored in the folder {:?}",
                    self.log.folder
                ),
                "give the folder the name of the election without `tenure.`",
            ));
        }
        let largest = self
            .limits
            .payload_bytes_max
            .max(self.limits.result_bytes_max)
            .max(self.limits.error_bytes_max.saturating_mul(6))
            .saturating_add(RECORD_BYTES_BESIDE);
        if largest > self.log.batch_bytes_max {
            return Err(Error::invalid(
                format!("a job of {largest} bytes does not fit into batch_bytes_max"),
                "raise batch_bytes_max, or lower the limits of a job",
            ));
        }
        if self.follow_max == 0 {
            return Err(Error::invalid(
                "follow_max must not be zero",
                "leave out what you do not need to change",
            ));
        }
        Ok(election)
    }
}

impl From<tenure_core::queue::Invalid> for Error {
    fn from(invalid: tenure_core::queue::Invalid) -> Self {
        Error::Invalid {
            what: invalid.to_string(),
            field: Some(invalid.field.into_owned()),
            hint: "nothing was done; change the request".to_owned(),
        }
    }
}

/// How a queue stands in this process.
#[derive(Debug, Clone)]
pub enum Serving {
    /// Another process serves it, or nobody does yet.
    Standby {
        /// Who leads, as this process saw last.
        leader: Option<Leader>,
    },
    /// This process leads, and reads the log.
    Recovering(Progress),
    /// This process serves it.
    Serving {
        /// The term.
        term: Term,
        /// Since when, on this host's wall clock.
        since: Wall,
    },
    /// This process led and could not serve it. It stands back, and tries again later.
    Failed(Error),
    /// It was closed, or the node was shut down.
    Stopped,
}
