//! Ends and heartbeats of single claims: those that are told at the same time travel in one request (see
//! [`crate::coalesce`]).
//!
//! Brokers answer each claim of a request on its own, so each caller has its own answer. What fails as a whole fails for all of
//! them, with the same error; a refusal of the whole, which may be about one of them, is found out one by one.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tenure_api::Payload;

use crate::claims::{Claim, Completed, Ended, Failed};
use crate::coalesce::{Coalescer, Send};
use crate::error::Error;
use crate::transport::Transport;

/// About what an item takes in a request beside what it says.
const ITEM_BYTES: usize = 256;

/// Calls about one claim, by kind.
pub(crate) struct Together {
    pub(crate) completions: Calls<Completed>,
    pub(crate) failures: Calls<Failed>,
    pub(crate) heartbeats: Calls<(Claim, Option<Payload>)>,
}

/// Calls of one kind.
pub(crate) struct Calls<I> {
    together: Arc<Coalescer<I, Result<Ended, Error>>>,
    send: Send<I, Result<Ended, Error>>,
    bytes: fn(&I) -> usize,
}

/// Makes one call about many claims.
type All<I> = fn(Arc<Transport>, Vec<I>) -> BoxFuture<'static, Result<Vec<Ended>, Error>>;

impl Together {
    pub(crate) fn new(transport: &Arc<Transport>) -> Self {
        Self {
            completions: Calls::new(
                transport,
                |transport, claims| Box::pin(async move { transport.complete(&claims).await }),
                |completed| completed.result.as_ref().map_or(0, Payload::bytes),
            ),
            failures: Calls::new(
                transport,
                |transport, claims| Box::pin(async move { transport.fail(&claims).await }),
                // Written as JSON, a character may take six.
                |failed| failed.error.len() * 6,
            ),
            heartbeats: Calls::new(
                transport,
                |transport, claims| {
                    Box::pin(async move { transport.heartbeat(&claims, None).await })
                },
                |(_, progress)| progress.as_ref().map_or(0, Payload::bytes),
            ),
        }
    }
}

impl<I: Clone + std::marker::Send + 'static> Calls<I> {
    fn new(transport: &Arc<Transport>, all: All<I>, bytes: fn(&I) -> usize) -> Self {
        let transport = transport.clone();
        let send: Send<I, Result<Ended, Error>> = Arc::new(move |items| {
            let transport = transport.clone();
            Box::pin(each(transport, all, items))
        });
        Self {
            together: Arc::default(),
            send,
            bytes,
        }
    }

    /// Makes a call about one claim, together with others.
    pub(crate) async fn call(&self, item: I) -> Result<Ended, Error> {
        let bytes = (self.bytes)(&item) + ITEM_BYTES;
        match self.together.call(item.clone(), bytes, &self.send).await {
            Some(ended) => ended,
            // It was to be sent by a runtime that has ended, and may have been: to tell it again does no harm.
            None => {
                let mut ended = (self.send)(vec![item]).await;
                ended.pop().expect("there is one answer for each")
            }
        }
    }
}

/// Makes one call, or one for each if it is refused as a whole.
async fn each<I: Clone>(
    transport: Arc<Transport>,
    all: All<I>,
    items: Vec<I>,
) -> Vec<Result<Ended, Error>> {
    let count = items.len();
    match all(transport.clone(), items.clone()).await {
        Ok(ended) => ended.into_iter().map(Ok).collect(),
        Err(Error::Invalid(_)) if count > 1 => {
            let mut each = Vec::with_capacity(count);
            for item in items {
                let ended = all(transport.clone(), vec![item]).await;
                each.push(ended.map(|mut ended| ended.pop().expect("one, as was checked")));
            }
            each
        }
        Err(error) => vec![Err(error); count],
    }
}
