//! What can happen next.

/// One step. What it is about is named by its position in the state, or by the number of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The next request is carried out and answered, or the next work starts or ends.
    Next(usize),
    /// A slow request is carried out.
    Apply(usize),
    /// The answer to a slow request arrives.
    Deliver(usize),
    /// A copy of a write that was given up arrives at the store.
    Land(usize),
    /// Work that hung goes on.
    GoOn(usize),
    /// An old leader hears that it leads no longer.
    Depose(u64),
    /// A process that was paused goes on: first with the time, or with what has come meanwhile.
    Resume {
        /// Which.
        process: u64,
        /// Whether it notices the time first.
        time_first: bool,
    },
    /// Time passes to the next moment that anyone waits for.
    Tick,
    /// Something goes wrong, or is asked for.
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

/// All of them.
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
