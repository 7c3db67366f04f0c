//! Elections of one-shot callers: programs call `tenure elect` directly on the store, again and again.
//!
//! Two leaders at the same time are detected from the answers: each caller counts as the leader from the end of its
//! call until the time it was given, counted from the call's start. That is less than the time for which it may act.

use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// How long a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(60);

/// An answer "leader", with the time for which it counts.
#[derive(Debug, Clone)]
struct LeaderAnswer {
    caller: String,
    token: String,
    from: Instant,
    until: Instant,
}

/// The answers of all callers.
#[derive(Debug, Default)]
pub struct Answers(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    calls: u64,
    led: Vec<LeaderAnswer>,
}

/// The summary of the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// How many calls were answered.
    pub calls: u64,
    /// How many of the answers were "leader".
    pub led: u64,
    /// How often the leader changed.
    pub changes: u64,
    /// The times when two led at once.
    pub broken: Vec<String>,
}

impl Answers {
    /// Makes a call with this command, adding the arguments of the election. Returns whether the caller leads, or
    /// `None` if that could not be determined, or if the call was killed after `killed_after`.
    pub async fn call(
        &self,
        mut command: Command,
        caller: &str,
        namespace: &str,
        ttl: Duration,
        killed_after: Option<Duration>,
    ) -> Result<Option<bool>> {
        let ttl = format!("{}ms", ttl.as_millis());
        command
            .args(["elect", "--json", "--election", "calls", "--ttl", &ttl])
            .args(["--namespace", namespace, "--node", caller])
            .env("TENURE_LOG", "off")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let started = Instant::now();
        let output = timeout(killed_after.unwrap_or(CALL_PATIENCE), command.output()).await;
        let output = match output {
            Err(_) if killed_after.is_some() => return Ok(None),
            output => output.context("a call hangs")??,
        };
        let ended = Instant::now();
        // Exit code 2: it could not be determined.
        if output.status.code() == Some(2) {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let is_leader = output.status.success();
        if !is_leader && output.status.code() != Some(1) {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("a call ended with {}: {said}", output.status);
        }
        let mut told = None;
        if is_leader {
            let valid = field(&text, "valid_for_ms").context("no time in the answer")?;
            told = Some(LeaderAnswer {
                caller: caller.to_owned(),
                token: field(&text, "token").unwrap_or_default(),
                from: ended,
                until: started + Duration::from_millis(valid.parse()?),
            });
        }
        let mut all = self.lock();
        all.calls += 1;
        all.led.extend(told);
        Ok(Some(is_leader))
    }

    /// How many answers were "leader" so far.
    #[must_use]
    pub fn led(&self) -> u64 {
        self.lock().led.len() as u64
    }

    /// The whole summary.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let told = self.lock();
        let (changes, broken) = at_once(&told.led);
        Sum {
            calls: told.calls,
            led: told.led.len() as u64,
            changes,
            broken,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often the leader changed, and when two led at once.
fn at_once(led: &[LeaderAnswer]) -> (u64, Vec<String>) {
    let mut led: Vec<&LeaderAnswer> = led.iter().filter(|told| told.from < told.until).collect();
    led.sort_by_key(|told| told.from);
    let (mut changes, mut broken) = (0, Vec::new());
    for (place, told) in led.iter().enumerate() {
        if place > 0 && led[place - 1].caller != told.caller {
            changes += 1;
        }
        for other in &led[..place] {
            if other.caller != told.caller && other.until > told.from {
                let by = other.until.min(told.until) - told.from;
                broken.push(format!(
                    "{} (token {}) and {} (token {}) were both told that they lead, for {by:?}",
                    other.caller, other.token, told.caller, told.token
                ));
            }
        }
    }
    (changes, broken)
}

/// A field of a JSON document in which each name occurs once.
fn field(document: &str, name: &str) -> Option<String> {
    let (_, rest) = document.split_once(&format!("\"{name}\":"))?;
    let value = rest.split([',', '\n', '}']).next()?;
    Some(value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_were_told_that_they_lead_at_one_time_are_found() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let told = |caller: &str, from, until| LeaderAnswer {
            caller: caller.to_owned(),
            token: String::new(),
            from: at(from),
            until: at(until),
        };
        let fine = [told("a", 0, 5), told("a", 3, 8), told("b", 8, 12)];
        assert_eq!(at_once(&fine), (1, Vec::new()));
        let both = [told("b", 7, 12), told("a", 0, 5), told("a", 3, 8)];
        assert_eq!(at_once(&both).1.len(), 1);
    }

    #[test]
    fn a_field_is_found_in_the_answer() {
        let text =
            "{\n  \"is_leader\": true,\n  \"token\": \"ab:3\",\n  \"valid_for_ms\": 1400\n}\n";
        assert_eq!(field(text, "token").as_deref(), Some("ab:3"));
        assert_eq!(field(text, "valid_for_ms").as_deref(), Some("1400"));
    }
}
