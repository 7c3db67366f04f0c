//! A submitter: submits jobs with its own ids, in small batches, and records the answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_client::api::{Job, State, SubmitStatus, Submitted};
use tenure_client::{Client, Error, JobId, NewJob};
use tenure_linear::job::{Ending, Seen};
use tenure_random::Random;
use tokio::time::sleep;

use crate::history::{History, Submit, What};

/// The maximum, and more than any job needs: no job should end dead.
const ATTEMPTS: u32 = 10_000;

/// How many of its latest jobs a submitter reads.
const RECENT: u64 = 60;

/// The settings of a submitter.
#[derive(Debug, Clone)]
pub struct Submitter {
    /// Its name; its jobs' ids begin with it.
    pub name: String,
    /// How many jobs; `None` for no end.
    pub jobs: Option<u64>,
    /// The most jobs in one batch.
    pub batch: u64,
    /// The wait between two batches.
    pub pause: Duration,
    /// Whether some jobs have unique keys, and are refused while another job has the same key.
    pub has_keys: bool,
    /// Whether it sometimes reads its jobs.
    pub reads: bool,
}

#[derive(Debug, Clone)]
struct Order {
    id: String,
    group: Option<String>,
    key: Option<String>,
}

impl Submitter {
    /// Submits until it is told to stop, or has submitted all of its jobs. With a number of jobs, each is submitted
    /// until it is acknowledged.
    pub async fn run(
        self,
        client: Client,
        history: Arc<History>,
        stop: Arc<AtomicBool>,
        mut random: Random,
    ) {
        let mut made = 0;
        let mut again: VecDeque<Order> = VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            let mut orders: Vec<Order> = again.drain(..).collect();
            let count = 1 + random.below(self.batch);
            while (orders.len() as u64) < count && self.jobs.is_none_or(|jobs| made < jobs) {
                orders.push(self.order(made, &mut random));
                made += 1;
            }
            if orders.is_empty() {
                return;
            }
            let invoked = history.now();
            let answer = client.submit_all(orders.iter().map(Order::job)).await;
            let outcomes = outcomes(&orders, answer);
            for (order, outcome) in orders.iter().zip(&outcomes) {
                let is_open = matches!(outcome, Submit::NotDone | Submit::Unknown);
                if is_open && (self.jobs.is_some() || random.below(2) == 0) {
                    again.push_back(order.clone());
                }
            }
            let events = orders.into_iter().zip(outcomes);
            let events = events.map(|(order, outcome)| What::Submit {
                id: order.id,
                group: order.group,
                key: order.key,
                outcome,
            });
            history.add(&self.name, invoked, events);
            if self.reads {
                self.read(&client, &history, made, &mut random).await;
            }
            sleep(self.pause).await;
        }
    }

    /// Reads one of the jobs that it submitted recently.
    async fn read(&self, client: &Client, history: &History, made: u64, random: &mut Random) {
        let number = made - 1 - random.below(made.min(RECENT));
        let id = format!("{}-{number}", self.name);
        let asked = JobId::new(&id).expect("made of letters and digits");
        let invoked = history.now();
        let seen = match client.job(&asked).await {
            Ok(job) => seen(job),
            Err(Error::NotFound(_)) => Seen::Nothing,
            Err(error) if error.is_temporary() => return,
            Err(error) => return history.broken(format!("a look at {id} was answered: {error}")),
        };
        history.add(&self.name, invoked, [What::Read { id, seen }]);
    }

    fn order(&self, number: u64, random: &mut Random) -> Order {
        let name = &self.name;
        let (group, key) = match random.below(10) {
            // The order of a group is only known if one submitter submits all its jobs.
            0 | 1 => (Some(format!("{name}-g{}", random.below(4))), None),
            2 if self.has_keys => (None, Some(format!("k{}", random.below(3)))),
            _ => (None, None),
        };
        Order {
            id: format!("{name}-{number}"),
            group,
            key,
        }
    }
}

impl Order {
    fn job(&self) -> NewJob {
        let job = NewJob::new("chaos", &self.id)
            .id(&self.id)
            .max_attempts(ATTEMPTS);
        let job = match &self.group {
            Some(group) => job.group(group),
            None => job,
        };
        match &self.key {
            Some(key) => job.unique_key(key),
            None => job,
        }
    }
}

fn seen(job: Job) -> Seen {
    match job.state {
        State::Scheduled | State::Ready => Seen::Waiting,
        State::Running => Seen::Running(job.worker.map_or_else(String::new, |by| by.to_string())),
        State::Completed => Seen::Finished(Ending::Completed),
        State::Cancelled => Seen::Finished(Ending::Cancelled),
        State::Dead => Seen::Finished(Ending::Dead),
    }
}

fn outcomes(orders: &[Order], answer: Result<Vec<Submitted>, Error>) -> Vec<Submit> {
    match answer {
        Ok(submitted) => submitted
            .into_iter()
            .zip(orders)
            .map(|(submitted, order)| outcome(submitted, order))
            .collect(),
        Err(error) => {
            let all = match error {
                Error::Unavailable { .. } => Submit::NotDone,
                Error::Unknown { .. } => Submit::Unknown,
                error => Submit::Wrong(error.to_string()),
            };
            vec![all; orders.len()]
        }
    }
}

fn outcome(submitted: Submitted, order: &Order) -> Submit {
    if submitted.id.as_str() != order.id {
        return Submit::Wrong(format!("the answer is about {}", submitted.id));
    }
    match (submitted.status, submitted.existing) {
        (SubmitStatus::Duplicate, Some(existing)) => Submit::KeyTaken(existing.to_string()),
        (SubmitStatus::Created | SubmitStatus::Duplicate, None) => Submit::Acknowledged,
        (status, _) => Submit::Wrong(format!("{status:?}")),
    }
}
