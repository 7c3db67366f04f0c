//! A worker that records every claim, and does not always behave well: it fails, abandons and outlives some claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_client::api::ClaimRequest;
use tenure_client::{Claim, Claimed, Client, Completed, Ended, Error, Failed, Key};
use tenure_random::Random;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::history::{History, Moment, Outcome, What};

/// How many claims a worker may outlive at the same time.
const ASIDE_MAX: usize = 32;

/// The settings of a worker.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// How many jobs it claims at once.
    pub batch: u32,
    /// The lease it asks for.
    pub lease: Duration,
}

/// Tells workers when to behave well, and when to end.
#[derive(Debug, Default)]
pub struct Mood {
    /// Complete every job at once.
    pub is_good: AtomicBool,
    /// Claim no more jobs.
    pub is_over: AtomicBool,
}

impl Worker {
    /// Works until it is told to stop.
    pub async fn run(
        self,
        client: Client,
        history: Arc<History>,
        mood: Arc<Mood>,
        mut random: Random,
    ) {
        let aside = Arc::new(Semaphore::new(ASIDE_MAX));
        while !mood.is_over.load(Ordering::Relaxed) {
            let is_good = mood.is_good.load(Ordering::Relaxed);
            let mut done = Vec::new();
            for claim in self.claim(&client, &history).await {
                sleep(Duration::from_millis(random.below(3))).await;
                match random.below(100) {
                    _ if is_good => done.push(claim),
                    // The claim is abandoned: nothing more is sent for it.
                    0..3 => {}
                    3..7 => self.fail(&client, &history, claim, &mut random).await,
                    7..10 => {
                        self.heartbeat(&client, &history, &claim).await;
                        done.push(claim);
                    }
                    10..12 => {
                        let Ok(permit) = aside.clone().try_acquire_owned() else {
                            continue;
                        };
                        let (worker, client, history) =
                            (self.clone(), client.clone(), history.clone());
                        let late = random.between(self.lease / 2, self.lease * 2);
                        tokio::spawn(async move {
                            sleep(late).await;
                            worker.complete(&client, &history, vec![claim]).await;
                            drop(permit);
                        });
                    }
                    _ => done.push(claim),
                }
            }
            self.complete(&client, &history, done).await;
        }
        // The last of the outlived claims still write to the history.
        let all = u32::try_from(ASIDE_MAX).unwrap_or(u32::MAX);
        let _ = aside.acquire_many(all).await;
    }

    async fn claim(&self, client: &Client, history: &History) -> Vec<Claim> {
        let mut request = ClaimRequest::new(Key::new(&self.name).expect("the name is short"));
        request.max = self.batch;
        request.lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        request.wait_ms = 500;
        let invoked = history.now();
        match client.claim(&request).await {
            Ok(claimed) => {
                history.add(&self.name, invoked, claimed.iter().map(handed_out));
                for job in &claimed {
                    if job.payload.as_str() != format!("{:?}", job.id.as_str()) {
                        history.broken(format!(
                            "job {} has payload {}",
                            job.id,
                            job.payload.as_str()
                        ));
                    }
                }
                claimed.iter().map(Claim::from).collect()
            }
            Err(error) => {
                if !error.is_temporary() {
                    history.broken(format!("a claim was answered: {error}"));
                }
                sleep(Duration::from_millis(50)).await;
                Vec::new()
            }
        }
    }

    async fn heartbeat(&self, client: &Client, history: &History, claim: &Claim) {
        let invoked = history.now();
        let answer = client.heartbeat(&[(claim.clone(), None)]).await;
        let outcome = outcomes(history, 1, answer)[0];
        let what = What::Heartbeat {
            id: claim.id.to_string(),
            token: claim.token,
            outcome,
        };
        history.add(&self.name, invoked, [what]);
    }

    async fn fail(&self, client: &Client, history: &History, claim: Claim, random: &mut Random) {
        let failed = Failed {
            claim: claim.clone(),
            error: format!("attempt {} was told to fail", claim.attempt),
            retry_in: Some(Duration::from_millis(random.below(200))),
            permanent: false,
        };
        let invoked = history.now();
        let answer = client.fail_all(vec![failed]).await;
        self.ended(history, invoked, &[claim], false, answer);
    }

    async fn complete(&self, client: &Client, history: &History, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let completed = claims.iter().cloned().map(|claim| Completed {
            claim,
            result: None,
        });
        let invoked = history.now();
        let answer = client.complete_all(completed.collect()).await;
        self.ended(history, invoked, &claims, true, answer);
    }

    fn ended(
        &self,
        history: &History,
        invoked: Moment,
        claims: &[Claim],
        is_success: bool,
        answer: Result<Vec<Ended>, Error>,
    ) {
        let outcomes = outcomes(history, claims.len(), answer);
        let events = claims
            .iter()
            .zip(outcomes)
            .map(|(claim, outcome)| What::End {
                id: claim.id.to_string(),
                attempt: claim.attempt,
                token: claim.token,
                is_success,
                outcome,
            });
        history.add(&self.name, invoked, events);
    }
}

fn handed_out(job: &Claimed) -> What {
    What::Claim {
        id: job.id.to_string(),
        attempt: job.attempt,
        token: job.token,
        lease: Duration::from_millis(job.lease_ms.into()),
    }
}

fn outcomes(history: &History, count: usize, answer: Result<Vec<Ended>, Error>) -> Vec<Outcome> {
    let all = match answer {
        Ok(ended) => {
            let one = |ended: Ended| match ended {
                Ended::Done | Ended::Cancelled => Outcome::Done,
                Ended::Lost(_) => Outcome::Lost,
                // The only remaining case: nothing was done.
                _ => Outcome::NotDone,
            };
            return ended.into_iter().map(one).collect();
        }
        Err(Error::Unavailable { .. }) => Outcome::NotDone,
        Err(Error::Unknown { .. }) => Outcome::Unknown,
        Err(error) => {
            history.broken(format!("a claim could not be ended: {error}"));
            Outcome::Unknown
        }
    };
    vec![all; count]
}
