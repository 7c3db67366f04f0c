//! Stories of an agent.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cluster::agent::{Agent, Input, Output};
use tenure_core::cluster::{Assignment, Assignments, Daemon, Definition, Generation, Going};
use tenure_core::election::{Term, Writer};
use tenure_core::session;
use tenure_core::{DaemonId, Incarnation, Read, Wall};

use super::Machine;
use super::words::{
    ORIGIN, assignment_state, clock, generation, holder, moment, run_state_name, seconds, shard,
    version,
};

pub(crate) struct Story {
    agent: Agent,
    looks: bool,
    joins: u128,
    /// A look waits for its answer.
    waiting: bool,
}

impl Story {
    pub(crate) fn new(looks: bool) -> Self {
        Self {
            agent: Agent::new(&session::Config::default(), ORIGIN, 7),
            looks,
            joins: 0,
            waiting: false,
        }
    }

    fn me(&self) -> Incarnation {
        let first = holder("a").unwrap().incarnation;
        Incarnation(first.0 + self.joins.saturating_sub(1))
    }

    fn step(&mut self, at: Duration, input: Input) -> Vec<String> {
        let outputs = self.agent.step(moment(at), input);
        let mut lines = Vec::new();
        let mut unchanged = false;
        for output in outputs {
            if self.looks && matches!(output, Output::Look { known: Some(_) }) {
                unchanged = true;
            } else {
                self.waiting |= matches!(output, Output::Look { .. });
                lines.push(line(output));
            }
        }
        if unchanged {
            let input = Input::Looked(Read::Unchanged { age: None });
            lines.extend(self.step(at, input));
        }
        lines
    }

    fn parse(&mut self, words: &str) -> Option<Input> {
        if let Some(seen) = words.strip_prefix("saw ") {
            if !std::mem::take(&mut self.waiting) {
                // A story with an answer that was not asked for makes no sense.
                return None;
            }
            return Some(Input::Looked(match seen {
                "unchanged" => Read::Unchanged { age: None },
                "missing" => Read::Missing,
                "failed" => Read::Failed,
                _ => self.assignments(seen)?,
            }));
        }
        let (words, error) = match words.split_once(": ") {
            Some((words, error)) => (words, Some(error.to_owned())),
            None => (words, None),
        };
        let words: Vec<&str> = words.split(' ').collect();
        Some(match words[..] {
            ["offer", daemon] => Input::Offer(DaemonId::new(daemon).ok()?),
            ["withdraw", daemon] => Input::Withdraw(DaemonId::new(daemon).ok()?),
            ["joined"] | ["joined", "again"] => {
                self.joins += 1;
                Input::Joined(self.me())
            }
            ["trusted", "until", until] => Input::Trusted(moment(seconds(until)?)),
            ["session", "over"] => Input::SessionOver,
            ["hint"] => Input::Hint,
            ["leave"] => Input::Leave(Going::Leaving),
            ["restart", "within", within] => {
                let within = seconds(within)?;
                Input::Leave(Going::Restarting { within })
            }
            ["started", name, number] => Input::Started(shard(name)?, generation(number)?),
            ["ended", name, number] => Input::Ended {
                shard: shard(name)?,
                generation: generation(number)?,
                error,
            },
            _ => return None,
        })
    }

    fn assignments(&self, text: &str) -> Option<Read<Assignments>> {
        let (tag, entries) = text.split_once(':').unwrap_or((text, ""));
        let mut daemons: BTreeMap<DaemonId, Daemon> = BTreeMap::new();
        let mut highest = Generation(0);
        for entry in entries
            .split(", ")
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let words: Vec<&str> = entry.split(' ').collect();
            let [name, number, state] = words[..] else {
                return None;
            };
            let (shard, generation) = (shard(name)?, generation(number)?);
            highest = highest.max(generation);
            let daemon = daemons.entry(shard.daemon).or_insert_with(|| Daemon {
                definition: Definition::shards(12),
                shards: vec![None; 12],
                failures: BTreeMap::new(),
            });
            daemon.shards[shard.index as usize] = Some(Assignment {
                generation,
                incarnation: self.me(),
                state: assignment_state(state)?,
                since: Wall(0),
                count: 12,
            });
        }
        let mut me = holder("a")?;
        me.incarnation = self.me();
        Some(Read::Found {
            record: Assignments {
                lineage: None,
                term: Term(1),
                writer: Writer {
                    incarnation: me.incarnation,
                    counter: 1,
                    nonce: tenure_core::Nonce::default(),
                },
                generation: highest,
                drain_timeout: Duration::from_secs(30),
                force_after: Duration::from_secs(30),
                recovering: false,
                holders: [(me.incarnation, me)].into(),
                daemons,
            },
            version: version(tag)?,
            age: None,
        })
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
        self.agent.wake_at().since(ORIGIN)
    }
}

fn line(output: Output) -> String {
    match output {
        Output::Look { .. } => "look".to_owned(),
        Output::Start {
            shard, generation, ..
        } => format!("START {shard} {generation}"),
        Output::Drain {
            shard,
            generation,
            until,
        } => format!("DRAIN {shard} {generation} until {}", clock(until)),
        Output::Abort { shard, generation } => format!("ABORT {shard} {generation}"),
        Output::Report(report) => {
            let runs = report.runs.iter().flat_map(|(daemon, runs)| {
                runs.iter().map(move |run| {
                    format!("{daemon}/{} {} {}", run.0, run.1, run_state_name(&run.2))
                })
            });
            let mut words: Vec<String> = runs.collect();
            if words.is_empty() {
                words.push("nothing".to_owned());
            }
            let going = match report.going {
                None => String::new(),
                Some(Going::Leaving) => ", leaving".to_owned(),
                Some(Going::Restarting { within }) => format!(", restarting within {within:?}"),
            };
            format!("report {}{going}", words.join(", "))
        }
        Output::Idle => "IDLE".to_owned(),
    }
}
