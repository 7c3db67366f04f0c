//! Daemons: long-running work that the cluster keeps running, each shard of it on one node at a time.
//!
//! A daemon is registered on every node that can run it; see [`Cluster::register`](crate::cluster::Cluster::register). The
//! leader decides where each shard runs. What a process does about it, it does with a [`Context`]: the
//! shard, the generation, whether it may still act, and when it is to end.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;

use tenure_core::cluster::{Generation, Shard};
use tenure_core::{DaemonId, NodeId};

pub(crate) mod life;

use crate::driver::Command;
use crate::driver::cluster::Order;
use crate::trust::Trust;

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
///             while !context.stopping().is_cancelled() {
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
    /// [`stopping`](Trust::stopping) says so.
    fn drain(&self, context: Context) -> impl Future<Output = ()> + Send {
        let _ = context;
        std::future::pending()
    }
}

/// A daemon from a closure that makes the work of a shard.
///
/// ```
/// let daemon = tenure::daemon::daemon("clock", |context| async move {
///     context.stopping().cancelled().await;
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
/// It is [`Trust`], with the same methods: ask [`check`](Trust::check) right before everything that only one process may
/// do, and pass the [`generation`](Context::generation) on to whatever can refuse an older one: a process can be paused
/// between the check and the act.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) trust: Trust,
    pub(crate) shard: Shard,
    pub(crate) generation: Generation,
    pub(crate) count: u32,
    pub(crate) node: NodeId,
}

impl Context {
    /// Which shard of which daemon.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Which daemon.
    #[must_use]
    pub fn daemon(&self) -> &DaemonId {
        &self.shard.daemon
    }

    /// The fencing token: a number that only grows, over all nodes, for as long as the daemon exists. A
    /// receiver that keeps the highest it has seen for each shard, and refuses what is lower, is safe from
    /// a process that was paused.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// How many shards the daemon has, this one included: the number to divide its work by. It is the same for
    /// every shard that runs, whatever each node asked for: when it changes, all shards end before one starts
    /// with the new number.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The node that this process runs as.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Says why the work cannot be ended, or with `None` that it can after all: a process that belongs to
    /// another user now, say. For as long as this node lives and says so, the shard is given to nobody else,
    /// also when its time to end is over; `tenure daemons` and `tenure plan` show the reason.
    pub fn cannot_end(&self, error: Option<String>) {
        self.tell(Order::Stuck {
            shard: self.shard.clone(),
            generation: self.generation,
            error,
        });
    }

    pub(crate) fn started(&self) {
        self.tell(Order::Started(self.shard.clone(), self.generation));
    }

    fn tell(&self, order: Order) {
        self.trust.send(Command::Cluster(order));
    }
}

impl Deref for Context {
    type Target = Trust;

    fn deref(&self) -> &Trust {
        &self.trust
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
