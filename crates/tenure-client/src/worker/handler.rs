//! Handlers of any payload as one type, and what is made of how they end.

use std::any::Any;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_api::Payload;

use super::failure::Failure;
use super::job::{CancelReason, Job};
use crate::claims::{Claim, Completed, Failed};

/// What a handler of any payload comes to.
pub(crate) type Returned = Result<Option<Payload>, Failure>;

/// A handler whose payload is text.
pub(crate) type Handler = Box<dyn Fn(Job<Payload>) -> BoxFuture<'static, Returned> + Send + Sync>;

/// Reads the payload before, and writes the result after.
pub(crate) fn erase<T, R, E, F, Fut>(handler: F) -> Handler
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize,
    E: Into<Failure>,
    F: Fn(Job<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
{
    Box::new(move |job| {
        let payload = match job.payload.read::<T>() {
            Ok(payload) => payload,
            Err(error) => {
                let failure = Failure::permanent(format!(
                    "this worker's handler cannot read the payload: {error}"
                ));
                return Box::pin(async { Err(failure) });
            }
        };
        let id = job.id.clone();
        let work = handler(job.with(payload).0);
        Box::pin(async move {
            let result = work.await.map_err(Into::into)?;
            // The work was done, and must not be done again for the sake of what it returned.
            let written = Payload::of(&result).inspect_err(|error| {
                tracing::warn!(
                    job = %id, %error,
                    "a job was completed without its result, which cannot be written as JSON"
                );
            });
            Ok(written.ok().filter(|result| !result.is_null()))
        })
    })
}

/// How the task of a handler ended.
#[derive(Debug)]
pub(crate) enum End {
    Returned(Returned),
    Panicked(String),
    /// It did not stop in time, and was dropped.
    Dropped,
    /// It was never called: it could not be confirmed in time that the claim still holds, or there was another reason
    /// to stop by then.
    NotBegun,
}

impl End {
    /// Why the handler could not begin here, if that is how it ended.
    pub(crate) fn no_room(&self) -> Option<&str> {
        match self {
            End::Returned(Err(failure)) if failure.hand_back => Some(&failure.message),
            _ => None,
        }
    }

    /// The end of a task that did not return.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        End::Panicked(text.unwrap_or_else(|| "it gave no reason".to_owned()))
    }
}

/// What the broker is told of a claim's end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ending {
    Complete(Completed),
    Fail(Failed),
    /// The worker stops before the handler could finish, has no room for the job, or does not know whether it still is
    /// its job. That is no fault of the job: the
    /// attempt does not count, so a job on its last one outlives any number of deployments.
    Release(Claim),
}

/// What to tell the broker, if anything.
pub(crate) fn ending(claim: Claim, end: End, reason: Option<CancelReason>) -> Option<Ending> {
    if reason == Some(CancelReason::Lost) {
        return None;
    }
    let failure = match end {
        End::NotBegun => return Some(Ending::Release(claim)),
        End::Returned(Ok(result)) => {
            return Some(Ending::Complete(Completed { claim, result }));
        }
        End::Returned(Err(failure)) => failure,
        End::Panicked(text) => Failure::from(format!("the handler panicked: {text}")),
        End::Dropped => Failure::from(match reason {
            Some(CancelReason::Cancelled) => "cancelled: the handler did not stop in time",
            _ => "the handler did not stop in time and was dropped",
        }),
    };
    if failure.hand_back {
        tracing::debug!(id = %claim.id, why = failure.message, "handing the job back");
        return Some(Ending::Release(claim));
    }
    if reason == Some(CancelReason::Stopping) && !failure.permanent {
        let why = &failure.message;
        tracing::info!(id = %claim.id, why, "handing the job back: the worker is stopping");
        return Some(Ending::Release(claim));
    }
    Some(Ending::Fail(Failed {
        claim,
        error: failure.message,
        retry_in: failure.retry_in,
        permanent: failure.permanent,
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_api::JobId;

    use super::*;

    fn claim() -> Claim {
        Claim {
            id: JobId::new("a").unwrap(),
            token: "1-2".parse().unwrap(),
            attempt: 1,
        }
    }

    fn failed(end: End, reason: Option<CancelReason>) -> Failed {
        match ending(claim(), end, reason) {
            Some(Ending::Fail(failed)) => failed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_said_of_a_lost_claim() {
        let done = End::Returned(Ok(None));
        assert_eq!(ending(claim(), done, Some(CancelReason::Lost)), None);
    }

    #[test]
    fn a_job_that_was_never_begun_is_handed_back_unless_it_is_lost() {
        for reason in [CancelReason::Expired, CancelReason::Cancelled] {
            let ending = ending(claim(), End::NotBegun, Some(reason));
            assert_eq!(ending, Some(Ending::Release(claim())));
        }
        assert_eq!(
            ending(claim(), End::NotBegun, Some(CancelReason::Lost)),
            None
        );
    }

    #[test]
    fn success_counts_whatever_was_asked() {
        for reason in [
            None,
            Some(CancelReason::Cancelled),
            Some(CancelReason::Expired),
            Some(CancelReason::Stopping),
        ] {
            let ending = ending(claim(), End::Returned(Ok(None)), reason);
            assert!(matches!(ending, Some(Ending::Complete(_))), "{reason:?}");
        }
    }

    #[test]
    fn what_a_stopping_worker_cuts_short_is_no_failure() {
        for end in [End::Dropped, End::Returned(Err("interrupted".into()))] {
            let ending = ending(claim(), end, Some(CancelReason::Stopping));
            assert_eq!(ending, Some(Ending::Release(claim())));
        }
    }

    #[test]
    fn what_cannot_begin_here_is_handed_back() {
        let failure = || Failure::hand_back("too many open files").retry_in(Duration::ZERO);
        for reason in [
            None,
            Some(CancelReason::Cancelled),
            Some(CancelReason::Stopping),
        ] {
            let end = End::Returned(Err(failure()));
            assert_eq!(end.no_room(), Some("too many open files"));
            assert_eq!(ending(claim(), end, reason), Some(Ending::Release(claim())));
        }
        let end = End::Returned(Err(failure()));
        assert_eq!(ending(claim(), end, Some(CancelReason::Lost)), None);
    }

    #[test]
    fn a_cancelled_job_is_not_handed_back() {
        let failed = failed(End::Dropped, Some(CancelReason::Cancelled));
        assert_eq!(failed.error, "cancelled: the handler did not stop in time");
    }

    #[test]
    fn permanent_failures_stay_permanent_while_stopping() {
        let end = End::Returned(Err(Failure::permanent("no")));
        let failed = failed(end, Some(CancelReason::Stopping));
        assert!(failed.permanent && failed.error == "no");
    }

    #[test]
    fn panics_are_told_in_their_own_words() {
        let end = End::of_panic(&"index out of bounds");
        assert_eq!(
            failed(end, None).error,
            "the handler panicked: index out of bounds"
        );
    }
}
