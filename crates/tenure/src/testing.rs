//! For tests of your own leader code: storage that fails, processes that stop, and time that passes when you
//! say so.
//!
//! A [`Scene`] is a store in memory and a clock. Each [`Host`] on it is a process of its own to everybody else:
//! real nodes, with their own way to the storage, which can be cut, lose answers or stand still. So a test
//! shows in milliseconds what a leader does that was paused for a minute:
//!
//! ```
//! use tenure::testing::Scene;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::Error> {
//! let scene = Scene::new(7);
//! let (a, b) = (scene.host("a").await?, scene.host("b").await?);
//! let first = a.node().join("reports").await?.elected().await?;
//! let election = b.node().join("reports").await?;
//!
//! a.pause(); // no heartbeat leaves it, and whatever waits for `a.awake()` waits
//! scene.until(|| election.is_leader()).await;
//! assert!(first.check().is_err(), "an hour or a minute later, nobody trusts it, nor does it itself");
//!
//! a.mend(); // it wakes up, and does what it was about to do
//! let second = election.leadership().expect("it leads");
//! assert!(second.term() > first.term(), "so a receiver can tell the two apart");
//! # Ok(())
//! # }
//! ```
//!
//! `docs/testing.md` finds a bug with it, step by step; `examples/naive_leader.rs` is the whole program. Below it are
//! [`ManualClock`], for a node on any store, and [`Faulty`], for any store.
//!
//! [`RunningClock`] runs with tokio's time, which a test may pause: then hours pass as soon as everyone waits, and
//! the whole of a cluster fits into one thread.

mod clock;
mod running;
mod scene;

pub use clock::ManualClock;
pub(crate) use running::Running;
pub use running::RunningClock;
pub use scene::{Host, Scene};
pub use tenure_store::wrap::faulty::{Fault, Faults, Faulty};
