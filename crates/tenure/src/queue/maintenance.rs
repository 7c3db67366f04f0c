//! What time does by itself, traffic or none: leases run out, delayed jobs become ready, schedules fire, and
//! what was finished long ago is forgotten.
//!
//! Each of it is a command like any other. Nothing is committed unless something is due; the task sleeps until
//! then, and is woken when something comes up that is due earlier.

use std::time::Duration;

use tenure_core::Moment;
use tenure_core::queue::{Action, Claim};
use tokio::sync::mpsc;

use super::Error;
use super::broker::{Alarm, Broker};
use super::service::Service;

/// How often retention, and what no signal tells of, is looked at.
const ROUND: Duration = Duration::from_secs(60);

/// The most claims of one command, and commands of one commit.
const CLAIMS_MAX: usize = 1_000;
const COMMANDS_MAX: usize = 16;

/// How long a command that was not taken waits before it is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Runs until the queue is not served any more.
pub(crate) async fn maintain(service: &Service) -> Error {
    let mut rounds = Rounds {
        retention: Moment::default(),
        ticks: 0,
        alarm: Alarm::UNSET,
    };
    loop {
        let (at, moment) = (service.time.at(), service.time.clock().moment());
        let due = match service.change(|broker| rounds.due(broker, at, moment)) {
            Ok(due) => due,
            Err(error) => return error,
        };
        if due.is_empty() {
            let wake_at = rounds.wake_at(at, moment);
            tokio::select! {
                biased;
                () = service.bells.due.notified() => {}
                () = service.time.clock().sleep_towards(wake_at) => {}
            }
            continue;
        }
        let sent = due.into_iter().map(|action| commit(service, action));
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
            () = service.bells.claimable.notified() => {}
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
        tracing::debug!(claims = claims.len(), "handing back what nobody waits for");
        if let Err(error) = commit(service, Action::Release(claims)).await {
            return error;
        }
    }
}

/// Commits a command of the broker's own. It must not get lost, so it is sent until it is taken.
async fn commit(service: &Service, action: Action) -> Result<(), Error> {
    let mut pause = PAUSE_MIN;
    loop {
        match service.commit(action.clone()).await {
            Ok(_) => return Ok(()),
            Err(error @ (Error::Overloaded { .. } | Error::Store(_))) => {
                tracing::debug!(%error, "the queue's own command is sent again");
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
    /// What the task sleeps towards.
    alarm: Alarm,
}

impl Rounds {
    /// What is to be committed now.
    fn due(&mut self, broker: &mut Broker, at: u64, moment: Moment) -> Vec<Action> {
        let mut due = Vec::new();
        for _ in 0..COMMANDS_MAX {
            let expired = broker.leases.expired(moment, CLAIMS_MAX);
            if expired.is_empty() {
                break;
            }
            due.push(Action::Expire(expired));
        }
        let firings = broker.queue.due_firings(at);
        if !firings.is_empty() {
            due.push(Action::Fire(firings));
        }
        let jobs_due = broker.queue.due_at().is_some_and(|due| due <= at);
        let forget = moment >= self.retention
            && broker.queue.retention_due_at().is_some_and(|due| due <= at);
        if jobs_due || forget {
            self.ticks = (self.ticks * 2).clamp(1, COMMANDS_MAX);
            due.extend(std::iter::repeat_n(Action::Tick, self.ticks));
        } else {
            self.ticks = 0;
        }
        if !forget && moment >= self.retention {
            self.retention = moment + ROUND;
        }
        if due.is_empty() {
            self.set_alarm(broker, at);
        }
        due
    }

    fn set_alarm(&mut self, broker: &mut Broker, at: u64) {
        // A schedule that is due and has no plan has lost its time zone: nothing to hurry for.
        let firing = broker.queue.firing_due_at().filter(|&due| due > at);
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
