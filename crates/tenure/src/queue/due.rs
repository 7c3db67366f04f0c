//! What is due, with or without traffic: leases run out, delayed jobs become ready, schedules fire, and
//! what was finished long ago is deleted.
//!
//! Each of it is a command like any other. Nothing is committed unless something is due; the task sleeps until
//! then, and is woken when something comes up that is due earlier.
//!
//! However much is due at once, it is done in portions: each record is bounded in items and in bytes, well below
//! what one commit takes, and each round takes no more than a few records of each kind. What is left is due in
//! the next round, at once. Schedules are planned between two rounds, without the lock.
//!
//! Only the end of the term ends these tasks: [`Stopped`](Error::Stopped), [`Fenced`](Error::Fenced) and
//! [`Unknown`](Error::Unknown). Any other error is one that nobody has thought of. It ends the term, and says so;
//! see `serve.rs`.

use std::time::Duration;

use serde::Serialize;
use tenure_core::Moment;
use tenure_core::queue::{Action, Claim, Due, Firing, Queue, Rules};
use tokio::sync::mpsc;

use super::Error;
use super::broker::{Alarm, Broker};
use super::service::Service;

/// How often retention, and what no signal tells of, is looked at.
const ROUND: Duration = Duration::from_secs(60);

/// The most claims of one command, and commands of one commit.
const CLAIMS_MAX: usize = 1_000;
const COMMANDS_MAX: usize = 16;

/// The most ticks of one commit: a submit that is committed with them waits until they are applied.
const TICKS_MAX: usize = 4;

/// The most schedules that are planned in one round, and about how long that may take.
const SCHEDULES_MAX: usize = 1_000;
const PLANNING_MAX: Duration = Duration::from_millis(20);

/// The most slots of one record: each becomes a job when it is applied.
const SLOTS_MAX: usize = 200;

/// What of a record is not its items: the time, and what is to be done.
const RECORD_BYTES_BESIDE: usize = 64;

/// How long a command that was not taken waits before it is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Runs until the queue is not served any more.
pub(crate) async fn commit_due(service: &Service) -> Error {
    let mut rounds = Rounds {
        retention: Moment::default(),
        ticks: 0,
        planned: None,
        alarm: Alarm::UNSET,
        is_full_told: false,
        are_ids_told: false,
    };
    loop {
        // Until what it plans is committed.
        let planned = service.slots.read().await;
        let (at, moment) = (service.time.at(), service.time.clock().moment());
        let Round {
            expired,
            ticks,
            due,
        } = match service.change(|broker| rounds.round(broker, at, moment)) {
            Ok(round) => round,
            Err(error) => return error,
        };
        if expired.is_empty() && ticks == 0 && due.is_empty() {
            drop(planned);
            let wake_at = rounds.wake_at(at, moment);
            tokio::select! {
                biased;
                () = service.signals.due.notified() => {}
                () = service.time.clock().sleep_towards(wake_at) => {}
            }
            continue;
        }
        let bytes_max = service.record_bytes_max;
        let expired = portions(expired, CLAIMS_MAX, bytes_max, |_| 1);
        let mut actions: Vec<_> = expired.into_iter().map(Action::Expire).collect();
        let firings = rounds.plan(service, due, at).await;
        let firings = portions(firings, SLOTS_MAX, bytes_max, |firing| firing.slots.len());
        actions.extend(firings.into_iter().map(Action::Fire));
        actions.extend(std::iter::repeat_n(Action::Tick, ticks));
        let sent = actions.into_iter().map(|action| commit(service, action));
        for sent in futures_util::future::join_all(sent).await {
            if let Err(error) = sent {
                return error;
            }
        }
    }
}

/// Wakes claims that wait. Runs until the queue is not served any more.
pub(crate) async fn wake_claims(service: &Service) -> Error {
    loop {
        let opens = match service.wake_claims() {
            Ok(opens) => opens,
            Err(error) => return error,
        };
        let clock = service.time.clock();
        let opens = opens.map_or(Moment::NEVER, |at| service.time.moment_of(at));
        tokio::select! {
            biased;
            () = service.signals.claimable.notified() => {}
            () = clock.sleep_towards(opens), if opens != Moment::NEVER => {}
        }
    }
}

/// Hands claims back whose caller was gone before the answer came. Runs until the queue is not served any
/// more.
pub(crate) async fn hand_back(
    service: &Service,
    mut abandoned: mpsc::UnboundedReceiver<Claim>,
) -> Error {
    loop {
        let mut claims = Vec::new();
        if abandoned.recv_many(&mut claims, CLAIMS_MAX).await == 0 {
            return Error::Stopped;
        }
        tracing::debug!(
            claims = claims.len(),
            "handing back jobs that no worker waits for"
        );
        for claims in portions(claims, CLAIMS_MAX, service.record_bytes_max, |_| 1) {
            // The older rules knew no claims that are asked for again.
            let action = if service.rules < Rules::THIRD {
                Action::Release(claims)
            } else {
                Action::Abandon(claims)
            };
            if let Err(error) = commit(service, action).await {
                return error;
            }
        }
    }
}

/// Items in their order, cut so that each portion is one record: at most so many by `count`, and so many bytes
/// as the log writes them. An item that is larger than that has a portion to itself.
pub(crate) fn portions<T: Serialize>(
    items: Vec<T>,
    count_max: usize,
    bytes_max: usize,
    count: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let bytes_max = bytes_max.saturating_sub(RECORD_BYTES_BESIDE);
    let mut portions: Vec<Vec<T>> = Vec::new();
    let (mut counted, mut bytes) = (0, 0);
    for item in items {
        let json = serde_json::to_vec(&item).expect("commands have no failing serializers");
        // With its comma.
        let (more, size) = (count(&item), json.len() + 1);
        match portions.last_mut() {
            Some(last) if counted + more <= count_max && bytes + size <= bytes_max => {
                last.push(item);
                (counted, bytes) = (counted + more, bytes + size);
            }
            _ => {
                portions.push(vec![item]);
                (counted, bytes) = (more, size);
            }
        }
    }
    portions
}

/// Commits a command of the broker's own. It must not get lost, so it is sent until it is taken.
pub(crate) async fn commit(service: &Service, action: Action) -> Result<(), Error> {
    let mut pause = PAUSE_MIN;
    loop {
        match service.commit(action.clone()).await {
            Ok(_) => return Ok(()),
            Err(error @ (Error::Overloaded { .. } | Error::Store(_))) => {
                tracing::debug!(%error, "sending the queue's own command again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What was done when.
#[derive(Debug)]
struct Rounds {
    /// When retention is looked at next.
    retention: Moment,
    /// How many ticks go into a commit: more while they do not suffice.
    ticks: usize,
    /// The schedule that was looked at last, while there may be more that are due.
    planned: Option<Due>,
    /// What the task sleeps towards.
    alarm: Alarm,
    /// What was said, and need not be again.
    is_full_told: bool,
    are_ids_told: bool,
}

/// What is due now, or as much of it as goes into one round.
#[derive(Debug)]
struct Round {
    expired: Vec<Claim>,
    ticks: usize,
    due: Vec<Due>,
}

impl Rounds {
    fn round(&mut self, broker: &mut Broker, at: u64, moment: Moment) -> Round {
        let expired = broker.leases.expired(moment, CLAIMS_MAX * COMMANDS_MAX);
        self.tell(&broker.queue, at);
        let behind = self.planned.take();
        let due = broker
            .queue
            .due_schedules(at, behind.as_ref(), SCHEDULES_MAX);
        let jobs_due = broker.queue.due_at().is_some_and(|due| due <= at);
        let forget = moment >= self.retention
            && broker.queue.retention_due_at().is_some_and(|due| due <= at);
        self.ticks = if jobs_due || forget {
            (self.ticks * 2).clamp(1, TICKS_MAX)
        } else {
            0
        };
        if !forget && moment >= self.retention {
            self.retention = moment + ROUND;
        }
        let ticks = self.ticks;
        if expired.is_empty() && ticks == 0 && due.is_empty() {
            self.set_alarm(broker, at);
        }
        Round {
            expired,
            ticks,
            due,
        }
    }

    /// Plans what is due, for a while; the next round goes on behind it. One that cannot be planned, since its
    /// time zone is gone, is passed over, so that it holds up no other.
    async fn plan(&mut self, service: &Service, due: Vec<Due>, at: u64) -> Vec<Firing> {
        let clock = service.time.clock();
        let started = clock.moment();
        let mut firings = Vec::new();
        for due in due {
            let firing = due.plan(at);
            firings.extend(
                firing
                    .into_iter()
                    .flat_map(|firing| firing.split(SLOTS_MAX)),
            );
            self.planned = Some(due);
            if clock.moment().since(started) >= PLANNING_MAX {
                // This thread has others to serve.
                tokio::task::yield_now().await;
                break;
            }
        }
        firings
    }

    /// Says once what people have to do something about.
    fn tell(&mut self, queue: &Queue, at: u64) {
        let waits = queue.is_full() && queue.firing_due_at().is_some_and(|due| due <= at);
        if waits && !self.is_full_told {
            let jobs_max = queue.settings().jobs_max;
            tracing::error!(
                jobs_max,
                "the queue is full: due schedules wait until jobs are deleted or jobs_max is raised"
            );
        }
        self.is_full_told = waits;
        let dropped = queue.remnants().dropped;
        if dropped > 0 && !self.are_ids_told {
            let settings = queue.settings().ids;
            tracing::warn!(
                age_ms = settings.age_ms,
                bytes_max = settings.bytes_max,
                "ids of finished jobs are deleted early: a submit that is repeated late creates a new job; raise \
                 ids.bytes_max in the settings"
            );
            self.are_ids_told = true;
        }
    }

    fn set_alarm(&mut self, broker: &mut Broker, at: u64) {
        // A schedule that is due and has no plan has lost its time zone: nothing to hurry for.
        let firing = broker.queue.firing_due_after(at);
        let next = broker.queue.due_at().into_iter().chain(firing).min();
        self.alarm = Alarm {
            due: next.unwrap_or(u64::MAX),
            lease: broker.leases.next_deadline().unwrap_or(Moment::NEVER),
        };
        broker.alarm = self.alarm;
    }

    fn wake_at(&self, at: u64, moment: Moment) -> Moment {
        let wait = Duration::from_millis(self.alarm.due.saturating_sub(at));
        (moment + wait.min(ROUND)).min(self.alarm.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_cut_by_number_and_by_bytes() {
        let cut = |items: &[&str], count, bytes| {
            let items: Vec<String> = items.iter().map(|&item| item.to_owned()).collect();
            let portions = portions(items, count, bytes + RECORD_BYTES_BESIDE, |_| 1);
            portions.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[], 3, 100), [0; 0]);
        assert_eq!(cut(&["a", "b", "c", "d"], 3, 100), [3, 1]);
        // Each has its quotes and its comma.
        assert_eq!(cut(&["a", "b", "c", "d"], 3, 8), [2, 2]);
        assert_eq!(cut(&["a", "much too long", "b", "c"], 9, 8), [1, 1, 2]);
        let ones = portions(vec![3, 3, 1, 9, 1], 4, 1_000, |&count| count);
        assert_eq!(ones, [vec![3], vec![3, 1], vec![9], vec![1]]);
    }
}
