//! The life of one shard in one generation, on the runtime of the application.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use tracing::Instrument;

use super::state::ShardState;
use super::{AnyDaemon, Context, DaemonError};
use crate::requests::Chain;

/// Starts a shard and runs it to its end, which is told to the driver in any case: if the daemon fails or
/// panics, if it is aborted, and if the runtime drops this without ever polling it.
pub(crate) fn live(
    daemon: Arc<dyn AnyDaemon>,
    state: Arc<ShardState>,
) -> impl Future<Output = ()> + Send {
    let span = tracing::error_span!(
        "daemon",
        daemon = %state.shard.daemon,
        shard = state.shard.index,
        generation = %state.generation
    );
    let working = state.clone().begin();
    async move {
        let _working = working;
        let life = AssertUnwindSafe(run(&*daemon, &state));
        let error = match life.catch_unwind().await {
            Ok(Ok(())) if state.was_told() => return,
            Ok(Ok(())) => "it ended on its own".to_owned(),
            // What goes wrong while it is being aborted is nobody's failure.
            Ok(Err(_)) if state.over.is_cancelled() => return,
            Ok(Err(error)) => Chain(&*error).to_string(),
            Err(panic) => format!("it panicked: {}", words(&*panic)),
        };
        tracing::warn!(error, "a daemon failed");
        state.failed(error);
    }
    .instrument(span)
}

async fn run(daemon: &dyn AnyDaemon, state: &Arc<ShardState>) -> Result<(), DaemonError> {
    let context = Context::new(state.clone());
    let Some(work) = while_trusted(state, daemon.start(context.clone())).await else {
        return Ok(());
    };
    let mut work = work?;
    state.started();
    let drained = async {
        state.drain.cancelled().await;
        daemon.drain(context).await;
    };
    let ended = async {
        tokio::select! {
            biased;
            result = &mut work => result,
            () = drained => Ok(()),
        }
    };
    let result = while_trusted(state, ended).await.unwrap_or(Ok(()));
    // Dropped here, so that a panic in that is caught as well.
    drop(work);
    result
}

/// The outcome; `None` if the shard was aborted, or is no longer trusted, before there was one. Nothing is
/// polled after that, also if the whole process was paused and the thread that would abort it was too.
async fn while_trusted<T>(state: &ShardState, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let trusted = std::future::poll_fn(|context| {
        if state.check().is_err() {
            state.abort();
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    });
    tokio::select! {
        biased;
        () = state.over.cancelled() => None,
        outcome = trusted => outcome,
    }
}

/// What a panic says, if it says anything.
fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
