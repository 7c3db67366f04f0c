//! How rows of an outbox reach the queue: over HTTP, or directly if this broker leads.

use std::iter::Peekable;

use tenure::core::JobId;
use tenure::core::queue::{Completion, Payload, Submission, SubmitStatus, Submitted};
use tenure::outbox::{End, Rejected, Submit};
use tenure::queue::Queue;
use tenure_client::{Claim, Client, Completed, Ended, Error, NewJob};

/// The most bytes of one call, which is less than a broker accepts by default.
const CALL_BYTES_MAX: usize = 512 * 1024;

/// Delivers to another broker.
pub(crate) struct OverHttp(pub(crate) Client);

impl Submit for OverHttp {
    async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Rejected> {
        let mut portions = Portions::new(jobs);
        while let Some(call) = portions.next_call() {
            portions.answers.extend(self.send(call).await?);
        }
        Ok(portions.answers)
    }

    async fn complete(&self, claims: Vec<Completion>) -> Result<Vec<End>, Rejected> {
        let mut ends = Vec::with_capacity(claims.len());
        let mut claims = claims.into_iter().peekable();
        while let Some(first) = claims.next() {
            let mut bytes = size_of_end(&first);
            let mut call = vec![first];
            while let Some(claim) = claims.next_if(|it| bytes + size_of_end(it) <= CALL_BYTES_MAX) {
                bytes += size_of_end(&claim);
                call.push(claim);
            }
            ends.extend(self.end(call).await?);
        }
        Ok(ends)
    }
}

impl OverHttp {
    async fn send(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Rejected> {
        let jobs = jobs.into_iter().map(NewJob::from);
        let submitted = self.0.submit_all(jobs).await;
        submitted.map_err(|error| rejected(&error))
    }

    async fn end(&self, claims: Vec<Completion>) -> Result<Vec<End>, Rejected> {
        let completed = |Completion { id, token, result }: Completion| Completed {
            // Only to recognise an end that a broker of an older version was told twice, and calls lost: that costs nothing here.
            claim: Claim {
                id,
                token,
                attempt: 0,
            },
            result,
        };
        let claims = claims.into_iter().map(completed).collect();
        let ends = self.0.complete_all(claims).await;
        let ends = ends.map_err(|error| rejected(&error))?;
        Ok(ends.into_iter().map(end).collect())
    }
}

fn end(ended: Ended) -> End {
    match ended {
        Ended::Done | Ended::Cancelled => End::Completed,
        Ended::Lost(reason) => {
            let reason = reason.map(|reason| reason.to_string());
            End::Lost {
                reason: reason.unwrap_or_else(|| "no reason was given".to_owned()),
            }
        }
        Ended::Refused(problem) => End::Refused {
            error: problem.to_string(),
        },
        other => End::Refused {
            error: format!("this version does not know the answer {other:?}"),
        },
    }
}

fn rejected(error: &Error) -> Rejected {
    let text = error.to_string();
    match error {
        Error::Invalid(_) => Rejected::Together { error: text },
        Error::Full(_) => Rejected::ForNow { error: text },
        _ => Rejected::Unavailable { error: text },
    }
}

/// Delivers to this broker's own queue while it leads, and otherwise over HTTP to the leader.
pub(crate) struct ToLeader {
    pub(crate) queue: Queue,
    pub(crate) http: OverHttp,
}

impl Submit for ToLeader {
    async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Rejected> {
        if self.queue.is_serving() {
            Submit::submit(&self.queue, jobs).await
        } else {
            self.http.submit(jobs).await
        }
    }

    async fn complete(&self, claims: Vec<Completion>) -> Result<Vec<End>, Rejected> {
        if self.queue.is_serving() {
            Submit::complete(&self.queue, claims).await
        } else {
            self.http.complete(claims).await
        }
    }
}

/// Splits jobs into calls that a broker accepts, made one after the other to keep the order. Jobs sent before a
/// failure are recognised the next time.
///
/// After a refusal for lack of room nothing more is sent: if there were room again, a later job would overtake one of
/// its group.
struct Portions {
    jobs: Peekable<std::vec::IntoIter<Submission>>,
    answers: Vec<Submitted>,
}

impl Portions {
    fn new(jobs: Vec<Submission>) -> Self {
        Self {
            answers: Vec::with_capacity(jobs.len()),
            jobs: jobs.into_iter().peekable(),
        }
    }

    /// The next call, if there is one. Its answers are appended to the earlier ones.
    fn next_call(&mut self) -> Option<Vec<Submission>> {
        if self
            .answers
            .iter()
            .any(|it| it.status == SubmitStatus::Full)
        {
            let rest = self.jobs.by_ref().filter_map(|job| job.id);
            self.answers.extend(rest.map(without_room));
        }
        let first = self.jobs.next()?;
        let mut bytes = size(&first);
        let mut call = vec![first];
        while let Some(job) = self.jobs.next_if(|job| bytes + size(job) <= CALL_BYTES_MAX) {
            bytes += size(&job);
            call.push(job);
        }
        Some(call)
    }
}

/// About how many bytes a job takes in a call.
fn size(job: &Submission) -> usize {
    job.payload.bytes() + 1_000
}

/// About how many bytes the end of a claim takes in a call.
fn size_of_end(claim: &Completion) -> usize {
    claim.result.as_ref().map_or(0, Payload::bytes) + 500
}

/// The answer for a row's job that was not sent. Every such job has an id: the row's.
fn without_room(id: JobId) -> Submitted {
    Submitted {
        id,
        status: SubmitStatus::Full,
        existing: None,
    }
}

#[cfg(test)]
mod tests {
    use tenure::core::JobType;
    use tenure::core::queue::Payload;

    use super::*;

    /// A job that takes more than half a call.
    fn large(id: &str) -> Submission {
        let mut job = Submission::new(JobType::new("work").unwrap());
        job.id = Some(JobId::new(id).unwrap());
        job.payload = Payload::new(format!("\"{}\"", "x".repeat(300_000))).unwrap();
        job
    }

    #[test]
    fn nothing_is_sent_behind_a_call_that_found_no_room() {
        let mut portions = Portions::new(["a", "b", "c", "d"].map(large).to_vec());
        let mut sent = Vec::new();
        while let Some(call) = portions.next_call() {
            for job in call {
                let id = job.id.unwrap();
                sent.push(id.clone());
                let mut answer = without_room(id);
                if answer.id.as_str() != "b" {
                    answer.status = SubmitStatus::Created;
                }
                portions.answers.push(answer);
            }
        }
        let answers: Vec<SubmitStatus> = portions.answers.iter().map(|it| it.status).collect();
        let full = SubmitStatus::Full;
        assert_eq!(answers, [SubmitStatus::Created, full, full, full]);
        assert_eq!(sent.len(), 2, "c would have overtaken b");
    }
}
