//! All faults by name, and how often each happened.
//!
//! Every seed draws its own [`Plan`]: some faults are frequent, some never happen. Runs in which everything fails at
//! once explore less than runs with a few kinds of faults.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_random::Random;

/// A fault. Counted where it takes effect, not where it is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each name says it, and the world says how")]
pub enum Fault {
    // Requests.
    Refused,
    ReadFailed,
    RequestLost,
    AnswerLost,
    AnswerLostAtOnce,
    LateWrite,
    LateWriteApplied,
    Duplicated,
    SlowTail,
    PageLost,
    PageLate,
    // The store.
    Outage,
    AgeAbsent,
    StoreClockBack,
    StoreClockForward,
    OtherClock,
    HintLost,
    // Processes.
    Pause,
    PauseBeyondTrust,
    CutOff,
    Blind,
    Crash,
    CrashWhileLeading,
    Restart,
    Twin,
    // Actions of operators and programs.
    Leave,
    Resign,
    Transfer,
    RequestToResign,
    RequestToTransfer,
    StandDown,
    JoinAfterOver,
    WorkEndedByItself,
    WorkOutlivedStop,
    WorkOutlivedTrust,
    // Damage by operators.
    LeaseDeleted,
    LeaseRestored,
    LeaseDamaged,
    FenceDeleted,
    SessionDeleted,
    SessionDamaged,
    Wiped,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 42] = [
        Fault::Refused,
        Fault::ReadFailed,
        Fault::RequestLost,
        Fault::AnswerLost,
        Fault::AnswerLostAtOnce,
        Fault::LateWrite,
        Fault::LateWriteApplied,
        Fault::Duplicated,
        Fault::SlowTail,
        Fault::PageLost,
        Fault::PageLate,
        Fault::Outage,
        Fault::AgeAbsent,
        Fault::StoreClockBack,
        Fault::StoreClockForward,
        Fault::OtherClock,
        Fault::HintLost,
        Fault::Pause,
        Fault::PauseBeyondTrust,
        Fault::CutOff,
        Fault::Blind,
        Fault::Crash,
        Fault::CrashWhileLeading,
        Fault::Restart,
        Fault::Twin,
        Fault::Leave,
        Fault::Resign,
        Fault::Transfer,
        Fault::RequestToResign,
        Fault::RequestToTransfer,
        Fault::StandDown,
        Fault::JoinAfterOver,
        Fault::WorkEndedByItself,
        Fault::WorkOutlivedStop,
        Fault::WorkOutlivedTrust,
        Fault::LeaseDeleted,
        Fault::LeaseRestored,
        Fault::LeaseDamaged,
        Fault::FenceDeleted,
        Fault::SessionDeleted,
        Fault::SessionDamaged,
        Fault::Wiped,
    ];
}

/// How often each fault happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Fault, u64>);

impl Counts {
    /// Counts a fault.
    pub fn count(&mut self, fault: Fault) {
        *self.0.entry(fault).or_default() += 1;
    }

    /// How often a fault happened.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.0.get(&fault).copied().unwrap_or_default()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Counts) {
        for (fault, count) in &other.0 {
            *self.0.entry(*fault).or_default() += count;
        }
    }
}

/// The faults of a run, and how often they happen. Chances are per mille.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) refused: u64,
    pub(crate) request_lost: u64,
    pub(crate) answer_lost: u64,
    pub(crate) late: u64,
    pub(crate) duplicated: u64,
    pub(crate) slow: u64,
    /// The share of requests whose answers have no ages.
    pub(crate) age_absent: u64,
    /// How often another of the store's clocks answers, and how far that one is ahead.
    pub(crate) other_clock: u64,
    pub(crate) other_clock_ahead: Duration,
    /// The share of a lease's changes that are hinted, per process.
    pub(crate) hinted: u64,
    /// The usual upper bound of latency.
    pub(crate) latency: Duration,
    /// How long work usually takes to stop, and how often it takes far longer.
    pub(crate) work_stops_in: Duration,
    pub(crate) work_hangs: u64,
    pub(crate) work_fails: u64,
    /// The mean time between two events that affect a process, the store or an object.
    pub(crate) chaos_every: Duration,
    /// The weights of these events; see `world::chaos`.
    pub(crate) weights: Vec<(Action, u64)>,
}

/// The events of chaos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Outage,
    StoreClock,
    Pause,
    CutOff,
    Blind,
    Crash,
    Start,
    Twin,
    Leave,
    Resign,
    Transfer,
    Request,
    Stand,
    DeleteLease,
    RestoreLease,
    DamageLease,
    DeleteFence,
    DeleteSession,
    DamageSession,
    Wipe,
}

impl Plan {
    /// The plan of a seed, for sessions with about this ttl.
    pub fn draw(random: &mut Random, ttl: Duration) -> Self {
        let mut sometimes = |max: u64| {
            if random.chance(600) {
                random.below(max)
            } else {
                0
            }
        };
        let mut plan = Self {
            refused: sometimes(100),
            request_lost: sometimes(80),
            answer_lost: sometimes(80),
            late: sometimes(60),
            duplicated: sometimes(60),
            slow: sometimes(60),
            age_absent: sometimes(1000),
            other_clock: sometimes(500),
            other_clock_ahead: Duration::ZERO,
            hinted: sometimes(1000),
            work_hangs: sometimes(300),
            work_fails: sometimes(200),
            latency: Duration::ZERO,
            work_stops_in: Duration::ZERO,
            chaos_every: Duration::ZERO,
            weights: Vec::new(),
        };
        plan.weights = WEIGHTS
            .iter()
            .map(|&(action, weight)| (action, sometimes(weight * 10)))
            .collect();
        plan.other_clock_ahead = random.up_to(ttl * 4);
        plan.latency = random.between(ttl / 5000, ttl / 50);
        plan.work_stops_in = random.between(ttl / 1000, ttl / 6);
        plan.chaos_every = random.between(ttl / 4, ttl * 3);
        plan
    }

    /// Ends all faults.
    pub fn calm(&mut self) {
        *self = Self {
            refused: 0,
            request_lost: 0,
            answer_lost: 0,
            late: 0,
            duplicated: 0,
            slow: 0,
            work_hangs: 0,
            work_fails: 0,
            weights: Vec::new(),
            ..self.clone()
        };
    }
}

const WEIGHTS: [(Action, u64); 20] = [
    (Action::Outage, 6),
    (Action::StoreClock, 4),
    (Action::Pause, 10),
    (Action::CutOff, 8),
    (Action::Crash, 10),
    (Action::Start, 25),
    (Action::Twin, 4),
    (Action::Leave, 6),
    (Action::Resign, 8),
    (Action::Transfer, 8),
    (Action::Request, 8),
    (Action::Stand, 8),
    (Action::DeleteLease, 4),
    (Action::RestoreLease, 6),
    (Action::DamageLease, 2),
    (Action::DeleteFence, 4),
    (Action::DeleteSession, 4),
    (Action::DamageSession, 2),
    (Action::Wipe, 1),
    (Action::Blind, 5),
];
