//! Dates as servers write them.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

/// A time, truncated to seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment(Timestamp);

impl Moment {
    pub(crate) fn now() -> Self {
        Self::ahead(0)
    }

    /// This many seconds from now, or ago if negative.
    pub(crate) fn ahead(seconds: i64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since.expect("the clock is set to after 1970").as_secs();
        Self::at(now.saturating_add_signed(seconds))
    }

    fn at(seconds: u64) -> Self {
        let timestamp = Timestamp::from_second(seconds.cast_signed());
        Self(timestamp.expect("the date is before the year 9999"))
    }

    /// As in an HTTP header.
    pub(crate) fn http(self) -> String {
        let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&self.0);
        text.expect("the date is after 1969")
    }

    /// As in an XML listing.
    pub(crate) fn iso(self) -> String {
        format!("{:.3}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_servers_do() {
        let http = |seconds| Moment::at(seconds).http();
        assert_eq!(http(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http(951_868_799), "Tue, 29 Feb 2000 23:59:59 GMT");
        assert_eq!(Moment::at(951_868_800).iso(), "2000-03-01T00:00:00.000Z");
        assert_eq!(Moment::at(0).iso(), "1970-01-01T00:00:00.000Z");
    }
}
