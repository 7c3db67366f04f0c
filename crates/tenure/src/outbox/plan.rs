//! What a relay does next: which rows it looks for, which of them it may deliver, and when it tries again. No I/O and no clock: time
//! is an argument.
//!
//! - A row of a group is delivered only if all before it in its group have been, or are dead. The plan remembers the next
//!   position of each group that it has seen; where that does not fit, or is not known, the group is read from its first row on.
//! - Rows are found behind the cursor, and below it by sweeps in portions: `outbox.rs` says why.
//! - What is remembered is bounded, and may be forgotten at any time: then the table is read again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::database::{Light, PAGE_BYTES_MAX, Settlement, Wanted};
use super::deliver::Outcome;
use super::row::Row;

/// How a relay goes about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The most rows of one delivery. At most what the queue takes at once. Default 1,000.
    pub batch_max: usize,
    /// How often a row is tried before it is dead. A row that is refused for good is dead at once, and a target that cannot be
    /// reached costs no attempt. Default 10.
    pub attempts_max: u32,
    /// The wait after the first failure of a row; it doubles with each. Default 1 s.
    pub backoff_first: Duration,
    /// The longest wait between two tries. Default 1 min.
    pub backoff_max: Duration,
    /// How soon to look again when there was nothing. Default 250 ms.
    pub poll_min: Duration,
    /// How long the wait grows while there is nothing. Default 5 s.
    pub poll_max: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            batch_max: 1_000,
            attempts_max: 10,
            backoff_first: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            poll_min: Duration::from_millis(250),
            poll_max: Duration::from_secs(5),
        }
    }
}

impl Policy {
    /// The wait after so many failures.
    fn backoff(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.backoff_first
            .saturating_mul(1 << doublings)
            .min(self.backoff_max)
    }
}

/// The most groups that are remembered, and the most rows that wait for another try or are to be read.
const REMEMBERED_MAX: usize = 50_000;

/// The most groups that are read at once.
const GROUPS_MAX: usize = 200;

/// The most rows of a portion of a sweep.
const SWEPT_MAX: usize = 1_000;

/// A portion of a sweep spans this many numbers at first, and at least.
const WIDTH_MIN: i64 = 1_000;
const WIDTH_FIRST: i64 = 100_000;
const WIDTH_MAX: i64 = 1 << 40;

/// A portion should take about this long.
const PORTION: Duration = Duration::from_millis(20);

/// How much longer than it took the relay waits before the next portion.
const SWEEP_REST: u32 = 9;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Read these rows, and say so with [`Plan::read`].
    Read(Wanted),
    /// Look at the numbers in `(from, to]`, and say so with [`Plan::swept`].
    Sweep { from: i64, to: i64, limit: usize },
    /// There is nothing to do before this time, unless a hint comes; then [`Plan::wake`].
    Wait(Duration),
}

/// The memory of a relay.
#[derive(Debug)]
pub(super) struct Plan {
    policy: Policy,
    /// All rows up to here were seen, but for those that were not committed then.
    cursor: i64,
    /// The last read behind the cursor found nothing.
    is_at_end: bool,
    sweep: Sweep,
    lanes: BTreeMap<String, Lane>,
    /// Groups to be read, each once.
    looks: VecDeque<String>,
    /// How many groups are read at once: fewer after an answer that was cut off.
    looks_max: usize,
    /// How many rows are read at once: fewer while they are so large that most of a page is left behind, or the database cannot bring so many
    /// in time.
    page_max: usize,
    /// Rows without a group that are to be read.
    fetch: BTreeSet<i64>,
    /// Rows without a group that are tried again at this time.
    held: BTreeMap<i64, Duration>,
    /// Rows without a group that are being delivered.
    in_flight: BTreeSet<i64>,
    /// The target could not be reached: nothing is read before this time.
    paused_until: Duration,
    pauses: u32,
    poll: Duration,
    poll_at: Duration,
    turn: u8,
}

#[derive(Debug)]
struct Sweep {
    /// How far this pass has come.
    at: i64,
    width: i64,
    due: Duration,
}

/// One group.
#[derive(Debug, Default)]
struct Lane {
    /// The position that comes next, if it is known.
    next: Option<i64>,
    /// Not before this time.
    blocked: Option<Duration>,
    is_in_flight: bool,
    is_in_looks: bool,
}

impl Plan {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            poll: policy.poll_min,
            page_max: policy.batch_max,
            policy,
            cursor: 0,
            is_at_end: false,
            sweep: Sweep {
                at: 0,
                width: WIDTH_FIRST,
                due: Duration::ZERO,
            },
            lanes: BTreeMap::new(),
            looks: VecDeque::new(),
            looks_max: GROUPS_MAX,
            fetch: BTreeSet::new(),
            held: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            paused_until: Duration::ZERO,
            pauses: 0,
            poll_at: Duration::ZERO,
            turn: 0,
        }
    }

    /// As it begins, after the database has failed: it may be that it could not bring so many rows at once.
    pub(super) fn after_trouble(&self) -> Self {
        let mut plan = Self::new(self.policy.clone());
        plan.page_max = (self.page_max / 2).max(1);
        plan
    }

    /// There may be something new.
    pub(super) fn wake(&mut self) {
        self.is_at_end = false;
        self.poll = self.policy.poll_min;
    }

    /// Somebody has just said that the relay waits: one more look, and then it does.
    pub(super) fn look_again(&mut self) {
        self.is_at_end = false;
    }

    #[must_use]
    pub(super) fn next(&mut self, now: Duration) -> Step {
        if now < self.paused_until {
            return Step::Wait(self.paused_until - now);
        }
        self.release_due(now);
        if self.is_at_end && now >= self.poll_at {
            self.is_at_end = false;
        }
        // In turns, so that none of them keeps the others waiting.
        for _ in 0..4 {
            self.turn = (self.turn + 1) % 4;
            let step = match self.turn {
                0 if !self.is_at_end => Some(Step::Read(Wanted::After(self.cursor, self.page_max))),
                1 => self.groups_to_read(),
                2 => self.rows_to_fetch(),
                3 => self.portion(now),
                _ => None,
            };
            if let Some(step) = step {
                return step;
            }
        }
        let blocked = self.lanes.values().filter_map(|lane| lane.blocked);
        let tries = self.held.values().copied().chain(blocked);
        let sweep = (self.cursor > 0).then_some(self.sweep.due.max(self.poll_at));
        let until = tries.chain(sweep).chain([self.poll_at]).min();
        let until = until
            .unwrap_or(self.poll_at)
            .max(now + Duration::from_millis(1));
        Step::Wait(until - now)
    }

    /// What is to be tried again now.
    fn release_due(&mut self, now: Duration) {
        let due: Vec<i64> = self
            .held
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in due {
            self.held.remove(&seq);
            self.fetch.insert(seq);
        }
        for (group, lane) in &mut self.lanes {
            if lane.blocked.is_some_and(|at| at <= now) {
                lane.blocked = None;
                if !lane.is_in_looks {
                    lane.is_in_looks = true;
                    self.looks.push_back(group.clone());
                }
            }
        }
    }

    fn groups_to_read(&mut self) -> Option<Step> {
        let mut groups = Vec::new();
        for _ in 0..self.looks.len() {
            if groups.len() == self.looks_max {
                break;
            }
            let group = self.looks.pop_front()?;
            let lane = self.lanes.entry(group.clone()).or_default();
            if lane.blocked.is_some() {
                // It is looked at again when it is let go.
                lane.is_in_looks = false;
            } else if lane.is_in_flight {
                self.looks.push_back(group);
            } else {
                lane.is_in_looks = false;
                groups.push(group);
            }
        }
        if groups.is_empty() {
            return None;
        }
        Some(Step::Read(Wanted::Groups(groups, self.page_max)))
    }

    fn rows_to_fetch(&mut self) -> Option<Step> {
        let count = self.fetch.len().min(self.page_max);
        let rows: Vec<i64> = (0..count).filter_map(|_| self.fetch.pop_first()).collect();
        (!rows.is_empty()).then_some(Step::Read(Wanted::These(rows)))
    }

    fn portion(&mut self, now: Duration) -> Option<Step> {
        let is_wanted =
            now >= self.sweep.due && self.cursor > 0 && self.fetch.len() < REMEMBERED_MAX;
        is_wanted.then(|| Step::Sweep {
            from: self.sweep.at,
            to: self
                .cursor
                .min(self.sweep.at.saturating_add(self.sweep.width)),
            limit: SWEPT_MAX,
        })
    }

    /// What a portion of a sweep has found, and how long it took.
    pub(super) fn swept(&mut self, to: i64, found: &[Light], took: Duration, now: Duration) {
        for row in found {
            match &row.group {
                None if self.held.contains_key(&row.seq) || self.in_flight.contains(&row.seq) => {}
                None => drop(self.fetch.insert(row.seq)),
                Some(group) => self.look_at(group),
            }
        }
        self.sweep.width = if took > PORTION * 2 {
            // Of what there was to look at, which may be far less than the width.
            (self.sweep.width.min(self.cursor) / 2).max(WIDTH_MIN)
        } else if took < PORTION / 2 {
            self.sweep.width.saturating_mul(2).min(WIDTH_MAX)
        } else {
            self.sweep.width
        };
        let rest = took.saturating_mul(SWEEP_REST);
        // Cut off: the rest comes next.
        let reached = match found.last() {
            Some(last) if found.len() >= SWEPT_MAX => last.seq,
            _ => to,
        };
        if reached >= self.cursor {
            self.sweep.at = 0;
            self.sweep.due = now + rest.max(self.policy.poll_min);
        } else {
            self.sweep.at = reached;
            self.sweep.due = now + rest;
        }
    }

    fn look_at(&mut self, group: &str) {
        let lane = self.lanes.entry(group.to_owned()).or_default();
        if lane.blocked.is_none() && !lane.is_in_looks {
            lane.is_in_looks = true;
            self.looks.push_back(group.to_owned());
        }
    }

    /// Rows that were read: those of them that may be delivered, in the order in which they may be. Rows of one group stay
    /// together in what is delivered: [`Plan::settle`] is told of all of them at once.
    #[must_use]
    pub(super) fn read(&mut self, wanted: &Wanted, rows: Vec<Row>, now: Duration) -> Vec<Row> {
        self.fit_pages(&rows);
        match wanted {
            Wanted::After(..) => {
                if rows.is_empty() {
                    self.is_at_end = true;
                    self.poll_at = now + self.poll;
                    self.poll = (self.poll * 2).min(self.policy.poll_max);
                } else {
                    self.poll = self.policy.poll_min;
                }
                let admitted = rows.into_iter().filter(|row| {
                    self.cursor = self.cursor.max(row.seq);
                    match &row.group {
                        None => self.admit_single(row),
                        Some(group) => self.admit_next(group, row),
                    }
                });
                let admitted: Vec<Row> = admitted.collect();
                for row in &admitted {
                    self.depart(row);
                }
                self.forget_some();
                admitted
            }
            Wanted::These(asked) => {
                // What was cut off is read next.
                if is_full_page(&rows) {
                    let last = rows.last().map_or(0, |row| row.seq);
                    self.fetch.extend(asked.iter().filter(|seq| **seq > last));
                }
                // A row that has got a group meanwhile is none of ours: somebody has changed it by hand.
                let singles = rows.into_iter().filter(|row| row.group.is_none());
                let admitted: Vec<Row> = singles.filter(|row| self.admit_single(row)).collect();
                for row in &admitted {
                    self.depart(row);
                }
                admitted
            }
            Wanted::Groups(asked, limit) => self.read_groups(asked, *limit, rows),
        }
    }

    /// The database looks at every row of a page, also at those that it leaves behind.
    fn fit_pages(&mut self, rows: &[Row]) {
        if is_full_page(rows) {
            self.page_max = (rows.len() * 2).min(self.policy.batch_max);
        } else {
            self.page_max = (self.page_max * 2).min(self.policy.batch_max);
        }
    }

    fn admit_single(&self, row: &Row) -> bool {
        // One that has failed and is not remembered would be tried again without a wait: it comes when there is room.
        let is_remembered = row.attempts == 0 || self.held.len() < REMEMBERED_MAX;
        is_remembered && !self.held.contains_key(&row.seq) && !self.in_flight.contains(&row.seq)
    }

    /// Whether this row is the next of its group; if that is not certain, the group is read.
    fn admit_next(&mut self, group: &str, row: &Row) -> bool {
        let lane = self.lanes.entry(group.to_owned()).or_default();
        if lane.blocked.is_some() {
            return false;
        }
        // A counter begins at 1 only when no row of the group waits, so the first is always next.
        let is_next = lane.next == Some(row.position) || row.position == 1;
        if is_next && !lane.is_in_flight && !lane.is_in_looks {
            lane.next = Some(row.position + 1);
            return true;
        }
        if !lane.is_in_looks {
            lane.is_in_looks = true;
            self.looks.push_back(group.to_owned());
        }
        false
    }

    fn depart(&mut self, row: &Row) {
        match &row.group {
            None => drop(self.in_flight.insert(row.seq)),
            Some(group) => {
                let lane = self.lanes.entry(group.clone()).or_default();
                lane.is_in_flight = true;
            }
        }
    }

    /// The statement saw all that was committed, so the first row of each group is its next.
    fn read_groups(&mut self, asked: &[String], limit: usize, rows: Vec<Row>) -> Vec<Row> {
        let is_cut = rows.len() >= limit || is_full_page(&rows);
        self.looks_max = if is_cut {
            (asked.len() / 2).max(1)
        } else {
            (self.looks_max * 2).min(GROUPS_MAX)
        };
        let last = rows.last().and_then(|row| row.group.clone());
        let mut seen = BTreeSet::new();
        let mut admitted = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(group) = row.group.clone() else {
                continue;
            };
            let lane = self.lanes.entry(group.clone()).or_default();
            seen.insert(group);
            if lane.blocked.is_some() {
                continue;
            }
            lane.next = Some(row.position + 1);
            admitted.push(row);
        }
        for row in &admitted {
            self.depart(row);
        }
        for group in asked {
            let is_unfinished = is_cut && (!seen.contains(group) || last.as_ref() == Some(group));
            if is_unfinished {
                self.look_at(group);
            } else if !seen.contains(group) {
                self.lanes.remove(group);
            }
        }
        admitted
    }

    /// Takes note of how rows were delivered, and says what is to be written down. Called with all rows of a group that were
    /// handed over together.
    #[must_use]
    pub(super) fn settle(
        &mut self,
        rows: &[Row],
        outcomes: &[Outcome],
        now: Duration,
    ) -> Settlement {
        let mut settlement = Settlement::default();
        let mut unavailable = false;
        let mut lanes: BTreeMap<&str, Option<Duration>> = BTreeMap::new();
        for (place, row) in rows.iter().enumerate() {
            // A row without an answer was not delivered.
            let outcome = outcomes.get(place).unwrap_or(&Outcome::Skipped);
            let again = match outcome {
                Outcome::Delivered => {
                    settlement.delivered.push(row.seq);
                    None
                }
                Outcome::Refused { error } => {
                    settlement.dead.push((row.seq, error.clone()));
                    None
                }
                Outcome::Failed { error }
                    if row.attempts.saturating_add(1) >= self.policy.attempts_max =>
                {
                    settlement.dead.push((row.seq, error.clone()));
                    // What was left out behind it may go now.
                    None
                }
                Outcome::Failed { error } => {
                    settlement.failed.push((row.seq, error.clone()));
                    Some(now + self.policy.backoff(row.attempts.saturating_add(1)))
                }
                Outcome::Unavailable { .. } => {
                    unavailable = true;
                    Some(now)
                }
                Outcome::Skipped => Some(now),
            };
            match &row.group {
                None => {
                    self.in_flight.remove(&row.seq);
                    if let Some(at) = again
                        && self.held.len() < REMEMBERED_MAX
                    {
                        self.held.insert(row.seq, at);
                    }
                }
                Some(group) => {
                    let blocked = lanes.entry(group).or_default();
                    *blocked = (*blocked).max(again);
                }
            }
        }
        for (group, blocked) in lanes {
            let lane = self.lanes.entry(group.to_owned()).or_default();
            lane.is_in_flight = false;
            if blocked.is_some() {
                lane.blocked = blocked;
                lane.next = None;
            }
        }
        let is_through = !settlement.delivered.is_empty() || !settlement.dead.is_empty();
        if unavailable && !is_through {
            self.pauses += 1;
            self.paused_until = now + self.policy.backoff(self.pauses).min(self.policy.poll_max);
        } else {
            self.pauses = 0;
        }
        settlement
    }

    /// A group's counter begins anew.
    pub(super) fn forget_groups<'a>(&mut self, groups: impl Iterator<Item = &'a str>) {
        for group in groups {
            if let Some(lane) = self.lanes.get_mut(group) {
                lane.next = None;
            }
        }
    }

    /// What is forgotten is read again when it is needed.
    fn forget_some(&mut self) {
        if self.lanes.len() > REMEMBERED_MAX {
            self.lanes
                .retain(|_, lane| lane.blocked.is_some() || lane.is_in_flight || lane.is_in_looks);
        }
    }
}

/// Whether rows were left out since these have as many bytes as are read at once.
fn is_full_page(rows: &[Row]) -> bool {
    let bytes: usize = rows.iter().map(|row| row.bytes).sum();
    let bytes_max = usize::try_from(PAGE_BYTES_MAX).unwrap_or(usize::MAX);
    bytes >= bytes_max
}

#[cfg(test)]
mod tests;
