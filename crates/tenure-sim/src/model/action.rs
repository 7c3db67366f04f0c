//! The possible steps.

/// One step. Requests, copies and ends of work are named by their position in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A request is carried out and answered.
    Answer(usize),
    /// A request is carried out; its answer comes later.
    Apply(usize),
    /// The answer to a request that was carried out arrives.
    Deliver(usize),
    /// A copy of an abandoned write arrives at the store.
    Land(usize),
    /// The store reads a page of a listing, and it arrives.
    Page(usize),
    /// The store reads a page of a listing; it arrives later.
    ReadPage(usize),
    /// A page that was read arrives.
    PageBack(usize),
    /// Work that was told to stop has ended.
    EndWork(usize),
    /// A paused process continues, first with a timer, or with the inputs that have arrived meanwhile.
    Resume {
        /// Its number.
        process: u64,
        /// Whether its timer comes first.
        time_first: bool,
    },
    /// The caller gets an answer from the lease.
    Told,
    /// Time passes to the next moment that anything waits for.
    Tick,
    /// A fault strikes.
    Fault(Kind, u64),
}

/// The kinds of faults and requests. The action's number says what it strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each name says it, and the state says how")]
pub enum Kind {
    // Requests, by position.
    Refused,
    AnswerLost,
    Late,
    Slow,
    Duplicated,
    // Pages of listings, by position.
    PageLost,
    PageSlow,
    // Work, by position.
    WorkHangs,
    // Processes, by number.
    Crash,
    CrashForGood,
    RestartWithLongerTtl,
    Pause,
    Copied,
    Leave,
    Resign,
    Transfer,
    RequestResign,
    // The caller; for a transfer, the number of the process that should lead.
    CallerCalls,
    CallerAsked,
    CallerAskedToTransfer,
    // Objects.
    LeaseDeleted,
    LeaseRestored,
    FenceDeleted,
    SessionDeleted,
}

/// All kinds.
pub const FAULTS: [Kind; 24] = [
    Kind::Refused,
    Kind::AnswerLost,
    Kind::Late,
    Kind::Slow,
    Kind::Duplicated,
    Kind::PageLost,
    Kind::PageSlow,
    Kind::WorkHangs,
    Kind::Crash,
    Kind::CrashForGood,
    Kind::RestartWithLongerTtl,
    Kind::Pause,
    Kind::Copied,
    Kind::Leave,
    Kind::Resign,
    Kind::Transfer,
    Kind::RequestResign,
    Kind::CallerCalls,
    Kind::CallerAsked,
    Kind::CallerAskedToTransfer,
    Kind::LeaseDeleted,
    Kind::LeaseRestored,
    Kind::FenceDeleted,
    Kind::SessionDeleted,
];

impl Action {
    /// The simulation's fault of this kind.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Action::Fault(kind, _) => Some(*kind),
            _ => None,
        }
    }
}
