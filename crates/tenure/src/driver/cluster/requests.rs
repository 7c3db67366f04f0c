//! What the cluster's machines ask of the store, each in a task of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::cluster::registry::Listed;
use tenure_core::cluster::{Assignments, Drains};
use tenure_core::node::Answer;
use tenure_core::session::{Holder, Record};
use tenure_core::{Expect, Incarnation, NodeId, Read, Version, Written};
use tenure_store::{Entry, Store, list_all};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Instrument;

use crate::keys::Keys;
use crate::requests::{Chain, OUTAGE, from_store, read, write};

/// A request.
pub(super) enum Ask {
    Look {
        known: Option<Version>,
    },
    Assignments {
        known: Option<Version>,
    },
    Write {
        assignments: Box<Assignments>,
        expect: Expect,
    },
    Drains {
        known: Option<Version>,
    },
    List,
    Session {
        node: NodeId,
        incarnation: Incarnation,
    },
    Delete {
        node: NodeId,
        incarnation: Incarnation,
    },
}

impl Ask {
    /// What is told if there is no answer: what became of it is not known.
    fn unanswered(&self, me: Incarnation) -> Told {
        match self {
            Ask::Look { .. } => Told::Looked(Read::Failed),
            Ask::Assignments { .. } => Told::Assigner(me, ToAssigner::Assignments(Read::Failed)),
            Ask::Write { .. } => Told::Assigner(me, ToAssigner::Written(Written::Unknown)),
            Ask::Drains { .. } => Told::Assigner(me, ToAssigner::Drains(Read::Failed)),
            Ask::List => Told::Listed(None),
            Ask::Session { incarnation, .. } => Told::Session(*incarnation, Box::new(Read::Failed)),
            Ask::Delete { .. } => Told::Deleted,
        }
    }
}

/// Its answer.
pub(in crate::driver) enum Told {
    Looked(Read<Assignments>),
    /// To the assigner of this session.
    Assigner(Incarnation, ToAssigner),
    Listed(Option<Vec<Listed>>),
    Session(Incarnation, Box<Read<Record>>),
    Deleted,
}

pub(in crate::driver) enum ToAssigner {
    Assignments(Read<Assignments>),
    Written(Written),
    Drains(Read<Drains>),
}

pub(super) struct Requests {
    store: Arc<dyn Store>,
    keys: Keys,
    /// How long each may take.
    within: Duration,
    tasks: JoinSet<Told>,
}

impl Requests {
    pub(super) fn new(store: Arc<dyn Store>, keys: Keys, within: Duration) -> Self {
        Self {
            store,
            keys,
            within,
            tasks: JoinSet::new(),
        }
    }

    /// Sends a request. There is one answer to each, also if the store gives none.
    pub(super) fn send(&mut self, me: Incarnation, ask: Ask) {
        let (store, keys, within) = (self.store.clone(), self.keys.clone(), self.within);
        let unanswered = ask.unanswered(me);
        let answer = async move {
            let answer = carry_out(&*store, &keys, me, ask, within);
            // An engine with a bug must not take the session with it.
            let answer = AssertUnwindSafe(answer).catch_unwind().await;
            answer.unwrap_or(unanswered)
        };
        self.tasks
            .spawn(crate::task::scoped(answer.in_current_span()));
    }

    /// The next answer; never, if none is due.
    pub(super) async fn next(&mut self) -> Told {
        match self.tasks.join_next().await {
            Some(told) => told.expect("requests neither panic nor are aborted"),
            None => std::future::pending().await,
        }
    }

    /// Hints of every change of a session.
    pub(super) fn watch_sessions(&self) -> Option<tenure_store::Watch> {
        self.store.watch(&self.keys.nodes())
    }
}

async fn carry_out(
    store: &dyn Store,
    keys: &Keys,
    me: Incarnation,
    ask: Ask,
    within: Duration,
) -> Told {
    match ask {
        Ask::Look { known } => {
            let key = keys.assignments();
            Told::Looked(read(store, &key, known, within, Assignments::decode).await)
        }
        Ask::Assignments { known } => {
            let key = keys.assignments();
            let found = read(store, &key, known, within, Assignments::decode).await;
            Told::Assigner(me, ToAssigner::Assignments(found))
        }
        Ask::Drains { known } => {
            let found = read(store, &keys.drains(), known, within, Drains::decode).await;
            Told::Assigner(me, ToAssigner::Drains(found))
        }
        Ask::Write {
            assignments,
            expect,
        } => {
            let value = assignments.encode();
            let written = match write(store, &keys.assignments(), value, &expect, within).await {
                Answer::Written(written) => written,
                other => unreachable!("a write was answered with {other:?}"),
            };
            Told::Assigner(me, ToAssigner::Written(written))
        }
        Ask::List => Told::Listed(list(store, keys, within).await),
        Ask::Session { node, incarnation } => {
            let key = keys.session(&named(node, incarnation));
            let found = read(store, &key, None, within, Record::decode).await;
            Told::Session(incarnation, Box::new(found))
        }
        Ask::Delete { node, incarnation } => {
            let key = keys.session(&named(node, incarnation));
            // Whatever becomes of it: the next listing shows whether it is still there.
            match timeout(within, store.delete(&key)).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%key, error = %Chain(&error), "a dead session was not removed");
                }
            }
            Told::Deleted
        }
    }
}

async fn list(store: &dyn Store, keys: &Keys, within: Duration) -> Option<Vec<Listed>> {
    match timeout(within, list_all(store, &keys.nodes())).await {
        Ok(Ok(entries)) => Some(entries.iter().filter_map(listed).collect()),
        Ok(Err(error)) => {
            OUTAGE.failed(format_args!("listing the sessions: {}", Chain(&error)));
            None
        }
        Err(_) => {
            OUTAGE.failed(format_args!(
                "listing the sessions: no answer within {within:?}"
            ));
            None
        }
    }
}

fn listed(entry: &Entry) -> Option<Listed> {
    let (node, incarnation) = Keys::session_of(&entry.key)?;
    Some(Listed {
        node,
        incarnation,
        version: from_store(&entry.version),
    })
}

/// Enough of a holder to find its session.
fn named(node: NodeId, incarnation: Incarnation) -> Holder {
    Holder {
        node,
        incarnation,
        ttl: Duration::ZERO,
    }
}
