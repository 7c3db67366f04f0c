//! Whether a queue needs attention: one rule, shared by page, terminal and alerts.

use serde::Serialize;

/// A queue needs attention if a job has been ready for longer than this without being claimed.
const PATIENCE_MS: u64 = 60_000;

/// What is known about a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    pub(super) paused: bool,
    /// Claimable, were it not paused or at its limit.
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) concurrency: Option<u32>,
    pub(super) has_rate: bool,
    pub(super) oldest_ready_at: Option<u64>,
    /// When a job was last claimed from it, or when this leader began to watch.
    pub(super) claimed_at: u64,
}

/// How serious it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// May be intended.
    Warn,
    /// Cannot be intended.
    Bad,
}

/// What is wrong with a queue, in words that need no other context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) kind: &'static str,
    pub(super) detail: String,
}

pub(super) fn judge(facts: &Facts, now: u64) -> Option<Finding> {
    let oldest = facts.oldest_ready_at?;
    let ready = facts.ready;
    let waits = now.saturating_sub(oldest);
    let found = |level, kind, detail| {
        Some(Finding {
            level,
            kind,
            detail,
        })
    };
    if facts.paused {
        return found(Level::Warn, "paused", format!("paused, {ready} ready"));
    }
    if waits < PATIENCE_MS {
        return None;
    }
    let waits = span(waits);
    let quiet = now.saturating_sub(facts.claimed_at);
    let full = facts
        .concurrency
        .filter(|limit| facts.running >= u64::from(*limit));
    if let Some(limit) = full {
        let detail =
            format!("{ready} ready, the oldest for {waits}; its limit of {limit} is reached");
        return found(Level::Warn, "limit", detail);
    }
    if quiet >= PATIENCE_MS {
        let detail = format!("{ready} ready, none claimed for {}", span(quiet));
        return found(Level::Bad, "no_workers", detail);
    }
    let why = if facts.has_rate {
        "; its rate is limited"
    } else {
        ""
    };
    let detail = format!("{ready} ready, the oldest for {waits}{why}");
    found(Level::Warn, "behind", detail)
}

/// 45 s, 3 m 20 s, 4 h 05 m, 2 d 3 h
pub(super) fn span(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match hours {
        _ if seconds < 60 => format!("{seconds} s"),
        0 => format!("{minutes} m {:02} s", seconds % 60),
        1..48 => format!("{hours} h {:02} m", minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn waiting(for_ms: u64) -> Facts {
        Facts {
            ready: 3,
            oldest_ready_at: Some(NOW - for_ms),
            claimed_at: NOW - 300_000,
            ..Facts::default()
        }
    }

    fn kind(facts: Facts) -> Option<(&'static str, Level)> {
        judge(&facts, NOW).map(|finding| (finding.kind, finding.level))
    }

    #[test]
    fn a_queue_is_judged_by_what_holds_it_up() {
        assert_eq!(kind(Facts::default()), None);
        assert_eq!(kind(waiting(10_000)), None);
        assert_eq!(kind(waiting(90_000)), Some(("no_workers", Level::Bad)));
        let busy = Facts {
            claimed_at: NOW - 1_000,
            ..waiting(90_000)
        };
        assert_eq!(kind(busy), Some(("behind", Level::Warn)));
        let full = Facts {
            concurrency: Some(2),
            running: 2,
            ..waiting(90_000)
        };
        assert_eq!(kind(full), Some(("limit", Level::Warn)));
        let paused = Facts {
            paused: true,
            ..waiting(1)
        };
        assert_eq!(kind(paused), Some(("paused", Level::Warn)));
    }

    #[test]
    fn what_is_said_can_be_read_alone() {
        let found = judge(&waiting(90_000), NOW).unwrap();
        assert_eq!(found.detail, "3 ready, none claimed for 5 m 00 s");
    }

    #[test]
    fn times_are_short() {
        let shown = [59_999, 60_000, 3_725_000, 200_000_000].map(span);
        assert_eq!(shown, ["59 s", "1 m 00 s", "1 h 02 m", "2 d 7 h"]);
    }
}
