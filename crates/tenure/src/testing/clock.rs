//! A clock that is moved by hand.

use std::time::Duration;

use tenure_core::{Moment, Now, Wall};
use tokio::sync::watch;

use crate::Runtime;
use crate::clock::{self, Clock, Source};

/// A clock that stands still until it is moved. Every node that was given a [`runtime`](ManualClock::runtime)
/// of it shares its time. Its wall clock starts with the host's and moves along.
///
/// ```
/// use std::time::Duration;
/// use tenure::testing::ManualClock;
/// use tenure::{Node, NodeOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// let clock = ManualClock::new();
/// let mut options = NodeOptions::new("memory:", "demo");
/// options.runtime = clock.runtime();
/// let node = Node::start(options).await?;
/// let leadership = node.join("reports").await?.elected().await?;
///
/// let remaining = leadership.check().expect("just elected");
/// assert_eq!(remaining, Duration::from_secs(9));
/// // No heartbeat can be confirmed in no time at all, so an hour later the term is over.
/// clock.advance(Duration::from_secs(3600));
/// assert!(leadership.check().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ManualClock {
    time: watch::Sender<Now>,
}

impl ManualClock {
    /// A clock that reads the same each time.
    #[must_use]
    pub fn new() -> Self {
        let start = Now {
            moment: Moment::from_origin(Duration::from_secs(1_000_000)),
            wall: clock::wall(),
            nonce: tenure_core::Nonce::default(),
        };
        Self {
            time: watch::Sender::new(start),
        }
    }

    /// For [`NodeOptions::runtime`](crate::NodeOptions::runtime).
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        Runtime::at(Clock {
            source: Source::Manual(self.time.subscribe()),
        })
    }

    /// Lets time pass. Nodes act on it on their own threads, a moment later; what they check at use is
    /// true at once.
    pub fn advance(&self, by: Duration) {
        self.time.send_modify(|now| {
            let before = milliseconds(now.moment);
            now.moment = now.moment + by;
            now.wall.0 += milliseconds(now.moment) - before;
        });
    }

    /// What the wall clock says, in milliseconds since 1970.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.time.borrow().wall.0
    }

    /// Sets the wall clock, and lets no time pass: what a broken time server does to a host.
    pub fn set_wall_ms(&self, milliseconds: u64) {
        self.time.send_modify(|now| now.wall = Wall(milliseconds));
    }
}

/// Of both clocks the same, so that what is less than a millisecond is not lost on one of them.
fn milliseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_millis()).unwrap_or(u64::MAX)
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}
