//! Reading leases through listings: pages that are lost, or late.

use std::time::Duration;

use tenure_core::node::{Answer, Input, Request, Ticket};
use tenure_core::polls::{Page, Poll};
use tenure_core::{ElectionName, Read, Version};

use super::{State, election};
use crate::invariants::Violation;
use crate::judge;
use crate::model::action::Action;
use crate::store::{Access, Key};

/// A requested page.
#[derive(Debug, Clone, Hash)]
pub(super) struct Flight {
    pub(super) process: u64,
    pub(super) deadline: Duration,
    /// Whether time may pass before it is read, and before it arrives.
    pub(super) is_slow: bool,
    /// The looks that were waiting when it was sent: it may answer only those.
    asked: Vec<Poll>,
    page: Option<Page<ElectionName>>,
}

impl State {
    pub(super) fn pages_to_come(&self, actions: &mut Vec<Action>) {
        for (at, flight) in self.pages.iter().enumerate() {
            match (&flight.page, flight.is_slow) {
                (Some(_), _) => actions.push(Action::PageBack(at)),
                (None, true) => actions.extend([Action::Page(at), Action::ReadPage(at)]),
                (None, false) => actions.push(Action::Page(at)),
            }
        }
    }

    /// The next step of a page if nothing goes wrong.
    pub(super) fn next_page(&self) -> Option<Action> {
        let flight = self.pages.first()?;
        Some(match flight.page {
            Some(_) => Action::PageBack(0),
            None => Action::Page(0),
        })
    }

    pub(super) fn look_by_listing(
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
    pub(super) fn serve_listings(&mut self, id: u64) -> Result<(), Violation> {
        loop {
            let Some(process) = self.processes.get_mut(&id) else {
                return Ok(());
            };
            let Some(listings) = &mut process.listings else {
                return Ok(());
            };
            let now = process.clock.moment(self.now);
            if listings.start(now) {
                let deadline = process.clock.real(now + process.config.request_timeout);
                self.pages.push(Flight {
                    process: id,
                    deadline: deadline.unwrap_or(self.now),
                    is_slow: false,
                    asked: self.asked.get(&id).cloned().unwrap_or_default(),
                    page: None,
                });
                continue;
            }
            let Some(poll) = listings.take_late(now) else {
                return Ok(());
            };
            self.read_singly(id, poll)?;
        }
    }

    /// The store reads the page: for the looks that were waiting, this is as good as reading the lease now.
    pub(super) fn read_page(&mut self, at: usize) {
        let flight = &mut self.pages[at];
        let access = Access {
            begun_at: self.now,
            tell_age: false,
            other_clock_ahead: None,
        };
        for poll in &flight.asked {
            let request = Request::from(poll.clone());
            let (answer, _) = self.store.execute(self.now, &request, access);
            let is_unchanged = matches!(answer, Answer::Lease(Read::Unchanged { .. }));
            if let Some(process) = self.processes.get(&flight.process)
                && is_unchanged
            {
                let (oracle, store) = (&mut self.oracle, &self.store);
                judge::answered(oracle, store, process, poll.asked, &request, &answer);
            }
        }
        let lease = self.store.get(&Key::Lease(election()));
        let lease = lease.map(|object| (election(), object.version.clone()));
        flight.page = Some(Page {
            leases: lease.into_iter().collect(),
            more: false,
        });
    }

    /// A page arrives, or fails.
    pub(super) fn page_back(&mut self, at: usize) -> Result<(), Violation> {
        let Flight { process, page, .. } = self.pages.remove(at);
        let Some(running) = self.processes.get_mut(&process) else {
            return Ok(());
        };
        let now = running.clock.moment(self.now);
        let Some(listings) = &mut running.listings else {
            return Ok(());
        };
        let shown = listings.on_page(now, page);
        for poll in shown.changed {
            self.read_singly(process, poll)?;
        }
        for poll in shown.unchanged {
            self.forget_asked(process, &poll);
            let answer = Answer::Lease(Read::Unchanged { age: None });
            self.deliver(process, Input::Answer(poll.ticket, answer))?;
        }
        self.serve_listings(process)
    }

    /// Fails pages whose deadline has passed.
    pub(super) fn give_up_pages(&mut self) -> Result<(), Violation> {
        while let Some(at) = self
            .pages
            .iter()
            .position(|flight| flight.deadline <= self.now)
        {
            self.pages[at].page = None;
            self.page_back(at)?;
        }
        Ok(())
    }

    fn read_singly(&mut self, id: u64, poll: Poll) -> Result<(), Violation> {
        self.forget_asked(id, &poll);
        let (ticket, within) = (poll.ticket, poll.within);
        self.send(id, ticket, Request::from(poll), within)
    }

    fn forget_asked(&mut self, id: u64, poll: &Poll) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.retain(|one| one.ticket != poll.ticket);
        }
    }
}
