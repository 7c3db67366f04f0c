//! Cron expressions: which local times match, and which instants those are.
//!
//! Five fields (minute, hour, day of month, month, day of week) or six (seconds first); lists, ranges,
//! steps, names of months and days, `?` for `*`, Sunday as 0 or 7, and `@hourly`, `@daily`, `@weekly`,
//! `@monthly`, `@yearly`. If both day fields are restricted, a day that matches either will do, as in
//! every cron since 1979.
//!
//! **Clock changes.** If the hour is a plain `*` or `*/n`, the expression means "so often": it matches
//! every instant whose local time fits, so an hour that comes twice fires twice and one that is skipped
//! does not fire. Otherwise it means "at this time of day" and fires exactly once a day: an hour that
//! comes twice fires the first time, and a time that is skipped fires as much later as the clock was put
//! forward.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

/// A parsed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both day fields are restricted, so either will do.
    either_day: bool,
    /// The hour is `*` or `*/n`.
    by_interval: bool,
}

/// An expression is looked ahead this far before it counts as never. The rarest that ever matches, the
/// 29th of February on one day of the week across a year like 2100, needs 40 years.
const YEARS_MAX: i16 = 41;

/// No clock is ever put forward by more: a place that changes sides of the date line skips a day.
const GAP_MAX: SignedDuration = SignedDuration::from_hours(25);

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Cron {
    /// Reads an expression. The error says which field is wrong and why.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            text => text,
        };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let (seconds, fields) = match fields[..] {
            [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
            [second, minute, hour, day, month, weekday] => {
                (second, [minute, hour, day, month, weekday])
            }
            _ => return Err(format!("has {} fields instead of 5 or 6", fields.len())),
        };
        let [minute, hour, day, month, weekday] = fields;
        let mut weekdays = field("day of week", weekday, 0, 7, &WEEKDAYS)?;
        // Sunday is 0 and 7.
        weekdays = (weekdays | weekdays >> 7) & 0x7f;
        Ok(Self {
            seconds: field("second", seconds, 0, 59, &[])?,
            minutes: field("minute", minute, 0, 59, &[])?,
            hours: field("hour", hour, 0, 23, &[])?,
            days: field("day of month", day, 1, 31, &[])?,
            months: field("month", month, 1, 12, &MONTHS)?,
            weekdays,
            either_day: !is_star(day) && !is_star(weekday),
            by_interval: is_star(hour),
        })
    }

    /// The first match strictly after a time, both in milliseconds since 1970; none if there is no
    /// match within 41 years.
    pub(crate) fn next(&self, zone: &TimeZone, after: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after).ok()?).ok()?;
        let next = if self.by_interval {
            self.next_instant(zone, after)
        } else {
            self.next_time_of_day(zone, after)
        }?;
        u64::try_from(next.as_millisecond()).ok()
    }

    /// Every instant whose local time matches: searched with one offset at a time, from one clock change
    /// to the next.
    fn next_instant(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let mut from = zone.to_datetime(after).checked_add(1.second()).ok()?;
        let mut offset = zone.to_offset(after);
        let mut changes = zone.following(after);
        loop {
            let change = changes.next();
            let found = self
                .next_local(from)
                .and_then(|local| offset.to_timestamp(local).ok());
            match (found, change) {
                (Some(found), Some(change)) if found >= change.timestamp() => {
                    offset = change.offset();
                    from = offset.to_datetime(change.timestamp());
                }
                (found, _) => return found,
            }
        }
    }

    /// Each matching local time once.
    ///
    /// Between two clock changes one offset holds, and each local time belongs to one such stretch: one that
    /// comes twice or is skipped belongs to the stretch before the change. So one look into each stretch is
    /// enough. The stretch before the present one counts as well, since a time put forward out of a gap may
    /// still lie ahead though its local time has passed; and so does the next one, since a time put forward may
    /// have overtaken others.
    fn next_time_of_day(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let moment = 1.nanosecond();
        let now = zone.preceding(after.checked_add(moment).ok()?).next();
        let recent = now.filter(|change| after - GAP_MAX < change.timestamp());
        let mut offset = match &recent {
            Some(change) => zone.to_offset(change.timestamp().checked_sub(moment).ok()?),
            None => zone.to_offset(after),
        };
        let mut changes = recent.into_iter().chain(zone.following(after));
        let mut from = offset.to_datetime(after).checked_add(1.second()).ok()?;
        let mut best: Option<Timestamp> = None;
        // From where a local time was looked for last, and the one that was found.
        let mut searched: Option<(DateTime, DateTime)> = None;
        loop {
            let change = changes.next();
            let end = change.as_ref().map(|change| {
                let (at, then) = (change.timestamp(), change.offset());
                offset.to_datetime(at).max(then.to_datetime(at))
            });
            // What was found behind the stretch before is still the first one, unless the clock went back.
            let known = searched.filter(|&(start, found)| (start..=found).contains(&from));
            let found = match known {
                Some((_, found)) => Some(found),
                None => self.next_local(from),
            };
            let Some(local) = found else {
                return best;
            };
            searched = Some((from, local));
            if end.is_none_or(|end| local < end) {
                let found = offset.to_timestamp(local).ok()?;
                best = Some(best.map_or(found, |best| best.min(found)));
            }
            let (Some(change), Some(end)) = (change, end) else {
                return best;
            };
            // Nothing of the next stretch comes before its beginning.
            if best.is_some_and(|best| best < change.timestamp()) {
                return best;
            }
            offset = change.offset();
            let passed = offset.to_datetime(after).checked_add(1.second()).ok()?;
            from = end.max(passed);
        }
    }

    /// The first matching local time at or after one, whole seconds.
    fn next_local(&self, from: DateTime) -> Option<DateTime> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let from = from.with().subsec_nanosecond(0).build().ok()?;
        let mut date = from.date();
        let mut earliest = Some(from.time());
        let last_year = date.year().checked_add(YEARS_MAX)?;
        while date.year() <= last_year {
            if !bit(self.months, date.month()) {
                date = date.first_of_month().checked_add(1.month()).ok()?;
                earliest = None;
                continue;
            }
            if self.matches_day(date)
                && let Some(time) = self.next_time(earliest.unwrap_or(Time::midnight()))
            {
                return Some(date.to_datetime(time));
            }
            date = date.tomorrow().ok()?;
            earliest = None;
        }
        None
    }

    fn matches_day(&self, date: Date) -> bool {
        let day = bit(self.days, date.day());
        let weekday = bit(self.weekdays, date.weekday().to_sunday_zero_offset());
        if self.either_day {
            day || weekday
        } else {
            day && weekday
        }
    }

    /// The first matching time of a day at or after one.
    fn next_time(&self, from: Time) -> Option<Time> {
        let lowest = |bits: u64| i8::try_from(bits.trailing_zeros()).ok();
        let (hour, minute, second) = (from.hour(), from.minute(), from.second());
        if bit(self.hours, hour) {
            if bit(self.minutes, minute)
                && let Some(second) = at_or_after(self.seconds, second)
            {
                return Time::new(hour, minute, second, 0).ok();
            }
            if let Some(minute) = at_or_after(self.minutes, minute + 1) {
                return Time::new(hour, minute, lowest(self.seconds)?, 0).ok();
            }
        }
        let hour = at_or_after(self.hours, hour + 1)?;
        Time::new(hour, lowest(self.minutes)?, lowest(self.seconds)?, 0).ok()
    }
}

fn bit(bits: u64, number: i8) -> bool {
    bits >> number & 1 == 1
}

fn at_or_after(bits: u64, number: i8) -> Option<i8> {
    let rest = bits >> number;
    (rest != 0).then(|| number + i8::try_from(rest.trailing_zeros()).unwrap_or(0))
}

fn is_star(field: &str) -> bool {
    field.starts_with('*') || field == "?"
}

/// One field as a set of bits.
fn field(name: &str, text: &str, min: u32, max: u32, names: &[&str]) -> Result<u64, String> {
    let mut bits = 0;
    for part in text.split(',') {
        let wrong = |problem: &str| Err(format!("has an invalid {name} {part:?}: {problem}"));
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse().ok()),
            None => (part, Some(1)),
        };
        let Some(step) = step.filter(|step| (1..=max).contains(step)) else {
            return wrong(&format!("the step must be between 1 and {max}"));
        };
        let (from, to) = if range == "*" || range == "?" {
            (Some(min), Some(max))
        } else if let Some((from, to)) = range.split_once('-') {
            (number(from, min, names), number(to, min, names))
        } else if part.contains('/') {
            // `5/15` means from 5 on.
            (number(range, min, names), Some(max))
        } else {
            (number(range, min, names), number(range, min, names))
        };
        let (Some(from), Some(to)) = (from, to) else {
            return wrong("not a number, name or range");
        };
        if from < min || to > max {
            return wrong(&format!("not between {min} and {max}"));
        }
        if from > to {
            return wrong("the range ends before it starts");
        }
        for value in (from..=to).step_by(step as usize) {
            bits |= 1 << value;
        }
    }
    Ok(bits)
}

fn number(text: &str, min: u32, names: &[&str]) -> Option<u32> {
    let named = names
        .iter()
        .position(|name| text.eq_ignore_ascii_case(name));
    match named {
        Some(position) => u32::try_from(position).ok().map(|position| position + min),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        None => None,
    }
}

#[cfg(test)]
thread_local! {
    /// How often an expression was asked for its next local time.
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// What planning has cost this thread so far.
#[cfg(test)]
pub(crate) fn looks() -> usize {
    LOOKS.get()
}

#[cfg(test)]
mod tests;
