//! The audit trail: who changed what, and who was refused. It is written as log lines under their own target, and
//! counted.
//!
//! Every call that needs the scope `admin` gets a line, and so does every call that is refused because its token,
//! scope or origin is missing or not allowed. A line names the caller by the start of its token's digest and by its
//! address, and the call by its path. It never holds the token, a payload or a body. A call that a standby forwards
//! gets a line on both brokers, and is counted where it is answered.
//!
//! Anyone can cause refusals for free, so the number of lines about them is limited, and the next line says how many
//! were left out. All refusals are counted.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::Tokens;
use crate::connections::Connection;
use crate::forward::FORWARDED;

/// The log target, to filter by.
const TARGET: &str = "tenure_server::audit";

/// The most lines about refusals in one window.
const LINES_MAX: u32 = 20;

const WINDOW: Duration = Duration::from_secs(10);

/// The most characters of a path or a detail: a caller chooses them.
const CHARACTERS_MAX: usize = 200;

/// The names of the calls that need `admin`.
const ACTIONS: [(&Method, &str, &str); 20] = [
    (&Method::POST, "/v1/jobs/{id}/cancel", "cancel_job"),
    (&Method::POST, "/v1/jobs/{id}/retry", "retry_job"),
    (&Method::POST, "/v1/jobs/retry", "retry_jobs"),
    (&Method::POST, "/v1/jobs/move", "move_jobs"),
    (&Method::DELETE, "/v1/jobs/{id}", "delete_job"),
    (&Method::PUT, "/v1/queues/{queue}", "set_queue"),
    (&Method::PATCH, "/v1/queues/{queue}", "change_queue"),
    (&Method::POST, "/v1/queues/{queue}/pause", "pause_queue"),
    (&Method::POST, "/v1/queues/{queue}/resume", "resume_queue"),
    (&Method::PUT, "/v1/settings", "set_settings"),
    (&Method::PATCH, "/v1/settings", "change_settings"),
    (&Method::PUT, "/v1/time", "set_time"),
    (&Method::PUT, "/v1/schedules/{name}", "set_schedule"),
    (&Method::DELETE, "/v1/schedules/{name}", "delete_schedule"),
    (
        &Method::POST,
        "/v1/schedules/{name}/pause",
        "pause_schedule",
    ),
    (
        &Method::POST,
        "/v1/schedules/{name}/resume",
        "resume_schedule",
    ),
    (&Method::POST, "/v1/leader/resign", "resign"),
    (&Method::POST, "/v1/leader/transfer", "transfer"),
    (&Method::POST, "/v1/nodes/{node}/drain", "drain_node"),
    (&Method::POST, "/v1/nodes/{node}/undrain", "undrain_node"),
];

/// Any other call that is refused, or that needs `admin`.
const OTHER: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    action: &'static str,
    outcome: &'static str,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
    /// No token, or an unknown one.
    Unauthorized,
    /// The token's scope does not allow the call.
    Forbidden,
    /// The call came from a web page of another origin.
    CrossSite,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Done,
        Self::Failed,
        Self::Unauthorized,
        Self::Forbidden,
        Self::CrossSite,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::CrossSite => "cross_site",
        }
    }
}

/// The audit trail of one server.
#[derive(Debug)]
pub(crate) struct Audit {
    counts: Family<Labels, Counter>,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    unsaid: u64,
}

/// A call to record.
#[derive(Debug)]
pub(crate) struct Entry {
    action: &'static str,
    call: String,
    who: String,
    from: String,
    forwarded_for: Option<SocketAddr>,
}

/// What a handler adds to the line of its call, attached to the answer.
#[derive(Debug, Clone)]
pub(crate) struct Detail(String);

/// Attaches a detail to an answer: its audit line shows it beside the path.
pub(crate) fn detailed(mut response: Response, detail: impl Into<String>) -> Response {
    response.extensions_mut().insert(Detail(detail.into()));
    response
}

impl Audit {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let counts = Family::<Labels, Counter>::default();
        // Counters start at zero; otherwise the first call of a kind would not show as an increase.
        let actions = ACTIONS.iter().map(|(_, _, action)| *action);
        for action in actions.chain([OTHER]) {
            for outcome in Outcome::ALL {
                let outcome = outcome.word();
                drop(counts.get_or_create(&Labels { action, outcome }));
            }
        }
        registry.sub_registry_with_prefix("tenure").register(
            "audit",
            "Changes by operators and refused calls, by outcome",
            counts.clone(),
        );
        Self {
            counts,
            window: Mutex::default(),
        }
    }

    /// Records that an allowed call has ended. A call that was forwarded to the leader is counted there.
    pub(crate) fn ended(
        &self,
        entry: &Entry,
        status: StatusCode,
        detail: Option<&Detail>,
        was_passed_on: bool,
    ) {
        let outcome = if status.is_success() {
            Outcome::Done
        } else {
            Outcome::Failed
        };
        if !was_passed_on {
            self.count(entry, outcome);
        }
        let detail = detail.map(|Detail(text)| shown(text));
        tracing::info!(
            target: TARGET,
            action = entry.action,
            outcome = outcome.word(),
            who = entry.who,
            from = entry.from,
            forwarded_for = entry.forwarded_for.map(tracing::field::display),
            call = entry.call,
            status = status.as_u16(),
            detail,
            passed_on = was_passed_on,
            "an operator's call"
        );
    }

    /// Records a refusal.
    pub(crate) fn refused(&self, entry: &Entry, outcome: Outcome) {
        self.count(entry, outcome);
        let Some(unsaid) = self.may_say(Instant::now()) else {
            return;
        };
        tracing::info!(
            target: TARGET,
            action = entry.action,
            outcome = outcome.word(),
            who = entry.who,
            from = entry.from,
            forwarded_for = entry.forwarded_for.map(tracing::field::display),
            call = entry.call,
            not_shown_before = unsaid,
            "refused a call"
        );
    }

    fn count(&self, entry: &Entry, outcome: Outcome) {
        let labels = Labels {
            action: entry.action,
            outcome: outcome.word(),
        };
        self.counts.get_or_create(&labels).inc();
    }

    /// How many lines were left out before this one, or `None` if this one must be left out too.
    fn may_say(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.is_none_or(|began| now - began >= WINDOW) {
            window.began = Some(now);
            window.lines = 0;
        }
        if window.lines >= LINES_MAX {
            window.unsaid += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.unsaid))
    }
}

impl Entry {
    pub(crate) fn new(
        route: &str,
        request: &Request,
        tokens: &Tokens,
        connection: Option<&Connection>,
    ) -> Self {
        let method = request.method();
        let known = ACTIONS
            .iter()
            .find(|(each, path, _)| *each == method && *path == route);
        Self {
            action: known.map_or(OTHER, |(_, _, action)| action),
            call: shown(&format!("{method} {}", request.uri().path())),
            who: tokens.who(request.headers()),
            from: connection.map_or_else(String::new, |connection| connection.peer().to_string()),
            forwarded_for: forwarded_for(request.headers()),
        }
    }
}

/// The client on whose behalf a standby asks, according to the standby. Anyone who can reach this server can claim
/// this.
fn forwarded_for(headers: &HeaderMap) -> Option<SocketAddr> {
    headers.get(FORWARDED)?.to_str().ok()?.parse().ok()
}

/// Text that a caller chose, shortened and on one line.
fn shown(text: &str) -> String {
    let plain = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    text.chars().take(CHARACTERS_MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_has_few_lines_and_every_one_is_counted() {
        let audit = Audit::new(&mut Registry::default());
        let request = Request::new(axum::body::Body::empty());
        let entry = Entry::new("/v1/jobs", &request, &Tokens::none(), None);
        let said = |audit: &Audit| audit.may_say(Instant::now());
        let lines = (0..1_000).filter(|_| said(&audit).is_some()).count();
        assert_eq!(lines, LINES_MAX as usize);
        tokio::time::advance(WINDOW).await;
        assert_eq!(said(&audit), Some(980));
        assert_eq!(said(&audit), Some(0));
        for _ in 0..1_000 {
            audit.refused(&entry, Outcome::Unauthorized);
        }
        let labels = Labels {
            action: OTHER,
            outcome: "unauthorized",
        };
        assert_eq!(audit.counts.get_or_create(&labels).get(), 1_000);
    }

    #[test]
    fn what_a_caller_chose_stays_on_one_line() {
        assert_eq!(shown("a\nb\u{1b}[31m"), "a b [31m");
        assert_eq!(shown(&"x".repeat(1_000)).len(), CHARACTERS_MAX);
    }
}
