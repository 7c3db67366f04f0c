//! Output: data goes to stdout, everything else to stderr.
//!
//! Text that comes from elsewhere (a broker's error message, a file name) is shown with control characters escaped,
//! so that no one else can control the user's terminal.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{stderr, times};

/// Data for stdout.
///
/// A reader that has gone away, as in `tenure … | head -1`, wants no more: that is not a failure, and the rest is
/// dropped. Any other failure is kept for [`Data::finish`], since a report that did not arrive must not look like
/// success.
#[derive(Debug)]
pub(crate) struct Data {
    /// The error of the first write that did not succeed.
    failed: Option<io::Error>,
}

impl Data {
    pub(crate) fn new() -> Self {
        Self { failed: None }
    }

    /// Writes at once, so that a reader follows along.
    pub(crate) fn write(&mut self, text: &str) {
        if self.failed.is_some() {
            return;
        }
        let mut stdout = io::stdout().lock();
        self.failed = stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .err();
    }

    /// Whether writing more is useless: the reader is gone, or writes fail.
    pub(crate) fn is_over(&self) -> bool {
        self.failed.is_some()
    }

    /// Succeeds if all data was written, or as much as the reader wanted.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self.failed {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

/// A line on the terminal that shows the progress of long work. Does nothing if stderr is not a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
    last: Mutex<Option<Instant>>,
}

impl Progress {
    /// How often the line may change.
    const EVERY: Duration = Duration::from_millis(100);

    pub(crate) fn new() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
            last: Mutex::new(None),
        }
    }

    /// Updates the line, unless it was just updated. It has to fit on one line of any terminal.
    pub(crate) fn show(&self, line: impl FnOnce() -> String) {
        if !self.is_shown {
            return;
        }
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| now - last >= Self::EVERY) {
            *last = Some(now);
            raw_to_stderr(&format!("\r\x1b[2K{}", line()));
        }
    }

    pub(crate) fn clear(&self) {
        if self.is_shown {
            raw_to_stderr("\r\x1b[2K");
        }
    }
}

/// Whether stderr is for programs: one JSON object per line, in the format of the log.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on everything on stderr is JSON lines.
pub(crate) fn tell_in_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// A line for programs, if stderr is for programs: `level` and `fields` as in the log.
pub(crate) fn event(level: &str, fields: &serde_json::Value) -> Option<String> {
    if !IS_JSON.load(Ordering::Relaxed) {
        return None;
    }
    Some(event_line(level, fields))
}

fn event_line(level: &str, fields: &serde_json::Value) -> String {
    let event = serde_json::json!({
        "timestamp": times::stamp(),
        "level": level,
        "fields": fields,
        "target": "tenure",
    });
    format!("{event}\n")
}

/// Whether to use colours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

/// How to highlight a word.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Style {
    Good,
    Bad,
    Doubtful,
    Faint,
    Strong,
}

impl Paint {
    /// No colours.
    #[cfg(test)]
    pub(crate) const OFF: Self = Self { on: false };

    /// Colours if the stream is a terminal and the user has not disabled them (<https://no-color.org>).
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Self {
            on: stream.is_terminal() && !no_color && !dumb,
        }
    }

    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    pub(crate) fn apply(self, style: Style, text: &str) -> String {
        if !self.on {
            return text.to_owned();
        }
        let code = match style {
            Style::Good => "32",
            Style::Bad => "1;31",
            Style::Doubtful => "33",
            Style::Faint => "2",
            Style::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// An error with a hint.
#[derive(Debug)]
pub(crate) struct Hinted {
    error: Box<dyn std::error::Error + Send + Sync>,
    hint: Cow<'static, str>,
}

impl Hinted {
    pub(crate) fn new(
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            error: error.into(),
            hint: hint.into(),
        }
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl std::error::Error for Hinted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Prints an error: what happened, why, and what to do about it.
pub(crate) fn error(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    let fields = serde_json::json!({
        "message": error.to_string(),
        "causes": causes,
        "hint": error.chain().find_map(hint_of),
    });
    if let Some(line) = event("ERROR", &fields) {
        return raw_to_stderr(&line);
    }
    raw_to_stderr(&error_text(error, Paint::of(&io::stderr())));
}

/// Prints a note.
pub(crate) fn note(text: &str) {
    say(Style::Strong, "note", text);
}

/// Prints a warning: something went wrong without changing the answer.
pub(crate) fn warning(text: &str) {
    say(Style::Doubtful, "warning", text);
}

/// Warns about a file with a secret that everybody on this host can read.
pub(crate) fn warn_if_open_to_others(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |found| found.permissions().mode());
    if mode & 0o006 != 0 {
        let path = path.display();
        warning(&format!(
            "every user of this host can read the secret in {path}: run chmod 600 {path}"
        ));
    }
}

/// Prints what to do next.
pub(crate) fn hint(text: &str) {
    say(Style::Strong, "hint", text);
}

/// Writes text to stderr unchanged. In a verb that runs for long, does not wait for the reader; see [`stderr`].
pub(crate) fn raw_to_stderr(text: &str) {
    stderr::write(text.as_bytes());
}

/// Formats rows as columns, two spaces apart. The last column has no fixed width.
pub(crate) fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            line += cell;
            // The last column is not padded. Padding is added here since a format's width is limited to 65,535.
            if column + 1 < COLUMNS {
                line += &" ".repeat(width - cell.chars().count() + 2);
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A count with its noun: `1 job`, `2 jobs`. Only for nouns whose plural ends in `s`.
pub(crate) fn counted(count: impl fmt::Display, one: &str) -> String {
    match count.to_string().as_str() {
        "1" => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

/// Text from elsewhere, on one line, without anything that a terminal would act on.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if index > 0 {
            safe.push(' ');
        }
        for character in line.chars() {
            match character {
                '"' | '\'' | '\\' => safe.push(character),
                _ => safe.extend(character.escape_debug()),
            }
        }
    }
    safe
}

/// An error on one line: its last line that is not empty. A stack trace ends with what happened.
pub(crate) fn last_line(error: &str) -> String {
    let says = |line: &&str| line.contains(char::is_alphanumeric);
    printable(error.lines().rev().find(says).unwrap_or(error))
}

fn say(style: Style, label: &str, text: &str) {
    let level = if label == "warning" { "WARN" } else { "INFO" };
    if let Some(line) = event(level, &serde_json::json!({ "message": text })) {
        return raw_to_stderr(&line);
    }
    raw_to_stderr(&line(Paint::of(&io::stderr()), style, label, text));
}

fn line(paint: Paint, style: Style, label: &str, text: &str) -> String {
    let label = paint.apply(style, &format!("{label}:"));
    format!("{label} {}\n", printable(text))
}

/// Many libraries repeat the cause in their own message; text that a line already contains is not repeated.
fn error_text(error: &anyhow::Error, paint: Paint) -> String {
    let mut said = error.to_string();
    let mut text = line(paint, Style::Bad, "error", &said);
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !said.contains(&cause) {
            text += &line(paint, Style::Bad, "caused by", &cause);
            said = cause;
        }
    }
    if let Some(hint) = error.chain().find_map(hint_of) {
        text += &line(paint, Style::Strong, "hint", hint);
    }
    text
}

fn hint_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a str> {
    if let Some(error) = error.downcast_ref::<tenure_store::Error>() {
        return Some(error.hint());
    }
    if let Some(tenure::queue::Error::Invalid { hint, .. }) = error.downcast_ref() {
        return Some(hint);
    }
    match error.downcast_ref() {
        Some(tenure::queue::Error::Newer { .. }) => {
            return Some("run a version of tenure that is at least as new as the brokers");
        }
        Some(tenure::queue::Error::Diverged { .. }) => {
            return Some(
                "nothing is lost: run the version of tenure that wrote the log, and report this as a bug",
            );
        }
        _ => {}
    }
    if let Some(error) = error.downcast_ref::<tenure_client::Error>() {
        return client_hint(error);
    }
    error.downcast_ref::<Hinted>().map(|error| &*error.hint)
}

fn client_hint(error: &tenure_client::Error) -> Option<&str> {
    use tenure_client::Error;
    use tenure_client::api::Code;
    match error {
        Error::Unavailable { source, .. } if source.code.is_none() => {
            Some("start a broker with `tenure serve`, or name one with --server or TENURE_SERVER")
        }
        Error::Unavailable { .. } => Some("try again later, or with a longer --timeout"),
        Error::Unknown { .. } => Some("check whether it was done, then try again"),
        // The broker's own hint is for programs that send headers.
        Error::Denied(problem) if problem.code == Code::Unauthorized => {
            Some("set TENURE_API_TOKEN to a token of this broker, or name a file with --token-file")
        }
        Error::Denied(_) => error
            .hint()
            .or(Some("give a token with --token-file or TENURE_API_TOKEN")),
        Error::Broken { .. } => Some("check that --server names a tenure broker"),
        _ => error.hint(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let said = [0, 1, 2, 11].map(|count| counted(count, "shard"));
        assert_eq!(said, ["0 shards", "1 shard", "2 shards", "11 shards"]);
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("connection refused")
            .context("sending failed: connection refused")
            .context("cannot open the store");
        assert_eq!(
            error_text(&error, Paint::OFF),
            "error: cannot open the store\ncaused by: sending failed: connection refused\n"
        );
    }

    #[test]
    fn a_store_error_brings_its_cause_and_hint() {
        let error = anyhow::Error::from(tenure_store::Error::Refused {
            doing: "opening the bucket".to_owned(),
            hint: "create it".to_owned(),
            source: "no such bucket".into(),
        });
        assert_eq!(
            error_text(&error.context("cannot start"), Paint::OFF),
            "error: cannot start\n\
             caused by: opening the bucket was refused; nothing was written\n\
             caused by: no such bucket\n\
             hint: create it\n"
        );
    }

    #[test]
    fn columns_line_up_and_lines_end_with_a_word() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["a", "node", "x"]), row(["long", "é", ""])];
        assert_eq!(table(&rows), "a     node  x\nlong  é\n");
    }

    #[test]
    fn foreign_text_cannot_drive_the_terminal() {
        assert_eq!(
            printable("<a>\r\n  it's \"b\\c\"\x1b[2J\u{202e}\n"),
            "<a> it's \"b\\c\"\\u{1b}[2J\\u{202e}"
        );
    }
}
