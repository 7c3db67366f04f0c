//! One-shot elections, for programs in any language: calls share no state, and any server answers them straight from
//! the store. An election belongs to the broker's namespace, and is the same one that the command line and the library
//! see under its name. The product's own elections are refused, and a token reaches nothing outside its namespace.
//!
//! A candidate belongs to the program that knows its secret. The secret's digest is kept with the candidate, so that
//! any broker can check it. Programs should send their own secret with every call, so that they do not depend on an
//! answer that may be lost. For programs without one, the call that registers a candidate makes a secret and returns
//! it once.
//!
//! A leader may act for `valid_for_ms`, counted from the moment at which it **sent** its request. The server counts
//! from when it received the request, which is never earlier, so the caller's trust always ends first.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use tenure::core::election::{Lease, LeaseState, RequestKind, Term};
use tenure::core::session::About;
use tenure::core::{ElectionName, NodeId};
use tenure::{OneShot, Status, Withdrawal};
use tenure_api::{
    Candidate, CandidateRequest, Code, ElectAnswer, ElectRequest, Election, ElectionQuery, Leader,
    LeaderRequest, LeaderRequestKind, Problem as ProblemBody, Secret, WithdrawRequest,
};
use tokio::time::Instant;

use crate::app::App;
use crate::extract::{Json, Named, NamedTwo, OptionalJson, Parameters, ok};
use crate::problem::Problem;

/// The default ttl of a candidate: how long it lasts without another call.
const TTL_MS_DEFAULT: u64 = 60_000;

/// The shortest ttl, as for every session.
const TTL_MS_MIN: u64 = 200;

/// The longest ttl: an hour. A leader that does not come back blocks the election for that long.
const TTL_MS_MAX: u64 = 3_600_000;

/// Enter a candidate, or keep it in the election
#[utoipa::path(put, path = "/v1/elections/{election}/candidates/{id}", tag = "elections",
    params(("election" = ElectionName, Path, description = "The election"), ("id" = NodeId, Path, description = "The candidate")),
    request_body = Option<CandidateRequest>,
    responses((status = 200, description = "It is a candidate", body = Election),
        (status = 403, description = "The election is reserved for Tenure, or the candidate belongs to another program", body = ProblemBody),
        (status = 409, description = "Too many candidates have this id", body = ProblemBody),
        (status = 422, description = "A name, time or secret is not valid", body = ProblemBody),
        (status = 429, description = "There are as many elections or candidates as are allowed, or too many calls wait", body = ProblemBody)))]
pub(crate) async fn stand(
    State(app): State<Arc<App>>,
    NamedTwo(election, id): NamedTwo<ElectionName, NodeId>,
    OptionalJson(request): OptionalJson<CandidateRequest>,
) -> Result<Response, Problem> {
    let _permit = app.wait_permit()?;
    let elections = elections(&app, &election, request.ttl_ms)?;
    let (elections, secret) = owned(elections, &id, request.secret).await?;
    let changing = app.looks.change();
    elections.register_candidate(&id).await?;
    drop(changing);
    look(&app, &election, Instant::now(), secret).await
}

/// Withdraw a candidate, and release leadership
#[utoipa::path(delete, path = "/v1/elections/{election}/candidates/{id}", tag = "elections",
    params(("election" = ElectionName, Path, description = "The election"), ("id" = NodeId, Path, description = "The candidate")),
    request_body = Option<WithdrawRequest>,
    responses((status = 204, description = "It is no longer a candidate"),
        (status = 403, description = "The election is reserved for Tenure, or the candidate belongs to another program", body = ProblemBody),
        (status = 409, description = "It does not lead the term that was named; nothing was changed", body = ProblemBody),
        (status = 422, description = "A name or secret is not valid", body = ProblemBody)))]
pub(crate) async fn withdraw(
    State(app): State<Arc<App>>,
    NamedTwo(election, id): NamedTwo<ElectionName, NodeId>,
    OptionalJson(request): OptionalJson<WithdrawRequest>,
) -> Result<StatusCode, Problem> {
    let _permit = app.wait_permit()?;
    let elections = elections(&app, &election, None)?;
    // Without a secret the call must match no candidate, in particular none of the command line's, which have no
    // secret.
    let digest = request.secret.as_ref().map(digest).unwrap_or_default();
    let elections = elections.with_secret_digest(Some(digest));
    let _changing = app.looks.change();
    match elections.withdraw(&id, request.term.map(Term)).await? {
        Withdrawal::Done => Ok(StatusCode::NO_CONTENT),
        Withdrawal::NotStanding if elections.is_taken(&id).await? => Err(not_yours(&id)),
        Withdrawal::NotStanding => Ok(StatusCode::NO_CONTENT),
        Withdrawal::OtherTerm => Err(Problem::new(
            Code::Conflict,
            format!("{id} does not lead that term of {election}; nothing was changed"),
        )
        .field("term")),
    }
}

/// Lead if nobody does, and return the leader
#[utoipa::path(post, path = "/v1/elections/{election}/elect", tag = "elections",
    params(("election" = ElectionName, Path, description = "The election")), request_body = ElectRequest,
    responses((status = 200, description = "The leader", body = ElectAnswer),
        (status = 403, description = "The election is reserved for Tenure, or the candidate belongs to another program", body = ProblemBody),
        (status = 409, description = "Too many candidates have this id", body = ProblemBody),
        (status = 422, description = "A field is not valid", body = ProblemBody),
        (status = 429, description = "There are as many elections or candidates as are allowed, or too many calls wait", body = ProblemBody)))]
pub(crate) async fn elect(
    State(app): State<Arc<App>>,
    Named(election): Named<ElectionName>,
    Json(request): Json<ElectRequest>,
) -> Result<Response, Problem> {
    let _permit = app.wait_permit()?;
    let elections = elections(&app, &election, request.ttl_ms)?;
    let (elections, secret) = owned(elections, &request.candidate, request.secret).await?;
    let _changing = app.looks.change();
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
        asked_by: outcome.asked_by,
        reserved_for_incarnation: outcome.reserved_for.as_ref().map(|to| to.incarnation),
        reserved_for: outcome.reserved_for.map(|to| to.node),
        secret,
    }))
}

/// The leader and the candidates
///
/// Candidates are shown as they were at most a second ago, or at the last change through this broker.
#[utoipa::path(get, path = "/v1/elections/{election}", operation_id = "election", tag = "elections",
    params(("election" = ElectionName, Path, description = "The election")),
    responses((status = 200, description = "The election", body = Election),
        (status = 422, description = "The name is not valid", body = ProblemBody),
        (status = 429, description = "Too many calls wait", body = ProblemBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Named(election): Named<ElectionName>,
) -> Result<Response, Problem> {
    let _permit = app.looks.permit()?;
    look(&app, &election, app.looks.recent(), None).await
}

/// The leader, and whether a candidate leads
#[utoipa::path(get, path = "/v1/elections/{election}/leader", tag = "elections",
    params(("election" = ElectionName, Path, description = "The election"), ElectionQuery),
    responses((status = 200, description = "Who leads. Do not act on this; use elect for that", body = ElectAnswer),
        (status = 422, description = "A name is not valid", body = ProblemBody)))]
pub(crate) async fn leader(
    State(app): State<Arc<App>>,
    Named(election): Named<ElectionName>,
    Parameters(query): Parameters<ElectionQuery>,
) -> Result<Response, Problem> {
    let live = app.node.view().live_leader(&election).await?;
    let leader = live.and_then(|(lease, session)| leader_of(&lease, &session.about));
    let is_leader =
        leader.is_some() && leader.as_ref().map(|leader| &leader.node) == query.candidate.as_ref();
    Ok(ok(&ElectAnswer {
        term: leader.as_ref().map(|leader| leader.term),
        leader,
        is_leader,
        token: None,
        valid_for_ms: 0,
        asked_by: None,
        reserved_for: None,
        reserved_for_incarnation: None,
        secret: None,
    }))
}

fn elections(app: &App, election: &ElectionName, ttl_ms: Option<u64>) -> Result<OneShot, Problem> {
    if election.is_reserved() {
        return Err(Problem::new(
            Code::Forbidden,
            format!("the election {election} is reserved for Tenure"),
        )
        .field("election")
        .hint("choose a name that does not begin with \"tenure.\""));
    }
    let ttl_ms = ttl_ms.unwrap_or(TTL_MS_DEFAULT);
    if !(TTL_MS_MIN..=TTL_MS_MAX).contains(&ttl_ms) {
        return Err(Problem::new(
            Code::InvalidField,
            format!("ttl_ms is {ttl_ms}, but must be between {TTL_MS_MIN} and {TTL_MS_MAX}"),
        )
        .field("ttl_ms"));
    }
    let ttl = Duration::from_millis(ttl_ms);
    let elections = OneShot::new(app.store.clone(), &app.config.namespace, ttl)?;
    let elections = elections.with_bounds(app.election_bounds.clone());
    Ok(elections.with_election(election.as_str())?)
}

/// The election calls, made with the secret of a candidate's owner; returns the secret too if it was made here.
async fn owned(
    elections: OneShot,
    id: &NodeId,
    secret: Option<Secret>,
) -> Result<(OneShot, Option<Secret>), Problem> {
    if let Some(secret) = secret {
        return Ok((elections.with_secret_digest(Some(digest(&secret))), None));
    }
    if elections.is_taken(id).await? {
        return Err(not_yours(id));
    }
    let secret = new_secret()?;
    let elections = elections.with_secret_digest(Some(digest(&secret)));
    Ok((elections, Some(secret)))
}

fn not_yours(id: &NodeId) -> Problem {
    Problem::new(
        Code::Forbidden,
        format!("there is already a candidate {id} with another secret; nothing was done"),
    )
    .field("secret")
    .hint("send the secret that was returned when it registered, or choose another id")
}

fn new_secret() -> Result<Secret, Problem> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Problem::internal("the system has no random numbers"))?;
    let text = format!("{:032x}", u128::from_be_bytes(bytes));
    Secret::new(text).map_err(|error| Problem::internal(&error.to_string()))
}

/// The digest of a secret, which is what is stored. A long random text needs no salt.
fn digest(secret: &Secret) -> String {
    let digest = digest::digest(&digest::SHA256, secret.expose().as_bytes());
    let bytes = digest.as_ref().iter();
    bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

async fn look(
    app: &App,
    election: &ElectionName,
    since: Instant,
    secret: Option<Secret>,
) -> Result<Response, Problem> {
    let candidates = app.looks.sessions(app, since).await?;
    let candidates = candidates.standing(election).await?;
    // Only if its session lives: a lease may name a leader that is long gone.
    let (status, session) = app.node.view().led(election).await?;
    let leader = status.lease.as_ref().zip(session);
    let leader = leader.and_then(|(lease, session)| leader_of(lease, &session.about));
    let candidates = candidates.into_iter().map(|candidate| Candidate {
        ttl_ms: milliseconds(candidate.holder.ttl),
        id: candidate.holder.node,
        seen_ago_ms: candidate.seen_ago.map(milliseconds),
    });
    let (led_for, seen_ago) = match &leader {
        Some(_) => (status.led_for(), status.leader_seen_ago),
        None => (None, None),
    };
    let reserved = status.reserved();
    Ok(ok(&Election {
        leader,
        term: status.lease.as_ref().map(|lease| lease.term.0),
        led_for_ms: led_for.map(milliseconds),
        seen_ago_ms: seen_ago.map(milliseconds),
        reserved_for: reserved.map(|(candidate, _)| candidate.node.clone()),
        reserved_for_incarnation: reserved.map(|(candidate, _)| candidate.incarnation),
        reserved_for_ms: reserved.and_then(|(_, left)| left).map(milliseconds),
        request: request_of(&status),
        candidates: candidates.collect(),
        secret,
    }))
}

/// The pending request to the leader, if there is one.
fn request_of(status: &Status) -> Option<LeaderRequest> {
    let request = status.lease.as_ref()?.request.as_ref()?;
    let (kind, to) = match &request.kind {
        RequestKind::Resign => (LeaderRequestKind::Resign, None),
        RequestKind::Transfer { to } => (LeaderRequestKind::Transfer, Some(to)),
    };
    let lapses_in = status.lapses_in();
    Some(LeaderRequest {
        kind,
        by: request.by.clone(),
        to: to.map(|to| to.node.clone()),
        to_incarnation: to.map(|to| to.incarnation),
        lapses: lapses_in.is_some(),
        lapses_in_ms: lapses_in.flatten().map(milliseconds),
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The leader, from the lease and its holder's session.
fn leader_of(lease: &Lease, about: &About) -> Option<Leader> {
    let LeaseState::Held { holder, since } = &lease.state else {
        return None;
    };
    Some(Leader {
        node: holder.node.clone(),
        term: lease.term.0,
        incarnation: Some(holder.incarnation),
        address: about.address.clone(),
        since_at: Some(since.0),
    })
}
