//! Writes that nobody waits for: an engine for which an announcement is dear leaves it out.

use std::future::Future;

tokio::task_local! {
    static QUIET: ();
}

/// Whatever is written in here need not be announced by hints. PostgreSQL makes those who announce something commit one
/// after the other, each with a flush of its own, where others share one.
pub async fn quietly<F: Future>(work: F) -> F::Output {
    QUIET.scope((), work).await
}

/// Whether this is asked in such a request.
#[cfg(feature = "postgres")]
pub(crate) fn is_quiet() -> bool {
    QUIET.try_with(|()| ()).is_ok()
}
