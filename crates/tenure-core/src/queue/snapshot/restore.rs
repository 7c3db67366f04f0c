//! The other way: a queue from its snapshot.
//!
//! The bytes are those that were written, which is for the log's checksums to say. Whether they fit together is
//! looked at here, since every index is rebuilt from what each line says of itself: a job that is in the
//! wrong place would be one that nobody ever claims, or that two do.

use tenure_api::strict;

use super::super::kept::{Hidden, rebuilt};
use super::super::machine::{Queue, finished_place};
use super::super::remnants::Remnant;
use super::super::rules::Rules;
use super::super::shelves::Class;
use super::super::{Job, State};
use super::{End, FORMAT, Header, Line, RemnantLine};
use crate::JobId;
use crate::record::shown;

/// No counter comes so far, whatever a queue lives through; what stands above it is damage.
const COUNTER_MAX: u64 = u64::MAX / 2;

/// A snapshot that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the snapshot {problem}")]
pub struct SnapshotError {
    /// Counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: String,
}

/// Rebuilds a queue from its snapshot, piece by piece.
#[derive(Debug)]
pub struct Restore {
    queue: Queue,
    /// The start of a line whose end is still to come.
    rest: Vec<u8>,
    lines: u64,
    header: Option<Header>,
    jobs: u64,
    /// The sequence number of the last job.
    last: u64,
    ended: bool,
}

impl Restore {
    /// Starts. The seed is that of [`Queue::new`].
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            queue: Queue::new(seed),
            rest: Vec::new(),
            lines: 0,
            header: None,
            jobs: 0,
            last: 0,
            ended: false,
        }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let mut bytes = bytes;
        while let Some(end) = line_end(bytes) {
            let (line, following) = (&bytes[..end], &bytes[end + 1..]);
            bytes = following;
            self.lines += 1;
            let outcome = if self.rest.is_empty() {
                self.line(line)
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.line(&whole)
            };
            outcome.map_err(|problem| SnapshotError {
                line: self.lines,
                problem,
            })?;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// Jobs read so far, and jobs in all once the first line was read.
    #[must_use]
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.jobs, self.header.as_ref().map(|header| header.jobs))
    }

    /// The queue, if the snapshot was whole.
    pub fn finish(self) -> Result<Queue, SnapshotError> {
        if self.ended && self.rest.is_empty() {
            return Ok(self.queue);
        }
        let line = self.lines + 1;
        Err(SnapshotError {
            line,
            problem: "is missing: it ends too early".to_owned(),
        })
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let line: Line = strict::from_slice(line)
            .map_err(|error| format!("cannot be read: {}", shown(&error)))?;
        if self.ended {
            return Err("comes after the end".to_owned());
        }
        if self.header.is_none() != matches!(line, Line::Header(_)) {
            return Err("is not where the header belongs".to_owned());
        }
        match line {
            Line::Header(header) => return self.header(header),
            Line::Settings(settings) => self.queue.settings = settings,
            Line::Queue(line) => self.queue.change_queue(&line.name, |queue| {
                queue.paused = line.paused;
                queue.options = line.options;
                queue.bucket = line.bucket;
            }),
            Line::Schedule(schedule) => {
                if schedule.paused && schedule.next.is_some() {
                    return Err(format!(
                        "has the next slot of {}, which is paused",
                        schedule.name
                    ));
                }
                self.queue.schedules.insert(*schedule);
            }
            Line::Job(view, hidden) => return self.job(*view, &hidden),
            Line::Remnant(line) => return self.remnant(line),
            Line::End(End { jobs }) => {
                if jobs != self.jobs
                    || self
                        .header
                        .as_ref()
                        .is_some_and(|header| header.jobs != jobs)
                {
                    return Err(format!("ends {jobs} jobs after {} were read", self.jobs));
                }
                let (said, read) = (
                    self.header.as_ref().map_or(0, |header| header.remnants),
                    self.queue.remnants.len() as u64,
                );
                if said != read {
                    return Err(format!("ends after {read} remnants, and there are {said}"));
                }
                if let Some(job) = stuck(&self.queue) {
                    return Err(format!(
                        "ends with {job} waiting for a turn that never comes"
                    ));
                }
                self.ended = true;
            }
        }
        Ok(())
    }

    fn header(&mut self, header: Header) -> Result<(), String> {
        if header.format != FORMAT {
            return Err(format!(
                "is of format {}; this program reads {FORMAT}",
                header.format
            ));
        }
        if !header.rules.are_known() {
            return Err(format!(
                "was written under rules {}; this program knows them up to {}",
                header.rules,
                Rules::LATEST
            ));
        }
        let counters = [
            header.sequence,
            header.claims,
            header.finishes,
            header.revision,
            header.completed,
        ];
        if counters.iter().any(|&counter| counter > COUNTER_MAX) {
            return Err("counts further than any queue does".to_owned());
        }
        if header
            .setting_back
            .is_some_and(|back| back.last > header.sequence)
        {
            return Err("sets jobs back that are not there".to_owned());
        }
        self.queue.rules = header.rules;
        self.queue.setting_back = header.setting_back;
        self.queue.now = header.now;
        self.queue.sequence = header.sequence;
        self.queue.claims = header.claims;
        self.queue.finishes = header.finishes;
        self.queue.completed = header.completed;
        self.queue.revision = header.revision;
        self.header = Some(header);
        Ok(())
    }

    fn job(&mut self, view: Job, hidden: &Hidden) -> Result<(), String> {
        let queue = &mut self.queue;
        if queue.find(&view.id).is_some() {
            return Err(format!("has the job {} again", view.id));
        }
        // In the order of the log, so none is there twice.
        if view.sequence <= self.last || view.sequence > queue.sequence {
            return Err(format!(
                "has the impossible sequence number {}",
                view.sequence
            ));
        }
        let place = hidden
            .finish
            .map(|finish| finish_is_free(queue, &view, finish));
        if !place.unwrap_or(!view.state.is_finished()) {
            return Err(format!(
                "is {} and in finishing order {:?}",
                view.state, hidden.finish
            ));
        }
        if !view.state.is_finished()
            && queue
                .holder_of_key(&view.queue, view.unique_key.as_ref())
                .is_some()
        {
            return Err("has a unique key that another job holds".to_owned());
        }
        check_attempts(&view)?;
        check_turn(queue, &view)?;
        let sequence = view.sequence;
        let job = rebuilt(view, hidden, queue)?;
        queue.insert(job);
        (self.jobs, self.last) = (self.jobs + 1, sequence);
        Ok(())
    }
}

impl Restore {
    fn remnant(&mut self, line: RemnantLine) -> Result<(), String> {
        let queue = &mut self.queue;
        if queue.find(&line.id).is_some() || queue.find_remnant(&line.id).is_some() {
            return Err(format!("has the id {} again", line.id));
        }
        let Some(class) = finished_class(line.state) else {
            return Err(format!("is left of a job that is {}", line.state));
        };
        let remnant = Remnant {
            id: line.id,
            content: line.content,
            changed_at: line.changed_at,
            number: 0,
            queue: queue.queues.take(&line.queue),
            job_type: queue.types.take(&line.job_type),
            class,
            result: line.result,
            last_end: line.ended,
            said: line.said,
        };
        queue.insert_remnant(remnant);
        Ok(())
    }
}

/// The class of jobs that ended so; none if they have not.
fn finished_class(state: State) -> Option<Class> {
    match state {
        State::Completed => Some(Class::Completed),
        State::Cancelled => Some(Class::Cancelled),
        State::Dead => Some(Class::Dead),
        _ => None,
    }
}

/// What is to run has an attempt left, and what runs is in one.
fn check_attempts(view: &Job) -> Result<(), String> {
    let (attempt, most) = (view.attempt, view.max_attempts);
    let possible = match view.state {
        State::Scheduled | State::Ready => attempt < most,
        State::Running => (1..=most).contains(&attempt),
        State::Completed | State::Cancelled | State::Dead => attempt <= most,
    };
    if possible {
        return Ok(());
    }
    Err(format!("is {} in attempt {attempt} of {most}", view.state))
}

/// Of a group, the first may be claimed, or one runs: never both, and never two.
fn check_turn(queue: &Queue, view: &Job) -> Result<(), String> {
    let Some(key) = &view.group else {
        return if view.blocked {
            Err("waits for its turn in no group".to_owned())
        } else {
            Ok(())
        };
    };
    let before = queue
        .queues
        .find(&view.queue)
        .and_then(|queue_handle| queue.groups.find(queue_handle, key));
    let Some(group) = before.map(|group| &queue.groups[group]) else {
        return Ok(());
    };
    let out_of_turn = match view.state {
        State::Ready => !view.blocked,
        State::Running => group.open.is_some() || group.running.is_some(),
        _ => false,
    };
    if out_of_turn {
        return Err("has a turn that another of its group has".to_owned());
    }
    Ok(())
}

/// Whether it is a number that was given out, and to no other.
fn finish_is_free(queue: &Queue, view: &Job, finish: u64) -> bool {
    let Some(class) = finished_class(view.state) else {
        return false;
    };
    (1..=queue.finishes).contains(&finish)
        && !queue.finished[finished_place(class)].contains_key(&finish)
}

/// Where the first line ends. `contains` compares words instead of bytes: a payload may make a line a hundred thousand
/// bytes long, and a broker that takes over waits for this.
fn line_end(bytes: &[u8]) -> Option<usize> {
    const CHUNK: usize = 256;
    let mut chunks = bytes.chunks(CHUNK).enumerate();
    let (number, chunk) = chunks.find(|(_, chunk)| chunk.contains(&b'\n'))?;
    let within = chunk.iter().position(|&byte| byte == b'\n')?;
    Some(number * CHUNK + within)
}

/// A job that waits in a group in which nobody has a turn.
fn stuck(queue: &Queue) -> Option<&JobId> {
    let firsts = queue.groups.iter().filter_map(|(handle, group)| {
        let has_turn = group.open.is_some() || group.running.is_some();
        queue.groups.first(handle).filter(|_| !has_turn)
    });
    firsts
        .map(|job| &queue.jobs[job])
        .find(|job| job.class == Class::Blocked)
        .map(|job| &job.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header that fits to two jobs, and the jobs.
    fn snapshot(jobs: [&str; 2]) -> String {
        let common = r#""queue":"q","type":"t","payload":null,"priority":0,"created_at":1,"run_at":1,"changed_at":1"#;
        let header = r#"{"header":{"format":1,"now":9,"sequence":5,"claims":3,"finishes":3,"revision":0,"jobs":2}}"#;
        let mut text = format!("{header}\n");
        for (place, job) in jobs.iter().enumerate() {
            let (shown, hidden) = job.split_once('|').unwrap();
            let attempts = if shown.contains("attempt") {
                ""
            } else {
                r#","attempt":1,"max_attempts":3"#
            };
            let line = format!(
                r#"{{"job":[{{"id":"j{place}",{common},{shown}{attempts}}},{{"content":1{hidden}}}]}}"#
            );
            text += &format!("{line}\n");
        }
        text + "{\"end\":{\"jobs\":2}}\n"
    }

    fn read(text: &str) -> Result<Queue, String> {
        let mut restore = Restore::new(1);
        let fed = restore.feed(text.as_bytes());
        fed.map_err(|error| error.to_string())?;
        restore.finish().map_err(|error| error.to_string())
    }

    const READY: &str = r#""sequence":1,"state":"ready"|"#;

    #[track_caller]
    fn refused(second: &str, problem: &str) {
        let error = read(&snapshot([READY, second])).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }

    #[test]
    fn jobs_that_fit_are_taken() {
        let running =
            r#""sequence":2,"state":"running","worker":"w","lease_ms":5|,"token":"1-00000001""#;
        read(&snapshot([READY, running])).unwrap();
    }

    #[test]
    fn a_paused_schedule_has_no_next_slot() {
        let with = |next: &str| {
            let spec = r#"{"cron":"@daily","timezone":"UTC","job":{"type":"t"},"missed":"once"}"#;
            let line = format!(
                r#"{{"schedule":{{"name":"s","spec":{spec},"revision":0,"next":{next},"last":null,"paused":true}}}}"#
            );
            let second = r#""sequence":2,"state":"ready"|"#;
            let text = snapshot([READY, second]);
            read(&text.replacen('\n', &format!("\n{line}\n"), 1))
        };
        with("null").unwrap();
        let error = with("7").unwrap_err();
        assert!(
            error.contains("the next slot of s, which is paused"),
            "{error}"
        );
    }

    #[test]
    fn one_place_in_the_log_has_one_job() {
        refused(
            r#""sequence":1,"state":"ready"|"#,
            "impossible sequence number 1",
        );
        refused(
            r#""sequence":6,"state":"ready"|"#,
            "impossible sequence number 6",
        );
    }

    #[test]
    fn attempts_that_cannot_be_are_refused() {
        let spent = r#""sequence":2,"state":"ready","attempt":3,"max_attempts":3|"#;
        refused(spent, "is ready in attempt 3 of 3");
        let worn =
            r#""sequence":2,"state":"dead","attempt":4294967295,"max_attempts":3|,"finish":1"#;
        refused(worn, "is dead in attempt 4294967295 of 3");
    }

    #[test]
    fn an_end_has_a_number_of_its_own() {
        refused(
            r#""sequence":2,"state":"dead"|,"finish":0"#,
            "in finishing order Some(0)",
        );
        refused(
            r#""sequence":2,"state":"dead"|,"finish":9"#,
            "in finishing order Some(9)",
        );
        refused(
            r#""sequence":2,"state":"ready"|,"finish":1"#,
            "in finishing order Some(1)",
        );
        refused(r#""sequence":2,"state":"dead"|"#, "in finishing order None");
    }

    #[test]
    fn one_of_a_group_has_a_turn_and_somebody_does() {
        let first = r#""sequence":1,"state":"ready","group":"g"|"#;
        let second = r#""sequence":2,"state":"ready","group":"g"|"#;
        let error = read(&snapshot([first, second])).unwrap_err();
        assert!(
            error.contains("a turn that another of its group has"),
            "{error}"
        );
        let blocked = |sequence: u8| {
            format!(r#""sequence":{sequence},"state":"ready","blocked":true,"group":"g"|"#)
        };
        let error = read(&snapshot([&blocked(1), &blocked(2)])).unwrap_err();
        assert!(
            error.contains("waiting for a turn that never comes"),
            "{error}"
        );
        refused(
            r#""sequence":2,"state":"ready","blocked":true|"#,
            "in no group",
        );
        read(&snapshot([first, &blocked(2)])).unwrap();
    }

    #[test]
    fn counters_that_could_not_grow_are_refused() {
        let text =
            snapshot([READY, READY]).replace("\"claims\":3", "\"claims\":18446744073709551615");
        assert!(read(&text).unwrap_err().contains("counts further"));
    }
}
