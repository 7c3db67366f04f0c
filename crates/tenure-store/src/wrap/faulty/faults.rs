//! What can go wrong, and how often.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;

use crate::Error;
#[cfg(doc)]
use crate::wrap::faulty::Faulty;

/// How often each fault happens, as probabilities from 0 to 1. The default is never.
///
/// A request suffers at most one of `refused` to `retried`, so these add up to at most 1. Reads suffer only
/// delays, refusals and wrong ages.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// A request takes longer, by a time drawn from `delay`.
    pub delayed: f64,
    /// How much longer. A random part of the time passes before the store acts, the rest after.
    pub delay: RangeInclusive<Duration>,
    /// Not sent: `Unavailable`.
    pub refused: f64,
    /// Applied, and the answer lost: `Unknown`.
    pub answer_lost: f64,
    /// Never sent: `Unknown`.
    pub request_lost: f64,
    /// `Unknown` now, sent after a time drawn from `late_by`.
    pub late: f64,
    /// When a late request is sent.
    pub late_by: RangeInclusive<Duration>,
    /// Sent twice, answered with the first answer.
    pub duplicated: f64,
    /// Sent twice, answered with the second answer.
    pub retried: f64,
    /// A read gives an age that is too small, or none.
    pub young: f64,
    /// A hint is lost.
    pub hint_lost: f64,
    /// A hint comes twice.
    pub hint_doubled: f64,
    /// A hint, with those behind it, is late by a time drawn from `late_by`.
    pub hint_late: f64,
}

/// What [`Faulty::script`] does to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Takes this much longer before the store acts.
    Delay(Duration),
    /// Is not sent: `Unavailable`.
    Refuse,
    /// Does not answer until [`Faulty::release`] is called, and is sent only then.
    Hang,
    /// Writes only: is applied, then `Unknown`.
    LoseAnswer,
    /// Writes only: is never sent, `Unknown`.
    LoseRequest,
    /// Writes only: `Unknown` at once, sent after this time.
    Late(Duration),
    /// Writes only: is sent twice, answered with the first answer.
    Duplicate,
    /// Writes only: is sent twice, answered with the second answer.
    Retry,
}

/// What happens to every request while it lasts. Hints are lost meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outage {
    /// Nothing: the store works.
    #[default]
    Over,
    /// `Unavailable`, as when nothing listens at the address.
    Refusing,
    /// Reads are `Unavailable`, writes `Unknown` and applied or not by chance, as when the network breaks.
    Breaking,
    /// No answer until the outage is over; then the request is sent. One that is dropped before is never sent.
    Hanging,
}

/// The kinds of faults, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // Named after the faults.
pub enum Kind {
    Delayed,
    Refused,
    AnswerLost,
    RequestLost,
    Late,
    Duplicated,
    Retried,
    Young,
    HintLost,
    HintDoubled,
    HintLate,
    Outage,
    Hung,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Self; 13] = [
        Self::Delayed,
        Self::Refused,
        Self::AnswerLost,
        Self::RequestLost,
        Self::Late,
        Self::Duplicated,
        Self::Retried,
        Self::Young,
        Self::HintLost,
        Self::HintDoubled,
        Self::HintLate,
        Self::Outage,
        Self::Hung,
    ];
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delayed: 0.0,
            delay: Duration::ZERO..=Duration::from_millis(20),
            refused: 0.0,
            answer_lost: 0.0,
            request_lost: 0.0,
            late: 0.0,
            late_by: Duration::ZERO..=Duration::from_millis(100),
            duplicated: 0.0,
            retried: 0.0,
            young: 0.0,
            hint_lost: 0.0,
            hint_doubled: 0.0,
            hint_late: 0.0,
        }
    }
}

impl Faults {
    /// Reports every violation at once.
    pub(super) fn check(&self) -> Result<(), Error> {
        let requests = self.refused + self.answer_lost + self.request_lost;
        let requests = requests + self.late + self.duplicated + self.retried;
        let hints = self.hint_lost + self.hint_doubled + self.hint_late;
        let mut violations = Vec::new();
        for (name, probability) in [
            ("delayed", self.delayed),
            ("refused", self.refused),
            ("answer_lost", self.answer_lost),
            ("request_lost", self.request_lost),
            ("late", self.late),
            ("duplicated", self.duplicated),
            ("retried", self.retried),
            ("refused to retried together", requests),
            ("young", self.young),
            ("hint_lost", self.hint_lost),
            ("hint_doubled", self.hint_doubled),
            ("hint_late", self.hint_late),
            ("hint_lost to hint_late together", hints),
        ] {
            // Sums of decimal fractions can miss 1 by a hair.
            if !(0.0..=1.0 + 1e-9).contains(&probability) {
                violations.push(format!("{name} is {probability}, but must be from 0 to 1"));
            }
        }
        for (name, range) in [("delay", &self.delay), ("late_by", &self.late_by)] {
            if range.is_empty() {
                violations.push(format!("{name} ends before it begins: {range:?}"));
            }
        }
        if violations.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(
            format!("the faults are not valid: {}", violations.join("; ")),
            "use probabilities from 0 to 1",
        ))
    }
}
