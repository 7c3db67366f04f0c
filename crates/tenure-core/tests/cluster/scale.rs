//! A hundred nodes and ten thousand shards: what moves, and what a decision costs.
//!
//! Prints the CPU time of each decision; `cargo test --release --test cluster scale -- --nocapture` shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::cluster::assigner::{Assigner, Input, Output, plan};
use tenure_core::cluster::{
    Assignment, AssignmentState, Assignments, Config, Definition, Part, Run, RunState,
};
use tenure_core::election::Term;
use tenure_core::session::About;
use tenure_core::session::observer::End;
use tenure_core::session::{self, Holder, Record, State};
use tenure_core::{
    DaemonId, Incarnation, Lineage, Moment, NodeId, Now, Read, Version, Wall, Written,
};

const NODES: u32 = 100;

/// How many plans are made to measure one.
const PLANS: u32 = 20;

struct Leader {
    now: Duration,
    assigner: Assigner,
    sessions: BTreeMap<Incarnation, Record>,
    versions: u64,
    offers: BTreeMap<DaemonId, Definition>,
}

impl Leader {
    fn new(daemons: u32, shards: u32) -> Self {
        let offers = (0..daemons).map(|number| {
            let id = DaemonId::new(format!("daemon-{number}")).unwrap();
            (id, Definition::shards(shards))
        });
        let me = holder(0);
        let session = session::Config::default();
        let mut leader = Self {
            now: Duration::from_secs(1000),
            assigner: Assigner::new(Config::default(), &session, me, Moment::default(), 7),
            sessions: BTreeMap::new(),
            versions: 0,
            offers: offers.collect(),
        };
        for number in 0..NODES {
            leader.add_session(number);
        }
        leader
    }

    fn add_session(&mut self, number: u32) {
        let Holder {
            node,
            incarnation,
            ttl,
        } = holder(number);
        let part = Part {
            offers: self.offers.clone(),
            ..Part::default()
        };
        let about = About {
            cluster: Some(Box::new(part)),
            ..About::default()
        };
        let record = Record {
            node,
            incarnation,
            counter: 1,
            nonce: tenure_core::Nonce::default(),
            ttl,
            state: State::Alive,
            joined_at: Wall(0),
            about: Box::new(about),
        };
        self.sessions.insert(incarnation, record);
    }

    /// Gives an input, confirms what is written, and goes on until nothing more comes. Returns the last
    /// assignments that were written.
    fn step(&mut self, what: &str, input: Input) -> Option<Assignments> {
        let mut written = None;
        // Time passes until what can wait has been written too.
        let mut inputs = vec![Input::Wake; 8];
        inputs.push(input);
        while let Some(input) = inputs.pop() {
            self.now += Duration::from_secs(1);
            let now = Now {
                moment: Moment::from_origin(self.now),
                wall: Wall(1_700_000_000_000),
                nonce: tenure_core::Nonce::default(),
            };
            let before = cpu();
            let outputs = self.assigner.step(now, input);
            let spent = cpu() - before;
            for output in outputs {
                match output {
                    Output::Read { known: None } => inputs.push(Input::Read(Read::Missing)),
                    Output::Read { .. } => {
                        inputs.push(Input::Read(Read::Unchanged { age: None }));
                    }
                    Output::ReadDrains { .. } => inputs.push(Input::DrainsRead(Read::Missing)),
                    Output::Say => inputs.push(Input::Said),
                    Output::Write { assignments, .. } => {
                        let bytes = assignments.encode();
                        eprintln!("{what}: {spent:?} of CPU, {} bytes", bytes.len());
                        self.versions += 1;
                        let version = Version::new(self.versions.to_string());
                        written = Some(*assignments);
                        inputs.push(Input::Written(Written::Done(version)));
                    }
                    _ => {}
                }
            }
        }
        written
    }

    /// Every node reports that it runs what it was given.
    fn report(&mut self, assignments: &Assignments) -> Vec<Record> {
        for record in self.sessions.values_mut() {
            record.counter += 1;
            record.about.cluster.as_mut().unwrap().runs.clear();
        }
        for (daemon, index, assignment) in assignments.iter() {
            if let Some(record) = self.sessions.get_mut(&assignment.incarnation) {
                let part = record.about.cluster.as_mut().unwrap();
                let runs = part.runs.entry(daemon.clone()).or_default();
                runs.push(Run(index, assignment.generation, RunState::Running));
            }
        }
        self.sessions.values().cloned().collect()
    }
}

fn holder(number: u32) -> Holder {
    Holder {
        node: NodeId::new(format!("node-{number:03}")).unwrap(),
        incarnation: Incarnation(u128::from(number) + 1),
        ttl: Duration::from_secs(10),
    }
}

/// The CPU time of this thread, where the system reports it.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|field| field.parse().ok());
    Duration::from_nanos(first.unwrap_or_default())
}

fn owners(assignments: &Assignments) -> BTreeMap<(DaemonId, u32), Incarnation> {
    let all = assignments.iter();
    all.map(|(daemon, index, held)| ((daemon.clone(), index), held.incarnation))
        .collect()
}

fn loads(assignments: &Assignments) -> BTreeMap<Incarnation, u32> {
    let mut loads = BTreeMap::new();
    for (_, _, assignment) in assignments.iter() {
        *loads.entry(assignment.incarnation).or_default() += 1;
    }
    loads
}

fn ten_thousand_shards(daemons: u32, shards: u32) {
    let mut leader = Leader::new(daemons, shards);
    let _ = leader.step(
        "election",
        Input::Elected(Lineage(1), Term(1), Some(BTreeSet::new())),
    );
    let sessions: Vec<Record> = leader.sessions.values().cloned().collect();
    let assigned = leader
        .step("all to place", Input::Sessions(sessions))
        .unwrap();
    assert_eq!(assigned.iter().count(), 10_000);
    assert!(loads(&assigned).values().all(|&load| load == 100));

    let reports = leader.report(&assigned);
    let active = leader
        .step("all running", Input::Sessions(reports))
        .unwrap();
    let reports = leader.report(&active);
    assert_eq!(leader.step("at rest", Input::Sessions(reports)), None);

    let sessions: Vec<Record> = leader.sessions.values().cloned().collect();
    let (config, drained) = (Config::default(), BTreeSet::new());
    let before = cpu();
    for _ in 0..PLANS {
        // The dead node's session is not among them; the plan waits for its end.
        let sessions = sessions[1..].to_vec();
        let plan = plan(Moment::default(), &config, &active, sessions, &drained);
        assert_eq!(plan.len(), 100);
    }
    eprintln!("a plan: {:?} of CPU", (cpu() - before) / PLANS);

    let dead = holder(42).incarnation;
    let before = owners(&active);
    leader.sessions.remove(&dead);
    let after = leader
        .step("one node dead", Input::SessionEnded(dead, End::Evicted))
        .unwrap();
    let moved = owners(&after)
        .into_iter()
        .filter(|(shard, node)| before[shard] != *node);
    assert_eq!(moved.count(), 100, "only what the dead node ran moves");
    assert!(
        loads(&after)
            .values()
            .all(|&load| load == 101 || load == 102)
    );

    leader.add_session(NODES);
    let reports = leader.report(&after);
    let moving = leader
        .step("one node new", Input::Sessions(reports))
        .unwrap();
    let revoking = |held: &Assignment| held.state == AssignmentState::Revoking;
    let revoked = moving.iter().filter(|(_, _, held)| revoking(held)).count();
    assert_eq!(revoked, Config::default().moves_max, "the budget holds");
}

#[test]
fn one_daemon_of_ten_thousand_shards_on_a_hundred_nodes() {
    ten_thousand_shards(1, 10_000);
}

#[test]
fn a_hundred_daemons_of_a_hundred_shards_on_a_hundred_nodes() {
    ten_thousand_shards(100, 100);
}
