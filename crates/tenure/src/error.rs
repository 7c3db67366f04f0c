//! Errors, named by what the caller can do next.

use tenure_core::session::ConfigError;
use tenure_core::{ElectionName, Incarnation, NameError, NodeId};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name cannot be used. Nothing was done.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The times of the session are not safe together. Nothing was started.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A daemon asks for something that cannot be. Nothing was registered.
    #[error(transparent)]
    Definition(#[from] tenure_core::cluster::DefinitionError),
    /// The store failed; the error says what happened to the data.
    #[error(transparent)]
    Store(#[from] tenure_store::Error),
    /// The queue's log failed; the error says what happened to the record.
    #[error(transparent)]
    Queue(#[from] crate::queue::Error),
    /// Nobody leads, so there is nobody to ask. Try again when someone does.
    #[error("nobody leads the election {election}")]
    NoLeader {
        /// Which.
        election: ElectionName,
    },
    /// The node is not a live candidate of the election, so it cannot lead. Nothing was changed.
    #[error(
        "{node} is not a live candidate of the election {election}{}",
        candidates_hint(candidates)
    )]
    NotACandidate {
        /// Who was named.
        node: NodeId,
        /// Which election.
        election: ElectionName,
        /// Who could be named.
        candidates: Vec<NodeId>,
    },
    /// Several candidates have this name: processes of one node, or programs that only call now and then. Nothing was changed;
    /// name the session as well.
    #[error(
        "{node} names several candidates of the election {election}: {}",
        sessions_hint(node, sessions)
    )]
    AmbiguousCandidate {
        /// Who was named.
        node: NodeId,
        /// Which election.
        election: ElectionName,
        /// Their sessions, and whether each is that of a program that only calls.
        sessions: Vec<(Incarnation, bool)>,
    },
    /// The lease changes faster than it can be written. Nothing was changed; try again.
    #[error("the lease of {election} kept changing; nothing was done")]
    Contended {
        /// Which election.
        election: ElectionName,
    },
    /// The lease was deleted, or an older copy restored, so the next leader has to wait for a ttl; a call in a transaction does
    /// not, since it holds locks. Roll back, and call `OneShot::elect`, without a transaction.
    #[error(
        "the lease of {election} was deleted or restored, so a ttl has to pass: elect without a transaction"
    )]
    MustWait {
        /// Which election.
        election: ElectionName,
    },
    /// Calls for one candidate come faster than its session can be written. Nothing was changed; try again.
    #[error(
        "too many calls for the candidate {node} at once: its session kept changing; nothing was done"
    )]
    CandidateBusy {
        /// The id.
        node: NodeId,
    },
    /// Too many programs stand under one id, each with a secret of its own. Nothing was done; use another id.
    #[error("there are already too many candidates with the id {node}; nothing was done")]
    Crowded {
        /// The id.
        node: NodeId,
    },
    /// There are as many as are allowed. Nothing was done.
    #[error("{what}; nothing was done")]
    Full {
        /// What there are too many of.
        what: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The drains change faster than they can be written. Nothing was changed; try again.
    #[error("the list of drained nodes kept changing; nothing was done")]
    DrainsContended,
    /// The record in the store cannot be read by this version. Nothing was changed.
    #[error("cannot read {key}")]
    Unreadable {
        /// The object.
        key: String,
        /// Why.
        source: tenure_core::RecordError,
    },
    /// The node has been shut down.
    #[error("the node has been shut down")]
    ShutDown,
}

fn sessions_hint(node: &NodeId, sessions: &[(Incarnation, bool)]) -> String {
    let named = sessions
        .iter()
        .take(SESSIONS_NAMED_MAX)
        .map(|(incarnation, is_caller)| {
            let kind = if *is_caller {
                "calls now and then"
            } else {
                "runs"
            };
            format!("{node}/{incarnation}, which {kind}")
        });
    named.collect::<Vec<_>>().join("; ")
}

/// How many sessions a message names.
const SESSIONS_NAMED_MAX: usize = 4;

fn candidates_hint(candidates: &[NodeId]) -> String {
    match candidates {
        [] => "; it has none".to_owned(),
        some => format!(
            "; its candidates are {}",
            some.iter()
                .map(NodeId::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}
