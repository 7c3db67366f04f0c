//! Numbers about a store: how many requests, how they ended, how long they took.
//!
//! Every request ends in exactly one [`Outcome`], dropped ones too, so the counts add up. Counting is a handful of
//! relaxed atomic additions: nothing waits, nothing allocates. A [`Snapshot`] taken while requests end may have one of
//! them in the counts and not yet in the total time; requests that ended before are always complete.
//!
//! There is no global registry: the owner of the [`Meter`] publishes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

mod snapshot;

use snapshot::{BOUNDS, FIRST_BOUND_NANOSECONDS};
pub use snapshot::{BUCKET_BOUNDS, Ended, Operation, Outcome, Snapshot};

use crate::{
    AppendFolder, Change, Description, Error, Expect, IfMissing, Key, Object, Page, Prefix, Store,
    Version, Watch,
};

/// Counts what goes through it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_store::Error> {
/// use tenure_store::wrap::metered::{Metered, Operation, Outcome};
/// use tenure_store::{Expect, Key, Store};
///
/// let store = Metered::new(tenure_store::open("memory:").await?);
/// let key = Key::new("lease")?;
/// store.put(&key, "term 1".into(), &Expect::Absent).await?;
/// store.put(&key, "term 1".into(), &Expect::Absent).await.unwrap_err();
///
/// let snapshot = store.meter().snapshot();
/// assert_eq!(snapshot.count(Operation::Put, Outcome::Done), 1);
/// assert_eq!(snapshot.count(Operation::Put, Outcome::Conflict), 1);
/// assert_eq!(snapshot.written_bytes, 6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Store>,
    meter: Arc<Meter>,
}

/// The counters of one store, or of several that share them.
#[derive(Debug, Default)]
pub struct Meter {
    cells: [[Cell; Outcome::ALL.len()]; Operation::ALL.len()],
    in_flight: [AtomicU64; Operation::ALL.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The requests of one operation that ended in one way. Their number is the sum of the buckets, so that
/// the two can never disagree.
#[derive(Debug, Default)]
struct Cell {
    buckets: [AtomicU64; BOUNDS + 1],
    nanoseconds: AtomicU64,
}

impl Metered {
    /// Uses its own meter.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self::with_meter(inner, Arc::default())
    }

    /// Uses a meter that other stores may share.
    #[must_use]
    pub fn with_meter(inner: Arc<dyn Store>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }

    /// The counters, to keep and to publish.
    #[must_use]
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }
}

impl Meter {
    /// What has been counted so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut ended = Vec::new();
        for operation in Operation::ALL {
            for outcome in Outcome::ALL {
                let cell = &self.cells[operation as usize][outcome as usize];
                let buckets = cell.buckets.each_ref().map(|count| count.load(Relaxed));
                let count = buckets.iter().sum();
                if count > 0 {
                    ended.push(Ended {
                        operation,
                        outcome,
                        count,
                        total_nanoseconds: cell.nanoseconds.load(Relaxed),
                        buckets,
                    });
                }
            }
        }
        let running = |operation| self.in_flight[operation as usize].load(Relaxed);
        Snapshot {
            ended,
            in_flight: Operation::ALL.map(|each| (each, running(each))).to_vec(),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }

    fn start<'a>(&'a self, operation: Operation, subject: &'a str) -> Request<'a> {
        self.in_flight[operation as usize].fetch_add(1, Relaxed);
        Request {
            meter: self,
            operation,
            subject,
            started: Instant::now(),
            outcome: Outcome::Cancelled,
        }
    }
}

/// A request under way. It is counted when it is dropped, so one that is cancelled is counted too.
struct Request<'a> {
    meter: &'a Meter,
    operation: Operation,
    subject: &'a str,
    started: Instant,
    outcome: Outcome,
}

impl Request<'_> {
    fn end<T>(
        mut self,
        result: Result<T, Error>,
        done: impl Fn(&T) -> Outcome,
    ) -> Result<T, Error> {
        self.outcome = match &result {
            Ok(answer) => done(answer),
            Err(Error::Conflict { .. }) => Outcome::Conflict,
            Err(Error::Unknown { .. }) => Outcome::Unknown,
            Err(Error::Unavailable { .. }) => Outcome::Unavailable,
            Err(Error::Refused { .. } | Error::Gone { .. }) => Outcome::Refused,
            Err(Error::Invalid { .. }) => Outcome::Invalid,
            Err(Error::Corrupt { .. }) => Outcome::Corrupt,
        };
        result
    }

    fn read(&self, object: &Object) {
        let bytes = object.value.len() as u64;
        self.meter.read_bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let cell = &self.meter.cells[self.operation as usize][self.outcome as usize];
        cell.nanoseconds.fetch_add(nanoseconds, Relaxed);
        cell.buckets[bucket(nanoseconds)].fetch_add(1, Relaxed);
        self.meter.in_flight[self.operation as usize].fetch_sub(1, Relaxed);
        tracing::debug!(
            operation = ?self.operation,
            subject = self.subject,
            outcome = ?self.outcome,
            took = ?took,
            "store request"
        );
    }
}

/// The bucket of a latency: bounds double, so the highest bit gives its index.
fn bucket(nanoseconds: u64) -> usize {
    let steps = nanoseconds.saturating_sub(1) / FIRST_BOUND_NANOSECONDS;
    ((u64::BITS - steps.leading_zeros()) as usize).min(BOUNDS)
}

#[async_trait]
impl Store for Metered {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let request = self.meter.start(Operation::Get, key.as_str());
        let result = self.inner.get(key).await;
        if let Ok(Some(object)) = &result {
            request.read(object);
        }
        request.end(result, |object| match object {
            Some(_) => Outcome::Done,
            None => Outcome::Missing,
        })
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        let request = self.meter.start(Operation::GetIfChanged, key.as_str());
        let result = self.inner.get_if_changed(key, version).await;
        if let Ok(Change::Changed(object)) = &result {
            request.read(object);
        }
        request.end(result, |change| match change {
            Change::Unchanged => Outcome::Unchanged,
            Change::Changed(_) => Outcome::Done,
            Change::Missing => Outcome::Missing,
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let request = self.meter.start(Operation::Put, key.as_str());
        let bytes = value.len() as u64;
        let result = self.inner.put(key, value, expect).await;
        if result.is_ok() {
            self.meter.written_bytes.fetch_add(bytes, Relaxed);
        }
        request.end(result, |_| Outcome::Done)
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let request = self.meter.start(Operation::Delete, key.as_str());
        let result = self.inner.delete(key).await;
        request.end(result, |()| Outcome::Done)
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let request = self.meter.start(Operation::List, prefix.as_str());
        let result = self.inner.list(prefix, after).await;
        request.end(result, |_| Outcome::Done)
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.inner.watch(prefix)
    }

    /// Passed on: file operations are not requests, and are not counted.
    fn append_folder(&self, prefix: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        self.inner.append_folder(prefix)
    }

    fn is_replaced(&self) -> bool {
        self.inner.is_replaced()
    }

    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        self.inner.pin(prefix, missing);
    }

    fn pause_before_write(&self) -> std::time::Duration {
        self.inner.pause_before_write()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::VALUE_BYTES_MAX;
    use crate::engine::memory::Memory;
    use crate::wrap::faulty::{Fault, Faults, Faulty, Outage};

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn every_latency_has_its_bucket() {
        for (at, bound) in BUCKET_BOUNDS.iter().enumerate() {
            let bound = u64::try_from(bound.as_nanos()).unwrap();
            assert_eq!(bucket(bound), at);
            assert_eq!(bucket(bound + 1), at + 1);
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BOUNDS);
    }

    #[test]
    fn every_place_in_the_tables_is_its_own() {
        let places = Operation::ALL.map(|each| each as usize);
        assert_eq!(places, [0, 1, 2, 3, 4]);
        let places = Outcome::ALL.map(|each| each as usize);
        assert_eq!(places, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[tokio::test]
    async fn requests_are_counted_by_how_they_end() {
        let faulty = Arc::new(Faulty::new(Arc::new(Memory::new()), Faults::default(), 1).unwrap());
        let store = Metered::new(faulty.clone());
        let (a, b) = (key("a"), key("b"));

        let version = store
            .put(&a, "12345".into(), &Expect::Absent)
            .await
            .unwrap();
        let _ = store.put(&a, "1".into(), &Expect::Absent).await;
        let _ = store
            .put(&b, vec![0; VALUE_BYTES_MAX + 1].into(), &Expect::Absent)
            .await;
        let lost = Fault::LoseAnswer;
        faulty.script(Operation::Put, &b, lost).unwrap();
        let _ = store.put(&b, "1".into(), &Expect::Absent).await;
        store.get(&a).await.unwrap();
        store.get(&key("c")).await.unwrap();
        store.get_if_changed(&a, &version).await.unwrap();
        store.get_if_changed(&b, &version).await.unwrap();
        store.get_if_changed(&key("c"), &version).await.unwrap();
        store.list(&Prefix::root(), None).await.unwrap();
        store.delete(&b).await.unwrap();
        faulty.set_outage(Outage::Refusing);
        let _ = store.list(&Prefix::root(), None).await;

        let snapshot = store.meter().snapshot();
        let counts: Vec<_> = snapshot
            .ended
            .iter()
            .map(|ended| (ended.operation, ended.outcome, ended.count))
            .collect();
        assert_eq!(
            counts,
            [
                (Operation::Get, Outcome::Done, 1),
                (Operation::Get, Outcome::Missing, 1),
                (Operation::GetIfChanged, Outcome::Done, 1),
                (Operation::GetIfChanged, Outcome::Unchanged, 1),
                (Operation::GetIfChanged, Outcome::Missing, 1),
                (Operation::Put, Outcome::Done, 1),
                (Operation::Put, Outcome::Conflict, 1),
                (Operation::Put, Outcome::Unknown, 1),
                (Operation::Put, Outcome::Invalid, 1),
                (Operation::Delete, Outcome::Done, 1),
                (Operation::List, Outcome::Done, 1),
                (Operation::List, Outcome::Unavailable, 1),
            ]
        );
        assert_eq!((snapshot.written_bytes, snapshot.read_bytes), (5, 6));
        assert_eq!(snapshot.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn time_and_cancellation_are_counted() {
        let inner = Arc::new(Memory::new());
        let faulty = Arc::new(Faulty::new(inner, Faults::default(), 1).unwrap());
        let store = Arc::new(Metered::new(faulty.clone()));
        let name = key("a");
        let slow = Fault::Delay(Duration::from_millis(3));
        faulty.script(Operation::Get, &name, slow).unwrap();
        store.get(&name).await.unwrap();

        faulty.set_outage(Outage::Hanging);
        let hanging = tokio::spawn({
            let (store, name) = (store.clone(), name.clone());
            async move { store.delete(&name).await }
        });
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(
            store.meter().snapshot().in_flight[3],
            (Operation::Delete, 1)
        );
        hanging.abort();
        assert!(hanging.await.unwrap_err().is_cancelled());

        let snapshot = store.meter().snapshot();
        assert_eq!(snapshot.in_flight(), 0);
        let [got, cancelled] = &snapshot.ended[..] else {
            panic!("{snapshot:?}")
        };
        assert_eq!((got.total_nanoseconds, got.buckets[5]), (3_000_000, 1));
        assert_eq!(cancelled.outcome, Outcome::Cancelled);
        assert_eq!(cancelled.buckets[BOUNDS], 1);
        assert_eq!(cancelled.total_nanoseconds, 100_000_000_000);
    }

    #[tokio::test]
    async fn a_snapshot_survives_json() {
        let store = Metered::new(Arc::new(Memory::new()));
        store.get(&key("a")).await.unwrap();
        let snapshot = store.meter().snapshot();
        let text = serde_json::to_string(&snapshot).unwrap();
        assert!(
            text.contains(r#""operation":"get","outcome":"missing","count":1"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    }
}
