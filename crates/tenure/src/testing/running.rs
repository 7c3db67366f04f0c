//! A clock that runs with tokio's time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Moment, Now, Wall};
use tokio::time::Instant;

use crate::Runtime;
use crate::clock::{Clock, Source};

/// A clock that runs with tokio's time, at a rate of its own: that of one simulated host. A node that is
/// given it keeps its session on the present runtime, not on a thread of its own, so that with
/// `tokio::time::pause` everything goes by one virtual time.
///
/// ```
/// use std::time::Duration;
/// use tenure::testing::RunningClock;
/// use tenure::{Node, NodeOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// let mut options = NodeOptions::new("memory:", "demo");
/// options.runtime = RunningClock::new(1_000_000, 1_767_225_600_000).runtime();
/// let node = Node::start(options).await?;
/// let leadership = node.join("reports").await?.elected().await?;
/// assert!(leadership.check().is_ok());
/// node.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RunningClock {
    running: Arc<Running>,
}

#[derive(Debug)]
pub(crate) struct Running {
    /// Tells it from the other clocks of this program.
    id: u64,
    started: Instant,
    /// How many nanoseconds it shows in a millisecond of tokio's time.
    rate: u64,
    /// What the wall clock would have shown at the start.
    wall_ms: AtomicU64,
    stops: Mutex<Stops>,
}

/// How long a clock has stood still.
#[derive(Debug, Default)]
struct Stops {
    past: Duration,
    since: Option<Instant>,
}

/// Longer than anything is waited for: what comes later than this is looked at again by then.
const STRETCH_MAX: Duration = Duration::from_secs(24 * 3600);

/// Any host has been up for a while.
const ORIGIN: Duration = Duration::from_secs(1_000);

impl RunningClock {
    /// A clock that shows `rate` nanoseconds in a millisecond, a million if it is right, and whose wall clock
    /// shows `wall_ms`, in milliseconds since 1970.
    #[must_use]
    pub fn new(rate: u64, wall_ms: u64) -> Self {
        static CLOCKS: AtomicU64 = AtomicU64::new(1);
        let running = Running {
            id: CLOCKS.fetch_add(1, Ordering::Relaxed),
            started: Instant::now(),
            rate: rate.max(1),
            wall_ms: AtomicU64::new(wall_ms),
            stops: Mutex::default(),
        };
        Self {
            running: Arc::new(running),
        }
    }

    /// For [`NodeOptions::runtime`](crate::NodeOptions::runtime).
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        Runtime::at(Clock {
            source: Source::Running(self.running.clone()),
        })
    }

    /// What the wall clock says, in milliseconds since 1970.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.running.now().wall.0
    }

    /// Stops it until it [goes on](RunningClock::go_on), as a virtual machine's does that is paused: no clock
    /// tells it afterwards that time has passed, and only fencing protects.
    pub fn stop(&self) {
        let mut stops = self.running.stops();
        stops.since.get_or_insert_with(Instant::now);
    }

    /// Lets it go on from where it stopped.
    pub fn go_on(&self) {
        let mut stops = self.running.stops();
        if let Some(since) = stops.since.take() {
            stops.past += since.elapsed();
        }
    }

    /// Sets the wall clock, and lets no time pass: what a broken time server does to a host.
    pub fn set_wall_ms(&self, milliseconds: u64) {
        let shown = self.running.shown_ms();
        let at_start = milliseconds.saturating_sub(shown);
        self.running.wall_ms.store(at_start, Ordering::Relaxed);
    }
}

impl Running {
    pub(crate) fn id(&self) -> u128 {
        self.id.into()
    }

    pub(crate) fn now(&self) -> Now {
        let wall = self.wall_ms.load(Ordering::Relaxed) + self.shown_ms();
        Now {
            moment: Moment::from_origin(ORIGIN + self.shown()),
            wall: Wall(wall),
            nonce: tenure_core::Nonce::default(),
        }
    }

    /// How long until it shows `moment`, or a while that is less.
    pub(crate) fn until(&self, moment: Moment) -> Duration {
        let missing = moment.since(self.now().moment).min(STRETCH_MAX);
        // Rounded up, so that the moment has come.
        let nanoseconds = (missing.as_nanos() * 1_000_000).div_ceil(u128::from(self.rate));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    fn shown(&self) -> Duration {
        let stood = {
            let stops = self.stops();
            let present = stops.since.map_or(Duration::ZERO, |since| since.elapsed());
            stops.past + present
        };
        let ran = self.started.elapsed().saturating_sub(stood);
        let nanoseconds = ran.as_nanos() * u128::from(self.rate) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown_ms(&self) -> u64 {
        u64::try_from(self.shown().as_millis()).unwrap_or(u64::MAX)
    }
}
