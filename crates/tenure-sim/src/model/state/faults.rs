//! The faults that are possible in a state, and their effects.

use tenure_core::Incarnation;
use tenure_core::NodeId;
use tenure_core::election::{Request as Asked, RequestKind, Writer};
use tenure_core::node::Input;

use super::{State, election};
use crate::invariants::Violation;
use crate::model::Bounds;
use crate::model::action::{Action, Kind};
use crate::model::search::World;
use crate::store::Key;

/// The operators.
const PEOPLE: Incarnation = Incarnation(u128::MAX);

impl State {
    pub(super) fn faults(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let mut add = |kind: Kind, number: u64| {
            if bounds.kinds.contains(&kind) {
                actions.push(Action::Fault(kind, number));
            }
        };
        for (at, flight) in self.flights.iter().enumerate() {
            if flight.is_slow {
                continue;
            }
            let at = at as u64;
            add(Kind::Refused, at);
            add(Kind::Slow, at);
            if flight.request.is_write() {
                add(Kind::AnswerLost, at);
                add(Kind::Late, at);
                add(Kind::Duplicated, at);
            }
        }
        for (at, page) in self.pages.iter().enumerate() {
            if !page.is_slow {
                add(Kind::PageLost, at as u64);
                add(Kind::PageSlow, at as u64);
            }
        }
        for (at, end) in self.ends.iter().enumerate() {
            if !end.hangs {
                add(Kind::WorkHangs, at as u64);
            }
        }
        for (&id, process) in &self.processes {
            add(Kind::Crash, id);
            add(Kind::CrashForGood, id);
            add(Kind::RestartWithLongerTtl, id);
            add(Kind::SessionDeleted, id);
            // A request under way while a process is copied is answered only once; other checks cover that case.
            if self.flights.iter().all(|flight| flight.process != id) {
                add(Kind::Copied, id);
            }
            if process.paused.is_none() {
                add(Kind::Pause, id);
                add(Kind::Leave, id);
            }
        }
        if self.is_led_by_caller() {
            add(Kind::CallerAsked, 0);
            let all = self.processes.keys();
            all.for_each(|&id| add(Kind::CallerAskedToTransfer, id));
        }
        if self.caller_can_call() {
            add(Kind::CallerCalls, 0);
        }
        if let [leader, ..] = self.leaders()[..] {
            add(Kind::Resign, leader);
            add(Kind::RequestResign, leader);
            let others = self.processes.keys().filter(|id| **id != leader);
            others.for_each(|&other| add(Kind::Transfer, other));
        }
        let (lease, fence) = (self.store.lease(&election()), self.store.fence(&election()));
        let highest = self.oracle.highest.get(&election()).copied();
        let is_whole = fence
            .as_ref()
            .is_some_and(|fence| Some(fence.term) >= highest);
        if let (Some(lease), Some(fence), true) = (&lease, &fence, is_whole) {
            add(Kind::LeaseDeleted, 0);
            if self.copy.is_some() {
                add(Kind::LeaseRestored, 0);
            }
            // Without the fence the lease has to hold everything; see `election`.
            let installed = (fence.term, fence.holder.incarnation);
            let holder = lease.holder().map(|holder| holder.incarnation);
            let mut history = lease.history.iter();
            let is_told = (lease.term == installed.0 && holder == Some(installed.1))
                || history.any(|past| (past.term, past.incarnation) == installed);
            if is_told {
                add(Kind::FenceDeleted, 0);
            }
        }
    }

    pub(super) fn fault(&mut self, kind: Kind, number: u64) -> Result<(), Violation> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        match kind {
            Kind::Refused => self.silence(at, true)?,
            Kind::AnswerLost => {
                let flight = self.flights[at].clone();
                self.execute(flight.process, flight.started, &flight.request)?;
                self.silence(at, false)?;
            }
            Kind::Late => {
                self.set_loose(at);
                self.silence(at, false)?;
            }
            Kind::Slow => self.flights[at].is_slow = true,
            Kind::Duplicated => {
                self.set_loose(at);
                return self.take(&Action::Answer(at));
            }
            Kind::PageLost => self.page_back(at)?,
            Kind::PageSlow => self.pages[at].is_slow = true,
            Kind::WorkHangs => self.ends[at].hangs = true,
            Kind::Crash => {
                let slot = self.crash(number);
                self.start(slot)?;
            }
            Kind::CrashForGood => drop(self.crash(number)),
            Kind::RestartWithLongerTtl => {
                let slot = self.crash(number);
                self.slots[slot].ttl *= 2;
                self.start(slot)?;
            }
            Kind::Pause => {
                if let Some(process) = self.processes.get_mut(&number) {
                    process.paused = Some(Vec::new());
                }
            }
            Kind::Copied => self.copy(number),
            Kind::Leave => {
                if let Some(process) = self.processes.get_mut(&number) {
                    process.replaced = true;
                }
                self.deliver(number, Input::Leave)?;
            }
            Kind::Resign => self.deliver(number, Input::Resign(election()))?,
            Kind::Transfer => {
                let to = self.holder(number);
                let leader = self.leaders()[0];
                self.deliver(leader, Input::Transfer(election(), to))?;
            }
            Kind::RequestResign => self.ask(RequestKind::Resign, false),
            Kind::CallerCalls => self.call(),
            Kind::CallerAsked => self.ask(RequestKind::Resign, true),
            Kind::CallerAskedToTransfer => {
                let to = self.holder(number);
                self.ask(RequestKind::Transfer { to }, true);
            }
            Kind::LeaseDeleted => drop(self.store.delete(self.now, &Key::Lease(election()))),
            Kind::LeaseRestored => self.restore(),
            Kind::FenceDeleted => drop(self.store.delete(self.now, &Key::Fence(election()))),
            Kind::SessionDeleted => {
                let incarnation = self.processes[&number].incarnation;
                self.oracle.hurt.insert(incarnation);
                self.store.delete(self.now, &Key::Session(incarnation));
            }
        }
        Ok(())
    }

    fn ask(&mut self, kind: RequestKind, lapses: bool) {
        let by = NodeId::new("people").expect("this name is valid");
        let writer = Writer {
            incarnation: PEOPLE,
            counter: u64::from(self.faults),
            nonce: tenure_core::Nonce::default(),
        };
        let lease = self.store.lease(&election());
        let request = Asked { kind, by, lapses };
        let asked = lease.and_then(|lease| lease.with_request(request, writer));
        if let Some(asked) = asked {
            let key = Key::Lease(election());
            self.store.overwrite(self.now, key, asked.encode());
        }
    }

    fn restore(&mut self) {
        if let Some(copy) = self.copy.clone() {
            self.oracle.restored.insert(election());
            self.store.overwrite(self.now, Key::Lease(election()), copy);
        }
    }
}
