//! The possible steps.

/// One step. Its object is named by its position in the state, or by the number of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The next request is carried out and answered, or the next work starts or ends.
    Next(usize),
    /// A slow request is carried out.
    Apply(usize),
    /// The answer to a slow request arrives.
    Deliver(usize),
    /// A copy of an abandoned write arrives at the store.
    Land(usize),
    /// Hanging work continues.
    GoOn(usize),
    /// A former leader learns that it no longer leads.
    Depose(u64),
    /// A paused process continues, first with a timer, or with the inputs that have arrived meanwhile.
    Resume {
        /// Its number.
        process: u64,
        /// Whether its timer comes first.
        time_first: bool,
    },
    /// Time passes to the next moment that anything waits for.
    Tick,
    /// A fault strikes, or a request is made.
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
    // Work, by position.
    StartFails,
    WorkHangs,
    WorkStuck,
    // Processes, by number.
    RunFails,
    Crash,
    CrashForGood,
    Pause,
    Leave,
    Restart,
    Elect,
    // Nodes, by number.
    Drain,
    Undrain,
    // Objects.
    AssignmentsDeleted,
    SessionDeleted,
}

/// All kinds.
pub const KINDS: [Kind; 19] = [
    Kind::Refused,
    Kind::AnswerLost,
    Kind::Late,
    Kind::Slow,
    Kind::Duplicated,
    Kind::StartFails,
    Kind::WorkHangs,
    Kind::WorkStuck,
    Kind::RunFails,
    Kind::Crash,
    Kind::CrashForGood,
    Kind::Pause,
    Kind::Leave,
    Kind::Restart,
    Kind::Elect,
    Kind::Drain,
    Kind::Undrain,
    Kind::AssignmentsDeleted,
    Kind::SessionDeleted,
];
