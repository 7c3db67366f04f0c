//! The life of one shard in one generation, on the runtime of the application.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tracing::Instrument;

use super::{AnyDaemon, Context, DaemonError};
use crate::requests::Chain;

/// Starts a shard and runs it to its end, which is told to the driver in any case: if the daemon fails or
/// panics, if it is aborted, and if the runtime drops this without ever polling it.
pub(crate) fn live(
    daemon: Arc<dyn AnyDaemon>,
    context: Context,
) -> impl Future<Output = ()> + Send {
    let span = tracing::error_span!(
        "daemon",
        node = %context.node(),
        daemon = %context.daemon(),
        shard = context.shard().index,
        generation = %context.generation()
    );
    let working = context.count_work();
    async move {
        let _working = working;
        let life = AssertUnwindSafe(run(&*daemon, &context));
        let error = match life.catch_unwind().await {
            Ok(Ok(())) if context.is_stopping() => return,
            Ok(Ok(())) => "it ended on its own".to_owned(),
            // What goes wrong while it is being aborted is nobody's failure.
            Ok(Err(_)) if context.has_ended() => return,
            Ok(Err(error)) => Chain(&*error).to_string(),
            Err(panic) => format!("it panicked: {}", words(&*panic)),
        };
        tracing::warn!(error, "a daemon failed");
        context.failed(error);
    }
    .instrument(span)
}

async fn run(daemon: &dyn AnyDaemon, context: &Context) -> Result<(), DaemonError> {
    let starting = daemon.start(context.clone());
    let Some(work) = context.while_trusted(starting).await else {
        return Ok(());
    };
    let mut work = work?;
    context.started();
    let drained = async {
        context.stopping().cancelled().await;
        daemon.drain(context.clone()).await;
    };
    let ended = async {
        tokio::select! {
            biased;
            result = &mut work => result,
            () = drained => Ok(()),
        }
    };
    let result = context.while_trusted(ended).await.unwrap_or(Ok(()));
    // Dropped here, so that a panic in that is caught as well.
    drop(work);
    result
}

/// What a panic says, if it says anything.
fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
