//! Events as followers get them.

use tenure::cluster::{Event as Cluster, Generation, Notice, Shard};
use tenure::core::election::Leader;
use tenure::core::{ElectionName, NodeId};
use tenure_api::{Event, JobId, QueueName, ScheduleName};
use tenure_core::queue;

/// An event of the queue as followers get it; `None` if it changed nothing.
pub(super) fn of_queue(event: &queue::Event, at: u64, position: u64) -> Option<Event> {
    use queue::Event as Queue;
    let new = |name: &str| Event {
        event: name.to_owned(),
        at,
        position,
        ..Event::default()
    };
    let job = |name, id: &JobId, queue: &QueueName| Event {
        id: Some(id.clone()),
        queue: Some(queue.clone()),
        ..new(name)
    };
    let queue = |name, queue: &QueueName| Event {
        queue: Some(queue.clone()),
        ..new(name)
    };
    let schedule = |name, schedule: &ScheduleName, next| Event {
        schedule: Some(schedule.clone()),
        next_at: next,
        ..new(name)
    };
    Some(match event {
        Queue::Submitted {
            id,
            queue,
            state,
            sequence: _,
        } => Event {
            state: Some(*state),
            ..job("submitted", id, queue)
        },
        Queue::Claimed {
            id,
            queue,
            job_type,
            attempt,
            ..
        } => Event {
            job_type: Some(job_type.clone()),
            attempt: Some(*attempt),
            ..job("claimed", id, queue)
        },
        Queue::Completed { id, queue, .. } => job("completed", id, queue),
        Queue::Failed {
            id,
            queue,
            attempt,
            run_at,
            ..
        } => Event {
            attempt: Some(*attempt),
            run_at: Some(*run_at),
            ..job("failed", id, queue)
        },
        Queue::Died {
            id, queue, attempt, ..
        } => Event {
            attempt: Some(*attempt),
            ..job("died", id, queue)
        },
        Queue::Released { id, queue, .. } => job("released", id, queue),
        Queue::Cancelled { id, queue, .. } => job("cancelled", id, queue),
        Queue::CancelRequested { id } => Event {
            id: Some(id.clone()),
            ..new("cancel_requested")
        },
        Queue::Retried { id, queue } => job("retried", id, queue),
        Queue::Moved { id, to, .. } => job("moved", id, to),
        Queue::Forgotten { id } => Event {
            id: Some(id.clone()),
            ..new("forgotten")
        },
        Queue::Ready {
            id,
            queue,
            job_type,
        } => Event {
            job_type: Some(job_type.clone()),
            ..job("ready", id, queue)
        },
        Queue::QueueSet { queue: name } => queue("queue_set", name),
        Queue::Paused { queue: name } => queue("paused", name),
        Queue::Resumed { queue: name } => queue("resumed", name),
        Queue::ScheduleSet {
            schedule: name,
            next,
        } => schedule("schedule_set", name, *next),
        Queue::ScheduleDeleted { schedule: name } => schedule("schedule_deleted", name, None),
        Queue::SchedulePaused { schedule: name } => schedule("schedule_paused", name, None),
        Queue::ScheduleResumed {
            schedule: name,
            next,
        } => schedule("schedule_resumed", name, *next),
        Queue::Fired {
            schedule: name,
            next,
            ..
        } => schedule("fired", name, *next),
        Queue::SlotFired {
            schedule: name,
            id,
            created: true,
        } => Event {
            id: Some(id.clone()),
            ..schedule("slot_fired", name, None)
        },
        Queue::Configured => new("configured"),
        Queue::TimeSet { .. } => new("time_set"),
        Queue::SlotFired { created: false, .. } => return None,
    })
}

/// An event of the cluster as followers get it; `None` if it is not shown to them.
pub(super) fn of_cluster(notice: &Notice) -> Option<Event> {
    let new = |name: &str| Event {
        event: name.to_owned(),
        at: notice.at.0,
        initial: notice.cursor.is_none(),
        ..Event::default()
    };
    let node = |name, node: &NodeId| Event {
        node: Some(node.clone()),
        ..new(name)
    };
    let member = |name, member: &tenure::cluster::Member| Event {
        incarnation: Some(member.incarnation),
        address: member.address.clone(),
        ..node(name, &member.node)
    };
    let leader = |name, at: &NodeId, term: u64| Event {
        election: Some(ElectionName::cluster()),
        term: Some(term),
        ..node(name, at)
    };
    let daemon = |name, shard: &Shard, generation: &Generation, at: &NodeId| Event {
        daemon: Some(shard.daemon.clone()),
        shard: Some(shard.index),
        generation: Some(generation.0),
        ..node(name, at)
    };
    Some(match &notice.event {
        Cluster::LeaderElected { node, term } => leader("leader_elected", node, term.0),
        Cluster::LeaderLost { node, term } => leader("leader_lost", node, term.0),
        Cluster::NodeJoined(it) => member("node_joined", it),
        Cluster::NodeLeft(it) => member("node_left", it),
        Cluster::NodeEvicted(it) => member("node_evicted", it),
        Cluster::Assigned {
            shard,
            generation,
            node,
        } => daemon("daemon_assigned", shard, generation, node),
        Cluster::Started {
            shard,
            generation,
            node,
        } => daemon("daemon_started", shard, generation, node),
        Cluster::Revoked {
            shard,
            generation,
            node,
        } => daemon("daemon_revoked", shard, generation, node),
        Cluster::Stopped {
            shard,
            generation,
            node,
        } => daemon("daemon_stopped", shard, generation, node),
        Cluster::Failed {
            shard,
            generation,
            node,
            error,
        } => Event {
            error: Some(error.clone()),
            ..daemon("daemon_failed", shard, generation, node)
        },
        _ => return None,
    })
}

/// Which broker serves the queue: the first event of a stream, which ends when this changes.
pub(super) fn of_broker(leader: &Leader, at: u64) -> Event {
    Event {
        event: "leader_elected".to_owned(),
        at,
        initial: true,
        election: Some(ElectionName::queue()),
        term: Some(leader.term.0),
        node: Some(leader.node.clone()),
        incarnation: Some(leader.incarnation),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use tenure_api::JobType;

    use super::*;

    #[test]
    fn followers_see_no_token_and_no_payload() {
        let id = JobId::new("a").unwrap();
        let claimed = queue::Event::Claimed {
            id: id.clone(),
            token: "1f-0a1b2c3d".parse().unwrap(),
            queue: QueueName::new("q").unwrap(),
            job_type: JobType::new("t").unwrap(),
            attempt: 1,
            lease_ms: 4,
        };
        assert_eq!(
            serde_json::to_string(&of_queue(&claimed, 5, 6)).unwrap(),
            r#"{"event":"claimed","at":5,"position":6,"id":"a","queue":"q","type":"t","attempt":1}"#
        );
        let found = queue::Event::SlotFired {
            schedule: ScheduleName::new("s").unwrap(),
            id: id.clone(),
            created: false,
        };
        assert_eq!(of_queue(&found, 5, 6), None, "nothing happened");
        let ready = queue::Event::Ready {
            id,
            queue: QueueName::new("q").unwrap(),
            job_type: JobType::new("t").unwrap(),
        };
        assert_eq!(of_queue(&ready, 5, 6).unwrap().event, "ready");
    }
}
