//! The queue as one would explain it: a list of jobs, searched from end to end for every question.
//!
//! No index, no handle, no class: whether a job may be claimed is worked out from the whole list each
//! time. It shares with the machine the words (commands, events, views) and the back-off, which has tests
//! of its own, and nothing else.

use std::collections::BTreeMap;

use tenure_api::{ATTEMPTS_DEFAULT, EndedAs, SubmitStatus, Submitted};

use crate::queue::claim::nonce;
use crate::queue::retry::wait_ms;

use crate::queue::*;
use crate::{JobId, JobType, QueueName, ScheduleName};

mod due;

#[derive(Default)]
pub(super) struct Model {
    pub(super) now: u64,
    sequence: u64,
    claims: u64,
    finishes: u64,
    revision: u64,
    settings: Settings,
    pub(super) jobs: Vec<ModelJob>,
    queues: BTreeMap<QueueName, ModelQueue>,
    pub(super) schedules: BTreeMap<ScheduleName, Schedule>,
    /// What is left of jobs that were forgotten early, in the order in which they were.
    pub(super) remnants: Vec<ModelJob>,
}

pub(super) struct ModelJob {
    pub(super) submission: Submission,
    pub(super) view: Job,
    token: Option<Token>,
    /// Of its claim, while it runs.
    key: Option<ClaimKey>,
    is_repeated: bool,
    finish: u64,
    /// The last claim that a worker has ended, and what it was told.
    last_end: Option<(Token, End)>,
    /// What its submitter has named as its time, until an attempt has failed or somebody wants it tried again.
    given: Option<u64>,
}

#[derive(Clone)]
enum End {
    Completed,
    /// With what was said.
    Failed(Failed, Failure),
    Released(Released),
}

impl End {
    /// To those who say that it ended otherwise.
    fn other(&self) -> Lost {
        let how = match self {
            End::Completed => EndedAs::Completed,
            End::Failed(Failed::Again { .. }, _) => EndedAs::Failed,
            End::Failed(Failed::Died, _) => EndedAs::Dead,
            End::Failed(Failed::Cancelled, _) | End::Released(Released::Cancelled) => {
                EndedAs::Cancelled
            }
            End::Released(Released::Ready) => EndedAs::Released,
        };
        Lost::Ended { how }
    }
}

#[derive(Default)]
struct ModelQueue {
    options: QueueOptions,
    paused: bool,
    /// What is left in the bucket, in claims times the period, and since when.
    level: Option<(u64, u64)>,
}

impl Model {
    pub(super) fn apply(&mut self, command: Command) -> (Answer, Vec<Event>) {
        self.now = self.now.max(command.at);
        let mut events = Vec::new();
        if let Action::SetTime(to) = command.action {
            self.set_time(to, &mut events);
            return (Answer::Done, events);
        }
        while let Some(due) = self.first_due() {
            self.step(&mut events, |model, _| {
                model.jobs[due].enter(State::Ready, model.now);
            });
        }
        let answer = self.act(command.action, &mut events);
        self.forget();
        (answer, events)
    }

    fn set_time(&mut self, to: u64, events: &mut Vec<Event>) {
        events.push(Event::TimeSet { from: self.now, to });
        let is_back = to < self.now;
        self.now = to;
        if !is_back {
            return;
        }
        self.set_jobs_back(to, events);
        for left in &mut self.remnants {
            left.view.changed_at = left.view.changed_at.min(to);
        }
        for queue in self.queues.values_mut() {
            queue.level = None;
        }
    }

    fn set_jobs_back(&mut self, to: u64, events: &mut Vec<Event>) {
        for place in 0..self.jobs.len() {
            self.step(events, |model, _| model.jobs[place].set_back(to));
        }
    }

    fn first_due(&self) -> Option<usize> {
        let due =
            |job: &ModelJob| job.view.state == State::Scheduled && job.view.run_at <= self.now;
        (0..self.jobs.len())
            .filter(|&place| due(&self.jobs[place]))
            .min_by_key(|&place| self.jobs[place].view.run_at)
    }

    fn act(&mut self, action: Action, events: &mut Vec<Event>) -> Answer {
        match action {
            Action::Submit(jobs) => {
                return Answer::Submitted(self.each(jobs, events, Self::submit));
            }
            Action::Claim(request) => return Answer::Claimed(self.claim(&request, events)),
            Action::Complete(claims) => {
                return Answer::Completed(self.each(claims, events, Self::complete));
            }
            Action::Fail(claims) => return Answer::Failed(self.each(claims, events, Self::fail)),
            Action::Expire(claims) => {
                let expire = |model: &mut Self, claim: Claim, events: &mut Vec<Event>| {
                    let failure = Failure {
                        id: claim.id,
                        token: claim.token,
                        error: Some("the lease ran out".into()),
                        retry_in_ms: None,
                        permanent: false,
                    };
                    let id = failure.id.clone();
                    let outcome = model.try_fail(failure, events);
                    Item { id, outcome }
                };
                return Answer::Failed(self.each(claims, events, expire));
            }
            Action::Release(claims) => {
                return Answer::Released(self.each(claims, events, Self::release));
            }
            Action::Abandon(claims) => {
                self.each(claims, events, |model, claim, events| {
                    let holder = model.holder(&claim.id, claim.token);
                    if holder.is_ok_and(|job| !job.is_repeated) {
                        model.try_release(claim, events).unwrap();
                    }
                });
                return Answer::Done;
            }
            Action::Cancel(ids) => return Answer::Cancelled(self.each(ids, events, Self::cancel)),
            Action::Retry(ids) => return Answer::Retried(self.each(ids, events, Self::retry)),
            Action::Move(ids, to) => {
                let moved = ids.into_iter().map(|id| self.move_job(id, &to, events));
                return Answer::Moved(moved.collect());
            }
            Action::Forget(ids) => {
                return Answer::Forgotten(self.each(ids, events, Self::forget_by_hand));
            }
            Action::SetQueue(queue, options) => {
                let entry = self.queues.entry(queue.clone()).or_default();
                if entry.options.rate != options.rate {
                    entry.level = None;
                }
                entry.options = options;
                events.push(Event::QueueSet { queue });
            }
            Action::Pause(queue) => {
                self.queues.entry(queue.clone()).or_default().paused = true;
                events.push(Event::Paused { queue });
            }
            Action::Resume(queue) => {
                self.queues.entry(queue.clone()).or_default().paused = false;
                events.push(Event::Resumed { queue });
            }
            Action::SetSchedule(name, spec, next) => {
                let next = self.set_schedule(name, *spec, next, events);
                return Answer::ScheduleSet(next);
            }
            Action::DeleteSchedule(schedule) => {
                let existed = self.schedules.remove(&schedule).is_some();
                if existed {
                    events.push(Event::ScheduleDeleted { schedule });
                }
                return Answer::ScheduleDeleted(existed);
            }
            Action::PauseSchedule(schedule) => {
                return Answer::SchedulePaused(self.pause_schedule(schedule, events));
            }
            Action::ResumeSchedule(resumption) => {
                return Answer::ScheduleResumed(self.resume_schedule(resumption, events));
            }
            Action::Fire(firings) => {
                for firing in firings {
                    self.fire(firing, events);
                }
            }
            Action::Configure(settings) => {
                self.settings = settings;
                events.push(Event::Configured);
            }
            Action::SetTime(to) => self.set_time(to, events),
            Action::Tick => {}
        }
        Answer::Done
    }

    fn each<T, A>(
        &mut self,
        items: Vec<T>,
        events: &mut Vec<Event>,
        act: fn(&mut Self, T, &mut Vec<Event>) -> A,
    ) -> Vec<A> {
        let mut answers = Vec::new();
        for item in items {
            answers.push(self.step(events, |model, events| act(model, item, events)));
        }
        answers
    }

    /// One change, and the jobs that may be claimed because of it and could not before.
    fn step<A>(
        &mut self,
        events: &mut Vec<Event>,
        change: impl FnOnce(&mut Self, &mut Vec<Event>) -> A,
    ) -> A {
        let before: Vec<JobId> = self.claimable().map(|job| job.view.id.clone()).collect();
        let new = self.sequence + 1;
        let answer = change(self, events);
        for job in self.claimable() {
            let submitted_now = job.view.sequence == new && job.submission.group.is_none();
            if !before.contains(&job.view.id) && !submitted_now {
                events.push(Event::Ready {
                    id: job.view.id.clone(),
                    queue: job.view.queue.clone(),
                    job_type: job.view.job_type.clone(),
                });
            }
        }
        answer
    }

    fn claimable(&self) -> impl Iterator<Item = &ModelJob> {
        self.jobs
            .iter()
            .filter(|job| job.view.state == State::Ready && !self.is_blocked(job))
    }

    /// Whether another job of its group runs, or comes first.
    fn is_blocked(&self, job: &ModelJob) -> bool {
        job.submission.group.is_some()
            && self.jobs.iter().any(|other| {
                let same = other.submission.group == job.submission.group
                    && other.view.queue == job.view.queue
                    && other.view.sequence != job.view.sequence;
                let earlier = other.view.sequence < job.view.sequence;
                same && (other.view.state == State::Running
                    || earlier && !other.view.state.is_finished())
            })
    }

    fn find(&mut self, id: &JobId) -> Option<&mut ModelJob> {
        self.jobs.iter_mut().find(|job| job.view.id == *id)
    }

    fn holder_of_key(&self, queue: &QueueName, key: Option<&Key>) -> Option<JobId> {
        let holds = |job: &&ModelJob| {
            !job.view.state.is_finished()
                && job.view.queue == *queue
                && job.view.unique_key.as_ref() == key
        };
        key?;
        self.jobs.iter().find(holds).map(|job| job.view.id.clone())
    }

    fn submit(&mut self, submission: Submission, events: &mut Vec<Event>) -> Submitted {
        let sequence = self.sequence + 1;
        let made = || JobId::new(format!("job:{sequence}")).unwrap();
        let id = submission.id.clone().unwrap_or_else(made);
        // None of it is part of what tells two of them apart.
        let (traceparent, tracestate) = (submission.traceparent, submission.tracestate);
        let submission = Submission {
            id: None,
            traceparent: None,
            tracestate: None,
            ..submission
        };
        let left = self.remnants.iter().find(|left| left.view.id == id);
        let known = self.jobs.iter().find(|job| job.view.id == id).or(left);
        let answer = |id, status, existing| Submitted {
            id,
            status,
            existing,
        };
        if let Some(existing) = known {
            let status = if existing.submission == submission {
                SubmitStatus::Duplicate
            } else {
                SubmitStatus::Conflict
            };
            return answer(id, status, None);
        }
        if let Some(existing) =
            self.holder_of_key(&submission.queue, submission.unique_key.as_ref())
        {
            return answer(id, SubmitStatus::Duplicate, Some(existing));
        }
        if self.is_full() {
            return answer(id, SubmitStatus::Full, None);
        }
        self.sequence = sequence;
        let mut view = self.new_view(id.clone(), &submission);
        (view.traceparent, view.tracestate) = (traceparent, tracestate);
        let (queue, state, given) = (view.queue.clone(), view.state, submission.run_at);
        events.push(Event::Submitted {
            id: id.clone(),
            queue,
            sequence,
            state,
        });
        self.jobs.push(ModelJob {
            submission,
            view,
            token: None,
            key: None,
            is_repeated: false,
            finish: 0,
            last_end: None,
            given,
        });
        answer(id, SubmitStatus::Created, None)
    }

    fn new_view(&self, id: JobId, submission: &Submission) -> Job {
        let delayed = submission.delay_ms.map(|delay| self.now + delay);
        let run_at = submission.run_at.or(delayed).unwrap_or(self.now);
        let waits = run_at > self.now;
        Job {
            sequence: self.sequence,
            id,
            queue: submission.queue.clone(),
            job_type: submission.job_type.clone(),
            payload: submission.payload.clone(),
            state: if waits {
                State::Scheduled
            } else {
                State::Ready
            },
            blocked: false,
            priority: submission.priority,
            attempt: 0,
            max_attempts: submission.max_attempts.unwrap_or(ATTEMPTS_DEFAULT).max(1),
            created_at: self.now,
            run_at,
            changed_at: self.now,
            unique_key: submission.unique_key.clone(),
            group: submission.group.clone(),
            backoff: submission.backoff,
            traceparent: None,
            tracestate: None,
            error: None,
            result: None,
            worker: None,
            lease_ms: None,
            cancel_requested: false,
            progress: None,
            remnant: false,
        }
    }

    fn claim(&mut self, claim: &LoggedClaim, events: &mut Vec<Event>) -> Vec<Claimed> {
        let request = &claim.request;
        if claim.key.is_some() {
            let again = self.asked_again(claim);
            if !again.is_empty() {
                return again;
            }
        }
        let mut payloads = Vec::new();
        let mut jobs = Vec::new();
        for _ in 0..request.max {
            let Some(place) = self.next_claim(&request.queues, &request.types) else {
                break;
            };
            // Four mebibytes, or one job.
            payloads.push(self.jobs[place].view.payload.as_str().len());
            if payloads.len() > 1 && payloads.iter().sum::<usize>() > 4 << 20 {
                break;
            }
            self.claims += 1;
            let token = Token {
                number: self.claims,
                nonce: nonce(claim.nonce, self.claims),
            };
            self.take_from_bucket(place);
            let job = &mut self.jobs[place];
            job.enter(State::Running, self.now);
            job.token = Some(token);
            (job.key, job.is_repeated) = (claim.key, false);
            job.view.attempt += 1;
            job.view.worker = Some(request.worker.clone());
            job.view.lease_ms = Some(request.lease_ms);
            let view = job.view.clone();
            events.push(Event::Claimed {
                id: view.id.clone(),
                token,
                queue: view.queue.clone(),
                job_type: view.job_type.clone(),
                attempt: view.attempt,
                lease_ms: request.lease_ms,
            });
            jobs.push(Claimed {
                id: view.id,
                token,
                queue: view.queue,
                job_type: view.job_type,
                payload: view.payload,
                attempt: view.attempt,
                max_attempts: view.max_attempts,
                priority: view.priority,
                group: view.group,
                created_at: view.created_at,
                lease_ms: request.lease_ms,
                traceparent: view.traceparent,
                tracestate: view.tracestate,
            });
        }
        jobs
    }

    /// What the same worker holds by the same claim.
    fn asked_again(&mut self, claim: &LoggedClaim) -> Vec<Claimed> {
        let held = self.jobs.iter_mut().filter(|job| {
            job.view.state == State::Running
                && job.key == claim.key
                && job.view.worker.as_ref() == Some(&claim.request.worker)
        });
        let mut held: Vec<_> = held.collect();
        held.sort_by_key(|job| job.token.unwrap().number);
        let again = held.into_iter().map(|job| {
            job.is_repeated = true;
            let view = job.view.clone();
            Claimed {
                id: view.id,
                token: job.token.unwrap(),
                queue: view.queue,
                job_type: view.job_type,
                payload: view.payload,
                attempt: view.attempt,
                max_attempts: view.max_attempts,
                priority: view.priority,
                group: view.group,
                created_at: view.created_at,
                lease_ms: view.lease_ms.unwrap(),
                traceparent: view.traceparent,
                tracestate: view.tracestate,
            }
        });
        again.collect()
    }

    pub(super) fn next_claim(&self, queues: &[QueueName], types: &[JobType]) -> Option<usize> {
        (0..self.jobs.len())
            .filter(|&place| {
                let job = &self.jobs[place];
                job.view.state == State::Ready
                    && !self.is_blocked(job)
                    && (queues.is_empty() || queues.contains(&job.view.queue))
                    && (types.is_empty() || types.contains(&job.view.job_type))
                    && self.is_open(&job.view.queue)
            })
            .min_by_key(|&place| {
                let view = &self.jobs[place].view;
                (-i32::from(view.priority), view.sequence)
            })
    }

    fn holder(&mut self, id: &JobId, token: Token) -> Result<&mut ModelJob, Lost> {
        let left = self.remnant_state(id);
        let job = self.find(id).ok_or(match left {
            Some(state) => Lost::NotRunning { state },
            None => Lost::NotFound,
        })?;
        match job.token {
            Some(current) if current == token => Ok(job),
            Some(_) => Err(Lost::Superseded {
                attempt: job.view.attempt,
            }),
            None => Err(Lost::NotRunning {
                state: job.view.state,
            }),
        }
    }

    fn complete(&mut self, claim: Completion, events: &mut Vec<Event>) -> Ended<()> {
        let Completion { id, token, result } = claim;
        let before = self.ended_before(&id, token);
        let outcome = match self.holder(&id, token) {
            Err(lost) => match before {
                Some((End::Completed, view)) if is_same(view.result.as_ref(), result.as_ref()) => {
                    Ok(())
                }
                Some((end, _)) => Err(end.other()),
                None => Err(lost),
            },
            Ok(job) => {
                if result.is_some() {
                    job.view.result = result;
                }
                job.last_end = Some((token, End::Completed));
                let (id, queue) = (id.clone(), job.view.queue.clone());
                self.finish(&id, State::Completed);
                events.push(Event::Completed { id, token, queue });
                Ok(())
            }
        };
        Item { id, outcome }
    }

    fn fail(&mut self, failure: Failure, events: &mut Vec<Event>) -> Ended<Failed> {
        let (id, token) = (failure.id.clone(), failure.token);
        let before = self.ended_before(&id, token);
        let outcome = match (self.try_fail(failure.clone(), events), before) {
            (Ok(failed), _) => {
                self.find(&id).unwrap().last_end = Some((token, End::Failed(failed, failure)));
                Ok(failed)
            }
            (Err(_), Some((End::Failed(failed, said), view))) if said == failure => {
                let run_at = view.run_at;
                Ok(match failed {
                    Failed::Again { .. } => Failed::Again { run_at },
                    other => other,
                })
            }
            (Err(_), Some((end, _))) => Err(end.other()),
            (lost, None) => lost,
        };
        Item { id, outcome }
    }

    /// How the last claim was ended that a worker has ended, if it is this one, and the job as it is shown.
    fn ended_before(&self, id: &JobId, token: Token) -> Option<(End, Job)> {
        let is_it = |job: &&ModelJob| job.view.id == *id;
        let left = self.remnants.iter().find(is_it).map(|left| {
            let run_at = left.view.changed_at;
            let view = Job {
                run_at,
                ..left.view.clone()
            };
            (left.last_end.clone(), view)
        });
        let job = self.jobs.iter().find(is_it);
        let job = job.map(|job| (job.last_end.clone(), job.view.clone()));
        let (last_end, view) = job.or(left)?;
        let (ended, end) = last_end?;
        (ended == token).then_some((end, view))
    }

    fn try_fail(&mut self, failure: Failure, events: &mut Vec<Event>) -> Result<Failed, Lost> {
        let Failure {
            id,
            token,
            error,
            retry_in_ms,
            permanent,
        } = failure;
        let now = self.now;
        let job = self.holder(&id, token)?;
        job.view.error = error;
        let queue = job.view.queue.clone();
        let attempt = job.view.attempt;
        if job.view.cancel_requested {
            self.finish(&id, State::Cancelled);
            let token = Some(token);
            events.push(Event::Cancelled { id, token, queue });
            return Ok(Failed::Cancelled);
        }
        if permanent || attempt >= job.view.max_attempts {
            self.finish(&id, State::Dead);
            events.push(Event::Died {
                id,
                token,
                queue,
                attempt,
            });
            return Ok(Failed::Died);
        }
        let backoff = job.view.backoff.unwrap_or_default();
        let wait = retry_in_ms.unwrap_or_else(|| wait_ms(backoff, id.as_str(), attempt));
        let run_at = now + wait;
        job.view.run_at = run_at;
        job.given = None;
        let state = if wait > 0 {
            State::Scheduled
        } else {
            State::Ready
        };
        job.enter(state, now);
        events.push(Event::Failed {
            id,
            token,
            queue,
            attempt,
            run_at,
        });
        Ok(Failed::Again { run_at })
    }

    fn release(&mut self, claim: Claim, events: &mut Vec<Event>) -> Ended<Released> {
        let (id, token) = (claim.id.clone(), claim.token);
        let before = self.ended_before(&id, token);
        let outcome = match (self.try_release(claim, events), before) {
            (Ok(released), _) => {
                self.find(&id).unwrap().last_end = Some((token, End::Released(released)));
                Ok(released)
            }
            (Err(_), Some((End::Released(released), _))) => Ok(released),
            (Err(_), Some((end, _))) => Err(end.other()),
            (lost, None) => lost,
        };
        Item { id, outcome }
    }

    fn try_release(&mut self, claim: Claim, events: &mut Vec<Event>) -> Result<Released, Lost> {
        let Claim { id, token } = claim;
        let now = self.now;
        let job = self.holder(&id, token)?;
        let queue = job.view.queue.clone();
        if job.view.cancel_requested {
            self.finish(&id, State::Cancelled);
            let token = Some(token);
            events.push(Event::Cancelled { id, token, queue });
            return Ok(Released::Cancelled);
        }
        job.view.attempt -= 1;
        job.enter(State::Ready, now);
        if job.given.is_some_and(|given| given > now) {
            job.enter(State::Scheduled, now);
        }
        events.push(Event::Released { id, token, queue });
        Ok(Released::Ready)
    }

    fn cancel(&mut self, id: JobId, events: &mut Vec<Event>) -> Changed<Cancelled> {
        let outcome = self.try_cancel(&id, events);
        Item { id, outcome }
    }

    fn try_cancel(&mut self, id: &JobId, events: &mut Vec<Event>) -> Result<Cancelled, Refusal> {
        if let Some(state) = self.remnant_state(id) {
            return Err(Refusal::State { state });
        }
        let job = self.find(id).ok_or(Refusal::NotFound)?;
        let state = job.view.state;
        let queue = job.view.queue.clone();
        let id = id.clone();
        match state {
            State::Running => {
                job.view.cancel_requested = true;
                events.push(Event::CancelRequested { id });
                Ok(Cancelled::Requested)
            }
            State::Scheduled | State::Ready => {
                self.finish(&id, State::Cancelled);
                let token = None;
                events.push(Event::Cancelled { id, token, queue });
                Ok(Cancelled::Done)
            }
            _ => Err(Refusal::State { state }),
        }
    }

    fn retry(&mut self, id: JobId, events: &mut Vec<Event>) -> Changed<()> {
        let outcome = self.try_retry(&id, events);
        Item { id, outcome }
    }

    fn try_retry(&mut self, id: &JobId, events: &mut Vec<Event>) -> Result<(), Refusal> {
        let now = self.now;
        let job = self.find(id).ok_or(Refusal::NotFound)?;
        let (state, queue, key) = (
            job.view.state,
            job.view.queue.clone(),
            job.view.unique_key.clone(),
        );
        if matches!(state, State::Dead | State::Cancelled)
            && let Some(existing) = self.holder_of_key(&queue, key.as_ref())
        {
            return Err(Refusal::UniqueKey { existing });
        }
        if !matches!(state, State::Dead | State::Cancelled | State::Scheduled) {
            return Err(Refusal::State { state });
        }
        let job = self.find(id).unwrap();
        if state != State::Scheduled {
            job.view.attempt = 0;
        }
        job.view.run_at = now;
        job.given = None;
        job.enter(State::Ready, now);
        let id = id.clone();
        events.push(Event::Retried { id, queue });
        Ok(())
    }

    fn move_job(&mut self, id: JobId, to: &QueueName, events: &mut Vec<Event>) -> Changed<()> {
        let outcome = self.try_move(&id, to, events);
        Item { id, outcome }
    }

    fn try_move(
        &mut self,
        id: &JobId,
        to: &QueueName,
        events: &mut Vec<Event>,
    ) -> Result<(), Refusal> {
        let view = self.find(id).ok_or(Refusal::NotFound)?.view.clone();
        let state = view.state;
        if matches!(state, State::Running | State::Completed) {
            return Err(Refusal::State { state });
        }
        if view.queue == *to {
            return Ok(());
        }
        if !state.is_finished()
            && let Some(existing) = self.holder_of_key(to, view.unique_key.as_ref())
        {
            return Err(Refusal::UniqueKey { existing });
        }
        // First it is gone from the one queue, which may let another of its group be next, then it is in the other.
        let place = self.jobs.iter().position(|job| job.view.id == *id).unwrap();
        let (id, from, to) = (id.clone(), view.queue, to.clone());
        events.push(Event::Moved {
            id,
            from,
            to: to.clone(),
        });
        let mut job = self.step(events, |model, _| model.jobs.remove(place));
        job.view.queue = to;
        self.step(events, |model, _| model.jobs.insert(place, job));
        Ok(())
    }

    fn forget_by_hand(&mut self, id: JobId, events: &mut Vec<Event>) -> Changed<()> {
        let outcome = match self.find(&id).map(|job| job.view.state) {
            _ if self.remnant_state(&id).is_some() => {
                let outcome = Ok(());
                return Item { id, outcome };
            }
            None => Err(Refusal::NotFound),
            Some(state) if state.is_finished() => Ok(()),
            Some(state) => Err(Refusal::State { state }),
        };
        if outcome.is_ok() {
            let place = self.jobs.iter().position(|job| job.view.id == id);
            let job = self.jobs.remove(place.unwrap());
            if self.now - job.view.changed_at < self.settings.ids.age_ms {
                self.remnants.push(job);
            }
            events.push(Event::Forgotten { id: id.clone() });
        }
        Item { id, outcome }
    }

    fn finish(&mut self, id: &JobId, state: State) {
        self.finishes += 1;
        let (finish, now) = (self.finishes, self.now);
        let job = self.find(id).unwrap();
        job.enter(state, now);
        job.finish = finish;
    }
}

fn is_same(one: Option<&Payload>, other: Option<&Payload>) -> bool {
    let value = |text: &Payload| text.read::<serde_json::Value>().unwrap();
    one.map(value) == other.map(value)
}

impl ModelJob {
    /// Time goes back.
    fn set_back(&mut self, to: u64) {
        let view = &mut self.view;
        match (view.state, self.given) {
            (State::Ready, Some(given)) if given > to => view.state = State::Scheduled,
            (_, Some(_)) => {}
            (State::Scheduled, None) if view.changed_at > to => {
                view.run_at = to + (view.run_at - view.changed_at);
            }
            (State::Scheduled, None) => {}
            (_, None) => view.run_at = view.run_at.min(to),
        }
        view.created_at = view.created_at.min(to);
        view.changed_at = view.changed_at.min(to);
    }

    fn enter(&mut self, state: State, now: u64) {
        self.view.state = state;
        self.view.changed_at = now;
        self.view.worker = None;
        self.view.lease_ms = None;
        self.view.cancel_requested = false;
        self.token = None;
        self.finish = 0;
    }
}
