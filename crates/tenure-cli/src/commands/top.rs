//! `tenure top`: the cluster at a glance in a terminal: leader, nodes, queues and rates.
//!
//! It asks a broker once a second, with ordinary calls of the HTTP interface. The terminal is restored however it
//! ends: by a key, a signal or a panic.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tenure_client::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::args::Top;
use crate::commands::at_server;
use crate::signals::Signals;

mod act;
mod inside;
mod order;
mod plain;
mod screen;
mod seen;

use inside::Inside;
use screen::{Screen, Wish};
use seen::Seen;

/// How often the keyboard thread wakes up, which limits how late it notices the end.
const KEYS: Duration = Duration::from_millis(200);

/// Keys that wait while the screen is drawn.
const KEYS_MAX: usize = 64;

pub(crate) async fn run(arguments: Top) -> anyhow::Result<ExitCode> {
    if arguments.once {
        return at_server::ask(&arguments.server, async |client| {
            let seen = Seen::ask(&client, None, &Inside::Nothing).await?;
            at_server::write(&plain::text(&seen))?;
            Ok(ExitCode::SUCCESS)
        })
        .await;
    }
    // Done before the terminal is changed, so that errors in the arguments are printed normally.
    let client = at_server::client(&arguments.server).await?;
    let mut signals = Signals::new()?;
    let terminal = ratatui::try_init().context("cannot use this terminal; try --once")?;
    let shown = tokio::select! {
        shown = show(client, arguments.interval, terminal) => shown,
        stop = signals.next() => {
            ratatui::restore();
            return Ok(stop.exit_code());
        }
    };
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

/// Shows the screen until a key ends it.
async fn show(
    client: Client,
    interval: Duration,
    mut terminal: DefaultTerminal,
) -> anyhow::Result<()> {
    let mut keys = keys().context("cannot start the thread that reads the keyboard; try --once")?;
    let (asked, mut answers) = watch::channel(None);
    let (look, looks) = watch::channel(Inside::Nothing);
    let asking = tokio::spawn(ask(client.clone(), interval, asked, looks));
    let mut screen = Screen::default();
    let shown = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error).context("cannot draw on this terminal");
        }
        tokio::select! {
            event = keys.recv() => match event.map(|event| screen.take(&event)) {
                None | Some(Wish::Quit) => break Ok(()),
                Some(Wish::Nothing) => {}
                // Fetched at once, not with the next refresh.
                Some(Wish::Look) => {
                    look.send_replace(screen.inside().clone());
                }
                Some(Wish::Do(action)) => {
                    screen.said(act::act(&client, action).await);
                }
            },
            changed = answers.changed() => match changed {
                Ok(()) => screen.see(answers.borrow_and_update().clone()),
                Err(_) => break Err(anyhow::anyhow!("the broker is no longer asked")),
            },
        }
    };
    asking.abort();
    shown
}

/// Fetches again and again.
async fn ask(
    client: Client,
    interval: Duration,
    asked: watch::Sender<Option<seen::Answer>>,
    mut looks: watch::Receiver<Inside>,
) {
    let mut before: Option<Arc<Seen>> = None;
    loop {
        let inside = looks.borrow_and_update().clone();
        let answer = Seen::ask(&client, before.as_deref(), &inside).await;
        let answer = answer.map(Arc::new);
        before = answer.as_ref().ok().cloned().or(before);
        let answer = answer.map_err(|error| crate::output::printable(&error.to_string()));
        if asked.send(Some((inside, answer))).is_err() {
            return;
        }
        tokio::select! {
            () = sleep(interval) => {}
            changed = looks.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Reads keys in a separate thread, since reading a terminal blocks.
fn keys() -> std::io::Result<mpsc::Receiver<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    let thread = std::thread::Builder::new().name("keys".to_owned());
    thread.spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEYS) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            // The terminal is gone, or the receiver.
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}
