//! The forms that travel, word for word, and the two rules: requests are strict, answers are tolerant.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;

#[track_caller]
fn reads_back<T: Serialize + DeserializeOwned>(text: &str) -> T {
    let value: T =
        strict::from_slice(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(serde_json::to_string(&value).unwrap(), text);
    value
}

#[track_caller]
fn refuses<T: DeserializeOwned + std::fmt::Debug>(text: &str, problem: &str) {
    let error = strict::from_slice::<T>(text.as_bytes()).unwrap_err();
    assert!(error.to_string().contains(problem), "{error}");
}

#[test]
fn requests_have_a_fixed_form() {
    reads_back::<SubmitRequest>(r#"{"id":"a","type":"mail","payload":{"n":  1.0},"run_at":9}"#);
    reads_back::<SubmitRequest>(r#"{"jobs":[{"type":"mail"},{"queue":"q","type":"mail"}]}"#);
    reads_back::<ClaimRequest>(
        r#"{"worker":"w","queues":["q"],"types":["mail"],"max":9,"lease_ms":1000,"wait_ms":5}"#,
    );
    let plain: ClaimCall = reads_back(r#"{"worker":"w","max":9,"lease_ms":1000,"wait_ms":5}"#);
    assert_eq!(plain.ends, None);
    let call: ClaimCall = reads_back(
        r#"{"worker":"w","max":9,"lease_ms":1000,"ends":{"completed":[{"id":"a","token":"1f-0a1b2c3d","result":1.0}],"failed":[{"id":"b","token":"2-00000001","error":"no"}],"released":[{"id":"c","token":"3-00000001"}]}}"#,
    );
    let jobs: Vec<&str> = call
        .ends
        .iter()
        .flat_map(Ends::jobs)
        .map(JobId::as_str)
        .collect();
    assert_eq!(jobs, ["a", "b", "c"]);
    reads_back::<HeartbeatRequest>(
        r#"{"claims":[{"id":"a","token":"1f-0a1b2c3d","progress":[1, 2]}]}"#,
    );
    reads_back::<CompleteRequest>(r#"{"claims":[{"id":"a","token":"1f-0a1b2c3d","result":1.0}]}"#);
    reads_back::<FailRequest>(
        r#"{"claims":[{"id":"a","token":"1f-0a1b2c3d","error":"no","retry_in_ms":0,"permanent":true}]}"#,
    );
    reads_back::<ReleaseRequest>(r#"{"claims":[{"id":"a","token":"1f-0a1b2c3d"}]}"#);
    reads_back::<RetryRequest>(r#"{"ids":["a","b"]}"#);
    reads_back::<RetryRequest>(r#"{"state":"dead","queue":"q","type":"mail","limit":5}"#);
    reads_back::<MoveRequest>(r#"{"ids":["a","b"],"queue":"slow"}"#);
    reads_back::<JobsQuery>(
        r#"{"state":"dead","queue":"q","type":"mail","search":"a b","limit":5,"before":7,"order":"newest"}"#,
    );
    reads_back::<ElectRequest>(r#"{"candidate":"web-1","ttl_ms":5000}"#);
    reads_back::<CandidateRequest>("{}");
    reads_back::<ElectRequest>(r#"{"candidate":"web-1","secret":"0123456789abcdef"}"#);
    reads_back::<WithdrawRequest>(r#"{"secret":"0123456789abcdef","term":7}"#);
    reads_back::<ResignRequest>("{}");
    reads_back::<TransferRequest>(r#"{"node":"web-1"}"#);
    let claim: ClaimRequest = serde_json::from_str(r#"{"worker":"w"}"#).unwrap();
    assert_eq!((claim.max, claim.lease_ms, claim.wait_ms), (1, 30_000, 0));
}

#[test]
fn a_single_job_is_what_it_is_in_a_batch() {
    let every = r#"{"id":"a","queue":"q","type":"mail","payload":[1.0],"priority":-3,"run_at":9,"delay_ms":4,"max_attempts":2,"unique_key":"u v","group":"g","backoff":{"first_ms":1,"factor":1,"max_ms":1,"jitter_percent":0},"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1"}"#;
    let job: Submission = serde_json::from_str(every).unwrap();
    assert_eq!(
        reads_back::<SubmitRequest>(every),
        SubmitRequest::Single(Box::new(job.clone()))
    );
    let batch: SubmitRequest = serde_json::from_str(&format!(r#"{{"jobs":[{every}]}}"#)).unwrap();
    assert_eq!(batch.into_jobs(), (vec![job], true));
    let text = r#"{"type":"a","run_at":"2026-01-01T00:00:00Z"}"#;
    let text = serde_json::from_str::<SubmitRequest>(text);
    if cfg!(feature = "text-times") {
        let job = &text.unwrap().into_jobs().0[0];
        assert_eq!(job.run_at, Some(1_767_225_600_000));
    } else {
        let error = text.unwrap_err().to_string();
        assert!(error.contains("the feature text-times"), "{error}");
    }
}

#[test]
fn requests_name_the_field_that_is_wrong() {
    refuses::<SubmitRequest>(r#"{"type":"a","priorty":1}"#, "priorty");
    refuses::<SubmitRequest>(r#"{"queue":"q"}"#, "missing field `type`");
    refuses::<SubmitRequest>(r#"{"jobs":[{"type":"a","x":1}]}"#, "unknown field `x`");
    refuses::<SubmitRequest>(
        r#"{"jobs":[],"priority":1}"#,
        "jobs cannot be combined with other fields",
    );
    refuses::<SubmitRequest>(
        r#"{"type":"a","traceparent":"00-1-2-3"}"#,
        "a traceparent must look like",
    );
    refuses::<SubmitRequest>(
        r#"{"type":"a","tracestate":"a"}"#,
        "a tracestate must look like",
    );
    refuses::<ClaimRequest>(r#"{"worker":"w","maximum":1}"#, "maximum");
    refuses::<ClaimCall>(r#"{"worker":"w","maximum":1}"#, "expected one of `worker`");
    refuses::<ClaimCall>(r#"{"ends":{}}"#, "missing field `worker`");
    refuses::<ClaimCall>(
        r#"{"worker":"w","ends":{"done":[]}}"#,
        "unknown field `done`",
    );
    refuses::<ClaimCall>(
        r#"{"worker":"w","ends":{"completed":[{"id":"a","token":"1-1","error":"no"}]}}"#,
        "unknown field `error`",
    );
    refuses::<HeartbeatRequest>(r#"{"claims":[{"id":"a"}]}"#, "missing field `token`");
    refuses::<Completion>(r#"{"id":"a","token":"x"}"#, "a token is the text");
    refuses::<Failure>(r#"{"id":"a","token":"1-1","why":"no"}"#, "why");
    refuses::<ElectRequest>(r#"{"candidate":"a/b"}"#, "contains '/'");
    refuses::<ElectRequest>(
        r#"{"candidate":"a","secret":"short"}"#,
        "16 to 200 visible ASCII characters",
    );
    refuses::<ResignRequest>(r#"{"now":true}"#, "now");
    refuses::<ScheduleSpec>(
        r#"{"cron":"* * * * *","job":{"type":"a"},"tz":1}"#,
        "unknown field `tz`",
    );
}

#[test]
fn answers_have_a_fixed_form() {
    reads_back::<SubmitAnswer>(
        r#"{"jobs":[{"id":"a","status":"created"},{"id":"b","status":"duplicate","existing":"a"},{"id":"c","status":"conflict"},{"id":"d","status":"full"}]}"#,
    );
    reads_back::<ClaimAnswer>(
        r#"{"jobs":[{"id":"a","token":"1f-0a1b2c3d","queue":"q","type":"t","payload":{"n": 1.0},"attempt":1,"max_attempts":2,"priority":0,"group":"g","created_at":3,"lease_ms":4,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1"}]}"#,
    );
    reads_back::<ClaimAnswer>(
        r#"{"jobs":[],"ends":{"completed":[{"id":"a","status":"ok"}],"failed":[{"id":"b","status":"lost","reason":{"code":"expired"}}],"released":[{"status":"invalid"}]}}"#,
    );
    reads_back::<ClaimsAnswer>(
        r#"{"claims":[{"id":"a","status":"ok"},{"id":"b","status":"cancelled"},{"id":"c","status":"lost","reason":{"code":"not_running","state":"dead"}}]}"#,
    );
    reads_back::<JobsAnswer>(
        r#"{"jobs":[{"id":"a","queue":"q","type":"t","state":"running","payload":{"n": 1.0},"sequence":7,"priority":0,"attempt":1,"max_attempts":20,"created_at":1,"run_at":1,"changed_at":2,"unique_key":"u","backoff":{"first_ms":1,"factor":1,"max_ms":1,"jitter_percent":0},"error":"no","result":[1.0],"worker":"w","lease_ms":30000,"cancel_requested":true,"progress":0.5}],"next":null}"#,
    );
    reads_back::<QueuesAnswer>(
        r#"{"queues":[{"name":"q","paused":false,"options":{"concurrency":2,"rate":{"jobs":5,"period_ms":1000}},"counts":{"scheduled":1,"ready":2,"blocked":0,"running":3,"completed":4,"cancelled":5,"dead":6},"oldest_ready_at":7}]}"#,
    );
    reads_back::<SchedulesAnswer>(
        r#"{"schedules":[{"name":"s","cron":"0 3 * * *","timezone":"UTC","job":{"type":"mail","payload":[1.0]},"missed":{"all":3},"next_at":7,"last_at":null,"paused":false}]}"#,
    );
    reads_back::<Settings>(
        r#"{"completed":{"age_ms":1,"count":2},"cancelled":{},"dead":{},"jobs_max":9,"ids":{"age_ms":3600000,"bytes_max":536870912}}"#,
    );
    reads_back::<RetryAnswer>(
        r#"{"jobs":[{"id":"a","status":"retried"},{"id":"b","status":"unique_key","existing":"c"}]}"#,
    );
    reads_back::<MoveAnswer>(
        r#"{"jobs":[{"id":"a","status":"moved"},{"id":"b","status":"unique_key","existing":"c"}]}"#,
    );
    reads_back::<ElectAnswer>(
        r#"{"leader":{"node":"web-1","term":3},"is_leader":true,"term":3,"token":"0000000000000000000000000000000a:3","valid_for_ms":900}"#,
    );
    reads_back::<Election>(
        r#"{"leader":null,"term":3,"candidates":[{"id":"web-1","ttl_ms":1000}]}"#,
    );
    reads_back::<Plan>(
        r#"{"namespace":"n","decisions":[{"decision":"wait","daemon":"d","shard":0,"node":null,"generation":null,"reason":"r","text":"d/0: wait, r"}]}"#,
    );
    reads_back::<Cluster>(
        r#"{"namespace":"n","node":"web-1","leader":{"node":"web-1","term":3,"address":"http://a","since_at":5},"elections":[{"name":"default","leader":null,"term":3,"candidates":["web-1"]}],"nodes":[{"node":"web-1","incarnation":"00000000000000000000000000000abc","state":"alive","labels":{"zone":"a"},"joined_at":1,"ttl_ms":10000}],"daemons":[{"daemon":"d","weight":1,"shards":[{"index":0,"state":"active","node":"web-1","generation":4,"since_at":5}]}],"history":[{"term":2,"node":"web-2","since_at":1,"until_at":2,"reason":"resigned"}]}"#,
    );
    reads_back::<Event>(
        r#"{"event":"failed","at":1,"position":2,"id":"a","queue":"q","attempt":1,"run_at":5}"#,
    );
}

#[test]
fn answers_of_a_newer_server_are_read() {
    fn read<T: DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }
    read::<SubmitAnswer>(r#"{"jobs":[{"id":"a","status":"created","new":1}],"new":1}"#);
    let queue: Queue = read(
        r#"{"name":"q","paused":true,"options":{"concurrency":2,"rate":{"jobs":1,"period_ms":2,"new":1},"new":1},"counts":{"ready":2,"new":1},"new":1}"#,
    );
    let options: QueueOptions = read(r#"{"concurrency":2,"rate":{"jobs":1,"period_ms":2}}"#);
    assert_eq!((queue.options, queue.counts.ready), (options, 2));
    let schedule: Schedule = read(
        r#"{"name":"s","cron":"* * * * *","timezone":"UTC","job":{"type":"a","payload":{"n":1.0},"backoff":{"new":1},"new":1},"missed":"skip","next_at":null,"last_at":null,"new":1}"#,
    );
    assert_eq!(schedule.job.payload.as_str(), r#"{"n":1.0}"#);
    read::<Settings>(r#"{"completed":{"new":1},"cancelled":{},"dead":{},"jobs_max":9,"new":{}}"#);
    let outcome: Outcome =
        read(r#"{"id":"a","status":"lost","reason":{"code":"stolen","by":"b"}}"#);
    assert_eq!(outcome.reason.unwrap().code, LostCode::Other);
    let reset: Event = read(r#"{"event":"reset","reason":"too slow"}"#);
    assert_eq!(reset.event, RESET);
    let stats: Stats = read(
        r#"{"namespace":"n","node":"a","leader":null,"term":null,"serving":false,"counts":{},"log":{"new":1}}"#,
    );
    assert_eq!(stats.log.commits, 0);
}

#[test]
fn problems_have_stable_codes() {
    let problem: Problem = reads_back(
        r#"{"type":"about:blank","title":"the claim is lost","status":409,"code":"lost","detail":"d","hint":"h","field":"f","reason":{"code":"expired"}}"#,
    );
    assert_eq!(problem.code, Code::Lost);
    let newer: Problem = serde_json::from_str(r#"{"code":"on_fire","new":1}"#).unwrap();
    assert_eq!((newer.code, newer.status), (Code::Other, 0));
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(
        codes.join(" "),
        "invalid_json invalid_field unknown_field not_found method_not_allowed \
         unsupported_media_type too_large unauthorized forbidden conflict lost state full \
         overloaded no_leader unknown_outcome store_unavailable timeout internal"
    );
    for code in Code::ALL {
        let text = serde_json::to_string(code).unwrap();
        assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), *code);
    }
}

#[test]
fn unknown_fields_are_named_with_those_that_there_are() {
    let mistake = |error: serde_json::Error| {
        let text = error.to_string();
        text.split(" at line").next().unwrap().to_owned()
    };
    let text = br#"{"type":"a","priorty":3,"payload":{"priorty":3}}"#;
    let submission = mistake(strict::from_slice::<Submission>(text).unwrap_err());
    assert!(
        submission.starts_with("unknown field `priorty`, expected one of `id`, `queue`, `type`,"),
        "{submission}"
    );
    let request = mistake(strict::from_slice::<SubmitRequest>(text).unwrap_err());
    assert_eq!(request.replace("`jobs`, ", ""), submission);
    // With an escape in it, in a struct within an enum within a list, and in one that has no fields.
    refuses::<Submission>(
        r#"{"type":"a","prio\u0072ty":3}"#,
        "unknown field `priorty`",
    );
    refuses::<Vec<Option<Rate>>>(
        r#"[null,{"jobs":1,"period_ms":1,"x":1}]"#,
        "unknown field `x`",
    );
    refuses::<ResignRequest>(r#"{"now":true}"#, "unknown field `now`");
    refuses::<Submission>(r#"{"type":"a"} {}"#, "trailing characters");
    // A payload is nobody's business.
    let job: Submission = strict::from_slice(br#"{"type":"a","payload":{"x": 1.0}}"#).unwrap();
    assert_eq!(job.payload.as_str(), r#"{"x": 1.0}"#);
}
