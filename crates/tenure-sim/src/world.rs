//! The world: virtual time, processes that come and go, and the agenda of events.

mod chaos;
mod events;
mod listings;
mod requests;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::node::{Answer, Input, Node, Output, Request};
use tenure_core::polls::{Poll, Polls};
use tenure_core::session::{About, Config, Holder};
use tenure_core::{ElectionName, Incarnation, Lineage, NodeId, Nonce, Now, Read};
use tenure_random::Random;

use crate::Summary;
use crate::clock::{Clock, Rates};
use crate::faults::{Counts, Plan};
use crate::invariants::{Violation, no_hot_loop};
use crate::oracle::Oracle;
use crate::process::{Meter, Process};
use crate::store::Store;
use crate::trace::Trace;
use crate::{judge, liveness};
use requests::Flight;

/// The options of a run, besides its seed.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many nodes; `None` draws a number from one to five.
    pub nodes: Option<usize>,
    /// How long chaos lasts, in ttls.
    pub chaos_ttls: u32,
    /// How many lines of a failing trace are shown.
    pub trace_lines: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: None,
            chaos_ttls: 40,
            trace_lines: 120,
        }
    }
}

/// The world.
#[derive(Debug)]
pub struct World {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) plan: Plan,
    pub(crate) store: Store,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    pub(crate) faults: Counts,
    pub(crate) slots: Vec<Slot>,
    pub(crate) processes: BTreeMap<u64, Process>,
    pub(crate) elections: Vec<ElectionName>,
    /// Whether the faults are over.
    pub(crate) is_calm: bool,
    /// When an operator last damaged an object.
    pub(crate) damaged_at: Option<Duration>,
    chaos_ends_at: Duration,
    /// The coming events, in order.
    agenda: BTreeMap<(Duration, u64), Happening>,
    sequence: u64,
    flights: BTreeMap<u64, Flight>,
    /// Until when the store is down, and whether it is silent instead of refusing.
    down_until: Duration,
    down_silently: bool,
    /// Earlier versions of each lease, for operators to restore.
    copies: BTreeMap<ElectionName, Vec<Vec<u8>>>,
    started: u64,
    steps: u64,
    requests: u64,
    requests_per_second_max: u64,
    /// How much of the bound for convergence was needed, in percent.
    pub(crate) convergence_percent: u64,
    /// Whether processes read leases through listings, as if they were in many more elections.
    lists: bool,
    /// Requested pages, and the looks that wait for one.
    pages: BTreeMap<u64, listings::Flight>,
    asked: BTreeMap<u64, Vec<Poll>>,
}

/// A place where processes run: a node id, its configuration, and a host with a clock.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) node_id: NodeId,
    pub(crate) config: Config,
    clock: Clock,
    priority: u8,
}

#[derive(Debug)]
pub(crate) enum Happening {
    Wake {
        process: u64,
        token: u64,
    },
    Deliver {
        process: u64,
        input: Box<Input>,
    },
    Arrive {
        flight: u64,
        answers: bool,
    },
    Reply {
        flight: u64,
        answer: requests::Reply,
    },
    Deadline {
        flight: u64,
    },
    /// A page is read by the store, arrives, or fails.
    PageRead {
        flight: u64,
    },
    PageBack {
        flight: u64,
        came: bool,
    },
    Resume {
        process: u64,
    },
    Start {
        slot: usize,
    },
    Chaos,
    RepairLease {
        election: ElectionName,
    },
}

impl World {
    /// The world of a seed.
    #[must_use]
    pub fn new(seed: u64, options: &Options) -> Self {
        let mut random = Random::of_run(seed);
        let count = options.nodes.unwrap_or_else(|| 1 + random.index(5));
        let ttl = Duration::from_secs(*random.pick(&[2, 5, 10, 10, 20]));
        let plan = Plan::draw(&mut random, ttl);
        let same_ttl = random.chance(600);
        let strict = random.chance(300);
        let configs: Vec<Config> = (1..=count)
            .map(|_| draw_config(&mut random, ttl, same_ttl, strict))
            .collect();
        // Every margin has to cover the clocks' differences, so the smallest one limits them.
        let rates = Rates::within(&configs);
        let slots = configs.into_iter().zip(1..);
        let slots = slots
            .map(|(config, number)| Slot::draw(&mut random, number, config, rates))
            .collect();
        let names: &[&str] = if random.chance(250) {
            &["default", "reports"]
        } else {
            &["default"]
        };
        let elections = names
            .iter()
            .map(|name| ElectionName::new(name).expect("these names are valid"))
            .collect();
        Self {
            now: Duration::ZERO,
            store: Store::new(&mut random, rates),
            random,
            plan,
            oracle: Oracle::new(rates.fastest()),
            trace: Trace::default(),
            faults: Counts::default(),
            slots,
            processes: BTreeMap::new(),
            elections,
            is_calm: false,
            damaged_at: None,
            chaos_ends_at: ttl * options.chaos_ttls,
            agenda: BTreeMap::new(),
            sequence: 0,
            flights: BTreeMap::new(),
            down_until: Duration::ZERO,
            down_silently: false,
            copies: BTreeMap::new(),
            started: 0,
            steps: 0,
            requests: 0,
            requests_per_second_max: 0,
            convergence_percent: 0,
            lists: seed.is_multiple_of(3),
            pages: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Chaos, then calm.
    ///
    /// # Errors
    ///
    /// The first violation.
    pub fn run(&mut self) -> Result<(), Violation> {
        for slot in 0..self.slots.len() {
            let at = self.random.up_to(self.ttl_max());
            self.plan_at(at, Happening::Start { slot });
        }
        self.plan_in(Duration::ZERO, Happening::Chaos);
        self.run_until(self.chaos_ends_at)?;
        self.calm_down();
        liveness::check(self)
    }

    /// The figures of the run.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            simulated: self.now,
            steps: self.steps,
            requests: self.requests,
            requests_per_second_max: self.requests_per_second_max,
            elected: self.oracle.elected_count,
            convergence_percent: self.convergence_percent,
            faults: self.faults.clone(),
            digest: self.trace.digest(),
        }
    }

    /// Lets everything happen that is due until then.
    pub(crate) fn run_until(&mut self, until: Duration) -> Result<(), Violation> {
        while self.happen(until)? {}
        self.now = until;
        Ok(())
    }

    /// Lets the next event happen; false if there is none until then.
    pub(crate) fn happen(&mut self, until: Duration) -> Result<bool, Violation> {
        let Some(entry) = self.agenda.first_entry() else {
            return Ok(false);
        };
        if entry.key().0 > until {
            return Ok(false);
        }
        let ((at, _), happening) = entry.remove_entry();
        self.now = at;
        self.carry_out(happening)?;
        self.check()?;
        Ok(true)
    }

    pub(crate) fn plan_in(&mut self, after: Duration, happening: Happening) {
        self.plan_at(self.now + after, happening);
    }

    pub(crate) fn deliver_in(&mut self, after: Duration, process: u64, input: Input) {
        let input = Box::new(input);
        self.plan_in(after, Happening::Deliver { process, input });
    }

    fn plan_at(&mut self, at: Duration, happening: Happening) {
        self.sequence += 1;
        self.agenda
            .insert((at.max(self.now), self.sequence), happening);
    }

    fn carry_out(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Wake { process, token } => {
                let running = self.processes.get(&process);
                if running.is_some_and(|process| process.wake_token == token) {
                    self.deliver(process, Input::Wake)?;
                }
            }
            Happening::Deliver { process, input } => self.deliver(process, *input)?,
            Happening::Arrive { flight, answers } => self.arrive(flight, answers)?,
            Happening::Reply { flight, answer } => self.reply(flight, answer)?,
            Happening::Deadline { flight } => self.reply(flight, requests::Reply::Lost)?,
            Happening::PageRead { flight } => self.read_page(flight),
            Happening::PageBack { flight, came } => self.page_back(flight, came)?,
            Happening::Resume { process } => self.resume(process)?,
            Happening::Start { slot } => self.start(slot)?,
            Happening::Chaos => self.chaos()?,
            Happening::RepairLease { election } => self.repair_lease(&election),
        }
        Ok(())
    }

    /// Checks the invariants that hold between events.
    fn check(&self) -> Result<(), Violation> {
        judge::between(
            self.now,
            &self.elections,
            self.processes.values(),
            &self.oracle,
        )
    }

    // ---- processes ----------------------------------------------------------------------------------

    pub(crate) fn ttl_max(&self) -> Duration {
        let ttls = self.slots.iter().map(|slot| slot.config.ttl);
        ttls.max().unwrap_or_default()
    }

    /// Starts a process in a slot, even if another one runs there.
    fn start(&mut self, slot: usize) -> Result<(), Violation> {
        self.started += 1;
        let id = self.started;
        let incarnation = Incarnation(u128::from(id));
        let host = &self.slots[slot];
        let me = Holder {
            node: host.node_id.clone(),
            incarnation,
            ttl: host.config.ttl,
        };
        let (config, priority) = (host.config.clone(), host.priority);
        self.oracle.configs.insert(incarnation, config.clone());
        let now = host.clock.now(self.now);
        let seed = self.random.bits();
        let process = Process {
            label: format!("{}/{id:x}", host.node_id),
            slot,
            node_id: host.node_id.clone(),
            incarnation,
            known_as: incarnation,
            node: Node::new(config.clone(), me, About::default(), now, seed),
            config,
            clock: host.clock.clone(),
            paused: None,
            cut_off_until: Duration::ZERO,
            blind_until: Duration::ZERO,
            unread_at: None,
            work: BTreeMap::new(),
            stands: BTreeMap::new(),
            replaced: false,
            over: false,
            wake_token: 0,
            idle_wakes: 0,
            meter: Meter::default(),
            listings: self.lists.then(|| Polls::new(&host.config)),
        };
        self.trace.say(self.now, &process.label, "starts");
        self.processes.insert(id, process);
        self.deliver(id, Input::Wake)?;
        for election in self.elections.clone() {
            self.join(id, &election, Some(priority))?;
        }
        Ok(())
    }

    pub(crate) fn join(
        &mut self,
        id: u64,
        election: &ElectionName,
        priority: Option<u8>,
    ) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        process.stands.insert(election.clone(), priority.is_some());
        let input = Input::Join {
            election: election.clone(),
            priority,
            new_lineage: Lineage(u128::from(self.random.bits())),
        };
        self.deliver(id, input)
    }

    /// Gives an input to a process, or keeps it until a paused process continues.
    pub(crate) fn deliver(&mut self, id: u64, input: Input) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        if let Some(waiting) = &mut process.paused {
            waiting.push(input);
            return Ok(());
        }
        self.step(id, input)
    }

    fn resume(&mut self, id: u64) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        let Some(mut waiting) = process.paused.take() else {
            return Ok(());
        };
        self.trace.say(self.now, &process.label, "goes on");
        if self.random.chance(500) {
            waiting.insert(0, Input::Wake);
        }
        waiting.push(Input::Wake);
        for input in waiting {
            self.deliver(id, input)?;
            self.check()?;
        }
        Ok(())
    }

    fn step(&mut self, id: u64, input: Input) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        if let Input::WorkEnded(election, term) = &input {
            if process.work.get(election) != Some(term) {
                return Ok(());
            }
            process.work.remove(election);
        }
        let woken = matches!(input, Input::Wake);
        // As in the driver: the read that settles a write is sent separately.
        let settles = matches!(input, Input::Answer(_, Answer::Written(_)));
        self.steps += 1;
        if let Some(words) = words::input(&input) {
            self.trace.say(self.now, &process.label, &words);
        }
        let now = Now {
            nonce: Nonce(u128::from(self.steps)),
            ..process.clock.now(self.now)
        };
        if matches!(input, Input::Answer(_, Answer::Lease(Read::Failed))) {
            process.unread_at = Some(self.now);
        }
        let outputs = process.node.step(now, input);
        let wants_more = process.node.wake_at() <= now.moment;
        let lists = process.listings.is_some() && !settles;
        if woken && outputs.is_empty() && wants_more {
            process.idle_wakes += 1;
            no_hot_loop::woken(process)?;
        } else {
            process.idle_wakes = 0;
        }
        for output in outputs {
            match output {
                Output::Request {
                    ticket,
                    request:
                        Request::ReadLease {
                            election,
                            known: Some(known),
                        },
                    within,
                } if lists => self.look_by_listing(id, ticket, election, known, within),
                Output::Request {
                    ticket,
                    request,
                    within,
                } => {
                    self.requests += 1;
                    self.send(id, ticket, request, within)?;
                }
                Output::Event(event) => self.on_event(id, event)?,
            }
        }
        self.serve_listings(id)?;
        self.plan_wake(id);
        Ok(())
    }

    fn plan_wake(&mut self, id: u64) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        process.wake_token += 1;
        let token = process.wake_token;
        let Some(at) = process.wake_at(self.now) else {
            return;
        };
        // Timers are always a little late, and more on a busy host.
        let late = if !self.is_calm && self.random.chance(50) {
            self.random.up_to(self.plan.latency * 10)
        } else {
            self.random.up_to(Duration::from_millis(2))
        };
        self.plan_at(
            at.max(self.now) + late,
            Happening::Wake { process: id, token },
        );
    }
}

fn draw_config(random: &mut Random, ttl: Duration, same_ttl: bool, strict: bool) -> Config {
    let factor = if same_ttl {
        1
    } else {
        1 + u32::try_from(random.below(3)).unwrap_or(0)
    };
    let mut config = Config {
        strict_age: strict,
        ..Config::for_ttl(ttl * factor)
    };
    if random.chance(150) {
        // The smallest margin that is accepted.
        config.margin = config.ttl / 100;
    }
    config.check().expect("these proportions are safe");
    config
}

impl Slot {
    fn draw(random: &mut Random, number: usize, config: Config, rates: Rates) -> Self {
        Self {
            node_id: NodeId::new(format!("n{number}")).expect("these names are valid"),
            config,
            clock: Clock::draw(random, rates),
            priority: if random.chance(700) {
                100
            } else {
                u8::try_from(random.below(200)).unwrap_or(100)
            },
        }
    }
}
