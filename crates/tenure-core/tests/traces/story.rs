//! Plays one trace: reads inputs, steps the node, writes outputs. See `traces.rs` for the format.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a trace that cannot be read is a failed test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tenure_core::cluster::member::Membership;
use tenure_core::cluster::registry::Listed;
use tenure_core::cluster::{
    Assignment, AssignmentState, Assignments, Daemon, Definition, Generation, Part, Shard, member,
};
use tenure_core::election::{
    Fence, Lease, LeaseState, PastTerm, Request as Asked, RequestKind, Term, Writer,
};
use tenure_core::node::{Answer, Event, Input, Node, Output, Request, Ticket};
use tenure_core::session::{About, Config, Holder, Record, State};
use tenure_core::{
    DaemonId, ElectionName, Expect, Incarnation, Lineage, Moment, NodeId, Nonce, Now, Read,
    Version, Wall, Written,
};

/// What the clock of `a` shows when a story begins: long enough ago that ages reach back before it.
const ORIGIN: Moment = Moment::from_origin(Duration::from_secs(100_000));

/// The whole trace, with the outputs as they are now.
pub(crate) fn play(path: &Path, text: &str) -> String {
    let mut story = Story::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(' ') {
            continue;
        }
        story.text.push_str(line);
        story.text.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        story
            .line(line)
            .unwrap_or_else(|| panic!("{}:{}: cannot read {line:?}", path.display(), number + 1));
    }
    story.text
}

struct Story {
    node: Option<Node>,
    config: Config,
    now: Duration,
    /// The requests that wait for their answer, by what they are about.
    waiting: BTreeMap<String, (Ticket, Request)>,
    last_session: Option<Record>,
    last_lease: Option<Lease>,
    last_fence: Option<Fence>,
    last_sessions: Vec<Listed>,
    heartbeats: bool,
    looks: bool,
    versions: u64,
    text: String,
}

impl Story {
    fn new() -> Self {
        Self {
            node: None,
            config: Config::default(),
            now: Duration::ZERO,
            waiting: BTreeMap::new(),
            last_session: None,
            last_lease: None,
            last_fence: None,
            last_sessions: Vec::new(),
            heartbeats: false,
            looks: false,
            versions: 0,
            text: String::new(),
        }
    }

    /// Carries a line out; `None` if it cannot be read.
    fn line(&mut self, line: &str) -> Option<()> {
        match line {
            "with strict age" => self.config.strict_age = true,
            "with heartbeats" => self.heartbeats = true,
            "without heartbeats" => self.heartbeats = false,
            "with looks" => self.looks = true,
            "without looks" => self.looks = false,
            _ => {
                let (time, rest) = line.split_once(' ')?;
                let time = seconds(time)?;
                assert!(time >= self.now, "time only passes");
                if rest == "pass" {
                    self.pass(time);
                } else if rest == "again" {
                    self.now = time;
                    self.again();
                } else {
                    self.now = time;
                    let input = self.input(rest)?;
                    self.step(input);
                }
            }
        }
        Some(())
    }

    /// The next session of the process begins; what the last one asked is not answered.
    fn again(&mut self) {
        let now = Now {
            moment: ORIGIN + self.now,
            ..Now::default()
        };
        let before = self.node.as_mut().expect("started");
        let mut me = holder("a", Some(self.config.ttl));
        me.incarnation = Incarnation(me.incarnation.0 + 0x100);
        let (config, member) = (self.config.clone(), before.take_member());
        self.node = Some(Node::resume(config, me, About::default(), member, now, 7));
        self.waiting.clear();
        self.step(Input::Wake);
    }

    /// Wakes the node whenever it wants, until then.
    fn pass(&mut self, until: Duration) {
        for _ in 0..10_000 {
            let wake_at = self.node.as_ref().expect("started").wake_at().since(ORIGIN);
            if wake_at > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(wake_at);
            let before = self.text.len();
            self.step(Input::Wake);
            if self.text.len() > before {
                let time = format!("  at {:.3}\n", self.now.as_secs_f64());
                self.text.insert_str(before, &time);
            }
        }
        panic!("the node never sleeps");
    }

    fn step(&mut self, input: Input) {
        let now = Now {
            moment: ORIGIN + self.now,
            wall: Wall(0),
            nonce: Nonce::default(),
        };
        let node = self.node.get_or_insert_with(|| {
            Node::new(
                self.config.clone(),
                holder("a", Some(self.config.ttl)),
                About::default(),
                now,
                7,
            )
        });
        let outputs = node.step(now, input);
        for output in outputs {
            self.output(output);
        }
        self.answer_silently();
    }

    // ---- inputs -------------------------------------------------------------------------------------

    fn input(&mut self, text: &str) -> Option<Input> {
        let election = || ElectionName::new("default").unwrap();
        let join = |priority| Input::Join {
            election: election(),
            priority,
            new_lineage: Lineage(2),
        };
        if let Some((about, answer)) = text.split_once(": ") {
            let (ticket, request) = self.waiting.remove(about)?;
            return Some(Input::Answer(ticket, self.answer(&request, answer)?));
        }
        let words: Vec<&str> = text.split(' ').collect();
        Some(match words[..] {
            ["start" | "wake"] => Input::Wake,
            ["join"] => join(Some(100)),
            ["join", "priority", priority] => join(Some(priority.parse().ok()?)),
            ["observe"] => join(None),
            ["leave"] => Input::Leave,
            ["take", "part"] => Input::TakePart(Box::new(Membership {
                config: Default::default(),
                part: Part::default(),
                follows: false,
                seed: 7,
            })),
            ["offer", daemon] => Input::Cluster(member::Input::Offer(
                DaemonId::new(daemon).ok()?,
                Definition::shards(1),
            )),
            ["lead", term] => {
                let term = Term(term.parse().ok()?);
                // Nobody led before the first term; the stories do not say it for later ones.
                let before = (term == Term(1)).then(BTreeSet::new);
                Input::Cluster(member::Input::Elected(Lineage(1), term, before))
            }
            ["follow"] => Input::Cluster(member::Input::Deposed),
            ["ended", name, number] => Input::Cluster(member::Input::Ended {
                shard: shard(name)?,
                generation: Generation(number.parse().ok()?),
                error: None,
            }),
            ["hint", "of", node] => {
                let Holder {
                    node, incarnation, ..
                } = holder(node, None);
                Input::Cluster(member::Input::HintSession(node, incarnation))
            }
            ["hint"] => Input::Hint(election()),
            ["resign"] => Input::Resign(election()),
            ["transfer", "to", node] => Input::Transfer(election(), holder(node, None)),
            ["work", term, "ended"] => Input::WorkEnded(election(), Term(term.parse().ok()?)),
            _ => return None,
        })
    }

    fn answer(&mut self, request: &Request, text: &str) -> Option<Answer> {
        let words: Vec<&str> = text.split(' ').collect();
        let (words, age) = match words[..] {
            [ref words @ .., "age", age] => (words, Some(seconds(age)?)),
            _ => (&words[..], None),
        };
        Some(match request {
            Request::WriteSession { .. }
            | Request::WriteLease { .. }
            | Request::WriteFence { .. }
            | Request::WriteAssignments { .. } => Answer::Written(match words {
                ["done", version] => Written::Done(Version::new(*version)),
                ["conflict"] => Written::Conflict,
                ["refused"] => Written::NotApplied,
                ["lost"] => Written::Unknown,
                _ => return None,
            }),
            Request::ReadSession { holder, .. } => {
                Answer::Session(read(words, age, |words| self.session(holder, words))?)
            }
            Request::ReadLease { .. } => {
                Answer::Lease(read(words, age, |words| self.lease(words))?)
            }
            Request::ReadFence { .. } => {
                Answer::Fence(read(words, age, |words| self.fence(words))?)
            }
            Request::Look { .. } | Request::ReadAssignments { .. } => {
                Answer::Assignments(read(words, age, assignments)?)
            }
            Request::ReadDrains { .. } => Answer::Drains(read(words, age, |_| None)?),
            Request::ListSessions => {
                let listed = words.chunks(2).map(|entry| match entry {
                    [node, version] => Some(Listed {
                        node: node_id(node),
                        incarnation: holder(node, None).incarnation,
                        version: Version::new(*version),
                    }),
                    _ => None,
                });
                self.last_sessions = listed.collect::<Option<_>>()?;
                Answer::Sessions(Some(self.last_sessions.clone()))
            }
            Request::DeleteSession { .. } => Answer::Deleted,
        })
    }

    fn session(&self, holder: &Holder, words: &[&str]) -> Option<Record> {
        let (words, ttl) = match words {
            [words @ .., "ttl", ttl] => (words, seconds(ttl)?),
            // A request that only asks who is there does not know the ttl.
            _ if holder.ttl.is_zero() => (words, Duration::from_secs(10)),
            _ => (words, holder.ttl),
        };
        let (words, nonce) = match words {
            [words @ .., "by", "a", "copy"] => (words, Nonce(0xc0)),
            _ => (words, Nonce::default()),
        };
        let (state, counter) = match words {
            ["as", "written"] => return self.last_session.clone(),
            ["alive", counter] => (State::Alive, counter),
            ["gone" | "lost", counter] => (State::Gone, counter),
            ["evicted", counter] => (State::Evicted { by: node_id("c") }, counter),
            _ => return None,
        };
        Some(Record {
            node: holder.node.clone(),
            incarnation: holder.incarnation,
            counter: counter.strip_prefix('#')?.parse().ok()?,
            nonce,
            ttl,
            state,
            joined_at: Wall(0),
            about: Box::new(About {
                lost: words.first() == Some(&"lost"),
                ..About::default()
            }),
        })
    }

    fn lease(&self, words: &[&str]) -> Option<Lease> {
        let (words, lapses) = match words {
            [words @ .., "and", "lapses"] => (words, true),
            _ => (words, false),
        };
        let (words, kind) = match words {
            [words @ .., "asks", "resign"] => (words, Some(RequestKind::Resign)),
            [words @ .., "asks", "transfer", "to", node] => (
                words,
                Some(RequestKind::Transfer {
                    to: holder(node, None),
                }),
            ),
            _ => (words, None),
        };
        let request = kind.map(|kind| Asked {
            kind,
            by: node_id("people"),
            lapses,
        });
        let (words, last) = match words {
            [words @ .., "after", node] => (words, Some(*node)),
            _ => (words, None),
        };
        let (term, state) = match words {
            ["as", "written"] => {
                let lease = self.last_lease.clone()?;
                return Some(Lease { request, ..lease });
            }
            ["term", term, "vacant"] => (term, LeaseState::Vacant),
            ["term", term, "reserved", "for", node, ttl @ ..] => {
                let ttl = match ttl {
                    [] => None,
                    ["ttl", ttl] => Some(seconds(ttl)?),
                    _ => return None,
                };
                let candidate = holder(node, ttl);
                (term, LeaseState::Reserved { candidate })
            }
            ["term", term, "held", "by", node, ttl @ ..] => {
                let ttl = match ttl {
                    [] => None,
                    ["ttl", ttl] => Some(seconds(ttl)?),
                    _ => return None,
                };
                let holder = holder(node, ttl);
                (
                    term,
                    LeaseState::Held {
                        holder,
                        since: Wall(0),
                    },
                )
            }
            _ => return None,
        };
        let term = Term(term.parse().ok()?);
        let past = |node: &str| PastTerm {
            term,
            node: node_id(node),
            incarnation: holder(node, None).incarnation,
            since: Wall(0),
            until: Wall(0),
            reason: "resigned".to_owned(),
            lasted_ms: None,
            vacant_ms: None,
        };
        Some(Lease {
            lineage: Lineage(1),
            term,
            state,
            request,
            history: last.map(past).into_iter().collect(),
            writer: Writer {
                incarnation: Incarnation(0),
                counter: 0,
                nonce: Nonce::default(),
            },
        })
    }

    fn fence(&self, words: &[&str]) -> Option<Fence> {
        match words {
            ["as", "written"] => self.last_fence.clone(),
            ["term", term, "by", node] => Some(Fence {
                lineage: Lineage(1),
                term: Term(term.parse().ok()?),
                holder: holder(node, None),
            }),
            _ => None,
        }
    }

    /// What the directives leave out.
    fn answer_silently(&mut self) {
        let heartbeat = match self.waiting.get("me") {
            Some((_, Request::WriteSession { record, .. })) => record.state == State::Alive,
            _ => false,
        };
        if self.heartbeats && heartbeat {
            let (ticket, _) = self.waiting.remove("me").unwrap();
            self.versions += 1;
            let version = Version::new(format!("h{}", self.versions));
            self.step(Input::Answer(
                ticket,
                Answer::Written(Written::Done(version)),
            ));
        }
        for about in ["lease", "look", "assignments", "drains", "sessions"] {
            let answer = match self.waiting.get(about) {
                Some((_, Request::ReadLease { known: Some(_), .. })) => {
                    Answer::Lease(Read::Unchanged { age: None })
                }
                Some((
                    _,
                    Request::Look { known: Some(_) } | Request::ReadAssignments { known: Some(_) },
                )) => Answer::Assignments(Read::Unchanged { age: None }),
                Some((_, Request::ReadDrains { .. })) => Answer::Drains(Read::Missing),
                Some((_, Request::ListSessions)) if !self.last_sessions.is_empty() => {
                    Answer::Sessions(Some(self.last_sessions.clone()))
                }
                _ => continue,
            };
            if self.looks {
                let (ticket, _) = self.waiting.remove(about).unwrap();
                self.step(Input::Answer(ticket, answer));
            }
        }
    }

    // ---- outputs ------------------------------------------------------------------------------------

    fn output(&mut self, output: Output) {
        let words = match output {
            Output::Request {
                ticket,
                request,
                within,
            } => {
                assert!(!within.is_zero(), "nobody can answer at once");
                let hurried = within < self.config.request_timeout;
                let words = self.request(ticket, request);
                words.map(|words| {
                    if hurried {
                        format!("{words}, within {:.3}", within.as_secs_f64())
                    } else {
                        words
                    }
                })
            }
            Output::Event(event) => self.event(event),
        };
        if let Some(words) = words {
            self.text.push_str("    ");
            self.text.push_str(&words);
            self.text.push('\n');
        }
    }

    fn request(&mut self, ticket: Ticket, request: Request) -> Option<String> {
        let (about, words) = match &request {
            Request::ReadSession { holder, .. } => {
                let about = if holder.ttl.is_zero() {
                    format!("record of {}", name(holder))
                } else {
                    name(holder)
                };
                (about.clone(), Some(format!("read {about}")))
            }
            Request::WriteSession { record, expect } => {
                let about = name(&record.holder());
                let words = match &record.state {
                    State::Evicted { .. } => format!("evict {about} {}", over(expect)),
                    state => {
                        self.last_session = Some((**record).clone());
                        let state = format!("{state:?}").to_lowercase();
                        format!("write {about} #{} {state} {}", record.counter, over(expect))
                    }
                };
                let silent = self.heartbeats && about == "me" && record.state == State::Alive;
                (about, (!silent).then_some(words))
            }
            Request::ReadLease { known, .. } => {
                let silent = self.looks && known.is_some();
                (
                    "lease".to_owned(),
                    (!silent).then(|| "read lease".to_owned()),
                )
            }
            Request::WriteLease { lease, expect, .. } => {
                self.last_lease = Some((**lease).clone());
                let state = match &lease.state {
                    LeaseState::Held { holder, .. } => format!("held by {}", holder.node),
                    LeaseState::Vacant => "vacant".to_owned(),
                    LeaseState::Reserved { candidate } => {
                        format!("reserved for {}", candidate.node)
                    }
                };
                // If there was no lease it may begin a new lineage: lineage 1 is the old one.
                let row = match expect {
                    Expect::Absent => format!(" of row {:?}", lease.lineage),
                    Expect::Version(_) => String::new(),
                };
                let words = format!(
                    "write lease term {}{row} {state} {}",
                    lease.term,
                    over(expect)
                );
                ("lease".to_owned(), Some(words))
            }
            Request::ReadFence { .. } => ("fence".to_owned(), Some("read fence".to_owned())),
            Request::WriteFence { fence, expect, .. } => {
                self.last_fence = Some(fence.clone());
                let words = format!("write fence term {} {}", fence.term, over(expect));
                ("fence".to_owned(), Some(words))
            }
            Request::Look { known } => {
                let silent = self.looks && known.is_some();
                ("look".to_owned(), (!silent).then(|| "look".to_owned()))
            }
            Request::ReadAssignments { known } => {
                let silent = self.looks && known.is_some();
                let words = (!silent).then(|| "read assignments".to_owned());
                ("assignments".to_owned(), words)
            }
            Request::WriteAssignments {
                assignments,
                expect,
            } => {
                let term = assignments.term;
                let words = format!("write assignments term {term} {}", over(expect));
                ("assignments".to_owned(), Some(words))
            }
            Request::ReadDrains { .. } => {
                let words = (!self.looks).then(|| "read drains".to_owned());
                ("drains".to_owned(), words)
            }
            Request::ListSessions => {
                let silent = self.looks && !self.last_sessions.is_empty();
                let words = (!silent).then(|| "list sessions".to_owned());
                ("sessions".to_owned(), words)
            }
            Request::DeleteSession { holder } => {
                let about = name(holder);
                (format!("delete {about}"), Some(format!("delete {about}")))
            }
        };
        let before = self.waiting.insert(about, (ticket, request));
        assert!(before.is_none(), "one request about a thing at a time");
        words
    }

    fn event(&self, event: Event) -> Option<String> {
        Some(match event {
            Event::Trusted { .. } if self.heartbeats => return None,
            Event::Trusted { until } => format!("TRUSTED until {}", shown(until)),
            Event::Over { reason } => format!("OVER: {reason}"),
            Event::Left => "LEFT".to_owned(),
            Event::Cluster(event) => return of_cluster(event),
            Event::SessionEnded { incarnation, end } => {
                format!("SESSION {incarnation:?} ended: {end:?}")
                    .replace("ended: Missing", "ended: missing for a whole ttl")
            }
            Event::Leader { leader: None, .. } => "LEADER nobody".to_owned(),
            Event::Leader {
                leader: Some(leader),
                ..
            } => {
                format!("LEADER {} in term {}", leader.node, leader.term)
            }
            Event::Elected { term, .. } => {
                let node = self.node.as_ref().expect("started");
                let election = ElectionName::new("default").unwrap();
                let until = node.leads_until(&election).map(|(_, until)| shown(until));
                format!("ELECTED term {term}, until {}", until.unwrap_or_default())
            }
            Event::Stop { term, .. } => format!("STOP term {term}"),
            Event::Ended { term, reason, .. } => format!("ENDED term {term}: {reason}"),
            Event::Anomaly { anomaly, .. } => format!("ANOMALY: {anomaly}"),
        })
    }
}

fn of_cluster(event: member::Event) -> Option<String> {
    Some(match event {
        member::Event::Start {
            shard, generation, ..
        } => format!("START {shard} {generation}"),
        member::Event::Drain {
            shard,
            generation,
            until,
        } => format!("DRAIN {shard} {generation} until {}", shown(until)),
        member::Event::Abort { shard, generation } => format!("ABORT {shard} {generation}"),
        member::Event::Joined(record) => format!("JOINED {}", record.node),
        member::Event::Left(record) => format!("LEFT {}", record.node),
        member::Event::Evicted(record) => format!("EVICTED {}", record.node),
        member::Event::Installed { term } => format!("INSTALLED term {term}"),
        member::Event::LeaderSilent { term } => format!("SILENT leader of term {term}"),
        other @ (member::Event::Decided(_)
        | member::Event::Superseded { .. }
        | member::Event::Resigned { .. }
        | member::Event::Anomaly(_)) => format!("{other:?}"),
        member::Event::TrustMoved | member::Event::Turn(_) => return None,
    })
}

/// What `a` is to run: `d/0 1` is the first shard of d in generation 1, in use.
fn assignments(words: &[&str]) -> Option<Assignments> {
    let me = holder("a", None);
    let mut daemons = BTreeMap::new();
    let mut highest = Generation(0);
    for assigned in words.chunks(2) {
        let [name, number] = assigned else {
            return None;
        };
        let Shard { daemon, .. } = shard(name)?;
        highest = Generation(number.parse().ok()?);
        let assignment = Assignment {
            generation: highest,
            incarnation: me.incarnation,
            state: AssignmentState::Active,
            since: Wall(0),
            count: 1,
        };
        daemons.insert(
            daemon,
            Daemon {
                definition: Definition::shards(1),
                shards: vec![Some(assignment)],
                failures: BTreeMap::new(),
            },
        );
    }
    Some(Assignments {
        lineage: None,
        term: Term(1),
        writer: Writer {
            incarnation: me.incarnation,
            counter: 1,
            nonce: Nonce::default(),
        },
        generation: highest,
        drain_timeout: Duration::from_secs(30),
        force_after: Duration::from_secs(30),
        recovering: false,
        holders: [(me.incarnation, me)].into(),
        daemons,
    })
}

fn shard(text: &str) -> Option<Shard> {
    let (daemon, index) = text.split_once('/')?;
    Some(Shard {
        daemon: DaemonId::new(daemon).ok()?,
        index: index.parse().ok()?,
    })
}

fn read<T>(
    words: &[&str],
    age: Option<Duration>,
    record: impl Fn(&[&str]) -> Option<T>,
) -> Option<Read<T>> {
    Some(match words {
        ["missing"] => Read::Missing,
        ["failed"] => Read::Failed,
        ["unchanged"] => Read::Unchanged { age },
        ["unreadable", version] => Read::Unreadable {
            version: Version::new(*version),
        },
        _ => {
            // The version comes before what is asked, or last.
            let at = words.iter().position(|word| is_version(word))?;
            let rest: Vec<&str> = [&words[..at], &words[at + 1..]].concat();
            Read::Found {
                record: record(&rest)?,
                version: Version::new(words[at]),
                age,
            }
        }
    })
}

fn is_version(word: &str) -> bool {
    word.strip_prefix('v')
        .is_some_and(|number| number.parse::<u64>().is_ok())
}

fn shown(moment: Moment) -> String {
    format!("{:.3}", moment.since(ORIGIN).as_secs_f64())
}

fn seconds(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_secs_f64)
}

fn node_id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// Nodes are called a, b, c, and so are their incarnations.
fn holder(node: &str, ttl: Option<Duration>) -> Holder {
    Holder {
        node: node_id(node),
        incarnation: node.parse().expect("a hexadecimal letter"),
        ttl: ttl.unwrap_or(Duration::from_secs(10)),
    }
}

fn name(holder: &Holder) -> String {
    match holder.node.as_str() {
        "a" => "me".to_owned(),
        node => node.to_owned(),
    }
}

fn over(expect: &Expect) -> String {
    match expect {
        Expect::Absent => "over nothing".to_owned(),
        Expect::Version(version) => format!("over {}", version.as_str()),
    }
}
