//! Daemons: long-running work that the cluster keeps running, each shard of it on one node at a time.
//!
//! A daemon is registered on every node that can run it; see [`Cluster::register`](crate::Cluster). The
//! leader decides where each shard runs. What a process does about it, it does with a [`Context`]: the
//! shard, the generation, whether it may still act, and when it is to end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::cluster::{Generation, Shard};
use tenure_core::{DaemonId, Moment, NodeId};
use tokio_util::sync::CancellationToken;

pub(crate) mod life;
pub(crate) mod state;

pub use state::{Revoked, Working};

use state::ShardState;

/// What went wrong with a daemon, in its own words.
pub type DaemonError = Box<dyn std::error::Error + Send + Sync>;

/// The work of one shard, from start to end.
pub type Work = Pin<Box<dyn Future<Output = Result<(), DaemonError>> + Send>>;

/// Work that the cluster keeps running.
///
/// One value serves all shards that this node is given, at the same time and one after the other: each is
/// started and ended many times. Everything here runs on the runtime of the application; a daemon that
/// blocks or panics costs nobody a heartbeat.
///
/// For work that has nothing to prepare there is [`daemon`](daemon()), which makes one from a closure.
///
/// ```
/// use tenure::daemon::{Context, Daemon, DaemonError, Work};
///
/// struct Indexer;
///
/// impl Daemon for Indexer {
///     fn id(&self) -> &str {
///         "indexer"
///     }
///
///     async fn start(&self, context: Context) -> Result<Work, DaemonError> {
///         // What may fail goes here: this shard is then tried on another node.
///         let table = format!("part {}", context.shard().index);
///         Ok(Box::pin(async move {
///             while !context.draining().is_cancelled() {
///                 // Asked right before the act: the process may have been paused.
///                 context.check()?;
///                 println!("writing to {table} in generation {}", context.generation());
///                 # break;
///             }
///             Ok(())
///         }))
///     }
/// }
/// ```
pub trait Daemon: Send + Sync + 'static {
    /// Its name, the same on every node.
    fn id(&self) -> &str;

    /// Gets a shard ready and returns its work. The shard counts as running from then on; until then the
    /// leader waits, but not for ever. An error or a panic makes the leader try another node.
    ///
    /// The work runs until it returns. If it does so without having been asked to end, it has failed, also
    /// if it says `Ok`: a daemon runs always. Work that does not end by the time it must is dropped, and is
    /// never polled again once it is no longer trusted.
    fn start(&self, context: Context) -> impl Future<Output = Result<Work, DaemonError>> + Send;

    /// Ends a shard in good order, beside its work: the shard has ended when either of them returns, and the
    /// other is dropped. Unless this is implemented, the work is waited for, and ends by itself when
    /// [`Context::draining`] says so.
    fn drain(&self, context: Context) -> impl Future<Output = ()> + Send {
        let _ = context;
        std::future::pending()
    }
}

/// A daemon from a closure that makes the work of a shard.
///
/// ```
/// let daemon = tenure::daemon::daemon("clock", |context| async move {
///     context.draining().cancelled().await;
///     Ok(())
/// });
/// # let _ = daemon;
/// ```
pub fn daemon<F, W>(id: &str, work: F) -> impl Daemon + use<F, W>
where
    F: Fn(Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), DaemonError>> + Send + 'static,
{
    FromClosure {
        id: id.to_owned(),
        work,
    }
}

struct FromClosure<F> {
    id: String,
    work: F,
}

impl<F, W> Daemon for FromClosure<F>
where
    F: Fn(Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), DaemonError>> + Send + 'static,
{
    fn id(&self) -> &str {
        &self.id
    }

    async fn start(&self, context: Context) -> Result<Work, DaemonError> {
        Ok(Box::pin((self.work)(context)))
    }
}

/// One shard in one generation, as the process that runs it sees it. Cheap to clone; holding it keeps
/// nothing alive.
///
/// Ask [`check`](Context::check) right before everything that only one process may do, and pass the
/// [`generation`](Context::generation) on to whatever can refuse an older one: a process can be paused
/// between the check and the act.
#[derive(Debug, Clone)]
pub struct Context {
    state: Arc<ShardState>,
}

impl Context {
    pub(crate) fn new(state: Arc<ShardState>) -> Self {
        Self { state }
    }

    /// Which shard of which daemon.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.state.shard
    }

    /// Which daemon.
    #[must_use]
    pub fn daemon(&self) -> &DaemonId {
        &self.state.shard.daemon
    }

    /// The fencing token: a number that only grows, over all nodes, for as long as the daemon exists. A
    /// receiver that keeps the highest it has seen for each shard, and refuses what is lower, is safe from
    /// whoever was paused.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.state.generation
    }

    /// How many shards the daemon has, this one included: the number to divide its work by. It is the same for
    /// every shard that runs, whatever each node asked for: when it changes, all shards end before one starts
    /// with the new number.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.state.count
    }

    /// The node that this process runs as.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.state.node
    }

    /// How long this process may still act for the shard, at least; an error if it may not. Reads two
    /// atomics and a clock.
    pub fn check(&self) -> Result<Duration, Revoked> {
        self.state.check()
    }

    /// Whether this process may act for the shard, right now: asks the clock, not a timer.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.check().is_ok()
    }

    /// Cancelled when the shard is to end in good order, because it goes elsewhere or the node leaves. It is
    /// still this process's own until it has ended or [`deadline`](Context::deadline).
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.state.drain.clone()
    }

    /// Cancelled when the shard is this process's no longer, or may not be in a moment: whatever still works
    /// for it is to be aborted at once.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.state.over.clone()
    }

    /// When trust ends unless it is renewed before, on this host's clock that counts suspend
    /// (`CLOCK_BOOTTIME`), so that another process of the host can hold to it.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.state.trusted_until()
    }

    /// Waits until the deadline is another than `known`, and returns it. A cancelled wait loses nothing.
    pub async fn deadline_after(&self, known: Moment) -> Moment {
        self.state.trusted_until_after(known).await
    }

    /// Says why the work cannot be ended, or with `None` that it can after all: a process that belongs to
    /// another user now, say. For as long as this node lives and says so, the shard is given to nobody else,
    /// also when its time to end is over; `tenure daemons` and `tenure plan` show the reason.
    pub fn cannot_end(&self, error: Option<String>) {
        self.state.stuck(error);
    }

    /// Says that work has begun which is no part of the future that [`Daemon::start`] returns, such as
    /// another process or a thread: the shard counts as ended only when the answer is dropped as well. The
    /// caller ends that work when [`draining`](Context::draining) says so, and before the deadline.
    pub fn begin_work(&self) -> Result<Working, Revoked> {
        self.state.clone().begin_work()
    }
}

/// A daemon whose type is forgotten.
pub(crate) trait AnyDaemon: Send + Sync {
    fn start(&self, context: Context) -> Starting<'_>;
    fn drain(&self, context: Context) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

pub(crate) type Starting<'a> = Pin<Box<dyn Future<Output = Result<Work, DaemonError>> + Send + 'a>>;

impl<D: Daemon> AnyDaemon for D {
    fn start(&self, context: Context) -> Starting<'_> {
        Box::pin(Daemon::start(self, context))
    }

    fn drain(&self, context: Context) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Daemon::drain(self, context))
    }
}
