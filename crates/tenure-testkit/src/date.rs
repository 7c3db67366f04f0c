//! Dates as servers write them.

use std::time::{SystemTime, UNIX_EPOCH};

const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A moment, cut to seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(since.expect("the clock is set to after 1970").as_secs())
    }

    /// So many seconds from now, or ago.
    pub(crate) fn ahead(seconds: i64) -> Self {
        Self(Self::now().0.saturating_add_signed(seconds))
    }

    /// As in an HTTP header.
    pub(crate) fn http(self) -> String {
        let (year, month, day) = self.civil();
        let weekday = WEEKDAYS[(self.0 / 86_400 % 7) as usize];
        let month = MONTHS[month - 1];
        format!("{weekday}, {day:02} {month} {year} {} GMT", self.time())
    }

    /// As in an XML listing.
    pub(crate) fn iso(self) -> String {
        let (year, month, day) = self.civil();
        format!("{year}-{month:02}-{day:02}T{}.000Z", self.time())
    }

    fn time(self) -> String {
        let second = self.0 % 86_400;
        format!(
            "{:02}:{:02}:{:02}",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }

    /// Year, month and day: counted off, which is quick enough and plain.
    fn civil(self) -> (u64, usize, u64) {
        let (mut year, mut days) = (1970, self.0 / 86_400);
        let is_leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        loop {
            let in_year = if is_leap(year) { 366 } else { 365 };
            if days < in_year {
                break;
            }
            days -= in_year;
            year += 1;
        }
        let february = if is_leap(year) { 29 } else { 28 };
        let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, in_month) in (1..).zip(months) {
            if days < in_month {
                return (year, month, days + 1);
            }
            days -= in_month;
        }
        unreachable!("the months of a year have all its days")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_servers_do() {
        assert_eq!(Moment(784_111_777).http(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(Moment(951_868_799).http(), "Tue, 29 Feb 2000 23:59:59 GMT");
        assert_eq!(Moment(951_868_800).iso(), "2000-03-01T00:00:00.000Z");
        assert_eq!(Moment(0).iso(), "1970-01-01T00:00:00.000Z");
    }
}
