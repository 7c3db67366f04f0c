//! One election, as the application sees it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::election::{EndReason, Leader, Term};
use tenure_core::{ElectionName, Lineage, NodeId};
use tokio::sync::{mpsc, watch};

use crate::driver::Command;
use crate::leadership::Leadership;
use crate::node::Inner;
use crate::{Error, Stopped};

/// How far behind a subscriber may fall.
const TRANSITIONS_WAITING_MAX: usize = 4096;

/// This process's part in one election. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Election {
    seat: Arc<Seat>,
    node: Arc<Inner>,
}

/// What this process went through in an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// It does not lead: what a new subscriber hears first if so, and at no other time.
    NotLeading,
    /// It leads now.
    Elected {
        /// The term.
        term: Term,
        /// The row of terms that it belongs to.
        lineage: Lineage,
    },
    /// It leads no longer.
    Ended {
        /// The term.
        term: Term,
        /// Why.
        reason: EndReason,
    },
}

impl Election {
    pub(crate) fn new(seat: Arc<Seat>, node: Arc<Inner>) -> Self {
        Self { seat, node }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ElectionName {
        &self.seat.name
    }

    /// Whether this process leads, right now: asks the clock, not a timer.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership().is_some()
    }

    /// The current term, if this process leads it.
    #[must_use]
    pub fn leadership(&self) -> Option<Leadership> {
        self.seat
            .current
            .borrow()
            .clone()
            .filter(|leadership| leadership.check().is_ok())
    }

    /// Waits until this process leads.
    pub async fn elected(&self) -> Result<Leadership, Error> {
        let mut current = self.seat.current.subscribe();
        loop {
            if let Some(leadership) = self.leadership() {
                return Ok(leadership);
            }
            tokio::select! {
                biased;
                changed = current.changed() => changed.map_err(|_| Error::ShutDown)?,
                () = self.node.stopped() => return Err(Error::ShutDown),
            }
        }
    }

    /// Does `work` in every term that this process leads, until the node is shut down. When the work
    /// returns, leadership is given up, and another node gets its turn. It is also given up when this future is
    /// dropped while the work runs; the process stays a candidate.
    pub async fn lead<W, F>(&self, mut work: W) -> Result<(), Error>
    where
        W: FnMut(Leadership) -> F,
        F: Future<Output = ()>,
    {
        loop {
            let leadership = match self.elected().await {
                Ok(leadership) => leadership,
                Err(Error::ShutDown) => return Ok(()),
                Err(error) => return Err(error),
            };
            // Nobody works for a term whose work was dropped, so it is resigned in any case. Once the term is over
            // that changes nothing.
            let resigned = ResignOnDrop(&leadership);
            let _: Result<(), Stopped> = leadership.run(work(leadership.clone())).await;
            drop(resigned);
            self.ended(&leadership).await;
        }
    }

    /// Waits until the term of `leadership` is no longer the current one.
    pub(crate) async fn ended(&self, leadership: &Leadership) {
        let mut current = self.seat.current.subscribe();
        let is_over = |now: &Option<Leadership>| {
            now.as_ref()
                .is_none_or(|now| now.term() != leadership.term())
        };
        // An error means that the driver is gone, and with it the term.
        let _ = current.wait_for(is_over).await;
    }

    /// Who leads, as this process saw last; it may be out of date.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        self.seat.leader.borrow().clone()
    }

    /// Who leads, as it changes.
    pub(crate) fn leaders(&self) -> watch::Receiver<Option<Leader>> {
        self.seat.leader.subscribe()
    }

    /// Gives leadership up, if this process has it, and stands back for a while.
    pub fn resign(&self) {
        self.node.send(Command::Resign(self.seat.name.clone()));
    }

    /// Asks the leader to resign. It does so when it sees the request.
    pub async fn request_resign(&self) -> Result<(), Error> {
        self.node
            .view
            .request_resign(&self.seat.name, &self.node.id)
            .await
    }

    /// Hands leadership to a node that is a live candidate: at once if this process leads, else by a
    /// request to the leader. A name that several candidates have is refused. To the leader itself it takes back what
    /// the leader was asked before, see [`NamespaceView::request_transfer`](crate::NamespaceView::request_transfer).
    pub async fn transfer_to(&self, node: &NodeId) -> Result<(), Error> {
        let name = &self.seat.name;
        // To itself only by way of the lease: somebody may ask it there to go, which it has not seen yet.
        if self.is_leader() && *node != self.node.id {
            let to = self.node.view.find_candidate(name, node).await?;
            self.node.send(Command::Transfer(name.clone(), to));
            return Ok(());
        }
        self.node
            .view
            .request_transfer(name, node, &self.node.id)
            .await
    }

    /// Every transition of this process from now on, in order, beginning with the current state: elected, or not leading. A
    /// slow subscriber blocks nobody.
    #[must_use]
    pub fn subscribe(&self) -> Transitions {
        self.seat.subscribe()
    }
}

struct ResignOnDrop<'a>(&'a Leadership);

impl Drop for ResignOnDrop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up("the work panicked");
        }
        self.0.resign();
    }
}

/// The transitions of one process in one election: elected and ended, in turn, after the state that it begins with.
#[derive(Debug)]
pub struct Transitions {
    receiver: mpsc::Receiver<Transition>,
}

impl Transitions {
    /// The next transition; `None` when the node has shut down, or if this subscriber has fallen 4,096
    /// transitions behind: then it was cut off, since skipping some would break the pairs.
    pub async fn next(&mut self) -> Option<Transition> {
        self.receiver.recv().await
    }
}

/// What the driver tells, and handles read.
#[derive(Debug)]
pub(crate) struct Seat {
    name: ElectionName,
    current: watch::Sender<Option<Leadership>>,
    leader: watch::Sender<Option<Leader>>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// The last transition, if it was an election: what a new subscriber hears first.
    elected: Option<Transition>,
    subscribers: Vec<mpsc::Sender<Transition>>,
    /// Nothing will come any more.
    closed: bool,
}

impl Seat {
    pub(crate) fn new(name: ElectionName) -> Arc<Self> {
        Arc::new(Self {
            name,
            current: watch::Sender::new(None),
            leader: watch::Sender::new(None),
            log: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &ElectionName {
        &self.name
    }

    pub(crate) fn elected(&self, leadership: Leadership, term: Term, lineage: Lineage) {
        let transition = Transition::Elected { term, lineage };
        let mut log = self.log();
        log.elected = Some(transition.clone());
        log.tell(&transition);
        self.current.send_replace(Some(leadership));
    }

    pub(crate) fn ended(&self, term: Term, reason: EndReason) {
        self.current.send_replace(None);
        let mut log = self.log();
        log.elected = None;
        log.tell(&Transition::Ended { term, reason });
    }

    pub(crate) fn leader_is(&self, leader: Option<Leader>) {
        self.leader.send_replace(leader);
    }

    pub(crate) fn leader(&self) -> Option<Leader> {
        self.leader.borrow().clone()
    }

    /// The driver has ended, and with it every subscription; if by a panic, then also the term that was led.
    pub(crate) fn close(&self) {
        let led = self.log().elected.clone();
        if let Some(Transition::Elected { term, .. }) = led {
            self.ended(term, EndReason::SessionOver);
        }
        let mut log = self.log();
        log.closed = true;
        log.subscribers.clear();
    }

    fn subscribe(&self) -> Transitions {
        let (sender, receiver) = mpsc::channel(TRANSITIONS_WAITING_MAX);
        let mut log = self.log();
        // When the node has shut down there is no state any more.
        if !log.closed {
            let now = log.elected.clone().unwrap_or(Transition::NotLeading);
            sender.try_send(now).expect("the channel is new and empty");
            log.subscribers.push(sender);
        }
        Transitions { receiver }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn tell(&mut self, transition: &Transition) {
        self.subscribers
            .retain(|subscriber| subscriber.try_send(transition.clone()).is_ok());
    }
}
