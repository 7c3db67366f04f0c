//! What happens, as it happens: server-sent events.
//!
//! Events come in the order of the log, each with its position as id. There is no replay: a client that was
//! away, or was too slow, gets `reset` and reads anew what it keeps. When this server no longer leads the
//! stream ends, and the client's next one is forwarded to whoever does.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use tenure::queue::{Cut, Followed, Follower};
use tenure_api::{
    Event, EventsQuery, JobId, Problem as ProblemBody, QueueName, RESET, ScheduleName,
};
use tenure_core::queue;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::extract::Parameters;
use crate::problem::Problem;

/// How often a stream without events says that it lives. It is also how a client that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Follow events
#[utoipa::path(get, path = "/v1/events", tag = "jobs", params(EventsQuery), responses(
    (status = 200, description = "Server-sent events, each named after what happened; the data is an Event",
        body = Event, content_type = "text/event-stream"),
    (status = 422, description = "A parameter is not valid", body = ProblemBody),
    (status = 429, description = "Too many clients already follow events", body = ProblemBody)))]
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let permit = app
        .followers
        .clone()
        .try_acquire_owned()
        .map_err(|_| Problem::overloaded("too many clients already follow events"))?;
    let was_away = headers.contains_key("last-event-id");
    let waiting = was_away.then(|| reset("events that happened meanwhile are not kept"));
    let following = Following {
        follower: app.queue.follow(),
        query,
        waiting,
        taken: None,
        is_over: false,
        stop: app.stop.clone(),
        _permit: permit,
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let mut response = Sse::new(following.stream())
        .keep_alive(keep_alive)
        .into_response();
    // Proxies that collect an answer before they pass it on would hold all of it back.
    let headers = response.headers_mut();
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct Following {
    follower: Follower,
    query: EventsQuery,
    waiting: Option<Message>,
    /// What was committed last, and how much of it has been told. All followers share it: messages are made one at a
    /// time, so that a slow follower has one in memory and not all of a batch.
    taken: Option<(Followed, usize)>,
    is_over: bool,
    stop: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    fn stream(self) -> impl Stream<Item = Result<Message, std::convert::Infallible>> {
        stream::unfold(self, |mut this| async move {
            loop {
                if let Some(message) = this.waiting.take().or_else(|| this.next()) {
                    return Some((Ok(message), this));
                }
                if this.is_over {
                    return None;
                }
                let next = tokio::select! {
                    next = this.follower.next() => next,
                    () = this.stop.cancelled() => return None,
                };
                match next {
                    Ok(followed) => this.taken = Some((followed, 0)),
                    Err(cut) => {
                        this.is_over = true;
                        if matches!(cut, Cut::Behind { .. }) {
                            this.waiting = Some(reset("this client was too slow"));
                        }
                    }
                }
            }
        })
    }

    /// The next message of what was committed last.
    fn next(&mut self) -> Option<Message> {
        let (followed, told) = self.taken.as_mut()?;
        while let Some(event) = followed.events.get(*told) {
            *told += 1;
            let event = shown(event, followed.at_ms, followed.position.0);
            let wanted = event.filter(|event| is_wanted(&self.query, event));
            if let Some(message) = wanted.and_then(|event| message(&event)) {
                return Some(message);
            }
        }
        self.taken = None;
        None
    }
}

/// What followers are told of an event of the queue; nothing if it changed nothing.
fn shown(event: &queue::Event, at: u64, position: u64) -> Option<Event> {
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

fn is_wanted(query: &EventsQuery, event: &Event) -> bool {
    let queue = query.queue.is_none() || query.queue == event.queue;
    let name = query.event_type.as_ref();
    queue && name.is_none_or(|name| *name == event.event)
}

fn message(event: &Event) -> Option<Message> {
    let data = serde_json::to_string(event).ok()?;
    let message = Message::default().event(&event.event).data(data);
    Some(message.id(event.position.to_string()))
}

fn reset(why: &str) -> Message {
    let data = serde_json::json!({ "event": RESET, "reason": why });
    Message::default().event(RESET).data(data.to_string())
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
            serde_json::to_string(&shown(&claimed, 5, 6)).unwrap(),
            r#"{"event":"claimed","at":5,"position":6,"id":"a","queue":"q","type":"t","attempt":1}"#
        );
        let found = queue::Event::SlotFired {
            schedule: ScheduleName::new("s").unwrap(),
            id: id.clone(),
            created: false,
        };
        assert_eq!(shown(&found, 5, 6), None, "nothing happened");
        let ready = queue::Event::Ready {
            id,
            queue: QueueName::new("q").unwrap(),
            job_type: JobType::new("t").unwrap(),
        };
        assert_eq!(shown(&ready, 5, 6).unwrap().event, "ready");
    }
}
