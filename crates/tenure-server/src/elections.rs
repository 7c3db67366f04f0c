//! One-shot elections, for programs in any language: every call stands alone, and any server answers it,
//! straight from the store.
//!
//! What may be acted on is `valid_for_ms`, counted from the moment at which the caller **sent** its request:
//! the server counts from when it got it, which is never earlier.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tenure::core::election::LeaseState;
use tenure::core::{ElectionName, Namespace, NodeId};
use tenure::{Namespaced, OneShot, Status};
use tenure_core::api::{
    Candidate, CandidateRequest, Code, ElectAnswer, ElectRequest, Election, ElectionQuery, Leader,
    Problem as ProblemBody,
};

use crate::app::App;
use crate::extract::{Json, Named, NamedTwo, NoBody, OptionalJson, Parameters, ok};
use crate::problem::Problem;

/// How long a candidate stands without another call, unless it says.
const TTL_MS_DEFAULT: u64 = 60_000;

/// The longest that it can say: a day. Who does not come back is in the way for that long.
const TTL_MS_MAX: u64 = 86_400_000;

/// The election that one-shot calls hold in a namespace.
const ELECTION: &str = "default";

/// Stand as a candidate, or go on standing
#[utoipa::path(put, path = "/v1/elections/{ns}/candidates/{id}", tag = "elections",
    params(("ns" = Namespace, Path, description = "The namespace"), ("id" = NodeId, Path, description = "The candidate")),
    request_body = Option<CandidateRequest>,
    responses((status = 200, description = "It stands", body = Election),
        (status = 403, description = "The namespace is the broker's own", body = ProblemBody),
        (status = 422, description = "A name or time cannot be", body = ProblemBody)))]
pub(crate) async fn stand(
    State(app): State<Arc<App>>,
    NamedTwo(namespace, id): NamedTwo<Namespace, NodeId>,
    OptionalJson(request): OptionalJson<CandidateRequest>,
) -> Result<Response, Problem> {
    let _permit = app.wait_permit()?;
    let elections = elections(&app, &namespace, request.ttl_ms)?;
    elections.register_candidate(&id).await?;
    look(&app, namespace).await
}

/// Stand no longer, and give leadership back
#[utoipa::path(delete, path = "/v1/elections/{ns}/candidates/{id}", tag = "elections",
    params(("ns" = Namespace, Path, description = "The namespace"), ("id" = NodeId, Path, description = "The candidate")),
    responses((status = 204, description = "It stands no longer"),
        (status = 403, description = "The namespace is the broker's own", body = ProblemBody),
        (status = 422, description = "A name cannot be", body = ProblemBody)))]
pub(crate) async fn withdraw(
    State(app): State<Arc<App>>,
    NamedTwo(namespace, id): NamedTwo<Namespace, NodeId>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let _permit = app.wait_permit()?;
    elections(&app, &namespace, None)?
        .unregister_candidate(&id)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lead if nobody does, and say who does
#[utoipa::path(post, path = "/v1/elections/{ns}/elect", tag = "elections",
    params(("ns" = Namespace, Path, description = "The namespace")), request_body = ElectRequest,
    responses((status = 200, description = "Who leads", body = ElectAnswer),
        (status = 403, description = "The namespace is the broker's own", body = ProblemBody),
        (status = 422, description = "A field cannot be", body = ProblemBody)))]
pub(crate) async fn elect(
    State(app): State<Arc<App>>,
    Named(namespace): Named<Namespace>,
    Json(request): Json<ElectRequest>,
) -> Result<Response, Problem> {
    let _permit = app.wait_permit()?;
    let elections = elections(&app, &namespace, request.ttl_ms)?;
    let outcome = elections.elect(&request.candidate).await?;
    let is_leader = outcome.is_leader();
    let leader = outcome.leader.map(|leader| Leader {
        node: leader.node,
        term: leader.term.0,
        incarnation: Some(leader.incarnation),
        address: None,
        since_at: None,
    });
    let term = match outcome.token {
        Some(token) => Some(token.term.0),
        None => leader.as_ref().map(|leader| leader.term),
    };
    let leader = match (leader, outcome.token) {
        (None, Some(token)) => Some(Leader {
            node: request.candidate,
            term: token.term.0,
            incarnation: None,
            address: None,
            since_at: None,
        }),
        (leader, _) => leader,
    };
    Ok(ok(&ElectAnswer {
        leader,
        is_leader,
        term,
        token: outcome.token.map(|token| token.to_string()),
        valid_for_ms: u64::try_from(outcome.valid_for.as_millis()).unwrap_or(u64::MAX),
    }))
}

/// Who leads, and who stands
#[utoipa::path(get, path = "/v1/elections/{ns}", operation_id = "election", tag = "elections",
    params(("ns" = Namespace, Path, description = "The namespace")),
    responses((status = 200, description = "The election", body = Election),
        (status = 422, description = "The name cannot be", body = ProblemBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Named(namespace): Named<Namespace>,
) -> Result<Response, Problem> {
    look(&app, namespace).await
}

/// Who leads, and whether a candidate does
#[utoipa::path(get, path = "/v1/elections/{ns}/leader", tag = "elections",
    params(("ns" = Namespace, Path, description = "The namespace"), ElectionQuery),
    responses((status = 200, description = "Who leads. Nothing to act on: that is what elect is for", body = ElectAnswer),
        (status = 422, description = "A name cannot be", body = ProblemBody)))]
pub(crate) async fn leader(
    State(app): State<Arc<App>>,
    Named(namespace): Named<Namespace>,
    Parameters(query): Parameters<ElectionQuery>,
) -> Result<Response, Problem> {
    let status = status(&app, namespace).await?;
    let leader = leader_of(&status);
    let is_leader =
        leader.is_some() && leader.as_ref().map(|leader| &leader.node) == query.candidate.as_ref();
    Ok(ok(&ElectAnswer {
        term: leader.as_ref().map(|leader| leader.term),
        leader,
        is_leader,
        token: None,
        valid_for_ms: 0,
    }))
}

fn elections(app: &App, namespace: &Namespace, ttl_ms: Option<u64>) -> Result<OneShot, Problem> {
    if namespace.as_str() == app.config.namespace {
        return Err(Problem::new(
            Code::Forbidden,
            format!("the election of the namespace {namespace} is that of the brokers themselves"),
        )
        .field("ns")
        .hint("use a namespace of your own"));
    }
    let ttl_ms = ttl_ms.unwrap_or(TTL_MS_DEFAULT);
    if ttl_ms > TTL_MS_MAX {
        return Err(Problem::new(
            Code::InvalidField,
            format!("ttl_ms is {ttl_ms}, more than {TTL_MS_MAX}"),
        )
        .field("ttl_ms"));
    }
    let ttl = Duration::from_millis(ttl_ms);
    Ok(OneShot::new(app.store.clone(), namespace.as_str(), ttl)?)
}

async fn look(app: &App, namespace: Namespace) -> Result<Response, Problem> {
    let status = status(app, namespace).await?;
    let candidates = status.candidates.iter().map(|candidate| Candidate {
        id: candidate.holder.node.clone(),
        ttl_ms: u64::try_from(candidate.holder.ttl.as_millis()).unwrap_or(u64::MAX),
    });
    Ok(ok(&Election {
        leader: leader_of(&status),
        term: status.lease.as_ref().map(|lease| lease.term.0),
        candidates: candidates.collect(),
    }))
}

async fn status(app: &App, namespace: Namespace) -> Result<Status, Problem> {
    let election = ElectionName::new(ELECTION).expect("a constant that is a name");
    let view = Namespaced::new(app.store.clone(), namespace);
    Ok(view.status(&election).await?)
}

/// Who leads, if its session lives: a lease may name one that is long gone.
fn leader_of(status: &Status) -> Option<Leader> {
    let lease = status.lease.as_ref()?;
    let LeaseState::Held { holder, since } = &lease.state else {
        return None;
    };
    let session = status
        .candidates
        .iter()
        .find(|candidate| candidate.holder.incarnation == holder.incarnation)?;
    Some(Leader {
        node: holder.node.clone(),
        term: lease.term.0,
        incarnation: Some(holder.incarnation),
        address: session.about.address.clone(),
        since_at: Some(since.0),
    })
}
