//! Live events, as server-sent events.
//!
//! Events of the queue come in log order, those of the cluster in the order in which this broker learned of them. Each
//! has an id. The latest are kept while somebody follows and a while longer, so a client that reconnects with the last
//! id that it saw (`Last-Event-ID`) continues from there. If they are not kept any more, or another broker leads now,
//! or the client was too slow, it gets `reset` and must read its state anew. When this server no longer leads, the
//! stream ends, and the client's next one is forwarded to the new leader.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{Event as Message, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::FutureExt as _;
use futures_util::stream::{self, Stream};
use tenure::cluster;
use tenure::core::election::Term;
use tenure::queue::{Cut, Followed, Follower, Position, Serving};
use tenure_api::{Event, EventsQuery, Problem as ProblemBody, RESET};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::extract::Parameters;
use crate::problem::Problem;

mod id;
mod kinds;
mod past;
mod shown;

use id::{Id, Reached};
use kinds::{Kinds, kind_of};
use past::Hold;
pub(crate) use past::Past;

/// How often a stream without events sends a sign of life. It is also how a client that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Follow events
///
/// A client that reconnects sends the id of the last event that it saw in the header `Last-Event-ID`. It continues there,
/// or gets a `reset`.
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
    let kinds = Kinds::of(query.kinds.as_deref())?;
    let permit = app
        .followers
        .clone()
        .try_acquire_owned()
        .map_err(|_| Problem::overloaded("too many clients already follow events"))?;
    let hold = app.past.hold(&app, &kinds);
    let last = headers.get("last-event-id");
    let resumed = last.and_then(|last| {
        let id = last.to_str().ok()?.parse().ok()?;
        Sources::behind(&app, &kinds, id)
    });
    let mut waiting = VecDeque::new();
    if last.is_some() && resumed.is_none() {
        waiting.push_back(reset(
            "events since the last one are not kept any more, or another broker leads now",
        ));
    }
    if resumed.is_none() && kinds.have("leader") {
        let leader = app.leader().filter(|leader| app.is_me(leader));
        let at = app.queue.now_ms().unwrap_or_default();
        let shown = leader.map(|leader| shown::of_broker(&leader, at));
        let shown = shown.filter(|event| is_wanted(&query, &kinds, event));
        waiting.extend(shown.and_then(|event| message(&event, None)));
    }
    let serving = app.queue.watch();
    let term = term_of(&serving.borrow());
    let following = Following {
        sources: resumed.unwrap_or_else(|| Sources::from_now(&app, &kinds)),
        query,
        kinds,
        waiting,
        taken: None,
        has_said_id: false,
        is_over: false,
        term,
        serving,
        stop: app.stop.clone(),
        _hold: hold,
        _permit: permit,
    };
    let mut response = Sse::new(following.stream()).into_response();
    // Tells proxies not to buffer the answer: they would hold back the whole stream.
    let headers = response.headers_mut();
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Where the events of a stream come from.
struct Sources {
    /// How far the client has got.
    id: Id,
    queue: Option<Follower>,
    /// How many events of the first command the client already has.
    skip: usize,
    cluster: Option<cluster::Events>,
}

impl Sources {
    fn from_now(app: &App, kinds: &Kinds) -> Self {
        let queue = kinds.are_of_queue().then(|| app.queue.follow());
        let cluster = kinds.are_of_cluster().then(|| app.cluster.subscribe());
        let id = Id {
            queue: queue.as_ref().map(|queue| Reached::all(queue.start())),
            cluster: cluster.as_ref().map(cluster::Events::start),
        };
        Self {
            id,
            queue,
            skip: 0,
            cluster,
        }
    }

    /// The events after an id, or `None` if some of them are not kept. A gap in one source resets both: the client has
    /// to read its state anew in any case.
    fn behind(app: &App, kinds: &Kinds, id: Id) -> Option<Self> {
        let mut skip = 0;
        let queue = if kinds.are_of_queue() {
            let Reached { position, events } = id.queue?;
            skip = events.unwrap_or(0);
            // If only some of a command's events were sent, ask for the whole command again.
            let told = position.0.checked_sub(u64::from(events.is_some()))?;
            Some(app.queue.follow_after(Position(told))?)
        } else {
            None
        };
        let cluster = if kinds.are_of_cluster() {
            Some(app.cluster.subscribe_after(id.cluster?)?)
        } else {
            None
        };
        Some(Self {
            id: Id {
                queue: id.queue.filter(|_| queue.is_some()),
                cluster: id.cluster.filter(|_| cluster.is_some()),
            },
            queue,
            skip,
            cluster,
        })
    }

    async fn next(&mut self) -> Next {
        let (queue, cluster) = (self.queue.as_mut(), self.cluster.as_mut());
        let queue = async {
            match queue {
                Some(queue) => queue.next().await,
                None => std::future::pending().await,
            }
        };
        let cluster = async {
            match cluster {
                Some(cluster) => cluster.next_notice().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Notices about the present state come first: an id means that all of them were sent.
            biased;
            notice = cluster => notice.map_or(Next::End, |it| Next::Notice(Box::new(it))),
            followed = queue => match followed {
                Ok(followed) => Next::Followed(followed),
                Err(Cut::Behind { .. }) => Next::Gap,
                Err(_) => Next::End,
            },
        }
    }
}

enum Next {
    Notice(Box<cluster::Notice>),
    Followed(Followed),
    /// Nothing happened for a while.
    Nothing,
    /// The client was too slow.
    Gap,
    End,
}

struct Following {
    sources: Sources,
    query: EventsQuery,
    kinds: Kinds,
    /// Messages to send before anything else.
    waiting: VecDeque<Message>,
    /// The latest commit, and how many of its events have been sent. All followers share it: messages are made one at
    /// a time, so that a slow follower has one in memory and not a whole batch.
    taken: Option<(Followed, usize)>,
    has_said_id: bool,
    is_over: bool,
    /// The term in which this server serves the queue; the stream ends with it.
    term: Option<Term>,
    serving: watch::Receiver<Serving>,
    stop: CancellationToken,
    /// The past is kept for as long as somebody follows.
    _hold: Hold,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    fn stream(self) -> impl Stream<Item = Result<Message, Infallible>> {
        stream::unfold(self, |mut this| async move {
            let message = this.next().await?;
            Some((Ok(message), this))
        })
    }

    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.waiting.pop_front().or_else(|| self.next_of_taken()) {
                return Some(message);
            }
            if self.is_over {
                return None;
            }
            let next = match self.sources.next().now_or_never() {
                Some(next) => next,
                // Send an id as soon as there is nothing more to send, so that a client that has had no event yet can
                // resume too.
                None if !self.has_said_id => {
                    self.has_said_id = true;
                    return Some(self.sign_of_life());
                }
                None => {
                    let is_over = |now: &Serving| term_of(now) != self.term || self.term.is_none();
                    tokio::select! {
                        next = self.sources.next() => next,
                        _ = self.serving.wait_for(is_over) => Next::End,
                        () = self.stop.cancelled() => Next::End,
                        () = sleep(KEEP_ALIVE) => Next::Nothing,
                    }
                }
            };
            match next {
                Next::Followed(followed) => {
                    let skip = std::mem::take(&mut self.sources.skip);
                    self.taken = Some((followed, skip));
                }
                Next::Notice(notice) => {
                    if let Some(message) = self.of_notice(&notice) {
                        return Some(message);
                    }
                }
                Next::Gap => self.end_with("this client was too slow"),
                Next::Nothing => return Some(self.sign_of_life()),
                Next::End => self.is_over = true,
            }
        }
    }

    fn end_with(&mut self, why: &str) {
        self.is_over = true;
        self.waiting.push_back(reset(why));
    }

    /// A comment, with an id from which the client can resume.
    fn sign_of_life(&self) -> Message {
        Message::default()
            .comment("")
            .id(self.sources.id.to_string())
    }

    /// The next message of the latest commit.
    fn next_of_taken(&mut self) -> Option<Message> {
        let (followed, told) = self.taken.as_mut()?;
        while let Some(event) = followed.events.get(*told) {
            *told += 1;
            self.sources.id.queue = Some(Reached {
                position: followed.position,
                events: (*told < followed.events.len()).then_some(*told),
            });
            let event = shown::of_queue(event, followed.at_ms, followed.position.0);
            let wanted = event.filter(|event| is_wanted(&self.query, &self.kinds, event));
            if let Some(message) = wanted.and_then(|event| message(&event, Some(self.sources.id))) {
                return Some(message);
            }
        }
        self.sources.id.queue = Some(Reached::all(followed.position));
        self.taken = None;
        None
    }

    fn of_notice(&mut self, notice: &cluster::Notice) -> Option<Message> {
        if matches!(notice.event, cluster::Event::Missed(_)) {
            self.end_with("this client was too slow");
            return None;
        }
        // Notices about the present state have no id: a client that got only some of them must get all of them again.
        let id = notice.cursor.map(|cursor| {
            self.sources.id.cluster = Some(cursor);
            self.sources.id
        });
        let event = shown::of_cluster(notice)?;
        let is_wanted = is_wanted(&self.query, &self.kinds, &event);
        is_wanted.then(|| message(&event, id))?
    }
}

fn term_of(serving: &Serving) -> Option<Term> {
    match serving {
        Serving::Serving { term, .. } => Some(*term),
        _ => None,
    }
}

fn is_wanted(query: &EventsQuery, kinds: &Kinds, event: &Event) -> bool {
    let is_of_kind = kinds.have(kind_of(&event.event));
    let is_of_queue = query.queue.is_none() || query.queue == event.queue;
    let name = query.event_type.as_ref();
    is_of_kind && is_of_queue && name.is_none_or(|name| *name == event.event)
}

fn message(event: &Event, id: Option<Id>) -> Option<Message> {
    let data = serde_json::to_string(event).ok()?;
    let message = Message::default().event(&event.event).data(data);
    Some(match id {
        Some(id) => message.id(id.to_string()),
        None => message,
    })
}

fn reset(why: &str) -> Message {
    let data = serde_json::json!({ "event": RESET, "reason": why });
    Message::default().event(RESET).data(data.to_string())
}
