//! What an answer, or its absence, means for the caller.
//!
//! | seen on the wire | a write | a read |
//! | --- | --- | --- |
//! | never connected | unavailable | unavailable |
//! | sent, no answer | **unknown** | unavailable |
//! | 412 | conflict | |
//! | 404, no such object | conflict, if it was to be replaced | no object |
//! | 409 `BlobAlreadyExists` (Azure) | conflict | |
//! | any other 409, 408, 5xx | **unknown** | unavailable |
//! | 429 | unavailable | unavailable |
//! | 401, 403, no such bucket, any other 3xx and 4xx | refused | refused |
//!
//! 5xx is unknown even where a service says that nothing was done: gateways answer 500 and 503 for
//! writes that went through. 409 from S3 means that a concurrent request got in the way, not that the
//! object exists.
//!
//! Messages have statuses, the services' names for errors, and the HTTP library's errors without URLs. Bodies and URLs
//! can hold signatures and are never part of a message.

use std::fmt;

use http::StatusCode;

use super::http::{Answer, Ending, Seen};
use super::service::Service;
use crate::{Error, Expect, Key};

/// What came instead of a usable answer, in words.
#[derive(Debug)]
struct Words(String);

impl fmt::Display for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Words {}

impl From<&Ending> for Words {
    fn from(ending: &Ending) -> Self {
        Words(match ending {
            Ending::Answered(answer) if answer.status.is_success() => {
                format!("cannot read the answer ({})", answer.status)
            }
            Ending::Answered(Answer { status, code, .. }) => match code {
                Some(code) => format!("the service answered {status}, {code}"),
                None => format!("the service answered {status}"),
            },
            Ending::NotSent { why } => format!("cannot reach the service: {why}"),
            Ending::Lost { why } => format!("no usable answer: {why}"),
        })
    }
}

/// The error of a PUT that failed.
pub(super) fn of_put(service: Service, key: &Key, expect: &Expect, seen: &Seen) -> Error {
    let doing = || format!("writing {key}");
    let Some(ending) = &seen.write else {
        // Something before the write failed, so it was never sent.
        return of_read(service, doing(), seen);
    };
    let Ending::Answered(answer) = ending else {
        return without_answer(key, doing(), ending);
    };
    let code = answer.code.as_deref().unwrap_or_default();
    match answer.status.as_u16() {
        412 if code.starts_with("Lease") => Error::refused(
            doing(),
            "break the Azure lease on the object: Tenure does not use them, so someone else holds it",
            Words::from(ending),
        ),
        412 => Error::conflict(key),
        // Some services answer a failed `If-None-Match: *` with 304.
        304 if *expect == Expect::Absent => Error::conflict(key),
        409 if code == "BlobAlreadyExists" => Error::conflict(key),
        404 if *expect != Expect::Absent && !is_bucket_missing(answer) => Error::conflict(key),
        _ => of_answered_write(service, key, doing(), answer, ending),
    }
}

/// The error of a DELETE; `None` if it was done, or there was nothing to do.
pub(super) fn of_delete(service: Service, key: &Key, is_done: bool, seen: &Seen) -> Option<Error> {
    let doing = format!("deleting {key}");
    let Some(ending) = &seen.write else {
        return Some(of_read(service, doing, seen));
    };
    let Ending::Answered(answer) = ending else {
        return Some(without_answer(key, doing, ending));
    };
    if (answer.status.is_success() && is_done) || is_object_missing(answer) {
        return None;
    }
    Some(of_answered_write(service, key, doing, answer, ending))
}

fn without_answer(key: &Key, doing: String, ending: &Ending) -> Error {
    match ending {
        Ending::NotSent { .. } => Error::unavailable(doing, Words::from(ending)),
        _ => Error::unknown(key, Words::from(ending)),
    }
}

/// The answers that mean the same for every write.
fn of_answered_write(
    service: Service,
    key: &Key,
    doing: String,
    answer: &Answer,
    ending: &Ending,
) -> Error {
    match answer.status.as_u16() {
        // Throttled before anything was looked at.
        429 => Error::unavailable(doing, Words::from(ending)),
        408 | 409 => Error::unknown(key, Words::from(ending)),
        300..=499 => Error::refused(doing, hint(service, answer), Words::from(ending)),
        // 5xx, but also a success that cannot be read: without its ETag the version is not known.
        _ => Error::unknown(key, Words::from(ending)),
    }
}

/// The error of a read that failed. Callers ask [`says_missing`] first, since a missing object is not an error.
pub(super) fn of_read(service: Service, doing: String, seen: &Seen) -> Error {
    let without_credentials = |why: &str| {
        let hint = service.credentials_hint();
        Error::refused(doing.clone(), hint, Words(why.to_owned()))
    };
    match &seen.last {
        None => without_credentials("cannot use the credentials"),
        Some(_) if seen.last_for_credentials => without_credentials(
            "found no credentials, and this is not a cloud machine that provides them",
        ),
        Some(ending @ Ending::Answered(answer)) => match answer.status.as_u16() {
            408 | 429 | 500.. => Error::unavailable(doing, Words::from(ending)),
            300..=499 => Error::refused(doing, hint(service, answer), Words::from(ending)),
            _ => Error::unavailable(doing, Words::from(ending)),
        },
        Some(ending) => Error::unavailable(doing, Words::from(ending)),
    }
}

/// Whether a read was answered: there is no such object.
pub(super) fn says_missing(seen: &Seen) -> bool {
    matches!(&seen.last, Some(Ending::Answered(answer)) if is_object_missing(answer))
}

/// Whether a read was answered: still the version that you have.
pub(super) fn says_unchanged(seen: &Seen) -> bool {
    matches!(&seen.last, Some(Ending::Answered(answer)) if answer.status == StatusCode::NOT_MODIFIED)
}

/// Whether a read of headers alone, whose answer has no body and so no name, said 404.
pub(super) fn says_not_found(seen: &Seen) -> bool {
    matches!(&seen.last, Some(Ending::Answered(answer)) if answer.status == StatusCode::NOT_FOUND)
}

/// A 404 without the service's own name for this may come from anything on the way, so it must not count as a missing
/// object: that would start a new history.
fn is_object_missing(answer: &Answer) -> bool {
    answer.status == StatusCode::NOT_FOUND
        && matches!(answer.code.as_deref(), Some("NoSuchKey" | "BlobNotFound"))
}

fn is_bucket_missing(answer: &Answer) -> bool {
    let names = ["NoSuchBucket", "ContainerNotFound"];
    let code = answer.code.as_deref().unwrap_or_default();
    answer.status == StatusCode::NOT_FOUND && names.contains(&code)
}

fn hint(service: Service, answer: &Answer) -> String {
    let code = answer.code.as_deref().unwrap_or_default();
    match (answer.status.as_u16(), code) {
        (_, "RequestTimeTooSkewed") => "set the clock of this machine".to_owned(),
        (_, "ExpiredToken" | "TokenRefreshRequired") => {
            format!("renew the session token: {}", service.credentials_hint())
        }
        (401 | 403, _) => service.credentials_hint().to_owned(),
        (404, _) if is_bucket_missing(answer) => format!(
            "create the {} first, or correct its name in the URL",
            service.container()
        ),
        (404, _) => "check the endpoint: the answer does not come from an object store".to_owned(),
        (300..=399, _) | (400, "AuthorizationHeaderMalformed") => {
            "set the region of the bucket: set AWS_REGION, or add ?region=… to the URL".to_owned()
        }
        (411 | 413, _) => {
            "check the size limits of the service, or of a proxy in front of it".to_owned()
        }
        _ => format!(
            "look the error up in the documentation of {}",
            service.name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    fn seen(ending: Ending) -> Seen {
        Seen {
            last: Some(ending.clone()),
            write: Some(ending),
            ..Seen::default()
        }
    }

    fn answered(status: u16, code: &str) -> Seen {
        seen(Ending::Answered(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            code: Some(code.to_owned()).filter(|code| !code.is_empty()),
            age: None,
            walks_folders: false,
        }))
    }

    fn variant(error: &Error) -> &'static str {
        match error {
            Error::Conflict { .. } => "conflict",
            Error::Unknown { .. } => "unknown",
            Error::Unavailable { .. } => "unavailable",
            Error::Refused { .. } => "refused",
            _ => "something else",
        }
    }

    #[test]
    fn only_what_was_certainly_not_applied_is_said_to_be() {
        let key = Key::new("a/b").unwrap();
        for (status, code, create, replace) in [
            (412, "PreconditionFailed", "conflict", "conflict"),
            (412, "ConditionNotMet", "conflict", "conflict"),
            (412, "LeaseIdMissing", "refused", "refused"),
            (304, "", "conflict", "refused"),
            (409, "BlobAlreadyExists", "conflict", "conflict"),
            (409, "ConditionalRequestConflict", "unknown", "unknown"),
            (409, "", "unknown", "unknown"),
            (404, "NoSuchKey", "refused", "conflict"),
            (404, "BlobNotFound", "refused", "conflict"),
            (404, "NoSuchBucket", "refused", "refused"),
            (404, "ContainerNotFound", "refused", "refused"),
            (401, "", "refused", "refused"),
            (403, "AccessDenied", "refused", "refused"),
            (400, "InvalidArgument", "refused", "refused"),
            (307, "", "refused", "refused"),
            (408, "RequestTimeout", "unknown", "unknown"),
            (429, "", "unavailable", "unavailable"),
            (500, "InternalError", "unknown", "unknown"),
            (503, "SlowDown", "unknown", "unknown"),
            (504, "", "unknown", "unknown"),
            (200, "", "unknown", "unknown"),
        ] {
            let seen = answered(status, code);
            let version = Expect::Version(Version::new("x"));
            for (expect, expected) in [(Expect::Absent, create), (version, replace)] {
                let error = of_put(Service::S3, &key, &expect, &seen);
                assert_eq!(variant(&error), expected, "{status} {code} {expect:?}");
            }
        }
    }

    #[test]
    fn a_write_without_an_answer_is_unknown_unless_it_was_never_sent() {
        let key = Key::new("a/b").unwrap();
        let put = |seen| of_put(Service::S3, &key, &Expect::Absent, &seen);
        let why = || "reset".to_owned();
        assert_eq!(variant(&put(seen(Ending::Lost { why: why() }))), "unknown");
        assert_eq!(
            variant(&put(seen(Ending::NotSent { why: why() }))),
            "unavailable"
        );
        // The request for credentials got no answer, so the write was not sent.
        let before = Seen {
            last: Some(Ending::Lost { why: why() }),
            ..Seen::default()
        };
        assert_eq!(variant(&put(before)), "unavailable");
        let before = Seen {
            last: Some(Ending::Lost { why: why() }),
            last_for_credentials: true,
            ..Seen::default()
        };
        let error = put(before);
        assert_eq!(variant(&error), "refused");
        assert!(
            error.hint().contains("AWS_ACCESS_KEY_ID"),
            "{}",
            error.hint()
        );
    }

    #[test]
    fn only_the_service_itself_can_say_that_an_object_is_absent() {
        assert!(says_missing(&answered(404, "NoSuchKey")));
        assert!(says_missing(&answered(404, "BlobNotFound")));
        for code in ["", "NoSuchBucket", "ContainerNotFound", "NotFound"] {
            let seen = answered(404, code);
            assert!(!says_missing(&seen), "{code}");
            let error = of_read(Service::S3, "reading".to_owned(), &seen);
            assert_eq!(variant(&error), "refused", "{code}");
        }
    }

    #[test]
    fn a_delete_is_done_when_nothing_is_left() {
        let key = Key::new("a/b").unwrap();
        let delete = |is_done, seen: Seen| of_delete(Service::Azure, &key, is_done, &seen);
        assert!(delete(true, answered(204, "")).is_none());
        assert!(delete(false, answered(404, "BlobNotFound")).is_none());
        for (seen, expected) in [
            (answered(202, ""), "unknown"),
            (answered(404, "ContainerNotFound"), "refused"),
            (answered(403, ""), "refused"),
            (answered(500, ""), "unknown"),
        ] {
            assert_eq!(variant(&delete(false, seen).unwrap()), expected);
        }
    }
}
