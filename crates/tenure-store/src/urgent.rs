//! Requests that go first: a session's heartbeat must not wait behind whatever else its process asks.

use std::future::Future;

tokio::task_local! {
    static URGENT: ();
}

/// Whatever is asked of a store in here goes first where an engine has only so many connections: one place in its
/// pool is for such requests alone, or, where there is only one, they wait for its present user and nobody else.
pub async fn urgent<F: Future>(work: F) -> F::Output {
    URGENT.scope((), work).await
}

/// Whether this is asked in such a request.
pub(crate) fn is_urgent() -> bool {
    URGENT.try_with(|()| ()).is_ok()
}
