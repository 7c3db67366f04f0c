//! The shared state of a run: the answers of callers, the leaders, and the checks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::testing::RunningClock;
use tenure::{Election, NamespaceView, Node, NodeOptions, OneShot, Outcome, Token};
use tenure_core::election::Lease;
use tenure_core::session::Config;
use tenure_core::{ElectionName, Lineage, Namespace, NodeId};
use tenure_random::Random;
use tenure_store::engine::memory::Memory;
use tenure_store::wrap::faulty::{Faults, Faulty};
use tenure_store::{Key, Store};
use tokio::time::Instant;

use super::Summary;
use super::store::{Aged, Ages};
use crate::clock::{Rates, real_length};
use crate::invariants::Violation;
use crate::stack::process::Process;
use crate::trace::Trace;

/// Every caller and node takes part in both.
pub(super) const ELECTIONS: [&str; 2] = ["nightly", "hourly"];

const NAMESPACE: &str = "callers";
const WALL_MS: u64 = 1_767_225_600_000;

/// The parameters of a run, drawn from its seed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) ttl: Duration,
    pub(super) callers: usize,
    pub(super) nodes: usize,
    /// How long a caller waits between two calls, on average.
    pub(super) every: Duration,
    /// The longest latency of the store when the faults are over.
    pub(super) latency: Duration,
    /// Whether the store has ages.
    pub(super) ages: bool,
    pub(super) faults: Faults,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) memory: Arc<Memory>,
    /// The store without faults, for operators.
    pub(super) view: NamespaceView,
    pub(super) callers: Vec<Caller>,
    pub(super) nodes: Vec<Host>,
    pub(super) led: AtomicU64,
    pub(super) asked: AtomicU64,
    pub(super) followed: AtomicU64,
    pub(super) failed: AtomicU64,
    started: Instant,
    random: Mutex<Random>,
    trace: Mutex<Trace>,
    /// Who led each term.
    terms: Mutex<BTreeMap<(&'static str, Lineage, u64), String>>,
    violation: Mutex<Option<Violation>>,
}

/// A program that makes a call now and then.
pub(super) struct Caller {
    pub(super) id: NodeId,
    pub(super) store: Arc<Faulty>,
    pub(super) process: Arc<Process>,
    clock: RunningClock,
    rate: u64,
    /// The answer that it acts on in each election: the token, and until when.
    told: Mutex<BTreeMap<&'static str, (Token, Instant)>>,
}

/// A node that is a candidate in all elections while it runs.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) store: Arc<Faulty>,
    clock: RunningClock,
    running: Mutex<Option<Running>>,
}

#[derive(Clone)]
pub(super) struct Running {
    pub(super) process: Arc<Process>,
    elections: Vec<(&'static str, Election)>,
    /// Kept alive as long as its elections.
    _node: Node,
}

pub(super) fn name(election: &str) -> ElectionName {
    ElectionName::new(election).expect("these names are valid")
}

impl World {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let mut random = Random::of_run(seed);
        let plan = Plan::draw(&mut random);
        let memory = Arc::new(Memory::new());
        let shared: Arc<dyn Store> = Arc::new(Aged {
            store: memory.clone(),
            ages: if plan.ages {
                Ages::SinceBegun(plan.ttl / 2)
            } else {
                Ages::None
            },
        });
        let rates = Rates::within([&Config::for_ttl(plan.ttl)]);
        let faulty = |random: &mut Random| {
            let store = Faulty::new(shared.clone(), plan.faults.clone(), random.bits());
            Arc::new(store.expect("these faults are possible"))
        };
        let callers = (1..=plan.callers).map(|number| {
            let rate = rates.draw(&mut random);
            Caller {
                id: NodeId::new(format!("c{number}")).expect("these names are valid"),
                store: faulty(&mut random),
                process: Process::new(random.bits()),
                clock: RunningClock::new(rate, WALL_MS),
                rate,
                told: Mutex::default(),
            }
        });
        let callers = callers.collect();
        let nodes = (1..=plan.nodes).map(|number| Host {
            name: format!("n{number}"),
            store: faulty(&mut random),
            clock: RunningClock::new(rates.draw(&mut random), WALL_MS),
            running: Mutex::default(),
        });
        let nodes = nodes.collect();
        let namespace = Namespace::new(NAMESPACE).expect("a valid name");
        Arc::new(Self {
            view: NamespaceView::new(memory.clone(), namespace),
            memory,
            callers,
            nodes,
            led: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            plan,
            started: Instant::now(),
            random: Mutex::new(random),
            trace: Mutex::default(),
            terms: Mutex::default(),
            violation: Mutex::default(),
        })
    }

    pub(super) fn summary(&self) -> Summary {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Summary {
            simulated: self.elapsed(),
            led: count(&self.led),
            asked: count(&self.asked),
            followed: count(&self.followed),
            failed: count(&self.failed),
            digest: self.trace().digest(),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn random(&self) -> MutexGuard<'_, Random> {
        lock(&self.random)
    }

    pub(super) fn trace(&self) -> MutexGuard<'_, Trace> {
        lock(&self.trace)
    }

    pub(super) fn say(&self, who: &str, what: &str) {
        let at = self.elapsed();
        self.trace().say(at, who, what);
    }

    pub(super) fn verdict(&self) -> Result<(), Violation> {
        for process in self.processes() {
            if let Some(panic) = process.panic() {
                return Err(Violation::new("no process panics", panic));
            }
        }
        match &*lock(&self.violation) {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    fn processes(&self) -> Vec<Arc<Process>> {
        let callers = self.callers.iter().map(|caller| caller.process.clone());
        let nodes = self.nodes.iter().filter_map(Host::running);
        callers.chain(nodes.map(|it| it.process)).collect()
    }

    /// Records a violation. Only the first counts, since later ones may be its consequences.
    fn judge(&self, property: &'static str, message: String) {
        self.say("judge", &message);
        lock(&self.violation).get_or_insert(Violation::new(property, message));
    }

    /// Checks what must hold at every moment.
    pub(super) fn check(&self) {
        for election in ELECTIONS {
            let mut leaders = Vec::new();
            for caller in &self.callers {
                let told = lock(&caller.told).get(election).copied();
                if let Some((token, _)) = told.filter(|(_, until)| Instant::now() < *until) {
                    leaders.push((caller.id.to_string(), token));
                }
            }
            for host in &self.nodes {
                if let Some(token) = host.leads(election) {
                    leaders.push((host.name.clone(), token));
                }
            }
            for (who, token) in &leaders {
                self.note_term(election, *token, who);
            }
            if leaders.len() > 1 {
                let message = format!("{leaders:?} trust themselves to lead {election}");
                self.judge("at most one trusted leader", message);
            }
        }
    }

    fn note_term(&self, election: &'static str, token: Token, who: &str) {
        let mut terms = lock(&self.terms);
        let key = (election, token.lineage, token.term.0);
        let led_by = terms.entry(key).or_insert_with(|| who.into());
        if led_by != who {
            let message = format!("{election}: {token:?} was led by {led_by}, and now by {who}");
            drop(terms);
            self.judge("a term belongs to one candidate", message);
        }
    }

    pub(super) async fn lease(&self, election: &str) -> Option<Lease> {
        let key = Key::new(format!("{NAMESPACE}/elections/{election}")).expect("a valid key");
        let object = self.memory.get(&key).await.expect("memory does not fail");
        object.and_then(|object| Lease::decode(&object.value).ok())
    }

    /// One call of a caller; the answer counts until the next one.
    pub(super) async fn call(&self, number: usize, election: &'static str, ttl: Duration) {
        let caller = &self.callers[number];
        let who = caller.id.as_str();
        self.say(who, &format!("calls {election}, ttl {ttl:?}"));
        let outcome = caller.one_shot(election, ttl).elect(&caller.id).await;
        match outcome {
            Ok(outcome) => self.told(number, election, &outcome),
            Err(error) => {
                // The earlier answer is all that it knows.
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.say(who, &format!("{election} failed: {error}"));
            }
        }
        self.check();
    }

    fn told(&self, number: usize, election: &'static str, outcome: &Outcome) {
        let caller = &self.callers[number];
        let until = Instant::now() + real_length(outcome.valid_for, caller.rate);
        let mut told = lock(&caller.told);
        match outcome.token {
            Some(token) => {
                self.led.fetch_add(1, Ordering::Relaxed);
                told.insert(election, (token, until));
            }
            None => drop(told.remove(election)),
        }
        if outcome.asked_by.is_some() {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
        drop(told);
        let words = format!(
            "{election}: token {:?} for {:?}, asked by {:?}, leader {:?}, reserved for {:?}",
            outcome.token,
            outcome.valid_for,
            outcome.asked_by,
            outcome.leader.as_ref().map(|leader| &leader.node),
            outcome.reserved_for
        );
        self.say(caller.id.as_str(), &words);
    }

    /// Whether its last answer was "leader", and it may still act on that.
    pub(super) fn is_told(&self, number: usize, election: &str) -> bool {
        let told = lock(&self.callers[number].told).get(election).copied();
        told.is_some_and(|(_, until)| Instant::now() < until)
    }

    /// Stops acting on its last answer.
    pub(super) fn stop_work(&self, number: usize, election: &str) {
        lock(&self.callers[number].told).remove(election);
    }

    pub(super) async fn withdraw(&self, number: usize, election: &'static str) {
        self.stop_work(number, election);
        let caller = &self.callers[number];
        let elections = caller.one_shot(election, self.plan.ttl);
        let withdrawn = elections.withdraw(&caller.id, None).await;
        let words = format!("withdraws from {election}: {withdrawn:?}");
        self.say(caller.id.as_str(), &words);
        self.check();
    }

    /// Starts a node, unless it runs.
    pub(super) async fn start(&self, number: usize) {
        let host = &self.nodes[number];
        if host.running().is_some() {
            return;
        }
        let process = Process::new(self.random().bits());
        let mut options = NodeOptions::new("memory:", NAMESPACE);
        options.node = Some(host.name.clone());
        options.session = Config::for_ttl(self.plan.ttl);
        options.nudge = None;
        options.runtime = host.clock.runtime().with_process(process.clone());
        let node = Node::start_with(host.store.clone(), options).await;
        let node = node.expect("the options are right");
        let mut elections = Vec::new();
        for election in ELECTIONS {
            let joined = node.join(election).await;
            elections.push((election, joined.expect("the name is right")));
        }
        self.say(&host.name, "runs");
        *lock(&host.running) = Some(Running {
            process,
            elections,
            _node: node,
        });
    }

    pub(super) fn crash(&self, number: usize) {
        let host = &self.nodes[number];
        if let Some(running) = lock(&host.running).take() {
            running.process.crash();
            self.say(&host.name, "crashes");
        }
    }
}

impl Plan {
    fn draw(random: &mut Random) -> Self {
        let ttl = Duration::from_secs(*random.pick(&[5, 10, 30]));
        let latency = ttl / *random.pick(&[20, 100, 1000]);
        let mut often = || f64::from(*random.pick(&[0_u32, 5, 20, 60])) / 1000.0;
        let faults = Faults {
            refused: often(),
            answer_lost: often(),
            request_lost: often(),
            late: often(),
            late_by: Duration::ZERO..=ttl * 2,
            duplicated: often(),
            retried: often(),
            young: often(),
            hint_lost: often(),
            hint_late: often(),
            ..calm(latency)
        };
        Self {
            ttl,
            callers: 2 + random.index(2),
            nodes: random.index(3),
            every: ttl / *random.pick(&[1, 3, 8]),
            // Short enough that several rounds of calls fit into a ttl.
            latency: latency.min(ttl / 200),
            ages: random.chance(500),
            faults,
        }
    }
}

/// No faults, only latency.
pub(super) fn calm(latency: Duration) -> Faults {
    Faults {
        delayed: 1.0,
        delay: latency / 10..=latency,
        ..Faults::default()
    }
}

impl Caller {
    /// The interface for one call, as in a new program each time.
    fn one_shot(&self, election: &str, ttl: Duration) -> OneShot {
        let elections = OneShot::new(self.store.clone(), NAMESPACE, ttl);
        let elections = elections.expect("the ttl is right");
        let elections = elections.with_election(election);
        let elections = elections.expect("the name is right");
        elections.with_runtime(self.clock.runtime().with_process(self.process.clone()))
    }
}

impl Host {
    pub(super) fn running(&self) -> Option<Running> {
        lock(&self.running).clone()
    }

    pub(super) fn leads(&self, election: &str) -> Option<Token> {
        let running = self.running()?;
        let mut elections = running.elections.iter();
        let (_, election) = elections.find(|(name, _)| *name == election)?;
        Some(election.leadership()?.token())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
