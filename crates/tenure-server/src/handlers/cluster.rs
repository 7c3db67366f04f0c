//! Nodes, leaders, and how to change the leader. Any server answers, since all of it is in the store.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tenure::cluster::{DaemonStatus, NodeStatus, ShardStatus};
use tenure::core::cluster::{AssignmentState, Part, RunState};
use tenure::core::election::LeaseState;
use tenure::core::session::{self, Record};
use tenure::core::{ElectionName, Namespace, NodeId};
use tenure::{Brief, NamespaceView};
use tenure_api::{
    Cluster, ClusterElection, Daemon, DaemonShard, Decision, Leader, Node, PastTerm, Plan,
    Problem as ProblemBody, ResignRequest, TransferRequest,
};
use tokio::time::Instant;

use crate::app::App;
use crate::audit::detailed;
use crate::extract::{Json, Named, NoBody, OptionalJson, json, ok};
use crate::looks::Overview;
use crate::problem::Problem;

/// The most elections that are shown; each costs two reads.
const ELECTIONS_MAX: usize = 20;

/// The nodes, elections and daemons
///
/// As they were at most a second ago, or at the last change through this broker.
#[utoipa::path(get, path = "/v1/cluster", operation_id = "cluster", tag = "cluster",
    responses((status = 200, description = "The cluster as stored", body = Cluster),
        (status = 429, description = "Too many calls wait", body = ProblemBody),
        (status = 503, description = "The store does not answer", body = ProblemBody)))]
pub(crate) async fn show(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let _permit = app.looks.permit()?;
    let overview = app.looks.cluster(&app, app.looks.recent()).await?;
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], overview.json.clone()).into_response())
}

/// What the leader of the daemons would do now, and why
///
/// This is what the store shows. Only the leader knows its timeouts and where work has failed.
#[utoipa::path(get, path = "/v1/cluster/plan", operation_id = "plan", tag = "cluster",
    responses((status = 200, description = "What would be done; nothing if all is in place", body = Plan),
        (status = 429, description = "Too many calls wait", body = ProblemBody),
        (status = 503, description = "The store does not answer", body = ProblemBody)))]
pub(crate) async fn plan(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let _permit = app.looks.permit()?;
    let view = app.looks.sessions(&app, app.looks.recent()).await?;
    let decisions = view.plan().await?;
    Ok(ok(&Plan {
        namespace: namespace(&app),
        decisions: decisions.iter().map(Decision::from).collect(),
    }))
}

/// Reads the whole cluster. Calls do not use this directly: they share readings ([`Looks`](crate::looks::Looks)).
pub(crate) async fn read(app: &App) -> Result<Overview, Problem> {
    // The sessions must not be older than this call, or the reading would be older than it claims.
    let view = app.looks.sessions(app, Instant::now()).await?;
    let cluster = seen(app, &view).await?;
    let json = serde_json::to_vec(&cluster).expect("plain data becomes JSON");
    Ok(Overview {
        json: json.into(),
        ages: view.ages().await?,
        cluster,
    })
}

async fn seen(app: &App, view: &NamespaceView) -> Result<Cluster, Problem> {
    // The product's own elections are shown, however many elections users have.
    let names = view.some_elections(ELECTIONS_MAX).await?;
    let briefs = view.briefs(&names).await?;
    let sessions = view.node_sessions().await?;
    let (present, daemons) = view.nodes_and_daemons().await?;
    let own = names
        .iter()
        .position(|name| name == app.queue.election().name());
    let own = own.map(|place| &briefs[place]);
    let history = own.and_then(|brief| brief.lease.as_ref());
    let by_store = own.and_then(Brief::held_for);
    let term = history.map(|lease| lease.term);
    let led_for = by_store.or_else(|| app.dashboard.seen_for(term?));
    Ok(Cluster {
        namespace: namespace(app),
        node: app.node.id().clone(),
        leader: own.and_then(|brief| leader(brief, &sessions)),
        led_for_ms: led_for.map(|led_for| u64::try_from(led_for.as_millis()).unwrap_or(u64::MAX)),
        led_for_at_least: led_for.is_some() && by_store.is_none(),
        elections: names
            .iter()
            .zip(&briefs)
            .map(|(name, brief)| election(name, brief, &sessions))
            .collect(),
        nodes: sessions
            .iter()
            .map(|session| node(session, &present))
            .collect(),
        daemons: daemons.into_iter().map(daemon).collect(),
        history: history.map_or_else(Vec::new, |lease| lease.history.iter().map(past).collect()),
    })
}

/// Ask the leader to step down
#[utoipa::path(post, path = "/v1/leader/resign", tag = "cluster", request_body = Option<ResignRequest>,
    responses((status = 202, description = "The leader was asked; it complies when it reads the request", body = ResignRequest),
        (status = 503, description = "There is no leader", body = ProblemBody)))]
pub(crate) async fn resign(
    State(app): State<Arc<App>>,
    OptionalJson(request): OptionalJson<ResignRequest>,
) -> Result<Response, Problem> {
    app.queue.election().request_resign().await?;
    Ok(json(StatusCode::ACCEPTED, &request))
}

/// Ask the leader to hand over to a node
#[utoipa::path(post, path = "/v1/leader/transfer", tag = "cluster", request_body = TransferRequest,
    responses((status = 202, description = "The leader was asked; it complies when it reads the request", body = TransferRequest),
        (status = 422, description = "The node is not a candidate", body = ProblemBody),
        (status = 503, description = "There is no leader", body = ProblemBody)))]
pub(crate) async fn transfer(
    State(app): State<Arc<App>>,
    Json(request): Json<TransferRequest>,
) -> Result<Response, Problem> {
    // It reads all sessions, to find the node.
    let _permit = app.looks.permit()?;
    app.queue.election().transfer_to(&request.node).await?;
    let response = json(StatusCode::ACCEPTED, &request);
    Ok(detailed(response, format!("to {}", request.node)))
}

/// Drain a node of its daemons
///
/// Its daemons move to other nodes, a few at a time. It gets no others until it
/// is undrained.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain", operation_id = "drain_node", tag = "cluster",
    params(("node" = NodeId, Path, description = "The node")),
    responses((status = 204, description = "The node gets no daemons from now on"),
        (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn drain(
    State(app): State<Arc<App>>,
    Named(node): Named<NodeId>,
    _: NoBody,
) -> Result<Response, Problem> {
    let _changing = app.looks.change();
    app.node.view().drain(&node, "a call over HTTP").await?;
    Ok(detailed(
        StatusCode::NO_CONTENT.into_response(),
        node.to_string(),
    ))
}

/// Let a node run daemons again
#[utoipa::path(post, path = "/v1/nodes/{node}/undrain", operation_id = "undrain_node", tag = "cluster",
    params(("node" = NodeId, Path, description = "The node")),
    responses((status = 204, description = "The node may run daemons"),
        (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn undrain(
    State(app): State<Arc<App>>,
    Named(node): Named<NodeId>,
    _: NoBody,
) -> Result<Response, Problem> {
    let _changing = app.looks.change();
    app.node.view().undrain(&node).await?;
    Ok(detailed(
        StatusCode::NO_CONTENT.into_response(),
        node.to_string(),
    ))
}

pub(crate) fn namespace(app: &App) -> Namespace {
    Namespace::new(&app.config.namespace).expect("checked when the server started")
}

fn election(name: &ElectionName, brief: &Brief, sessions: &[Record]) -> ClusterElection {
    ClusterElection {
        name: name.clone(),
        leader: leader(brief, sessions),
        term: brief.lease.as_ref().map_or(0, |lease| lease.term.0),
        candidates: brief
            .candidates
            .iter()
            .map(|candidate| candidate.node.clone())
            .collect(),
    }
}

fn leader(brief: &Brief, sessions: &[Record]) -> Option<Leader> {
    let lease = brief.lease.as_ref()?;
    let LeaseState::Held { holder, since } = &lease.state else {
        return None;
    };
    let session = sessions
        .iter()
        .find(|session| session.incarnation == holder.incarnation);
    Some(Leader {
        node: holder.node.clone(),
        term: lease.term.0,
        incarnation: Some(holder.incarnation),
        address: session.and_then(|session| session.about.address.clone()),
        since_at: Some(since.0),
    })
}

fn node(session: &Record, present: &[NodeStatus]) -> Node {
    let state = match session.state {
        session::State::Alive => "alive",
        session::State::Gone => "gone",
        session::State::Evicted { .. } => "evicted",
    };
    let status = present
        .iter()
        .find(|status| status.member.incarnation == session.incarnation);
    let part = Part::of(&session.about);
    Node {
        node: session.node.clone(),
        incarnation: session.incarnation,
        state: state.to_owned(),
        address: session.about.address.clone(),
        labels: session.about.labels.clone(),
        version: part.version.clone(),
        capacity: part.capacity,
        joined_at: session.joined_at.0,
        ttl_ms: u64::try_from(session.ttl.as_millis()).unwrap_or(u64::MAX),
        drained: status.is_some_and(|status| status.drained.is_some()),
        going: part.going.is_some(),
    }
}

fn daemon(status: DaemonStatus) -> Daemon {
    Daemon {
        daemon: status.id,
        weight: status.definition.weight,
        shards: (0..).zip(status.shards).map(shard).collect(),
    }
}

fn shard((index, status): (u32, ShardStatus)) -> DaemonShard {
    let is_failing = status.is_failing();
    let state = match &status.assigned {
        Some((_, it)) if it.state == AssignmentState::Revoking => "revoking",
        _ if is_failing => "failing",
        None => "unassigned",
        Some((_, assignment)) => match assignment.state {
            AssignmentState::Assigning => "assigning",
            AssignmentState::Active => "active",
            AssignmentState::Revoking => "revoking",
        },
    };
    let failures = status.failure.as_ref().map_or(0, |it| it.count);
    let last = status.failure.filter(|_| is_failing).map(|it| it.error);
    let error = match status.reported {
        Some(RunState::Failed { error }) => Some(error),
        _ => last,
    };
    let (node, assignment) = status.assigned.unzip();
    DaemonShard {
        index,
        state: state.to_owned(),
        node,
        generation: assignment.map(|assignment| assignment.generation.0),
        since_at: assignment.map(|assignment| assignment.since.0),
        error,
        failures,
    }
}

fn past(term: &tenure::core::election::PastTerm) -> PastTerm {
    PastTerm {
        term: term.term.0,
        node: term.node.clone(),
        since_at: term.since.0,
        until_at: term.until.0,
        reason: term.reason.clone(),
        lasted_ms: term.lasted_ms,
        vacant_ms: term.vacant_ms,
    }
}
