//! The machines of sessions, elections and the cluster, on a store that returns anything: whatever a readable record
//! says, no machine panics, and what it wants written can be encoded.

use std::time::Duration;

use tenure_fuzz::{Fuzz, corpus};

use crate::cluster::member::{self, Membership};
use crate::cluster::registry::Listed;
use crate::cluster::{Assignments, Drains, Part};
use crate::election::{Fence, Lease, Term};
use crate::node::{Answer, Event, Input, Node, Output, Request};
use crate::session::{Config, Holder, Record};
use crate::{ElectionName, Incarnation, Lineage, Moment, NodeId, Now, Read, Version, Written};

/// How often a machine is woken in one case.
const WAKES: usize = 30;

/// Objects of all kinds, each on its own line; one case of several lines.
fn objects(kinds: &[&str]) -> Vec<String> {
    let mut inputs: Vec<String> = kinds.iter().map(|kind| corpus(kind).join("\n")).collect();
    inputs.push(inputs.join("\n"));
    inputs.reverse();
    inputs
}

/// Those lines that are records of one kind, repeated for ever.
struct Shown<T> {
    records: Vec<T>,
    next: usize,
}

impl<T: Clone> Shown<T> {
    fn new<E>(input: &[u8], decode: fn(&[u8]) -> Result<T, E>) -> Self {
        let lines = input.split(|&byte| byte == b'\n');
        let records = lines.filter_map(|line| decode(line).ok()).collect();
        Self { records, next: 0 }
    }

    fn read(&mut self) -> Read<T> {
        let version = Version::new(self.next.to_string());
        self.next += 1;
        match self.records.get(self.next % (self.records.len() + 1)) {
            Some(record) => Read::Found {
                record: record.clone(),
                version,
                age: Some(Duration::from_secs(1)),
            },
            None if self.next.is_multiple_of(2) => Read::Missing,
            None => Read::Unreadable { version },
        }
    }
}

fn me() -> Holder {
    Holder {
        node: NodeId::new("web-1").unwrap(),
        incarnation: Incarnation(0xabc),
        ttl: Duration::from_secs(10),
    }
}

fn at(moment: Moment) -> Now {
    Now {
        moment,
        ..Now::default()
    }
}

/// A store that shows any of these, whatever was written.
struct AnyStore {
    sessions: Shown<Record>,
    leases: Shown<Lease>,
    fences: Shown<Fence>,
    assignments: Shown<Assignments>,
    drains: Shown<Drains>,
}

impl AnyStore {
    fn new(input: &[u8]) -> Self {
        Self {
            sessions: Shown::new(input, Record::decode),
            leases: Shown::new(input, Lease::decode),
            fences: Shown::new(input, Fence::decode),
            assignments: Shown::new(input, Assignments::decode),
            drains: Shown::new(input, Drains::decode),
        }
    }

    fn answer(&mut self, request: Request, wake: usize) -> Answer {
        match request {
            Request::ReadSession { .. } => Answer::Session(self.sessions.read()),
            Request::ReadLease { .. } => Answer::Lease(self.leases.read()),
            Request::ReadFence { .. } => Answer::Fence(self.fences.read()),
            Request::Look { .. } | Request::ReadAssignments { .. } => {
                Answer::Assignments(self.assignments.read())
            }
            Request::ReadDrains { .. } => Answer::Drains(self.drains.read()),
            Request::ListSessions => {
                let listed = self.sessions.records.iter().map(|record| Listed {
                    node: record.node.clone(),
                    incarnation: record.incarnation,
                    version: Version::new(wake.to_string()),
                });
                Answer::Sessions(Some(listed.collect()))
            }
            Request::DeleteSession { .. } => Answer::Deleted,
            Request::WriteSession { record, .. } => written(&record.encode(), wake),
            Request::WriteLease { lease, .. } => written(&lease.encode(), wake),
            Request::WriteFence { fence, .. } => written(&fence.encode(), wake),
            Request::WriteAssignments { assignments, .. } => written(&assignments.encode(), wake),
        }
    }
}

/// Steps a node through everything that its store returns. Half way it gets another input.
fn live(mut store: AnyStore, first: Vec<Input>, later: &Input) {
    let mut now = Moment::default();
    let mut node = Node::new(Config::default(), me(), Default::default(), at(now), 7);
    let mut outputs = node.step_all(at(now), first);
    for wake in 0..WAKES {
        for _ in 0..20 {
            for output in std::mem::take(&mut outputs) {
                let input = match output {
                    Output::Request {
                        ticket, request, ..
                    } => Input::Answer(ticket, store.answer(request, wake)),
                    Output::Event(Event::Cluster(member::Event::Start {
                        shard,
                        generation,
                        ..
                    })) => Input::Cluster(member::Input::Started(shard, generation)),
                    Output::Event(_) => continue,
                };
                outputs.extend(node.step(at(now), input));
            }
        }
        if wake == WAKES / 2 {
            outputs.extend(node.step(at(now), later.clone()));
        }
        let _ = node.member().and_then(|member| member.plan(now));
        now = node.wake_at().max(now + Duration::from_millis(100));
        outputs.extend(node.step(at(now), Input::Wake));
    }
}

#[test]
fn no_record_panics_a_node() {
    let corpus = objects(&["session", "lease", "fence"]);
    Fuzz::new("node", corpus).run(|input| {
        let election = ElectionName::new("default").unwrap();
        let join = Input::Join {
            election: election.clone(),
            priority: Some(100),
            new_lineage: Lineage(1),
        };
        let first = vec![Input::Wake, join];
        live(AnyStore::new(input), first, &Input::Resign(election));
    });
}

#[test]
fn no_record_panics_the_leader_of_a_cluster() {
    let corpus = objects(&["session", "assignments", "drains"]);
    // One line can name thousands of shards, which all take memory.
    let fuzz = Fuzz::new("member", corpus).within(8 << 20, 64);
    fuzz.run(|input| {
        let store = AnyStore::new(input);
        let membership = Membership {
            config: crate::cluster::Config::for_session(&Config::default()),
            part: Part::default(),
            follows: true,
            seed: 7,
        };
        let term = store.assignments.records.first();
        let term = Term(term.map_or(4, |found| found.term.0));
        let sessions = store.sessions.records.iter();
        let offers = sessions.flat_map(|session| Part::of(&session.about).offers.clone());
        let offers = offers.map(|(id, it)| Input::Cluster(member::Input::Offer(id, it)));
        let mut first = vec![Input::Wake, Input::TakePart(Box::new(membership))];
        first.extend(offers);
        first.push(Input::Cluster(member::Input::Elected(
            Lineage(1),
            term,
            None,
        )));
        live(store, first, &Input::Cluster(member::Input::Deposed));
    });
}

/// Now and then a write is a conflict, or its answer is lost.
fn written(bytes: &[u8], number: usize) -> Answer {
    assert!(!bytes.is_empty());
    Answer::Written(match number % 5 {
        3 => Written::Conflict,
        4 => Written::Unknown,
        _ => Written::Done(Version::new(number.to_string())),
    })
}
