//! Faults of processes and of the store, and damage to objects by operators.

use std::time::Duration;

use tenure_core::ElectionName;
use tenure_core::election::{Lease, Request, RequestKind, Writer};
use tenure_core::node::Input;
use tenure_core::session::{Holder, State};
use tenure_core::{Incarnation, NodeId};

use super::{Happening, World};
use crate::faults::{Action, Fault};
use crate::invariants::Violation;
use crate::store::Key;

/// The incarnation that operators' writes carry.
const PEOPLE: Incarnation = Incarnation(0xffff_ffff);

impl World {
    /// Lets one fault happen, and schedules the next.
    pub(crate) fn chaos(&mut self) -> Result<(), Violation> {
        if self.is_calm {
            return Ok(());
        }
        let next = self.random.up_to(self.plan.chaos_every * 2);
        self.plan_in(next, Happening::Chaos);
        let total: u64 = self.plan.weights.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            return Ok(());
        }
        let mut at = self.random.below(total);
        let chosen = self.plan.weights.iter().find(|(_, weight)| {
            let chosen = at < *weight;
            at = at.saturating_sub(*weight);
            chosen
        });
        let Some(&(action, _)) = chosen else {
            return Ok(());
        };
        self.act(action)
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        let election = self.random.pick_if_any(&self.elections).cloned();
        let election = election.expect("there is always an election");
        let ids: Vec<u64> = self.processes.keys().copied().collect();
        let victim = self.random.pick_if_any(&ids).copied();
        match (action, victim) {
            (Action::Outage, _) => self.outage(),
            (Action::StoreClock, _) => self.step_store_clock(),
            (Action::Pause, Some(id)) => self.pause(id),
            (Action::CutOff, Some(id)) => self.cut_off(id),
            (Action::Blind, Some(id)) => {
                let length = self.some_time();
                self.blind(id, length);
            }
            (Action::Crash, Some(id)) => self.crash(id),
            (Action::Start, _) => return self.start_somewhere(),
            (Action::Twin, Some(id)) => {
                let slot = self.processes[&id].slot;
                let ids_there = self
                    .processes
                    .values()
                    .filter(|process| process.slot == slot);
                if ids_there.count() < 3 {
                    self.faults.count(Fault::Twin);
                    return self.start(slot);
                }
            }
            (Action::Leave, Some(id)) => return self.leave(id),
            (Action::Resign, _) => {
                if let Some(id) = self.leader_of(&election) {
                    self.faults.count(Fault::Resign);
                    return self.deliver(id, Input::Resign(election));
                }
            }
            (Action::Transfer, Some(to)) => {
                if let Some(id) = self.leader_of(&election).filter(|&id| id != to) {
                    self.faults.count(Fault::Transfer);
                    let to = self.holder(to);
                    return self.deliver(id, Input::Transfer(election, to));
                }
            }
            (Action::Request, Some(to)) => self.request_by_people(&election, to),
            (Action::Stand, Some(id)) => return self.stand_or_not(id, &election),
            (Action::DeleteSession | Action::DamageSession, Some(id)) => {
                self.hurt_session(id, action == Action::DeleteSession);
            }
            (Action::DeleteLease, _) => self.delete_lease(&election),
            (Action::RestoreLease, _) => self.restore_lease(&election),
            (Action::DamageLease, _) => self.damage_lease(&election),
            (Action::DeleteFence, _) => self.delete_fence(&election),
            (Action::Wipe, _) => self.wipe(&election),
            (_, None) => {}
        }
        Ok(())
    }

    // ---- the store ----------------------------------------------------------------------------------

    fn outage(&mut self) {
        self.faults.count(Fault::Outage);
        let length = self.some_time();
        self.down_until = self.now + length;
        self.down_silently = self.random.chance(500);
        let silently = if self.down_silently { ", silently" } else { "" };
        self.say(&format!("the store is down for {length:?}{silently}"));
    }

    /// A duration, mostly shorter than a ttl, sometimes longer.
    fn some_time(&mut self) -> Duration {
        let ttl = self.ttl_max();
        let most = if self.random.chance(700) {
            ttl
        } else {
            ttl * 4
        };
        self.random.up_to(most)
    }

    fn step_store_clock(&mut self) {
        let forward = self.random.chance(500);
        let by = self.some_time();
        self.faults.count(if forward {
            Fault::StoreClockForward
        } else {
            Fault::StoreClockBack
        });
        self.store.step_clock(by, forward);
        self.say(&format!(
            "the store's clock is set by {by:?}, forward: {forward}"
        ));
    }

    // ---- processes ----------------------------------------------------------------------------------

    fn pause(&mut self, id: u64) {
        let length = self.some_time();
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if process.paused.is_some() {
            return;
        }
        self.faults.count(Fault::Pause);
        if length > process.config.ttl {
            self.faults.count(Fault::PauseBeyondTrust);
        }
        process.paused = Some(Vec::new());
        self.trace.say(self.now, &process.label, "is paused");
        self.plan_in(length, Happening::Resume { process: id });
    }

    fn cut_off(&mut self, id: u64) {
        self.faults.count(Fault::CutOff);
        let length = self.some_time();
        if let Some(process) = self.processes.get_mut(&id) {
            process.cut_off_until = self.now + length;
            self.trace
                .say(self.now, &process.label, "is cut off from the store");
        }
    }

    /// Makes a process blind: it loses the permission to read, or the key to decrypt, but can still write.
    pub(crate) fn blind(&mut self, id: u64, length: Duration) {
        if let Some(process) = self.processes.get_mut(&id) {
            self.faults.count(Fault::Blind);
            process.blind_until = self.now + length;
            self.trace
                .say(self.now, &process.label, "can write and not read");
        }
    }

    pub(crate) fn crash(&mut self, id: u64) {
        if let Some(process) = self.processes.remove(&id) {
            self.faults.count(Fault::Crash);
            if !process.work.is_empty() {
                self.faults.count(Fault::CrashWhileLeading);
            }
            self.trace.say(self.now, &process.label, "crashes");
            self.oracle.forget(process.known_as);
        }
    }

    fn start_somewhere(&mut self) -> Result<(), Violation> {
        let taken = |slot: usize| self.processes.values().any(|process| process.slot == slot);
        let free: Vec<usize> = (0..self.slots.len()).filter(|&slot| !taken(slot)).collect();
        match self.random.pick_if_any(&free) {
            Some(&slot) => {
                self.faults.count(Fault::Restart);
                self.start(slot)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn leave(&mut self, id: u64) -> Result<(), Violation> {
        self.faults.count(Fault::Leave);
        if let Some(process) = self.processes.get_mut(&id) {
            process.replaced = true;
        }
        self.deliver(id, Input::Leave)
    }

    fn stand_or_not(&mut self, id: u64, election: &ElectionName) -> Result<(), Violation> {
        let process = &self.processes[&id];
        let stands = process.stands.get(election).copied().unwrap_or_default();
        if stands {
            self.faults.count(Fault::StandDown);
        }
        self.join(id, election, (!stands).then_some(100))
    }

    /// The process that leads, by its own clock.
    pub(crate) fn leader_of(&self, election: &ElectionName) -> Option<u64> {
        let mut leaders = self.processes.iter();
        let (&id, _) = leaders.find(|(_, process)| process.leads(election, self.now).is_some())?;
        Some(id)
    }

    pub(crate) fn holder(&self, id: u64) -> Holder {
        let process = &self.processes[&id];
        Holder {
            node: process.node_id.clone(),
            incarnation: process.incarnation,
            ttl: process.config.ttl,
        }
    }

    // ---- by hand ------------------------------------------------------------------------------------

    fn request_by_people(&mut self, election: &ElectionName, to: u64) {
        let kind = if self.random.chance(500) {
            self.faults.count(Fault::RequestToResign);
            RequestKind::Resign
        } else {
            self.faults.count(Fault::RequestToTransfer);
            RequestKind::Transfer {
                to: self.holder(to),
            }
        };
        self.request(election, kind);
    }

    /// A third party writes a request into the lease.
    pub(crate) fn request(&mut self, election: &ElectionName, kind: RequestKind) {
        let by = NodeId::new("people").expect("this name is valid");
        let writer = Writer {
            incarnation: PEOPLE,
            counter: self.sequence,
            nonce: tenure_core::Nonce::default(),
        };
        let lease = self.store.lease(election);
        let lapses = false;
        let request = Request { kind, by, lapses };
        let asked = lease.and_then(|lease| lease.with_request(request, writer));
        if let Some(asked) = asked {
            self.say(&format!(
                "someone asks the leader of {election}: {:?}",
                asked.request
            ));
            self.put_lease(election, asked.encode());
        }
    }

    fn hurt_session(&mut self, id: u64, delete: bool) {
        let incarnation = self.processes[&id].incarnation;
        let key = Key::Session(incarnation);
        self.oracle.hurt.insert(incarnation);
        if delete {
            if self.store.delete(self.now, &key) {
                self.faults.count(Fault::SessionDeleted);
                self.say(&format!("someone deletes {key}"));
            }
        } else if self.store.get(&key).is_some() {
            self.faults.count(Fault::SessionDamaged);
            self.say(&format!("someone damages {key}"));
            self.store.overwrite(self.now, key, b"damaged".to_vec());
        }
    }

    /// Whether the fence has the highest term. Without it nothing shows that a lease is too old. So if a second
    /// object is lost before the first one is written again, nothing can be promised.
    fn fence_is_whole(&self, election: &ElectionName) -> bool {
        let highest = self
            .oracle
            .highest
            .get(election)
            .copied()
            .unwrap_or_default();
        let fence = self.store.fence(election);
        fence.is_some_and(|fence| fence.term >= highest)
    }

    fn delete_lease(&mut self, election: &ElectionName) {
        let key = Key::Lease(election.clone());
        if self.fence_is_whole(election) && self.store.delete(self.now, &key) {
            self.damage(Fault::LeaseDeleted);
            self.say(&format!("someone deletes {key}"));
        }
    }

    fn restore_lease(&mut self, election: &ElectionName) {
        let copies = self
            .copies
            .get(election)
            .map(Vec::as_slice)
            .unwrap_or_default();
        // An old copy, or a recent one.
        let recent = copies.len().saturating_sub(4);
        let from = if self.random.chance(500) { recent } else { 0 };
        let copy = self.random.pick_if_any(&copies[from..]).cloned();
        if let Some(copy) = copy.filter(|_| self.fence_is_whole(election)) {
            self.damage(Fault::LeaseRestored);
            self.oracle.restored.insert(election.clone());
            let term = Lease::decode(&copy).map(|lease| lease.term);
            self.say(&format!(
                "someone restores the lease {election} of term {term:?}"
            ));
            self.put_lease(election, copy);
        }
    }

    fn damage_lease(&mut self, election: &ElectionName) {
        let key = Key::Lease(election.clone());
        if self.fence_is_whole(election) && self.store.get(&key).is_some() {
            self.damage(Fault::LeaseDamaged);
            self.say(&format!("someone damages {key}"));
            self.store.overwrite(self.now, key, b"{".to_vec());
            let after = self.some_time();
            let election = election.clone();
            self.plan_in(after, Happening::RepairLease { election });
        }
    }

    /// Operators delete an unreadable lease.
    pub(crate) fn repair_lease(&mut self, election: &ElectionName) {
        let key = Key::Lease(election.clone());
        let damaged = self.store.get(&key).is_some() && self.store.lease(election).is_none();
        if damaged {
            self.say(&format!("someone removes the damaged {key}"));
            self.store.delete(self.now, &key);
            self.damaged_at = Some(self.now);
        }
    }

    /// Whether the lease holds what the fence does: who led last, and that it ended or still leads.
    fn lease_is_whole(&self, election: &ElectionName) -> bool {
        let (Some(lease), Some(fence)) = (self.store.lease(election), self.store.fence(election))
        else {
            return false;
        };
        let installed = (fence.term, fence.holder.incarnation);
        let holder = lease.holder();
        let holds = holder.is_some_and(|holder| (lease.term, holder.incarnation) == installed);
        let mut history = lease.history.iter();
        holds || history.any(|past| (past.term, past.incarnation) == installed)
    }

    /// Deletes the fence, but only while the lease is complete: without the fence it has to hold everything.
    fn delete_fence(&mut self, election: &ElectionName) {
        if self.fence_is_whole(election) && self.lease_is_whole(election) {
            let key = Key::Fence(election.clone());
            self.damage(Fault::FenceDeleted);
            self.say(&format!("someone deletes {key}"));
            self.store.delete(self.now, &key);
        }
    }

    /// Deletes both at once. A process that is just installing its term continues with what it knows of the lease.
    /// Not while a write that creates a lease is in transit: it would be an older copy restored without a fence, for
    /// which nothing is promised.
    fn wipe(&mut self, election: &ElectionName) {
        let is_whole = self.fence_is_whole(election) && self.lease_is_whole(election);
        if !is_whole || self.is_making_lease(election) {
            return;
        }
        self.damage(Fault::Wiped);
        self.say(&format!("someone wipes {election}"));
        self.store.delete(self.now, &Key::Lease(election.clone()));
        self.store.delete(self.now, &Key::Fence(election.clone()));
        *self.oracle.wiped.entry(election.clone()).or_default() += 1;
        self.oracle.highest.remove(election);
    }

    fn put_lease(&mut self, election: &ElectionName, bytes: Vec<u8>) {
        let key = Key::Lease(election.clone());
        self.store.overwrite(self.now, key, bytes.clone());
        self.on_lease_changed(election, bytes);
    }

    fn damage(&mut self, fault: Fault) {
        self.faults.count(fault);
        self.damaged_at = Some(self.now);
    }

    pub(crate) fn say(&mut self, what: &str) {
        self.trace.say(self.now, "--", what);
    }

    // ---- calm ---------------------------------------------------------------------------------------

    /// Ends the faults: the store answers, paused processes continue, hanging work stops, requests in transit arrive,
    /// and processes that should run do, or stay dead.
    pub(crate) fn calm_down(&mut self) {
        self.say("the faults are over");
        self.is_calm = true;
        self.plan.calm();
        self.down_until = self.now;
        for process in self.processes.values_mut() {
            process.cut_off_until = self.now;
        }
        self.hurry_late_requests();
        for election in self.elections.clone() {
            self.repair_lease(&election);
        }
        for slot in 0..self.slots.len() {
            let mut there = self.processes.values();
            let runs = there.any(|process| process.slot == slot && !process.replaced);
            if !runs && (slot == 0 || self.random.chance(700)) {
                self.plan_in(self.plan.latency, Happening::Start { slot });
            }
        }
        // All processes are candidates again, so that one can be elected.
        let ids: Vec<u64> = self.processes.keys().copied().collect();
        for id in ids {
            for election in self.elections.clone() {
                let process = self.processes.get_mut(&id).expect("nobody crashes here");
                let stands = process.stands.get(&election).copied().unwrap_or_default();
                if !stands {
                    process.stands.insert(election.clone(), true);
                    let new_lineage = tenure_core::Lineage(u128::from(self.random.bits()));
                    let input = Input::Join {
                        election,
                        priority: Some(100),
                        new_lineage,
                    };
                    self.deliver_in(self.plan.latency, id, input);
                }
            }
        }
    }

    /// Whether a session is alive in the store.
    pub(crate) fn is_alive(&self, incarnation: Incarnation) -> bool {
        let record = self.store.session(incarnation);
        record.is_some_and(|record| record.state == State::Alive)
    }
}
