//! The broker: a durable queue, elections and a cluster, over HTTP, for every language.
//!
//! [`Server::start`] joins a namespace and listens. One of a namespace's servers leads and serves the queue. The
//! others are standbys: they forward calls to the leader, and one of them takes over when it is gone. So clients can
//! call any of them.
//!
//! ```no_run
//! use tenure_server::{Config, Server};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure_server::Error> {
//! let server = Server::start(Config::new("file:./tenure-data")).await?;
//! println!("listening on {}", server.url());
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! - A call that was answered with success is durable, and was done by the leader of its term: that is the queue's
//!   promise, and nothing here weakens it.
//! - Every request gets one answer. A refusal says what is wrong: a problem document (RFC 9457) with a stable code,
//!   and the field.
//! - A call is forwarded until one server has accepted it. A call whose outcome is unknown is sent again only where a
//!   repeat does no harm; otherwise it is answered `unknown_outcome`.
//! - While there is no leader, a bounded number of calls is held for a moment, so that a hand-over causes no errors.
//! - A worker that goes away while it waits for a job does not claim one.
//! - Memory is bounded: connections, waiting claims, followers of events, readings of the namespace, and the bytes of bodies and
//!   of answers all have a limit, and every phase of a connection has a time.
//!
//! # What is not
//!
//! That a standby knows what the leader has just committed: it keeps no copy of the queue.

mod alarm;
mod app;
mod audit;
mod auth;
mod budget;
mod config;
mod connections;
mod cors;
mod dashboard;
mod error;
mod extract;
mod files;
mod forward;
mod gate;
mod handlers;
mod hold;
mod listen;
mod login;
mod looks;
mod metrics;
mod openapi;
mod problem;
mod rates;
mod repeat;
mod router;
mod server;
mod stall;
mod tls;
mod trace;

pub use auth::{Scope, Tokens, TokensError};
pub use config::{
    Config, ConfigError, ECONOMY_TTL_DEFAULT, LISTEN_DEFAULT, Limits, Osqueue, STORE_DEFAULT,
};
pub use dashboard::{DeadRow, OutboxTables, OutboxView};
pub use error::Error;
pub use handlers::osqueue::{Network, osqueue_type};
pub use metrics::collector::{Published, Value};
pub use server::{Handle, Server};
pub use tls::Tls;
