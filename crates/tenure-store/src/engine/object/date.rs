//! The dates of HTTP headers. Only differences of two dates of one server are ever used.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, LAST_MODIFIED};

/// How old the object of an answer is at least, by the two clock readings in its headers; `None` if
/// one of them is missing.
///
/// Both dates are cut to whole seconds: the object may have been written up to a second after
/// `Last-Modified`. The clock behind them may also step back, and an age is never negative.
pub(super) fn age(headers: &HeaderMap) -> Option<Duration> {
    let date_of = |name| date(headers.get(name)?.to_str().ok()?);
    let (now, written) = (date_of(DATE)?, date_of(LAST_MODIFIED)?);
    let age = now.duration_since(written).unwrap_or_default();
    Some(age.saturating_sub(Duration::from_secs(1)))
}

fn date(header: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(header).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for text in ["", "yesterday", "Sun, 06 Nov 1994 24:49:37 GMT"] {
            assert_eq!(age_of(noon, text), None, "{text}");
        }
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
            let _ = date(&String::from_utf8_lossy(input));
        });
    }
}
