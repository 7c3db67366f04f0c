//! Calls that a standby may send again when the leader's answer is lost, and how it treats the second answer.
//!
//! A call that was sent and not answered may have been done. It is sent again only if that does no harm and its caller
//! still gets a true answer:
//!
//! - **reads** and **heartbeats**: repeating one changes nothing;
//! - **submits**: a job without an id gets one here, before it is first sent. Sent again, it is a duplicate of itself,
//!   and its caller is told that it was created. osqueue's submits have no field for an id, so theirs goes into the
//!   name of the call. A job whose caller gave it an id is then answered `duplicate`, as if the caller had sent it
//!   again; the header [`REPEATED`] says that the duplicate may come from this very call;
//! - **claims**: a claim without a name gets one here. A leader that gets a claim a second time answers with the same
//!   jobs. The ends that a claim carries are like other ends, but each is answered separately, since the jobs in the
//!   answer are needed: if it cannot be determined whether the first sending did an end, its `problem` says this;
//! - **ends** of claims: the leader answers a repeated end as it did the first time, and if the claim has ended in
//!   another way it says how. If it says that the claim is lost for another reason, the first sending may still have
//!   ended it: another claim of the job has ended since, or the leader follows older rules. Then the outcome cannot be
//!   determined any more. The caller is told this, and to look at the job: sending the end once more would not help.
//!
//! After the first lost answer, a refusal says nothing about the first sending, so the caller is told instead that the
//! outcome is unknown. All other calls are sent only once.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use tenure_api::{
    ClaimAnswer, ClaimCall, ClaimRequest, ClaimsAnswer, Code, JobId, LostCode, LostReason, Outcome,
    OutcomeStatus, SubmitAnswer, SubmitRequest, SubmitStatus, strict,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::extract::{IDEMPOTENCY_KEY, RawEnds, json};
use crate::problem::Problem;

/// Says that a call was sent to more than one leader, or twice: its answer may be due to its own first sending.
pub(crate) const REPEATED: HeaderName = HeaderName::from_static("tenure-repeated");

/// The most times that a call is sent.
pub(crate) const SENDINGS_MAX: u32 = 5;

/// The most bytes of an answer that is looked at.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How a call can be sent again.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Any answer to it is true, whichever sending it answers.
    Always,
    /// The ids that were made here.
    Submit(BTreeSet<JobId>),
    /// The request of a claim that waits, and since when it waits.
    Claim(Option<Box<(ClaimRequest, Instant)>>),
    /// A claim that carries ends. It does not wait.
    Round,
    /// A submit of osqueue's, whose name is the id of its job.
    Named,
    End,
    Never,
}

/// A call as it is sent, once or again.
#[derive(Debug)]
pub(crate) struct Repeat {
    kind: Kind,
}

/// A second answer, examined.
#[derive(Debug)]
pub(crate) enum Settled {
    /// To be passed on.
    Answer(Response),
    /// It does not say whether the call was done. Holds a problem for the caller if more is known.
    Unknown(Option<Problem>),
    /// The answer broke off.
    Lost,
}

impl Repeat {
    /// Prepares a call so that it can be sent again, if possible. Its body then has at most `bytes_max` bytes.
    pub(crate) fn prepare(parts: &mut Parts, body: &mut Bytes, bytes_max: usize) -> Self {
        let path = parts.uri.path().trim_start_matches("/osqueue");
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let is_osqueue = path.len() < parts.uri.path().len();
        let kind = match (&parts.method, &segments[..]) {
            (method, _) if method.is_safe() => Kind::Always,
            (&Method::POST, ["v1", "jobs"]) if is_osqueue => {
                name(&mut parts.headers);
                Kind::Named
            }
            (&Method::POST, ["v1", "jobs"]) => submit(body, bytes_max),
            (&Method::POST, ["v1", "jobs", "claim"]) => {
                name(&mut parts.headers);
                claim(body)
            }
            (&Method::POST, ["v1", "jobs", "heartbeat"] | ["v1", "jobs", _, "heartbeat"]) => {
                Kind::Always
            }
            (&Method::POST, ["v1", "jobs", end] | ["v1", "jobs", _, end])
                if matches!(*end, "complete" | "fail" | "release") =>
            {
                Kind::End
            }
            _ => Kind::Never,
        };
        if matches!(kind, Kind::Submit(_) | Kind::Claim(_) | Kind::Round) {
            // The body's length may have changed, and the body knows its own length.
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        Self { kind }
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.kind != Kind::Never
    }

    /// What the caller can do if the outcome stays unknown.
    pub(crate) fn hint(&self) -> &'static str {
        match &self.kind {
            Kind::Always => "send it again",
            Kind::Submit(_) => "send it again with the same id",
            Kind::Claim(_) | Kind::Round | Kind::Named => {
                "send it again with the same Idempotency-Key"
            }
            Kind::End => "send the same end again: it is answered as it was the first time",
            Kind::Never => "look whether it was done before you send it again",
        }
    }

    /// How long the call itself asks to wait.
    pub(crate) fn wait(&self) -> Duration {
        match &self.kind {
            Kind::Claim(Some(waits)) => Duration::from_millis(waits.0.wait_ms.into()),
            _ => Duration::ZERO,
        }
    }

    /// Called before a call is sent again: subtracts the time that a claim has already waited from the wait that its
    /// caller asked for.
    pub(crate) fn shorten(&self, body: &mut Bytes) {
        if let Kind::Claim(Some(waits)) = &self.kind {
            let (request, since) = &**waits;
            let waited = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
            let request = ClaimRequest {
                wait_ms: request.wait_ms.saturating_sub(waited),
                ..request.clone()
            };
            if let Ok(shorter) = serde_json::to_vec(&request) {
                *body = shorter.into();
            }
        }
    }

    /// Decides what the answer to a call means after an earlier answer was lost.
    pub(crate) async fn settle(&self, response: Response) -> Settled {
        if self.kind == Kind::Always {
            return Settled::Answer(response);
        }
        let is_done = response.status().is_success();
        // For a single end, a lost claim is answered as a conflict.
        let is_of_claim = self.kind == Kind::End && response.status() == StatusCode::CONFLICT;
        if !is_done && !is_of_claim {
            return Settled::Unknown(None);
        }
        let (parts, body) = response.into_parts();
        // These are passed on without being read. If the connection breaks, the caller's connection breaks too, and
        // the caller can repeat the call by its name.
        if let Kind::Claim(_) | Kind::Named = self.kind {
            return Settled::Answer(marked(Response::from_parts(parts, body)));
        }
        let Ok(body) = axum::body::to_bytes(body, ANSWER_BYTES_MAX).await else {
            return Settled::Lost;
        };
        match &self.kind {
            Kind::Submit(made) => match serde_json::from_slice::<SubmitAnswer>(&body) {
                Ok(answer) => Settled::Answer(marked(created(answer, made))),
                Err(_) => Settled::Unknown(None),
            },
            Kind::Round => match serde_json::from_slice::<ClaimAnswer>(&body) {
                Ok(answer) => Settled::Answer(marked(json(parts.status, &told(answer)))),
                Err(_) => Settled::Unknown(None),
            },
            _ => match unclear(is_done, &body) {
                Some(problem) => Settled::Unknown(Some(problem)),
                None => Settled::Answer(marked(Response::from_parts(parts, Body::from(body)))),
            },
        }
    }
}

/// Gives a call a name, unless its caller did.
fn name(headers: &mut HeaderMap) {
    let name = HeaderValue::try_from(Uuid::new_v4().to_string());
    let name = name.expect("a uuid is a header's value");
    headers.entry(IDEMPOTENCY_KEY).or_insert(name);
}

/// The kind of a claim. A claim that waits keeps its total wait, however often it is sent; one with ends does not
/// wait. An invalid body is left to the leader, which says what is wrong with it.
fn claim(body: &[u8]) -> Kind {
    let Ok(ClaimCall { request, ends }) = strict::from_slice::<ClaimCall<RawEnds>>(body) else {
        return Kind::Claim(None);
    };
    if ends.is_some_and(|ends| !ends.is_empty()) {
        return Kind::Round;
    }
    let waits = (request.wait_ms > 0).then(|| Box::new((request, Instant::now())));
    Kind::Claim(waits)
}

/// Gives every job an id. An invalid body is left to the leader, which says what is wrong with it.
fn submit(body: &mut Bytes, bytes_max: usize) -> Kind {
    let Ok(mut request) = strict::from_slice::<SubmitRequest>(body) else {
        return Kind::Never;
    };
    let mut made = BTreeSet::new();
    let jobs = match &mut request {
        SubmitRequest::Batch { jobs } => &mut jobs[..],
        SubmitRequest::Single(job) => std::slice::from_mut(&mut **job),
    };
    for job in jobs.iter_mut().filter(|job| job.id.is_none()) {
        let id = JobId::new(Uuid::new_v4().to_string());
        let id = id.expect("a uuid has the characters of a name");
        job.id = Some(id.clone());
        made.insert(id);
    }
    if made.is_empty() {
        return Kind::Submit(made);
    }
    match serde_json::to_vec(&request) {
        Ok(with_ids) if with_ids.len() <= bytes_max => {
            *body = with_ids.into();
            Kind::Submit(made)
        }
        _ => Kind::Never,
    }
}

/// A duplicate whose id was made for this call was created by it, so that is the answer. One that found its unique key
/// taken was not.
fn created(mut answer: SubmitAnswer, made: &BTreeSet<JobId>) -> Response {
    for job in &mut answer.jobs {
        let is_own = job.existing.is_none() && made.contains(&job.id);
        if is_own && job.status == SubmitStatus::Duplicate {
            job.status = SubmitStatus::Created;
        }
    }
    let is_created = |job: &tenure_api::Submitted| job.status == SubmitStatus::Created;
    let status = if answer.jobs.iter().any(is_created) {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    json(status, &answer)
}

/// Marks each lost end that the first sending may have done.
fn told(mut answer: ClaimAnswer) -> ClaimAnswer {
    let mark = |outcomes: &mut Vec<Outcome>| {
        for outcome in outcomes {
            let is_lost = outcome.status == OutcomeStatus::Lost;
            if is_lost && !outcome.reason.as_ref().is_some_and(is_known) {
                let problem = undecided(outcome.reason).into_document();
                outcome.problem = Some(Box::new(problem));
            }
        }
    };
    if let Some(ends) = &mut answer.ends {
        mark(&mut ends.completed);
        mark(&mut ends.failed);
        mark(&mut ends.released);
    }
    answer
}

/// A claim that is known to have ended in another way was not ended by the first sending.
fn is_known(reason: &LostReason) -> bool {
    reason.code == LostCode::Ended
}

/// The problem for the caller if the second answer leaves open whether the first sending did the end. A single end is
/// answered 200 or 204 only if it was done.
fn unclear(is_done: bool, body: &[u8]) -> Option<Problem> {
    let reason = if is_done {
        let answer = serde_json::from_slice::<ClaimsAnswer>(body).ok()?;
        let mut lost = answer
            .claims
            .into_iter()
            .filter(|outcome| outcome.status == OutcomeStatus::Lost)
            .map(|outcome| outcome.reason);
        lost.find(|reason| !reason.as_ref().is_some_and(is_known))?
    } else {
        let refusal = serde_json::from_slice::<tenure_api::Problem>(body).ok();
        let reason = refusal.and_then(|refusal| refusal.reason);
        if reason.as_ref().is_some_and(is_known) {
            return None;
        }
        reason
    };
    Some(undecided(reason))
}

fn undecided(reason: Option<LostReason>) -> Problem {
    let reason = reason.map_or_else(
        || "the claim is not valid".to_owned(),
        |reason| reason.to_string(),
    );
    let detail = format!(
        "the leader's first answer was lost, and now it says that a claim is lost: {reason}; whether this call has ended \
         the claim before that cannot be told any more"
    );
    let hint = "look at the job: its state, attempt and error are what counts; to send this again is of no use";
    Problem::new(Code::UnknownOutcome, detail).hint(hint)
}

fn marked(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(REPEATED, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(method: &str, path: &str, body: &str) -> (Repeat, Parts, Bytes) {
        let request = http::Request::builder().method(method).uri(path);
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let mut body = Bytes::from(body.to_owned());
        let repeat = Repeat::prepare(&mut parts, &mut body, 300);
        (repeat, parts, body)
    }

    #[test]
    fn only_what_does_no_harm_is_sent_again() {
        for (method, path, is_possible) in [
            ("GET", "/v1/jobs/a", true),
            ("POST", "/v1/jobs/claim", true),
            ("POST", "/osqueue/v1/jobs/claim", true),
            ("POST", "/v1/jobs/a/complete", true),
            ("POST", "/osqueue/v1/jobs/a/complete", true),
            ("POST", "/v1/jobs/release", true),
            ("POST", "/v1/jobs/heartbeat", true),
            ("POST", "/osqueue/v1/jobs", true),
            ("POST", "/v1/jobs/a/retry", false),
            ("POST", "/v1/jobs/a/cancel", false),
            ("DELETE", "/v1/jobs/a", false),
            ("PUT", "/v1/queues/complete", false),
            ("PUT", "/v1/time", false),
        ] {
            let (repeat, ..) = prepared(method, path, r#"{"type":"t"}"#);
            assert_eq!(repeat.is_possible(), is_possible, "{method} {path}");
        }
    }

    #[test]
    fn jobs_without_an_id_get_one_and_nothing_else_changes() {
        let body = r#"{"jobs":[{"id":"a","type":"t"},{"type":"t","payload":{"n": 1.00}}]}"#;
        let (repeat, _, sent) = prepared("POST", "/v1/jobs", body);
        let Kind::Submit(made) = &repeat.kind else {
            panic!("{repeat:?}");
        };
        let id = made.first().unwrap();
        let expected = format!(
            r#"{{"jobs":[{{"id":"a","type":"t"}},{{"id":"{id}","type":"t","payload":{{"n": 1.00}}}}]}}"#
        );
        assert_eq!((made.len(), sent), (1, Bytes::from(expected)));
        // A body whose job has an id is left unchanged, and so is an invalid body.
        for (body, is_possible) in [
            (r#"{ "id":"a", "type":"t"}"#.to_owned(), true),
            (r#"{"type":"t","idd":1}"#.to_owned(), false),
            // Adding an id would make it too large.
            (
                format!(r#"{{"type":"t","payload":"{}"}}"#, "x".repeat(270)),
                false,
            ),
        ] {
            let (repeat, _, sent) = prepared("POST", "/v1/jobs", &body);
            assert_eq!((repeat.is_possible(), sent), (is_possible, body.into()));
        }
    }

    #[test]
    fn a_claim_has_one_name_however_often_it_is_sent_and_waits_once() {
        let (repeat, parts, mut body) =
            prepared("POST", "/v1/jobs/claim", r#"{"worker":"w","wait_ms":1000}"#);
        assert_eq!(parts.headers[IDEMPOTENCY_KEY].len(), 36);
        assert_eq!(repeat.wait(), Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(2));
        repeat.shorten(&mut body);
        let request: ClaimRequest = serde_json::from_slice(&body).unwrap();
        assert!(request.wait_ms < 1_000, "{request:?}");
    }

    #[tokio::test]
    async fn of_a_claim_with_ends_each_end_says_whether_it_is_in_doubt() {
        let body = r#"{"worker":"w","wait_ms":9,"ends":{"completed":[{"id":"a","token":"1-1"}]}}"#;
        let (repeat, parts, mut same) = prepared("POST", "/v1/jobs/claim", body);
        assert_eq!(parts.headers[IDEMPOTENCY_KEY].len(), 36);
        assert_eq!(repeat.wait(), Duration::ZERO, "it does not wait");
        repeat.shorten(&mut same);
        assert_eq!(
            same,
            Bytes::from(body.to_owned()),
            "nothing of it is left out"
        );
        let ended = r#"{"id":"b","status":"lost","reason":{"code":"ended","ended_as":"failed"}}"#;
        let lost = r#"{"id":"c","status":"lost","reason":{"code":"superseded","attempt":2}}"#;
        let answer = format!(
            r#"{{"jobs":[],"ends":{{"completed":[{{"id":"a","status":"ok"}},{ended}],"failed":[{lost}]}}}}"#
        );
        let (status, told) = settled(&repeat, 200, &answer).await.unwrap();
        let told: ClaimAnswer = serde_json::from_str(&told).unwrap();
        let ends = told.ends.unwrap();
        assert_eq!(status, 200);
        assert!(
            ends.completed
                .iter()
                .all(|outcome| outcome.problem.is_none())
        );
        let problem = ends.failed[0].problem.as_ref().unwrap();
        assert_eq!(problem.code, Code::UnknownOutcome);
        assert_eq!(ends.failed[0].status, OutcomeStatus::Lost);
        assert_eq!(settled(&repeat, 429, "{}").await, None);
    }

    async fn settled(repeat: &Repeat, status: u16, body: &str) -> Option<(u16, String)> {
        let mut response = Response::new(Body::from(body.to_owned()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        match repeat.settle(response).await {
            Settled::Answer(response) => {
                let status = response.status().as_u16();
                let body = axum::body::to_bytes(response.into_body(), 9_999).await;
                Some((status, String::from_utf8(body.unwrap().into()).unwrap()))
            }
            _ => None,
        }
    }

    #[tokio::test]
    async fn a_job_that_was_created_at_first_was_created() {
        let (repeat, _, body) = prepared("POST", "/v1/jobs", r#"{"type":"t"}"#);
        let job: tenure_api::Submission = serde_json::from_slice(&body).unwrap();
        let id = job.id.unwrap();
        let answer =
            |id: &str, status: &str| format!(r#"{{"jobs":[{{"id":"{id}","status":"{status}"}}]}}"#);
        let duplicate = answer(id.as_str(), "duplicate");
        let created = (201, answer(id.as_str(), "created"));
        assert_eq!(settled(&repeat, 200, &duplicate).await, Some(created));
        let others = (200, answer("a", "duplicate"));
        assert_eq!(settled(&repeat, 200, &others.1).await, Some(others));
        let by_key = format!(r#"{{"jobs":[{{"id":"{id}","status":"duplicate","existing":"b"}}]}}"#);
        assert_eq!(settled(&repeat, 200, &by_key).await, Some((200, by_key)));
        assert_eq!(settled(&repeat, 429, "{}").await, None);
    }

    #[tokio::test]
    async fn an_end_that_may_have_been_done_before_is_not_called_lost() {
        let (repeat, ..) = prepared("POST", "/v1/jobs/complete", "{}");
        let done = r#"{"claims":[{"id":"a","status":"ok"}]}"#;
        let passed_on = Some((200, done.to_owned()));
        assert_eq!(settled(&repeat, 200, done).await, passed_on);
        let lost = r#"{"claims":[{"id":"a","status":"ok"},{"id":"b","status":"lost"}]}"#;
        assert_eq!(settled(&repeat, 200, lost).await, None);
        assert_eq!(settled(&repeat, 409, "{}").await, None);
        let (single, ..) = prepared("POST", "/v1/jobs/a/complete", "{}");
        assert_eq!(settled(&single, 204, "").await, Some((204, String::new())));
        // A claim that has ended in another way was not ended by this call, so the lost answer does not matter.
        let ended = r#"{"id":"b","status":"lost","reason":{"code":"ended","ended_as":"failed"}}"#;
        let known = format!(r#"{{"claims":[{{"id":"a","status":"ok"}},{ended}]}}"#);
        let passed_on = Some((200, known.clone()));
        assert_eq!(settled(&repeat, 200, &known).await, passed_on);
        for (code, is_known) in [("ended", true), ("superseded", false), ("not_found", false)] {
            let problem = format!(r#"{{"code":"lost","reason":{{"code":"{code}"}}}}"#);
            let told = settled(&single, 409, &problem).await;
            assert_eq!(told.is_some(), is_known, "{code}");
        }
    }
}
