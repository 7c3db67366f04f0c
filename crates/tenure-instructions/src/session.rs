//! A node that leads elections and has nothing to do but to renew its session: the machine's part of each heartbeat.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::election::{Fence, Lease};
use tenure_core::node::{Answer, Event, Input, Node, Output, Request};
use tenure_core::session::{About, Config, Holder};
use tenure_core::{
    ElectionName, Expect, Incarnation, Lineage, Moment, NodeId, Nonce, Now, Read, Version, Wall,
    Written,
};

use crate::{count, report};

const HEARTBEATS: usize = 100;

pub(crate) fn run(elections: usize) {
    let mut world = World::new();
    world.step(Input::Wake);
    for number in 0..elections {
        world.step(Input::Join {
            election: ElectionName::new(format!("election-{number}")).unwrap(),
            priority: Some(100),
            new_lineage: Lineage(1),
        });
    }
    while world.elected < elections {
        world.wake();
    }
    // The first looks after an election are over.
    world.beat(10);
    world.is_counted = true;
    world.beat(HEARTBEATS);
    report(
        &format!("session/heartbeat, {elections} elections"),
        HEARTBEATS,
    );
}

/// One node, and a store that only it writes to.
struct World {
    node: Node,
    now: Duration,
    steps: u128,
    heartbeats: usize,
    elected: usize,
    is_counted: bool,
    leases: BTreeMap<ElectionName, (Lease, u64)>,
    fences: BTreeMap<ElectionName, (Fence, u64)>,
    writes: u64,
}

impl World {
    fn new() -> Self {
        let config = Config::default();
        let me = Holder {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(1),
            ttl: config.ttl,
        };
        let now = at(Duration::ZERO, 0);
        Self {
            node: Node::new(config, me, About::default(), now, 0x5eed),
            now: Duration::ZERO,
            steps: 0,
            heartbeats: 0,
            elected: 0,
            is_counted: false,
            leases: BTreeMap::new(),
            fences: BTreeMap::new(),
            writes: 0,
        }
    }

    /// Lets time pass until the session was renewed so often.
    fn beat(&mut self, times: usize) {
        let end = self.heartbeats + times;
        while self.heartbeats < end {
            self.wake();
        }
    }

    fn wake(&mut self) {
        let next = self.node.wake_at();
        assert_ne!(next, Moment::NEVER);
        self.now = next.since(origin()).max(self.now);
        self.step(Input::Wake);
    }

    fn step(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.steps += 1;
            let (node, now) = (&mut self.node, at(self.now, self.steps));
            let outputs = if self.is_counted {
                count(|| node.step(now, input))
            } else {
                node.step(now, input)
            };
            for output in outputs {
                match output {
                    Output::Request {
                        ticket, request, ..
                    } => inputs.push(Input::Answer(ticket, self.carry_out(request))),
                    Output::Event(Event::Elected { .. }) => self.elected += 1,
                    Output::Event(_) => {}
                }
            }
        }
    }

    fn carry_out(&mut self, request: Request) -> Answer {
        let number = self.writes + u64::from(request.is_write());
        self.writes = number;
        match request {
            Request::WriteSession { .. } => {
                self.heartbeats += 1;
                Answer::Written(Written::Done(version(number)))
            }
            Request::ReadLease { election, known } => {
                Answer::Lease(read(self.leases.get(&election), known.as_ref()))
            }
            Request::WriteLease {
                election,
                lease,
                expect,
            } => Answer::Written(write(&mut self.leases, election, (*lease, number), &expect)),
            Request::ReadFence { election } => {
                Answer::Fence(read(self.fences.get(&election), None))
            }
            Request::WriteFence {
                election,
                fence,
                expect,
            } => Answer::Written(write(&mut self.fences, election, (fence, number), &expect)),
            other => panic!("a node that leads does not ask {other:?}"),
        }
    }
}

fn origin() -> Moment {
    Moment::from_origin(Duration::from_secs(1_000))
}

fn at(now: Duration, step: u128) -> Now {
    Now {
        moment: origin() + now,
        wall: Wall(1_767_225_600_000),
        nonce: Nonce(step + 1),
    }
}

fn version(number: u64) -> Version {
    Version::new(number.to_string())
}

fn read<T: Clone>(there: Option<&(T, u64)>, known: Option<&Version>) -> Read<T> {
    let Some((record, number)) = there else {
        return Read::Missing;
    };
    let version = version(*number);
    if known == Some(&version) {
        return Read::Unchanged { age: None };
    }
    Read::Found {
        record: record.clone(),
        version,
        age: None,
    }
}

fn write<T>(
    objects: &mut BTreeMap<ElectionName, (T, u64)>,
    election: ElectionName,
    object: (T, u64),
    expect: &Expect,
) -> Written {
    let there = objects.get(&election).map(|(_, number)| version(*number));
    let is_expected = match expect {
        Expect::Absent => there.is_none(),
        Expect::Version(expected) => there.as_ref() == Some(expected),
    };
    if !is_expected {
        return Written::Conflict;
    }
    let written = Written::Done(version(object.1));
    objects.insert(election, object);
    written
}
