//! Random commands from a seed, from so small a world that names, keys and ids meet all the time. The tests of
//! the log in `tenure` are built from this file too, so it takes what it needs from the including file.

use tenure_random::Random;

use super::*;

pub(super) struct Generator {
    random: Random,
    at: u64,
    /// Every claim ever seen: ended ones are what stale workers come back with.
    claims: Vec<Claim>,
    plans: Vec<Firing>,
    /// The end of a pause that was planned last.
    resumption: Option<Action>,
    /// What clients send again.
    sent: Vec<Submission>,
    /// Some jobs have payloads of which a claim hands out one at a time.
    large: Option<Payload>,
}

pub(super) fn queue_name(number: u64) -> QueueName {
    QueueName::new(format!("q{number}")).unwrap()
}

pub(super) fn job_type(number: u64) -> JobType {
    JobType::new(format!("t{number}")).unwrap()
}

pub(super) fn job_id(number: u64) -> JobId {
    JobId::new(format!("id{number}")).unwrap()
}

fn key(number: u64) -> Key {
    Key::new(format!("k{number}")).unwrap()
}

/// Some spans have one.
fn tracestate(parent: Option<Traceparent>) -> Option<Tracestate> {
    let span = parent?.span_id();
    (span[7] % 2 == 0).then(|| Tracestate::shortened("a=1"))?
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            at: 1_700_000_000_000,
            claims: Vec::new(),
            plans: Vec::new(),
            resumption: None,
            sent: Vec::new(),
            large: None,
        }
    }

    /// The same with some jobs so large that a claim is cut short.
    pub(super) fn with_large(seed: u64) -> Self {
        let text = format!("\"{}\"", "x".repeat(3 << 20));
        Self {
            large: Some(Payload::new(text).unwrap()),
            ..Self::new(seed)
        }
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub(super) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn maybe<T>(&mut self, bound: u64, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(bound).then(|| make(self))
    }

    fn some<T>(&mut self, most: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..=self.below(most)).map(|_| make(self)).collect()
    }

    pub(super) fn command(&mut self, queue: &Queue) -> Command {
        self.at += match self.below(20) {
            0 => 3_000,
            1 | 2 => 200,
            _ => self.below(30),
        };
        // Now and then a broker whose clock is behind.
        let behind = if self.one_in(15) { self.below(500) } else { 0 };
        Command {
            at: self.at - behind,
            action: self.action(queue),
        }
    }

    fn action(&mut self, queue: &Queue) -> Action {
        match self.below(40) {
            0..10 => Action::Submit(self.some(3, Self::submission)),
            10..19 => Action::Claim(self.claim_request()),
            19..23 => Action::Complete(self.some(2, Self::completion)),
            23..27 => Action::Fail(self.some(2, Self::failure)),
            27 => Action::Release(self.some(2, Self::claim)),
            28 => Action::Expire(self.some(2, Self::claim)),
            29 | 30 => Action::Cancel(self.some(2, Self::id)),
            31 | 32 => Action::Retry(self.some(2, |this| this.finished(queue))),
            33 => Action::Forget(self.some(2, |this| this.finished(queue))),
            34 => Action::SetQueue(queue_name(self.below(3)), self.options()),
            35 => {
                let queue = queue_name(self.below(3));
                let pause = self.one_in(3);
                if pause {
                    Action::Pause(queue)
                } else {
                    Action::Resume(queue)
                }
            }
            36 => self.schedule(),
            37 => self.fire(queue),
            38 if self.one_in(4) => Action::Configure(self.settings()),
            38 if self.one_in(3) => Action::Move(self.some(3, Self::id), queue_name(self.below(3))),
            38 if self.one_in(2) => Action::Abandon(self.some(2, Self::claim)),
            39 if self.one_in(5) => self.set_time(),
            39 if self.one_in(2) => self.pause_schedule(queue),
            _ => Action::Tick,
        }
    }

    /// By an operator, back or forward. Now and then a command follows that was stamped before.
    fn set_time(&mut self) -> Action {
        let to = self.at + self.below(2_000) - self.below(6_000);
        if !self.one_in(3) {
            self.at = to;
        }
        Action::SetTime(to)
    }

    fn submission(&mut self) -> Submission {
        if !self.sent.is_empty() && self.one_in(6) {
            let sent = self.below(self.sent.len() as u64);
            let mut again = self.sent[usize::try_from(sent).unwrap()].clone();
            again.traceparent = self.traceparent();
            again.tracestate = tracestate(again.traceparent);
            return again;
        }
        let mut submission = self.new_submission();
        submission.tracestate = tracestate(submission.traceparent);
        self.sent.push(submission.clone());
        submission
    }

    fn new_submission(&mut self) -> Submission {
        Submission {
            id: (!self.one_in(4)).then(|| self.id()),
            queue: queue_name(self.below(3)),
            payload: self.payload(),
            priority: [0, 0, 0, 1, -1, 127, -128][usize::try_from(self.below(7)).unwrap()],
            run_at: self.maybe(8, |this| this.at + this.below(300)),
            delay_ms: self.maybe(8, |this| this.below(100)),
            max_attempts: self.maybe(2, |this| u32::try_from(this.below(4)).unwrap()),
            unique_key: self.maybe(4, |this| key(this.below(3))),
            group: self.maybe(2, |this| key(this.below(2))),
            backoff: self.maybe(2, |this| Backoff {
                first_ms: u32::try_from(this.below(60)).unwrap(),
                factor: u8::try_from(this.below(4)).unwrap(),
                max_ms: 200,
                jitter_percent: 50,
            }),
            traceparent: self.traceparent(),
            ..Submission::new(job_type(self.below(3)))
        }
    }

    fn payload(&mut self) -> Payload {
        let small = Payload::new(self.below(2).to_string()).unwrap();
        match self.large.clone() {
            Some(large) if self.one_in(8) => large,
            _ => small,
        }
    }

    fn traceparent(&mut self) -> Option<Traceparent> {
        self.maybe(3, |this| {
            let span = this.below(1_000) + 1;
            Traceparent::new([7; 16], span.to_be_bytes(), 1).unwrap()
        })
    }

    fn id(&mut self) -> JobId {
        if self.one_in(6) {
            let number = self.below(60);
            return JobId::new(format!("job:{number}")).unwrap();
        }
        job_id(self.below(25))
    }

    /// Mostly a job that can be retried or forgotten.
    fn finished(&mut self, queue: &Queue) -> JobId {
        let state = [
            State::Dead,
            State::Cancelled,
            State::Completed,
            State::Scheduled,
        ];
        let filter = Filter {
            state: Some(state[usize::try_from(self.below(4)).unwrap()]),
            ..Filter::default()
        };
        let jobs = queue.page(&filter, PageStart::After(0), 100).jobs;
        if jobs.is_empty() || self.one_in(6) {
            return self.id();
        }
        jobs[usize::try_from(self.below(jobs.len() as u64)).unwrap()]
            .id
            .clone()
    }

    fn claim_request(&mut self) -> LoggedClaim {
        let request = ClaimRequest {
            worker: key(self.below(2)),
            queues: self
                .maybe(2, |this| this.some(3, |this| queue_name(this.below(4))))
                .unwrap_or_default(),
            types: self
                .maybe(2, |this| this.some(3, |this| job_type(this.below(4))))
                .unwrap_or_default(),
            max: u32::try_from(self.below(5)).unwrap(),
            lease_ms: 30_000,
            wait_ms: 0,
        };
        let nonce = u32::try_from(self.below(9)).unwrap();
        // Few, so that claims are asked for again: by the same worker, and by another that has the same name for one.
        let key = self.maybe(2, |this| ClaimKey::new(&key(0), &key(this.below(4))));
        LoggedClaim {
            request,
            nonce,
            key,
        }
    }

    /// Mostly one that may still hold, sometimes an old one, sometimes one that never was.
    fn claim(&mut self) -> Claim {
        let recent = (self.claims.len() as u64).min(if self.one_in(5) { 1_000 } else { 6 });
        if recent == 0 || self.one_in(20) {
            return Claim {
                id: self.id(),
                token: Token {
                    number: self.below(50),
                    nonce: 0,
                },
            };
        }
        let back = usize::try_from(self.below(recent)).unwrap();
        self.claims[self.claims.len() - 1 - back].clone()
    }

    fn completion(&mut self) -> Completion {
        let Claim { id, token } = self.claim();
        let results = ["[true]", "[ true]", "[false]"];
        let result = self.maybe(3, |this| {
            let which = usize::try_from(this.at % 3).unwrap();
            Payload::new(results[which]).unwrap()
        });
        Completion { id, token, result }
    }

    fn failure(&mut self) -> Failure {
        let Claim { id, token } = self.claim();
        Failure {
            id,
            token,
            error: self.maybe(2, |_| "no".into()),
            retry_in_ms: self.maybe(3, |this| this.below(3) * 20),
            permanent: self.one_in(10),
        }
    }

    fn options(&mut self) -> QueueOptions {
        QueueOptions {
            concurrency: self.maybe(2, |this| u32::try_from(1 + this.below(3)).unwrap()),
            rate: self.maybe(2, |this| Rate {
                jobs: u32::try_from(1 + this.below(4)).unwrap(),
                period_ms: u32::try_from(1 + this.below(100)).unwrap(),
                burst: this.maybe(2, |this| u32::try_from(1 + this.below(3)).unwrap()),
            }),
        }
    }

    fn settings(&mut self) -> Settings {
        let mut keep = || Keep {
            age_ms: self.maybe(2, |this| this.below(2_000)),
            count: self.maybe(2, |this| this.below(6)),
        };
        let (completed, cancelled, dead) = (keep(), keep(), keep());
        let jobs_max = if self.one_in(4) { 12 } else { 1_000 };
        let ids = KeepIds {
            age_ms: self.below(4_000),
            bytes_max: self.below(2_000),
        };
        Settings {
            completed,
            cancelled,
            dead,
            jobs_max,
            ids,
        }
    }

    fn schedule(&mut self) -> Action {
        let name = ScheduleName::new(format!("s{}", self.below(2))).unwrap();
        if self.one_in(4) {
            return Action::DeleteSchedule(name);
        }
        let missed = [Missed::Skip, Missed::Once, Missed::All(2)];
        let spec = ScheduleSpec {
            cron: "* * * * * *".to_owned(),
            timezone: "UTC".to_owned(),
            job: Submission {
                id: None,
                run_at: None,
                delay_ms: None,
                ..self.new_submission()
            },
            missed: missed[usize::try_from(self.below(3)).unwrap()],
            run_on_start: self.one_in(4),
        };
        Schedule::command(name, spec, self.at).unwrap()
    }

    /// Pauses a schedule, or resumes it, sometimes by a plan that was made before the last change.
    fn pause_schedule(&mut self, queue: &Queue) -> Action {
        let name = ScheduleName::new(format!("s{}", self.below(2))).unwrap();
        let schedule = queue.schedule(&name);
        let Some(schedule) = schedule.filter(|it| it.paused || self.one_in(4)) else {
            return Action::PauseSchedule(name);
        };
        let plan = schedule.resumption(self.at).unwrap();
        let earlier = self.resumption.replace(plan.clone());
        earlier.filter(|_| self.one_in(4)).unwrap_or(plan)
    }

    /// The plans of now, and sometimes ones that were made earlier.
    fn fire(&mut self, queue: &Queue) -> Action {
        let mut plans = queue.due_firings(self.at);
        std::mem::swap(&mut self.plans, &mut plans);
        if self.one_in(3) {
            Action::Fire(plans)
        } else {
            Action::Fire(self.plans.clone())
        }
    }

    /// Remembers the claims that were handed out.
    pub(super) fn follow(&mut self, answer: &Answer) {
        if let Answer::Claimed(jobs) = answer {
            self.claims.extend(jobs.iter().map(|job| Claim {
                id: job.id.clone(),
                token: job.token,
            }));
        }
    }

    pub(super) fn filter(&mut self) -> Filter {
        Filter {
            state: self.maybe(2, |this| {
                State::ALL[usize::try_from(this.below(6)).unwrap()]
            }),
            queue: self.maybe(2, |this| queue_name(this.below(4))),
            job_type: self.maybe(2, |this| job_type(this.below(4))),
        }
    }
}
