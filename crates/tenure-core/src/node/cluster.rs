//! Where a node and its part in the cluster meet.
//!
//! The node tells its member what it learns, and the member asks the node for things in turn. Neither is stepped from
//! within the other's step: what one causes for the other waits until the step is over.

use super::{Event, Node, Output, Route};
use crate::cluster::Part;
use crate::cluster::member::{self, Heard, Member, Membership};
use crate::election::{self, Election};
use crate::session::{self, observer};
use crate::{ElectionName, Now};

impl Node {
    pub(super) fn take_part(&mut self, now: Now, membership: Membership) {
        if self.member.is_some() {
            return;
        }
        let mut member = Box::new(Member::new(membership, &self.config, now.moment));
        if !self.has_left {
            member.begin(self.me.clone(), now.moment, assigner_seed(self.seed));
        }
        self.member = Some(member);
        self.tell_member(Heard::Trusted(self.session.trusted_until()));
        // It may have been observed before. No process is a candidate in that election without taking part.
        let leader = self.elections.get(&ElectionName::cluster());
        self.tell_member(Heard::Leader(leader.and_then(Election::leader)));
        self.about_changed = true;
    }

    pub(super) fn on_cluster(&mut self, now: Now, input: member::Input, outputs: &mut Vec<Output>) {
        if let member::Input::HintSession(_, incarnation) = &input {
            // This process knows its own session, and looks at no session once its own has left.
            if *incarnation == self.me.incarnation || self.has_left {
                return;
            }
            let hint = observer::Input::HintOf(*incarnation);
            self.step_observer(now, hint, outputs);
        }
        self.tell_member(Heard::Input(input));
    }

    pub(super) fn tell_member(&mut self, heard: Heard) {
        if self.member.is_some() {
            self.heard.push(heard);
        }
    }

    /// A leader knows what its own session says without reading it.
    pub(super) fn tell_own_session(&mut self) {
        if self.member().is_some_and(Member::leads) {
            let record = Box::new(self.session.record().clone());
            self.heard.push(Heard::Own(record));
        }
    }

    /// Tells the member if others can read in this session that it assigns.
    pub(super) fn tell_what_was_said(&mut self) {
        let has_assigned_none = Part::of(&self.session.record().about).has_assigned_none;
        if self.member().is_some_and(Member::leads)
            && self.session.about_is_stored()
            && !has_assigned_none
        {
            self.heard.push(Heard::Said);
        }
    }

    /// Gives the session and the member what waits for them, until nothing waits.
    pub(super) fn settle(&mut self, now: Now, outputs: &mut Vec<Output>) {
        loop {
            if std::mem::take(&mut self.about_changed) && !self.has_left {
                if let Some(member) = &self.member {
                    self.about.cluster = Some(Box::new(member.part().clone()));
                }
                let about = self.about.clone();
                self.step_session(now, session::Input::About(about), outputs);
                self.tell_own_session();
            }
            let Some(member) = &mut self.member else {
                return;
            };
            if self.heard.is_empty() && member.is_settled() {
                return;
            }
            let heard = std::mem::take(&mut self.heard);
            for output in member.step_all(now, heard) {
                self.on_member(now, output, outputs);
            }
        }
    }

    fn on_member(&mut self, now: Now, output: member::Output, outputs: &mut Vec<Output>) {
        match output {
            member::Output::Ask(question, request) => match &mut self.member {
                Some(member) if self.has_left => member.leave_unanswered(question),
                // Not bounded by trust: the answer is of use beyond this session, and trust counts from when it was
                // asked for.
                _ => {
                    let within = self.config.request_timeout;
                    self.send(Route::Cluster(question), request, within, outputs);
                }
            },
            member::Output::Watch(holder) => {
                let incarnation = holder.incarnation;
                self.watched.insert(incarnation);
                // An election may have seen it end already.
                match self.observer.end_of(incarnation) {
                    Some(end) => self.tell_member(Heard::SessionEnded(incarnation, end)),
                    None => self.step_observer(now, observer::Input::Watch(holder), outputs),
                }
            }
            member::Output::Forget(incarnation) => {
                self.watched.remove(&incarnation);
                self.forget_unless_watched(now, incarnation, outputs);
            }
            member::Output::Calm(is_calm) => {
                self.step_observer(now, observer::Input::Calm(is_calm), outputs);
            }
            member::Output::Resign { term } => {
                let resigned = member::Event::Resigned { term };
                outputs.push(Output::Event(Event::Cluster(resigned)));
                let election = ElectionName::cluster();
                self.step_election(now, &election, election::Input::Resign, outputs);
            }
            member::Output::Report => self.about_changed = true,
            member::Output::Say => {
                self.about_changed = true;
                self.tell_what_was_said();
            }
            member::Output::Event(event) => outputs.push(Output::Event(Event::Cluster(event))),
        }
    }

    /// Ends the member's session, and with it all that it has asked.
    pub(super) fn rest(&mut self) {
        let Some(member) = &mut self.member else {
            return;
        };
        member.rest();
        for route in std::mem::take(&mut self.pending).into_values() {
            if let Route::Cluster(question) = route {
                member.leave_unanswered(question);
            }
        }
    }
}

/// Whether the leader of this election hands out the work of the cluster.
pub(super) fn is_clusters(election: &ElectionName) -> bool {
    election.as_str() == ElectionName::CLUSTER
}

/// A seed that differs from the session's, so that their jitter differs too.
pub(super) fn assigner_seed(seed: u64) -> u64 {
    seed.rotate_left(32)
}
