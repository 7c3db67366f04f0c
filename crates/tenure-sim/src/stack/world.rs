//! What everything in a run shares: the seed's chance, the trace, the verdict, the hosts and the ledger.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::Namespace;
use tenure_random::Random;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::claims::Claims;
use super::disk::Disk;
use super::faults::{Counts, Fault};
use super::history::History;
use super::host::Host;
use super::invariants::calls_fit::Calls;
use super::invariants::one_active_shard::Shards;
use super::ledger::Ledger;
use super::outbox;
use super::plan::Plan;
use super::store::Recorded;
use crate::invariants::Violation;
use crate::trace::Trace;

/// When every run begins: the first day of 2026, in milliseconds since 1970.
pub(crate) const WALL_MS: u64 = 1_767_225_600_000;

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) namespace: Namespace,
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: Arc<Recorded>,
    /// Where the log is, if it is kept in files.
    pub(crate) disk: Arc<Disk>,
    /// The tables of the outbox, if this run has one.
    pub(crate) outbox: outbox::Tables,
    /// Someone begins to take the log over.
    pub(crate) takeover: Notify,
    /// Someone has read the last file of it.
    pub(crate) replay: Notify,
    /// Cancelled at the first violation.
    pub(crate) broken: CancellationToken,
    pub(crate) requests: AtomicU64,
    /// Jobs whose calls were too many at once to be put in order.
    pub(crate) unjudged: AtomicU64,
    /// Told whenever a broker begins to serve.
    pub(crate) served: Notify,
    started: Instant,
    is_calm: AtomicBool,
    random: Mutex<Random>,
    trace: Mutex<Trace>,
    faults: Mutex<Counts>,
    ledger: Mutex<Ledger>,
    history: Mutex<History>,
    claims: Mutex<Claims>,
    calls: Mutex<Calls>,
    shards: Mutex<Shards>,
    violation: Mutex<Option<Violation>>,
}

impl World {
    pub(crate) fn new(mut random: Random, plan: Plan) -> Arc<Self> {
        Arc::new_cyclic(|world| {
            let store = Arc::new(Recorded::new(world.clone(), &plan));
            let disk = Arc::new(Disk::new(world.clone()));
            let hosts = (1..=plan.hosts)
                .map(|number| Host::draw(&mut random, number, &plan, &store))
                .collect();
            Self {
                plan,
                namespace: Namespace::new("stack").expect("a valid name"),
                hosts,
                store,
                disk,
                outbox: outbox::Tables::default(),
                takeover: Notify::new(),
                replay: Notify::new(),
                broken: CancellationToken::new(),
                requests: AtomicU64::new(0),
                unjudged: AtomicU64::new(0),
                served: Notify::new(),
                started: Instant::now(),
                is_calm: AtomicBool::new(false),
                random: Mutex::new(random),
                trace: Mutex::default(),
                faults: Mutex::default(),
                ledger: Mutex::default(),
                history: Mutex::default(),
                claims: Mutex::default(),
                calls: Mutex::default(),
                shards: Mutex::default(),
                violation: Mutex::default(),
            }
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What a right wall clock shows.
    pub(crate) fn wall_ms(&self) -> u64 {
        WALL_MS + u64::try_from(self.elapsed().as_millis()).unwrap_or(0)
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    pub(crate) fn set_calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, Random> {
        lock(&self.random)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        lock(&self.claims)
    }

    /// What clients saw of each job.
    pub(crate) fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    pub(crate) fn shards(&self) -> MutexGuard<'_, Shards> {
        lock(&self.shards)
    }

    pub(crate) fn trace(&self) -> MutexGuard<'_, Trace> {
        lock(&self.trace)
    }

    pub(crate) fn say(&self, who: &str, what: &str) {
        let at = self.elapsed();
        self.trace().say(at, who, what);
    }

    /// The hosts whose clocks stand still, or did so a moment ago: nothing that follows from clocks is promised of them.
    pub(crate) fn doubted(&self) -> BTreeSet<&str> {
        let doubted = self.hosts.iter().filter(|host| host.is_doubted());
        doubted.map(|host| host.name.as_str()).collect()
    }

    /// A fault that takes effect now.
    pub(crate) fn count(&self, fault: Fault) {
        lock(&self.faults).count(fault);
    }

    pub(crate) fn count_many(&self, fault: Fault, count: u64) {
        lock(&self.faults).count_many(fault, count);
    }

    /// Whether a fault takes effect now: so many times in a thousand, while there is chaos.
    pub(crate) fn strikes(&self, fault: Fault, per_mille: u64) -> bool {
        let strikes = self.random().chance(per_mille);
        let strikes = strikes && !self.is_calm() && self.plan.allows(fault);
        if strikes {
            self.count(fault);
        }
        strikes
    }

    /// All faults so far.
    pub(crate) fn faults(&self) -> Counts {
        let mut counts = lock(&self.faults).clone();
        for host in &self.hosts {
            for (kind, count) in host.store.injected() {
                counts.count_many(Fault::of(kind), count);
            }
        }
        counts
    }

    /// Only the first counts: what follows may follow from it.
    pub(crate) fn judge(&self, verdict: Result<(), Violation>) {
        if let Err(violation) = verdict {
            self.say("judge", &violation.to_string());
            lock(&self.violation).get_or_insert(violation);
            self.broken.cancel();
        }
    }

    pub(crate) fn verdict(&self) -> Result<(), Violation> {
        for host in &self.hosts {
            if let Some(panic) = host.panic() {
                return Err(Violation::new("no process panics", panic));
            }
        }
        match &*lock(&self.violation) {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    /// Runs a client for the rest of the run.
    pub(crate) fn run_client(self: &Arc<Self>, client: impl Future<Output = ()> + Send + 'static) {
        let world = self.clone();
        tokio::spawn(async move {
            let client = std::panic::AssertUnwindSafe(client).catch_unwind();
            if let Err(panic) = client.await {
                let message = crate::panic_message(panic.as_ref());
                world.judge(Err(Violation::new("no client panics", message)));
            }
        });
    }

    /// Sleeps for up to twice as long as this.
    pub(crate) async fn pause_about(&self, about: Duration) {
        let pause = self.random().up_to(about * 2);
        tokio::time::sleep(pause).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
