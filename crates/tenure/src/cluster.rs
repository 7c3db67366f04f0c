//! The cluster of a namespace: its nodes, and the daemons that it keeps running on them.
//!
//! Every process that calls [`Node::cluster`] is a member. The members have an election of their own,
//! `tenure.cluster`, in which nobody else can be a candidate. Its leader hands out the shards of all daemons that members have registered, as evenly as it can and
//! moving as little as it can. Who runs what, how it gets there, and what is guaranteed:
//! [`tenure_core::cluster`].
//!
//! ```
//! use tenure::cluster::{Definition, Options};
//! use tenure::daemon::daemon;
//! use tenure::{Node, NodeOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::Error> {
//! let node = Node::start(NodeOptions::new("memory:", "demo")).await?;
//! let cluster = node.cluster(Options::default()).await?;
//! let (sender, mut started) = tokio::sync::mpsc::channel(4);
//!
//! let indexer = daemon("indexer", move |context| {
//!     let sender = sender.clone();
//!     async move {
//!         sender.send(context.shard().index).await?;
//!         context.stopping().cancelled().await;
//!         Ok(())
//!     }
//! });
//! cluster.register(indexer, Definition::shards(4))?;
//!
//! for _ in 0..4 {
//!     started.recv().await;
//! }
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Cost
//!
//! With every heartbeat, besides the heartbeat itself, each member looks at the assignments and lists the
//! sessions; it reads only those that come and go. The leader also reads every session, and writes the
//! assignments at most once per [`cycle`](Config::cycle), and only if something is decided. While nobody has daemons, nodes that
//! do not [follow](Options::follows) the others look at all that once in ten heartbeats.

use std::sync::Arc;

use tenure_core::cluster::Part;
use tenure_core::cluster::member::Membership;
use tenure_core::election::PRIORITY_DEFAULT;
use tenure_core::{DaemonId, ElectionName, NodeId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(crate) mod events;
mod view;

pub use events::{Cursor, Event, Events, Member, NotACursor, Notice};
pub use tenure_core::cluster::{
    Assignment, AssignmentState, Config, Count, Decision, Definition, Drained, Failure, Generation,
    Going, RunState, Shard,
};
pub use view::{DaemonStatus, Drain, NodeStatus, ShardStatus};

use crate::daemon::Daemon;
use crate::driver::Command;
use crate::driver::cluster::{Order, Registered, TakePart};
use crate::node::Inner;
use crate::{Election, Error, Node};

use self::events::Hub;

/// How to take part in the cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// How work is handed out while this node leads. Sessions with a long ttl want
    /// [`Config::for_session`].
    pub config: Config,
    /// The most work that this node takes, as a sum of the weights of shards; any amount if `None`.
    pub capacity: Option<u32>,
    /// The software that this node runs, for people to read.
    pub version: Option<String>,
    /// The priority in the election `tenure.cluster`; `None` to never lead. Somebody has to.
    pub priority: Option<u8>,
    /// Whether to know of the other nodes also while this one does not lead: one listing per heartbeat. A
    /// node that runs no daemons and listens to no events can do without.
    pub follows: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: Config::default(),
            capacity: None,
            version: None,
            priority: Some(PRIORITY_DEFAULT),
            follows: true,
        }
    }
}

/// A member's way to the cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cluster {
    node: Arc<Inner>,
    hub: Arc<Hub>,
    election: Election,
}

impl Cluster {
    pub(crate) async fn take_part(
        node: &Node,
        inner: Arc<Inner>,
        options: Options,
    ) -> Result<Self, Error> {
        options.config.check(&inner.session_config)?;
        let hub = inner.hub.get_or_init(|| {
            let (counters, runtime) = (inner.counters().clone(), inner.runtime().clone());
            Hub::new(counters, runtime, options.follows)
        });
        let hub = hub.clone();
        let membership = Membership {
            config: options.config,
            part: Part {
                version: options.version,
                capacity: options.capacity,
                ..Part::default()
            },
            follows: options.follows,
            seed: inner.runtime().unique().as_u64_pair().0,
        };
        let part = TakePart {
            membership,
            runtime: Handle::current(),
            hub: hub.clone(),
        };
        inner.send(Command::Cluster(Order::TakePart(Box::new(part))));
        let election = node.join_own(ElectionName::cluster(), options.priority);
        Ok(Self {
            node: inner,
            hub,
            election,
        })
    }

    /// This node's name.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.node.id
    }

    /// The election that decides who hands out the work.
    #[must_use]
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// Says that this node can run a daemon, and how often it is to run in the whole cluster. Register it on
    /// every node that can run it, with the same definition; where they differ, see [`Definition`].
    /// Registering an id again replaces what it means for whatever is started from then on.
    pub fn register(&self, daemon: impl Daemon, definition: Definition) -> Result<(), Error> {
        let id = DaemonId::new(daemon.id())?;
        definition.check()?;
        let daemon = Registered(Arc::new(daemon));
        self.order(Order::Register(id, daemon, definition));
        Ok(())
    }

    /// Says that this node can run a daemon no longer: what it runs of it is drained and goes elsewhere.
    pub fn withdraw(&self, daemon: &str) -> Result<(), Error> {
        self.order(Order::Withdraw(DaemonId::new(daemon)?));
        Ok(())
    }

    /// The nodes that are there, as this one knows. Asks nobody.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.hub.members()
    }

    /// The nodes, as the store has them. One read per node, and three more.
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, Error> {
        self.node.view.nodes().await
    }

    /// The daemons and where they run, as the store has it. One read per node, and two more.
    pub async fn daemons(&self) -> Result<Vec<DaemonStatus>, Error> {
        self.node.view.daemons().await
    }

    /// What the leader would do now, and why. Only the leader itself knows its timeouts and where work has
    /// failed; on any other node this is what it would do without them.
    pub async fn plan(&self) -> Result<Vec<Decision>, Error> {
        let (sender, receiver) = oneshot::channel();
        self.order(Order::Plan(sender));
        match receiver.await {
            Ok(Some(plan)) => Ok(plan),
            Ok(None) => self.node.view.plan().await,
            Err(_) => Err(Error::ShutDown),
        }
    }

    /// Moves everything away from this node, and keeps it away until [`undrain`](Cluster::undrain), also
    /// over restarts. The node stays a member. Returns when that is asked for, not when it has happened.
    pub async fn drain(&self) -> Result<(), Error> {
        let id = &self.node.id;
        self.node.view.drain(id, id.as_str()).await.map(drop)
    }

    /// Lets this node be given work again.
    pub async fn undrain(&self) -> Result<(), Error> {
        self.node.view.undrain(&self.node.id).await.map(drop)
    }

    /// Ends all daemons of this node in good order and takes no others; returns when they have ended. A node
    /// that is restarting has its shards kept for it for a while. What will not drain is aborted. Call
    /// [`Node::shutdown`] next, which by itself leaves for good.
    pub async fn leave(&self, going: Going) {
        let (sender, receiver) = oneshot::channel();
        self.order(Order::Leave(going, sender));
        // An error means that the driver has ended, and with it every daemon.
        let _ = receiver.await;
    }

    /// Every event from now on, in order, beginning with how things stand. A subscriber that falls 4,096
    /// events behind loses the newest and is told how many; it blocks nobody.
    #[must_use]
    pub fn subscribe(&self) -> Events {
        self.hub.subscribe()
    }

    /// Every event behind a place, in order, for a subscriber who was away; `None` if some of them are not kept any more, or
    /// were told by another process. A process keeps its latest 1,024 while it [follows](Options::follows) the others.
    #[must_use]
    pub fn subscribe_after(&self, cursor: Cursor) -> Option<Events> {
        self.hub.subscribe_after(cursor)
    }

    /// Knows of the other nodes from now on also while this one does not lead, or no longer:
    /// [`Options::follows`] says it at first.
    pub fn set_follows(&self, follows: bool) {
        self.hub.keep_past(follows);
        self.order(Order::Follow(follows));
    }

    /// Calls `observer` with every event that a subscriber would get, on a thread of its own, until the node
    /// is shut down. One that is slow or panics harms nobody.
    pub fn observe(&self, observer: impl FnMut(Event) + Send + 'static) {
        self.subscribe().observe(observer);
    }

    fn order(&self, order: Order) {
        self.node.send(Command::Cluster(order));
    }
}
