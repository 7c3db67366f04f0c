//! Keeps past events while somebody follows them, and for a while afterwards, so that a client that reconnects finds
//! them. Without followers this would be wasted: it costs memory, and for the cluster a listing of the store with
//! every heartbeat.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::kinds::Kinds;
use crate::app::App;

/// How long past events are kept after the last follower has gone.
const KEPT_FOR: Duration = Duration::from_secs(10 * 60);

/// The followers of each source.
#[derive(Debug, Default)]
pub(crate) struct Past {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: Followers,
    cluster: Followers,
    /// Whether a task already waits to end the keeping.
    is_waited_for: bool,
}

#[derive(Debug, Default)]
struct Followers {
    count: usize,
    /// If set, past events are kept: until then if there are no followers.
    kept_until: Option<Instant>,
}

impl Past {
    /// Keeps past events of these kinds from now on, for as long as the returned hold lives and a while longer.
    pub(super) fn hold(&self, app: &Arc<App>, kinds: &Kinds) -> Hold {
        let hold = Hold {
            app: app.clone(),
            runtime: Handle::current(),
            queue: kinds.are_of_queue(),
            cluster: kinds.are_of_cluster(),
        };
        let mut state = self.state();
        if hold.queue {
            state.queue.count += 1;
            state.queue.kept_until = Some(Instant::now());
            // Even if it is already kept: this may be a new term.
            app.queue.keep_past(true);
        }
        if hold.cluster {
            state.cluster.count += 1;
            if state.cluster.kept_until.replace(Instant::now()).is_none() {
                app.cluster.set_follows(true);
            }
        }
        hold
    }

    /// The lock guards plain numbers, which stay consistent if another thread panics.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Stops keeping what has had no follower for long enough. Returns when to look again, if needed.
    fn let_go(&mut self, app: &App, now: Instant) -> Option<Instant> {
        if self.queue.is_over(now) {
            app.queue.keep_past(false);
        }
        if self.cluster.is_over(now) {
            app.cluster.set_follows(false);
        }
        let waited_for = [&self.queue, &self.cluster].into_iter();
        let waited_for = waited_for.filter(|each| each.count == 0);
        waited_for.filter_map(|each| each.kept_until).min()
    }
}

impl Followers {
    fn gone(&mut self) {
        self.count -= 1;
        self.kept_until = Some(Instant::now() + KEPT_FOR);
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let is_over = self.count == 0 && self.kept_until.is_some_and(|until| until <= now);
        if is_over {
            self.kept_until = None;
        }
        is_over
    }
}

/// One follower.
#[derive(Debug)]
pub(super) struct Hold {
    app: Arc<App>,
    runtime: Handle,
    queue: bool,
    cluster: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.app.past.state();
        if self.queue {
            state.queue.gone();
        }
        if self.cluster {
            state.cluster.gone();
        }
        if !std::mem::replace(&mut state.is_waited_for, true) {
            self.runtime.spawn(wait(self.app.clone()));
        }
    }
}

async fn wait(app: Arc<App>) {
    loop {
        let until = {
            let mut state = app.past.state();
            let until = state.let_go(&app, Instant::now());
            state.is_waited_for = until.is_some();
            until
        };
        let Some(until) = until else { return };
        tokio::select! {
            () = sleep_until(until) => {}
            () = app.stop.cancelled() => return,
        }
    }
}
