//! A program that runs on although the session of its node is over.
//!
//! While it runs, the node takes no part in its election: its old session stays over, and the next one waits for the
//! program's end. Then nothing in the store would tell of the program, which is just what people have to know. So a
//! session is registered for that alone. It is a candidate nowhere, holds nothing, and keeps nobody from anything.

use std::sync::Arc;

use tenure::store::Store;
use tenure::{Node, NodeOptions};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::STOP_PATIENCE;

/// What is told of it, and by whom.
#[derive(Debug, Default)]
pub(super) enum LeftOver {
    /// The program can be ended.
    #[default]
    Nothing,
    /// It cannot; the session of the node tells of it.
    Waiting(String),
    /// That one is over; another tells.
    Told(oneshot::Sender<()>, JoinHandle<()>),
}

impl LeftOver {
    /// From now on there is something to tell. What is told already stays.
    pub(super) fn say(&mut self, trouble: String) {
        if !matches!(self, Self::Told(..)) {
            *self = Self::Waiting(trouble);
        }
    }

    /// Whether it is told only by the session of the node.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(..))
    }

    /// The session of the node is over. The store is the one that the node has: to open it again could make it anew, where it
    /// is gone.
    pub(super) fn begin(&mut self, store: Arc<dyn Store>, options: NodeOptions) {
        if let Self::Waiting(trouble) = std::mem::take(self) {
            let (end, ended) = oneshot::channel();
            *self = Self::Told(end, tokio::spawn(tell(store, options, trouble, ended)));
        }
    }

    /// The program has ended. What cannot be taken back soon expires.
    pub(super) async fn end(self) {
        if let Self::Told(end, told) = self {
            drop(end);
            let _ = timeout(STOP_PATIENCE, told).await;
        }
    }
}

/// Until the sender is dropped.
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
        Err(error) => tracing::warn!(%error, "cannot tell others of the program that runs on"),
    }
}
