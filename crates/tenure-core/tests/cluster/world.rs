//! A world of nodes around one store: the machines of production, wired as in production; simulated time, storage,
//! processes, daemons and leaders. Everything follows from a seed.
//!
//! After every event: no shard is trusted by two processes. At every start: generations have grown.

#[path = "world/machines.rs"]
mod machines;
#[path = "world/store.rs"]
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::cluster::member::{self, Member, Membership};
use tenure_core::cluster::{
    Assignments, Config, Decision, Definition, Drained, Drains, Generation, Going, Part, Shard,
};
use tenure_core::election::{Term, Writer};
use tenure_core::node::{Answer, Input, Node as Machine, Request, Ticket};
use tenure_core::session::{self, About, Holder, Record};
use tenure_core::{
    DaemonId, ElectionName, Expect, Incarnation, Lineage, Moment, NodeId, Now, Wall,
};

use store::Store;
pub(crate) use tenure_random::Random;

/// What every clock shows when the world begins.
const ORIGIN: Moment = Moment::from_origin(Duration::from_secs(100_000));

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    queue: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    pub(crate) config: Config,
    session_config: session::Config,
    pub(crate) nodes: Vec<Node>,
    pub(crate) faults: Faults,
    store: Store,
    terms: u64,
    /// Who was elected since the election was last started over.
    led: BTreeSet<Incarnation>,
    lineage: u128,
    pub(crate) leader: Option<usize>,
    incarnations: u128,
    highest: BTreeMap<Shard, Generation>,
    judges_generations: bool,
    /// The terms that were ever on the assignments, and who put them there.
    installed: BTreeSet<(Term, Incarnation)>,
    /// Every start: when, what, on which node.
    pub(crate) starts: Vec<(Duration, Shard, usize)>,
    pub(crate) assignment_writes: u64,
    pub(crate) decisions: Vec<(Duration, Decision)>,
    /// The nodes that resigned so that others decide.
    pub(crate) resigned: Vec<usize>,
    /// A digest of everything that happened, to compare runs.
    pub(crate) digest: u64,
    pub(crate) events: u64,
    /// How many events there were at this very moment.
    rush: u32,
}

/// How likely faults are, in percent, and whether the store answers at all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) lost_answers: u64,
    pub(crate) slow_answers: u64,
    pub(crate) failing_starts: u64,
    pub(crate) hanging_daemons: u64,
    /// A process that is to start a shard is stopped for a moment, before it can report that.
    pub(crate) stopped_starts: u64,
    pub(crate) outage_until: Duration,
}

pub(crate) struct Node {
    name: NodeId,
    /// How fast its clock runs, in parts per thousand.
    rate: u32,
    /// Counts the starts of its process; what belongs to an older one is dropped.
    life: u64,
    pub(crate) up: bool,
    paused_until: Duration,
    incarnation: Incarnation,
    machine: Option<Machine>,
    has_left: bool,
    is_going: bool,
    leads: Option<Term>,
    pub(crate) running: BTreeMap<(Shard, Generation), Daemon>,
    /// How many shards its daemon has, as each shard was told, ended ones too.
    pub(crate) told: BTreeMap<(Shard, Generation), u32>,
    /// What is started here cannot be ended, and the node reports that.
    pub(crate) sticks: bool,
    pub(crate) offers: BTreeMap<DaemonId, Definition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    Starting,
    Running,
    /// Reacts to nothing but being aborted.
    Hanging,
}

#[derive(Debug, Clone)]
enum Event {
    /// The store carries a request out, and answers it this much later; never, if the answer is lost.
    Apply(Who, Request, Option<(Ticket, Duration)>),
    Answer(Who, Ticket, Answer),
    Started(Who, Shard, Generation),
    Ended(Who, Shard, Generation, Option<String>),
    Stuck(Who, Shard, Generation, Option<String>),
    Join(Who),
    Boot(usize),
    Deposed(Who, Term),
}

impl Event {
    fn is_create(&self) -> bool {
        let Event::Apply(_, Request::WriteAssignments { expect, .. }, _) = self else {
            return false;
        };
        *expect == Expect::Absent
    }

    fn name(&self) -> String {
        match self {
            Event::Apply(who, ..) => format!("apply {who:?}"),
            Event::Answer(who, ..) => format!("answer {who:?}"),
            other => format!("{other:?}"),
        }
    }
}

/// One session of one process of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Who {
    node: usize,
    life: u64,
    incarnation: Incarnation,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: usize, offers: &[(&str, Definition)]) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            random: Random::new(seed),
            queue: BTreeMap::new(),
            serial: 0,
            config: Config {
                failure_delay_max: Duration::from_secs(10),
                ..Config::default()
            },
            session_config: session::Config::default(),
            nodes: Vec::new(),
            faults: Faults::default(),
            store: Store::default(),
            terms: 0,
            led: BTreeSet::new(),
            lineage: 1,
            leader: None,
            incarnations: 0,
            highest: BTreeMap::new(),
            judges_generations: true,
            installed: BTreeSet::new(),
            starts: Vec::new(),
            assignment_writes: 0,
            decisions: Vec::new(),
            resigned: Vec::new(),
            digest: 0,
            events: 0,
            rush: 0,
        };
        for _ in 0..nodes {
            world.add_node(offers);
        }
        world
    }

    // ---- what a test does ---------------------------------------------------------------------------

    pub(crate) fn add_node(&mut self, offers: &[(&str, Definition)]) -> usize {
        let node = self.nodes.len();
        let name = NodeId::new(format!("n{node}")).unwrap();
        let offers = offers.iter().cloned();
        let offers = offers.map(|(id, definition)| (DaemonId::new(id).unwrap(), definition));
        self.nodes.push(Node {
            rate: 995 + u32::try_from(self.random.below(11)).unwrap(),
            life: 0,
            up: false,
            paused_until: Duration::ZERO,
            incarnation: Incarnation(0),
            machine: None,
            has_left: false,
            is_going: false,
            leads: None,
            running: BTreeMap::new(),
            told: BTreeMap::new(),
            sticks: false,
            offers: offers.collect(),
            name,
        });
        self.boot(node);
        node
    }

    /// Starts the node's process.
    pub(crate) fn boot(&mut self, node: usize) {
        if self.nodes[node].up {
            return;
        }
        let it = &mut self.nodes[node];
        it.up = true;
        it.life += 1;
        it.paused_until = Duration::ZERO;
        it.machine = None;
        it.is_going = false;
        it.leads = None;
        it.running.clear();
        self.join(node);
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        it.up = false;
        it.life += 1;
        it.machine = None;
        it.leads = None;
        it.running.clear();
        if self.leader == Some(node) {
            self.leader = None;
        }
    }

    /// Everything that runs on a node ends.
    pub(crate) fn end_all(&mut self, node: usize) {
        let running: Vec<_> = self.nodes[node].running.keys().cloned().collect();
        for key in running {
            self.end(node, Duration::ZERO, key, None);
        }
    }

    pub(crate) fn boot_in(&mut self, node: usize, delay: Duration) {
        self.push(delay, Event::Boot(node));
    }

    pub(crate) fn pause(&mut self, node: usize, duration: Duration) {
        self.nodes[node].paused_until = self.now + duration;
    }

    pub(crate) fn leave(&mut self, node: usize, going: Going) {
        if self.nodes[node].up {
            self.nodes[node].is_going = true;
            let leave = Input::Cluster(member::Input::Leave(going));
            self.tell(node, [leave, Input::Leave]);
        }
    }

    pub(crate) fn drain(&mut self, node: usize, drained: bool) {
        let name = self.nodes[node].name.clone();
        let version = self.store.next_version();
        let mut drains = match self.store.drains.take() {
            Some((drains, _)) => drains,
            None => Drains {
                writer: Writer {
                    incarnation: Incarnation(1),
                    counter: 0,
                    nonce: tenure_core::Nonce::default(),
                },
                nodes: BTreeMap::new(),
            },
        };
        drains.writer.counter += 1;
        if drained {
            let by = "ops".to_owned();
            let since = Wall(0);
            drains.nodes.insert(name, Drained { by, since });
        } else {
            drains.nodes.remove(&name);
        }
        self.store.drains = Some((drains, version));
    }

    /// Makes a node with a trusted session the leader. The old one learns of it after `told_in`; until then both
    /// decide.
    pub(crate) fn elect(&mut self, node: usize, told_in: Duration) -> bool {
        if !self.is_trusted(node) || self.nodes[node].leads.is_some() {
            return false;
        }
        if let Some(old) = self.leader
            && let Some(term) = self.nodes[old].leads
        {
            let who = self.who(old);
            self.push(told_in, Event::Deposed(who, term));
        }
        self.terms += 1;
        // In an election the former leader has ended or resigned by now. If it has not, it may still do anything.
        let others = self.nodes.iter().filter(|it| it.leads.is_some());
        let before = (others.count() == 0).then(|| self.led.clone());
        self.led.insert(self.nodes[node].incarnation);
        self.leader = Some(node);
        let term = Term(self.terms);
        self.nodes[node].leads = Some(term);
        let elected = member::Input::Elected(Lineage(self.lineage), term, before);
        self.tell(node, [Input::Cluster(elected)]);
        true
    }

    /// Lease and fence of the election are deleted: the leader is told in time, and the next term is 1 again, of
    /// another lineage.
    pub(crate) fn start_over(&mut self, node: usize) {
        if let Some(old) = self.leader.take()
            && let Some(term) = self.nodes[old].leads
        {
            let who = self.who(old);
            self.push(Duration::ZERO, Event::Deposed(who, term));
            self.run(Duration::from_millis(1));
        }
        self.lineage += 1;
        self.terms = 0;
        self.led.clear();
        self.installed.clear();
        assert!(self.elect(node, Duration::ZERO));
    }

    /// Deletes the session of a node that is there, as a person could.
    pub(crate) fn delete_session(&mut self, node: usize) {
        self.store.sessions.remove(&self.nodes[node].incarnation);
    }

    /// Deletes the assignments, as a person could. A create that was sent before and has not arrived does not arrive:
    /// it would bring back what it says, which would look as if they had never been deleted. A leader that is stopped
    /// just before such a create does the same to generations, so they are not judged from here on.
    pub(crate) fn delete_assignments(&mut self) {
        self.queue.retain(|_, event| !event.is_create());
        self.judges_generations = false;
        self.store.assignments = None;
    }

    /// Elects a node if none leads, as the election would.
    pub(crate) fn keep_a_leader(&mut self) {
        let leads = |node: usize| self.is_trusted(node) && self.nodes[node].leads.is_some();
        if !self.leader.is_some_and(leads) {
            self.leader = None;
            let trusted = (0..self.nodes.len()).find(|&node| self.is_trusted(node));
            if let Some(node) = trusted {
                self.elect(node, Duration::ZERO);
            }
        }
    }

    /// Lets time pass until a process is stopped, with a leader at all times.
    pub(crate) fn run_until_stopped(&mut self, most: Duration) {
        let until = self.now + most;
        while self.step(until) {
            self.keep_a_leader();
            let mut nodes = self.nodes.iter();
            if nodes.any(|it| it.up && it.paused_until > self.now) {
                return;
            }
        }
    }

    /// Lets time pass, with a leader at all times.
    pub(crate) fn run(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.step(until) {
            self.keep_a_leader();
        }
    }

    /// The next event before then; false if there is none.
    pub(crate) fn step(&mut self, until: Duration) -> bool {
        let wakes = (0..self.nodes.len()).map(|node| (self.wakes_at(node), node));
        let (wake_at, node) = wakes.min().unwrap_or((Duration::MAX, 0));
        let queued_at = self.queue.first_key_value().map(|(&(at, _), _)| at);
        let next = wake_at.min(queued_at.unwrap_or(Duration::MAX));
        if next > until {
            self.now = until;
            return false;
        }
        assert!(
            next > self.now || self.rush < 10_000,
            "{next:?}: time stands still"
        );
        self.rush = if next > self.now { 0 } else { self.rush + 1 };
        self.now = self.now.max(next);
        self.events += 1;
        if queued_at.is_some_and(|at| at <= wake_at) {
            let (_, event) = self.queue.pop_first().unwrap();
            self.note(&format!("{:?} {}", self.now, event.name()));
            self.happen(event);
        } else {
            self.note(&format!("{:?} wake {node}", self.now));
            self.tell(node, [Input::Wake]);
        }
        self.assert_nobody_shares_a_shard();
        true
    }

    /// Where every shard runs, if everything is as it should be.
    pub(crate) fn settled(&self) -> Result<Vec<u64>, String> {
        let mut running: BTreeMap<&Shard, Vec<usize>> = BTreeMap::new();
        let mut loads = vec![0; self.nodes.len()];
        for (node, it) in self.nodes.iter().enumerate() {
            for ((shard, generation), state) in &it.running {
                let trusted = it.trusted_until(shard, *generation);
                if *state != Daemon::Running || trusted.is_none() {
                    return Err(format!("{shard} is {state:?} on n{node}"));
                }
                running.entry(shard).or_default().push(node);
                loads[node] += u64::from(it.offers[&shard.daemon].weight);
            }
        }
        let mut wanted = BTreeMap::new();
        for it in self.nodes.iter().filter(|it| it.up) {
            wanted.extend(it.offers.iter());
        }
        for (daemon, definition) in wanted {
            for index in 0..definition.count.number() {
                let daemon = daemon.clone();
                let shard = Shard { daemon, index };
                match running.remove(&shard).as_deref() {
                    Some([_]) => {}
                    other => return Err(format!("{shard} runs on {other:?}")),
                }
            }
        }
        match running.into_keys().next() {
            Some(shard) => Err(format!("{shard} runs and should not")),
            None => Ok(loads),
        }
    }

    /// What helps to find out what went wrong.
    pub(crate) fn describe(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("at {:?}, leader {:?}\n", self.now, self.leader);
        for (node, it) in self.nodes.iter().enumerate() {
            let trusted = self.is_trusted(node);
            let runs: Vec<String> = it
                .running
                .keys()
                .map(|(shard, _)| shard.to_string())
                .collect();
            let name = &it.name;
            let _ = writeln!(
                text,
                "{name}: up {}, trusted {trusted}, going {:?}, leads {:?}, runs {}",
                it.up,
                it.is_going,
                it.leads,
                runs.join(" ")
            );
            let plan = it.member().and_then(|it| it.plan(self.moment(node)));
            for decision in plan.unwrap_or_default() {
                let _ = writeln!(text, "    {decision}");
            }
        }
        text
    }

    /// The nodes that each shard was started on since then.
    pub(crate) fn started_since(&self, when: Duration) -> Vec<(&Shard, usize)> {
        let since = self.starts.iter().filter(|(at, ..)| *at >= when);
        since.map(|(_, shard, node)| (shard, *node)).collect()
    }

    pub(crate) fn shards_on(&self, node: usize) -> Vec<Shard> {
        let running = self.nodes[node].running.keys();
        running.map(|(shard, _)| shard.clone()).collect()
    }

    pub(crate) fn assignments(&self) -> Option<Assignments> {
        let (bytes, _) = self.store.assignments.as_ref()?;
        Some(Assignments::decode(bytes).unwrap())
    }

    pub(crate) fn sessions(&self) -> Vec<Record> {
        let stored = self.store.sessions.values();
        stored.map(|(record, _)| record.clone()).collect()
    }

    // ---- what must always hold ----------------------------------------------------------------------

    fn assert_nobody_shares_a_shard(&self) {
        let mut trusted: BTreeMap<&Shard, usize> = BTreeMap::new();
        let mut counts: BTreeMap<&DaemonId, (u32, &Shard)> = BTreeMap::new();
        for (node, it) in self.nodes.iter().enumerate() {
            let moment = self.moment(node);
            for (shard, generation) in it.running.keys() {
                let until = it.trusted_until(shard, *generation);
                if until.is_none_or(|until| moment >= until) {
                    continue;
                }
                if let Some(other) = trusted.insert(shard, node) {
                    panic!("{:?}: n{other} and n{node} both trust {shard}", self.now);
                }
                let count = it.told[&(shard.clone(), *generation)];
                let (of_other, other) = *counts.entry(&shard.daemon).or_insert((count, shard));
                assert_eq!(
                    count, of_other,
                    "{:?}: {shard} and {other} divide the work differently",
                    self.now
                );
            }
        }
    }

    fn assert_generation_grows(&mut self, shard: &Shard, generation: Generation) {
        let highest = self.highest.entry(shard.clone()).or_default();
        assert!(
            generation > *highest || !self.judges_generations,
            "{:?}: {shard} starts in {generation} after {highest}",
            self.now
        );
        *highest = generation;
    }

    // ---- time ---------------------------------------------------------------------------------------

    /// What the clock of a node shows.
    fn moment(&self, node: usize) -> Moment {
        ORIGIN + self.now / 1000 * self.nodes[node].rate
    }

    /// When the clock of a node will show this.
    fn when(&self, node: usize, moment: Moment) -> Duration {
        if moment == Moment::NEVER {
            return Duration::MAX;
        }
        let elapsed = moment.since(ORIGIN) / self.nodes[node].rate * 1000;
        (elapsed + Duration::from_micros(2)).max(self.now)
    }

    fn wakes_at(&self, node: usize) -> Duration {
        let it = &self.nodes[node];
        if !it.up {
            return Duration::MAX;
        }
        let at = it.machine.as_ref().map_or(Moment::NEVER, Machine::wake_at);
        self.when(node, at).max(it.paused_until)
    }

    // ---- events -------------------------------------------------------------------------------------

    fn push(&mut self, delay: Duration, event: Event) {
        self.serial += 1;
        self.queue.insert((self.now + delay, self.serial), event);
    }

    fn happen(&mut self, event: Event) {
        let who = match &event {
            Event::Apply(..) | Event::Boot(_) => None,
            Event::Answer(who, ..)
            | Event::Started(who, ..)
            | Event::Ended(who, ..)
            | Event::Stuck(who, ..)
            | Event::Join(who)
            | Event::Deposed(who, _) => Some(*who),
        };
        if let Some(who) = who {
            let it = &self.nodes[who.node];
            if !it.up || it.life != who.life {
                return;
            }
            if self.now < it.paused_until {
                self.push(it.paused_until - self.now, event);
                return;
            }
        }
        match event {
            Event::Apply(who, request, answered) => {
                let answer = self.apply(request);
                if let Some((ticket, delay)) = answered {
                    self.push(delay, Event::Answer(who, ticket, answer));
                }
            }
            // Answers to a session that is over are dropped.
            Event::Answer(who, ticket, answer) => {
                if self.nodes[who.node].incarnation == who.incarnation {
                    self.tell(who.node, [Input::Answer(ticket, answer)]);
                }
            }
            Event::Started(who, shard, generation) => {
                let key = (shard, generation);
                let it = &mut self.nodes[who.node];
                if it.running.get(&key) == Some(&Daemon::Starting) {
                    it.running.insert(key.clone(), Daemon::Running);
                    let started = member::Input::Started(key.0, key.1);
                    self.tell(who.node, [Input::Cluster(started)]);
                }
            }
            Event::Ended(who, shard, generation, error) => {
                let key = (shard, generation);
                if self.nodes[who.node].running.remove(&key).is_some() {
                    let (shard, generation) = key;
                    let ended = member::Input::Ended {
                        shard,
                        generation,
                        error,
                    };
                    self.tell(who.node, [Input::Cluster(ended)]);
                }
            }
            Event::Stuck(who, shard, generation, error) => {
                let stuck = member::Input::Stuck {
                    shard,
                    generation,
                    error,
                };
                self.tell(who.node, [Input::Cluster(stuck)]);
            }
            // A node that has said meanwhile that it leaves begins no new session.
            Event::Join(who) if self.nodes[who.node].is_going => {}
            Event::Join(who) => self.join(who.node),
            Event::Boot(node) => self.boot(node),
            Event::Deposed(who, term) => {
                let it = &mut self.nodes[who.node];
                if it.leads == Some(term) {
                    it.leads = None;
                    self.tell(who.node, [Input::Cluster(member::Input::Deposed)]);
                }
            }
        }
    }

    fn join(&mut self, node: usize) {
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations + 100);
        let seed = self.random.bits();
        let holder = self.holder(&self.nodes[node].name, incarnation);
        let now = Now {
            moment: self.moment(node),
            ..Now::default()
        };
        let config = self.session_config.clone();
        let it = &mut self.nodes[node];
        it.incarnation = incarnation;
        it.has_left = false;
        let about = About {
            stands: [(ElectionName::cluster(), 100)].into(),
            ..About::default()
        };
        let member = it.machine.as_mut().and_then(Machine::take_member);
        let mut inputs = vec![Input::Wake];
        if member.is_none() {
            inputs.push(Input::TakePart(Box::new(Membership {
                config: self.config.clone(),
                part: Part::default(),
                // Some follow all nodes even while they do not lead.
                follows: node.is_multiple_of(2),
                seed,
            })));
            let offers = it.offers.clone().into_iter();
            let offers = offers.map(|(id, definition)| member::Input::Offer(id, definition));
            inputs.extend(offers.map(Input::Cluster));
        }
        it.machine = Some(Machine::resume(config, holder, about, member, now, seed));
        self.tell(node, inputs);
    }

    // ---- small things -------------------------------------------------------------------------------

    pub(crate) fn is_trusted(&self, node: usize) -> bool {
        let (it, moment) = (&self.nodes[node], self.moment(node));
        let machine = it.machine.as_ref();
        it.up && machine.is_some_and(|machine| machine.is_trusted(moment))
    }

    fn who(&self, node: usize) -> Who {
        Who {
            node,
            life: self.nodes[node].life,
            incarnation: self.nodes[node].incarnation,
        }
    }

    fn holder(&self, node: &NodeId, incarnation: Incarnation) -> Holder {
        Holder {
            node: node.clone(),
            incarnation,
            ttl: self.session_config.ttl,
        }
    }

    fn note(&mut self, text: &str) {
        for byte in text.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Node {
    fn member(&self) -> Option<&Member> {
        self.machine.as_ref()?.member()
    }

    fn is_idle(&self) -> bool {
        self.member().is_none_or(Member::is_idle)
    }

    fn trusted_until(&self, shard: &Shard, generation: Generation) -> Option<Moment> {
        self.member()?.trusted_until(shard, generation)
    }
}
