//! A worker: claims jobs, works for a while, and ends them in one way or another.

use std::sync::Arc;
use std::time::Duration;

use tenure::queue::HeartbeatAnswer;
use tenure_core::QueueName;
use tenure_core::queue::{
    Claim, ClaimRequest, Claimed, Completion, Failure, Item, Key, Lost, Payload,
};
use tokio::time::Instant;

use super::faults::Fault;
use super::invariants::leases_are_kept;
use super::network::Route;
use super::world::World;
use crate::invariants::Violation;

/// How long a call takes at most, beside what it waits for jobs.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the end of a job is told before the worker gives up.
const TRIES_MAX: usize = 10;

/// The queues of those who submit, and of the schedules.
pub(crate) const QUEUES: [&str; 3] = ["default", "mail", "limited"];

/// What a worker discounts for a broker whose clock is as fast as a clock may be.
const DISCOUNT: f64 = 0.95;

/// How a job ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Complete,
    Fail,
    Release,
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
}

impl Worker {
    pub(crate) fn new(world: Arc<World>, name: String) -> Self {
        Self {
            name,
            route: Route::default(),
            world,
        }
    }

    async fn claim(&mut self) -> Vec<Claimed> {
        let (lease, max, wait, names) = {
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
            (lease, max, wait, random.chance(300))
        };
        let mut claim = ClaimRequest::new(Key::new(&self.name).expect("a valid key")).waiting(wait);
        let lease_ms = u32::try_from(lease.as_millis()).expect("a few seconds");
        (claim.lease_ms, claim.max) = (lease_ms, max);
        if names || self.world.is_calm() {
            claim.queues = QUEUES
                .map(|name| QueueName::new(name).expect("a valid name"))
                .to_vec();
        }
        let jobs = self.ask(claim).await;
        if jobs.is_empty() {
            self.world.pause_about(Duration::from_millis(500)).await;
        }
        jobs
    }

    /// Claims once.
    pub(crate) async fn ask(&mut self, claim: ClaimRequest) -> Vec<Claimed> {
        let lease = Duration::from_millis(claim.lease_ms.into());
        let wait = Duration::from_millis(claim.wait_ms.into());
        let until = Instant::now() + lease.mul_f64(DISCOUNT);
        let answer = self.route.call(&self.world, wait + PATIENCE, move |queue| {
            let claim = claim.clone();
            async move { queue.claim(claim).await }
        });
        let Ok(jobs) = answer.await else {
            return Vec::new();
        };
        for job in &jobs {
            self.say(&format!("holds {} by {}", job.id, job.token));
            let verdict = self.world.claims().claimed(&self.name, job, until);
            self.world.judge(verdict);
        }
        jobs
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
            End::Complete
        } else {
            *self.world.random().pick(&[
                End::Complete,
                End::Complete,
                End::Complete,
                End::Fail,
                End::Release,
            ])
        };
        self.end(&job, end).await;
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

    async fn end(&mut self, job: &Claimed, end: End) {
        let until = self.world.claims().ending(&job.id, job.token);
        for _ in 0..TRIES_MAX {
            let held = held(job);
            let answer = self.route.call(&self.world, PATIENCE, move |queue| {
                let held = held.clone();
                async move {
                    match end {
                        End::Complete => queue.complete(vec![completion(held)]).await.map(lost),
                        End::Fail => queue.fail(vec![failure(held)]).await.map(lost),
                        End::Release => queue.release(vec![held]).await.map(lost),
                    }
                }
            });
            match answer.await {
                Ok(ended) => {
                    self.say(&format!("{end:?} {} by {}: {ended:?}", job.id, job.token));
                    let verdict = self.ended(job, end, &ended, until);
                    return self.world.judge(verdict);
                }
                Err(failed) => {
                    self.say(&format!("{end:?} {} failed: {failed:?}", job.id));
                    if !failed.is_not_applied() && !matches!(end, End::Complete) {
                        // Only a completion is recognised when it is found later.
                        return;
                    }
                }
            }
        }
    }

    fn ended(
        &self,
        job: &Claimed,
        end: End,
        ended: &[Option<Lost>],
        until: Option<Instant>,
    ) -> Result<(), Violation> {
        let claim = (&job.id, job.token);
        let [lost] = ended else {
            let message = format!("{ended:?} for {end:?} of {}", job.id);
            return Err(Violation::new("every claim is answered", message));
        };
        let ledger = self.world.ledger();
        if matches!(end, End::Complete) && lost.is_none() {
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

fn completion(held: Claim) -> Completion {
    Completion {
        id: held.id,
        token: held.token,
        result: None,
    }
}

fn failure(held: Claim) -> Failure {
    Failure {
        id: held.id,
        token: held.token,
        error: Some("no".into()),
        retry_in_ms: None,
        permanent: false,
    }
}
