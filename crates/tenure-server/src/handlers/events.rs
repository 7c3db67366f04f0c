//! What happens, as it happens: server-sent events.
//!
//! Events of the queue come in the order of the log, those of the cluster in the order in which this broker heard of
//! them. Each has an id. The latest are kept while somebody follows and a while longer, so a client that comes back with
//! the last id that it saw (`Last-Event-ID`) goes on where it was. If they are not kept any more, another broker leads
//! now, or the client was too slow, it gets `reset` and reads anew what it keeps. When this server no longer leads the
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

/// How often a stream without events says that it lives. It is also how a client that is gone is noticed.
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
    // Proxies that collect an answer before they pass it on would hold all of it back.
    let headers = response.headers_mut();
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Where the events of a stream come from.
struct Sources {
    /// How far the client has been told.
    id: Id,
    queue: Option<Follower>,
    /// How many events of the first command it knows already.
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

    /// What happened behind an id; nothing if some of it is not kept. All of it or nothing: a client that is told to read
    /// anew does so whatever the gap is in.
    fn behind(app: &App, kinds: &Kinds, id: Id) -> Option<Self> {
        let mut skip = 0;
        let queue = if kinds.are_of_queue() {
            let Reached { position, events } = id.queue?;
            skip = events.unwrap_or(0);
            // Of a command that was told in part, all is asked for once more.
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
            // First how things stand: an id says that all of that was told.
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
    /// Not for a while.
    Nothing,
    /// The client was too slow.
    Gap,
    End,
}

struct Following {
    sources: Sources,
    query: EventsQuery,
    kinds: Kinds,
    /// What is sent before anything else.
    waiting: VecDeque<Message>,
    /// What was committed last, and how much of it has been told. All followers share it: messages are made one at a
    /// time, so that a slow follower has one in memory and not all of a batch.
    taken: Option<(Followed, usize)>,
    has_said_id: bool,
    is_over: bool,
    /// The term that the queue is served in here: when it is over, so is the stream.
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
                // Once all is told that there is: so that a client which is told of nothing for long can come back, too.
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

    /// A comment, and how far the client has been told, should it have to come back.
    fn sign_of_life(&self) -> Message {
        Message::default()
            .comment("")
            .id(self.sources.id.to_string())
    }

    /// The next message of what was committed last.
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
        // What only says how things stand has no id: who has heard half of it must hear it all again.
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
