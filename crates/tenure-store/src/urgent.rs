//! Requests that go first: a session's heartbeat must not wait behind the other requests of its process.

use std::future::Future;

tokio::task_local! {
    static URGENT: ();
}

/// Requests made inside `work` go first on engines with a limited number of connections. One place in the connection
/// pool is reserved for them; where there is only one connection, they wait for its current user and nobody else.
pub async fn urgent<F: Future>(work: F) -> F::Output {
    URGENT.scope((), work).await
}

/// Whether the caller runs inside [`urgent`].
pub(crate) fn is_urgent() -> bool {
    URGENT.try_with(|()| ()).is_ok()
}
