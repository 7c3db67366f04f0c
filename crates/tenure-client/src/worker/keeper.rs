//! Heartbeats: one call for all claims, three times per lease.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_api::Payload;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::Shared;
use super::job::Control;
use crate::claims::Claim;
use crate::clock;
use crate::error::Error;

/// The most claims of one call.
const BATCH_MAX: usize = 500;

/// Progress is sent this often at most.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How often trust is looked at. Also what a resume from suspend is noticed by.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Between two looks for claims to keep when there are none.
const IDLE: Duration = Duration::from_secs(1);

/// Keeps claims until it is dropped.
pub(crate) async fn keep(shared: &Shared) {
    let mut last = Instant::now();
    loop {
        let interval = shared.board.interval().unwrap_or(IDLE);
        let due = last + interval;
        let early = last + PROGRESS_EVERY.min(interval);
        // Woken by progress, and by a claim: its lease may be shorter than those before it, or have begun long ago.
        let woken = timeout_at(due, shared.wake.notified()).await.is_ok();
        if shared.board.take_urgent() {
            // Not a moment later.
        } else if woken && shared.board.has_progress() {
            sleep_until(early.min(due)).await;
        } else if woken {
            continue;
        }
        last = Instant::now();
        send(shared, interval).await;
    }
}

/// Stops handlers whose claims can no longer be trusted, until it is dropped. Apart from [`keep`], since a
/// heartbeat that hangs must not hold this up.
pub(crate) async fn watch(shared: &Shared) {
    loop {
        sleep(LOOK_EVERY).await;
        let expired = shared.board.expire(clock::now());
        if expired > 0 {
            tracing::warn!(
                expired,
                "no heartbeat got through for a full lease: stopping the handlers"
            );
        }
    }
}

async fn send(shared: &Shared, interval: Duration) {
    let held = shared.board.to_keep();
    let calls = held
        .chunks(BATCH_MAX)
        .map(|claims| beat(shared, claims, interval));
    join_all(calls).await;
}

async fn beat(shared: &Shared, held: &[Arc<Control>], interval: Duration) {
    let claims: Vec<(Claim, Option<Payload>)> = held
        .iter()
        .map(|control| (control.claim.clone(), control.take_progress()))
        .collect();
    let sent = clock::now();
    // The next round takes over where this one gives up.
    let mut answer = shared
        .client
        .heartbeat_within(&claims, Some(interval))
        .await;
    let mut alone = Vec::new();
    if let Err(Error::Invalid(problem)) = &answer {
        // Somebody's progress was refused, and with it the heartbeats of all others.
        tracing::warn!(%problem, "sending heartbeats without progress");
        let bare: Vec<_> = claims
            .iter()
            .map(|(claim, _)| (claim.clone(), None))
            .collect();
        answer = shared.client.heartbeat_within(&bare, Some(interval)).await;
        alone = claims;
        alone.retain(|(_, progress)| progress.is_some());
    }
    match answer {
        Ok(ended) => {
            for (control, ended) in held.iter().zip(ended) {
                shared.board.answered(control, ended, sent);
            }
        }
        Err(error) => tracing::warn!(%error, claims = held.len(), "no heartbeat got through"),
    }
    // For as long as the next round can wait; the rest of it is not shown.
    let _ = timeout(interval, show_each(shared, alone)).await;
}

/// Sends each progress by itself, so that the one that was refused keeps no other from being shown.
async fn show_each(shared: &Shared, alone: Vec<(Claim, Option<Payload>)>) {
    for item in alone {
        let shown = shared
            .client
            .heartbeat_within(std::slice::from_ref(&item), None)
            .await;
        if let Err(Error::Invalid(problem)) = shown {
            tracing::warn!(id = %item.0.id, %problem, "the progress of a job was refused and is not shown");
        }
    }
}
