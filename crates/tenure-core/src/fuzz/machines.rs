//! The machines of sessions, elections and the cluster, on storage that says anything: whatever a record says
//! that can be read, no machine panics, and what it wants written can be.

use std::time::Duration;

use tenure_fuzz::{Fuzz, corpus};

use crate::cluster::{Agent, Assigner, Assignments, Drains, Registry, agent, assigner, registry};
use crate::election::{Fence, Lease, Term};
use crate::node::{Answer, Input, Node, Output, Request, Ticket};
use crate::session::{Config, Holder, Record};
use crate::{ElectionName, Incarnation, Lineage, Moment, NodeId, Now, Read, Version, Written};

/// How often a machine is woken in one case.
const WAKES: usize = 30;

/// Objects of all kinds, each on a line of its own; one case of several lines.
fn objects(kinds: &[&str]) -> Vec<String> {
    let mut inputs: Vec<String> = kinds.iter().map(|kind| corpus(kind).join("\n")).collect();
    inputs.push(inputs.join("\n"));
    inputs.reverse();
    inputs
}

/// Those lines that are records of one kind, over and over.
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

#[test]
fn no_record_panics_a_node() {
    let corpus = objects(&["session", "lease", "fence"]);
    Fuzz::new("node", corpus).run(|input| {
        let mut sessions = Shown::new(input, Record::decode);
        let mut leases = Shown::new(input, Lease::decode);
        let mut fences = Shown::new(input, Fence::decode);
        let election = ElectionName::new("default").unwrap();
        let mut now = Moment::default();
        let mut node = Node::new(Config::default(), me(), Default::default(), at(now), 7);
        let mut outputs = node.step(at(now), Input::Wake);
        outputs.extend(node.step(
            at(now),
            Input::Join {
                election: election.clone(),
                priority: Some(100),
                new_lineage: Lineage(1),
            },
        ));
        for wake in 0..WAKES {
            for _ in 0..20 {
                let requests = std::mem::take(&mut outputs);
                for (ticket, request) in requests.into_iter().filter_map(requested) {
                    let answer = match request {
                        Request::ReadSession { .. } => Answer::Session(sessions.read()),
                        Request::ReadLease { .. } => Answer::Lease(leases.read()),
                        Request::ReadFence { .. } => Answer::Fence(fences.read()),
                        Request::WriteSession { record, .. } => written(&record.encode(), wake),
                        Request::WriteLease { lease, .. } => written(&lease.encode(), wake),
                        Request::WriteFence { fence, .. } => written(&fence.encode(), wake),
                    };
                    outputs.extend(node.step(at(now), Input::Answer(ticket, answer)));
                }
            }
            if wake == WAKES / 2 {
                outputs.extend(node.step(at(now), Input::Resign(election.clone())));
            }
            now = node.wake_at().max(now + Duration::from_millis(100));
            outputs.extend(node.step(at(now), Input::Wake));
        }
    });
}

fn requested(output: Output) -> Option<(Ticket, Request)> {
    match output {
        Output::Request {
            ticket, request, ..
        } => Some((ticket, request)),
        Output::Event(_) => None,
    }
}

/// Now and then a write is in somebody's way, or its answer is lost.
fn written(bytes: &[u8], number: usize) -> Answer {
    assert!(!bytes.is_empty());
    Answer::Written(match number % 5 {
        3 => Written::Conflict,
        4 => Written::Unknown,
        _ => Written::Done(Version::new(number.to_string())),
    })
}

#[test]
fn no_record_panics_the_leader_of_a_cluster() {
    let corpus = objects(&["session", "assignments", "drains"]);
    // One line names thousands of shards, for all of which a place is made.
    let fuzz = Fuzz::new("assigner", corpus).within(8 << 20, 64);
    fuzz.run(|input| {
        let sessions = Shown::new(input, Record::decode).records;
        let mut assignments = Shown::new(input, Assignments::decode);
        let mut drains = Shown::new(input, Drains::decode);
        let config = Config::default();
        let mut now = Moment::default();
        let cluster = crate::cluster::Config::for_session(&config);
        let mut assigner = Assigner::new(cluster, &config, me(), now, 7);
        let term = assignments.records.first().map_or(4, |found| found.term.0);
        let mut inputs = vec![
            assigner::Input::Elected(Lineage(1), Term(term)),
            assigner::Input::Sessions(sessions.clone()),
        ];
        for wake in 0..WAKES {
            for _ in 0..10 {
                for input in std::mem::take(&mut inputs) {
                    for output in assigner.step(at(now), input) {
                        inputs.extend(match output {
                            assigner::Output::Read { .. } => {
                                Some(assigner::Input::Read(assignments.read()))
                            }
                            assigner::Output::ReadDrains { .. } => {
                                Some(assigner::Input::DrainsRead(drains.read()))
                            }
                            assigner::Output::Write { assignments, .. } => {
                                match written(&assignments.encode(), wake) {
                                    Answer::Written(written) => {
                                        Some(assigner::Input::Written(written))
                                    }
                                    _ => None,
                                }
                            }
                            _ => None,
                        });
                    }
                }
            }
            let _ = assigner.plan(now);
            now = assigner
                .wake_at()
                .min(now + Duration::from_secs(20))
                .max(now + Duration::from_millis(100));
            inputs.push(match sessions.get(wake) {
                Some(session) => assigner::Input::Session(Box::new(session.clone())),
                None => assigner::Input::Wake,
            });
        }
    });
}

#[test]
fn no_record_panics_a_member_of_a_cluster() {
    let corpus = objects(&["session", "assignments"]);
    Fuzz::new("agent and registry", corpus).run(|input| {
        let sessions = Shown::new(input, Record::decode).records;
        let mut assignments = Shown::new(input, Assignments::decode);
        let config = Config::default();
        let mut now = Moment::default();
        let mut agent = Agent::new(&config, now, 7);
        let mut members = Registry::new(&config, now, 7);
        let _ = agent.step(now, agent::Input::Joined(me().incarnation));
        let _ = members.step(now, registry::Input::Leads(true));
        for session in &sessions {
            for id in crate::cluster::Part::of(&session.about).offers.keys() {
                let _ = agent.step(now, agent::Input::Offer(id.clone()));
            }
            let seen = registry::Input::Seen(Box::new(session.clone()));
            let _ = members.step(now, seen);
        }
        for _ in 0..WAKES {
            let until = now + Duration::from_secs(9);
            let _ = agent.step(now, agent::Input::Trusted(until));
            let read = assignments.read();
            if let Read::Found { record, .. } = &read {
                let holders = record.holders.values();
                let holders = holders.map(|holder| (holder.incarnation, holder.node.clone()));
                let _ = members.step(now, registry::Input::Holders(holders.collect()));
            }
            for output in agent.step(now, agent::Input::Looked(read)) {
                if let agent::Output::Start {
                    shard, generation, ..
                } = output
                {
                    let _ = agent.step(now, agent::Input::Started(shard, generation));
                }
            }
            now = agent
                .wake_at()
                .min(members.wake_at())
                .max(now + Duration::from_secs(1));
            let _ = members.step(now, registry::Input::Wake);
        }
    });
}
