//! stderr for processes that must not wait for its reader.
//!
//! A reader that stalls (a full pipe, Ctrl-S) must not delay heartbeats. So one thread writes, and all others put
//! text into a queue, which takes no time. The queue is bounded: text that does not fit is dropped and counted, and
//! the count is written when there is room again. A guard has no such thread, and may not get one if processes are
//! used up. It writes directly, but waits only a moment, see [`hurry`]. Without [`start`] and [`hurry`], the caller
//! writes text directly, however long that takes.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::{PanicHookInfo, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::output;

mod direct;

/// How much text may wait, in bytes and in pieces.
const BYTES_MAX: usize = 1024 * 1024;
const PIECES_MAX: usize = 10_000;

/// How long the end of the process, or an urgent line, waits for the reader.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// The message of a process that cannot start more threads, with what to do about it.
pub(crate) const NO_THREADS: &str = "the system lets this process start no more threads";
pub(crate) const MORE_THREADS: &str = "end other processes, or raise the limit (ulimit -u, LimitNPROC, TasksMax, the container's pids limit)";

static IS_SHORTAGE_TOLD: AtomicBool = AtomicBool::new(false);

static IS_HURRIED: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Signals that there is something to write, or that everything is written.
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    /// Whether text was taken from the queue and is not written yet.
    is_writing: bool,
}

/// From now on no caller waits for the reader.
pub(crate) fn start() {
    let queue = QUEUE.get_or_init(Queue::default);
    let thread = std::thread::Builder::new().name("stderr".to_owned());
    let started = thread.spawn(move || queue.write_on(&mut io::stderr()));
    if started.is_err() {
        // Without the thread, nothing would write the queue.
        IS_HURRIED.store(true, Ordering::Relaxed);
    }
}

/// From now on panic messages take the same way.
pub(crate) fn tell_panics() {
    set_hook(Box::new(|panic| {
        let text = told(panic);
        let fields = serde_json::json!({ "message": text });
        let line = output::event("ERROR", &fields).filter(|_| !text.is_empty());
        write(line.unwrap_or(text).as_bytes());
    }));
}

/// From now on text is written directly, but waits no longer than [`PATIENCE`]: what the reader does not take by then
/// is lost.
pub(crate) fn hurry() {
    IS_HURRIED.store(true, Ordering::Relaxed);
}

/// Writes text, or queues it for the thread that writes.
pub(crate) fn write(text: &[u8]) {
    match QUEUE.get() {
        _ if IS_HURRIED.load(Ordering::Relaxed) => {
            direct::write(io::stderr().as_fd(), text, PATIENCE);
        }
        Some(queue) => queue.push(text),
        // If this fails, there is nowhere to report it.
        None => drop(io::stderr().lock().write_all(text)),
    }
}

/// Waits until everything is written, but no longer than this. Called at the end of the process.
pub(crate) fn finish(within: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.finish(within);
    }
}

/// Whether a panic came from Tokio because it could not start a thread: then it is not a bug of this program, and the
/// code that needed the thread gets an error.
pub(crate) fn is_shortage(payload: &(dyn Any + Send)) -> bool {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.is_some_and(|text| text.starts_with("OS can't spawn worker thread"))
}

/// The message of a panic, like the standard library's, which would wait for the reader.
fn told(panic: &PanicHookInfo<'_>) -> String {
    if is_shortage(panic.payload()) {
        let was_told = IS_SHORTAGE_TOLD.swap(true, Ordering::Relaxed);
        return if was_told {
            String::new()
        } else {
            format!("warning: {NO_THREADS}: {MORE_THREADS}\n")
        };
    }
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("?"));
    let trace = Backtrace::capture();
    match trace.status() {
        BacktraceStatus::Captured => text += &format!("{trace}"),
        _ => text += "note: set RUST_BACKTRACE=1 to see where it was called from\n",
    }
    text
}

/// A writer for the log. Each event arrives as one piece.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        write(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn push(&self, text: &[u8]) {
        let mut waiting = self.lock();
        if waiting.bytes + text.len() > BYTES_MAX || waiting.pieces.len() >= PIECES_MAX {
            waiting.dropped += 1;
            return;
        }
        waiting.bytes += text.len();
        waiting.pieces.push_back(text.to_vec());
        self.changed.notify_all();
    }

    /// Writes queued text, for ever.
    fn write_on(&self, out: &mut impl Write) {
        loop {
            let (text, dropped) = self.take();
            // If this fails, there is nowhere to report it.
            let _ = out.write_all(&text);
            if dropped > 0 {
                let lost = match dropped {
                    1 => "1 line is missing here: it was".to_owned(),
                    _ => format!("{dropped} lines are missing here: they were"),
                };
                let lost = format!("{lost} not read in time");
                let line = output::event("WARN", &serde_json::json!({ "message": lost }));
                let lost = line.unwrap_or_else(|| format!("warning: {lost}\n"));
                let _ = out.write_all(lost.as_bytes());
            }
            let _ = out.flush();
        }
    }

    /// Waits for something to write. Text counted as dropped came after the text returned with it.
    fn take(&self) -> (Vec<u8>, u64) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        while waiting.pieces.is_empty() {
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_writing = true;
        waiting.bytes = 0;
        let text = waiting.pieces.drain(..).flatten().collect();
        (text, std::mem::take(&mut waiting.dropped))
    }

    fn finish(&self, within: Duration) {
        let until = Instant::now() + within;
        let mut waiting = self.lock();
        while waiting.is_writing || !waiting.pieces.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Plain data, which stays consistent if another thread panics.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message is Tokio's, and may change with it.
    #[test]
    fn a_panic_for_want_of_a_thread_is_told_from_others() {
        let said = |text: &str| -> Box<dyn Any + Send> { Box::new(text.to_owned()) };
        assert!(is_shortage(&*said("OS can't spawn worker thread: no")));
        assert!(!is_shortage(&*said("index out of bounds")));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let queue = Queue::default();
        let line = vec![b'x'; 1000];
        for _ in 0..2000 {
            queue.push(&line);
        }
        let (text, dropped) = queue.take();
        assert_eq!(
            text.len() + usize::try_from(dropped).unwrap() * 1000,
            2_000_000
        );
        assert!(text.len() <= BYTES_MAX && dropped > 0);
        queue.push(b"again\n");
        assert_eq!(queue.take(), (b"again\n".to_vec(), 0));
        for _ in 0..PIECES_MAX + 1 {
            queue.push(b"");
        }
        assert_eq!(queue.take().1, 1);
    }

    #[test]
    fn the_end_waits_for_a_reader_but_not_for_ever() {
        let queue = Queue::default();
        queue.push(b"never read\n");
        queue.finish(Duration::from_millis(20));
        let _ = queue.take();
        assert!(queue.lock().is_writing);
        queue.finish(Duration::from_millis(20));
    }
}
