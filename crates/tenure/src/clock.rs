//! The clocks that a node goes by.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{ClockId, Moment, Nonce, Now, Reading, Wall};
use tokio::sync::watch;

use crate::testing::Running;

/// How long to sleep at a stretch at most. Tokio's timers stop while the machine is suspended; waking up
/// now and then notices soon after it resumes that a deadline has passed. A caller that asks
/// [`Trust::check`](crate::Trust::check) is told at once.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The one that counts suspend.
#[cfg(target_os = "linux")]
const HOST_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// There the monotonic clock counts sleep. Other systems have to say which clock does, before this compiles.
#[cfg(target_vendor = "apple")]
const HOST_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// The clocks of this host.
pub(crate) const HOST: Clock = Clock {
    source: Source::Host,
};

/// What time it is: on this host, or, for tests, on a [`ManualClock`](crate::testing::ManualClock) or a
/// [`RunningClock`](crate::testing::RunningClock). A part of the [`Runtime`](crate::Runtime).
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    pub(crate) source: Source,
}

/// Where the time comes from.
#[derive(Debug, Clone, Default)]
pub(crate) enum Source {
    #[default]
    Host,
    /// Moved by hand.
    Manual(watch::Receiver<Now>),
    /// Runs with tokio's time.
    Running(Arc<Running>),
}

impl Clock {
    /// Both clocks, read now.
    pub(crate) fn now(&self) -> Now {
        match &self.source {
            Source::Host => Now {
                moment: self.moment(),
                wall: wall(),
                nonce: Nonce::default(),
            },
            Source::Manual(manual) => *manual.borrow(),
            Source::Running(running) => running.now(),
        }
    }

    /// The monotonic clock that counts suspend. `std::time::Instant` does not on Linux, so a laptop or a
    /// virtual machine that slept for an hour would still trust itself.
    pub(crate) fn moment(&self) -> Moment {
        if !matches!(self.source, Source::Host) {
            return self.now().moment;
        }
        let time = rustix::time::clock_gettime(HOST_CLOCK);
        let seconds =
            u64::try_from(time.tv_sec).expect("the clock counts up from the start of the host");
        let nanoseconds = u32::try_from(time.tv_nsec).expect("less than a second");
        Moment::from_origin(Duration::new(seconds, nanoseconds))
    }

    /// The same with the name of the clock, to be kept for another process of this host; `None` where the
    /// clock has no name, or is moved by hand.
    pub(crate) fn reading(&self) -> Option<Reading> {
        let clock = match &self.source {
            Source::Host => tenure_store::host_clock()?,
            Source::Manual(_) => return None,
            Source::Running(running) => running.id(),
        };
        Some(Reading {
            clock: ClockId(clock),
            moment: self.moment(),
        })
    }

    /// Sleeps until `deadline`, or a bit less: callers look at the clock again.
    pub(crate) async fn sleep_towards(&self, deadline: Moment) {
        match &self.source {
            Source::Host => {
                tokio::time::sleep(deadline.since(self.moment()).min(SLEEP_MAX)).await;
            }
            Source::Manual(manual) => {
                let reached = |now: &Now| now.moment >= deadline;
                if manual.clone().wait_for(reached).await.is_err() {
                    // Nobody moves the clock any more: that moment never comes.
                    std::future::pending::<()>().await;
                }
            }
            Source::Running(running) => tokio::time::sleep(running.until(deadline)).await,
        }
    }

    /// Whether this is the time of one runtime, which no other thread goes by.
    pub(crate) fn is_of_runtime(&self) -> bool {
        matches!(self.source, Source::Running(_))
    }
}

pub(crate) fn wall() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
