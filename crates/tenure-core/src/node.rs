//! One process as one machine: its session, what it knows of others, its elections, and its part in the cluster.
//!
//! A [`Node`] is one incarnation. When its session is over, all work stops, everything is given back as
//! far as the store allows, and the driver starts the next one. Only the part in the cluster outlives it
//! and is passed on ([`Node::take_member`], [`Node::resume`]): shards that the old session started must
//! have ended here before the new one starts the same.
//!
//! ```text
//!   inputs ──► session ──► elections ──► member of the cluster ──► outputs
//!                 ▲           │    ▲          │  │
//!                 │           ▼    │          │  ▼
//!                 │         observer of other sessions
//!                 └─────────────── reports ───┘
//! ```
//!
//! This is all the wiring there is: the driver of the `tenure` crate, the simulations and the model check run exactly
//! this. They take an input, step, carry out the outputs, and sleep until [`Node::wake_at`]. Inputs that came together
//! are given together, so that what they change in the session goes into one write.
//!
//! Requests carry a ticket. The driver gives each answer back with it, exactly once, even if it has stopped waiting (a
//! lost answer is an answer). Requests of different parts run at the same time, those of one part one after the other.
//! After [`Event::Left`] no request is sent and no answer is taken; only the end of shards is still noted.

mod cluster;
mod elections;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::Going;
use crate::cluster::member::{self, Heard, Member, Question};
use crate::election::{self, Election, Lease, Term};
use crate::session::observer::{self, Observer};
use crate::session::{self, About, Config, Holder, Record, Session};
use crate::{ElectionName, Incarnation, Lineage, Moment, Now, Read};
use cluster::{assigner_seed, is_clusters};
use elections::Elections;
pub use messages::{Answer, Event, Input, Output, Request};

/// Up to this many leases of one session are looked at in turns. More are looked at by a [listing](crate::polls).
const SIBLINGS_MAX: usize = 10;

/// The machine.
#[derive(Debug, Clone, Hash)]
pub struct Node {
    config: Config,
    me: Holder,
    seed: u64,
    about: About,
    /// Set if what the session says has changed. The session gets that once all inputs that came together were taken.
    about_changed: bool,
    session: Session,
    observer: Observer,
    elections: Elections,
    /// Which elections wait for which session to end.
    watchers: BTreeMap<Incarnation, BTreeSet<ElectionName>>,
    /// The part in the cluster, if the process takes one.
    member: Option<Box<Member>>,
    /// What the member is told when the current step is over.
    heard: Vec<Heard>,
    /// The sessions that the member wants to know about.
    watched: BTreeSet<Incarnation>,
    /// Where the answer to each request goes.
    pending: BTreeMap<Ticket, Route>,
    tickets: u64,
    finishing: Option<Finishing>,
    has_left: bool,
}

/// Names a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug, Clone, Hash)]
enum Route {
    Session,
    Observer(Incarnation),
    Election(ElectionName),
    Cluster(Question),
}

/// Everything is being given back. The session leaves when that is done, or when it takes too long after all work has
/// ended.
#[derive(Debug, Clone, Copy, Hash)]
struct Finishing {
    give_up_at: Moment,
    /// The session was told to leave.
    leaves: bool,
    /// Since when the session is over, if that is why.
    over_since: Option<Moment>,
    /// Whether leases are given back before it leaves.
    gives_back: bool,
}

impl Node {
    /// Makes a node that has not joined yet; the first [`Input::Wake`] starts it.
    #[must_use]
    pub fn new(config: Config, me: Holder, about: About, now: Now, seed: u64) -> Self {
        Self::resume(config, me, about, None, now, seed)
    }

    /// Makes the next incarnation of a process, with the last one's part in the cluster.
    #[must_use]
    pub fn resume(
        config: Config,
        me: Holder,
        mut about: About,
        mut member: Option<Box<Member>>,
        now: Now,
        seed: u64,
    ) -> Self {
        if let Some(member) = &mut member {
            about.cluster = Some(Box::new(member.part().clone()));
            member.begin(me.clone(), now.moment, assigner_seed(seed));
        }
        Self {
            session: Session::new(config.clone(), &me, about.clone(), now, seed),
            observer: Observer::new(config.clone(), me.node.clone(), seed ^ 1),
            config,
            me,
            seed,
            about,
            about_changed: false,
            elections: Elections::default(),
            watchers: BTreeMap::new(),
            member,
            heard: Vec::new(),
            watched: BTreeSet::new(),
            pending: BTreeMap::new(),
            tickets: 0,
            finishing: None,
            has_left: false,
        }
    }

    /// The part in the cluster, if the process takes one.
    #[must_use]
    pub fn member(&self) -> Option<&Member> {
        self.member.as_deref()
    }

    /// Takes that part out for the next incarnation, once this one has left.
    #[must_use]
    pub fn take_member(&mut self) -> Option<Box<Member>> {
        self.member.take()
    }

    /// The term in which this process leads an election, and until when. Check it at every use.
    #[must_use]
    pub fn leads_until(&self, election: &ElectionName) -> Option<(Term, Moment)> {
        self.elections.get(election)?.leads_until()
    }

    /// What this session says, or will say with its next write.
    #[must_use]
    pub fn record(&self) -> &Record {
        self.session.record()
    }

    /// Until when the session is trusted.
    #[must_use]
    pub fn trusted_until(&self) -> Moment {
        self.session.trusted_until()
    }

    /// Whether the process may act on what it holds. Check it at every use.
    #[must_use]
    pub fn is_trusted(&self, now: Moment) -> bool {
        self.session.is_trusted(now)
    }

    /// See [`Session::farewell`].
    #[must_use]
    pub fn farewell(&self) -> Option<session::Farewell> {
        self.session.farewell()
    }

    /// Whether the object of the session may be deleted. It may once the object is known to say that the session is
    /// gone, if every lease was given back before and no assignment can name the session. The object of a session that
    /// was lost stays: a lease may still name it, and a candidate that waits for that lease reads there that the
    /// session is gone.
    #[must_use]
    pub fn needs_no_session(&self) -> bool {
        let was_lost = self.finishing.is_some_and(|it| it.over_since.is_some());
        let has_left = self.has_left && self.session.has_said_gone();
        has_left && !was_lost && self.elections.hold_nothing() && self.about.cluster.is_none()
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        if self.has_left {
            return Moment::NEVER;
        }
        // Work that has not ended is waited for however long it takes.
        let give_up = match self.finishing {
            Some(finishing) if !finishing.leaves && !self.is_working() => {
                self.abandon_at().unwrap_or(finishing.give_up_at)
            }
            _ => Moment::NEVER,
        };
        let sessions = self.session.wake_at().min(self.observer.wake_at());
        let member = self.member().map_or(Moment::NEVER, Member::wake_at);
        let parts = sessions.min(self.elections.wake_at()).min(member);
        parts.min(give_up)
    }

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        self.step_all(now, [input])
    }

    /// As [`step`](Self::step), for inputs that came together. A thousand elections that are joined, or shards that
    /// start, change the session once and not a thousand times.
    #[must_use]
    pub fn step_all(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Vec<Output> {
        let mut outputs = Vec::new();
        for input in inputs {
            self.take(now, input, &mut outputs);
        }
        self.settle(now, &mut outputs);
        self.leave_when_free(now, &mut outputs);
        // The member has to know if the session is over or has left.
        self.settle(now, &mut outputs);
        outputs
    }

    fn take(&mut self, now: Now, input: Input, outputs: &mut Vec<Output>) {
        match input {
            Input::TakePart(membership) => self.take_part(now, *membership),
            Input::Cluster(input) => self.on_cluster(now, input, outputs),
            // Its elections and its session are over.
            _ if self.has_left => {}
            Input::Wake => self.wake(now, outputs),
            Input::Answer(ticket, answer) => self.on_answer(now, ticket, answer, outputs),
            Input::Join {
                election,
                priority,
                new_lineage,
            } => self.join(now, &election, priority, new_lineage, outputs),
            Input::Resign(election) => {
                self.step_election(now, &election, election::Input::Resign, outputs);
            }
            Input::ResignTerm(election, term) => {
                let leads = self.leads_until(&election);
                if leads.is_some_and(|(current, _)| current == term) {
                    self.step_election(now, &election, election::Input::Resign, outputs);
                }
            }
            Input::GiveUpTerm(election, term, why) => {
                let leads = self.leads_until(&election);
                if leads.is_some_and(|(current, _)| current == term) {
                    let gives_up = election::Input::GiveUp(why);
                    self.step_election(now, &election, gives_up, outputs);
                }
            }
            Input::Transfer(election, to) => {
                self.step_election(now, &election, election::Input::Transfer(to), outputs);
            }
            Input::WorkEnded(election, term) => {
                let ended = election::Input::WorkEnded(term);
                self.step_election(now, &election, ended, outputs);
            }
            Input::Hint(election) => {
                self.step_election(now, &election, election::Input::Hint, outputs);
            }
            Input::HintAll => {
                self.step_elections(now, &election::Input::Hint, outputs);
                self.step_observer(now, observer::Input::Hint, outputs);
                self.ring();
            }
            Input::About(about) => {
                self.about = About {
                    stands: std::mem::take(&mut self.about.stands),
                    cluster: self.about.cluster.take(),
                    ..about
                };
                self.about_changed = true;
            }
            Input::Spare(is_sparing) => {
                self.step_session(now, session::Input::Spare(is_sparing), outputs);
            }
            Input::Leave => {
                // Daemons go first: the session stays until they have ended.
                self.tell_member(Heard::Input(member::Input::Leave(Going::Leaving)));
                self.finish(now.moment);
                self.step_elections(now, &election::Input::StandDown, outputs);
            }
        }
    }

    fn wake(&mut self, now: Now, outputs: &mut Vec<Output>) {
        // The session first: whether it is over decides what everything else may do.
        self.step_session(now, session::Input::Wake, outputs);
        self.step_observer(now, observer::Input::Wake, outputs);
        for name in self.elections.due(now.moment) {
            self.step_election(now, &name, election::Input::Wake, outputs);
        }
        if self
            .member()
            .is_some_and(|member| member.wake_at() <= now.moment)
        {
            self.tell_member(Heard::Wake);
        }
    }

    fn join(
        &mut self,
        now: Now,
        name: &ElectionName,
        priority: Option<u8>,
        new_lineage: Lineage,
        outputs: &mut Vec<Output>,
    ) {
        // A process that leaves joins no election: the next incarnation does.
        if self.finishing.is_some() {
            return;
        }
        let seed = self.seed ^ (self.elections.len() as u64 + 2);
        let trusted_until = self.session.trusted_until();
        let (config, me) = (self.config.clone(), self.me.clone());
        self.elections.add(name, || {
            Election::new(config, me, new_lineage, now.moment, seed)
        });
        self.step_election(now, name, election::Input::Trusted(trusted_until), outputs);
        match priority {
            Some(priority) => {
                self.about.stands.insert(name.clone(), priority);
                self.step_election(now, name, election::Input::Stand(priority), outputs);
            }
            None => {
                self.about.stands.remove(name);
                self.step_election(now, name, election::Input::StandDown, outputs);
            }
        }
        self.about_changed = true;
    }

    fn on_answer(&mut self, now: Now, ticket: Ticket, answer: Answer, outputs: &mut Vec<Output>) {
        let Some(route) = self.pending.remove(&ticket) else {
            return;
        };
        match (route, answer) {
            (Route::Session, Answer::Written(written)) => {
                self.step_session(now, session::Input::Written(written), outputs);
            }
            (Route::Session, Answer::Session(read)) => {
                self.step_session(now, session::Input::Read(read), outputs);
            }
            (Route::Observer(incarnation), Answer::Session(read)) => {
                if let Read::Found { record, .. } = &read
                    && self.watched.contains(&incarnation)
                {
                    self.tell_member(Heard::Session(Box::new(record.clone())));
                }
                self.step_observer(now, observer::Input::Read(incarnation, read), outputs);
            }
            (Route::Observer(incarnation), Answer::Written(written)) => {
                self.step_observer(now, observer::Input::Evicted(incarnation, written), outputs);
            }
            (Route::Election(name), Answer::Lease(read)) => {
                self.on_lease_read(now, &name, read, outputs);
            }
            (Route::Election(name), Answer::Fence(read)) => {
                self.step_election(now, &name, election::Input::FenceRead(read), outputs);
            }
            (Route::Election(name), Answer::Written(written)) => {
                // The election knows which of its two objects it wrote.
                let election = self.elections.get(&name);
                let input = if election.is_some_and(Election::writes_fence) {
                    election::Input::FenceWritten(written)
                } else {
                    election::Input::LeaseWritten(written)
                };
                self.step_election(now, &name, input, outputs);
            }
            (Route::Cluster(question), answer) => {
                self.tell_member(Heard::Answer(question, Box::new(answer)));
            }
            (route, answer) => unreachable!("{route:?} was answered with {answer:?}"),
        }
    }

    /// A look at one of Tenure's own leases also counts for the others that the same session holds: far more often than
    /// not they change together, when that session leaves. So they take turns, each at least at every second heartbeat;
    /// and when one has another holder, all leases of the former holder are looked at. Leases of users take no turns:
    /// one of them may be handed over alone. Only followers do this. A holder looks at each of its own leases.
    fn on_lease_read(
        &mut self,
        now: Now,
        name: &ElectionName,
        read: Read<Lease>,
        outputs: &mut Vec<Output>,
    ) {
        let holder = |node: &Self| {
            let leader = node.elections.get(name).and_then(Election::leader);
            leader.map(|leader| leader.incarnation)
        };
        let before = holder(self);
        let siblings = before.and_then(|before| self.watchers.get(&before));
        let siblings: Vec<ElectionName> = match siblings {
            Some(all) if all.len() <= SIBLINGS_MAX && all.contains(name) => {
                all.iter().filter(|other| *other != name).cloned().collect()
            }
            _ => Vec::new(),
        };
        let (is_found, has_failed) = (matches!(read, Read::Found { .. }), read == Read::Failed);
        self.step_election(now, name, election::Input::LeaseRead(read), outputs);
        // A new member may have rewritten it, so that its leader looks for new nodes.
        if is_found && is_clusters(name) {
            self.ring();
        }
        if has_failed {
            return;
        }
        let is_unchanged = holder(self) == before;
        for sibling in siblings {
            let input = if !is_unchanged {
                election::Input::Hint
            } else if name.is_reserved() && sibling.is_reserved() {
                election::Input::SiblingSeen
            } else {
                continue;
            };
            self.step_election(now, &sibling, input, outputs);
        }
    }

    /// Tells the member that a node may have come that the leader of the cluster does not know.
    fn ring(&mut self) {
        if self.member().is_some_and(Member::leads) {
            self.tell_member(Heard::Rung);
        }
    }

    fn step_session(&mut self, now: Now, input: session::Input, outputs: &mut Vec<Output>) {
        for output in self.session.step(now, input) {
            match output {
                session::Output::Write {
                    record,
                    expect,
                    within,
                } => {
                    let request = Request::WriteSession {
                        record: Box::new(record),
                        expect,
                    };
                    self.send(Route::Session, request, within, outputs);
                }
                session::Output::Read { within } => {
                    let request = Request::ReadSession {
                        holder: self.me.clone(),
                        known: None,
                    };
                    self.send(Route::Session, request, within, outputs);
                }
                session::Output::Trusted { until } => {
                    outputs.push(Output::Event(Event::Trusted { until }));
                    self.tell_member(Heard::Trusted(until));
                    self.tell_own_session();
                    self.tell_what_was_said();
                    self.step_elections(now, &election::Input::Trusted(until), outputs);
                }
                session::Output::Over { reason } => {
                    let gives_back = reason.gives_back();
                    outputs.push(Output::Event(Event::Over { reason }));
                    self.tell_member(Heard::SessionOver);
                    let finishing = self.finish(now.moment);
                    finishing.over_since = Some(now.moment);
                    finishing.gives_back = gives_back;
                    let over = election::Input::SessionOver { gives_back };
                    self.step_elections(now, &over, outputs);
                }
                session::Output::Left => {
                    self.has_left = true;
                    self.rest();
                    outputs.push(Output::Event(Event::Left));
                }
            }
        }
    }

    fn step_observer(&mut self, now: Now, input: observer::Input, outputs: &mut Vec<Output>) {
        let within = self.patience(now.moment);
        for output in self.observer.step(now.moment, input) {
            match output {
                observer::Output::Read { holder, known } => {
                    let route = Route::Observer(holder.incarnation);
                    self.send(
                        route,
                        Request::ReadSession { holder, known },
                        within,
                        outputs,
                    );
                }
                observer::Output::Evict {
                    holder,
                    record,
                    expect,
                } => {
                    let route = Route::Observer(holder.incarnation);
                    self.send(
                        route,
                        Request::WriteSession { record, expect },
                        within,
                        outputs,
                    );
                }
                observer::Output::Missing { incarnation } => {
                    let waiting = self.watchers.get(&incarnation).cloned().unwrap_or_default();
                    for name in waiting {
                        let input = election::Input::HolderMissing(incarnation);
                        self.step_election(now, &name, input, outputs);
                    }
                }
                observer::Output::Ended { incarnation, end } => {
                    outputs.push(Output::Event(Event::SessionEnded { incarnation, end }));
                    self.tell_member(Heard::SessionEnded(incarnation, end));
                    let waiting = self.watchers.get(&incarnation).cloned().unwrap_or_default();
                    for name in waiting {
                        let input = election::Input::HolderEnded(incarnation, end);
                        self.step_election(now, &name, input, outputs);
                    }
                }
            }
        }
    }

    fn step_elections(&mut self, now: Now, input: &election::Input, outputs: &mut Vec<Output>) {
        for name in self.elections.names() {
            self.step_election(now, &name, input.clone(), outputs);
        }
    }

    fn step_election(
        &mut self,
        now: Now,
        name: &ElectionName,
        input: election::Input,
        outputs: &mut Vec<Output>,
    ) {
        for output in self.elections.step(now, name, input) {
            self.on_election(now, name, output, outputs);
        }
    }

    fn on_election(
        &mut self,
        now: Now,
        name: &ElectionName,
        output: election::Output,
        outputs: &mut Vec<Output>,
    ) {
        let election = name.clone();
        let within = self.patience(now.moment);
        let request = match output {
            election::Output::ReadLease { known } => Request::ReadLease { election, known },
            election::Output::WriteLease { lease, expect } => Request::WriteLease {
                election,
                lease,
                expect,
            },
            election::Output::ReadFence => Request::ReadFence { election },
            election::Output::WriteFence { fence, expect } => Request::WriteFence {
                election,
                fence,
                expect,
            },
            election::Output::Blind => {
                return self.step_session(now, session::Input::Blind, outputs);
            }
            election::Output::Watch(holder) => return self.watch(now, name, holder, outputs),
            election::Output::Forget(incarnation) => {
                return self.forget(now, name, incarnation, outputs);
            }
            election::Output::Leader(leader) => {
                if is_clusters(name) {
                    self.tell_member(Heard::Leader(leader.clone()));
                }
                return outputs.push(Output::Event(Event::Leader { election, leader }));
            }
            election::Output::Elected { term, lineage } => {
                if is_clusters(name) {
                    let election = self.elections.get(name);
                    let before = election.and_then(Election::predecessors);
                    let elected = member::Input::Elected(lineage, term, before);
                    self.tell_member(Heard::Input(elected));
                }
                return outputs.push(Output::Event(Event::Elected {
                    election,
                    term,
                    lineage,
                }));
            }
            election::Output::Stop { term } => {
                return outputs.push(Output::Event(Event::Stop { election, term }));
            }
            election::Output::Ended { term, reason } => {
                if is_clusters(name) {
                    self.tell_member(Heard::Input(member::Input::Deposed));
                }
                return outputs.push(Output::Event(Event::Ended {
                    election,
                    term,
                    reason,
                }));
            }
            election::Output::Anomaly(anomaly) => {
                return outputs.push(Output::Event(Event::Anomaly { election, anomaly }));
            }
        };
        self.send(Route::Election(name.clone()), request, within, outputs);
    }

    fn watch(&mut self, now: Now, name: &ElectionName, holder: Holder, outputs: &mut Vec<Output>) {
        let incarnation = holder.incarnation;
        self.watchers
            .entry(incarnation)
            .or_default()
            .insert(name.clone());
        // Another election may have seen it end already.
        match self.observer.end_of(incarnation) {
            Some(end) => {
                let input = election::Input::HolderEnded(incarnation, end);
                self.step_election(now, name, input, outputs);
            }
            None if self.observer.is_missing(incarnation) => {
                let input = election::Input::HolderMissing(incarnation);
                self.step_election(now, name, input, outputs);
            }
            None => self.step_observer(now, observer::Input::WatchClosely(holder), outputs),
        }
    }

    fn forget(
        &mut self,
        now: Now,
        name: &ElectionName,
        incarnation: Incarnation,
        outputs: &mut Vec<Output>,
    ) {
        let Some(names) = self.watchers.get_mut(&incarnation) else {
            return;
        };
        names.remove(name);
        if names.is_empty() {
            self.watchers.remove(&incarnation);
            if self.watched.contains(&incarnation) {
                self.step_observer(now, observer::Input::Loosen(incarnation), outputs);
            } else {
                self.forget_unless_watched(now, incarnation, outputs);
            }
        }
    }

    fn forget_unless_watched(
        &mut self,
        now: Now,
        incarnation: Incarnation,
        outputs: &mut Vec<Output>,
    ) {
        if !self.watched.contains(&incarnation) && !self.watchers.contains_key(&incarnation) {
            self.step_observer(now, observer::Input::Forget(incarnation), outputs);
        }
    }

    fn send(
        &mut self,
        route: Route,
        request: Request,
        within: Duration,
        outputs: &mut Vec<Output>,
    ) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.pending.insert(ticket, route);
        outputs.push(Output::Request {
            ticket,
            request,
            within,
        });
    }

    /// How long a request may take: never past the end of trust, since nothing that it could serve lasts longer.
    /// Without trust, before joining and when giving back afterwards, there is no such end.
    fn patience(&self, now: Moment) -> Duration {
        let remaining = self.session.trusted_until().since(now);
        if remaining.is_zero() {
            self.config.request_timeout
        } else {
            self.config.request_timeout.min(remaining)
        }
    }

    fn finish(&mut self, now: Moment) -> &mut Finishing {
        let give_up_at = now + self.config.ttl;
        self.finishing.get_or_insert(Finishing {
            give_up_at,
            leaves: false,
            over_since: None,
            gives_back: true,
        })
    }

    /// Whether something works under this session that must have ended before it leaves. Once the session is over its
    /// shards are no longer trusted, and only the work of elections is waited for.
    fn is_working(&self) -> bool {
        let is_over = self.finishing.is_some_and(|it| it.over_since.is_some());
        self.elections.is_working() || (self.runs_shards() && !is_over)
    }

    fn runs_shards(&self) -> bool {
        self.member().is_some_and(|member| !member.is_idle())
    }

    /// When a session that is over leaves without saying so, because something in it does not end: the next session
    /// must not wait for that.
    fn abandon_at(&self) -> Option<Moment> {
        let over_since = self.finishing?.over_since?;
        self.runs_shards().then(|| over_since + self.config.grace)
    }

    /// The session leaves last, since its going frees everything at once: never before all work has
    /// ended, and preferably after every lease was given back.
    fn leave_when_free(&mut self, now: Now, outputs: &mut Vec<Output>) {
        let (is_working, abandon_at) = (self.is_working(), self.abandon_at());
        let free = self.elections.hold_nothing();
        let Some(finishing) = &mut self.finishing else {
            return;
        };
        if finishing.leaves {
            return;
        }
        // A session that is gone frees whatever it holds at once. While anything works, another node would start the
        // same beside it.
        if is_working {
            finishing.give_up_at = now.moment + self.config.ttl;
            return;
        }
        // A shard that will not end prevents this session from saying "gone", but not the next one from beginning: the
        // shard is not trusted, and it is freed when this session is evicted.
        if let Some(abandon_at) = abandon_at {
            if now.moment >= abandon_at {
                finishing.leaves = true;
                self.step_session(now, session::Input::Abandon, outputs);
            }
            return;
        }
        let free = free || !finishing.gives_back;
        if free || now.moment >= finishing.give_up_at {
            finishing.leaves = true;
            self.step_session(now, session::Input::Leave, outputs);
        }
    }
}

#[cfg(test)]
mod tests;
