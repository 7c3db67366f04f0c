//! A program that runs on although the session of its node is over.
//!
//! While it runs, the node takes no part in its election: its old session is over, and the next one waits for the
//! program's end. So nothing in the store would show the program, although that is just what people need to know.
//! Therefore a session is registered only to report it. That session is a candidate nowhere, holds nothing, and
//! blocks no one.

use std::sync::Arc;

use tenure::store::Store;
use tenure::{Node, NodeOptions};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::STOP_PATIENCE;

/// What is reported about the program, and by which session.
#[derive(Debug, Default)]
pub(super) enum LeftOver {
    /// Nothing to report: the program can be ended.
    #[default]
    Nothing,
    /// It cannot be ended; the session of the node reports it.
    Waiting(String),
    /// That session is over; another one reports it.
    Told(oneshot::Sender<()>, JoinHandle<()>),
}

impl LeftOver {
    /// Sets what to report. If another session already reports something, that stays.
    pub(super) fn say(&mut self, trouble: String) {
        if !matches!(self, Self::Told(..)) {
            *self = Self::Waiting(trouble);
        }
    }

    /// Whether only the session of the node reports it.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(..))
    }

    /// Starts the reporting session after the node's own is over. Uses the node's open store: opening it again could
    /// create a new one if it is gone.
    pub(super) fn begin(&mut self, store: Arc<dyn Store>, options: NodeOptions) {
        if let Self::Waiting(trouble) = std::mem::take(self) {
            let (end, ended) = oneshot::channel();
            *self = Self::Told(end, tokio::spawn(tell(store, options, trouble, ended)));
        }
    }

    /// Ends the report, since the program has ended. If that fails, the session soon expires.
    pub(super) async fn end(self) {
        if let Self::Told(end, told) = self {
            drop(end);
            let _ = timeout(STOP_PATIENCE, told).await;
        }
    }
}

/// Reports until the sender is dropped.
async fn tell(
    store: Arc<dyn Store>,
    options: NodeOptions,
    trouble: String,
    ended: oneshot::Receiver<()>,
) {
    match Node::start_with(store, options).await {
        Ok(node) => {
            node.set_trouble(Some(trouble));
            let _ = ended.await;
            node.shutdown().await;
        }
        Err(error) => {
            tracing::warn!(%error, "cannot tell other nodes that the program is still running");
        }
    }
}
