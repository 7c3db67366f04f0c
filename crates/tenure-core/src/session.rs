//! Sessions: a process's liveness, the only thing that is ever renewed.
//!
//! # The protocol
//!
//! Every process start (an *incarnation*) keeps one object, its session, and rewrites it every
//! `heartbeat` with a counter that grows by one, expecting exactly the version it wrote last. Everything
//! that a process holds (leases, daemons) it holds through its session, so liveness costs one small write
//! per interval however much is held, and one eviction frees all of it.
//!
//! ```text
//!             create done              leave, work ended
//!   joining ---------------> alive -------------------------> left (object says "gone")
//!                              |
//!                              | evicted, deleted, foreign write, trust ran out, or blind for a ttl
//!                              v
//!                            over: everything stops; a new incarnation joins afresh
//! ```
//!
//! **Trust.** A write that was started at `t0` and is known to have been applied lets the process trust
//! itself until `t0 + ttl - margin`. It counts from before the request was sent: the store applied the
//! write at some moment after `t0`, and no observer may evict before that moment plus `ttl`. A slow
//! answer therefore never stretches trust.
//!
//! **Settling.** After a conflict or a lost answer the process reads its session back. If it finds its own counter and
//! nonce, that write was applied, with the `t0` of that very write. If it finds an older counter, the write has not
//! arrived, though it still may; the next attempt expects the same version, so at most one of them can be applied.
//! Anything else (evicted, missing, a write that it never made) means that the session is over. It is never created
//! again under the same incarnation.
//!
//! **Copies.** A process can be copied while it runs: a checkpoint that is restored while the first goes on, a snapshot
//! of a virtual machine that is started twice. Both have the same session and go on counting from the same number, but
//! each marks its writes with its own nonce, drawn in the step itself. The first to write keeps the session; the other
//! finds a write that it never made, and is over. It leaves the session and the leases alone, since they are the first
//! one's now; so does one whose trust has run out, since it cannot know. Both still trust themselves because of what
//! they did before the copy, but for less than a ttl.
//!
//! **Blindness.** A heartbeat needs no read, so a process that can write and not read would keep its session, and with
//! it a lease that it can neither use nor give back. When a lease that is or may be its own could not be read for a
//! whole ttl, the session ends.
//!
//! **Eviction.** An observer that has seen one version unchanged for the record's whole `ttl` may replace it with
//! `evicted`, expecting that very version. If a heartbeat landed meanwhile this fails, and nothing happened. Only after
//! it succeeded may anyone take what the session held. The time counts on the observer's own clock from the moment the
//! answer arrived. A store may report an `age`: how long ago the write of that version was begun, on a clock of one
//! host that cannot be set; then the time counts from there, which is still after the `t0` that trust counts from.
//! Strict observers ignore age. Without an age an observer looks more often when the next heartbeat is due, so that it
//! sees each version soon after it was written.
//!
//! # What is guaranteed
//!
//! If the rates of any two hosts' clocks differ by less than `margin / ttl`, a session that is trusted by its own
//! process has not been evicted. Of several copies of a process, at most one is still trusted a ttl after they were
//! made.
//!
//! # What is not
//!
//! A process that is paused between checking its trust and acting on it acts late. No lease of any kind
//! can prevent that; the fence of the election does (see [`election`](crate::election)). Clocks of a
//! paused virtual machine stop altogether, which is the same case.

mod config;
mod machine;
pub mod observer;
mod record;
mod sighting;

pub use config::{Config, ConfigError};
pub use machine::{Farewell, Input, Output, Reason, Session};
pub use record::{About, Holder, ONE_SHOT, Record, State};
pub use sighting::{Glance, Sighting};
