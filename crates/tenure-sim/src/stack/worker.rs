//! A worker: claims jobs, works for a while, and ends them in one way or another.

use std::sync::Arc;
use std::time::Duration;

use tenure::queue::{HeartbeatAnswer, Queue};
use tenure_core::queue::{
    Claim, ClaimRequest, Claimed, Completion, Failure, Item, Key, Lost, Payload,
};
use tenure_core::{JobType, QueueName};
use tenure_linear::job as seen;
use tenure_random::Random;
use tokio::time::Instant;

use super::faults::Fault;
use super::invariants::leases_are_kept;
use super::network::{Failed, Route};
use super::outbox::Transaction;
use super::world::World;
use crate::invariants::Violation;

/// How long a call takes at most, beside what it waits for jobs.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the end of a job is told, or a claim with a key is asked for, before the worker gives up.
const TRIES_MAX: usize = 10;

/// The queues of those who submit, and of the schedules.
pub(crate) const QUEUES: [&str; 4] = ["default", "mail", "limited", "slow"];

/// Those of them that have limits.
pub(crate) const LIMITED: [&str; 2] = ["limited", "slow"];

/// The types of jobs.
pub(crate) const TYPES: [&str; 3] = ["a", "b", "c"];

/// What a worker discounts for a broker whose clock is as fast as a clock may be.
const DISCOUNT: f64 = 0.95;

/// How often a worker that has ended a claim ends it again in another way, per mille.
const CONTRADICTS: u64 = 150;

/// How often a worker completes a job by the outbox, if there is one: in a transaction, which may be rolled back, and after
/// which it may stop; per mille each.
const BY_OUTBOX: u64 = 400;
const ROLLED_BACK: u64 = 200;
const STOPS: u64 = 500;

/// How a job ends.
#[derive(Debug, Clone)]
enum End {
    Complete(Option<Payload>),
    /// After how long to try again, if the worker says so, and whether that would help.
    Fail {
        retry_in_ms: Option<u64>,
        permanent: bool,
    },
    Release,
}

impl End {
    fn draw(random: &mut Random) -> Self {
        match random.below(10) {
            0..6 => {
                let result = Payload::new(format!("{{\"n\":{}}}", random.below(1_000)));
                End::Complete(result.ok().filter(|_| random.chance(500)))
            }
            6 | 7 => End::Fail {
                retry_in_ms: random.chance(300).then(|| random.below(10_000)),
                permanent: random.chance(150),
            },
            _ => End::Release,
        }
    }

    fn seen(&self) -> seen::End {
        match self {
            End::Complete(_) => seen::End::Complete,
            End::Fail { .. } => seen::End::Fail,
            End::Release => seen::End::Release,
        }
    }
}

/// Works for ever.
pub(crate) async fn run(world: Arc<World>, number: usize) {
    let mut worker = Worker::new(world, format!("w{number}"));
    loop {
        for job in worker.claim().await {
            worker.work(job).await;
        }
    }
}

pub(crate) struct Worker {
    name: String,
    route: Route,
    world: Arc<World>,
    /// How many claims it has made.
    claims: u64,
    /// How many transactions.
    transactions: u64,
}

impl Worker {
    pub(crate) fn new(world: Arc<World>, name: String) -> Self {
        Self {
            name,
            route: Route::default(),
            world,
            claims: 0,
            transactions: 0,
        }
    }

    async fn claim(&mut self) -> Vec<Claimed> {
        let (lease, max, wait, names, types) = {
            let mut random = self.world.random();
            let lease = Duration::from_secs(*random.pick(&[5, 10, 20]));
            let wait = Duration::from_secs(*random.pick(&[0, 5, 15]));
            let most: &[u32] = if self.world.plan.large > 0 {
                &[1, 3, 100]
            } else {
                &[1, 1, 3]
            };
            let max = *random.pick(most);
            // Those of every queue when there is chaos, at times by their names. Then there are others' queues.
            let names: Vec<QueueName> = match random.below(10) {
                0 | 1 => QUEUES.map(queue_name).to_vec(),
                2 => vec![queue_name(random.pick::<&str>(&QUEUES))],
                3 => LIMITED.map(queue_name).to_vec(),
                _ => Vec::new(),
            };
            let types = match random.below(10) {
                0 | 1 => vec![job_type(random.pick::<&str>(&TYPES))],
                2 => vec![job_type("c"), job_type("a")],
                _ => Vec::new(),
            };
            (lease, max, wait, names, types)
        };
        let mut claim = ClaimRequest::new(Key::new(&self.name).expect("a valid key")).waiting(wait);
        let lease_ms = u32::try_from(lease.as_millis()).expect("a few seconds");
        (claim.lease_ms, claim.max) = (lease_ms, max);
        if self.world.is_calm() {
            claim.queues = QUEUES.map(queue_name).to_vec();
        } else {
            (claim.queues, claim.types) = (names, types);
        }
        let jobs = self.ask(claim).await;
        if jobs.is_empty() {
            self.world.pause_about(Duration::from_millis(500)).await;
        }
        jobs
    }

    /// Claims once. Every other claim has a key, and is asked for again if its answer is lost: it is the same claim then, so
    /// it began when it was first sent, and its lease counts from when it was sent last.
    pub(crate) async fn ask(&mut self, claim: ClaimRequest) -> Vec<Claimed> {
        self.claims += 1;
        let key = self.claims.is_multiple_of(2).then(|| {
            let key = Key::new(format!("claim-{}", self.claims));
            key.expect("a valid key")
        });
        let begun = self.world.calls().begin();
        let tries = if key.is_some() { TRIES_MAX } else { 1 };
        for _ in 0..tries {
            match self.ask_once(&claim, key.as_ref(), begun).await {
                Ok(jobs) => return jobs,
                // What was not taken changes nothing, and who has a key asks on: an earlier try may have been.
                Err(failed) => self.say(&format!("claiming by {key:?} failed: {failed:?}")),
            }
        }
        Vec::new()
    }

    async fn ask_once(
        &mut self,
        claim: &ClaimRequest,
        key: Option<&Key>,
        begun: u64,
    ) -> Result<Vec<Claimed>, Failed> {
        let lease = Duration::from_millis(claim.lease_ms.into());
        let wait = Duration::from_millis(claim.wait_ms.into());
        let until = Instant::now() + lease.mul_f64(DISCOUNT);
        let (claim, key) = (claim.clone(), key.cloned());
        let answer = self.route.call(&self.world, wait + PATIENCE, move |queue| {
            let (claim, key) = (claim.clone(), key.clone());
            async move {
                let stop = std::future::pending();
                queue.claim_named(claim, key.as_ref(), stop).await
            }
        });
        let answer = answer.await;
        let is_known = answer
            .as_ref()
            .map_or_else(Failed::is_not_applied, |_| true);
        if !is_known || self.route.is_doubled {
            self.world.calls().lost_claim();
        }
        let jobs = answer?;
        for job in &jobs {
            let call = seen::Call::Claim {
                token: job.token.to_string(),
                worker: self.name.clone(),
            };
            self.world.calls().ended(&job.id, begun, call);
            self.say(&format!("holds {} by {}", job.id, job.token));
            let verdict = self.world.claims().claimed(&self.name, job, until);
            self.world.judge(verdict);
        }
        Ok(jobs)
    }

    pub(crate) async fn work(&mut self, job: Claimed) {
        let bad = self.world.plan.workers_bad;
        if self.world.strikes(Fault::WorkerVanished, bad) {
            self.say(&format!("forgets {}", job.id));
            return;
        }
        let lease = Duration::from_millis(u64::from(job.lease_ms));
        let stalls = self.world.strikes(Fault::WorkerStalled, bad);
        // What has piled up is to be gone soon after the faults.
        let time_max = if self.world.is_calm() {
            Duration::from_millis(50)
        } else {
            lease / 5
        };
        let time = if stalls {
            lease * 2
        } else {
            self.world.random().up_to(time_max)
        };
        let beats = !stalls && self.world.random().chance(500);
        let ends_at = Instant::now() + time;
        while beats && Instant::now() < ends_at {
            tokio::time::sleep(time / 3).await;
            if !self.beat(&job).await {
                break;
            }
        }
        tokio::time::sleep_until(ends_at).await;
        let end = if self.world.is_calm() {
            End::Complete(None)
        } else {
            End::draw(&mut self.world.random())
        };
        if let End::Complete(result) = &end
            && self.end_by_outbox(&job, result.as_ref()).await
            && self.world.random().chance(STOPS)
        {
            self.say(&format!(
                "stops after it has committed the end of {}",
                job.id
            ));
            return;
        }
        let is_done = self.end(&job, &end).await;
        if is_done && self.world.random().chance(CONTRADICTS) {
            let other = End::draw(&mut self.world.random());
            self.contradict(&job, other).await;
        }
    }

    /// Completes a job by a row of the outbox, in the transaction of its effects. Whether that was done, and committed.
    async fn end_by_outbox(&mut self, job: &Claimed, result: Option<&Payload>) -> bool {
        let world = self.world.clone();
        let by_outbox = world.plan.outbox.is_some() && !world.is_calm();
        if !by_outbox || !world.random().chance(BY_OUTBOX) {
            return false;
        }
        self.transactions += 1;
        let mut transaction = Transaction::begin(u64::MAX - self.transactions);
        let end = completion(held(job), result.cloned());
        world.outbox.insert_end(&mut transaction, end);
        world.pause_about(Duration::from_millis(50)).await;
        if world.random().chance(ROLLED_BACK) {
            world.outbox.roll_back(&transaction);
            return false;
        }
        // From now on the relay may end it.
        world.claims().ending(&job.id, job.token);
        self.say(&format!("commits the end of {} by {}", job.id, job.token));
        world.outbox.commit(transaction);
        true
    }

    /// Tells another end of a claim that has ended. Nothing comes of it, so it is no part of what was seen; what it is
    /// answered is looked at where it is committed.
    async fn contradict(&mut self, job: &Claimed, end: End) {
        let held = held(job);
        let answer = self.route.call(&self.world, PATIENCE, move |queue| {
            let (held, end) = (held.clone(), end.clone());
            async move { tell(queue, held, end).await }
        });
        if let Ok(told) = answer.await {
            self.say(&format!("{} was told otherwise: {told:?}", job.id));
        }
    }

    /// Renews a claim once. Whether to go on.
    async fn beat(&mut self, job: &Claimed) -> bool {
        let held = held(job);
        let sent = Instant::now();
        let progress = Payload::new("50").ok();
        let answer = self.route.call(&self.world, PATIENCE, move |queue| {
            let claims = vec![(held.clone(), progress.clone())];
            async move { queue.heartbeat(claims).await }
        });
        match answer.await.as_deref() {
            Ok([Ok(HeartbeatAnswer::Renewed(left))]) => {
                // A heartbeat commits nothing: no fence tells a broker that was frozen that its term is over.
                if !self.route.is_doubted {
                    let until = sent + left.mul_f64(DISCOUNT);
                    self.world.claims().renewed(&job.id, job.token, until);
                }
                true
            }
            Ok([Err(_) | Ok(HeartbeatAnswer::Cancelled)]) => false,
            _ => true,
        }
    }

    /// Ends a claim; says whether that was done.
    async fn end(&mut self, job: &Claimed, end: &End) -> bool {
        let until = self.world.claims().ending(&job.id, job.token);
        for _ in 0..TRIES_MAX {
            let held = held(job);
            let begun = self.world.calls().begin();
            let asked = end.clone();
            let answer = self.route.call(&self.world, PATIENCE, move |queue| {
                let (held, end) = (held.clone(), asked.clone());
                async move { tell(queue, held, end).await }
            });
            let answer = answer.await;
            self.note(job, end, begun, answer.as_deref());
            match answer {
                Ok(ended) => {
                    self.say(&format!("{end:?} {} by {}: {ended:?}", job.id, job.token));
                    let verdict = self.ended(job, end, &ended, until);
                    self.world.judge(verdict);
                    return matches!(ended[..], [None]);
                }
                // It is told again: had it been done, it is answered as it was.
                Err(failed) => self.say(&format!("{end:?} {} failed: {failed:?}", job.id)),
            }
        }
        false
    }

    /// Keeps what was seen of an end.
    fn note(&self, job: &Claimed, end: &End, begun: u64, answer: Result<&[Option<Lost>], &Failed>) {
        let call = |held| seen::Call::End {
            token: job.token.to_string(),
            end: end.seen(),
            held,
        };
        let mut calls = self.world.calls();
        match answer {
            Ok([lost]) => calls.ended(&job.id, begun, call(Some(lost.is_none()))),
            Err(failed) if failed.is_not_applied() => return,
            _ => calls.lost(&job.id, begun, call(None)),
        }
        if self.route.is_doubled {
            calls.lost(&job.id, begun, call(None));
        }
    }

    fn ended(
        &self,
        job: &Claimed,
        end: &End,
        ended: &[Option<Lost>],
        until: Option<Instant>,
    ) -> Result<(), Violation> {
        let claim = (&job.id, job.token);
        let [lost] = ended else {
            let message = format!("{ended:?} for {end:?} of {}", job.id);
            return Err(Violation::new("every claim is answered", message));
        };
        let ledger = self.world.ledger();
        if matches!(end, End::Complete(_)) && lost.is_none() {
            let mut claims = self.world.claims();
            let is_first = claims.completed.insert((job.id.clone(), job.token));
            leases_are_kept::completed(&ledger, claim, is_first)?;
        }
        leases_are_kept::check(&ledger, claim, *lost, until)
    }

    fn say(&self, what: &str) {
        self.world.say(&self.name, what);
    }
}

async fn tell(
    queue: Queue,
    held: Claim,
    end: End,
) -> Result<Vec<Option<Lost>>, tenure::queue::Error> {
    match end {
        End::Complete(result) => {
            let completion = completion(held, result);
            queue.complete(vec![completion]).await.map(lost)
        }
        End::Fail {
            retry_in_ms,
            permanent,
        } => {
            let failure = failure(held, retry_in_ms, permanent);
            queue.fail(vec![failure]).await.map(lost)
        }
        End::Release => queue.release(vec![held]).await.map(lost),
    }
}

/// Why each claim was lost that was to end; nothing for those that were held.
fn lost<T>(ended: Vec<Item<T, Lost>>) -> Vec<Option<Lost>> {
    ended.into_iter().map(|item| item.outcome.err()).collect()
}

fn held(job: &Claimed) -> Claim {
    Claim {
        id: job.id.clone(),
        token: job.token,
    }
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}

fn job_type(name: &str) -> JobType {
    JobType::new(name).expect("a valid type")
}

fn completion(held: Claim, result: Option<Payload>) -> Completion {
    Completion {
        id: held.id,
        token: held.token,
        result,
    }
}

fn failure(held: Claim, retry_in_ms: Option<u64>, permanent: bool) -> Failure {
    Failure {
        id: held.id,
        token: held.token,
        error: Some("no".into()),
        retry_in_ms,
        permanent,
    }
}
