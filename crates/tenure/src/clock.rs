//! The clocks that a node goes by.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{Moment, Now, Wall};
use tokio::sync::watch;

/// How long to sleep at a stretch at most. Tokio's timers stop while the machine is suspended; waking up
/// now and then notices soon after it resumes that a deadline has passed. Whoever asks
/// [`Leadership::check`](crate::Leadership::check) is told at once.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The clocks of this host.
pub(crate) const HOST: Clock = Clock { manual: None };

/// What time it is: on this host, or, for tests, on a [`ManualClock`](crate::testing::ManualClock).
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// Moved by hand, where it is not the host's.
    pub(crate) manual: Option<watch::Receiver<Now>>,
}

impl Clock {
    /// Both clocks, read now.
    pub(crate) fn now(&self) -> Now {
        if let Some(manual) = &self.manual {
            return *manual.borrow();
        }
        Now {
            moment: self.moment(),
            wall: wall(),
        }
    }

    /// The monotonic clock that counts suspend. `std::time::Instant` does not on Linux, so a laptop or a
    /// virtual machine that slept for an hour would still trust itself.
    pub(crate) fn moment(&self) -> Moment {
        if let Some(manual) = &self.manual {
            return manual.borrow().moment;
        }
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds =
            u64::try_from(time.tv_sec).expect("the clock counts up from the start of the host");
        let nanoseconds = u32::try_from(time.tv_nsec).expect("less than a second");
        Moment::from_origin(Duration::new(seconds, nanoseconds))
    }

    /// Sleeps until `deadline`, or a bit less: callers look at the clock again.
    pub(crate) async fn sleep_towards(&self, deadline: Moment) {
        let Some(manual) = &self.manual else {
            return tokio::time::sleep(deadline.since(self.moment()).min(SLEEP_MAX)).await;
        };
        let reached = |now: &Now| now.moment >= deadline;
        if manual.clone().wait_for(reached).await.is_err() {
            // Nobody moves the clock any more: that moment never comes.
            std::future::pending::<()>().await;
        }
    }
}

pub(crate) fn wall() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
