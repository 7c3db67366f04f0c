//! What happens to each request and hint, drawn from the seed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Fault, Faults, Kind};
use crate::wrap::metered::Operation;

/// The state that decides, and the count of what was decided. Ordered maps only, so that a seed always gives the same
/// run.
#[derive(Debug)]
pub(super) struct Fates {
    pub(super) faults: Faults,
    pub(super) injected: BTreeMap<Kind, u64>,
    scripts: BTreeMap<(Operation, String), VecDeque<Fault>>,
    seed: u64,
    chance: Chance,
    watches: u64,
}

/// What happens to one request, decided before anything is sent.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) fault: Option<Fault>,
    /// How long to wait before the store acts, and how long after.
    pub(super) before: Duration,
    pub(super) after: Duration,
    /// If the network breaks: whether a write arrives first.
    pub(super) reaches: bool,
    /// Whether the age is wrong; if so, the draw that says how.
    pub(super) youth: Option<f64>,
}

impl Fates {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            injected: Kind::ALL.map(|kind| (kind, 0)).into(),
            scripts: BTreeMap::new(),
            seed,
            chance: Chance(seed),
            watches: 0,
        }
    }

    pub(super) fn script(&mut self, operation: Operation, subject: String, fault: Fault) {
        let scripts = self.scripts.entry((operation, subject)).or_default();
        scripts.push_back(fault);
    }

    /// Draws a request's fate: always the same number of draws.
    pub(super) fn request(&mut self, operation: Operation, subject: &str) -> Fate {
        let draws: [f64; 8] = std::array::from_fn(|_| self.chance.next());
        let [fault, delayed, delay, split, late_by, reaches, young, youth] = draws;
        let faults = &self.faults;
        let late = Fault::Late(within(&faults.late_by, late_by));
        let events = [
            (Fault::Refuse, faults.refused),
            (Fault::LoseAnswer, faults.answer_lost),
            (Fault::LoseRequest, faults.request_lost),
            (late, faults.late),
            (Fault::Duplicate, faults.duplicated),
            (Fault::Retry, faults.retried),
        ];
        let delay = if delayed < faults.delayed {
            within(&faults.delay, delay)
        } else {
            Duration::ZERO
        };
        let mut fate = Fate {
            fault: pick(fault, events)
                .filter(|fault| operation.is_write() || *fault == Fault::Refuse),
            before: delay.mul_f64(split),
            after: delay.mul_f64(1.0 - split),
            reaches: reaches < 0.5,
            youth: (young < faults.young).then_some(youth),
        };
        let on = (operation, subject.to_owned());
        if let Some(fault) = self.scripts.get_mut(&on).and_then(VecDeque::pop_front) {
            if let Fault::Delay(delay) = fault {
                (fate.before, fate.after) = (delay, Duration::ZERO);
            }
            fate.fault = Some(fault);
        }
        fate
    }

    /// A separate sequence for the next watch. Its hints come at any time, and must not shift what the requests draw.
    pub(super) fn hints(&mut self) -> Chance {
        self.watches += 1;
        Chance(!self.seed ^ self.watches)
    }

    /// Draws a hint's fate, and how late it is.
    pub(super) fn hint(&self, chance: &mut Chance) -> (Option<Kind>, Duration) {
        let (draw, late_by) = (chance.next(), chance.next());
        let events = [
            (Kind::HintLost, self.faults.hint_lost),
            (Kind::HintDoubled, self.faults.hint_doubled),
            (Kind::HintLate, self.faults.hint_late),
        ];
        (pick(draw, events), within(&self.faults.late_by, late_by))
    }

    pub(super) fn count(&mut self, kind: Kind) {
        *self.injected.entry(kind).or_default() += 1;
    }

    /// Counts what certainly happens to a request. Hanging and wrong ages are counted where they happen.
    pub(super) fn count_fate(&mut self, fate: &Fate) {
        if !fate.before.is_zero() || !fate.after.is_zero() {
            self.count(Kind::Delayed);
        }
        match fate.fault {
            Some(Fault::Refuse) => self.count(Kind::Refused),
            Some(Fault::LoseAnswer) => self.count(Kind::AnswerLost),
            Some(Fault::LoseRequest) => self.count(Kind::RequestLost),
            Some(Fault::Late(_)) => self.count(Kind::Late),
            Some(Fault::Duplicate) => self.count(Kind::Duplicated),
            Some(Fault::Retry) => self.count(Kind::Retried),
            Some(Fault::Delay(_) | Fault::Hang) | None => {}
        }
    }
}

/// The one of several exclusive events that a draw from 0 to 1 hits.
fn pick<T, const N: usize>(draw: f64, events: [(T, f64); N]) -> Option<T> {
    let mut reached = 0.0;
    events.into_iter().find_map(|(event, probability)| {
        reached += probability;
        (draw < reached).then_some(event)
    })
}

fn within(range: &RangeInclusive<Duration>, draw: f64) -> Duration {
    *range.start() + (*range.end() - *range.start()).mul_f64(draw)
}

/// Chance from a seed: splitmix64.
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// From 0 to just below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_splitmix64() {
        // The first outputs for the seed 1234567, as published with the algorithm.
        let published = [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973];
        let mut chance = Chance(1_234_567);
        for bits in published {
            let expected = (bits >> 11) as f64 / (1_u64 << 53) as f64;
            assert_eq!(chance.next().to_bits(), expected.to_bits());
        }
    }

    #[test]
    fn a_draw_hits_events_as_often_as_they_are_likely() {
        let mut chance = Chance(7);
        let mut hits = [0; 3];
        for _ in 0..10_000 {
            match pick(chance.next(), [('a', 0.1), ('b', 0.0), ('c', 0.6)]) {
                Some('a') => hits[0] += 1,
                Some('c') => hits[2] += 1,
                Some(_) => hits[1] += 1,
                None => {}
            }
        }
        assert!((900..1100).contains(&hits[0]), "{hits:?}");
        assert_eq!(hits[1], 0);
        assert!((5800..6200).contains(&hits[2]), "{hits:?}");
    }
}
