//! What a request may ask for, checked before it becomes a command.
//!
//! Names and keys check themselves when they are read. The rest depends on limits that belong to the
//! serving process, not to the state: applying a command never fails, so that a log written under other
//! limits still replays.

use std::borrow::Cow;

use super::schedule::{CATCH_UP_MAX, Schedule};
use super::{
    Backoff, ClaimRequest, Completion, Ends, Failure, Missed, Payload, QueueOptions, ScheduleSpec,
    Settings, Submission,
};
use crate::{JobId, QueueName, ScheduleName};

/// A request that cannot be carried out, named by the field that is wrong. Displayed: `field problem`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// Where in the request, like `jobs[3].run_at`.
    pub field: Cow<'static, str>,
    /// What is wrong with it.
    pub problem: Cow<'static, str>,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }

    fn of_claim(self, place: usize) -> Self {
        self.within(&format!("claims[{place}]"))
    }

    /// The same, one level further in.
    fn within(self, outer: &str) -> Self {
        Self {
            field: format!("{outer}.{}", self.field).into(),
            problem: self.problem,
        }
    }
}

/// The limits of one serving process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload. It is kept in memory until the job is forgotten. Default 256 KiB.
    pub payload_bytes_max: usize,
    /// The largest result. Default 16 KiB.
    pub result_bytes_max: usize,
    /// Errors are cut to this. Default 2 KiB.
    pub error_bytes_max: usize,
    /// The most items of one batch, and the most jobs of one claim. Default 1,000.
    pub batch_max: usize,
    /// How far ahead a job may be scheduled. Default ten years: further is a mistake in units.
    pub delay_ms_max: u64,
    /// The longest lease. Default a day.
    pub lease_ms_max: u32,
    /// The most attempts. Default 10,000.
    pub attempts_max: u32,
    /// The most queues, by name: those with jobs, with settings or with a schedule. Default 100,000. Each has its own order and
    /// its own counts. What needs one more is refused before it is committed; a few more may come in at once.
    pub queues_max: usize,
    /// The most job types that jobs have. Default 100,000.
    pub types_max: usize,
    /// The most schedules. Default 20,000.
    pub schedules_max: usize,
    /// The most bytes of all schedules' text together: payloads, crons, names and keys. Default 64 MiB.
    pub schedules_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes_max: 256 * 1024,
            result_bytes_max: RESULT_BYTES_MAX,
            error_bytes_max: 2 * 1024,
            batch_max: 1_000,
            delay_ms_max: 10 * 365 * 24 * 3_600_000,
            lease_ms_max: 24 * 3_600_000,
            attempts_max: 10_000,
            queues_max: 100_000,
            types_max: 100_000,
            schedules_max: 20_000,
            schedules_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// The largest result, unless a server is told otherwise.
pub const RESULT_BYTES_MAX: usize = 16 * 1024;

/// Ids that are made here: clients must not take them first.
const RESERVED_IDS: [&str; 2] = ["job:", "schedule:"];

/// How deep arrays and objects may be nested in a payload, a result or progress. Many parsers stop at 128 levels, and
/// an answer puts a few of its own around it.
const NESTING_MAX: usize = 100;

/// The longest number. Some parsers refuse integers of thousands of digits, and each client has to read every job of
/// an answer. What does not fit a double is refused at any length: most parsers make an error or infinity of it.
const NUMBER_BYTES_MAX: usize = 400;

/// The most queues, and the most types, of one claim: it looks at each pair of them.
const NAMES_MAX: usize = 100;

/// The longest cron expression. One that lists every second, minute, hour, day and month has half of it.
const CRON_BYTES_MAX: usize = 1_000;

/// The shortest lease: below this a heartbeat cannot reliably arrive in time.
const LEASE_MS_MIN: u32 = 100;

impl Limits {
    /// Checks a batch of submissions.
    pub fn submissions(&self, jobs: &[Submission], now: u64) -> Result<(), Invalid> {
        self.batch("jobs", jobs.len())?;
        for (place, job) in jobs.iter().enumerate() {
            self.submission(job, now)
                .map_err(|invalid| invalid.within(&format!("jobs[{place}]")))?;
        }
        Ok(())
    }

    /// Checks one submission.
    pub fn submission(&self, job: &Submission, now: u64) -> Result<(), Invalid> {
        if let Some(id) = &job.id
            && let Some(prefix) = RESERVED_IDS
                .iter()
                .find(|prefix| id.as_str().starts_with(*prefix))
        {
            return Err(Invalid::new(
                "id",
                format!("starts with {prefix}, which is reserved for ids that the broker makes"),
            ));
        }
        // A careless script passes them on to a command line, where they would be options.
        for (field, name) in [
            ("id", job.id.as_ref().map_or("", JobId::as_str)),
            ("queue", job.queue.as_str()),
            ("type", job.job_type.as_str()),
        ] {
            no_option(field, name)?;
        }
        value("payload", &job.payload, self.payload_bytes_max)?;
        if job.tracestate.is_some() && job.traceparent.is_none() {
            return Err(Invalid::new("tracestate", "needs a traceparent"));
        }
        if job.run_at.is_some() && job.delay_ms.is_some() {
            return Err(Invalid::new("delay_ms", "cannot be combined with run_at"));
        }
        let ahead = job.run_at.map(|run_at| run_at.saturating_sub(now));
        for (field, ahead) in [("run_at", ahead), ("delay_ms", job.delay_ms)] {
            if ahead.is_some_and(|ahead| ahead > self.delay_ms_max) {
                let days = self.delay_ms_max / 86_400_000;
                return Err(Invalid::new(
                    field,
                    format!("is more than {days} days ahead; times are in milliseconds"),
                ));
            }
        }
        if let Some(attempts) = job.max_attempts {
            between("max_attempts", attempts, 1, self.attempts_max)?;
        }
        job.backoff.as_ref().map_or(Ok(()), check_backoff)
    }

    /// Checks a claim.
    pub fn claim(&self, request: &ClaimRequest) -> Result<(), Invalid> {
        let most = u32::try_from(self.batch_max).unwrap_or(u32::MAX);
        between("max", request.max, 1, most)?;
        between(
            "lease_ms",
            request.lease_ms,
            LEASE_MS_MIN,
            self.lease_ms_max,
        )?;
        for (field, count) in [
            ("queues", request.queues.len()),
            ("types", request.types.len()),
        ] {
            if count > NAMES_MAX {
                let problem = format!("has {count} entries; at most {NAMES_MAX} are allowed");
                return Err(Invalid::new(field, problem));
            }
        }
        Ok(())
    }

    /// Checks a batch of completions.
    pub fn completions(&self, claims: &[Completion]) -> Result<(), Invalid> {
        self.batch("claims", claims.len())?;
        for (place, claim) in claims.iter().enumerate() {
            self.completion(claim)
                .map_err(|invalid| invalid.of_claim(place))?;
        }
        Ok(())
    }

    /// Checks one completion.
    pub fn completion(&self, claim: &Completion) -> Result<(), Invalid> {
        let result = claim.result.as_ref();
        result.map_or(Ok(()), |result| {
            value("result", result, self.result_bytes_max)
        })
    }

    /// Checks what is said of all of a batch of heartbeats.
    pub fn heartbeats<'a>(
        &self,
        progress: impl ExactSizeIterator<Item = Option<&'a Payload>>,
    ) -> Result<(), Invalid> {
        self.batch("claims", progress.len())?;
        for (place, progress) in progress.enumerate() {
            progress
                .map_or(Ok(()), |progress| self.progress(progress))
                .map_err(|invalid| invalid.of_claim(place))?;
        }
        Ok(())
    }

    /// Checks the progress of one heartbeat.
    pub fn progress(&self, progress: &Payload) -> Result<(), Invalid> {
        value("progress", progress, self.result_bytes_max)
    }

    /// Checks a batch of failures, and cuts their errors: a worker that fails must be able to say so,
    /// however long its stack trace.
    pub fn failures(&self, claims: &mut [Failure]) -> Result<(), Invalid> {
        self.batch("claims", claims.len())?;
        for (place, claim) in claims.iter_mut().enumerate() {
            self.failure(claim)
                .map_err(|invalid| invalid.of_claim(place))?;
        }
        Ok(())
    }

    /// Checks one failure, and cuts its error.
    pub fn failure(&self, claim: &mut Failure) -> Result<(), Invalid> {
        if claim
            .retry_in_ms
            .is_some_and(|wait| wait > self.delay_ms_max)
        {
            let problem = "is too long; times are in milliseconds";
            return Err(Invalid::new("retry_in_ms", problem));
        }
        if let Some(error) = &mut claim.error
            && error.len() > self.error_bytes_max
        {
            *error = error[..error.floor_char_boundary(self.error_bytes_max)].into();
        }
        Ok(())
    }

    /// Checks ends that come along with a claim, and cuts their errors.
    pub fn ends(&self, ends: &mut Ends) -> Result<(), Invalid> {
        self.batch("ends", ends.len())?;
        for (place, claim) in ends.completed.iter().enumerate() {
            self.completion(claim)
                .map_err(|invalid| invalid.within(&format!("ends.completed[{place}]")))?;
        }
        for (place, claim) in ends.failed.iter_mut().enumerate() {
            self.failure(claim)
                .map_err(|invalid| invalid.within(&format!("ends.failed[{place}]")))?;
        }
        Ok(())
    }

    /// Checks the length of any other batch.
    pub fn batch(&self, field: &'static str, items: usize) -> Result<(), Invalid> {
        if (1..=self.batch_max).contains(&items) {
            return Ok(());
        }
        Err(Invalid::new(
            field,
            format!("has {items} items; 1 to {} are allowed", self.batch_max),
        ))
    }

    /// Checks the name of a queue that something is said of, since that makes it.
    pub fn queue(&self, name: &QueueName) -> Result<(), Invalid> {
        no_option("queue", name.as_str())
    }

    /// Checks a queue's limits.
    pub fn queue_options(&self, options: &QueueOptions) -> Result<(), Invalid> {
        if options.concurrency == Some(0) {
            return Err(Invalid::new(
                "concurrency",
                "must not be 0; to stop a queue, pause it",
            ));
        }
        if let Some(rate) = &options.rate {
            between("rate.jobs", rate.jobs, 1, 1_000_000)?;
            between("rate.period_ms", rate.period_ms, 1, 86_400_000)?;
            between("rate.burst", rate.burst.unwrap_or(1), 1, 1_000_000)?;
        }
        Ok(())
    }

    /// Checks a schedule. [`Schedule::command`] checks cron and zone again, and makes the action.
    pub fn schedule(
        &self,
        name: &ScheduleName,
        spec: &ScheduleSpec,
        now: u64,
    ) -> Result<(), Invalid> {
        // The id of its jobs holds the name and a time, and is a name itself.
        if name.as_str().len() > 150 {
            return Err(Invalid::new("name", "has more than 150 bytes"));
        }
        no_option("name", name.as_str())?;
        let bytes = spec.cron.len();
        if bytes > CRON_BYTES_MAX {
            return Err(Invalid::new(
                "cron",
                format!("has {bytes} bytes; at most {CRON_BYTES_MAX} are allowed"),
            ));
        }
        let job = &spec.job;
        for (field, given) in [
            ("job.id", job.id.is_some()),
            ("job.run_at", job.run_at.is_some()),
            ("job.delay_ms", job.delay_ms.is_some()),
        ] {
            if given {
                return Err(Invalid::new(field, "cannot be set: the schedule makes it"));
            }
        }
        if job.traceparent.is_some() {
            return Err(Invalid::new(
                "job.traceparent",
                "cannot be set: each run begins its own trace",
            ));
        }
        self.submission(job, now)
            .map_err(|invalid| invalid.within("job"))?;
        if let Missed::All(count) = spec.missed {
            between("missed.all", count, 1, CATCH_UP_MAX)?;
        }
        Schedule::command(name.clone(), spec.clone(), now).map(drop)
    }

    /// Checks the settings.
    pub fn settings(&self, settings: &Settings) -> Result<(), Invalid> {
        if settings.jobs_max == 0 {
            return Err(Invalid::new("jobs_max", "is 0"));
        }
        Ok(())
    }
}

/// Checks JSON of a client: its size, and that every other client can read it.
fn value(field: &'static str, value: &Payload, bytes_max: usize) -> Result<(), Invalid> {
    let bytes = value.bytes();
    let problem = if bytes <= bytes_max {
        readable(value.as_str())
    } else {
        Err(format!("has {bytes} bytes; at most {bytes_max} are allowed").into())
    };
    problem.map_err(|problem| Invalid::new(field, problem))
}

/// Checks that parsers with the usual limits can read this JSON. Does not recurse itself.
fn readable(json: &str) -> Result<(), Cow<'static, str>> {
    let mut depth = 0_usize;
    let mut rest = json;
    while let Some(&first) = rest.as_bytes().first() {
        let mut length = 1;
        match first {
            b'"' => {
                length = string_bytes(rest);
                check_string(rest.get(..length).unwrap_or(rest))?;
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > NESTING_MAX {
                    let problem = format!("is nested more than {NESTING_MAX} levels deep");
                    return Err(problem.into());
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                let is_part =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                length = rest.bytes().take_while(is_part).count();
                check_number(&rest[..length])?;
            }
            _ => {}
        }
        // Only whole tokens are passed over; between them JSON has nothing but ASCII.
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(())
}

/// The length of the string that JSON begins with, quotes included.
fn string_bytes(json: &str) -> usize {
    let bytes = json.as_bytes();
    let mut end = 1;
    while let Some(found) = bytes
        .get(end..)
        .and_then(|rest| rest.iter().position(|byte| matches!(byte, b'"' | b'\\')))
    {
        end += found;
        match bytes[end] {
            b'"' => return end + 1,
            // With what it escapes, which may be a quote.
            _ => end += 2,
        }
    }
    bytes.len()
}

/// Refuses halves of surrogate pairs: JSON can write them, but they are no characters, and many clients fail to read an
/// answer that has one, or change it.
fn check_string(string: &str) -> Result<(), Cow<'static, str>> {
    let bytes = string.as_bytes();
    let surrogate = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(br"\u")?;
        let digits = std::str::from_utf8(digits).ok()?;
        let unit = u16::from_str_radix(digits, 16).ok()?;
        (0xd800..=0xdfff).contains(&unit).then_some(unit)
    };
    let mut at = 0;
    while let Some(found) = bytes
        .get(at..)
        .and_then(|rest| rest.iter().position(|&byte| byte == b'\\'))
    {
        at += found;
        at += match (surrogate(at), surrogate(at + 6)) {
            // With what it escapes, which may be a backslash.
            (None, _) => 2,
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(unit), _) => {
                let problem = format!(
                    "has the escape \\u{unit:04x}, which is half of a character: send it with its other half"
                );
                return Err(problem.into());
            }
        };
    }
    Ok(())
}

fn check_number(number: &str) -> Result<(), Cow<'static, str>> {
    if number.len() > NUMBER_BYTES_MAX {
        let bytes = number.len();
        let problem = format!(
            "has a number of {bytes} characters; at most {NUMBER_BYTES_MAX} are allowed: send it as a string"
        );
        return Err(problem.into());
    }
    // The largest double has 309 digits.
    let may_be_large = number.len() > 300 || number.contains(['e', 'E']);
    if may_be_large && !number.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err("has a number that is too large for a double: send it as a string".into());
    }
    Ok(())
}

/// Refuses a name that a command line would take for an option. Only where names come in: older logs may have some.
fn no_option(field: &'static str, name: &str) -> Result<(), Invalid> {
    if name.starts_with('-') {
        Err(Invalid::new(
            field,
            "starts with -, and could be taken for an option of a command",
        ))
    } else {
        Ok(())
    }
}

fn between(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), Invalid> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("is {value}, not between {min} and {max}"),
    ))
}

fn check_backoff(backoff: &Backoff) -> Result<(), Invalid> {
    between("backoff.factor", backoff.factor.into(), 1, 100)?;
    between(
        "backoff.jitter_percent",
        backoff.jitter_percent.into(),
        0,
        100,
    )?;
    if backoff.max_ms < backoff.first_ms {
        return Err(Invalid::new("backoff.max_ms", "is less than first_ms"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Rate;

    const NOW: u64 = 1_767_225_600_000;

    #[track_caller]
    fn refused(job: &str, problem: &str) {
        let job: Submission = serde_json::from_str(job).unwrap();
        let error = Limits::default().submissions(&[job], NOW).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }

    #[test]
    fn bad_submissions_are_named_by_field() {
        refused(
            r#"{"type":"a","max_attempts":0}"#,
            "jobs[0].max_attempts is 0, not between 1",
        );
        refused(
            r#"{"type":"a","run_at":"9999-06-01T00:00:00Z"}"#,
            "jobs[0].run_at is more than 3650 days",
        );
        refused(
            r#"{"type":"a","delay_ms":315360000001}"#,
            "jobs[0].delay_ms is more than",
        );
        refused(
            r#"{"type":"a","delay_ms":1,"run_at":1}"#,
            "cannot be combined with run_at",
        );
        refused(
            r#"{"type":"a","id":"job:1"}"#,
            "jobs[0].id starts with job:",
        );
        refused(
            r#"{"type":"a","tracestate":"a=1"}"#,
            "jobs[0].tracestate needs a traceparent",
        );
        refused(
            r#"{"type":"a","backoff":{"factor":0}}"#,
            "jobs[0].backoff.factor is 0",
        );
        refused(
            r#"{"type":"a","backoff":{"max_ms":1}}"#,
            "jobs[0].backoff.max_ms is less",
        );
        let large = format!(r#"{{"type":"a","payload":"{}"}}"#, "x".repeat(256 * 1024));
        refused(&large, "jobs[0].payload has 262146 bytes; at most 262144");
        let error = Limits::default().submissions(&[], NOW).unwrap_err();
        assert_eq!(error.to_string(), "jobs has 0 items; 1 to 1000 are allowed");
    }

    #[test]
    fn names_that_look_like_options_are_refused() {
        for (field, job) in [
            ("id", r#"{"type":"a","id":"--help"}"#),
            ("queue", r#"{"type":"a","queue":"-q"}"#),
            ("type", r#"{"type":"-rf"}"#),
        ] {
            refused(job, &format!("jobs[0].{field} starts with -"));
        }
        let queue = QueueName::new("-q").unwrap();
        assert!(Limits::default().queue(&queue).is_err());
        let spec: ScheduleSpec =
            serde_json::from_str(r#"{"cron":"@daily","job":{"type":"a"}}"#).unwrap();
        let name = ScheduleName::new("-s").unwrap();
        let error = Limits::default().schedule(&name, &spec, NOW).unwrap_err();
        assert!(
            error.to_string().starts_with("name starts with -"),
            "{error}"
        );
    }

    #[test]
    fn json_that_common_clients_cannot_read_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let objects = format!("{}1{}", r#"{"a":"#.repeat(101), "}".repeat(101));
        let number = |digits: usize| "7".repeat(digits);
        for (payload, problem) in [
            (nested(101), "is nested more than 100 levels deep"),
            (nested(100_000), "is nested more than 100 levels deep"),
            (objects, "is nested more than 100 levels deep"),
            (number(5_000), "has a number of 5000 characters"),
            (
                format!(r#"{{"a\\":[0.{}]}}"#, number(400)),
                "has a number of 402",
            ),
            (number(310), "too large for a double"),
            (r#"{"a":-1e400}"#.to_owned(), "too large for a double"),
            (r#""\ud800""#.to_owned(), r"has the escape \ud800"),
            (r#"["\uD83D \uDE00"]"#.to_owned(), r"has the escape \ud83d"),
            (
                r#"["\ud83d\ud83d\ude00"]"#.to_owned(),
                r"has the escape \ud83d",
            ),
            (r#"{"a\\\udfff":1}"#.to_owned(), r"has the escape \udfff"),
        ] {
            let payload = Payload::new(payload).unwrap();
            let limits = Limits::default();
            let job = Submission {
                payload: payload.clone(),
                ..Submission::new(crate::JobType::new("a").unwrap())
            };
            let error = limits.submissions(&[job], NOW).unwrap_err().to_string();
            assert!(
                error.starts_with("jobs[0].payload ") && error.contains(problem),
                "{error}"
            );
            if payload.bytes() > limits.result_bytes_max {
                continue;
            }
            let error = limits.progress(&payload).unwrap_err().to_string();
            assert!(
                error.starts_with("progress ") && error.contains(problem),
                "{error}"
            );
            let line = r#"{"id":"a","token":"1-00000001","result":null}"#;
            let mut done: Completion = serde_json::from_str(line).unwrap();
            done.result = Some(payload);
            let error = limits.completions(&[done]).unwrap_err().to_string();
            assert!(
                error.starts_with("claims[0].result ") && error.contains(problem),
                "{error}"
            );
        }
    }

    #[test]
    fn json_that_common_clients_can_read_is_taken() {
        let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let wide = format!("[{}[]]", "[[]],".repeat(1_000));
        let text = format!(
            r#"["{}\\\"[[", "\\", "{}"]"#,
            "[{".repeat(200),
            "7".repeat(5_000)
        );
        for json in [
            nested,
            wide,
            text,
            "7".repeat(309).replacen('7', "1", 1),
            r#"{"é":[-0.5e-400,1e308,12345678901234567890]}"#.to_owned(),
            r#"["\ud83d\ude00\uD83D\uDE00","\\ud800","\\\\ud800","\ud7ff\ue000","\"\u00e9"]"#
                .to_owned(),
        ] {
            let payload = Payload::new(json).unwrap();
            value("payload", &payload, 1 << 20).unwrap();
        }
    }

    #[test]
    fn a_time_in_the_past_is_no_mistake() {
        let job: Submission = serde_json::from_str(r#"{"type":"a","run_at":1}"#).unwrap();
        Limits::default().submission(&job, NOW).unwrap();
    }

    #[test]
    fn long_errors_are_cut_at_a_character() {
        let limits = Limits {
            error_bytes_max: 4,
            ..Limits::default()
        };
        let line = r#"{"id":"a","token":"1-00000001","error":"aéüöä"}"#;
        let mut failure: Failure = serde_json::from_str(line).unwrap();
        limits.failures(std::slice::from_mut(&mut failure)).unwrap();
        assert_eq!(failure.error.as_deref(), Some("aé"));
    }

    #[test]
    fn limits_of_queues_are_checked() {
        let limits = Limits::default();
        let rate = Rate {
            jobs: 0,
            period_ms: 1,
            burst: None,
        };
        let check = |concurrency, rate| {
            limits
                .queue_options(&QueueOptions { concurrency, rate })
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            check(Some(0), None).unwrap_err(),
            "concurrency must not be 0; to stop a queue, pause it"
        );
        assert!(
            check(None, Some(rate))
                .unwrap_err()
                .starts_with("rate.jobs is 0")
        );
        assert!(
            check(
                None,
                Some(Rate {
                    jobs: 1,
                    burst: Some(0),
                    ..rate
                })
            )
            .is_err()
        );
        assert_eq!(check(Some(1), Some(Rate { jobs: 1, ..rate })), Ok(()));
    }

    #[test]
    fn a_cron_is_bounded_and_any_that_lists_everything_fits() {
        let check = |cron: String| {
            let spec = ScheduleSpec {
                cron,
                timezone: "UTC".to_owned(),
                job: Submission::new(crate::JobType::new("a").unwrap()),
                missed: Missed::Once,
                run_on_start: false,
            };
            let name = ScheduleName::new("s").unwrap();
            let checked = Limits::default().schedule(&name, &spec, NOW);
            checked.map_err(|error| error.to_string())
        };
        let list = |from: u32, to: u32| {
            let each: Vec<String> = (from..=to).map(|number| number.to_string()).collect();
            each.join(",")
        };
        let (sixty, hours, days) = (list(0, 59), list(0, 23), list(1, 31));
        let (months, week) = (list(1, 12), list(0, 7));
        let all = format!("{sixty} {sixty} {hours} {days} {months} {week}");
        assert_eq!(check(all), Ok(()));
        let long = format!("{}1 * * * *", "1,".repeat(500));
        assert_eq!(
            check(long).unwrap_err(),
            "cron has 1009 bytes; at most 1000 are allowed"
        );
    }

    #[test]
    fn schedules_are_checked_with_their_job() {
        let check = |job: &str| {
            let spec = format!(r#"{{"cron":"@daily","job":{job},"missed":{{"all":5}}}}"#);
            let spec: ScheduleSpec = serde_json::from_str(&spec).unwrap();
            let name = ScheduleName::new("s").unwrap();
            Limits::default()
                .schedule(&name, &spec, NOW)
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(r#"{"type":"a"}"#), Ok(()));
        assert!(
            check(r#"{"type":"a","id":"x"}"#)
                .unwrap_err()
                .starts_with("job.id cannot")
        );
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(
            check(&format!(r#"{{"type":"a","traceparent":"{parent}"}}"#))
                .unwrap_err()
                .starts_with("job.traceparent cannot")
        );
        assert!(
            check(r#"{"type":"a","max_attempts":0}"#)
                .unwrap_err()
                .starts_with("job.max_attempts")
        );
    }
}
