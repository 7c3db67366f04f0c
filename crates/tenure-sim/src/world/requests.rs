//! Requests in transit: lost, late, duplicated, or answered.

use std::time::Duration;

use tenure_core::node::{Answer, Input, Request, Ticket};
use tenure_core::{ElectionName, Expect, Moment, Written};

use super::{Happening, World, words};
use crate::faults::Fault;
use crate::invariants::{Violation, never_made_again, no_hot_loop};
use crate::judge;
use crate::store::Access;

/// A request, until its answer is given and its last copy has arrived.
#[derive(Debug)]
pub(crate) struct Flight {
    process: u64,
    ticket: Ticket,
    request: Request,
    started: Moment,
    begun_at: Duration,
    answered: bool,
    /// How many copies are still in transit to the store.
    copies: u64,
    fate: Fate,
}

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The store's answer.
    Answer(Box<Answer>),
    /// The store was certainly not reached.
    Refused,
    /// Nothing came back.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    Refused,
    Lost,
    AnswerLost,
    Late,
    Twice,
}

impl World {
    /// A process sends a request.
    pub(crate) fn send(
        &mut self,
        id: u64,
        ticket: Ticket,
        request: Request,
        within: Duration,
    ) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        let in_second = process.meter.count(self.now);
        self.requests_per_second_max = self.requests_per_second_max.max(in_second);
        no_hot_loop::sent(process, self.elections.len(), in_second)?;
        never_made_again::check(process, &request)?;
        let started = process.clock.moment(self.now);
        let deadline = process.clock.real(started + within).unwrap_or(self.now);
        let is_blind = self.now < process.blind_until && !request.is_write();
        let cut_off = self.now < process.cut_off_until || is_blind;
        self.trace
            .say(self.now, &process.label, &words::request(&request));
        let fate = self.draw_fate(&request, cut_off);
        let ttl = self.ttl_max();
        let flight = self.sequence;
        let copies = match fate {
            Fate::Arrives | Fate::AnswerLost | Fate::Late => 1,
            Fate::Twice => 2,
            Fate::Refused | Fate::Lost => 0,
        };
        self.flights.insert(
            flight,
            Flight {
                process: id,
                ticket,
                request,
                started,
                begun_at: self.now,
                answered: false,
                copies,
                fate,
            },
        );
        let there = self.latency();
        let at_once = self.random.chance(300);
        match fate {
            Fate::Arrives => {
                self.plan_in(
                    there,
                    Happening::Arrive {
                        flight,
                        answers: true,
                    },
                );
            }
            Fate::Refused => {
                let answer = Reply::Refused;
                self.plan_in(there, Happening::Reply { flight, answer });
            }
            Fate::Lost | Fate::AnswerLost => {
                if fate == Fate::AnswerLost {
                    self.plan_in(
                        there,
                        Happening::Arrive {
                            flight,
                            answers: false,
                        },
                    );
                }
                if at_once {
                    // A broken connection is noticed before the deadline.
                    self.faults.count(Fault::AnswerLostAtOnce);
                    let after = self.random.up_to(there * 2);
                    let answer = Reply::Lost;
                    self.plan_in(after, Happening::Reply { flight, answer });
                }
            }
            Fate::Late => {
                // Mostly just too late, so that the version it expects may still be there.
                let late = if at_once { ttl * 3 } else { ttl / 4 };
                let after = deadline.saturating_sub(self.now) + self.random.up_to(late);
                self.plan_in(
                    after,
                    Happening::Arrive {
                        flight,
                        answers: false,
                    },
                );
            }
            Fate::Twice => {
                let first_answers = self.random.chance(500);
                let again = there + self.latency() * 3;
                self.plan_in(
                    there,
                    Happening::Arrive {
                        flight,
                        answers: first_answers,
                    },
                );
                self.plan_in(
                    again,
                    Happening::Arrive {
                        flight,
                        answers: !first_answers,
                    },
                );
            }
        }
        self.plan_at(deadline, Happening::Deadline { flight });
        Ok(())
    }

    fn draw_fate(&mut self, request: &Request, cut_off: bool) -> Fate {
        let writes = request.is_write();
        if self.now < self.down_until || cut_off {
            return if self.down_silently {
                Fate::Lost
            } else {
                Fate::Refused
            };
        }
        let plan = &self.plan;
        let (refused, lost) = (plan.refused, plan.request_lost);
        let (answer_lost, late, twice) = (plan.answer_lost, plan.late, plan.duplicated);
        let fate = if self.random.chance(refused) {
            Fate::Refused
        } else if self.random.chance(lost) {
            Fate::Lost
        } else if self.random.chance(answer_lost) {
            Fate::AnswerLost
        } else if writes && self.random.chance(late) {
            Fate::Late
        } else if self.random.chance(twice) {
            Fate::Twice
        } else {
            Fate::Arrives
        };
        match fate {
            Fate::Arrives => {}
            Fate::Refused if writes => self.faults.count(Fault::Refused),
            Fate::Refused => self.faults.count(Fault::ReadFailed),
            Fate::Lost => self.faults.count(Fault::RequestLost),
            Fate::AnswerLost => self.faults.count(Fault::AnswerLost),
            Fate::Late => self.faults.count(Fault::LateWrite),
            Fate::Twice => self.faults.count(Fault::Duplicated),
        }
        fate
    }

    fn latency(&mut self) -> Duration {
        let usual = self.plan.latency;
        if self.random.chance(self.plan.slow) {
            let ttl = self.ttl_max();
            let took = self.random.between(usual, ttl / 2);
            // A shorter time does not count as a fault.
            if took > ttl / 10 {
                self.faults.count(Fault::SlowTail);
            }
            return took;
        }
        self.random.between(usual / 10, usual)
    }

    /// A copy of a request reaches the store.
    pub(crate) fn arrive(&mut self, id: u64, answers: bool) -> Result<(), Violation> {
        let Some(flight) = self.flights.get_mut(&id) else {
            return Ok(());
        };
        flight.copies -= 1;
        if self.now < self.down_until {
            // If there are two copies, the other one may have been applied, so the outcome is unknown.
            if answers && !self.down_silently && flight.fate != Fate::Twice {
                let answer = Reply::Refused;
                self.plan_in(self.plan.latency, Happening::Reply { flight: id, answer });
            }
            self.land(id);
            return Ok(());
        }
        let tell_age = !self.random.chance(self.plan.age_absent);
        if !tell_age && !flight.request.is_write() {
            self.faults.count(Fault::AgeAbsent);
        }
        let other_clock_ahead = if self.random.chance(self.plan.other_clock) {
            Some(self.plan.other_clock_ahead)
        } else {
            None
        };
        if other_clock_ahead.is_some() {
            self.faults.count(Fault::OtherClock);
        }
        let access = Access {
            begun_at: flight.begun_at,
            tell_age,
            other_clock_ahead,
        };
        let (answer, applied) = self.store.execute(self.now, &flight.request, access);
        let (started, process) = (flight.started, flight.process);
        let label = self
            .processes
            .get(&process)
            .map(|process| process.label.as_str());
        let words = words::outcome(&flight.request, &answer, answers);
        self.trace.say(self.now, label.unwrap_or("nobody"), &words);
        if flight.fate == Fate::Late && applied.is_some() {
            self.faults.count(Fault::LateWriteApplied);
        }
        self.note(process, started, id, &answer);
        if let Some(applied) = &applied {
            self.on_applied(applied)?;
        }
        if answers {
            let back = self.latency();
            let answer = Reply::Answer(Box::new(answer));
            self.plan_in(back, Happening::Reply { flight: id, answer });
        }
        self.land(id);
        Ok(())
    }

    /// Records what the store did for a process: trust may rest only on that.
    fn note(&mut self, process: u64, started: Moment, flight: u64, answer: &Answer) {
        let Some(process) = self.processes.get(&process) else {
            return;
        };
        if let Some(Flight { request, .. }) = self.flights.get(&flight) {
            judge::answered(
                &mut self.oracle,
                &self.store,
                process,
                started,
                request,
                answer,
            );
        }
    }

    /// The first reply is the answer.
    pub(crate) fn reply(&mut self, id: u64, reply: Reply) -> Result<(), Violation> {
        let Some(flight) = self.flights.get_mut(&id) else {
            return Ok(());
        };
        if flight.answered {
            self.land(id);
            return Ok(());
        }
        flight.answered = true;
        let (process, ticket) = (flight.process, flight.ticket);
        let answer = match (reply, &flight.request) {
            (Reply::Answer(answer), _) => *answer,
            (Reply::Refused, request) => request.unanswered(Written::NotApplied),
            (Reply::Lost, request) => request.unanswered(Written::Unknown),
        };
        self.land(id);
        self.deliver(process, Input::Answer(ticket, answer))
    }

    /// Lets requests in transit arrive soon, since the faults are over.
    pub(crate) fn hurry_late_requests(&mut self) {
        let agenda = std::mem::take(&mut self.agenda);
        for ((at, _), happening) in agenda {
            let at = match &happening {
                Happening::Arrive { .. } => at.min(self.now + self.plan.latency),
                Happening::Deliver { input, .. } if matches!(**input, Input::WorkEnded(..)) => {
                    at.min(self.now + self.plan.latency)
                }
                Happening::Resume { .. } => at.min(self.now + self.plan.latency),
                _ => at,
            };
            self.plan_at(at, happening);
        }
    }

    /// Whether a write that creates a lease is in transit.
    pub(crate) fn is_making_lease(&self, election: &ElectionName) -> bool {
        let on_their_way = self.flights.values().filter(|flight| flight.copies > 0);
        let mut requests = on_their_way.map(|flight| &flight.request);
        requests.any(|request| match request {
            Request::WriteLease {
                election: of,
                expect,
                ..
            } => of == election && *expect == Expect::Absent,
            _ => false,
        })
    }

    fn land(&mut self, id: u64) {
        let done = self
            .flights
            .get(&id)
            .is_some_and(|flight| flight.answered && flight.copies == 0);
        if done {
            self.flights.remove(&id);
        }
    }
}
