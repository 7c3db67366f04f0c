//! The failures of real storage, in a test, from a seed.
//!
//! For Tenure's own tests and for yours. Put it around a [`Memory`](crate::engine::memory::Memory) and see whether your
//! leader survives. All faults are off by default.
//!
//! | fault | what the caller sees | what it models |
//! | --- | --- | --- |
//! | delay | a slow answer | a slow network or server, before or after the store acts |
//! | refusal | `Unavailable` | connection refused, 503, too many connections |
//! | lost answer | `Unknown`, applied | the connection breaks, or the server restarts, after the commit |
//! | lost request | `Unknown`, not applied | the same, before the commit |
//! | late request | `Unknown`, sent later | a proxy or a socket buffer that delivers after the caller has stopped waiting |
//! | duplicate | the first answer | a network or proxy that delivers a request twice |
//! | retry | the second answer | an HTTP library that repeats what was applied: a false `Conflict` |
//! | young | an age that is too small, or none | a host that has started anew |
//! | clock ahead | a shown age that is too large | a server's clock that was set, or several clocks |
//! | lost, duplicate, late hint | | a notification channel that reconnects |
//! | outage | see [`Outage`] | a server that is down, or cut off, or hangs |
//!
//! Faults stay inside the contract of [`Store`]: no read shows what was not written, no read is out of date, no
//! [`Object::age`] is too large (though [`Object::shown_age`] may be), and what ends as `Conflict` or `Unavailable` was
//! not applied. The one exception is a request that is sent twice, because real clients and networks do that: the
//! `Conflict` of a retry may be with the caller's own write, and the second create or delete may undo what someone else
//! did between the two. A read whose answer is lost is `Unavailable`.
//!
//! All chance comes from the seed. The same seed and the same sequence of calls give the same faults, and each request
//! draws the same number of times whatever the probabilities are, so that changing one does not reshuffle the others.
//! Each watch draws its hints from its own sequence.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

mod fate;
mod faults;

use fate::{Chance, Fate, Fates};
pub use faults::{Fault, Faults, Kind, Outage};

use super::metered::Operation;
use crate::{
    AppendFolder, Change, Description, Error, Expect, Hint, IfMissing, Key, Object, Page, Prefix,
    Store, Version, Watch, WatchSender, check_value,
};

/// Fails as real storage does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_store::Error> {
/// use tenure_store::wrap::{faulty::{Fault, Faults, Faulty}, metered::Operation};
/// use tenure_store::{Error, Expect, Key, Store};
///
/// let store = Faulty::new(tenure_store::open("memory:").await?, Faults::default(), 42)?;
/// let key = Key::new("lease")?;
/// store.script(Operation::Put, &key, Fault::LoseAnswer)?;
///
/// let lost = store.put(&key, "term 1".into(), &Expect::Absent).await;
/// assert!(matches!(lost, Err(Error::Unknown { .. })));
/// assert!(store.get(&key).await?.is_some(), "it was applied all the same");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    fates: Mutex<Fates>,
    outage: Mutex<Outage>,
    /// How far the store's clock is ahead of where it was when everything was written.
    clock_ahead: Mutex<Duration>,
    /// Counts the calls of [`Faulty::release`].
    releases: AtomicU64,
    /// Notified when the outage or the releases change. It wakes waiters in order, so that one seed gives one run; a
    /// watch channel would wake them in any order.
    changed: Notify,
    /// How many late requests are not yet answered.
    late: watch::Sender<usize>,
}

impl Faulty {
    /// Checks the probabilities. Everything that happens by chance follows from `seed`.
    pub fn new(inner: Arc<dyn Store>, faults: Faults, seed: u64) -> Result<Self, Error> {
        faults.check()?;
        let shared = Shared {
            fates: Mutex::new(Fates::new(faults, seed)),
            outage: Mutex::default(),
            clock_ahead: Mutex::default(),
            releases: AtomicU64::default(),
            changed: Notify::new(),
            late: watch::Sender::default(),
        };
        Ok(Self {
            inner,
            shared: Arc::new(shared),
        })
    }

    /// Changes the probabilities from the next request or hint on: `Faults::default()` ends the chaos.
    pub fn set_faults(&self, faults: Faults) -> Result<(), Error> {
        faults.check()?;
        self.shared.fates().faults = faults;
        Ok(())
    }

    /// Does this to the next request of `operation` on `subject`, a [`Key`] or for a listing a [`Prefix`]; a second
    /// script for the same applies to the request after that. A script takes precedence over chance, and an outage over
    /// both.
    pub fn script(
        &self,
        operation: Operation,
        subject: &impl Display,
        fault: Fault,
    ) -> Result<(), Error> {
        let anywhere = matches!(fault, Fault::Delay(_) | Fault::Refuse | Fault::Hang);
        if !anywhere && !operation.is_write() {
            return Err(Error::invalid(
                format!("{operation:?} cannot suffer {fault:?}, which is for writes"),
                "use Delay, Refuse or Hang for reads",
            ));
        }
        let mut fates = self.shared.fates();
        fates.script(operation, subject.to_string(), fault);
        Ok(())
    }

    /// Begins or, with [`Outage::Over`], ends an outage.
    pub fn set_outage(&self, outage: Outage) {
        *self.shared.lock_outage() = outage;
        self.shared.changed.notify_waiters();
    }

    /// Moves the clock behind [`Object::shown_age`] ahead by this much, compared with what it was when everything was
    /// written.
    pub fn set_clock_ahead(&self, by: Duration) {
        let ahead = self.shared.clock_ahead.lock();
        *ahead.unwrap_or_else(PoisonError::into_inner) = by;
    }

    /// Lets all requests continue that hang because of [`Fault::Hang`].
    pub fn release(&self) {
        self.shared.releases.fetch_add(1, Ordering::Relaxed);
        self.shared.changed.notify_waiters();
    }

    /// Resolves once no late request is on its way.
    pub async fn settled(&self) {
        let mut late = self.shared.late.subscribe();
        let settled = late.wait_for(|&late| late == 0).await;
        settled.expect("the sender is kept alive by self");
    }

    /// How often each kind of fault has happened.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<Kind, u64> {
        self.shared.fates().injected.clone()
    }

    /// Does everything that happens to a request before the store acts.
    async fn admit(&self, operation: Operation, subject: &str) -> Result<Fate, Error> {
        let shared = &*self.shared;
        let mut fate = shared.fates().request(operation, subject);
        shared.hang(&fate).await;
        let refused = |why: &str| {
            let doing = if operation.is_write() {
                "writing"
            } else {
                "reading"
            };
            Error::unavailable(format!("{doing} {subject}"), why.to_owned())
        };
        let outage = shared.outage();
        match outage {
            Outage::Breaking if operation.is_write() => {
                shared.count(Kind::Outage);
                fate.fault = Some(if fate.reaches {
                    Fault::LoseAnswer
                } else {
                    Fault::LoseRequest
                });
                return Ok(fate);
            }
            Outage::Refusing | Outage::Breaking => {
                shared.count(Kind::Outage);
                return Err(refused("an outage was injected"));
            }
            Outage::Over | Outage::Hanging => {}
        }
        shared.fates().count_fate(&fate);
        pause(fate.before).await;
        match fate.fault {
            Some(Fault::Refuse) => Err(refused("a refusal was injected")),
            _ => Ok(fate),
        }
    }

    /// Sends a write once, twice, later or never. `send` makes one request per call.
    async fn write<T: Send + 'static>(
        &self,
        operation: Operation,
        key: &Key,
        send: impl Fn() -> Sent<T> + Send,
    ) -> Result<T, Error> {
        let fate = self.admit(operation, key.as_str()).await?;
        let lost = |why: &str| Err(Error::unknown(key, why.to_owned()));
        let answer = match fate.fault {
            Some(Fault::LoseRequest) => lost("a lost request was injected"),
            Some(Fault::LoseAnswer) => {
                drop(send().await);
                lost("a lost answer was injected")
            }
            Some(Fault::Late(delay)) => {
                let late = Late::new(&self.shared);
                let request = send();
                tokio::spawn(async move {
                    sleep(delay).await;
                    drop(request.await);
                    drop(late);
                });
                lost("a late request was injected")
            }
            Some(Fault::Duplicate) => {
                let first = send().await;
                // Only a success is sent twice: a request that failed could succeed a moment later, although the caller
                // was told that it was not applied.
                if first.is_ok() {
                    drop(send().await);
                }
                first
            }
            Some(Fault::Retry) => {
                drop(send().await);
                send().await
            }
            Some(Fault::Delay(_) | Fault::Refuse | Fault::Hang) | None => send().await,
        };
        pause(fate.after).await;
        answer
    }

    /// Makes an object look younger than it is if its fate says so, and its shown age larger if the clock is ahead.
    fn rejuvenate(&self, object: &mut Object, fate: &Fate) {
        let ahead = self.shared.clock_ahead.lock();
        let ahead = *ahead.unwrap_or_else(PoisonError::into_inner);
        object.shown_age = object.shown_age.map(|age| age + ahead);
        if let (Some(youth), Some(age)) = (fate.youth, object.age) {
            self.shared.count(Kind::Young);
            object.age = (youth < 0.5).then(|| age.mul_f64(youth));
        }
    }
}

/// A request that is not sent until it is awaited.
type Sent<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A late request on its way.
struct Late(Arc<Shared>);

impl Late {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.late.send_modify(|late| *late += 1);
        Self(shared.clone())
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.send_modify(|late| *late -= 1);
    }
}

/// A sleep of zero would still wait for the timer's next tick.
async fn pause(duration: Duration) {
    if !duration.is_zero() {
        sleep(duration).await;
    }
}

impl Shared {
    /// Each change of the state is one step that cannot panic half way, so a poisoned lock is still consistent.
    fn fates(&self) -> MutexGuard<'_, Fates> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, kind: Kind) {
        self.fates().count(kind);
    }

    /// Waits until the request is released, if it hangs.
    async fn hang(&self, fate: &Fate) {
        let releases = || self.releases.load(Ordering::Relaxed);
        if fate.fault == Some(Fault::Hang) {
            self.count(Kind::Hung);
            let before = releases();
            self.wait_until(|| releases() != before).await;
        }
        if self.outage() == Outage::Hanging {
            self.count(Kind::Hung);
            self.wait_until(|| self.outage() != Outage::Hanging).await;
        }
    }

    async fn wait_until(&self, is_so: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the check, so that no change is missed in between.
            changed.as_mut().enable();
            if is_so() {
                return;
            }
            changed.await;
        }
    }

    fn outage(&self) -> Outage {
        *self.lock_outage()
    }

    fn lock_outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes hints on until either end is gone. A late hint holds up those behind it, as on a real connection;
    /// meanwhile the inner watch merges what it cannot keep.
    async fn forward(self: Arc<Self>, mut hints: Watch, sender: WatchSender, mut chance: Chance) {
        loop {
            let hint = tokio::select! {
                biased;
                () = sender.closed() => return,
                hint = hints.next() => hint,
            };
            let Some(hint) = hint else { return };
            let (drawn, late_by) = self.fates().hint(&mut chance);
            let kind = match self.outage() {
                Outage::Over => drawn,
                _ => Some(Kind::Outage),
            };
            kind.inspect(|&kind| self.count(kind));
            let send = || match &hint {
                Hint::Changed(key) => sender.changed(key),
                Hint::Anything => sender.anything(),
            };
            match kind {
                Some(Kind::HintLost | Kind::Outage) => continue,
                Some(Kind::HintDoubled) => send(),
                Some(Kind::HintLate) => pause(late_by).await,
                _ => {}
            }
            send();
        }
    }
}

#[async_trait]
impl Store for Faulty {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let fate = self.admit(Operation::Get, key.as_str()).await?;
        let mut object = self.inner.get(key).await?;
        if let Some(object) = &mut object {
            self.rejuvenate(object, &fate);
        }
        pause(fate.after).await;
        Ok(object)
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        let fate = self.admit(Operation::GetIfChanged, key.as_str()).await?;
        let mut change = self.inner.get_if_changed(key, version).await?;
        if let Change::Changed(object) = &mut change {
            self.rejuvenate(object, &fate);
        }
        pause(fate.after).await;
        Ok(change)
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        // This check needs no network, so no fault may hide it.
        check_value(key, &value)?;
        let send = || -> Sent<Version> {
            let (inner, key) = (self.inner.clone(), key.clone());
            let (value, expect) = (value.clone(), expect.clone());
            Box::pin(async move { inner.put(&key, value, &expect).await })
        };
        self.write(Operation::Put, key, send).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let send = || -> Sent<()> {
            let (inner, key) = (self.inner.clone(), key.clone());
            Box::pin(async move { inner.delete(&key).await })
        };
        self.write(Operation::Delete, key, send).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let fate = self.admit(Operation::List, prefix.as_str()).await?;
        let page = self.inner.list(prefix, after).await?;
        pause(fate.after).await;
        Ok(page)
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        let hints = self.inner.watch(prefix)?;
        let (sender, watch) = Watch::channel(prefix.clone());
        let chance = self.shared.fates().hints();
        tokio::spawn(self.shared.clone().forward(hints, sender, chance));
        Some(watch)
    }

    /// Not passed on: no fault would reach the files.
    fn append_folder(&self, _: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        None
    }

    fn is_replaced(&self) -> bool {
        self.inner.is_replaced()
    }

    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        self.inner.pin(prefix, missing);
    }

    fn pause_before_write(&self) -> Duration {
        self.inner.pause_before_write()
    }
}

#[cfg(test)]
mod tests;
