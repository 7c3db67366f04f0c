//! Several nodes on one store without hints and ages, and what they ask of it while nothing happens.

use std::fmt::Debug;

use super::*;
use crate::cluster::member::{Event as MemberEvent, Membership};
use crate::cluster::registry::Listed;
use crate::cluster::{self, Assignments, Definition, Drained, Drains, Part};
use crate::election::{Fence, Writer};
use crate::{DaemonId, Expect, NodeId, Nonce, Version, Wall, Written};

const QUEUE: &str = "tenure.queue";

/// One object of the store.
#[derive(Debug)]
struct Place<T>(Option<(T, u64)>);

impl<T> Default for Place<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Clone + Debug> Place<T> {
    fn read(&self, known: Option<&Version>) -> Read<T> {
        match &self.0 {
            None => Read::Missing,
            Some((_, number)) if known == Some(&version(*number)) => Read::Unchanged { age: None },
            Some((record, number)) => Read::Found {
                record: record.clone(),
                version: version(*number),
                age: None,
            },
        }
    }

    fn write(&mut self, record: T, expect: &Expect, number: u64) -> Written {
        let is_expected = match (&self.0, expect) {
            (None, Expect::Absent) => true,
            (Some((_, number)), Expect::Version(expected)) => *expected == version(*number),
            _ => false,
        };
        if !is_expected {
            return Written::Conflict;
        }
        self.0 = Some((record, number));
        Written::Done(version(number))
    }
}

fn version(number: u64) -> Version {
    Version::new(number.to_string())
}

/// What a node has asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Asked {
    heartbeats: u32,
    listings: u32,
    reads: u32,
}

#[derive(Default)]
struct World {
    nodes: BTreeMap<&'static str, (Node, Asked)>,
    sessions: BTreeMap<Incarnation, Place<Record>>,
    leases: BTreeMap<ElectionName, Place<Lease>>,
    fences: BTreeMap<ElectionName, Place<Fence>>,
    assignments: Place<Assignments>,
    drains: Place<Drains>,
    writes: u64,
    now: Duration,
    /// Where shards were started, and when.
    started: Vec<(&'static str, Duration)>,
}

impl World {
    /// A broker: it is a candidate in both elections, and has no daemons.
    fn broker(&mut self, name: &'static str) {
        let config = Config::default();
        let number = self.nodes.len() as u64 + 1;
        let me = Holder {
            node: NodeId::new(name).unwrap(),
            incarnation: Incarnation(number.into()),
            ttl: config.ttl,
        };
        let node = Node::new(config.clone(), me, About::default(), self.at(), number);
        self.nodes.insert(name, (node, Asked::default()));
        let membership = Membership {
            config: cluster::Config::for_session(&config),
            part: Part::default(),
            follows: false,
            seed: number,
        };
        self.step(name, Input::Wake);
        self.step(name, Input::TakePart(Box::new(membership)));
        for election in [ElectionName::CLUSTER, QUEUE] {
            let election = ElectionName::new(election).unwrap();
            let join = Input::Join {
                election,
                priority: Some(100),
                new_lineage: Lineage(1),
            };
            self.step(name, join);
        }
    }

    fn offer(&mut self, name: &'static str) {
        let definition = Definition::shards(1);
        let daemon = DaemonId::new("indexer").unwrap();
        let offer = member::Input::Offer(daemon, definition);
        self.step(name, Input::Cluster(offer));
    }

    /// What a driver does when its session says for the first time what it offers.
    fn ring(&mut self) {
        self.writes += 1;
        let place = self.leases.get_mut(&ElectionName::cluster()).unwrap();
        place.0.as_mut().unwrap().1 = self.writes;
    }

    fn at(&self) -> Now {
        Now {
            moment: Moment::from_origin(Duration::from_secs(1000) + self.now),
            wall: Wall(0),
            nonce: Nonce(u128::from(self.writes) + 1),
        }
    }

    fn step(&mut self, name: &'static str, input: Input) {
        let now = self.at();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let outputs = self.nodes.get_mut(name).unwrap().0.step(now, input);
            for output in outputs {
                match output {
                    Output::Request {
                        ticket, request, ..
                    } => {
                        let answer = self.carry_out(name, request);
                        inputs.insert(0, Input::Answer(ticket, answer));
                    }
                    Output::Event(Event::Cluster(MemberEvent::Start {
                        shard, generation, ..
                    })) => {
                        self.started.push((name, self.now));
                        let started = member::Input::Started(shard, generation);
                        inputs.insert(0, Input::Cluster(started));
                    }
                    Output::Event(_) => {}
                }
            }
        }
    }

    fn carry_out(&mut self, name: &'static str, request: Request) -> Answer {
        self.writes += 1;
        let number = self.writes;
        let asked = &mut self.nodes.get_mut(name).unwrap().1;
        match &request {
            Request::ListSessions => asked.listings += 1,
            Request::WriteSession { .. } => asked.heartbeats += 1,
            request if !request.is_write() => asked.reads += 1,
            _ => {}
        }
        match request {
            Request::ReadSession { holder, known } => {
                let place = self.sessions.entry(holder.incarnation).or_default();
                Answer::Session(place.read(known.as_ref()))
            }
            Request::WriteSession { record, expect } => {
                let place = self.sessions.entry(record.incarnation).or_default();
                Answer::Written(place.write(*record, &expect, number))
            }
            Request::ReadLease { election, known } => {
                let place = self.leases.entry(election).or_default();
                Answer::Lease(place.read(known.as_ref()))
            }
            Request::WriteLease {
                election,
                lease,
                expect,
            } => {
                let place = self.leases.entry(election).or_default();
                Answer::Written(place.write(*lease, &expect, number))
            }
            Request::ReadFence { election } => {
                Answer::Fence(self.fences.entry(election).or_default().read(None))
            }
            Request::WriteFence {
                election,
                fence,
                expect,
            } => {
                let place = self.fences.entry(election).or_default();
                Answer::Written(place.write(fence, &expect, number))
            }
            Request::Look { known } | Request::ReadAssignments { known } => {
                Answer::Assignments(self.assignments.read(known.as_ref()))
            }
            Request::WriteAssignments {
                assignments,
                expect,
            } => Answer::Written(self.assignments.write(*assignments, &expect, number)),
            Request::ReadDrains { known } => Answer::Drains(self.drains.read(known.as_ref())),
            Request::ListSessions => {
                let standing = self.sessions.values().filter_map(|place| place.0.as_ref());
                let listed = standing.map(|(record, number)| Listed {
                    node: record.node.clone(),
                    incarnation: record.incarnation,
                    version: version(*number),
                });
                Answer::Sessions(Some(listed.collect()))
            }
            Request::DeleteSession { holder } => {
                self.sessions.remove(&holder.incarnation);
                Answer::Deleted
            }
        }
    }

    /// Lets time pass, until then.
    fn pass(&mut self, until: Duration) {
        loop {
            let next = self.nodes.iter().map(|(name, (node, _))| {
                let at = node
                    .wake_at()
                    .since(Moment::from_origin(Duration::from_secs(1000)));
                (at, *name)
            });
            match next.min() {
                Some((at, name)) if at <= until => {
                    self.now = self.now.max(at);
                    self.step(name, Input::Wake);
                }
                _ => break,
            }
        }
        self.now = until;
    }

    fn asked(&self, name: &str) -> Asked {
        self.nodes[name].1
    }

    fn leads(&self, name: &str, election: &str) -> bool {
        let election = ElectionName::new(election).unwrap();
        self.nodes[name].0.leads_until(&election).is_some()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Two brokers that have come to rest.
fn at_rest() -> World {
    let mut world = World::default();
    world.broker("a");
    world.pass(seconds(10));
    world.broker("b");
    world.pass(seconds(100));
    assert!(world.leads("a", QUEUE) && world.leads("a", ElectionName::CLUSTER));
    world
}

#[test]
fn where_nobody_has_daemons_little_is_asked() {
    let mut world = at_rest();
    let before = [world.asked("a"), world.asked("b")];
    world.pass(seconds(2800));
    let per_heartbeat = |name, before: Asked| {
        let now = world.asked(name);
        let heartbeats = f64::from(now.heartbeats - before.heartbeats);
        let listings = f64::from(now.listings - before.listings) / heartbeats;
        let reads = f64::from(now.reads - before.reads) / heartbeats;
        (listings, reads)
    };
    let (listings, reads) = per_heartbeat("a", before[0]);
    assert!(
        listings < 0.11 && (2.5..2.8).contains(&reads),
        "{listings} {reads}"
    );
    let (listings, reads) = per_heartbeat("b", before[1]);
    assert!(
        listings == 0.0 && (3.4..4.0).contains(&reads),
        "{listings} {reads}"
    );
}

#[test]
fn a_node_that_rings_is_seen_at_once_and_one_that_does_not_in_time() {
    for (rings, within) in [(true, seconds(5)), (false, seconds(35))] {
        let mut world = at_rest();
        world.broker("c");
        world.offer("c");
        if rings {
            world.ring();
        }
        world.pass(seconds(100) + within);
        let started = world.started.first().copied();
        assert!(started.is_some_and(|(name, _)| name == "c"), "{started:?}");
        // From then on there is something to hand out, and the leader lists with every heartbeat.
        let before = world.asked("a").listings;
        world.pass(seconds(100) + within + seconds(27));
        assert!(world.asked("a").listings - before >= 9);
    }
}

/// Also if that was asked for while nobody looked.
#[test]
fn nothing_is_started_on_a_node_that_is_kept_free() {
    let mut world = at_rest();
    let by = Drained {
        by: "people".to_owned(),
        since: Wall(0),
    };
    let drains = Drains {
        writer: Writer {
            incarnation: Incarnation(99),
            counter: 1,
            nonce: Nonce::default(),
        },
        nodes: [(NodeId::new("c").unwrap(), by)].into(),
    };
    let _ = world.drains.write(drains, &Expect::Absent, 1_000_000);
    world.broker("c");
    world.offer("c");
    world.ring();
    world.pass(seconds(200));
    assert_eq!(world.started, []);
    world.offer("b");
    world.pass(seconds(210));
    assert_eq!(world.started.len(), 1);
}

#[test]
fn one_lease_of_two_that_is_given_up_is_soon_taken() {
    let mut world = at_rest();
    let queue = ElectionName::new(QUEUE).unwrap();
    let (term, _) = world.nodes["a"].0.leads_until(&queue).unwrap();
    world.step("a", Input::Resign(queue.clone()));
    world.step("a", Input::WorkEnded(queue, term));
    world.pass(seconds(100) + Config::default().heartbeat * 2);
    assert!(world.leads("b", QUEUE) && world.leads("a", ElectionName::CLUSTER));
}

/// Its session frees what it holds, so it must not say "gone" while work goes on, in whichever election.
#[test]
fn a_node_that_joins_another_election_leaves_only_after_its_work_in_the_first() {
    let mut world = at_rest();
    let led = [ElectionName::new(QUEUE).unwrap(), ElectionName::cluster()];
    let terms = led.clone().map(|election| {
        let (term, _) = world.nodes["a"].0.leads_until(&election).unwrap();
        term
    });
    let join = Input::Join {
        election: ElectionName::new("another").unwrap(),
        priority: None,
        new_lineage: Lineage(1),
    };
    world.step("a", join);
    world.step("a", Input::Leave);
    let state = |world: &World| {
        let (record, _) = world.sessions[&Incarnation(1)].0.clone()?;
        Some(record.state)
    };
    world.pass(seconds(100) + Config::default().ttl * 2);
    assert_eq!(state(&world), Some(session::State::Alive));
    for (election, term) in led.into_iter().zip(terms) {
        world.step("a", Input::WorkEnded(election, term));
    }
    world.pass(seconds(100) + Config::default().ttl * 3);
    assert_eq!(state(&world), Some(session::State::Gone));
}

#[test]
fn a_dead_node_is_evicted_at_rest_too() {
    let mut world = at_rest();
    world.nodes.remove("b");
    world.pass(seconds(100) + Config::default().ttl * 2);
    let (record, _) = world.sessions[&Incarnation(2)].0.as_ref().unwrap();
    assert!(matches!(record.state, session::State::Evicted { .. }));
}
