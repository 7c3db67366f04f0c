//! Tests of the suite itself: stores with one planted bug each, and the guarantees that the suite must name.
//!
//! A suite that passes good stores proves little; it also has to fail bad ones, and for the right reason.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use tenure_store::conformance::{Options, Report, Suite, Verdict};
use tenure_store::engine::memory::Memory;
use tenure_store::wrap::faulty::{Faults, Faulty};
use tenure_store::{
    Change, Description, Entry, Error, Expect, Key, Object, PAGE_ENTRIES_MAX, Page, Prefix, Store,
    VALUE_BYTES_MAX, Version, Watch, WatchSender,
};
use tokio::task::yield_now;
use tokio::time::Instant;

/// One way to break the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// `If-None-Match` is ignored.
    CreateOverwrites,
    /// `If-Match` is ignored while the object exists.
    ReplaceTakesAnyVersion,
    /// `If-Match` is ignored while the object is missing.
    ReplaceCreates,
    /// `If-Match` never matches, as with an `ETag` that is compared with its quotes.
    ReplaceNeverMatches,
    /// The condition is answered right, and the write is applied all the same.
    ConflictIsApplied,
    /// The version is a hash of the content, as an S3 `ETag` is.
    VersionIsContent,
    /// Versions count from 1 again after a delete.
    VersionsRestart,
    /// The condition is checked, then the object is written, and others come in between.
    CheckThenWrite,
    /// Two racing writes both succeed, and one is lost.
    RaceLosesOne,
    /// Every racing writer is told that it lost, though one has won.
    RaceHidesTheWinner,
    /// A reader sees the first half of a value while the rest is being written.
    HalfWritten,
    /// Reads come from a replica that is one write behind.
    StaleReads,
    /// Conditional reads come from a replica that never catches up.
    AlwaysUnchanged,
    /// A conditional read of a deleted object says that nothing changed.
    DeletedIsUnchanged,
    /// A delete is acknowledged but not done.
    DeleteDoesNothing,
    /// A second delete is an error.
    DeleteTwiceConflicts,
    /// Values end after a mebibyte.
    Truncates,
    /// Values that are too large are accepted.
    AcceptsTooLarge,
    /// Keys that differ in case are one.
    IgnoresCase,
    /// Keys are cut after 255 bytes.
    CutsKeys,
    /// Two neighbours of a listing are exchanged.
    ListUnordered,
    /// The first entry of every further page is skipped.
    ListSkipsBetweenPages,
    /// The first page claims to be the last.
    ListForgetsMore,
    /// Every page claims that there is more.
    ListAlwaysMore,
    /// A prefix matches half a segment.
    ListMatchesHalfSegments,
    /// Listings show other versions than reads.
    ListShowsOtherVersions,
    /// Listings still show what was deleted.
    ListShowsTheDeleted,
    /// Ages come from a clock that is ahead.
    AgeTooLarge,
    /// Ages are promised but missing.
    AgeMissing,
    /// A watch is given but gets no hints.
    HintsNever,
    /// A watch ends early.
    HintsEnd,
    /// Hints name another key.
    HintsElsewhere,
}

use Bug::*;

/// Each bug with exactly the checks that must fail; all others must pass. A bug that shows in several checks is listed
/// with all of them, because each of those guarantees is in fact broken.
const PLANTED: &[(Bug, &[&str])] = &[
    (CreateOverwrites, &["create-on-existing", "create-race"]),
    (
        ReplaceTakesAnyVersion,
        &[
            "replace-stale-version",
            "replace-identical-content",
            "replace-recreated",
            "replace-race",
            "increments",
        ],
    ),
    (ReplaceCreates, &["replace-on-missing"]),
    (
        ReplaceNeverMatches,
        &[
            "replace-current",
            "read-your-write",
            "replace-stale-version",
            "replace-identical-content",
            "replace-race",
            "increments",
            "get-if-changed",
            "values",
            "list",
            "age",
            "hints",
        ],
    ),
    (
        ConflictIsApplied,
        &[
            "create-on-existing",
            "replace-on-missing",
            "replace-stale-version",
            "replace-identical-content",
            "replace-recreated",
            "create-race",
            "replace-race",
            "increments",
        ],
    ),
    (
        VersionIsContent,
        &["replace-identical-content", "replace-recreated"],
    ),
    (VersionsRestart, &["replace-recreated"]),
    (
        CheckThenWrite,
        &["create-race", "replace-race", "increments"],
    ),
    (RaceLosesOne, &["create-race", "replace-race", "increments"]),
    (RaceHidesTheWinner, &["create-race", "replace-race"]),
    (HalfWritten, &["increments"]),
    (
        StaleReads,
        &[
            "read-your-write",
            "create-on-existing",
            "replace-stale-version",
            "replace-identical-content",
            "replace-recreated",
            "create-race",
            "replace-race",
            "increments",
            "get-if-changed",
            "values",
            "keys",
            "list",
            "age",
        ],
    ),
    (AlwaysUnchanged, &["get-if-changed"]),
    (DeletedIsUnchanged, &["get-if-changed"]),
    (
        DeleteDoesNothing,
        &[
            "replace-on-missing",
            "replace-recreated",
            "get-if-changed",
            "delete",
        ],
    ),
    (DeleteTwiceConflicts, &["delete"]),
    (Truncates, &["values"]),
    (AcceptsTooLarge, &["values"]),
    (IgnoresCase, &["keys"]),
    (CutsKeys, &["keys"]),
    (ListUnordered, &["keys", "list"]),
    (ListSkipsBetweenPages, &["list"]),
    (ListForgetsMore, &["list"]),
    (ListAlwaysMore, &["keys", "list"]),
    (ListMatchesHalfSegments, &["list"]),
    (ListShowsOtherVersions, &["list"]),
    (ListShowsTheDeleted, &["delete"]),
    (AgeTooLarge, &["age"]),
    (AgeMissing, &["age"]),
    (HintsNever, &["hints"]),
    (HintsEnd, &["hints"]),
    (HintsElsewhere, &["hints"]),
];

#[tokio::test(start_paused = true)]
async fn every_planted_bug_is_named() {
    let mut wrong = String::new();
    for (bug, expected) in PLANTED {
        let report = check(Arc::new(Planted::new(Some(*bug))), Options::default()).await;
        let failed = names(&report, &Verdict::Failed);
        if failed != *expected || report.count(&Verdict::Unclear) > 0 || report.passed() {
            wrong += &format!("{bug:?}: expected {expected:?}, got {failed:?}\n{report}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Without this the table could pass because the planted store itself is broken.
#[tokio::test(start_paused = true)]
async fn a_store_without_a_bug_passes() {
    let store = Arc::new(Planted::new(None));
    check(store, Options::default()).await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn lost_answers_leave_it_unclear_and_blame_no_guarantee() {
    let faults = Faults {
        answer_lost: 0.5,
        request_lost: 0.5,
        ..Faults::default()
    };
    let faulty = Faulty::new(Arc::new(Memory::new()), faults, 1).expect("the faults are possible");
    let report = check(Arc::new(faulty), Options::quick()).await;
    assert!(!report.passed());
    assert_eq!(
        names(&report, &Verdict::Failed),
        Vec::<&str>::new(),
        "{report}"
    );
}

async fn check(store: Arc<dyn Store>, options: Options) -> Report {
    Suite::new(store, options).run(|_| {}).await
}

fn names(report: &Report, verdict: &Verdict) -> Vec<&'static str> {
    let checks = report.checks.iter();
    checks
        .filter(|check| check.verdict == *verdict)
        .map(|check| check.name)
        .collect()
}

/// A small store in memory, correct except for its bug.
#[derive(Debug)]
struct Planted {
    bug: Option<Bug>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Key, Stored>,
    deleted: BTreeMap<Key, Stored>,
    writes: u64,
    /// How many writers are at each key right now.
    racing: BTreeMap<Key, usize>,
    watches: Vec<WatchSender>,
}

#[derive(Debug, Clone)]
struct Stored {
    value: Bytes,
    version: Version,
    written: Instant,
    before: Option<Box<Stored>>,
}

impl Planted {
    fn new(bug: Option<Bug>) -> Self {
        let state = Mutex::default();
        Self { bug, state }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no test panics while it holds this")
    }

    fn key(&self, key: &Key) -> Key {
        let text = match self.bug {
            Some(IgnoresCase) => key.as_str().to_lowercase(),
            Some(CutsKeys) => key.as_str().chars().take(255).collect(),
            _ => return key.clone(),
        };
        Key::new(text.trim_end_matches('/')).expect("the beginning of a key is a key")
    }

    fn read(&self, key: &Key) -> Option<Object> {
        let state = self.state();
        let mut stored = state.objects.get(&self.key(key))?;
        if self.has(StaleReads) {
            stored = stored.before.as_deref()?;
        }
        let age = stored.written.elapsed();
        Some(Object {
            value: stored.value.clone(),
            version: stored.version.clone(),
            age: match self.bug {
                Some(AgeMissing) => None,
                Some(AgeTooLarge) => Some(age + age / 100),
                _ => Some(age),
            },
            shown_age: Some(age),
        })
    }

    fn holds(&self, key: &Key, expect: &Expect) -> bool {
        match (expect, self.state().objects.get(key)) {
            (Expect::Absent, current) => current.is_none() || self.has(CreateOverwrites),
            (Expect::Version(_), None) => self.has(ReplaceCreates),
            (Expect::Version(expected), Some(stored)) => match self.bug {
                Some(ReplaceTakesAnyVersion) => true,
                Some(ReplaceNeverMatches) => false,
                _ => stored.version == *expected,
            },
        }
    }

    fn write(&self, key: &Key, value: Bytes) -> Version {
        let mut state = self.state();
        state.writes += 1;
        let before = state.objects.get(key).cloned().map(Box::new);
        let version = Version::new(match (self.bug, &before) {
            (Some(VersionIsContent), _) => format!("{:?}", &value[..value.len().min(100)]),
            (Some(VersionsRestart), None) => "1".to_owned(),
            (Some(VersionsRestart), Some(before)) => format!("{}1", before.version.tag()),
            _ => state.writes.to_string(),
        });
        let stored = Stored {
            value,
            version: version.clone(),
            written: Instant::now(),
            before,
        };
        state.objects.insert(key.clone(), stored);
        let named = match self.bug {
            Some(HintsElsewhere) => {
                let text = key.as_str();
                Key::new(format!("{}-", &text[..text.len() - 1])).expect("it is as long")
            }
            _ => key.clone(),
        };
        state.watches.iter().for_each(|watch| watch.changed(&named));
        version
    }

    /// A write while others may be writing too.
    async fn contend(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let conflict = || Err(Error::Conflict { key: key.clone() });
        let held = self.holds(key, expect);
        *self.state().racing.entry(key.clone()).or_default() += 1;
        if self.has(HalfWritten) && held {
            self.write(key, value.slice(..value.len() / 2));
        }
        yield_now().await;
        let racing = self.state().racing.insert(key.clone(), 0).unwrap_or(0);
        match self.bug {
            Some(CheckThenWrite | HalfWritten) if held => Ok(self.write(key, value)),
            Some(RaceLosesOne) if held && !self.holds(key, expect) => Ok(Version::new("lost")),
            Some(RaceHidesTheWinner) if held && racing > 1 => {
                self.write(key, value);
                conflict()
            }
            _ if self.holds(key, expect) => Ok(self.write(key, value)),
            Some(ConflictIsApplied) => {
                self.write(key, value);
                conflict()
            }
            _ => conflict(),
        }
    }
}

#[async_trait]
impl Store for Planted {
    fn describe(&self) -> Description {
        Description {
            location: format!("planted: {:?}", self.bug),
            ..Memory::new().describe()
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        Ok(self.read(key))
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        Ok(match self.read(key) {
            _ if self.has(AlwaysUnchanged) => Change::Unchanged,
            None if self.has(DeletedIsUnchanged) => Change::Unchanged,
            None => Change::Missing,
            Some(object) if object.version == *version => Change::Unchanged,
            Some(object) => Change::Changed(object),
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        if value.len() > VALUE_BYTES_MAX {
            return match self.bug {
                Some(AcceptsTooLarge) => Ok(Version::new("none")),
                _ => Memory::new().put(key, value, expect).await,
            };
        }
        let end = match self.bug {
            Some(Truncates) => value.len().min(1024 * 1024),
            _ => value.len(),
        };
        self.contend(&self.key(key), value.slice(..end), expect)
            .await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let mut state = self.state();
        match state.objects.get(&self.key(key)).cloned() {
            Some(_) if self.has(DeleteDoesNothing) => {}
            Some(stored) => {
                state.objects.remove(&self.key(key));
                state.deleted.insert(key.clone(), stored);
            }
            None if self.has(DeleteTwiceConflicts) => {
                return Err(Error::Conflict { key: key.clone() });
            }
            None => {}
        }
        Ok(())
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let state = self.state();
        let mut visible = state.objects.clone();
        if self.has(ListShowsTheDeleted) {
            visible.extend(state.deleted.clone());
        }
        let start = match self.bug {
            Some(ListMatchesHalfSegments) => prefix.as_str().trim_end_matches('/'),
            _ => prefix.as_str(),
        };
        let skipped = usize::from(self.has(ListSkipsBetweenPages) && after.is_some());
        let mut entries: Vec<Entry> = visible
            .into_iter()
            .filter(|(key, _)| key.as_str().starts_with(start) && Some(key) > after)
            .skip(skipped)
            .map(|(key, stored)| Entry {
                key,
                version: match self.bug {
                    Some(ListShowsOtherVersions) => Version::new("other"),
                    _ => stored.version,
                },
            })
            .collect();
        let more = entries.len() > PAGE_ENTRIES_MAX;
        entries.truncate(PAGE_ENTRIES_MAX);
        if self.has(ListUnordered) && entries.len() > 1 {
            entries.swap(0, 1);
        }
        let more = (more || self.has(ListAlwaysMore)) && !self.has(ListForgetsMore);
        Ok(Page { entries, more })
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        let (sender, watch) = Watch::channel(match self.bug {
            // Matches nothing that is written.
            Some(HintsNever) => Prefix::new("elsewhere").expect("this is a prefix"),
            _ => prefix.clone(),
        });
        if !self.has(HintsEnd) {
            self.state().watches.push(sender);
        }
        Some(watch)
    }
}
