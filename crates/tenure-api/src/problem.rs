//! Failures over HTTP: RFC 9457 problem documents with a stable code.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::claims::LostReason;
use crate::JobId;

/// The media type of a problem.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// What went wrong, what happened to the data, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// A page about the code, or `about:blank`.
    #[serde(rename = "type", default = "about_blank")]
    pub problem_type: String,
    /// The code in words: the same for every problem of that code.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// The code, for programs.
    pub code: Code,
    /// What happened this time.
    #[serde(default)]
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The field that is wrong, like `jobs[3].run_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Why the claim does not hold, with the code `lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// The job that is in the way, with the code `conflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
}

fn about_blank() -> String {
    "about:blank".to_owned()
}

impl Problem {
    /// A problem with its code's own status and title.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            problem_type: about_blank(),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            detail: detail.into(),
            hint: None,
            field: None,
            reason: None,
            existing: None,
        }
    }

    /// With what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With the field that is wrong.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            formatter.write_str(&self.title)
        } else {
            formatter.write_str(&self.detail)
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:literal, $status:literal, $title:literal;)*) => {
        /// What programs go by. A code never changes its meaning; new ones may come.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $code,)*
            /// A code that this version does not know.
            Other,
        }

        impl Code {
            /// Every code but [`Code::Other`].
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// The code as it travels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Code::$code => $text,)*
                    Code::Other => "other",
                }
            }

            /// The HTTP status that it usually comes with.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self {
                    $(Code::$code => $status,)*
                    Code::Other => 500,
                }
            }

            /// The code in words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(Code::$code => $title,)*
                    Code::Other => "the request failed",
                }
            }

            fn of(text: &str) -> Self {
                match text {
                    $($text => Code::$code,)*
                    _ => Code::Other,
                }
            }
        }
    };
}

codes! {
    /// The body is not valid JSON, or has the wrong shape.
    InvalidJson = "invalid_json", 400, "the body cannot be read";
    /// A field has an invalid value.
    InvalidField = "invalid_field", 422, "a field has a wrong value";
    /// A field that does not exist.
    UnknownField = "unknown_field", 422, "unknown field";
    /// It does not exist, or was deleted.
    NotFound = "not_found", 404, "not found";
    /// The address exists, but not for this method.
    MethodNotAllowed = "method_not_allowed", 405, "method not allowed";
    /// The body's content type is not JSON.
    UnsupportedMediaType = "unsupported_media_type", 415, "the body must be application/json";
    /// The body is larger than the broker accepts.
    TooLarge = "too_large", 413, "the request is too large";
    /// No token, or a wrong one.
    Unauthorized = "unauthorized", 401, "a token is needed";
    /// The token does not allow this, or the candidate belongs to another program.
    Forbidden = "forbidden", 403, "not allowed";
    /// Something else has this name.
    Conflict = "conflict", 409, "the request conflicts with what exists";
    /// The claim is not valid, or no longer. Nothing was done.
    Lost = "lost", 409, "the claim is lost";
    /// The job's state does not allow it. Nothing was done.
    State = "state", 409, "the state of the job does not allow this";
    /// There are as many jobs, elections or candidates as are allowed. Nothing was done.
    Full = "full", 429, "a limit is reached";
    /// The broker has too much to do. Nothing was done; try again later.
    Overloaded = "overloaded", 429, "too many requests at once";
    /// Nobody leads right now. Nothing was done; try again soon.
    NoLeader = "no_leader", 503, "there is no leader";
    /// It may have been done or not. Send it again with the same id.
    UnknownOutcome = "unknown_outcome", 503, "the outcome is unknown";
    /// The storage cannot be reached. Nothing was done.
    StoreUnavailable = "store_unavailable", 503, "the store is unavailable";
    /// It took too long. It may have been done or not.
    Timeout = "timeout", 504, "the request took too long";
    /// An error in the broker.
    Internal = "internal", 500, "internal error";
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Code::of(&text))
    }
}
