//! Stories of an assigner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::cluster::assigner::{Assigner, Input, Output};
use tenure_core::cluster::{
    Assignment, Assignments, Config, Daemon, Definition, Drained, Drains, Generation, Going, Part,
    Run,
};
use tenure_core::election::{Term, Writer};
use tenure_core::session::About;
use tenure_core::session::observer::End;
use tenure_core::session::{self, Record, State};
use tenure_core::{DaemonId, Incarnation, Lineage, NodeId, Now, Read, Wall, Written};

use super::Machine;
use super::words::{
    ORIGIN, assignment_state, generation, holder, moment, over, run_state, seconds, shard,
    state_name, version,
};

pub(crate) struct Story {
    assigner: Assigner,
    looks: bool,
    /// Whether what it says is stored only when the story says so, and not at once.
    says: bool,
    counter: u64,
    /// What waits for its answer.
    waiting: BTreeSet<&'static str>,
    /// What was written last, and what was known to be stored before that.
    last: Option<Assignments>,
    before: Option<Assignments>,
}

impl Story {
    pub(crate) fn new(looks: bool, says: bool) -> Self {
        let me = holder("a").unwrap();
        let session = session::Config::default();
        Self {
            assigner: Assigner::new(Config::default(), &session, me, ORIGIN, 7),
            looks,
            says,
            counter: 0,
            waiting: BTreeSet::new(),
            last: None,
            before: None,
        }
    }

    fn step(&mut self, at: Duration, input: Input) -> Vec<String> {
        let now = Now {
            moment: moment(at),
            wall: Wall(0),
            nonce: tenure_core::Nonce::default(),
        };
        let mut lines = Vec::new();
        let mut silent = Vec::new();
        for output in self.assigner.step(now, input) {
            match output {
                Output::Read { known: Some(_) } if self.looks => {
                    silent.push(Input::Read(Read::Unchanged { age: None }));
                }
                Output::ReadDrains { known: Some(_) } if self.looks => {
                    silent.push(Input::DrainsRead(Read::Unchanged { age: None }));
                }
                Output::ReadDrains { known: None } if self.looks => {
                    silent.push(Input::DrainsRead(Read::Missing));
                }
                Output::Say if !self.says => silent.push(Input::Said),
                output => self.lines(output, &mut lines),
            }
        }
        for input in silent {
            lines.extend(self.step(at, input));
        }
        lines
    }

    fn parse(&mut self, words: &str) -> Option<Input> {
        if let Some((about, text)) = words.split_once(": ") {
            if !about.starts_with("session") {
                // A story with an answer that was not asked for makes no sense.
                self.waiting.take(about)?;
            }
            return Some(match about {
                "sessions" => {
                    let records = text.split(", ").map(|text| self.session(text));
                    Input::Sessions(records.collect::<Option<_>>()?)
                }
                "session" => Input::Session(Box::new(self.session(text)?)),
                "written" => Input::Written(match text.split_once(' ') {
                    Some(("done", tag)) => Written::Done(version(tag)?),
                    None if text == "conflict" => Written::Conflict,
                    None if text == "refused" => Written::NotApplied,
                    None if text == "lost" => Written::Unknown,
                    _ => return None,
                }),
                "drains" => Input::DrainsRead(drains(text)?),
                "read" => Input::Read(self.read(text)?),
                _ => return None,
            });
        }
        let words: Vec<&str> = words.split(' ').collect();
        Some(match words[..] {
            ["elected", term] => {
                let term = Term(term.parse().ok()?);
                // Nobody led before the first term.
                let before = (term == Term(1)).then(BTreeSet::new);
                Input::Elected(LINEAGE, term, before)
            }
            ["elected", term, "after", ref before @ ..] => {
                let before = before.iter().map(|node| Some(holder(node)?.incarnation));
                let before = before.collect::<Option<_>>()?;
                Input::Elected(LINEAGE, Term(term.parse().ok()?), Some(before))
            }
            ["said"] => Input::Said,
            ["ended"] => Input::Ended,
            ["hint", "drains"] => Input::DrainsHint,
            [node, how] => {
                let how = match how {
                    "gone" => End::Gone,
                    "evicted" => End::Evicted,
                    "missing" => End::Missing,
                    _ => return None,
                };
                Input::SessionEnded(holder(node)?.incarnation, how)
            }
            _ => return None,
        })
    }

    /// `b d=4 d/0 5 running`: the session of `b`, which offers four shards of `d` and runs one.
    fn session(&mut self, text: &str) -> Option<Record> {
        self.counter += 1;
        let mut words = text.split(' ');
        let holder = holder(words.next()?)?;
        let mut part = Part::default();
        let mut state = State::Alive;
        let mut labels = BTreeMap::new();
        while let Some(word) = words.next() {
            match word {
                "gone" => state = State::Gone,
                "blank" => part.has_assigned_none = true,
                "leaving" => part.going = Some(Going::Leaving),
                "restarting" => {
                    let within = seconds(words.next()?)?;
                    part.going = Some(Going::Restarting { within });
                }
                "capacity" => part.capacity = words.next()?.parse().ok(),
                "label" => {
                    let (label, value) = words.next()?.split_once('=')?;
                    labels.insert(label.to_owned(), value.to_owned());
                }
                _ => match word.split_once('=') {
                    Some((daemon, count)) => {
                        let daemon = DaemonId::new(daemon).ok()?;
                        let definition = definition(count)?;
                        part.offers.insert(daemon, definition);
                    }
                    None => {
                        let shard = shard(word)?;
                        let generation = generation(words.next()?)?;
                        let state = run_state(words.next()?)?;
                        let runs = part.runs.entry(shard.daemon).or_default();
                        runs.push(Run(shard.index, generation, state));
                    }
                },
            }
        }
        Some(Record {
            node: holder.node,
            incarnation: holder.incarnation,
            counter: self.counter,
            nonce: tenure_core::Nonce::default(),
            ttl: holder.ttl,
            state,
            joined_at: Wall(0),
            about: Box::new(About {
                labels,
                cluster: Some(Box::new(part)),
                ..About::default()
            }),
        })
    }

    fn read(&self, text: &str) -> Option<Read<Assignments>> {
        let (head, entries) = text.split_once(':').unwrap_or((text, ""));
        let words: Vec<&str> = head.split(' ').collect();
        let found = |record, tag| {
            Some(Read::Found {
                record,
                version: version(tag)?,
                age: None,
            })
        };
        match words[..] {
            ["missing"] => Some(Read::Missing),
            ["failed"] => Some(Read::Failed),
            ["unchanged"] => Some(Read::Unchanged { age: None }),
            ["unreadable", tag] => Some(Read::Unreadable {
                version: version(tag)?,
            }),
            ["as", "written", tag] => found(self.last.clone()?, tag),
            ["as", "before", tag] => found(self.before.clone()?, tag),
            ["recovering", "term", term, "by", node, tag] => {
                let found_ones = assignments(term.parse().ok()?, node, entries)?;
                let recovering = Assignments {
                    recovering: true,
                    ..found_ones
                };
                found(recovering, tag)
            }
            ["term", term, "by", node, tag] => {
                found(assignments(term.parse().ok()?, node, entries)?, tag)
            }
            _ => None,
        }
    }

    fn lines(&mut self, output: Output, lines: &mut Vec<String>) {
        self.waiting.extend(match output {
            Output::Read { .. } => Some("read"),
            Output::ReadDrains { .. } => Some("drains"),
            Output::Write { .. } => Some("written"),
            _ => None,
        });
        lines.push(match output {
            Output::Read { .. } => "read".to_owned(),
            Output::ReadDrains { .. } => "read drains".to_owned(),
            Output::Say => "say that it assigns".to_owned(),
            Output::Watch(holder) => format!("watch {}", holder.node),
            Output::Forget(incarnation) => format!("forget {}", name(incarnation)),
            Output::Installed { term } => format!("INSTALLED term {term}"),
            Output::Resign { term } => format!("RESIGN term {term}"),
            Output::Superseded { by } => format!("SUPERSEDED by term {by}"),
            Output::Anomaly(anomaly) => format!("ANOMALY {anomaly:?}"),
            Output::Decided(decisions) => {
                lines.extend(
                    decisions
                        .iter()
                        .map(|decision| format!("DECIDED {decision}")),
                );
                return;
            }
            Output::Write {
                assignments,
                expect,
            } => {
                let entries = assignments.iter().map(|(daemon, index, held)| {
                    let (generation, node) = (held.generation, name(held.incarnation));
                    let state = state_name(held.state);
                    format!("{daemon}/{index} {generation} {node} {state}")
                });
                let entries: Vec<String> = entries.collect();
                let recovering = if assignments.recovering {
                    "recovering "
                } else {
                    ""
                };
                let term = assignments.term;
                let head = format!("write {recovering}term {term} {}", over(&expect));
                self.before = self.last.replace(*assignments);
                format!("{head}: {}", entries.join(", "))
            }
        });
    }
}

impl Machine for Story {
    fn input(&mut self, at: Duration, words: &str) -> Option<Vec<String>> {
        let input = self.parse(words)?;
        Some(self.step(at, input))
    }

    fn wake(&mut self, at: Duration) -> Vec<String> {
        self.step(at, Input::Wake)
    }

    fn wake_at(&self) -> Duration {
        self.assigner.wake_at().since(ORIGIN)
    }
}

/// `4`: four shards; `4x3`: of weight 3; `2r`: two replicas; `4@zone=x`: with a label; `4#7`: revision 7.
fn definition(text: &str) -> Option<Definition> {
    let (text, revision) = match text.split_once('#') {
        Some((text, revision)) => (text, revision.parse().ok()?),
        None => (text, 0),
    };
    let (text, requires) = match text.split_once('@') {
        Some((text, zone)) => (text, [("zone".to_owned(), zone.to_owned())].into()),
        None => (text, BTreeMap::new()),
    };
    let (text, weight) = match text.split_once('x') {
        Some((text, weight)) => (text, weight.parse().ok()?),
        None => (text, 1),
    };
    let base = match text.strip_suffix('r') {
        Some(count) => Definition::replicas(count.parse().ok()?),
        None => Definition::shards(text.parse().ok()?),
    };
    Some(Definition {
        weight,
        requires,
        revision,
        ..base
    })
}

/// All stories are of one lineage.
const LINEAGE: Lineage = Lineage(1);

fn assignments(term: u64, node: &str, entries: &str) -> Option<Assignments> {
    let mut assignments = Assignments {
        lineage: Some(LINEAGE),
        term: Term(term),
        writer: Writer {
            incarnation: holder(node)?.incarnation,
            counter: 1,
            nonce: tenure_core::Nonce::default(),
        },
        generation: Generation(0),
        drain_timeout: Duration::from_secs(30),
        force_after: Duration::from_secs(30),
        recovering: false,
        holders: BTreeMap::new(),
        daemons: BTreeMap::new(),
    };
    let entries = entries.split(", ").map(str::trim);
    for entry in entries.filter(|entry| !entry.is_empty()) {
        let words: Vec<&str> = entry.split(' ').collect();
        let [shard_name, number, node, state] = words[..] else {
            return None;
        };
        let (shard, generation, holder) = (shard(shard_name)?, generation(number)?, holder(node)?);
        assignments.generation = assignments.generation.max(generation);
        let daemon = assignments
            .daemons
            .entry(shard.daemon)
            .or_insert_with(|| Daemon {
                definition: Definition::shards(4),
                shards: vec![None; 4],
                failures: BTreeMap::new(),
            });
        daemon.shards[shard.index as usize] = Some(Assignment {
            generation,
            incarnation: holder.incarnation,
            state: assignment_state(state)?,
            since: Wall(0),
            count: 4,
        });
        assignments.holders.insert(holder.incarnation, holder);
    }
    Some(assignments)
}

fn drains(text: &str) -> Option<Read<Drains>> {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        ["missing"] => Some(Read::Missing),
        ["failed"] => Some(Read::Failed),
        ["unchanged"] => Some(Read::Unchanged { age: None }),
        [ref nodes @ .., tag] => {
            let drained = |node: &&str| {
                let by = "ops".to_owned();
                let since = Wall(0);
                Some((NodeId::new(node).ok()?, Drained { by, since }))
            };
            Some(Read::Found {
                record: Drains {
                    writer: Writer {
                        incarnation: Incarnation(1),
                        counter: 1,
                        nonce: tenure_core::Nonce::default(),
                    },
                    nodes: nodes.iter().map(drained).collect::<Option<_>>()?,
                },
                version: version(tag)?,
                age: None,
            })
        }
        [] => None,
    }
}

fn name(incarnation: Incarnation) -> char {
    let digit = u32::try_from(incarnation.0).unwrap();
    char::from_digit(digit, 36).unwrap()
}
