//! Submitting jobs. Those that are submitted at the same time travel in one request (see [`crate::coalesce`]).

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tenure_api::{self as api, SubmitAnswer, SubmitRequest, SubmitStatus, Submitted};

use crate::client::Client;
use crate::coalesce::{Coalescer, Send};
use crate::error::Error;
use crate::new_job::NewJob;
use crate::transport::{Answered, Call, Transport};

/// A job as JSON, on its way with others.
type Line = Bytes;

/// The broker's word on one job, and whether an earlier try may have created it.
type Sent = Result<(Submitted, bool), Error>;

/// Jobs that are submitted at the same time.
#[derive(Clone)]
pub(crate) struct Submits {
    together: Arc<Coalescer<Line, Sent>>,
    send: Send<Line, Sent>,
}

impl Submits {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        let send: Send<Line, Sent> = Arc::new(move |lines| {
            let transport = transport.clone();
            Box::pin(async move { transport.submit_lines(&lines).await })
        });
        Self {
            together: Arc::default(),
            send,
        }
    }
}

impl Client {
    /// Submits one job. When this returns it is durable.
    ///
    /// Calls that are made at the same time, by this client and its clones, share requests: the first goes at once, and
    /// what comes while it is under way goes with the next. Each has its own answer, and a job that is refused costs the
    /// others nothing.
    ///
    /// Sent again as often as it takes: the id makes it one job. If the call fails with [`Error::Unknown`], the job may
    /// be there; to find out, submit it again with an [id of your own](NewJob::id). Dropping the future before it was sent
    /// leaves the job out; later, the job may be there or not.
    ///
    /// A job that is there already, or whose unique key is taken, is no failure: see
    /// [`Submitted::status`].
    pub async fn submit(&self, job: NewJob) -> Result<Submitted, Error> {
        let (job, is_fresh) = job.finish()?;
        let line = serde_json::to_vec(&job).map_err(|error| Error::invalid("body", &error))?;
        let line = Bytes::from(line);
        let Submits { together, send } = &self.submits;
        let sent = match together.call(line.clone(), line.len(), send).await {
            Some(sent) => sent,
            // It was to be sent by a runtime that has ended, and may have been.
            None => {
                let sent = self.transport.submit_one(&line).await;
                sent.map(|(submitted, _)| (submitted, true))
            }
        };
        let (submitted, is_unsure) = sent?;
        let submitted = settled(submitted, is_fresh, is_unsure);
        let (code, detail) = match submitted.status {
            SubmitStatus::Created | SubmitStatus::Duplicate => return Ok(submitted),
            SubmitStatus::Conflict => (
                api::Code::Conflict,
                format!(
                    "there is already a job {} with different content",
                    submitted.id
                ),
            ),
            SubmitStatus::Full => (
                api::Code::Full,
                "the queue has as many jobs as the settings allow".to_owned(),
            ),
        };
        Err(Error::of(api::Problem::new(code, detail), None))
    }

    /// Submits jobs in one call, up to 1,000. Each is accepted or refused on its own; the answers stand in
    /// the order of the jobs. Repeated safely, like [`Client::submit`].
    pub async fn submit_all(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Submitted>, Error> {
        let (jobs, are_fresh): (Vec<_>, Vec<bool>) = jobs
            .into_iter()
            .map(NewJob::finish)
            .collect::<Result<Vec<_>, Error>>()?
            .into_iter()
            .unzip();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let call = Call::post(&["v1", "jobs"], &SubmitRequest::Batch { jobs })?;
        let (submitted, is_unsure) = self.transport.submit(&call, are_fresh.len()).await?;
        let submitted = submitted.into_iter().zip(are_fresh);
        Ok(submitted
            .map(|(job, is_fresh)| settled(job, is_fresh, is_unsure))
            .collect())
    }
}

/// Nobody else knows an id that was made here: a job that is found under it is our own first try.
fn settled(mut job: Submitted, is_fresh: bool, is_unsure: bool) -> Submitted {
    let is_own = is_fresh && is_unsure && job.existing.is_none();
    if is_own && job.status == SubmitStatus::Duplicate {
        job.status = SubmitStatus::Created;
    }
    job
}

impl Transport {
    /// Submits jobs of several callers. A broker refuses a batch as a whole for a field of one job: that one is then sent
    /// alone, to be told why, and the others without it.
    async fn submit_lines(&self, lines: &[Line]) -> Vec<Sent> {
        let mut sent: Vec<Option<Sent>> = lines.iter().map(|_| None).collect();
        let mut portions = vec![(0..lines.len()).collect::<Vec<usize>>()];
        while let Some(portion) = portions.pop() {
            let answer = match portion[..] {
                [] => continue,
                [one] => self.submit_one(&lines[one]).await.map(|one| vec![one]),
                _ => {
                    let call = Call::post_json(&["v1", "jobs"], batch(lines, &portion));
                    let submitted = self.submit(&call, portion.len()).await;
                    submitted.map(|(jobs, is_unsure)| {
                        jobs.into_iter().map(|job| (job, is_unsure)).collect()
                    })
                }
            };
            match answer {
                Ok(jobs) => {
                    for (place, job) in portion.into_iter().zip(jobs) {
                        sent[place] = Some(Ok(job));
                    }
                }
                Err(Error::Invalid(problem)) if portion.len() > 1 => {
                    portions.extend(apart(portion, problem.field.as_deref()));
                }
                Err(error) => {
                    for place in portion {
                        sent[place] = Some(Err(error.clone()));
                    }
                }
            }
        }
        sent.into_iter()
            .map(|sent| sent.expect("each is in one portion"))
            .collect()
    }

    /// Submits one job by itself: a refusal is about this job.
    async fn submit_one(&self, line: &Line) -> Sent {
        let call = Call::post_json(&["v1", "jobs"], line.clone());
        let (mut submitted, is_unsure) = self.submit(&call, 1).await?;
        let one = submitted.pop().expect("there is one, as was checked");
        Ok((one, is_unsure))
    }

    /// The broker's word on so many jobs, and whether an earlier try may have been carried out.
    async fn submit(&self, call: &Call, jobs: usize) -> Result<(Vec<Submitted>, bool), Error> {
        let Answered { result, is_unsure } = self.settle::<SubmitAnswer>(call).await;
        let submitted = result?.jobs;
        if submitted.len() != jobs {
            return Err(self.nonsense("the number of answers does not match the number of jobs"));
        }
        Ok((submitted, is_unsure))
    }
}

/// The body of a request with these jobs.
fn batch(lines: &[Line], portion: &[usize]) -> Bytes {
    const FRAME: usize = r#"{"jobs":[]}"#.len();
    let bytes: usize = portion.iter().map(|&place| lines[place].len() + 1).sum();
    let mut body = BytesMut::with_capacity(bytes + FRAME);
    body.put_slice(br#"{"jobs":["#);
    for (number, &place) in portion.iter().enumerate() {
        if number > 0 {
            body.put_u8(b',');
        }
        body.put_slice(&lines[place]);
    }
    body.put_slice(b"]}");
    body.freeze()
}

/// Sets the job apart that a refusal names, and halves the others, so that many bad jobs do not cost a whole batch each.
fn apart(mut portion: Vec<usize>, field: Option<&str>) -> [Vec<usize>; 3] {
    let named = field
        .and_then(|field| field.strip_prefix("jobs["))
        .and_then(|field| field.split(']').next()?.parse().ok())
        .filter(|&number: &usize| number < portion.len());
    let alone = named.map(|number| vec![portion.remove(number)]);
    let second = portion.split_off(portion.len().div_ceil(2));
    [alone.unwrap_or_default(), portion, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_that_is_named_goes_alone_and_the_others_in_halves() {
        let portion = || (10..15).collect::<Vec<_>>();
        assert_eq!(
            apart(portion(), Some("jobs[1].payload")),
            [vec![11], vec![10, 12], vec![13, 14]]
        );
        for field in [None, Some("jobs"), Some("jobs[7].type"), Some("jobs[x")] {
            let [alone, first, second] = apart(portion(), field);
            assert_eq!(
                (alone.len(), first.len(), second.len()),
                (0, 3, 2),
                "{field:?}"
            );
        }
        // Of two, with none named, each goes alone: no portion is sent again as it was.
        assert_eq!(apart(vec![4, 5], None), [vec![], vec![4], vec![5]]);
    }
}
