//! Rules of the protocols that a test can break on purpose, to see that the checks notice.
//!
//! A rule whose removal nothing notices is not tested. So each has a switch here, which is compiled in with
//! the feature `__mutations` only: without it [`is`] is a constant `false`. Those of the queue's log and of listings are in
//! the crate above, which asks here as well. A mutation is in force on one
//! thread, while [`with`] runs.

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Trust counts from the answer of a heartbeat, not from its start.
    TrustFromAnswer,
    /// Trust in a lease counts from the answer of a look, not from its start.
    TrustFromLookAnswer,
    /// A process trusts itself for the whole ttl.
    NoMargin,
    /// A leader that never sees its lease again goes on while its session stands.
    TrustUnseenLease,
    /// A session is evicted after half of its ttl.
    EvictEarly,
    /// An age is the difference of two clocks, or of one that was set in between.
    AgeByAnyClock,
    /// An observer goes by its own ttl, not by the record's.
    ObserverTtl,
    /// What a session held is taken when its time is over, without evicting it.
    TakeWithoutEviction,
    /// A session whose object is missing counts as dead at once.
    MissingSessionIsDead,
    /// A session that was evicted goes on if it can write.
    IgnoreEviction,
    /// A session whose object was deleted is made again.
    RecreateSession,
    /// A lost answer to a heartbeat counts as "not applied".
    UnknownHeartbeatFailed,
    /// A heartbeat is one's own if it has the same number.
    RecogniseByCounter,
    /// A session that a copy of its process has outrun gives its leases back.
    GiveBackOutrun,
    /// A process that cannot read its lease keeps it while its session stands.
    KeepUnreadable,
    /// A lost answer to a lease counts as "applied".
    UnknownLeaseApplied,
    /// A listing also serves those who asked after it was started.
    PageServesLater,
    /// Whoever waits for a page that does not come waits on.
    PageForgets,
    /// Whoever has the lease leads, before the fence is raised.
    LeadBeforeFence,
    /// The fence is raised over a leader that may not have noticed yet.
    NoWaitAfterDamage,
    /// The next term is the same as the last.
    SameTerm,
    /// The fence's term is not heeded where the lease is older.
    ForgetFence,
    /// A lease is mine if it names my node.
    OwnByName,
    /// A lease is given back when the work is told to stop, not when it has ended.
    ReleaseWhileWorking,
    /// A session says that it is gone while its work goes on.
    LeaveWhileWorking,
    /// A shard goes to another node without waiting for the first to stop.
    NoDrain,
    /// A generation is given out again.
    SameGeneration,
    /// A new leader decides before its term stands on the assignments.
    DecideBeforeInstalled,
    /// Terms are compared whatever row they belong to.
    RowIgnored,
    /// A shard is trusted while the session is, however long ago it was seen to be assigned.
    TrustUnseenAssignment,
    /// The shards of a session are free when it is merely not heard of.
    SilenceIsDeath,
    /// A shard is never taken from a node that does not answer.
    NeverForce,
    /// A shard is taken from a node that does not answer after half of its time.
    ForceEarly,
    /// A revoke is confirmed by a node that says nothing of the shard.
    SilenceConfirms,
    /// Lost assignments are made anew, and what they do not name is given out at once.
    NoWaitAfterLoss,
    /// A shard is trusted while it is seen to be assigned, whatever becomes of the session.
    TrustWithoutSession,
    /// Trust in an assignment counts from the answer of a look, not from its start.
    TrustAssignmentFromAnswer,
    /// A node trusts what it saw for the whole drain timeout.
    WholeDrainTrust,
    /// A generation that has ended is started again.
    StartAgain,
    /// A generation is started while an older one has not ended on the same node.
    StartBesideOlder,
    /// A unique key keeps nobody out.
    UniqueKeyIgnored,
    /// A unique key stays with a job that has finished.
    UniqueKeyKept,
    /// A job of a group may be claimed whoever comes before it.
    GroupNotHeld,
    /// A claim is ended by any token of its job.
    StaleTokenAccepted,
    /// A lease never runs out.
    LeaseNeverExpires,
    /// A lease runs out after half of its time.
    LeaseExpiresEarly,
    /// What ran before a new leader has no lease.
    LeasesNotResumed,
    /// A schedule fires the latest slot only, whatever its policy.
    MissedSlotsForgotten,
    /// A lost answer to a commit counts as "done".
    UnknownCommitDone,
    /// A lost answer to a commit counts as "not applied".
    UnknownCommitFailed,
    /// A place of the log that another has taken counts as one's own.
    TakenPlaceIgnored,
    /// A new leader serves without having taken a place of the log.
    NoTermRecord,
    /// Clean-up goes one place beyond the newest snapshot.
    CleanUpTooFar,
    /// A snapshot says that it contains one more commit than it does.
    SnapshotOneAhead,
    /// A commit to a file is done before it is synced.
    CommitBeforeSync,
    /// A commit to a file is done without a look at the fence.
    FenceUnchecked,
    /// A new leader reads the log before it raises the fence.
    ReadBeforeFence,
    /// A new leader builds on what it has read in a file without syncing it.
    BuildOnUnsynced,
    /// A new leader syncs the last file of the log, whose sync may have failed before, and builds on it.
    TrustFailedSync,
    /// A new file of the log counts before its name is durable.
    FolderUnsynced,
    /// A queue's rate is not counted.
    RateIgnored,
    /// A queue's concurrency is not counted.
    ConcurrencyIgnored,
    /// A finished job is forgotten after half of its time.
    ForgottenEarly,
    /// The opening of a queue with a rate is noted only while no queue at all is open.
    OpeningUnnoted,
    /// What is due at once is cut into records by number, not by bytes.
    CutByNumberOnly,
}

impl Mutation {
    /// All of them.
    #[cfg(feature = "__mutations")]
    pub const ALL: [Mutation; 65] = [
        Mutation::TrustFromAnswer,
        Mutation::TrustFromLookAnswer,
        Mutation::NoMargin,
        Mutation::TrustUnseenLease,
        Mutation::EvictEarly,
        Mutation::AgeByAnyClock,
        Mutation::ObserverTtl,
        Mutation::TakeWithoutEviction,
        Mutation::MissingSessionIsDead,
        Mutation::IgnoreEviction,
        Mutation::RecreateSession,
        Mutation::UnknownHeartbeatFailed,
        Mutation::RecogniseByCounter,
        Mutation::GiveBackOutrun,
        Mutation::KeepUnreadable,
        Mutation::UnknownLeaseApplied,
        Mutation::PageServesLater,
        Mutation::PageForgets,
        Mutation::LeadBeforeFence,
        Mutation::NoWaitAfterDamage,
        Mutation::SameTerm,
        Mutation::ForgetFence,
        Mutation::OwnByName,
        Mutation::ReleaseWhileWorking,
        Mutation::LeaveWhileWorking,
        Mutation::NoDrain,
        Mutation::SameGeneration,
        Mutation::DecideBeforeInstalled,
        Mutation::RowIgnored,
        Mutation::TrustUnseenAssignment,
        Mutation::SilenceIsDeath,
        Mutation::NeverForce,
        Mutation::ForceEarly,
        Mutation::SilenceConfirms,
        Mutation::NoWaitAfterLoss,
        Mutation::TrustWithoutSession,
        Mutation::TrustAssignmentFromAnswer,
        Mutation::WholeDrainTrust,
        Mutation::StartAgain,
        Mutation::StartBesideOlder,
        Mutation::UniqueKeyIgnored,
        Mutation::UniqueKeyKept,
        Mutation::GroupNotHeld,
        Mutation::StaleTokenAccepted,
        Mutation::LeaseNeverExpires,
        Mutation::LeaseExpiresEarly,
        Mutation::LeasesNotResumed,
        Mutation::MissedSlotsForgotten,
        Mutation::UnknownCommitDone,
        Mutation::UnknownCommitFailed,
        Mutation::TakenPlaceIgnored,
        Mutation::NoTermRecord,
        Mutation::CleanUpTooFar,
        Mutation::SnapshotOneAhead,
        Mutation::CommitBeforeSync,
        Mutation::FenceUnchecked,
        Mutation::ReadBeforeFence,
        Mutation::BuildOnUnsynced,
        Mutation::TrustFailedSync,
        Mutation::FolderUnsynced,
        Mutation::RateIgnored,
        Mutation::ConcurrencyIgnored,
        Mutation::ForgottenEarly,
        Mutation::OpeningUnnoted,
        Mutation::CutByNumberOnly,
    ];
}

/// Whether a rule is broken now.
#[cfg(not(feature = "__mutations"))]
#[inline]
#[must_use]
pub const fn is(_: Mutation) -> bool {
    false
}

#[cfg(feature = "__mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
        static STEADY: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether a rule is broken now.
    #[must_use]
    pub fn is(mutation: Mutation) -> bool {
        BROKEN.get() == Some(mutation)
    }

    /// Whether jitter is off on this thread.
    pub(crate) fn is_steady() -> bool {
        STEADY.get()
    }

    /// Runs something with a rule broken, on this thread.
    pub fn with<T>(mutation: Option<Mutation>, run: impl FnOnce() -> T) -> T {
        let _restore = Restore(BROKEN.replace(mutation));
        run()
    }

    /// Runs something without jitter in any wait, on this thread, so that a model checker has fewer times to
    /// look at.
    pub fn steadily<T>(run: impl FnOnce() -> T) -> T {
        let _restore = Jitter(STEADY.replace(true));
        run()
    }

    struct Jitter(bool);

    impl Drop for Jitter {
        fn drop(&mut self) {
            STEADY.set(self.0);
        }
    }

    struct Restore(Option<Mutation>);

    impl Drop for Restore {
        fn drop(&mut self) {
            BROKEN.set(self.0);
        }
    }
}

#[cfg(feature = "__mutations")]
pub(crate) use switch::is_steady;
#[cfg(feature = "__mutations")]
pub use switch::{is, steadily, with};
