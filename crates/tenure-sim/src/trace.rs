//! What happened, as text. The end is kept for reading a failure; the digest proves that a seed always gives the same
//! run.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

/// How many lines are kept by default.
const LINES_MAX: usize = 4000;

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    lines: VecDeque<String>,
    lines_max: usize,
    digest: u64,
    count: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            lines: VecDeque::new(),
            lines_max: LINES_MAX,
            digest: 0,
            count: 0,
        }
    }
}

impl Trace {
    /// Keeps at least this many lines.
    pub fn keep(&mut self, lines: usize) {
        self.lines_max = self.lines_max.max(lines);
    }

    /// Adds a line.
    pub fn say(&mut self, at: Duration, who: &str, what: &str) {
        let mut line = String::with_capacity(who.len() + what.len() + 16);
        // Writing to a string cannot fail.
        let _ = write!(line, "{:>11.6} {who:<6} {what}", at.as_secs_f64());
        for byte in line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.count += 1;
        if self.lines.len() >= self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The last lines.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        let skipped = self.lines.len().saturating_sub(lines);
        let tail: Vec<&str> = self
            .lines
            .iter()
            .skip(skipped)
            .map(String::as_str)
            .collect();
        tail.join("\n")
    }

    /// A hash of the whole trace: equal traces have equal digests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest ^ self.count
    }
}
