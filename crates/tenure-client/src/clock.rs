//! The clock that trust is counted on: monotonic, and going on while the machine is suspended, which
//! `std::time::Instant` does not on Linux.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
/// Since the machine was started.
pub(crate) type Moment = Duration;

pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
