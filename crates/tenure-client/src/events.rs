//! What happens, as it happens: server-sent events.
//!
//! The first connection starts with a [`reset`](crate::api::RESET): whatever was read before may be out of date, and
//! whatever is read from then on is followed by what happens to it. When the connection breaks, the next one goes on
//! behind the last event that was heard. Where that cannot be, another `reset` says so.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tenure_api::{Event, EventsQuery, QueueName, RESET};
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::error::Error;
use crate::retry::Waits;
use crate::transport::{Call, chain, is_problem, problem, read};

/// How long a stream may say nothing. The server sends a sign of life more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The longest event that is read.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// The longest id that is sent back.
const ID_BYTES_MAX: usize = 200;

/// The largest explanation of a refusal that is read.
const PROBLEM_BYTES_MAX: usize = 1 << 20;

/// A stream of events that connects again by itself.
#[derive(Debug)]
pub struct Events {
    client: Client,
    query: EventsQuery,
    stream: Option<Response>,
    parser: Parser,
    /// Somebody was heard from, so that the next connection goes on there.
    is_known: bool,
    waits: Waits,
}

impl Client {
    /// Follows what happens to jobs, in one queue or in all of them. Connects with the first
    /// [`next`](Events::next).
    #[must_use]
    pub fn events(&self, queue: Option<QueueName>) -> Events {
        self.events_of(EventsQuery {
            queue,
            ..EventsQuery::default()
        })
    }

    /// Follows what happens, also to leaders, nodes and daemons: [`kinds`](EventsQuery::kinds) says of what.
    #[must_use]
    pub fn events_of(&self, query: EventsQuery) -> Events {
        Events {
            client: self.clone(),
            query,
            stream: None,
            parser: Parser::default(),
            is_known: false,
            waits: Waits::new(),
        }
    }
}

impl Events {
    /// The next event. Connects again for as long as it takes; fails only if the server refuses. Cancelling
    /// loses no event.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(event);
            }
            let Some(stream) = &mut self.stream else {
                self.connect().await?;
                continue;
            };
            let end = match timeout(SILENCE_MAX, stream.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    self.waits = Waits::new();
                    if self.parser.push(&chunk) {
                        continue;
                    } else {
                        "an event is too long".to_owned()
                    }
                }
                Ok(Ok(None)) => "the broker has ended the stream".to_owned(),
                Ok(Err(error)) => chain(&error),
                Err(_) => "nothing was received for a minute".to_owned(),
            };
            tracing::debug!(end, "the event stream broke off");
            self.move_on().await;
        }
    }

    async fn connect(&mut self) -> Result<(), Error> {
        let transport = &self.client.transport;
        let call = Call::get(&["v1", "events"]).with_query(&[
            ("queue", self.query.queue.as_ref().map(ToString::to_string)),
            ("type", self.query.event_type.clone()),
            ("kinds", self.query.kinds.clone()),
        ]);
        let place = transport.preferred.load(Ordering::Relaxed);
        let mut request = transport.request(place, &call);
        if self.is_known {
            request = request.header("last-event-id", &self.parser.last_id);
        }
        // Only the answer's head has to come in time; the rest takes as long as it likes.
        match timeout(transport.attempt_timeout, request.send()).await {
            Ok(Ok(response)) if response.status().is_success() && is_stream(&response) => {
                self.parser.begin();
                // From then on the broker says so, if something was missed.
                if !std::mem::replace(&mut self.is_known, true) {
                    let event = RESET.to_owned();
                    self.parser.ready.push_back(Event {
                        event,
                        ..Event::default()
                    });
                }
                self.stream = Some(response);
                return Ok(());
            }
            Ok(Ok(response)) if response.status().is_client_error() => {
                let status = response.status();
                let is_problem = is_problem(response.headers());
                // In time and of bounded length, like every other answer.
                let body =
                    timeout(transport.attempt_timeout, read(response, PROBLEM_BYTES_MAX)).await;
                let body = body.ok().and_then(Result::ok).unwrap_or_default();
                // What is not a broker's own refusal may be answered in another way the next time.
                if let Some(problem) = problem(is_problem, &body)
                    && status != reqwest::StatusCode::TOO_MANY_REQUESTS
                {
                    return Err(Error::of(problem, None));
                }
            }
            // Not reachable, no leader, no broker at all, or too slow: the next node.
            _ => {}
        }
        self.move_on().await;
        Ok(())
    }

    async fn move_on(&mut self) {
        self.stream = None;
        let transport = &self.client.transport;
        let place = transport.preferred.load(Ordering::Relaxed);
        let next = (place + 1) % transport.count();
        let order = Ordering::Relaxed;
        let _ = transport
            .preferred
            .compare_exchange(place, next, order, order);
        sleep(self.waits.next(None)).await;
    }
}

/// Whether these are events, and not a gateway's page.
fn is_stream(response: &Response) -> bool {
    let media_type = response.headers().get(CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    media_type.is_none_or(|value| value.starts_with("text/event-stream"))
}

/// Takes server-sent events out of a stream of bytes.
#[derive(Debug, Default)]
struct Parser {
    /// What has come of the current line.
    line: Vec<u8>,
    data: String,
    /// Of the event that is being read.
    id: Option<String>,
    /// Of the last one that was read whole.
    last_id: String,
    ready: VecDeque<Event>,
}

impl Parser {
    /// Another stream begins: what was cut off is told again.
    fn begin(&mut self) {
        self.line.clear();
        self.data.clear();
        self.id = None;
    }

    /// Takes bytes in, as they come. False if an event grows too long.
    fn push(&mut self, bytes: &[u8]) -> bool {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                _ => self.line.push(byte),
            }
        }
        self.line.len() + self.data.len() <= EVENT_BYTES_MAX
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            if let Some(id) = self.id.take() {
                self.last_id = id;
            }
            // What this version cannot read is not for it.
            self.ready.extend(serde_json::from_str::<Event>(&data));
        } else if let Some(data) = line.strip_prefix("data:") {
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        } else if let Some(id) = line.strip_prefix("id:") {
            let id = id.strip_prefix(' ').unwrap_or(id);
            // It becomes a header.
            let is_plain =
                id.len() <= ID_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
            self.id = is_plain.then(|| id.to_owned());
        }
    }

    fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_the_bytes_are_cut() {
        let text = ": hello\n\nevent: reset\r\ndata: {\"event\":\"reset\",\"at\":1,\"position\":2}\r\n\r\n\
                    event: ready\ndata: {\"event\":\"ready\",\"at\":3,\ndata: \"position\":4,\"id\":\"a\"}\n\n\
                    data: what is this\n\n";
        for size in [1, 7, 1_000] {
            let mut parser = Parser::default();
            for bytes in text.as_bytes().chunks(size) {
                assert!(parser.push(bytes));
            }
            let names: Vec<_> = std::iter::from_fn(|| parser.next())
                .map(|event| event.event)
                .collect();
            assert_eq!(names, ["reset", "ready"], "chunks of {size}");
        }
    }

    #[test]
    fn the_last_whole_event_is_what_a_next_stream_goes_on_behind() {
        let mut parser = Parser::default();
        assert!(
            parser
                .push(b"id: q1\ndata: {\"event\":\"ready\"}\n\n:\nid: q2\n\nid: q3\ndata: {\"eve")
        );
        assert_eq!(parser.last_id, "q2", "a sign of life has one, too");
        parser.begin();
        assert!(parser.push(b"data: {\"event\":\"paused\"}\n\nid: \xc3\xa4\n\n"));
        assert_eq!(parser.last_id, "q2");
        let names: Vec<_> = std::iter::from_fn(|| parser.next())
            .map(|event| event.event)
            .collect();
        assert_eq!(names, ["ready", "paused"]);
    }

    #[test]
    fn an_endless_event_is_cut_off() {
        let mut parser = Parser::default();
        assert!(parser.push(b"data: "));
        assert!(!parser.push(&vec![b'x'; EVENT_BYTES_MAX + 1]));
    }
}

#[cfg(test)]
mod fuzz {
    use tenure_fuzz::Fuzz;

    use super::*;

    #[test]
    fn a_stream_that_says_anything_is_read_to_its_end() {
        let corpus = [
            ": hello\n\nevent: reset\r\ndata: {\"event\":\"reset\",\"at\":1,\"position\":2}\r\n\r\n",
            "event: ready\ndata: {\"event\":\"ready\",\"at\":3,\ndata: \"position\":4,\"id\":\"a\"}\n\n",
        ];
        Fuzz::new("event streams", corpus).run(|input| {
            let read = |size: usize| {
                let mut parser = Parser::default();
                let whole = input.chunks(size).all(|bytes| parser.push(bytes));
                let events: Vec<Event> = std::iter::from_fn(|| parser.next()).collect();
                whole.then_some(events)
            };
            assert_eq!(
                read(1),
                read(1 + input.len()),
                "it depends on how it was cut"
            );
        });
    }
}
