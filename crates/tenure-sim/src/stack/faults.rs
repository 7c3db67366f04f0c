//! Everything that can go wrong in the whole stack, by name, and how often it did.

use std::collections::BTreeMap;

use tenure_store::wrap::faulty::Kind;

/// A fault. Counted where it takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each name says it, and the world says how")]
pub enum Fault {
    // Requests to the store.
    StoreSlow,
    StoreRefused,
    StoreAnswerLost,
    StoreRequestLost,
    StoreRequestLate,
    StoreRequestDoubled,
    StoreRequestRetried,
    CommitHeld,
    StoreAgeWrong,
    HintLost,
    HintDoubled,
    HintLate,
    StoreOutage,
    StoreHangs,
    // Steps on the disk, where the log is kept in files.
    DiskSlow,
    DiskFull,
    DiskSyncFailed,
    DiskSyncForgets,
    DiskReadFailed,
    DiskWriteSeen,
    DiskForgets,
    // Hosts and processes.
    CutOff,
    Outage,
    PowerLoss,
    Crash,
    CrashWhileServing,
    Pause,
    PauseWhileServing,
    Frozen,
    FrozenUntilTakeover,
    Shutdown,
    ClockRate,
    WallForward,
    WallBack,
    WallGlitch,
    // Calls from clients to brokers.
    CallSlow,
    CallLost,
    CallAnswerLost,
    CallDoubled,
    ClientGone,
    // Workers.
    WorkerVanished,
    WorkerStalled,
    // Daemons.
    DaemonFailed,
    DaemonHangs,
    Drained,
    // What people do.
    Resigned,
    ResignRequested,
    Transferred,
    LeaseDeleted,
    DeadSessionDeleted,
    // The storage itself.
    SnapshotDamaged,
    // Versions that change.
    Upgraded,
    Downgraded,
    // What there is much of.
    ScheduleOfMany,
    PayloadLarge,
    ClaimCut,
    BacklogFull,
    // What is done beside the faults, and counted to see that it is.
    Searched,
    ClaimAskedAgain,
    EndToldAgain,
    EndToldOtherwise,
    TimeSet,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 62] = [
        Fault::StoreSlow,
        Fault::StoreRefused,
        Fault::StoreAnswerLost,
        Fault::StoreRequestLost,
        Fault::StoreRequestLate,
        Fault::StoreRequestDoubled,
        Fault::StoreRequestRetried,
        Fault::CommitHeld,
        Fault::StoreAgeWrong,
        Fault::HintLost,
        Fault::HintDoubled,
        Fault::HintLate,
        Fault::StoreOutage,
        Fault::StoreHangs,
        Fault::DiskSlow,
        Fault::DiskFull,
        Fault::DiskSyncFailed,
        Fault::DiskSyncForgets,
        Fault::DiskReadFailed,
        Fault::DiskWriteSeen,
        Fault::DiskForgets,
        Fault::CutOff,
        Fault::Outage,
        Fault::PowerLoss,
        Fault::Crash,
        Fault::CrashWhileServing,
        Fault::Pause,
        Fault::PauseWhileServing,
        Fault::Frozen,
        Fault::FrozenUntilTakeover,
        Fault::Shutdown,
        Fault::ClockRate,
        Fault::WallForward,
        Fault::WallBack,
        Fault::WallGlitch,
        Fault::CallSlow,
        Fault::CallLost,
        Fault::CallAnswerLost,
        Fault::CallDoubled,
        Fault::ClientGone,
        Fault::WorkerVanished,
        Fault::WorkerStalled,
        Fault::DaemonFailed,
        Fault::DaemonHangs,
        Fault::Drained,
        Fault::Resigned,
        Fault::ResignRequested,
        Fault::Transferred,
        Fault::LeaseDeleted,
        Fault::DeadSessionDeleted,
        Fault::SnapshotDamaged,
        Fault::Upgraded,
        Fault::Downgraded,
        Fault::ScheduleOfMany,
        Fault::PayloadLarge,
        Fault::ClaimCut,
        Fault::BacklogFull,
        Fault::Searched,
        Fault::ClaimAskedAgain,
        Fault::EndToldAgain,
        Fault::EndToldOtherwise,
        Fault::TimeSet,
    ];

    /// What it is a fault of; none if nothing is wrong with it: then it is counted to see that it happens.
    #[must_use]
    pub const fn part(self) -> Option<Part> {
        Some(match self {
            Fault::StoreSlow
            | Fault::StoreRefused
            | Fault::StoreAnswerLost
            | Fault::StoreRequestLost
            | Fault::StoreRequestLate
            | Fault::StoreRequestDoubled
            | Fault::StoreRequestRetried
            | Fault::CommitHeld
            | Fault::StoreAgeWrong
            | Fault::HintLost
            | Fault::HintDoubled
            | Fault::HintLate
            | Fault::StoreOutage
            | Fault::StoreHangs
            | Fault::CutOff
            | Fault::Outage
            | Fault::LeaseDeleted
            | Fault::SnapshotDamaged => Part::Store,
            Fault::DiskSlow
            | Fault::DiskFull
            | Fault::DiskSyncFailed
            | Fault::DiskSyncForgets
            | Fault::DiskReadFailed
            | Fault::DiskForgets => Part::Disk,
            Fault::PowerLoss
            | Fault::Crash
            | Fault::Pause
            | Fault::Frozen
            | Fault::DaemonFailed
            | Fault::DaemonHangs => Part::Process,
            Fault::WallForward | Fault::WallBack | Fault::WallGlitch => Part::Clock,
            Fault::CallSlow
            | Fault::CallLost
            | Fault::CallAnswerLost
            | Fault::CallDoubled
            | Fault::ClientGone
            | Fault::WorkerVanished
            | Fault::WorkerStalled => Part::Client,
            // What people do in good order, what a fault hit, what there is much of, and clocks that are as promised.
            Fault::DiskWriteSeen
            | Fault::CrashWhileServing
            | Fault::PauseWhileServing
            | Fault::FrozenUntilTakeover
            | Fault::Shutdown
            | Fault::ClockRate
            | Fault::Drained
            | Fault::Resigned
            | Fault::ResignRequested
            | Fault::Transferred
            | Fault::DeadSessionDeleted
            | Fault::Upgraded
            | Fault::Downgraded
            | Fault::ScheduleOfMany
            | Fault::PayloadLarge
            | Fault::ClaimCut
            | Fault::BacklogFull
            | Fault::Searched
            | Fault::ClaimAskedAgain
            | Fault::EndToldAgain
            | Fault::EndToldOtherwise
            | Fault::TimeSet => return None,
        })
    }

    /// The fault of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|fault| format!("{fault:?}") == name)
    }

    /// What a faulty store calls it.
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Delayed => Fault::StoreSlow,
            Kind::Refused => Fault::StoreRefused,
            Kind::AnswerLost => Fault::StoreAnswerLost,
            Kind::RequestLost => Fault::StoreRequestLost,
            Kind::Late => Fault::StoreRequestLate,
            Kind::Duplicated => Fault::StoreRequestDoubled,
            Kind::Retried => Fault::StoreRequestRetried,
            Kind::Young => Fault::StoreAgeWrong,
            Kind::HintLost => Fault::HintLost,
            Kind::HintDoubled => Fault::HintDoubled,
            Kind::HintLate => Fault::HintLate,
            Kind::Outage => Fault::StoreOutage,
            Kind::Hung => Fault::StoreHangs,
        }
    }
}

/// Where something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each name says it")]
pub enum Part {
    Store,
    Disk,
    Process,
    Clock,
    Client,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 5] = [
        Part::Store,
        Part::Disk,
        Part::Process,
        Part::Clock,
        Part::Client,
    ];
}

/// How often each fault happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Fault, u64>);

impl Counts {
    /// One more.
    pub fn count(&mut self, fault: Fault) {
        self.count_many(fault, 1);
    }

    /// So many more.
    pub fn count_many(&mut self, fault: Fault, count: u64) {
        *self.0.entry(fault).or_default() += count;
    }

    /// How often one happened.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.0.get(&fault).copied().unwrap_or_default()
    }

    /// How often something went wrong in one part.
    #[must_use]
    pub fn of_part(&self, part: Part) -> u64 {
        let counts = self.0.iter();
        let of_part = counts.filter(|(fault, _)| fault.part() == Some(part));
        of_part.map(|(_, count)| count).sum()
    }

    /// How often something went wrong.
    #[must_use]
    pub fn total(&self) -> u64 {
        Part::ALL.into_iter().map(|part| self.of_part(part)).sum()
    }

    /// Those of another run as well.
    pub fn add(&mut self, other: &Counts) {
        for (&fault, &count) in &other.0 {
            self.count_many(fault, count);
        }
    }
}
