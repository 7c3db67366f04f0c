//! What the leader knows of the queues: followed while this server leads, summed up once a second for all pages.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::queue::{Cut, Follower, Metrics, Serving};
use tenure_api::{JobId, NodeId};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::recorder::{QUEUES_MAX, Recorder, Summary};
use super::store::Commits;
use super::{Frame, locked, now};
use crate::app::App;
use crate::problem::Problem;

/// How often the summary is made.
const TICK: Duration = Duration::from_secs(1);

/// How long to wait before the queue is followed again.
const PAUSE: Duration = Duration::from_millis(100);

/// The `queues` event.
#[derive(Debug, Serialize)]
struct QueuesEvent {
    at: u64,
    node: NodeId,
    term: u64,
    /// Since when the queue is served in this term.
    since_at: u64,
    trust: Trust,
    #[serde(flatten)]
    summary: Summary,
    log: Option<LogSummary>,
}

/// How long the leader may act if no further heartbeat gets through.
#[derive(Debug, Serialize)]
struct Trust {
    remaining_ms: u64,
    full_ms: u64,
}

/// What happened to the log since this process was started.
#[derive(Debug, Serialize)]
struct LogSummary {
    position: u64,
    commits: u64,
    records: u64,
    waiting: u64,
    turned_away: u64,
    bytes_since_snapshot: u64,
    snapshot: Option<SnapshotSummary>,
    /// How long it took to read the log before serving.
    recovery_ms: Option<u64>,
    #[serde(flatten)]
    last_minute: Commits,
}

/// The last snapshot that this process wrote.
#[derive(Debug, Serialize)]
struct SnapshotSummary {
    position: u64,
    bytes: u64,
    at: u64,
}

/// Follows the queue in every term that this server serves, until it stops.
pub(super) async fn watch(app: Arc<App>) {
    let mut state = app.queue.watch();
    loop {
        let serving = state.wait_for(|state| matches!(state, Serving::Serving { .. }));
        tokio::select! {
            served = serving => if served.is_err() { return },
            () = app.stop.cancelled() => return,
        }
        *locked(&app.dashboard.recorder) =
            Some(Recorder::new(now(), app.metrics.latencies.clone()));
        tokio::select! {
            () = follow(&app) => {}
            () = app.stop.cancelled() => {}
        }
        *locked(&app.dashboard.recorder) = None;
        app.dashboard.queues.send_replace(None);
        sleep(PAUSE).await;
    }
}

/// Follows until this server no longer serves.
async fn follow(app: &App) {
    let mut follower = app.queue.follow();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            cut = take(app, &mut follower) => match cut {
                // Some events are lost: rates and latencies are too low for a moment, counts stay right.
                Cut::Behind { missed } => {
                    tracing::debug!(missed, "the dashboard fell behind");
                    follower = app.queue.follow();
                }
                _ => return,
            },
            _ = ticks.tick() => if tell(app).is_none() { return },
        }
    }
}

/// Records what is committed, until the follower is cut off.
async fn take(app: &App, follower: &mut Follower) -> Cut {
    let look_up = |id: &JobId| app.queue.job(id).ok().flatten();
    loop {
        match follower.next().await {
            Ok(followed) => {
                if let Some(recorder) = &mut *locked(&app.dashboard.recorder) {
                    recorder.record(followed.at_ms, &followed.events, &look_up);
                }
            }
            Err(cut) => return cut,
        }
    }
}

/// Notes the state of the queues, and tells open pages. `None` if this server no longer serves.
fn tell(app: &App) -> Option<()> {
    if !app.queue.is_serving() {
        return None;
    }
    let now = now();
    look(app, now)?;
    // Without readers, nothing is written.
    if app.dashboard.queues.receiver_count() > 0 {
        let frame = frame(app, now)?;
        app.dashboard.queues.send_replace(Some(frame));
    } else {
        // Otherwise the next page would begin with the state from when the last one was closed.
        let old = |frame: &mut Option<Frame>| frame.take().is_some();
        app.dashboard.queues.send_if_modified(old);
    }
    Some(())
}

/// Notes the state of the listed queues, and the sum of all. Its cost does not depend on the number of queues.
fn look(app: &App, now: u64) -> Option<()> {
    let (counts, total) = app.queue.counts().ok()?;
    let names = locked(&app.dashboard.recorder).as_ref()?.names();
    let mut queues = app.queue.queues_named(names.iter()).ok()?;
    if queues.len() < QUEUES_MAX {
        // There is room for queues that have had no events yet.
        let others = app.queue.queues_behind(None, QUEUES_MAX).ok()?;
        let others = others.into_iter();
        queues.extend(others.filter(|view| !names.contains(&view.name)));
        queues.truncate(QUEUES_MAX);
        queues.sort_by(|one, other| one.name.cmp(&other.name));
    }
    let mut recorder = locked(&app.dashboard.recorder);
    recorder.as_mut()?.tick(now, counts, total, queues);
    Some(())
}

/// What was last noted, as an event.
pub(super) fn frame(app: &App, now: u64) -> Option<Frame> {
    let Serving::Serving { term, since } = app.queue.state() else {
        return None;
    };
    let summary = locked(&app.dashboard.recorder).as_ref()?.summary(now);
    let log = app
        .queue
        .is_serving()
        .then(|| log(app, now, &app.queue.metrics()));
    let told = QueuesEvent {
        at: now,
        node: app.node.id().clone(),
        term: term.0,
        since_at: since.0,
        trust: trust(app),
        summary,
        log,
    };
    Some(Frame::new("queues", &told))
}

fn trust(app: &App) -> Trust {
    let times = app.config.session();
    let full = times.ttl.saturating_sub(times.margin);
    Trust {
        remaining_ms: app.node.metrics().trust_remaining_ms,
        full_ms: u64::try_from(full.as_millis()).unwrap_or(u64::MAX),
    }
}

fn log(app: &App, now: u64, log: &Metrics) -> LogSummary {
    LogSummary {
        position: log.position.0,
        commits: log.commits,
        records: log.records,
        waiting: log.waiting,
        turned_away: log.turned_away,
        bytes_since_snapshot: log.log_bytes,
        snapshot: log.last_snapshot.map(|snapshot| SnapshotSummary {
            position: snapshot.position.0,
            bytes: snapshot.bytes,
            at: snapshot.at.0,
        }),
        recovery_ms: log
            .last_recovery
            .map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        last_minute: locked(&app.dashboard.commits).read(now, log),
    }
}

/// What the `queues` event holds, for those who do not follow
pub(super) async fn show(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let Some(frame) = frame(&app, now()) else {
        return Err(Problem::no_leader("this broker has just been elected"));
    };
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], frame.json()).into_response())
}
