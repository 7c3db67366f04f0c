//! Calls that are made at the same time travel together.
//!
//! The first call goes at once. Whatever is called while it is on its way becomes the next batch, so a lone caller never
//! waits for company, and many callers share requests and commits. There is no timer in it.
//!
//! - **Each caller gets its own answer.** A batch is only a way to travel.
//! - **A caller may go away.** Batches are sent by a task, not by one of the callers; an item whose caller is gone before
//!   it was sent is not sent.
//! - **A slow batch delays nobody for long.** After [`PATIENCE`] the next one goes beside it: while no broker answers,
//!   everybody has its own tries and its own deadline.
//! - **Bounded.** A batch has limits in number and in bytes. What waits is held by callers that wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most items of a batch.
pub(crate) const BATCH_MAX: usize = 1_000;

/// How large they may be together: brokers take a MiB at a time by default. A larger item goes alone.
pub(crate) const BATCH_BYTES_MAX: usize = 512 * 1024;

/// How long a batch keeps the next one waiting.
const PATIENCE: Duration = Duration::from_millis(250);

/// Sends a batch, and has an answer for each of its items, in order.
pub(crate) type Send<I, A> =
    Arc<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<A>> + std::marker::Send + Sync>;

/// Makes batches of what is called at the same time.
pub(crate) struct Coalescer<I, A> {
    state: Mutex<State<I, A>>,
}

struct State<I, A> {
    waiting: VecDeque<Waiting<I, A>>,
    /// A task takes what waits. There is at most one.
    is_taken: bool,
}

struct Waiting<I, A> {
    item: I,
    bytes: usize,
    answer: oneshot::Sender<A>,
}

/// The right to take what waits. Given back even if its task is dropped with its runtime: what waits is then let go of,
/// and its callers, who may live in another runtime, see to it themselves.
struct Turn<I, A> {
    coalescer: Arc<Coalescer<I, A>>,
    /// It ended in order: another task may have the turn by now.
    is_over: bool,
}

impl<I, A> Default for Coalescer<I, A> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                is_taken: false,
            }),
        }
    }
}

impl<I, A> Coalescer<I, A>
where
    I: std::marker::Send + 'static,
    A: std::marker::Send + 'static,
{
    /// Has the item sent with whatever else is called meanwhile, and waits for its answer. None if the runtime that was to
    /// send it has ended: it may have been sent or not.
    pub(crate) async fn call(
        self: &Arc<Self>,
        item: I,
        bytes: usize,
        send: &Send<I, A>,
    ) -> Option<A> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut state = self.lock();
            let waiting = Waiting {
                item,
                bytes,
                answer,
            };
            state.waiting.push_back(waiting);
            !std::mem::replace(&mut state.is_taken, true)
        };
        if is_first {
            let turn = Turn {
                coalescer: self.clone(),
                is_over: false,
            };
            tokio::spawn(turn.take(send.clone()));
        }
        answered.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, State<I, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I, A> Turn<I, A>
where
    I: std::marker::Send + 'static,
    A: std::marker::Send + 'static,
{
    async fn take(mut self, send: Send<I, A>) {
        loop {
            // Callers that are ready to run go along, such as those that the batch before has answered.
            tokio::task::yield_now().await;
            let Some(batch) = self.next() else { return };
            let (items, answers): (Vec<I>, Vec<_>) = batch
                .into_iter()
                .map(|waiting| (waiting.item, waiting.answer))
                .unzip();
            let sent = send(items);
            let mut sent = Box::pin(async move {
                for (answer, given) in answers.into_iter().zip(sent.await) {
                    // A caller that has gone away needs none.
                    let _ = answer.send(given);
                }
            });
            if timeout(PATIENCE, &mut sent).await.is_err() {
                tokio::spawn(sent);
            }
        }
    }

    /// The next batch. With none left the turn ends, under the same lock, so that the next caller takes its own.
    fn next(&mut self) -> Option<Vec<Waiting<I, A>>> {
        let mut state = self.coalescer.lock();
        let batch = state.next();
        if batch.is_empty() {
            state.is_taken = false;
            self.is_over = true;
            return None;
        }
        Some(batch)
    }
}

impl<I, A> State<I, A> {
    fn next(&mut self) -> Vec<Waiting<I, A>> {
        let mut batch: Vec<Waiting<I, A>> = Vec::new();
        let mut bytes = 0;
        while let Some(first) = self.waiting.front() {
            if first.answer.is_closed() {
                self.waiting.pop_front();
                continue;
            }
            bytes += first.bytes;
            let is_full = batch.len() == BATCH_MAX || bytes > BATCH_BYTES_MAX;
            if is_full && !batch.is_empty() {
                break;
            }
            batch.extend(self.waiting.pop_front());
        }
        batch
    }
}

impl<I, A> Drop for Turn<I, A> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let state = self.coalescer.state.lock();
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.is_taken = false;
        state.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(sizes: &[usize]) -> (State<usize, ()>, Vec<oneshot::Receiver<()>>) {
        let mut state = State {
            waiting: VecDeque::new(),
            is_taken: true,
        };
        let mut callers = Vec::new();
        for (item, &bytes) in sizes.iter().enumerate() {
            let (answer, caller) = oneshot::channel();
            callers.push(caller);
            state.waiting.push_back(Waiting {
                item,
                bytes,
                answer,
            });
        }
        (state, callers)
    }

    fn items(batch: Vec<Waiting<usize, ()>>) -> Vec<usize> {
        batch.into_iter().map(|waiting| waiting.item).collect()
    }

    #[test]
    fn batches_are_bounded_in_bytes_and_a_large_item_goes_alone() {
        let half = BATCH_BYTES_MAX / 2;
        let (mut state, _callers) = waiting(&[half, half, 1, 3 * half, half]);
        assert_eq!(items(state.next()), [0, 1]);
        assert_eq!(items(state.next()), [2]);
        assert_eq!(items(state.next()), [3]);
        assert_eq!(items(state.next()), [4]);
        assert!(items(state.next()).is_empty());
    }

    #[test]
    fn batches_are_bounded_in_number() {
        let (mut state, _callers) = waiting(&vec![1; BATCH_MAX + 1]);
        assert_eq!(state.next().len(), BATCH_MAX);
        assert_eq!(items(state.next()), [BATCH_MAX]);
    }

    #[test]
    fn callers_that_are_gone_are_left_out() {
        let (mut state, mut callers) = waiting(&[1, BATCH_BYTES_MAX, 1]);
        callers.remove(1);
        assert_eq!(items(state.next()), [0, 2]);
    }
}
