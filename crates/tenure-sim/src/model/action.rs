//! What can happen next.

/// One step. Requests, copies and ends of work are named by their position in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A request is carried out and answered.
    Answer(usize),
    /// A request is carried out; its answer takes longer.
    Apply(usize),
    /// The answer to a request that was carried out arrives.
    Deliver(usize),
    /// A copy of a write that was given up arrives at the store.
    Land(usize),
    /// A page of a listing is read by the store, and arrives.
    Page(usize),
    /// A page of a listing is read by the store; it takes longer to arrive.
    ReadPage(usize),
    /// A page that was read arrives.
    PageBack(usize),
    /// Work has ended that was told to.
    EndWork(usize),
    /// A process that was paused goes on: first with the time, or with what has come meanwhile.
    Resume {
        /// Which.
        process: u64,
        /// Whether it notices the time first.
        time_first: bool,
    },
    /// The caller is told what the lease says.
    Told,
    /// Time passes to the next moment that anyone waits for.
    Tick,
    /// Something goes wrong.
    Fault(Kind, u64),
}

/// What can go wrong, or be asked for. What it strikes is a number of the action.
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
    // The caller; a transfer by the process that is to lead.
    CallerCalls,
    CallerAsked,
    CallerAskedToTransfer,
    // Objects.
    LeaseDeleted,
    LeaseRestored,
    FenceDeleted,
    SessionDeleted,
}

/// All of them.
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
    /// The fault that it is.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Action::Fault(kind, _) => Some(*kind),
            _ => None,
        }
    }
}
