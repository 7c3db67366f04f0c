//! The clocks of this host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{Moment, Now, Wall};

/// How long to sleep at a stretch at most. Tokio's timers stop while the machine is suspended; waking up
/// now and then notices soon after it resumes that a deadline has passed. Whoever asks
/// [`Leadership::check`](crate::Leadership::check) is told at once.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Both clocks, read now.
pub(crate) fn now() -> Now {
    Now {
        moment: moment(),
        wall: wall(),
    }
}

/// The monotonic clock that counts suspend. `std::time::Instant` does not on Linux, so a laptop or a
/// virtual machine that slept for an hour would still trust itself.
pub(crate) fn moment() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds =
        u64::try_from(time.tv_sec).expect("the clock counts up from the start of the host");
    let nanoseconds = u32::try_from(time.tv_nsec).expect("less than a second");
    Moment::from_origin(Duration::new(seconds, nanoseconds))
}

fn wall() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Sleeps until `deadline`, or a bit less: callers look at the clock again.
pub(crate) async fn sleep_towards(deadline: Moment) {
    tokio::time::sleep(deadline.since(moment()).min(SLEEP_MAX)).await;
}
