//! One call over HTTP: from node to node until one of them has an answer, or the time is up.
//!
//! Any node will do, since standbys forward to the leader. The node that answered last is asked first; when
//! it fails, every caller moves on to the next one, together. After each round of all nodes comes a wait,
//! which grows and is jittered.
//!
//! Each try ends in one of four ways, and the difference is kept: **answered**; **refused**, which another
//! try would not change; **not done** (no connection, no leader, overloaded); **not known** (the connection
//! broke after the request was sent, or the server says so itself). From the first try of the last kind on
//! the call is *unsure*: a later refusal may be the echo of our own success, and the caller
//! settles that. What is not a broker's own answer, of a gateway on the way, is of the last kind, too. When every node's certificate is refused, one after the other, the call ends: no time heals that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_api::{Code, JobId, Problem};
use tokio::time::{Instant, sleep};
use url::Url;
use uuid::Uuid;

use crate::discovery::Nodes;
use crate::error::{Error, Trouble};
use crate::retry::Waits;

/// The largest answer that is read. Servers end a page, and a claim, at a few mebibytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The same for a claim: more than any server sends, also one of an earlier version, whose claims were bounded in
/// number only. An answer that was dropped would let every job in it wait for its lease, and fail.
const CLAIM_BYTES_MAX: usize = 2 << 30;

/// The same for what a broker says of the others.
const CLUSTER_BYTES_MAX: usize = 4 << 20;

/// How much longer a try lasts than a broker may hold its call.
const HOLD_MARGIN: Duration = Duration::from_secs(2);

/// The nodes, and how to reach them. Not to be shown: URLs may hold passwords.
pub(crate) struct Transport {
    pub(crate) http: reqwest::Client,
    pub(crate) nodes: Arc<Nodes>,
    /// The node that answered last.
    pub(crate) preferred: AtomicUsize,
    pub(crate) token: Option<HeaderValue>,
    /// How long one try may take, besides what the server was asked to wait.
    pub(crate) attempt_timeout: Duration,
    /// How long a call may take with all its tries.
    pub(crate) deadline: Duration,
}

/// By which a server recognises a call that it was sent before.
const NAME: HeaderName = HeaderName::from_static("idempotency-key");

/// A server on the way has sent the call more than once: its answer may be the echo of its own success.
const REPEATED: HeaderName = HeaderName::from_static("tenure-repeated");

/// What to ask.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    /// The segments of the path; each is escaped.
    path: Vec<String>,
    query: Option<String>,
    body: Option<Bytes>,
    /// How long the server may wait before it answers.
    wait: Duration,
    /// Sent once more after an answer was lost? Off for what would then be done twice.
    is_repeatable: bool,
    /// What it is called, if the server recognises it when it is sent again.
    name: Option<HeaderValue>,
    /// The job that is spoken of, for errors.
    job: Option<JobId>,
    /// How long to try, if not as long as any other call.
    deadline: Option<Duration>,
    /// The largest answer to it that is read.
    answer_bytes_max: usize,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    pub(crate) result: Result<T, Error>,
    /// An earlier try of this call may have been carried out.
    pub(crate) is_unsure: bool,
}

/// How one try ended, if another may follow.
struct Again {
    trouble: Trouble,
    after: Option<Duration>,
    is_unsure: bool,
    /// The server's certificate was refused.
    is_untrusted: bool,
}

enum Tried {
    /// And whether a server on the way has sent the call more than once.
    Answer(Bytes, bool),
    Refused(Error),
    Again(Again),
}

impl Call {
    pub(crate) fn new(method: Method, path: &[&str]) -> Self {
        Self {
            method,
            path: path.iter().map(|&segment| segment.to_owned()).collect(),
            query: None,
            body: None,
            wait: Duration::ZERO,
            is_repeatable: true,
            name: None,
            job: None,
            deadline: None,
            answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }

    pub(crate) fn get(path: &[&str]) -> Self {
        Self::new(Method::GET, path)
    }

    /// A POST with a JSON body.
    pub(crate) fn post(path: &[&str], body: &impl Serialize) -> Result<Self, Error> {
        Self::new(Method::POST, path).with_body(body)
    }

    /// A POST with a body that is JSON already.
    pub(crate) fn post_json(path: &[&str], body: Bytes) -> Self {
        let mut call = Self::new(Method::POST, path);
        call.body = Some(body);
        call
    }

    pub(crate) fn put(path: &[&str], body: &impl Serialize) -> Result<Self, Error> {
        Self::new(Method::PUT, path).with_body(body)
    }

    pub(crate) fn with_body(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::invalid("body", &error))?;
        self.body = Some(body.into());
        Ok(self)
    }

    /// For a claim, whose answer must not be dropped.
    pub(crate) fn of_claim(mut self) -> Self {
        self.answer_bytes_max = CLAIM_BYTES_MAX;
        self
    }

    pub(crate) fn with_query(mut self, pairs: &[(&str, Option<String>)]) -> Self {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in pairs {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        self.query = Some(query.finish()).filter(|query| !query.is_empty());
        self
    }

    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    pub(crate) fn about(mut self, job: &JobId) -> Self {
        self.job = Some(job.clone());
        self
    }

    pub(crate) fn within(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Known by this name, however often it is sent.
    pub(crate) fn named(mut self, name: Uuid) -> Self {
        self.name = HeaderValue::try_from(name.to_string()).ok();
        self
    }

    /// Not to be sent again once it may have been carried out.
    pub(crate) fn once(mut self) -> Self {
        self.is_repeatable = false;
        self
    }

    fn url(&self, node: &Url) -> Url {
        let mut url = node.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(&self.path);
        }
        url.set_query(self.query.as_deref());
        url
    }
}

impl Transport {
    /// Asks until there is an answer, and reads it.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        self.settle(call).await.result
    }

    /// The same, and whether an earlier try may have been carried out.
    pub(crate) async fn settle<T: DeserializeOwned>(&self, call: &Call) -> Answered<T> {
        let answered = self.ask(call).await;
        let parse = |body: Bytes| {
            // 204 and 202 may come without a body.
            let body: &[u8] = if body.is_empty() { b"null" } else { &body };
            serde_json::from_slice(body).map_err(|error| Error::Broken {
                url: self.shown(self.preferred.load(Ordering::Relaxed)),
                detail: error.to_string(),
            })
        };
        Answered {
            result: answered.result.and_then(parse),
            is_unsure: answered.is_unsure,
        }
    }

    async fn ask(&self, call: &Call) -> Answered<Bytes> {
        let started = Instant::now();
        let give_up = started + call.deadline.unwrap_or(self.deadline) + call.wait;
        let mut waits = Waits::new();
        let mut is_unsure = false;
        let mut untrusted = 0;
        for tries in 1_usize.. {
            let count = self.count();
            let place = self.preferred.load(Ordering::Relaxed) % count;
            let left = give_up.saturating_duration_since(Instant::now());
            let timeout =
                (self.attempt_timeout + call.wait).min(left.max(self.attempt_timeout / 4));
            // A call that waits may be the first, and its broker dead before it is answered.
            if !call.wait.is_zero() {
                self.look(place);
            }
            let again = match self.attempt(place, call, timeout).await {
                Tried::Answer(body, is_repeated) => {
                    self.look(place);
                    return Answered {
                        result: Ok(body),
                        is_unsure: is_unsure || is_repeated,
                    };
                }
                Tried::Refused(error) => {
                    return Answered {
                        result: Err(error),
                        is_unsure,
                    };
                }
                Tried::Again(again) => again,
            };
            is_unsure |= again.is_unsure && call.method != Method::GET;
            tracing::debug!(
                url = again.trouble.url,
                error = again.trouble.detail,
                "trying again"
            );
            untrusted = if again.is_untrusted { untrusted + 1 } else { 0 };
            if untrusted >= count && !is_unsure {
                return Answered {
                    result: Err(Error::Untrusted(again.trouble)),
                    is_unsure,
                };
            }
            // The first to see it moves all callers on; the others find that done.
            let next = (place + 1) % count;
            let order = Ordering::Relaxed;
            let _ = self.preferred.compare_exchange(place, next, order, order);
            let is_round_over = tries % count == 0;
            if is_round_over {
                self.nodes.search();
            }
            let wait = if is_round_over || again.after.is_some() {
                waits.next(again.after)
            } else {
                Duration::ZERO
            };
            let is_last = is_unsure && !call.is_repeatable;
            if is_last || Instant::now() + wait >= give_up {
                let (waited, source) = (started.elapsed(), again.trouble);
                let error = if is_unsure {
                    Error::Unknown { waited, source }
                } else {
                    Error::Unavailable { waited, source }
                };
                return Answered {
                    result: Err(error),
                    is_unsure,
                };
            }
            sleep(wait).await;
        }
        unreachable!("the loop above ends by itself")
    }

    /// How many nodes there are.
    pub(crate) fn count(&self) -> usize {
        self.nodes.all().len()
    }

    fn node(&self, place: usize) -> Url {
        let all = self.nodes.all();
        all[place % all.len()].clone()
    }

    /// Asks a node for the others, now and then, while the caller goes on.
    fn look(&self, place: usize) {
        if !self.nodes.is_due() {
            return;
        }
        let (nodes, call) = (self.nodes.clone(), Call::get(&["v1", "cluster"]));
        let asked = self.request(place, &call).timeout(self.attempt_timeout);
        tokio::spawn(async move {
            let Ok(response) = asked.send().await else {
                return;
            };
            let is_answer = response.status() == StatusCode::OK;
            let body = read(response, CLUSTER_BYTES_MAX).await;
            if let (true, Ok(body)) = (is_answer, body)
                && let Ok(cluster) = serde_json::from_slice(&body)
            {
                nodes.found(&cluster);
            }
        });
    }

    async fn attempt(&self, place: usize, call: &Call, timeout: Duration) -> Tried {
        // A broker that knows no leader may hold the call, and says so before this try is over.
        let hold = timeout
            .saturating_sub(call.wait)
            .saturating_sub(HOLD_MARGIN);
        let request = self
            .request(place, call)
            .header("prefer", format!("wait={}", hold.as_secs()))
            .timeout(timeout);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return self.broken_off(place, &error),
        };
        let status = response.status();
        let after = retry_after(response.headers());
        let is_problem = is_problem(response.headers());
        let is_repeated = response.headers().contains_key(REPEATED);
        match read(response, call.answer_bytes_max).await {
            Err(Unread::Broken(detail)) => self.again(place, detail, None, None, true),
            // It would be as large again.
            Err(Unread::TooLarge) => Tried::Refused(Error::Broken {
                url: self.shown(place),
                detail: Unread::TooLarge.to_string(),
            }),
            Ok(body) if status.is_success() && is_of_broker(&body) => {
                Tried::Answer(body, is_repeated)
            }
            Ok(body) => match problem(is_problem, &body) {
                Some(problem) => self.refused(place, status, after, problem, call.job.as_ref()),
                // A gateway on the way; the broker behind it may have done it.
                None => self.again(place, no_broker(status), None, after, true),
            },
        }
    }

    /// A request to one of the nodes, with everything but a timeout.
    pub(crate) fn request(&self, place: usize, call: &Call) -> reqwest::RequestBuilder {
        let url = call.url(&self.node(place));
        let mut request = self.http.request(call.method.clone(), url);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if let Some(name) = &call.name {
            request = request.header(NAME, name.clone());
        }
        if let Some(body) = &call.body {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .body(body.clone());
        }
        request
    }

    /// No answer: was the request sent?
    fn broken_off(&self, place: usize, error: &reqwest::Error) -> Tried {
        let was_sent = !error.is_connect();
        match self.again(place, chain(error), None, None, was_sent) {
            Tried::Again(again) => Tried::Again(Again {
                is_untrusted: is_of_certificate(error),
                ..again
            }),
            tried => tried,
        }
    }

    fn refused(
        &self,
        place: usize,
        status: StatusCode,
        after: Option<Duration>,
        mut problem: Problem,
        job: Option<&JobId>,
    ) -> Tried {
        problem.status = status.as_u16();
        let is_unsure = match problem.code {
            Code::NoLeader | Code::StoreUnavailable | Code::Overloaded => false,
            Code::UnknownOutcome | Code::Timeout => true,
            Code::Internal => {
                return Tried::Refused(Error::Broken {
                    url: self.shown(place),
                    detail: problem.to_string(),
                });
            }
            Code::Other if status.is_server_error() => true,
            _ => return Tried::Refused(Error::of(problem, job)),
        };
        self.again(
            place,
            problem.to_string(),
            Some(problem.code),
            after,
            is_unsure,
        )
    }

    fn again(
        &self,
        place: usize,
        detail: String,
        code: Option<Code>,
        after: Option<Duration>,
        is_unsure: bool,
    ) -> Tried {
        Tried::Again(Again {
            trouble: Trouble {
                url: self.shown(place),
                detail,
                code,
            },
            after,
            is_unsure,
            is_untrusted: false,
        })
    }

    /// An answer that no broker should give.
    pub(crate) fn nonsense(&self, detail: &str) -> Error {
        Error::Broken {
            url: self.shown(self.preferred.load(Ordering::Relaxed)),
            detail: detail.to_owned(),
        }
    }

    /// A node as it may be shown: without a password.
    pub(crate) fn shown(&self, place: usize) -> String {
        let node = self.node(place);
        match node.port() {
            Some(port) => format!(
                "{}://{}:{port}",
                node.scheme(),
                node.host_str().unwrap_or("")
            ),
            None => format!("{}://{}", node.scheme(), node.host_str().unwrap_or("")),
        }
    }
}

/// What to say of an answer that is not a broker's.
fn no_broker(status: StatusCode) -> String {
    format!("{status} was answered, but not by a broker")
}

/// Whether an answer may be a broker's problem. Some gateways leave the type out.
pub(crate) fn is_problem(headers: &HeaderMap) -> bool {
    let Some(media_type) = headers.get(CONTENT_TYPE) else {
        return true;
    };
    let media_type = media_type.to_str().unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default();
    media_type
        .trim()
        .eq_ignore_ascii_case(tenure_api::PROBLEM_CONTENT_TYPE)
}

/// A broker's own refusal, which has a code; none if it is another's.
pub(crate) fn problem(is_problem: bool, body: &[u8]) -> Option<Problem> {
    is_problem
        .then(|| serde_json::from_slice(body).ok())
        .flatten()
}

/// Whether a success is a broker's: an object, or nothing at all. A gateway's page is not.
fn is_of_broker(body: &[u8]) -> bool {
    let start = body.trim_ascii_start();
    start.is_empty() || start[0] == b'{'
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Why an answer was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("{0}")]
    Broken(String),
    #[error("the answer is larger than any that a broker should send")]
    TooLarge,
}

pub(crate) async fn read(mut response: Response, bytes_max: usize) -> Result<Bytes, Unread> {
    let mut body = BytesMut::new();
    let broken = |error| Unread::Broken(chain(&error));
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        body.extend_from_slice(&chunk);
        if body.len() > bytes_max {
            return Err(Unread::TooLarge);
        }
    }
    Ok(body.freeze())
}

/// `https://` was asked for where plain HTTP is spoken.
pub(crate) const NO_TLS: &str = "cannot connect: it does not speak TLS";

/// An error with its causes, without the URL (which may hold a password) and without repetitions.
pub(crate) fn chain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    if matches!(tls(error), Some(rustls::Error::InvalidMessage(_))) {
        return NO_TLS.to_owned();
    }
    // The library's own words say only that sending failed; the last cause says why.
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.is_connect() {
        format!("cannot connect: {cause}")
    } else {
        format!("the connection broke: {cause}")
    }
}

/// Whether a certificate was refused, or there is none: no time heals that.
fn is_of_certificate(error: &reqwest::Error) -> bool {
    matches!(
        tls(error),
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::InvalidMessage(_))
    )
}

/// What went wrong with TLS, if it was that.
fn tls(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An input/output error does not name what it wraps as its source.
        cause = match error.downcast_ref().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broker_refuses() {
        let headers = |media_type: &'static str| {
            let value = HeaderValue::from_static(media_type);
            HeaderMap::from_iter([(CONTENT_TYPE, value)])
        };
        let own = headers("Application/Problem+JSON; charset=utf-8");
        let read = |headers: &HeaderMap, body: &str| problem(is_problem(headers), body.as_bytes());
        let text = r#"{"code":"not_found","detail":"no such job"}"#;
        assert_eq!(read(&own, text).unwrap().code, Code::NotFound);
        assert_eq!(read(&HeaderMap::new(), text).unwrap().code, Code::NotFound);
        assert_eq!(read(&headers("application/json"), text), None);
        for other in [
            "",
            "<html>",
            "[1]",
            r#"{"message":"no"}"#,
            r#"{"code":404}"#,
        ] {
            assert_eq!(read(&own, other), None, "{other}");
        }
        assert!(is_of_broker(b"") && is_of_broker(b" {}") && !is_of_broker(b"<html>"));
    }

    #[test]
    fn names_in_a_path_are_escaped() {
        let node = Url::parse("http://u:secret@a:1/base/").unwrap();
        let call = Call::get(&["v1", "jobs", "a/b?c"])
            .with_query(&[("queue", Some("x&y".to_owned())), ("state", None)]);
        assert_eq!(
            call.url(&node).as_str(),
            "http://u:secret@a:1/base/v1/jobs/a%2Fb%3Fc?queue=x%26y"
        );
    }
}
