//! Reading leases through listings: pages that are lost, late, or partly out of date when they arrive.

use std::time::Duration;

use tenure_core::node::{Answer, Input, Request, Ticket};
use tenure_core::polls::{Page, Poll};
use tenure_core::{ElectionName, Read, Version};

use super::{Happening, World};
use crate::faults::Fault;
use crate::invariants::Violation;
use crate::judge;
use crate::store::{Access, Key};

/// A requested page.
#[derive(Debug)]
pub(crate) struct Flight {
    process: u64,
    begun_at: Duration,
    /// The looks that were waiting when it was sent: it may answer only those.
    asked: Vec<Poll>,
    after: Option<ElectionName>,
    /// How many leases fit on it.
    most: usize,
    /// What was read, and whether there is more.
    page: Option<Page<ElectionName>>,
}

impl World {
    pub(crate) fn look_by_listing(
        &mut self,
        id: u64,
        ticket: Ticket,
        election: ElectionName,
        known: Version,
        within: Duration,
    ) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Some(listings) = &mut process.listings else {
            return;
        };
        let poll = Poll {
            ticket,
            election: election.clone(),
            known,
            within,
            asked: process.clock.moment(self.now),
        };
        listings.join(election, poll.clone(), false);
        self.asked.entry(id).or_default().push(poll);
    }

    /// Requests the pages that are due.
    pub(crate) fn serve_listings(&mut self, id: u64) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            self.asked.remove(&id);
            return Ok(());
        };
        let Some(listings) = &mut process.listings else {
            return Ok(());
        };
        let now = process.clock.moment(self.now);
        if listings.start(now) {
            self.ask_for_page(id, None);
        }
        loop {
            let process = self.processes.get_mut(&id);
            let listings = process.and_then(|process| process.listings.as_mut());
            let Some(poll) = listings.and_then(|listings| listings.take_late(now)) else {
                return Ok(());
            };
            self.read_singly(id, poll)?;
        }
    }

    fn read_singly(&mut self, id: u64, poll: Poll) -> Result<(), Violation> {
        self.forget_asked(id, &poll);
        self.requests += 1;
        let (ticket, within) = (poll.ticket, poll.within);
        self.send(id, ticket, Request::from(poll), within)
    }

    fn forget_asked(&mut self, id: u64, poll: &Poll) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.retain(|one| one.ticket != poll.ticket);
        }
    }

    fn ask_for_page(&mut self, id: u64, after: Option<ElectionName>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let unreachable = self.now < process.cut_off_until.max(process.blind_until);
        let patience = process.config.request_timeout;
        self.requests += 1;
        let flight = self.sequence;
        let most = if self.random.chance(500) { 1 } else { 1000 };
        let asked = self.asked.get(&id).cloned().unwrap_or_default();
        self.pages.insert(
            flight,
            Flight {
                process: id,
                begun_at: self.now,
                asked,
                after,
                most,
                page: None,
            },
        );
        let lost = self.plan.refused + self.plan.request_lost + self.plan.answer_lost;
        let is_lost = unreachable || self.now < self.down_until || self.random.chance(lost);
        let (there, back) = (self.page_latency(), self.page_latency());
        if is_lost {
            self.faults.count(Fault::PageLost);
            let after = if self.random.chance(500) {
                there
            } else {
                patience
            };
            let came = false;
            self.plan_in(after, Happening::PageBack { flight, came });
            return;
        }
        self.plan_in(there, Happening::PageRead { flight });
        let came = there + back < patience;
        if !came {
            self.faults.count(Fault::PageLate);
        }
        let after = (there + back).min(patience);
        self.plan_in(after, Happening::PageBack { flight, came });
    }

    /// The latency of a page, which is a heavier request than others and slow more often.
    fn page_latency(&mut self) -> Duration {
        let usual = self.plan.latency;
        let slow = self.plan.slow * 4;
        if self.random.chance(slow) {
            self.random.between(usual, self.ttl_max() / 4)
        } else {
            self.random.between(usual / 10, usual)
        }
    }

    /// The store reads the page: for the looks that were waiting, this is as good as reading the lease at that
    /// moment.
    pub(crate) fn read_page(&mut self, id: u64) {
        let Some(flight) = self.pages.get_mut(&id) else {
            return;
        };
        let behind =
            |election: &&ElectionName| flight.after.as_ref().is_none_or(|after| *election > after);
        let mut elections: Vec<ElectionName> =
            self.elections.iter().filter(behind).cloned().collect();
        elections.sort();
        elections.retain(|election| self.store.get(&Key::Lease(election.clone())).is_some());
        let more = elections.len() > flight.most;
        elections.truncate(flight.most);
        let access = Access {
            begun_at: flight.begun_at,
            tell_age: false,
            other_clock_ahead: None,
        };
        let mut leases = Vec::new();
        for election in elections {
            let object = self.store.get(&Key::Lease(election.clone()));
            let version = object.map(|object| object.version.clone());
            let asked = flight.asked.iter();
            for poll in asked.filter(|one| one.election == election) {
                let request = Request::from(poll.clone());
                let (answer, _) = self.store.execute(self.now, &request, access);
                let is_unchanged = matches!(answer, Answer::Lease(Read::Unchanged { .. }));
                if let Some(process) = self.processes.get(&flight.process)
                    && is_unchanged
                {
                    judge::answered(
                        &mut self.oracle,
                        &self.store,
                        process,
                        poll.asked,
                        &request,
                        &answer,
                    );
                }
            }
            leases.extend(version.map(|version| (election, version)));
        }
        flight.page = Some(Page { leases, more });
    }

    pub(crate) fn page_back(&mut self, id: u64, came: bool) -> Result<(), Violation> {
        let Some(process) = self.pages.get(&id).map(|flight| flight.process) else {
            return Ok(());
        };
        let Some(running) = self.processes.get_mut(&process) else {
            self.pages.remove(&id);
            return Ok(());
        };
        if running.paused.is_some() {
            // It waits with everything else.
            let later = self
                .random
                .between(self.plan.latency, self.plan.latency * 10);
            self.plan_in(later, Happening::PageBack { flight: id, came });
            return Ok(());
        }
        let page = self.pages.remove(&id).and_then(|flight| flight.page);
        let now = running.clock.moment(self.now);
        let Some(listings) = &mut running.listings else {
            return Ok(());
        };
        let shown = listings.on_page(now, page.filter(|_| came));
        self.trace.say(
            self.now,
            &running.label,
            if came { "gets a page" } else { "gets no page" },
        );
        if let Some(next) = shown.next {
            self.ask_for_page(process, Some(next));
        }
        for poll in shown.changed {
            self.read_singly(process, poll)?;
        }
        for poll in shown.unchanged {
            self.forget_asked(process, &poll);
            let answer = Answer::Lease(Read::Unchanged { age: None });
            self.deliver(process, Input::Answer(poll.ticket, answer))?;
        }
        self.serve_listings(process)?;
        self.plan_wake(process);
        Ok(())
    }
}
