//! Several hosts on one store and one clock, each of which can be disturbed by itself.
//!
//! Nodes are the real ones, on threads of their own. What is simulated is what they stand on, so a scene is
//! as good as its test is patient: time passes in small steps, and each waits until every node that can have its
//! heartbeat confirmed has done so. A busy machine makes a test slower, and not different.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::session::Config;
use tenure_store::engine::memory::Memory;
use tenure_store::wrap::faulty::{Faults, Faulty, Outage};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::ManualClock;
use crate::{Error, Node, NodeOptions};

/// How much time passes at once: little, compared to the heartbeats of a node.
const STEP: Duration = Duration::from_millis(250);

/// How long, in real time, a step waits for nodes to act.
const STEP_PATIENCE: Duration = Duration::from_millis(200);

/// How long [`Scene::until`] waits, in simulated time.
const UNTIL_MAX: Duration = Duration::from_secs(600);

/// A store in memory, a clock, and the hosts on them.
///
/// All chance comes from the seed. Nodes run on threads, so two runs of one seed suffer the same faults but may
/// order what happens at the same time differently.
#[derive(Debug)]
pub struct Scene {
    clock: ManualClock,
    memory: Arc<Memory>,
    seed: u64,
    hosts: Mutex<Vec<Host>>,
}

/// A process as the others see it: a [`Node`], and its own way to the storage. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Host {
    node: Node,
    line: Arc<Faulty>,
    state: Arc<watch::Sender<State>>,
    session: Config,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Well,
    Disturbed,
    Paused,
}

impl Scene {
    /// Nobody is there yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            clock: ManualClock::new(),
            memory: Arc::new(Memory::new()),
            seed,
            hosts: Mutex::default(),
        }
    }

    /// Starts a node of this name, in the namespace `test`, with the default times: a ttl of 10 s.
    pub async fn host(&self, name: &str) -> Result<Host, Error> {
        let mut options = NodeOptions::new("memory:", "test");
        options.node = Some(name.to_owned());
        self.host_with(options).await
    }

    /// The same with options of your own. The store and the clock are the scene's, whatever they say.
    pub async fn host_with(&self, mut options: NodeOptions) -> Result<Host, Error> {
        options.runtime = self.clock.runtime();
        let session = options.session.clone();
        let seed = self.seed.wrapping_add(self.hosts().len() as u64);
        let line = Arc::new(Faulty::new(self.memory.clone(), Faults::default(), seed)?);
        let host = Host {
            node: Node::start_with(line.clone(), options).await?,
            line,
            state: Arc::new(watch::Sender::new(State::Well)),
            session,
        };
        self.hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(host.clone());
        Ok(host)
    }

    /// The time of this scene.
    #[must_use]
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Lets time pass, and the nodes do what they do meanwhile.
    pub async fn pass(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(STEP);
            left -= step;
            self.clock.advance(step);
            self.settle().await;
        }
    }

    /// Lets time pass until something is so.
    ///
    /// # Panics
    ///
    /// If it is not so after ten minutes of the scene's time.
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        let mut passed = Duration::ZERO;
        while !condition() {
            assert!(
                passed < UNTIL_MAX,
                "it did not come to that in {UNTIL_MAX:?}"
            );
            self.pass(STEP).await;
            passed += STEP;
        }
    }

    fn hosts(&self) -> Vec<Host> {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.clone()
    }

    /// Waits until every host that can has had its heartbeat confirmed. One that only just came back may need more
    /// time of the scene for it, so this does not wait for ever.
    async fn settle(&self) {
        let patience = Instant::now() + STEP_PATIENCE;
        let hosts = self.hosts();
        loop {
            sleep(Duration::from_millis(1)).await;
            if hosts.iter().all(Host::is_settled) || Instant::now() > patience {
                return;
            }
        }
    }
}

impl Host {
    /// The node, with which your code takes part.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its way to the storage: to script single requests, and to see how often each fault happened.
    #[must_use]
    pub fn line(&self) -> &Faulty {
        &self.line
    }

    /// Cuts it off: every request is refused.
    pub fn cut(&self) {
        self.disturb(State::Disturbed, Outage::Refusing);
    }

    /// Breaks its connections: reads fail, and nobody knows whether a write was carried out, which by chance
    /// it is or is not.
    pub fn lose_answers(&self) {
        self.disturb(State::Disturbed, Outage::Breaking);
    }

    /// Stops the process, as far as others can tell: nothing leaves it until it is mended. Whatever was under way
    /// goes on then, late.
    pub fn pause(&self) {
        self.disturb(State::Paused, Outage::Hanging);
    }

    /// Faults by chance, each with its own probability.
    pub fn set_faults(&self, faults: Faults) -> Result<(), Error> {
        self.line.set_faults(faults)?;
        self.state.send_replace(State::Disturbed);
        Ok(())
    }

    /// Ends every disturbance.
    pub fn mend(&self) {
        let none = self.line.set_faults(Faults::default());
        none.expect("no faults are as likely as they can be");
        self.disturb(State::Well, Outage::Over);
    }

    /// Resolves at once, or when the host is no longer paused: await it where your code could be stopped, such as in
    /// your test's double of what the leader writes to.
    pub async fn awake(&self) {
        let mut state = self.state.subscribe();
        let awake = state.wait_for(|&state| state != State::Paused).await;
        awake.expect("the sender is kept alive by self");
    }

    fn disturb(&self, state: State, outage: Outage) {
        self.line.set_outage(outage);
        self.state.send_replace(state);
    }

    /// Whether nothing is to be expected of it before time passes.
    fn is_settled(&self) -> bool {
        let Config {
            ttl,
            margin,
            heartbeat,
            ..
        } = self.session;
        let fresh = ttl.saturating_sub(margin + heartbeat + 2 * STEP);
        let remaining = Duration::from_millis(self.node.metrics().trust_remaining_ms);
        *self.state.borrow() != State::Well || remaining >= fresh
    }
}
