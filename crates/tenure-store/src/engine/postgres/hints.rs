//! `LISTEN`, on one connection that all watches of a store share.
//!
//! The connection is opened by the first watch and closed some time after the last one. When it is lost it is opened
//! again, with growing pauses, and every watcher is told to look at everything, since hints may have been lost
//! meanwhile. A lost hint costs latency, never more.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPoolOptions};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval_at, sleep};

use super::super::sql::{CONNECT_WITHIN, answered};
use super::Backend;
use crate::watch::WatchSender;
use crate::{Key, Prefix, Watch};

/// How often to ask whether the connection still works and is still served by the same process, and to drop watchers
/// that are gone.
const CHECK_EVERY: Duration = Duration::from_secs(30);

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The watches of a store. Dropping it ends them.
pub(super) struct Hints {
    options: PgConnectOptions,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of a new watch.
    changed: Notify,
}

#[derive(Default)]
struct State {
    offered: bool,
    watched: Vec<Watched>,
    listener: Option<AbortHandle>,
}

struct Watched {
    channel: String,
    sender: WatchSender,
    /// Whether the watcher knows that hints reach it from now on.
    told: bool,
}

impl Hints {
    pub(super) fn new(options: PgConnectOptions, offered: bool) -> Self {
        let shared = Arc::<Shared>::default();
        shared.state().offered = offered;
        Self { options, shared }
    }

    pub(super) fn are_offered(&self) -> bool {
        self.shared.state().offered
    }

    pub(super) fn watch(&self, channel: String, prefix: &Prefix) -> Option<Watch> {
        let mut state = self.shared.state();
        if !state.offered {
            return None;
        }
        let (sender, watch) = Watch::channel(prefix.clone());
        state.watched.push(Watched {
            channel,
            sender,
            told: false,
        });
        // The task may also have ended with the runtime that it was started on.
        if state.listener.as_ref().is_none_or(AbortHandle::is_finished) {
            let task = tokio::spawn(listen(self.options.clone(), self.shared.clone()));
            state.listener = Some(task.abort_handle());
        }
        self.shared.changed.notify_one();
        Some(watch)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        if let Some(listener) = self.shared.state().listener.take() {
            listener.abort();
        }
    }
}

/// Leaves out the options: they hold the password.
impl std::fmt::Debug for Hints {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Hints").finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic could only leave a watch that gets no hints, which every watch must cope with.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channels that someone watches; `None` if nobody watches now, and the listener has ended.
    fn channels(&self) -> Option<BTreeSet<String>> {
        let mut state = self.state();
        state.watched.retain(|watched| !watched.sender.is_closed());
        if state.watched.is_empty() {
            // Under the same lock, so that the next watch starts a listener.
            state.listener = None;
            return None;
        }
        let channels = state.watched.iter().map(|watched| watched.channel.clone());
        Some(channels.collect())
    }

    /// Tells new watchers to look: changes from before these channels were listened to were missed.
    fn tell_new(&self, heard: &BTreeSet<String>) {
        for watched in &mut self.state().watched {
            if !watched.told && heard.contains(&watched.channel) {
                watched.told = true;
                watched.sender.anything();
            }
        }
    }

    fn forget_told(&self) {
        let mut state = self.state();
        state
            .watched
            .iter_mut()
            .for_each(|watched| watched.told = false);
    }

    fn pass_on(&self, notification: &PgNotification) {
        let key = Key::new(notification.payload());
        for watched in &self.state().watched {
            if watched.channel == notification.channel() {
                match &key {
                    Ok(key) => watched.sender.changed(key),
                    // Anyone who can connect can announce anything, so the payload may not be a key.
                    Err(_) => watched.sender.anything(),
                }
            }
        }
    }

    /// Ends every watch. Their callers poll from now on.
    fn end(&self) {
        *self.state() = State::default();
    }
}

/// Why listening ended.
enum End {
    Unwatched,
    Pooled,
}

/// Listens until nobody watches.
async fn listen(options: PgConnectOptions, shared: Arc<Shared>) {
    let mut pause = PAUSE_MIN;
    loop {
        match listen_once(&options, &shared, &mut pause).await {
            Ok(End::Unwatched) => return,
            Ok(End::Pooled) => {
                tracing::warn!("the database is behind a transaction pooler: no more hints");
                return shared.end();
            }
            Err(error) => {
                tracing::debug!(%error, ?pause, "hints are interrupted");
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Listens until the connection is lost.
async fn listen_once(
    options: &PgConnectOptions,
    shared: &Shared,
    pause: &mut Duration,
) -> Result<End, sqlx::Error> {
    // sqlx lends a listener only from its own pool; this one has no more than that connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(CONNECT_WITHIN)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    let served_by = Backend::of(&mut listener).await?.process;
    shared.forget_told();

    let mut heard = BTreeSet::new();
    let mut check = interval_at(Instant::now() + CHECK_EVERY, CHECK_EVERY);
    loop {
        let Some(wanted) = shared.channels() else {
            return Ok(End::Unwatched);
        };
        for channel in heard.difference(&wanted) {
            answered(listener.unlisten(channel)).await?;
        }
        let new: Vec<&str> = wanted.difference(&heard).map(String::as_str).collect();
        if !new.is_empty() {
            answered(listener.listen_all(new)).await?;
        }
        heard = wanted;
        shared.tell_new(&heard);
        *pause = PAUSE_MIN;

        // Hints that arrive while the channels change are kept by sqlx.
        loop {
            tokio::select! {
                received = listener.try_recv() => match received? {
                    Some(notification) => shared.pass_on(&notification),
                    None => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                },
                () = shared.changed.notified() => break,
                _ = check.tick() => {
                    if Backend::of(&mut listener).await?.process != served_by {
                        return Ok(End::Pooled);
                    }
                    break;
                }
            }
        }
    }
}
