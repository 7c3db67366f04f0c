//! One-shot elections over HTTP: for programs in any language, without a background loop.
//!
//! `{election}` is an election in the namespace of the broker, as it is on the command line and in the library.

use serde::{Deserialize, Serialize};

use super::cluster::Leader;
use crate::text::as_text;
use crate::{Incarnation, NodeId};

/// How many characters a secret has.
const SECRET_CHARACTERS: std::ops::RangeInclusive<usize> = 16..=200;

/// What only the program knows that a candidate belongs to: every call about that candidate carries it. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

as_text!(Secret);

impl Secret {
    /// Takes a text of 16 to 200 visible ASCII characters, which nobody can guess.
    pub fn new(text: impl Into<String>) -> Result<Self, SecretError> {
        let text = text.into();
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_visible && SECRET_CHARACTERS.contains(&text.len()) {
            Ok(Self(text))
        } else {
            Err(SecretError)
        }
    }

    /// The text. Do not log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// A secret that cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret must have 16 to 200 visible ASCII characters")]
pub struct SecretError;

impl std::str::FromStr for Secret {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<Self, SecretError> {
        Self::new(text)
    }
}

/// For the interface alone, which has to carry it.
impl std::fmt::Display for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

/// `PUT /v1/elections/{election}/candidates/{id}`: stand, or say that one still does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct CandidateRequest {
    /// How long the candidate counts without another call. The server's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The secret of this candidate: one of your own, made by chance, or the one that its registration returned.
    /// Without one a candidate is registered anew, under a secret that the answer has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// `POST /v1/elections/{election}/elect`: lead, if nobody does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ElectRequest {
    /// Who asks.
    pub candidate: NodeId,
    /// How long the candidate counts without another call. The server's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The secret of this candidate: one of your own, made by chance, or the one that its registration returned.
    /// Without one a candidate is registered anew, under a secret that the answer has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// `DELETE /v1/elections/{election}/candidates/{id}`: stand no longer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct WithdrawRequest {
    /// The secret of the candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Only if it leads this term: a request that was delayed or is repeated changes nothing in a later one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
}

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ElectAnswer {
    /// Who leads; none only while the lease waits for someone to take it.
    pub leader: Option<Leader>,
    /// Whether that is the candidate.
    pub is_leader: bool,
    /// The current term, if somebody leads.
    pub term: Option<u64>,
    /// The fencing token `LINEAGE:TERM`, if the candidate leads.
    pub token: Option<String>,
    /// How long the candidate may act as the leader without another call, counted from **before** this
    /// one was sent. 0 if it does not lead.
    pub valid_for_ms: u64,
    /// Who asked this candidate to give up the term that it led. It leads no longer: end its work and withdraw, and the
    /// next one gets the lease at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<NodeId>,
    /// Who is to lead next, if nobody leads since the last leader handed over. If it does not come, a later call leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<NodeId>,
    /// Which session of it: several candidates may have one id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for_incarnation: Option<Incarnation>,
    /// The secret of the candidate, if the call registered it without one. It is told once: keep it, every further call
    /// about the candidate needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// `GET /v1/elections/{election}`, and the answer to a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Election {
    /// Who leads.
    pub leader: Option<Leader>,
    /// The current term, or the last one; none if there never was one.
    pub term: Option<u64>,
    /// For how long the leader has led, by the store's clock and not by the leader's. Absent if the store cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led_for_ms: Option<u64>,
    /// How long ago the leader was heard from, if the store can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ago_ms: Option<u64>,
    /// Who is to lead next, if nobody leads since the last leader handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<NodeId>,
    /// Which session of it: several candidates may have one id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for_incarnation: Option<Incarnation>,
    /// For how long at most from now on it is reserved, if the store can tell. Then anybody may lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for_ms: Option<u64>,
    /// What the leader is asked, if it has not done it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<LeaderRequest>,
    /// The live candidates.
    #[serde(default)]
    pub candidates: Vec<Candidate>,
    /// The secret of the candidate, if the call registered it without one. It is told once: keep it, every further call
    /// about the candidate needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// What somebody asks of a leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaderRequest {
    /// What is asked.
    pub kind: LeaderRequestKind,
    /// Who asks.
    pub by: NodeId,
    /// Who is to lead next, if it is to hand over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// The process of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_incarnation: Option<Incarnation>,
    /// Whether the lease ends by itself. That of a program does that only calls now and then: its ttl after the request
    /// others take it, and the one that is to lead next comes first.
    #[serde(default)]
    pub lapses: bool,
    /// How long that takes from now on at most, if the store can tell. A running candidate takes the lease then. One that only
    /// calls does on a file store and SQLite; elsewhere it counts for itself, and takes it at a call a ttl or more after its
    /// first one that came after the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lapses_in_ms: Option<u64>,
}

/// What is asked of a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeaderRequestKind {
    /// To let someone else lead.
    Resign,
    /// To let one that is named lead.
    Transfer,
}

/// A live candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Candidate {
    /// Its id.
    pub id: NodeId,
    /// How long it counts without another call.
    pub ttl_ms: u64,
    /// How long ago it was heard from, if the store can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ago_ms: Option<u64>,
}

/// `GET /v1/elections/{election}/leader`, answered like `elect` but without taking part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema, utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields, default)]
pub struct ElectionQuery {
    /// Whose leadership is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<NodeId>,
}
