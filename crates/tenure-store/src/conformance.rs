//! The contract of [`Store`] as a program: run it on your own engine, or on storage that you do not know yet.
//!
//! Sequential probes alone prove little: some S3-compatible servers refuse a stale `If-Match` from a single client and
//! still let several of 16 racing writers win. So the suite races, counts exactly, and names the guarantee that fails.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure_store::Error> {
//! use tenure_store::conformance::{Options, Suite};
//!
//! let store = tenure_store::open("memory:").await?;
//! let report = Suite::new(store, Options::quick()).run(|_check| {}).await;
//! report.assert_passed();
//! # Ok(())
//! # }
//! ```
//!
//! All objects are created under one fresh prefix, `tenure-check/<uuid>/`, and removed at the end, even after a
//! failure. A full run makes about 3,500 requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::{Description, Error, KEY_BYTES_MAX, Key, Prefix, Store, list_all};

mod extras;
mod limits;
mod race;
mod sequence;

/// How thoroughly to look.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many writers race for one object. Fewer than 2 prove nothing; servers that serialise
    /// contended keys slowly may want 4.
    pub writers: usize,
    /// How many times they race. A server that loses one race in a hundred needs many.
    pub rounds: usize,
    /// How many keys to list: beyond 1,000 every engine has to page.
    pub listed: usize,
    /// The longest key to try. Less than [`KEY_BYTES_MAX`] only for a store that puts keys under a
    /// prefix.
    pub key_bytes_max: usize,
    /// How long one check may take before it counts as unclear: a store that hangs must not hang the
    /// suite.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writers: 16,
            rounds: 20,
            listed: 1100,
            key_bytes_max: KEY_BYTES_MAX,
            patience: Duration::from_secs(300),
        }
    }
}

impl Options {
    /// Fewer requests, for a metered store: about 500. Too few to test paging.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            writers: 8,
            rounds: 5,
            listed: 40,
            ..Self::default()
        }
    }
}

/// One run of the suite on one store.
#[derive(Debug)]
pub struct Suite {
    store: Arc<dyn Store>,
    options: Options,
    scratch: Prefix,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The guarantee held.
    Passed,
    /// The guarantee is broken. Do not use this store.
    Failed,
    /// The engine does not offer this, and need not.
    NotOffered,
    /// Could not be determined: the store returned errors, or took too long.
    Unclear,
}

/// One guarantee and the result of its check.
#[derive(Debug, Clone)]
pub struct Check {
    /// A short, stable name, for programs.
    pub name: &'static str,
    /// The guarantee.
    pub guarantee: &'static str,
    /// Whether it held.
    pub verdict: Verdict,
    /// What was seen, in a sentence.
    pub seen: String,
    /// What goes wrong if it does not hold.
    pub otherwise: &'static str,
    /// How long the check took.
    pub took: Duration,
}

/// All checks of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The store that was checked.
    pub store: Description,
    /// In the order of the run.
    pub checks: Vec<Check>,
    /// The objects that could not be removed afterwards, if any.
    pub left_behind: Option<String>,
}

/// Why a check did not pass.
enum Finding {
    Broken(String),
    NotOffered(&'static str),
    Error(Error),
}

type Outcome = Result<String, Finding>;
type BoxedCheck<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

struct Spec {
    name: &'static str,
    guarantee: &'static str,
    otherwise: &'static str,
    run: for<'a> fn(&'a Suite) -> BoxedCheck<'a>,
}

/// Every check, in the order of the report.
const CHECKS: &[Spec] = &[
    Spec {
        name: "replace-current",
        guarantee: "replacing the current version works (If-Match matches)",
        otherwise: "nothing could ever be changed, and other checks would fail too",
        run: |suite| Box::pin(sequence::replace_current(suite)),
    },
    Spec {
        name: "read-your-write",
        guarantee: "a read after a finished write sees it",
        otherwise: "a new leader could build on state that is out of date",
        run: |suite| Box::pin(sequence::read_your_write(suite)),
    },
    Spec {
        name: "create-on-existing",
        guarantee: "creating what exists is a conflict and changes nothing",
        otherwise: "a log entry or a lease could be overwritten",
        run: |suite| Box::pin(sequence::create_on_existing(suite)),
    },
    Spec {
        name: "replace-on-missing",
        guarantee: "replacing what does not exist is a conflict and creates nothing",
        otherwise: "a deleted lease could come back with an old term",
        run: |suite| Box::pin(sequence::replace_on_missing(suite)),
    },
    Spec {
        name: "replace-stale-version",
        guarantee: "replacing with an old version is a conflict and changes nothing (If-Match)",
        otherwise: "a leader that was replaced could overwrite its successor: two leaders",
        run: |suite| Box::pin(sequence::replace_stale_version(suite)),
    },
    Spec {
        name: "replace-identical-content",
        guarantee: "an old version stays old, even when a later write has the same bytes",
        otherwise: "a writer that slept through two changes would not notice them",
        run: |suite| Box::pin(sequence::replace_identical_content(suite)),
    },
    Spec {
        name: "replace-recreated",
        guarantee: "an old version stays old after the object was deleted and created again",
        otherwise: "a writer that slept through a delete would not notice it",
        run: |suite| Box::pin(sequence::replace_recreated(suite)),
    },
    Spec {
        name: "create-race",
        guarantee: "of many racing creators exactly one wins",
        otherwise: "two brokers could both own one log index: jobs would be lost",
        run: |suite| Box::pin(race::create_race(suite)),
    },
    Spec {
        name: "replace-race",
        guarantee: "of many racing writers that expect one version exactly one wins",
        otherwise: "two candidates could both win an election: two leaders",
        run: |suite| Box::pin(race::replace_race(suite)),
    },
    Spec {
        name: "increments",
        guarantee: "concurrent read-modify-write loses no update and applies none twice",
        otherwise: "acknowledged writes would vanish",
        run: |suite| Box::pin(race::increments(suite)),
    },
    Spec {
        name: "get-if-changed",
        guarantee: "a conditional read tells unchanged, changed and missing apart",
        otherwise: "a change of leader would go unnoticed",
        run: |suite| Box::pin(sequence::get_if_changed(suite)),
    },
    Spec {
        name: "delete",
        guarantee: "a deleted object is gone, and deleting it again is fine",
        otherwise: "clean-up would fail or come undone",
        run: |suite| Box::pin(sequence::delete(suite)),
    },
    Spec {
        name: "values",
        guarantee: "values of 0 bytes, 1 byte and 8 MiB come back as written, larger ones are refused",
        otherwise: "snapshots of a large queue could not be stored",
        run: |suite| Box::pin(limits::values(suite)),
    },
    Spec {
        name: "keys",
        guarantee: "keys of full length and with every allowed character stay distinct",
        otherwise: "two names could share one lease",
        run: |suite| Box::pin(limits::keys(suite)),
    },
    Spec {
        name: "list",
        guarantee: "listings are complete, in key order, paged, and show current versions",
        otherwise: "recovery could miss a log entry or a node",
        run: |suite| Box::pin(limits::list(suite)),
    },
    Spec {
        name: "age",
        guarantee: "the age of an object is never more than the time since it was written",
        otherwise: "a healthy leader could be mistaken for dead",
        run: |suite| Box::pin(extras::age(suite)),
    },
    Spec {
        name: "hints",
        guarantee: "a watcher is notified of a change within a second",
        otherwise: "a handover would wait for the next poll",
        run: |suite| Box::pin(extras::hints(suite)),
    },
];

/// The names of all checks, in the order of a run: to show progress.
pub fn names() -> impl ExactSizeIterator<Item = &'static str> {
    CHECKS.iter().map(|spec| spec.name)
}

impl Suite {
    /// Prepares a run; nothing is sent yet.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let scratch = Prefix::new(format!("tenure-check/{}", uuid::Uuid::new_v4()))
            .expect("a uuid is made of allowed characters");
        Self {
            store,
            options,
            scratch,
        }
    }

    /// Where the objects of this run are.
    #[must_use]
    pub fn prefix(&self) -> &Prefix {
        &self.scratch
    }

    /// Runs every check, calls `on_check` after each, and cleans up.
    pub async fn run(&self, mut on_check: impl FnMut(&Check)) -> Report {
        let mut checks = Vec::new();
        for spec in CHECKS {
            let started = Instant::now();
            let patience = self.options.patience;
            let (verdict, seen) = match timeout(patience, (spec.run)(self)).await {
                Ok(Ok(seen)) => (Verdict::Passed, seen),
                Ok(Err(Finding::Broken(seen))) => (Verdict::Failed, seen),
                Ok(Err(Finding::NotOffered(why))) => (Verdict::NotOffered, why.to_owned()),
                Ok(Err(Finding::Error(error))) => (Verdict::Unclear, describe(&error)),
                Err(_) => (
                    Verdict::Unclear,
                    format!("not finished within {patience:?}"),
                ),
            };
            let check = Check {
                name: spec.name,
                guarantee: spec.guarantee,
                verdict,
                seen,
                otherwise: spec.otherwise,
                took: started.elapsed(),
            };
            on_check(&check);
            checks.push(check);
        }
        let left_behind = match timeout(self.options.patience, self.clean_up()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(describe(&error)),
            Err(_) => Some(format!("not finished within {:?}", self.options.patience)),
        };
        let left_behind =
            left_behind.map(|why| format!("{} could not be removed: {why}", self.scratch));
        Report {
            store: self.store.describe(),
            checks,
            left_behind,
        }
    }

    /// Removes every object of this run. `run` does this at the end; call it after a run that was cancelled.
    pub async fn clean_up(&self) -> Result<(), Error> {
        let entries = list_all(&*self.store, &self.scratch).await?;
        self.for_each_key(
            entries.into_iter().map(|entry| entry.key),
            |store, key| async move { store.delete(&key).await },
        )
        .await
    }

    /// Runs `work` on many keys, 16 at a time.
    async fn for_each_key<F, R>(
        &self,
        keys: impl Iterator<Item = Key>,
        work: F,
    ) -> Result<(), Error>
    where
        F: Fn(Arc<dyn Store>, Key) -> R,
        R: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        for key in keys {
            if tasks.len() >= 16 {
                joined(tasks.join_next().await)?;
            }
            tasks.spawn(work(self.store.clone(), key));
        }
        while !tasks.is_empty() {
            joined(tasks.join_next().await)?;
        }
        Ok(())
    }

    /// A fresh folder for one check.
    fn folder(&self, check: &str) -> Prefix {
        self.scratch
            .join(check)
            .expect("names of checks are made of allowed characters")
    }
}

impl Report {
    /// Whether every guarantee held: no check failed, and none was unclear.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.count(&Verdict::Failed) == 0 && self.count(&Verdict::Unclear) == 0
    }

    /// How many checks ended with this verdict.
    #[must_use]
    pub fn count(&self, verdict: &Verdict) -> usize {
        self.checks
            .iter()
            .filter(|check| check.verdict == *verdict)
            .count()
    }

    /// For tests: panics with the whole report unless everything passed and was cleaned up.
    ///
    /// # Panics
    /// If a check failed or was unclear, or objects were left behind.
    pub fn assert_passed(&self) {
        assert!(self.passed() && self.left_behind.is_none(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} at {}",
            self.store.engine, self.store.location
        )?;
        for check in &self.checks {
            writeln!(
                formatter,
                "{:?} {}: {} ({})",
                check.verdict, check.name, check.guarantee, check.seen
            )?;
        }
        self.left_behind
            .iter()
            .try_for_each(|left| writeln!(formatter, "{left}"))
    }
}

impl From<Error> for Finding {
    /// An error that the check did not expect. Storage that is down, busy or inaccessible proves nothing; rejecting a
    /// request that the contract allows does.
    fn from(error: Error) -> Self {
        match error {
            Error::Conflict { .. } | Error::Invalid { .. } | Error::Corrupt { .. } => {
                Finding::Broken(format!(
                    "a request that must work gave: {}",
                    describe(&error)
                ))
            }
            Error::Unknown { .. }
            | Error::Unavailable { .. }
            | Error::Refused { .. }
            | Error::Gone { .. } => Finding::Error(error),
        }
    }
}

/// Fails a check, with what was seen, unless the condition holds.
fn ensure(condition: bool, seen: impl FnOnce() -> String) -> Result<(), Finding> {
    if condition {
        Ok(())
    } else {
        Err(Finding::Broken(seen()))
    }
}

/// An error with its causes, in one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The result of a task that is never cancelled. Its panic is passed on.
fn joined<T>(result: Option<Result<T, tokio::task::JoinError>>) -> T {
    match result.expect("only called while tasks are left") {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
