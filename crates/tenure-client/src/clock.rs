//! The clock that trust is counted on: monotonic, and going on while the machine is suspended, which
//! `std::time::Instant` does not on Linux.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// There the monotonic clock counts sleep. Other systems have to say which clock does, before this compiles.
#[cfg(target_vendor = "apple")]
const CLOCK: ClockId = ClockId::Monotonic;

/// Since the machine was started.
pub(crate) type Moment = Duration;

pub(crate) fn now() -> Moment {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
