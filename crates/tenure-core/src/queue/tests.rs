//! The machine against a model, against itself replayed, and against its own snapshots.

mod fuzz;
mod generator;
mod invariants;
mod model;
pub(super) mod stories;

use super::*;
use crate::{JobId, JobType, QueueName, ScheduleName};
use generator::Generator;
use model::Model;

/// Long enough for every kind of command to meet every kind of state.
const COMMANDS: usize = 300;

/// How many seeds run with every build; `TENURE_SEEDS`, set when the tests are built, runs more.
const SEEDS: u64 = 12;

/// Runs a property for many seeds and names the one that fails.
fn for_seeds(property: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let seeds = option_env!("TENURE_SEEDS")
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEEDS);
    for seed in 0..seeds {
        if let Err(panic) = std::panic::catch_unwind(|| property(seed)) {
            let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            panic!("seed {seed}: {message}");
        }
    }
}

#[test]
fn a_snapshot_has_every_job_as_it_is_shown() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let (mut generator, mut queue) = (Generator::new(seed), Queue::new(seed));
        for _ in 0..COMMANDS {
            let command = generator.command(&queue);
            generator.follow(&queue.apply(command));
        }
        let snapshot = String::from_utf8(queue.encode()).unwrap();
        let mut lines = snapshot
            .lines()
            .filter(|line| line.starts_with(r#"{"job":"#));
        for job in queue.page(&Filter::default(), Place::After(0), 1_000).jobs {
            let shown = serde_json::to_string(&job).unwrap();
            let line = lines.next().expect("every job has a line");
            assert!(
                line.starts_with(&format!(r#"{{"job":[{shown},{{"content":"#)),
                "{line}\n{shown}"
            );
            let serde_json::Value::Object(fields) = serde_json::to_value(&job).unwrap() else {
                panic!("a job is shown as an object");
            };
            kinds.extend(fields.into_iter().map(|(name, _)| name));
        }
        assert_eq!(lines.next(), None);
    }
    // All that a job can have, but what no snapshot has.
    assert_eq!(kinds.len(), 23, "{kinds:?}");
}

#[test]
fn the_machine_agrees_with_the_model_on_every_event_and_query() {
    for_seeds(|seed| {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        let mut model = Model::default();
        for number in 0..COMMANDS {
            let command = generator.command(&queue);
            let said = format!("command {number}: {command:?}");
            let expected = model.apply(command.clone());
            let events = queue.apply(command);
            assert_eq!(events, expected, "{said}");
            queue.check_invariants();
            compare_queries(&queue, &model, &mut generator, &said);
            generator.follow(&events);
        }
    });
}

fn compare_queries(queue: &Queue, model: &Model, generator: &mut Generator, said: &str) {
    let views = model.views();
    let everything = queue.page(&Filter::default(), Place::After(0), usize::MAX);
    assert_eq!(everything.jobs, views, "{said}");
    assert_eq!(
        queue.queues().collect::<Vec<_>>(),
        model.queue_views(),
        "{said}"
    );
    assert_eq!(
        queue.schedules().collect::<Vec<_>>(),
        model.schedules.values().collect::<Vec<_>>()
    );
    for view in &views {
        assert_eq!(queue.job(&view.id).as_ref(), Some(view));
    }
    let due = views
        .iter()
        .filter(|view| view.state == State::Scheduled)
        .map(|view| view.run_at);
    assert_eq!(queue.due_at(), due.min());
    for number in 0..3 {
        let name = generator::queue_name(number);
        let oldest = views
            .iter()
            .find(|view| view.queue == name && view.state == State::Ready && !view.blocked);
        assert_eq!(queue.oldest_ready(&name).as_ref(), oldest);
    }
    let queues = [generator::queue_name(generator.below(4))];
    let types = [generator::job_type(generator.below(4))];
    for (queues, types) in [
        (&queues[..0], &types[..0]),
        (&queues, &types[..0]),
        (&queues, &types),
    ] {
        let claimable = queue
            .claimable_at(queues, types)
            .is_some_and(|at| at <= model.now);
        assert_eq!(
            claimable,
            model.next_claim(queues, types).is_some(),
            "{said}"
        );
    }
    compare_pages(queue, &views, generator);
}

fn compare_pages(queue: &Queue, views: &[JobView], generator: &mut Generator) {
    let filter = generator.filter();
    let limit = 1 + usize::try_from(generator.below(5)).unwrap();
    let mut expected: Vec<&JobView> = views
        .iter()
        .filter(|view| {
            filter.state.is_none_or(|state| view.state == state)
                && filter.queue.as_ref().is_none_or(|name| view.queue == *name)
                && filter
                    .job_type
                    .as_ref()
                    .is_none_or(|name| view.job_type == *name)
        })
        .collect();
    for start in [Place::After(0), Place::Before(u64::MAX)] {
        let mut found = Vec::new();
        let mut from = start;
        loop {
            let page = queue.page(&filter, from, limit);
            assert!(page.jobs.len() <= limit);
            found.extend(page.jobs);
            assert_eq!(
                page.next.is_some(),
                found.len() < expected.len(),
                "{filter:?}"
            );
            match (page.next, start) {
                (None, _) => break,
                (Some(next), Place::After(_)) => from = Place::After(next),
                (Some(next), Place::Before(_)) => from = Place::Before(next),
            }
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?}");
        expected.reverse();
    }
}

/// A property that never meets a case proves nothing about it.
#[test]
fn random_commands_reach_every_event() {
    let mut reached = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        for _ in 0..COMMANDS {
            let command = generator.command(&queue);
            let events = queue.apply(command);
            for event in &events {
                let event = serde_json::to_value(event).unwrap();
                let code = event
                    .pointer("/refusal/code")
                    .or(event.pointer("/reason/code"))
                    .map(ToString::to_string);
                reached.insert((event["event"].to_string(), code));
            }
            generator.follow(&events);
        }
    }
    // 21 kinds of event that stand alone, 5 refusals, 3 ways to lose a claim (an expired lease is the
    // fourth, and no matter of commands).
    assert_eq!(reached.len(), 29, "{reached:#?}");
}

#[test]
fn a_replay_of_the_log_gives_the_same_events_and_the_same_state() {
    for_seeds(|seed| {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        let mut log = Vec::new();
        let mut history = Vec::new();
        for _ in 0..COMMANDS {
            let command = generator.command(&queue);
            log.push(serde_json::to_string(&command).unwrap());
            let events = queue.apply(command);
            generator.follow(&events);
            history.push(events);
        }
        // Another process: another seed for its tables.
        let mut replayed = Queue::new(!seed);
        for (line, events) in log.iter().zip(&history) {
            assert!(!line.contains('\n'));
            assert_eq!(
                &replayed.apply(serde_json::from_str(line).unwrap()),
                events,
                "{line}"
            );
        }
        assert_eq!(text(&replayed.encode()), text(&queue.encode()));
    });
}

#[test]
fn a_restored_snapshot_equals_its_state_and_goes_on_alike() {
    for_seeds(|seed| {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        let mut twin = Queue::new(!seed);
        for _ in 0..COMMANDS {
            if generator.one_in(20) {
                let before = queue.encode();
                twin = restored(&before, 1 + generator.below(200));
                twin.check_invariants();
                assert_eq!(text(&twin.encode()), text(&before));
            }
            let command = generator.command(&queue);
            let events = queue.apply(command.clone());
            assert_eq!(twin.apply(command), events);
            generator.follow(&events);
        }
        assert_eq!(text(&twin.encode()), text(&queue.encode()));
    });
}

#[test]
fn a_snapshot_taken_among_commands_shows_the_moment_it_was_begun() {
    for_seeds(|seed| {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        let mut expected = Vec::new();
        let mut taken: Option<Vec<u8>> = None;
        let mut compared = 0;
        for _ in 0..2 * COMMANDS {
            if taken.is_none() && generator.one_in(5) {
                expected = queue.encode();
                queue.begin_snapshot();
                taken = Some(Vec::new());
            }
            let bytes_max = usize::try_from(1 + generator.below(1_500)).unwrap();
            if let Some(bytes) = &mut taken
                && generator.one_in(2)
            {
                match queue.snapshot_chunk(bytes_max) {
                    Some(chunk) => bytes.extend(chunk),
                    None => {
                        assert_eq!(text(bytes), text(&expected));
                        taken = None;
                        compared += 1;
                    }
                }
            }
            let command = generator.command(&queue);
            let events = queue.apply(command);
            generator.follow(&events);
        }
        assert!(compared > 3, "only {compared} snapshots were finished");
    });
}

/// Rebuilt from pieces of any size.
fn restored(bytes: &[u8], piece: u64) -> Queue {
    let mut restore = Restore::new(piece);
    for piece in bytes.chunks(usize::try_from(piece).unwrap()) {
        restore.feed(piece).unwrap();
    }
    restore.finish().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
