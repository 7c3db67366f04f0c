//! Stores around stores.
//!
//! Each wrapper takes an `Arc<dyn Store>`, is a [`Store`](crate::Store) itself and keeps the whole
//! contract, so they stack in any order:
//!
//! | wrapper | what it is for |
//! | --- | --- |
//! | [`Prefixed`] | several users of one store that must not see each other |
//! | [`Metered`](metered::Metered) | how many requests, how they ended, how long they took |
//! | [`Throttled`](throttled::Throttled) | a ceiling on what a metered store can cost |
//! | [`ServerAges`] | ages by a server's clock, with a test of that clock |
//! | [`Faulty`](faulty::Faulty) | the failures of real storage, in a test, from a seed |
//!
//! The inner store sees only what the wrapper lets through: `Metered` around `Throttled` counts the
//! waiting as latency, `Throttled` around `Metered` does not.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure_store::Error> {
//! use std::sync::Arc;
//! use tenure_store::wrap::metered::Metered;
//! use tenure_store::wrap::throttled::{self, Throttled};
//! use tenure_store::wrap::Prefixed;
//! use tenure_store::{Key, Prefix, Store};
//!
//! let memory = tenure_store::open("memory:").await?;
//! let ceiling = throttled::Config { writes_per_day: Some(50_000), ..Default::default() };
//! let throttled = Arc::new(Throttled::new(memory, ceiling)?);
//! let metered = Arc::new(Metered::new(throttled.clone()));
//! let store = Prefixed::new(metered.clone(), Prefix::new("team-a")?);
//!
//! store.get(&Key::new("elections/default")?).await?;
//! assert_eq!(throttled.statistics().reads.sent, 1);
//! assert_eq!(metered.meter().snapshot().in_flight(), 0);
//! # Ok(())
//! # }
//! ```

pub mod faulty;
pub mod metered;
mod polled;
mod prefix;
mod server_ages;
pub mod throttled;

pub use polled::Polled;
pub use prefix::Prefixed;
pub use server_ages::ServerAges;
