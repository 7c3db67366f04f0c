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

/// `PUT /v1/elections/{election}/candidates/{id}`: become a candidate, or stay one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct CandidateRequest {
    /// How long the candidate stays one without another call. The broker's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The secret of this candidate: a random one that you made up, or the one that its registration returned.
    /// Without a secret, this registers a new candidate, and the answer has its secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// `POST /v1/elections/{election}/elect`: lead, if nobody does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ElectRequest {
    /// Who asks.
    pub candidate: NodeId,
    /// How long the candidate stays one without another call. The broker's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The secret of this candidate: a random one that you made up, or the one that its registration returned.
    /// Without a secret, this registers a new candidate, and the answer has its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// `DELETE /v1/elections/{election}/candidates/{id}`: withdraw a candidate.
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

/// The result of an election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ElectAnswer {
    /// Who leads; absent only while the lease waits for a candidate to take it.
    pub leader: Option<Leader>,
    /// Whether this candidate leads.
    pub is_leader: bool,
    /// The current term, if there is a leader.
    pub term: Option<u64>,
    /// The fencing token `LINEAGE:TERM`, if the candidate leads.
    pub token: Option<String>,
    /// How long the candidate may act as the leader without another call, counted from **before** this
    /// one was sent. 0 if it does not lead.
    pub valid_for_ms: u64,
    /// Who asked this candidate to step down. It no longer leads: stop its work and withdraw it, and the next
    /// candidate gets the lease at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<NodeId>,
    /// Who leads next, after the last leader handed over. If it does not call in time, another candidate leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<NodeId>,
    /// Its incarnation: several candidates may have the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for_incarnation: Option<Incarnation>,
    /// The secret of the candidate, if the call registered it without one. It is shown only once: keep it, because every further
    /// call about the candidate needs it.
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
    /// Who leads next, after the last leader handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<NodeId>,
    /// Its incarnation: several candidates may have the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for_incarnation: Option<Incarnation>,
    /// How much longer the lease is reserved at most, if the store can tell. After that any candidate can lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for_ms: Option<u64>,
    /// What the leader was asked to do, if it has not done it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<LeaderRequest>,
    /// The live candidates.
    #[serde(default)]
    pub candidates: Vec<Candidate>,
    /// The secret of the candidate, if the call registered it without one. It is shown only once: keep it, because every further
    /// call about the candidate needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// What a leader was asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaderRequest {
    /// What it was asked to do.
    pub kind: LeaderRequestKind,
    /// Who asked.
    pub by: NodeId,
    /// Who leads next, if it was asked to hand over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// The incarnation of that candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_incarnation: Option<Incarnation>,
    /// Whether the lease ends without an answer. That is so for a program that only calls now and then: one ttl after the
    /// request other candidates can take the lease, the chosen one first.
    #[serde(default)]
    pub lapses: bool,
    /// How long until then at most, if the store can tell. A running candidate takes the lease then. So does one that only
    /// calls, on a file store and SQLite. Elsewhere it takes the lease at its first call that comes at least a ttl after its
    /// first call after the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lapses_in_ms: Option<u64>,
}

/// What a leader can be asked to do.
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
    /// How long it stays a candidate without another call.
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
    /// Also say whether this candidate leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<NodeId>,
}
