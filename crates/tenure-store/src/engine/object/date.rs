//! The dates of HTTP headers, as seconds. Only differences of two dates of one server are ever used.

use std::time::Duration;

use http::HeaderMap;
use http::header::{DATE, LAST_MODIFIED};

const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";

/// How old the object of an answer is at least, by the two clock readings in its headers; `None` if
/// one of them is missing.
///
/// Both dates are cut to whole seconds: the object may have been written up to a second after
/// `Last-Modified`. The clock behind them may also step back, and an age is never negative.
pub(super) fn age(headers: &HeaderMap) -> Option<Duration> {
    let seconds_of = |name| seconds(headers.get(name)?.to_str().ok()?);
    let (now, written) = (seconds_of(DATE)?, seconds_of(LAST_MODIFIED)?);
    Some(Duration::from_secs(
        now.saturating_sub(written).saturating_sub(1),
    ))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, the one format that servers may send.
fn seconds(date: &str) -> Option<u64> {
    let (_weekday, date) = date.split_once(", ")?;
    let mut fields = date.split(' ');
    let mut next = || fields.next();
    let day: u64 = next()?.parse().ok()?;
    let month = next().filter(|name| name.len() == 3)?;
    let month = MONTHS.find(month).filter(|at| at % 3 == 0)? as u64 / 3 + 1;
    let year: u64 = next()?.parse().ok()?;
    (1970..=9999).contains(&year).then_some(())?;
    let mut time = next()?.splitn(3, ':').map(str::parse::<u64>);
    let mut next_time = || time.next()?.ok();
    let (hour, minute, second) = (next_time()?, next_time()?, next_time()?);
    (next() == Some("GMT") && next().is_none()).then_some(())?;
    // A leap second is 60.
    (hour < 24 && minute < 60 && second <= 60 && (1..=31).contains(&day)).then_some(())?;
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days since 1970 in the Gregorian calendar. A year that starts in March has its leap day at the end,
/// which makes the months' lengths a simple pattern.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_are_read() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 23:59:59 GMT", 951_868_799),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_800),
            ("Mon, 29 Feb 2044 12:00:00 GMT", 2_340_360_000),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_date() {
        for text in [
            "",
            "now",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 anF 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1066 08:49:37 GMT",
            "Sun, 06 Nov 18446744073709551615 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn an_age_is_rounded_down_and_never_negative() {
        let age_of = |now: &str, written: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, now.parse().unwrap());
            headers.insert(LAST_MODIFIED, written.parse().unwrap());
            age(&headers)
        };
        let noon = "Mon, 29 Feb 2044 12:00:00 GMT";
        assert_eq!(age_of(noon, noon), Some(Duration::ZERO));
        assert_eq!(
            age_of("Mon, 29 Feb 2044 12:00:07 GMT", noon),
            Some(Duration::from_secs(6))
        );
        assert_eq!(
            age_of(noon, "Mon, 29 Feb 2044 12:00:07 GMT"),
            Some(Duration::ZERO)
        );
        assert_eq!(age_of(noon, "yesterday"), None);
        assert_eq!(age(&HeaderMap::new()), None);
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;

    #[test]
    fn any_header_is_a_date_or_none() {
        let corpus = [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Thu, 29 Feb 2024 23:59:60 GMT",
        ];
        tenure_fuzz::Fuzz::new("dates", corpus).run(|input| {
            let _ = seconds(&String::from_utf8_lossy(input));
        });
    }
}
