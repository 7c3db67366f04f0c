//! One-shot elections over HTTP: for programs in any language, without a background loop.

use serde::{Deserialize, Serialize};

use super::cluster::Leader;
use crate::NodeId;

/// `PUT /v1/elections/{namespace}/candidates/{id}`: stand, or say that one still does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CandidateRequest {
    /// How long the candidate counts without another call. The server's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// `POST /v1/elections/{namespace}/elect`: lead, if nobody does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ElectRequest {
    /// Who asks.
    pub candidate: NodeId,
    /// How long the candidate counts without another call. The server's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
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
}

/// `GET /v1/elections/{namespace}`, and the answer to a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Election {
    /// Who leads.
    pub leader: Option<Leader>,
    /// The current term, or the last one; none if there never was one.
    pub term: Option<u64>,
    /// The live candidates.
    #[serde(default)]
    pub candidates: Vec<Candidate>,
}

/// A live candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Candidate {
    /// Its id.
    pub id: NodeId,
    /// How long it counts without another call.
    pub ttl_ms: u64,
}

/// `GET /v1/elections/{namespace}/leader`, answered like `elect` but without taking part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema, utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields, default)]
pub struct ElectionQuery {
    /// Whose leadership is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<NodeId>,
}
