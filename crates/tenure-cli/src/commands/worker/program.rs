//! One run of a worker's program: payload in, result out, and no process left afterwards.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tenure::core::Moment;
use tenure_client::{CancelReason, Failure, Job, Payload};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, sleep_until, timeout};

use crate::commands::files;
use crate::commands::guard::message::{Order, Status, Until, Why};
use crate::commands::guarded::{Complaint, Ended, Program, ProgramEvent, Start, UNGUARDED};
use crate::commands::run::{KILL_PATIENCE, START_PATIENCE};
use crate::output;

/// How much of a program's standard output is kept: its last line is the result, if it fits.
const OUTPUT_KEPT: usize = 256 * 1024;

/// How much of its standard error is kept with a failed job. The server cuts errors at 2 KiB.
const ERROR_KEPT: usize = 1_800;

/// The most lines of it.
const ERROR_LINES: usize = 20;

/// The largest result that brokers keep.
const RESULT_BYTES_MAX: usize = tenure::core::queue::RESULT_BYTES_MAX;

/// How long to keep reading after the program has ended. Other processes that hold the pipe are killed, but one that
/// may not be killed could hold it for ever.
const READ_ON: Duration = Duration::from_secs(1);

/// The longest line of a program that is shown in one piece.
const LINE_SHOWN_MAX: usize = 8 * 1024;

/// How long the guard may take to report that it has killed everything. After that it counts as stopped.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// How often to ask whether the guard is there, and after how many unanswered questions it counts as stopped. Then it
/// and the program are killed.
const ASK_EVERY: Duration = Duration::from_secs(5);
const UNHEARD_MAX: u32 = 2;

/// What to run for each job.
pub(super) struct JobProgram {
    pub(super) command: Vec<OsString>,
    pub(super) kill_after: Duration,
}

/// Whether a variable is a secret of a worker or a broker, which the program must not get. New variables named like the
/// present ones are included.
fn is_secret(name: &str, value: &OsStr) -> bool {
    let is_ours = name.starts_with("TENURE_");
    // The fencing token of `tenure run` is not a secret.
    let is_token = is_ours && name.ends_with("_TOKEN") && name != "TENURE_TOKEN";
    let is_url = ["TENURE_STORE", "TENURE_OUTBOX"].contains(&name);
    // The broker's location may be a store's URL with a password; a plain broker URL is harmless.
    let is_address = |value: &str| value.starts_with("http") && !value.contains('@');
    let names_store = name == "TENURE_SERVER" && !value.to_str().is_some_and(is_address);
    let is_export = name.starts_with("OTEL_EXPORTER_OTLP");
    let has_password = || value.to_str().is_none_or(|value| value.contains('@'));
    let is_header = is_export && (name.ends_with("HEADERS") || has_password());
    is_token || is_url || names_store || is_header
}

impl JobProgram {
    /// Runs the program for a job. If this is dropped, the program and everything that it started are killed.
    pub(super) async fn run(&self, job: Job<Payload>) -> Result<Option<Payload>, Failure> {
        let (mut program, input) = self.start(&job).map_err(|error| {
            let text = format!("cannot start the program: {error:#}");
            // The job is not at fault, and another worker may have the resources that are missing here.
            if files::is_shortage(&error) {
                Failure::hand_back(text)
            } else {
                Failure::from(text)
            }
        })?;
        let printed = Tail::new(OUTPUT_KEPT);
        let complained = Tail::new(ERROR_KEPT);
        let (stdout, stderr) = program.take_output();
        let readers = [
            stdout.map(|pipe| read(pipe, printed.clone(), None)),
            stderr.map(|pipe| {
                let name = job.id.to_string();
                read(pipe, complained.clone(), Some(name))
            }),
        ];
        let payload = job.payload.as_str().as_bytes().to_vec();
        let feeding = tokio::spawn(async move {
            let mut input = input;
            // A program that does not want its payload closes the pipe.
            let _ = input.write_all(&payload).await;
        });
        let ended = self.wait(&mut program, &job).await;
        feeding.abort();
        for reader in readers.into_iter().flatten() {
            let abort = reader.abort_handle();
            if timeout(READ_ON, reader).await.is_err() {
                abort.abort();
            }
        }
        match ended? {
            Ended {
                why: Why::Short, ..
            } => {
                let words = complained.last_lines(ERROR_LINES);
                Err(Failure::hand_back(format!(
                    "cannot start the program: {words}"
                )))
            }
            Ended {
                status: Status::Exited(0),
                ..
            } => Ok(result(&job, printed.last_json())),
            Ended {
                status,
                why: Why::Late,
                ..
            } if program.is_reported() => Err(Failure::from(format!(
                "no heartbeat got through, and the program was ended before the lease was over: it {status}"
            ))),
            Ended {
                why: Why::Unguarded,
                ..
            } => Err(Failure::from(UNGUARDED)),
            Ended { status, .. } => Err(failure(status, &complained)),
        }
    }

    fn start(&self, job: &Job<Payload>) -> anyhow::Result<(Program, pipe::Sender)> {
        // The span of this run, a child of the job's own, if this process records spans.
        let (parent, state) = match tenure_client::current_span() {
            Some((parent, state)) => (Some(parent), state),
            None => (job.traceparent, job.tracestate.clone()),
        };
        let (stdin, input) = std::io::pipe()?;
        let program = Program::start(Start {
            name: &format!("job {}", output::printable(job.id.as_str())),
            command: &self.command,
            environment: [
                ("TENURE_JOB_ID", Some(job.id.to_string())),
                ("TENURE_JOB_TYPE", Some(job.job_type.to_string())),
                ("TENURE_QUEUE", Some(job.queue.to_string())),
                ("TENURE_ATTEMPT", Some(job.attempt.to_string())),
                ("TENURE_MAX_ATTEMPTS", Some(job.max_attempts.to_string())),
                // This process's own values belong to another trace.
                ("TRACEPARENT", parent.map(|parent| parent.to_string())),
                ("TRACESTATE", state.map(|state| state.to_string())),
            ]
            .into(),
            hides: is_secret,
            until: until(job),
            kill_after: self.kill_after,
            stdin: Some(stdin.into()),
        })?;
        let input = OwnedFd::from(input);
        rustix::io::ioctl_fionbio(&input, true)?;
        Ok((program, pipe::Sender::from_owned_fd(input)?))
    }

    /// Waits for the end. A program that has to stop is told, and killed if it does not stop.
    async fn wait(&self, program: &mut Program, job: &Job<Payload>) -> Result<Ended, Failure> {
        let mut complaint = Complaint::default();
        let mut deadline = job.deadline();
        // The deadline may have moved since the guard was told.
        program.order(Order::Until(until(job)));
        let (mut told, mut late_at, mut is_late) = (false, None, false);
        let (mut unheard, started) = (0, Instant::now());
        let mut ask = tokio::time::interval(ASK_EVERY);
        // After a pause of all processes the guard still gets its full time.
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                event = next(program, is_late) => match event {
                    // The program never ran, although nobody asked it to stop.
                    Ok(ProgramEvent::Ended(ended)) if !ended.has_run && !told && !is_late => match ended.why {
                        Why::Late => return Err(Failure::hand_back("the program was not started: its guard was too slow for the lease")),
                        Why::Unguarded => return Err(Failure::hand_back("the program was not started: its guard was killed")),
                        Why::Itself | Why::Told | Why::Short => return Ok(ended),
                    },
                    Ok(ProgramEvent::Ended(ended)) => return Ok(ended),
                    Ok(ProgramEvent::Heard(_)) => unheard = 0,
                    Ok(ProgramEvent::Stuck(stuck)) => {
                        // For people who look at the job.
                        job.progress(&serde_json::json!({ "stuck": stuck.to_string() }));
                        complaint.say(stuck, &kept(job));
                    }
                    Err(error) if !program.is_started() && !told && !is_late => {
                        return Err(Failure::hand_back(format!("{error:#}")));
                    }
                    Err(error) => return Err(Failure::from(format!("{error:#}"))),
                },
                reason = job.cancelled(), if !told => {
                    told = true;
                    tracing::debug!(id = %job.id, ?reason, "stopping the program");
                    let (order, patience) = match reason {
                        // Another worker may have the job by now.
                        CancelReason::Lost | CancelReason::Expired => (Order::Kill, KILL_PATIENCE),
                        _ => (Order::Stop(Signal::TERM), self.kill_after + STOP_PATIENCE),
                    };
                    program.order(order);
                    late_at = Some(Instant::now() + patience);
                }
                moved = job.deadline_after(deadline), if !is_late => {
                    deadline = moved;
                    program.order(Order::Until(until(job)));
                }
                () = at(late_at), if !is_late && !program.is_stuck() => is_late = true,
                // The program's start is not an event, so it must not be a condition of this branch: it would be
                // evaluated before the start, and never again.
                _ = ask.tick(), if !is_late && !program.is_stuck() => {
                    is_late = if program.is_started() {
                        unheard >= UNHEARD_MAX
                    } else {
                        started.elapsed() >= START_PATIENCE
                    };
                    if program.is_started() {
                        unheard += 1;
                        program.order(Order::Until(until(job)));
                    }
                }
                () = complaint.is_due() => complaint.say_again(&kept(job)),
            }
        }
    }
}

/// Waits for the next event of the program, with its guard or without. A cancelled wait loses nothing.
async fn next(program: &mut Program, is_late: bool) -> anyhow::Result<ProgramEvent> {
    if is_late {
        program.end_without_guard(Why::Late).await
    } else {
        program.next().await
    }
}

/// How a process that may not be killed affects its job.
fn kept(job: &Job<Payload>) -> String {
    let id = &job.id;
    match job.cancel_reason() {
        Some(CancelReason::Lost) => {
            format!("job {id} was given to another worker and may be done twice. End it")
        }
        Some(CancelReason::Expired) => {
            format!("job {id} is given to another worker if no heartbeat gets through. End it")
        }
        _ => {
            format!(
                "job {id} is kept until it ends. End it, or signal three times to leave it running"
            )
        }
    }
}

/// When the guard tells the program to stop, and when it kills it, if it learns of no further successful heartbeat:
/// before the job may be given to another worker. By then two of three heartbeats have failed, or this process is
/// stopped.
fn until(job: &Job<Payload>) -> Until {
    let deadline = Moment::from_origin(job.deadline());
    let lease = Duration::from_millis(job.lease_ms.into());
    Until {
        tell_at: deadline - lease / 6,
        kill_at: deadline - lease / 24,
    }
}

/// Waits until a moment; for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The result of a job. Since the work was done, a result that cannot be kept is only left out, with a warning.
fn result(job: &Job<Payload>, last: LastLine) -> Option<Payload> {
    let problem = match last {
        LastLine::Json(payload) if payload.bytes() <= RESULT_BYTES_MAX => return Some(payload),
        LastLine::None => return None,
        LastLine::Json(payload) => format!("{} bytes", payload.bytes()),
        LastLine::TooLong => format!("more than {OUTPUT_KEPT} bytes"),
    };
    output::warning(&format!(
        "{}: completed without a result: the last line has {problem}, but a result may have at most {RESULT_BYTES_MAX}",
        job.id
    ));
    None
}

/// Why the program failed, with the last lines of its stderr.
fn failure(status: Status, complained: &Tail) -> Failure {
    let how = match status {
        Status::Exited(code) => format!("exit code {code}"),
        Status::Killed(signal) => format!("killed by signal {signal}"),
    };
    let words = complained.last_lines(ERROR_LINES);
    if words.is_empty() {
        Failure::from(how)
    } else {
        Failure::from(format!("{how}: {words}"))
    }
}

/// The last line of a program's output.
#[derive(Debug, PartialEq)]
enum LastLine {
    Json(Payload),
    /// Its beginning was not kept, so it may or may not be JSON.
    TooLong,
    /// It is not JSON.
    None,
}

/// The last of what a program wrote.
#[derive(Clone)]
struct Tail(Arc<Mutex<Kept>>);

struct Kept {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// Whether the beginning was dropped.
    is_cut: bool,
}

impl Tail {
    fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Kept {
            bytes: Vec::new(),
            bytes_max,
            is_cut: false,
        })))
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes.extend_from_slice(bytes);
        // Cut only at twice the size, so that each byte is moved once on average.
        if kept.bytes.len() > 2 * kept.bytes_max {
            let surplus = kept.bytes.len() - kept.bytes_max;
            kept.bytes.drain(..surplus);
            kept.is_cut = true;
        }
    }

    /// The text, and whether its beginning is missing.
    fn text(&self) -> (String, bool) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = kept.bytes.len().saturating_sub(kept.bytes_max);
        let text = String::from_utf8_lossy(&kept.bytes[start..]).into_owned();
        (text, kept.is_cut || start > 0)
    }

    fn last_lines(&self, count: usize) -> String {
        let (text, _) = self.text();
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let start = lines.len().saturating_sub(count);
        lines[start..].join("\n").trim().to_owned()
    }

    /// The last line, if it is JSON.
    fn last_json(&self) -> LastLine {
        let (text, is_cut) = self.text();
        let text = text.trim_end();
        let line = match text.rfind('\n') {
            Some(end) => &text[end + 1..],
            None if is_cut => return LastLine::TooLong,
            None => text,
        };
        Payload::new(line.trim()).map_or(LastLine::None, LastLine::Json)
    }
}

/// Reads a pipe to its end, and shows it line by line if it has a name.
fn read(
    mut pipe: impl AsyncRead + Unpin + Send + 'static,
    tail: Tail,
    name: Option<String>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut buffer = vec![0; 16 * 1024];
        let mut line: Vec<u8> = Vec::new();
        let show = |line: &mut Vec<u8>| {
            if let Some(name) = &name {
                let text = String::from_utf8_lossy(line);
                let words = text.trim_start();
                let indent = &text[..text.len() - words.len()];
                let indent = " ".repeat(indent.chars().count());
                let words = output::printable(words);
                let shown = format!("{name}: {indent}{words}");
                output::raw_to_stderr(&format!("{}\n", shown.trim_end()));
            }
            line.clear();
        };
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            tail.push(&buffer[..count]);
            if name.is_none() {
                continue;
            }
            for &byte in &buffer[..count] {
                if byte == b'\n' || line.len() >= LINE_SHOWN_MAX {
                    show(&mut line);
                    // A program that writes a lot must not delay other jobs' heartbeats, and even one buffer can hold
                    // very many lines: yield every hundred lines or so.
                    tokio::task::consume_budget().await;
                }
                if byte != b'\n' {
                    line.push(byte);
                }
            }
            tokio::task::yield_now().await;
        }
        if !line.is_empty() {
            show(&mut line);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(bytes_max: usize, text: &str) -> Tail {
        let tail = Tail::new(bytes_max);
        for bytes in text.as_bytes().chunks(3) {
            tail.push(bytes);
        }
        tail
    }

    #[test]
    fn tokens_and_urls_are_secret_and_addresses_are_not() {
        let is_secret = |name, value: &str| is_secret(name, OsStr::new(value));
        for name in [
            "TENURE_API_TOKEN",
            "TENURE_OSQUEUE_TOKEN",
            "TENURE_OUTBOX",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        ] {
            assert!(is_secret(name, "x"), "{name}");
        }
        for name in ["TENURE_TOKEN", "GITHUB_TOKEN", "PATH"] {
            assert!(!is_secret(name, "x"), "{name}");
        }
        for (server, is_one) in [
            ("http://127.0.0.1:8080,https://other:8080", false),
            ("postgres://user:password@host/database", true),
            ("https://user:password@host", true),
        ] {
            assert_eq!(is_secret("TENURE_SERVER", server), is_one, "{server}");
        }
        let endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
        assert!(!is_secret(endpoint, "http://127.0.0.1:4318"));
        assert!(is_secret(endpoint, "https://user:password@collector"));
    }

    #[test]
    fn the_last_line_is_the_result_if_it_is_json() {
        let result = |text: &str| match tail(100, text).last_json() {
            LastLine::Json(json) => Some(json.as_str().to_owned()),
            LastLine::TooLong | LastLine::None => None,
        };
        assert_eq!(
            result("working\n{\"n\": 1.0}\n"),
            Some("{\"n\": 1.0}".to_owned())
        );
        assert_eq!(result("42"), Some("42".to_owned()));
        assert_eq!(result("{\"n\":1}\ndone\n"), None);
        assert_eq!(result(""), None);
    }

    #[test]
    fn half_a_line_is_no_result() {
        let long = format!("{}1", "0".repeat(500));
        assert_eq!(tail(100, &long).last_json(), LastLine::TooLong);
        let seven = LastLine::Json(Payload::new("7").unwrap());
        assert_eq!(tail(100, &format!("{long}\n7")).last_json(), seven);
    }

    /// Heartbeats run among the other tasks.
    #[tokio::test]
    async fn others_get_their_turns_while_many_lines_are_shown() {
        const LINES: usize = 4_000;
        let text = &*Box::leak("\n".repeat(LINES).into_boxed_str());
        let reading = read(text.as_bytes(), Tail::new(10), Some("job".to_owned()));
        let mut turns = 0;
        while !reading.is_finished() {
            turns += 1;
            tokio::task::yield_now().await;
        }
        assert!(turns > LINES / 256, "{turns}");
    }

    #[test]
    fn the_last_lines_are_kept() {
        let text: String = (0..1_000).map(|line| format!("line {line}\n")).collect();
        assert_eq!(tail(100, &text).last_lines(2), "line 998\nline 999");
    }
}
