//! Refusals: problem documents with a stable code. Failures of the layers below are turned into them here.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tenure_api::{self as api, Code};

/// A problem on its way to a client. Boxed, since it is rare and many results have to have room for it.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    document: api::Problem,
    retry_after_seconds: Option<u32>,
    is_not_served: bool,
}

/// Marks an answer that is about this server only: it does not lead any more, and has done nothing. The call can be
/// made again elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotServed;

/// The most characters of a detail: it may repeat what a client sent.
const DETAIL_CHARACTERS_MAX: usize = 500;

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARACTERS_MAX) {
            detail.truncate(end);
            detail.push('…');
        }
        let retry_after_seconds = match code {
            Code::Overloaded | Code::Full | Code::NoLeader => Some(1),
            Code::UnknownOutcome | Code::StoreUnavailable => Some(1),
            _ => None,
        };
        Self(Box::new(Inner {
            document: api::Problem::new(code, detail),
            retry_after_seconds,
            is_not_served: false,
        }))
    }

    /// The problem of a server that does not lead any more, and has done nothing.
    fn not_served(detail: &str) -> Self {
        let mut problem = Self::no_leader(detail);
        problem.0.is_not_served = true;
        problem
    }

    /// Adapts the problem of a call whose change was made, but whose result could not be read afterwards.
    pub(crate) fn after_change(self) -> Self {
        match self.0.document.code {
            Code::NoLeader | Code::StoreUnavailable => Self::new(
                Code::UnknownOutcome,
                "the call was done, but the leader changed before the result could be read",
            )
            .hint("read the result; do not send the call again"),
            _ => self,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.document.hint = Some(hint.into());
        self
    }

    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        let field: String = field.into();
        self.0.document.field = Some(field.chars().take(DETAIL_CHARACTERS_MAX).collect());
        self
    }

    pub(crate) fn reason(mut self, reason: api::LostReason) -> Self {
        self.0.document.reason = Some(reason);
        self
    }

    pub(crate) fn existing(mut self, existing: tenure_api::JobId) -> Self {
        self.0.document.existing = Some(existing);
        self
    }

    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.0.document.status = status.as_u16();
        self
    }

    /// Renames the field for a caller that sent one item and not a list.
    pub(crate) fn within(mut self, list: &str) -> Self {
        let document = &mut self.0.document;
        if let Some(field) = &mut document.field
            && let Some(rest) = field.strip_prefix(list)
        {
            *field = rest.to_owned();
            document.detail = document.detail.replacen(list, "", 1);
        }
        self
    }

    /// Renames the field for a caller that sent a list.
    pub(crate) fn of_item(self, list: &str, place: usize) -> Self {
        let field = match &self.0.document.field {
            Some(field) => format!("{list}[{place}].{field}"),
            None => format!("{list}[{place}]"),
        };
        self.field(field)
    }

    /// The document for one item of a list whose other items were done.
    pub(crate) fn into_document(self) -> api::Problem {
        self.0.document
    }

    /// Names the list as the field if the batch is too large as a whole.
    pub(crate) fn of_batch(self, list: &str) -> Self {
        match self.0.document.code {
            Code::TooLarge => self.field(list),
            _ => self,
        }
    }

    /// Renames the field to this call's name for it.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.0.document.field.as_deref() == Some(from) {
            self.0.document.field = Some(to.to_owned());
            self.0.document.detail = self.0.document.detail.replacen(from, to, 1);
        }
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.0.document.code
    }

    pub(crate) fn document(&self) -> &api::Problem {
        &self.0.document
    }

    /// There is no leader, as far as this server knows.
    pub(crate) fn no_leader(detail: &str) -> Self {
        Self::new(Code::NoLeader, detail).hint("nothing was done; try again")
    }

    /// A limit on how much the server handles at once was reached.
    pub(crate) fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(Code::Overloaded, detail).hint("nothing was done; try again later")
    }

    /// The whole HTTP answer as bytes, for a connection that is turned away.
    pub(crate) fn to_http(&self) -> Vec<u8> {
        let body = serde_json::to_vec(&self.0.document).expect("plain data becomes JSON");
        let status = self.0.document.status;
        let seconds = self.0.retry_after_seconds.unwrap_or_default();
        let mut answer = format!(
            "HTTP/1.1 {status} \r\ncontent-type: {}\r\ncontent-length: {}\r\nretry-after: {seconds}\r\nconnection: close\r\n\r\n",
            api::PROBLEM_CONTENT_TYPE,
            body.len(),
        )
        .into_bytes();
        answer.extend(body);
        answer
    }

    /// A failure that is not the request's fault. The cause belongs in the log, not in the answer.
    pub(crate) fn internal(detail: &str) -> Self {
        Self::new(Code::Internal, detail).hint("the broker's log has more")
    }
}

impl From<tenure::queue::Error> for Problem {
    fn from(error: tenure::queue::Error) -> Self {
        use tenure::queue::Error;
        match error {
            Error::Invalid { field, what, hint } => {
                let problem = Problem::new(Code::InvalidField, what).hint(hint);
                match field {
                    Some(field) => problem.field(field),
                    None => problem,
                }
            }
            Error::TooLarge { bytes, bytes_max } => Problem::new(
                Code::TooLarge,
                format!("the request takes {bytes} bytes in the log, where at most {bytes_max} can be committed at once; nothing was done"),
            )
            .hint("send fewer at once"),
            Error::NotServing { .. } => Problem::not_served("this broker no longer leads"),
            Error::Stopped => Problem::not_served("this broker is stopping"),
            Error::Overloaded { .. } => Problem::overloaded(error.to_string()),
            Error::Full { what, hint } => {
                Problem::new(Code::Full, format!("{what}; nothing was done")).hint(hint)
            }
            Error::Fenced | Error::Unknown { .. } => {
                tracing::warn!(error = %chain(&error), "the outcome of a commit is unknown");
                Problem::new(
                    Code::UnknownOutcome,
                    "the leader changed or the store did not answer; the call may or may not have been done",
                )
                .hint("send it again with the same id")
            }
            Error::Store(error) => store(&error),
            error => {
                tracing::error!(error = %chain(&error), "the queue failed");
                Problem::internal(&error.to_string())
            }
        }
    }
}

impl From<tenure::Error> for Problem {
    fn from(error: tenure::Error) -> Self {
        use tenure::Error;
        match error {
            Error::Name(error) => Problem::new(Code::InvalidField, error.to_string()),
            Error::Config(error) => {
                Problem::new(Code::InvalidField, error.to_string()).field("ttl_ms")
            }
            Error::NoLeader { .. } => Problem::no_leader(&error.to_string()),
            Error::NotACandidate { .. } => {
                Problem::new(Code::InvalidField, error.to_string()).field("node")
            }
            Error::AmbiguousCandidate { .. } => Problem::new(Code::Conflict, error.to_string())
                .field("node")
                .hint("`tenure transfer NODE/INCARNATION` names one of them"),
            Error::Contended { .. } => Problem::overloaded(error.to_string()),
            Error::CandidateBusy { .. } => Problem::overloaded(error.to_string())
                .hint("make the calls of one candidate one after another"),
            Error::Crowded { .. } => Problem::new(Code::Conflict, error.to_string())
                .hint("choose another id for this candidate"),
            Error::Full { hint, .. } => Problem::new(Code::Full, error.to_string()).hint(hint),
            Error::Store(error) => store(&error),
            Error::Queue(error) => error.into(),
            Error::ShutDown => Problem::no_leader("this broker is stopping"),
            error => {
                tracing::error!(error = %chain(&error), "a request failed");
                Problem::internal(&error.to_string())
            }
        }
    }
}

/// What a failure of the store means for a client, which above all has to know whether the write was applied.
pub(crate) fn store(error: &tenure_store::Error) -> Problem {
    use tenure_store::Error;
    // Logs an outage once, since callers keep asking.
    static OUTAGE: tenure_store::Outage = tenure_store::Outage::new();
    OUTAGE.failed(format_args!("answering a call: {}", chain(error)));
    match error {
        Error::Unknown { .. } => Problem::new(
            Code::UnknownOutcome,
            "the store's answer was lost; the call may or may not have been done",
        )
        .hint("send it again with the same id"),
        Error::Conflict { .. } => {
            Problem::overloaded("other writers were faster; nothing was done")
        }
        Error::Corrupt { .. } => Problem::internal("cannot read what is stored"),
        _ => Problem::new(
            Code::StoreUnavailable,
            "the store did not answer, or refused; nothing was done",
        )
        .hint("try again later; the broker's log has more"),
    }
}

/// An error and its sources, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    // Log lines are read by people and programs; text from a store must not be able to forge one.
    text.chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Inner {
            document,
            retry_after_seconds,
            is_not_served,
        } = *self.0;
        let status =
            StatusCode::from_u16(document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&document).expect("plain data becomes JSON");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        if is_not_served {
            response.extensions_mut().insert(NotServed);
        }
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(api::PROBLEM_CONTENT_TYPE),
        );
        if let Some(seconds) = retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"tenure\""),
            );
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_is_repeated_only_so_far() {
        let problem =
            Problem::new(Code::InvalidField, "é".repeat(10_000)).field("f".repeat(10_000));
        let document = problem.document();
        assert_eq!(document.detail.chars().count(), DETAIL_CHARACTERS_MAX + 1);
        assert_eq!(
            document.field.as_ref().map(String::len),
            Some(DETAIL_CHARACTERS_MAX)
        );
    }

    #[test]
    fn what_may_pass_says_when_to_come_back() {
        for (code, retries) in [
            (Code::Overloaded, true),
            (Code::NoLeader, true),
            (Code::Lost, false),
        ] {
            let response = Problem::new(code, "x").into_response();
            assert_eq!(
                response.headers().contains_key(header::RETRY_AFTER),
                retries
            );
        }
    }
}
