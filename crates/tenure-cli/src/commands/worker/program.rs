//! One run of a worker's program: payload in, result out, and nothing of it left afterwards.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tenure_client::{Failure, Job, Payload};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::commands::guard::THIS_PROGRAM;
use crate::output;

/// How much of a program's standard output is kept: the last line is the result, if it fits.
const OUTPUT_KEPT: usize = 256 * 1024;

/// How much of its standard error is kept with a failed job. The server cuts errors at 2 KiB.
const ERROR_KEPT: usize = 1_800;

/// How many lines of it.
const ERROR_LINES: usize = 20;

/// How long to read on after the program has ended: whoever else holds the other end is killed, or has left
/// the process group, and may stay for ever.
const READ_ON: Duration = Duration::from_secs(1);

/// The longest line of a program that is shown in one piece.
const LINE_SHOWN_MAX: usize = 8 * 1024;

/// What to run for each job.
pub(super) struct Program {
    pub(super) command: Vec<OsString>,
    pub(super) kill_after: Duration,
}

impl Program {
    /// Runs the program for a job. If this is dropped, the program and its group are killed.
    pub(super) async fn run(&self, job: Job<Payload>) -> Result<Option<Payload>, Failure> {
        let mut child = self.start(&job)?;
        let group = Group::of(&child);
        let input = child.stdin.take();
        let printed = Tail::new(OUTPUT_KEPT);
        let complained = Tail::new(ERROR_KEPT);
        let readers = [
            child
                .stdout
                .take()
                .map(|pipe| read(pipe, printed.clone(), None)),
            child.stderr.take().map(|pipe| {
                let name = job.id.to_string();
                read(pipe, complained.clone(), Some(name))
            }),
        ];
        let payload = job.payload.as_str().as_bytes().to_vec();
        let feeding = tokio::spawn(async move {
            if let Some(mut input) = input {
                // A program that does not want its payload closes the pipe.
                let _ = input.write_all(&payload).await;
            }
        });
        let status = self.wait(&mut child, &group, &job).await;
        // What the program has left behind would hold its pipes open.
        drop(group);
        feeding.abort();
        for reader in readers.into_iter().flatten() {
            let abort = reader.abort_handle();
            if timeout(READ_ON, reader).await.is_err() {
                abort.abort();
            }
        }
        let status = status?;
        match status.success() {
            true => Ok(printed.last_json()),
            false => Err(failure(status, &complained)),
        }
    }

    fn start(&self, job: &Job<Payload>) -> Result<Child, Failure> {
        // The span of this run if this program records it, which is a child of the job's own.
        let (parent, state) = match tenure_client::current_span() {
            Some((parent, state)) => (Some(parent), state),
            None => (job.traceparent, job.tracestate.clone()),
        };
        // By way of `__exec`, which binds the program's life to that of this process.
        let mut command = std::process::Command::new(THIS_PROGRAM);
        command
            .arg0("tenure")
            .arg("__exec")
            .arg(std::process::id().to_string())
            .arg("--")
            .args(&self.command)
            .env("TENURE_JOB_ID", job.id.as_str())
            .env("TENURE_JOB_TYPE", job.job_type.as_str())
            .env("TENURE_QUEUE", job.queue.as_str())
            .env("TENURE_ATTEMPT", job.attempt.to_string())
            .env("TENURE_MAX_ATTEMPTS", job.max_attempts.to_string())
            // Those of this process are about something else.
            .env_remove("TRACEPARENT")
            .env_remove("TRACESTATE")
            .envs(parent.map(|parent| ("TRACEPARENT", parent.to_string())))
            .envs(state.map(|state| ("TRACESTATE", state.to_string())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Out of reach of Ctrl-C, which the terminal sends to the worker's group.
            .process_group(0);
        Command::from(command)
            .spawn()
            .map_err(|error| Failure::from(format!("cannot start the program: {error}")))
    }

    /// Waits for the end. A program that is to stop is told, and killed if it does not.
    async fn wait(
        &self,
        child: &mut Child,
        group: &Group,
        job: &Job<Payload>,
    ) -> Result<ExitStatus, Failure> {
        let cannot = |error| Failure::from(format!("cannot wait for the program: {error}"));
        let reason = tokio::select! {
            status = child.wait() => return status.map_err(cannot),
            reason = job.cancelled() => reason,
        };
        tracing::debug!(id = %job.id, ?reason, "stopping the program");
        group.send(Signal::TERM);
        match timeout(self.kill_after, child.wait()).await {
            Ok(status) => status.map_err(cannot),
            Err(_) => {
                group.send(Signal::KILL);
                child.wait().await.map_err(cannot)
            }
        }
    }
}

/// Why it failed, in the program's own last words.
fn failure(status: ExitStatus, complained: &Tail) -> Failure {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended without an exit code".to_owned(),
    };
    let words = complained.last_lines(ERROR_LINES);
    match words.is_empty() {
        true => Failure::from(how),
        false => Failure::from(format!("{how}: {words}")),
    }
}

/// A process group, killed when this is dropped.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        Self(pid.and_then(Pid::from_raw))
    }

    fn send(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // An error means that nobody is left in it.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send(Signal::KILL);
    }
}

/// The last of what a program wrote.
#[derive(Clone)]
struct Tail(Arc<Mutex<Kept>>);

struct Kept {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// The beginning was thrown away.
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
        // Twice the size before it is cut: each byte is moved once on average.
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
    fn last_json(&self) -> Option<Payload> {
        let (text, is_cut) = self.text();
        let text = text.trim_end();
        let line = match text.rfind('\n') {
            Some(end) => &text[end + 1..],
            None if is_cut => return None,
            None => text,
        };
        Payload::new(line.trim()).ok()
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
                output::raw_to_stderr(format!("{name}: {indent}{words}").trim_end());
                output::raw_to_stderr("\n");
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
                }
                if byte != b'\n' {
                    line.push(byte);
                }
            }
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
    fn the_last_line_is_the_result_if_it_is_json() {
        let result = |text: &str| {
            tail(100, text)
                .last_json()
                .map(|json| json.as_str().to_owned())
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
        assert_eq!(tail(100, &long).last_json(), None);
        assert!(tail(100, &format!("{long}\n7")).last_json().is_some());
    }

    #[test]
    fn the_last_lines_are_kept() {
        let text: String = (0..1_000).map(|line| format!("line {line}\n")).collect();
        assert_eq!(tail(100, &text).last_lines(2), "line 998\nline 999");
    }
}
