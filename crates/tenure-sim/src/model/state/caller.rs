//! A one-shot caller. It leads at the beginning; its session is renewed for another election.

use std::time::Duration;

use tenure_core::election::{Fence, Lease, LeaseState, Term, Writer};
use tenure_core::session::{About, Config, Holder, ONE_SHOT, Record, State as SessionState};
use tenure_core::{Incarnation, Lineage, Moment, NodeId, Nonce, Wall};

use super::{State, TTL, election};
use crate::clock::{Clock, RIGHT, SLOW};
use crate::invariants::Violation;
use crate::store::Key;

const CALLER: Incarnation = Incarnation(u128::MAX - 1);

#[derive(Debug, Clone, Hash)]
pub(super) struct Caller {
    clock: Clock,
    /// Its last answer: it leads until then.
    told: Option<Moment>,
    /// Set while it reads the lease after renewing its session: since when, by its clock, and until when it waits.
    looks: Option<(Moment, Duration)>,
    /// When its session is renewed next.
    renews_at: Duration,
    counter: u64,
}

fn holder() -> Holder {
    Holder {
        node: NodeId::new("caller").expect("this name is valid"),
        incarnation: CALLER,
        ttl: TTL,
    }
}

fn writer() -> Writer {
    Writer {
        incarnation: CALLER,
        counter: 1,
        nonce: Nonce(u128::MAX),
    }
}

impl State {
    /// Adds the caller, which leads and has just been told.
    pub(super) fn begin_caller(&mut self, is_slow: bool) {
        let clock = Clock::with_rate(if is_slow { SLOW } else { RIGHT });
        let config = Config::for_ttl(TTL);
        let until = clock.moment(self.now) + (config.ttl - config.margin);
        self.oracle.configs.insert(CALLER, config);
        self.caller = Some(Caller {
            clock,
            told: Some(until),
            looks: None,
            renews_at: self.now,
            counter: 0,
        });
        self.wake_caller();
        let lease = Lease {
            lineage: Lineage(1),
            term: Term(1),
            state: LeaseState::Held {
                holder: holder(),
                since: Wall(0),
            },
            request: None,
            history: Vec::new(),
            writer: writer(),
        };
        let fence = Fence {
            lineage: Lineage(1),
            term: Term(1),
            holder: holder(),
        };
        let (lease, fence) = (lease.encode(), fence.encode());
        self.last_lease = Some(lease.clone());
        self.store
            .overwrite(self.now, Key::Lease(election()), lease);
        self.store
            .overwrite(self.now, Key::Fence(election()), fence);
        self.oracle.highest.insert(election(), Term(1));
    }

    /// Whether it holds the lease, and was not asked to resign.
    pub(in crate::model) fn is_led_by_caller(&self) -> bool {
        let lease = self.store.lease(&election());
        lease.is_some_and(|lease| {
            let holder = lease.holder().map(|holder| holder.incarnation);
            holder == Some(CALLER) && lease.request.is_none()
        })
    }

    pub(super) fn caller_waits(&self) -> bool {
        let caller = self.caller.as_ref();
        caller.is_some_and(|caller| caller.looks.is_some())
    }

    pub(super) fn caller_can_call(&self) -> bool {
        self.caller.is_some() && !self.caller_waits()
    }

    pub(super) fn caller_wakes_at(&self) -> Option<Duration> {
        let caller = self.caller.as_ref()?;
        let gives_up_at = caller.looks.map(|(_, until)| until);
        Some(gives_up_at.map_or(caller.renews_at, |at| at.min(caller.renews_at)))
    }

    /// Renews the session when it is time, and stops waiting for late answers.
    pub(super) fn wake_caller(&mut self) {
        let now = self.now;
        if let Some(caller) = &mut self.caller {
            caller.looks.take_if(|(_, until)| *until <= now);
            if caller.renews_at <= now {
                self.renew_caller();
            }
        }
    }

    fn renew_caller(&mut self) {
        let Some(caller) = &mut self.caller else {
            return;
        };
        caller.counter += 1;
        caller.renews_at = self.now + TTL * 3 / 10;
        let record = Record {
            node: holder().node,
            incarnation: CALLER,
            counter: caller.counter,
            nonce: Nonce(u128::MAX),
            ttl: TTL,
            state: SessionState::Alive,
            joined_at: Wall(0),
            about: Box::new(About {
                labels: [(ONE_SHOT.to_owned(), "true".to_owned())].into(),
                ..About::default()
            }),
        };
        self.store
            .overwrite(self.now, Key::Session(CALLER), record.encode());
    }

    /// Renews its session and then reads the lease. The answer may take a while.
    pub(super) fn call(&mut self) {
        self.renew_caller();
        let now = self.now;
        if let Some(caller) = &mut self.caller {
            let gives_up_at = now + Config::for_ttl(TTL).request_timeout;
            caller.looks = Some((caller.clock.moment(now), gives_up_at));
        }
    }

    /// Answers the caller from the present lease: that it leads, counted from before the look, or that it does not.
    pub(super) fn tell_caller(&mut self) {
        let leads = self.is_led_by_caller();
        let config = Config::for_ttl(TTL);
        if let Some(caller) = &mut self.caller
            && let Some((started, _)) = caller.looks.take()
        {
            caller.told = leads.then(|| started + (config.ttl - config.margin));
        }
    }

    pub(super) fn check_caller(&self) -> Result<(), Violation> {
        let Some(caller) = &self.caller else {
            return Ok(());
        };
        let now = caller.clock.moment(self.now);
        let leads = caller.told.is_some_and(|until| now < until);
        match self.leaders().first() {
            Some(other) if leads => Err(Violation::new(
                "at most one trusted leader",
                format!("a caller until {:?}, and process {other}", caller.told),
            )),
            _ => Ok(()),
        }
    }
}
