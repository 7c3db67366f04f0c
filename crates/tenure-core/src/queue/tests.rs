//! The machine against a model, against itself replayed, and against its own snapshots.

mod fuzz;
mod generator;
mod invariants;
mod model;
mod rules;
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

/// What came of a command, for its caller and for everyone.
fn applied(queue: &mut Queue, command: Command) -> (Answer, Vec<Event>) {
    let mut events = Vec::new();
    let answer = queue.apply(command, &mut events);
    (answer, events)
}

#[test]
fn a_snapshot_has_every_job_as_it_is_shown() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let (mut generator, mut queue) = (Generator::new(seed), Queue::new(seed));
        for _ in 0..COMMANDS {
            let command = generator.command(&queue);
            generator.follow(&applied(&mut queue, command).0);
        }
        let snapshot = String::from_utf8(queue.encode()).unwrap();
        let mut lines = snapshot
            .lines()
            .filter(|line| line.starts_with(r#"{"job":"#));
        for job in queue
            .page(&Filter::default(), PageStart::After(0), 1_000)
            .jobs
        {
            let line = lines.next().expect("every job has a line");
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let shown = serde_json::to_value(&job).unwrap();
            assert_eq!(line["job"][0], shown);
            let fields = shown.as_object().expect("a job is shown as an object");
            kinds.extend(fields.keys().cloned());
        }
        assert_eq!(lines.next(), None);
    }
    // All that a job can have, but what no snapshot has.
    assert_eq!(kinds.len(), 23, "{kinds:?}");
}

#[test]
fn the_machine_agrees_with_the_model_on_every_answer_event_and_query() {
    for_seeds(|seed| {
        let mut generator = match seed % 4 {
            0 => Generator::with_large(seed),
            _ => Generator::new(seed),
        };
        let mut queue = Queue::new(seed);
        let mut model = Model::default();
        for number in 0..COMMANDS {
            let command = generator.command(&queue);
            let said = format!("command {number}: {command:?}");
            let expected = model.apply(command.clone());
            let outcome = applied(&mut queue, command);
            assert_eq!(outcome, expected, "{said}");
            queue.check_invariants();
            compare_queries(&queue, &model, &mut generator, &said);
            generator.follow(&outcome.0);
        }
    });
}

fn compare_queries(queue: &Queue, model: &Model, generator: &mut Generator, said: &str) {
    let views = model.views();
    let everything = queue.page(&Filter::default(), PageStart::After(0), usize::MAX);
    assert_eq!(everything.jobs, views, "{said}");
    assert_eq!(
        queue.queues().collect::<Vec<_>>(),
        model.queue_views(),
        "{said}"
    );
    let (mut in_pages, mut last) = (Vec::new(), None);
    while let [view, ..] = &queue.queues_behind(last.as_ref(), 1)[..] {
        last = Some(view.name.clone());
        in_pages.push(view.clone());
    }
    assert_eq!(in_pages, model.queue_views(), "{said}");
    assert_eq!(queue.queues_len(), in_pages.len());
    assert_eq!(
        queue.schedules().collect::<Vec<_>>(),
        model.schedules.values().collect::<Vec<_>>()
    );
    for view in &views {
        assert_eq!(queue.job(&view.id).as_ref(), Some(view));
        assert_eq!(queue.remnant(&view.id), None);
    }
    assert_eq!(queue.remnants().ids, model.remnants.len() as u64, "{said}");
    for left in &model.remnants {
        let (found, view) = (
            queue.remnant(&left.view.id).expect("it is left"),
            &left.view,
        );
        assert_eq!(queue.job(&view.id), None, "{said}");
        assert_eq!(
            (found.state, found.changed_at, &found.result, &found.queue),
            (view.state, view.changed_at, &view.result, &view.queue)
        );
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
        (&queues[..0], &types),
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

fn compare_pages(queue: &Queue, views: &[Job], generator: &mut Generator) {
    let filter = generator.filter();
    let limit = 1 + usize::try_from(generator.below(5)).unwrap();
    // From less than one job to all of them.
    let bytes_max = usize::try_from(generator.below(5_000)).unwrap();
    // Portions end on any job, wanted or not.
    let portion = 1 + usize::try_from(generator.below(8)).unwrap();
    let mut expected: Vec<&Job> = views
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
    for start in [PageStart::After(0), PageStart::Before(u64::MAX)] {
        let mut found = Vec::new();
        let mut from = start;
        loop {
            let mut reading = PageReader::new(filter.clone(), from, limit, bytes_max);
            reading.portion = portion;
            while queue.read_on(&mut reading) {}
            let page = reading.into_page();
            assert!(page.jobs.len() <= limit);
            let bytes: usize = page.jobs.iter().map(Job::json_bytes).sum();
            assert!(bytes <= bytes_max || page.jobs.len() <= 1);
            for job in &page.jobs {
                let json = serde_json::to_string(job).unwrap();
                assert!(json.len() <= job.json_bytes(), "{json}");
            }
            found.extend(page.jobs);
            assert_eq!(
                page.next.is_some(),
                found.len() < expected.len(),
                "{filter:?}"
            );
            match (page.next, start) {
                (None, _) => break,
                (Some(next), PageStart::After(_)) => from = PageStart::After(next),
                (Some(next), PageStart::Before(_)) => from = PageStart::Before(next),
            }
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?}");
        expected.reverse();
    }
}

/// The lock is held for one portion, so that this is what a list costs everyone else.
#[test]
fn a_snapshot_costs_what_it_writes_however_many_types_there_are() {
    const JOBS: usize = 6_000;
    /// How many shelves each piece looks at beside its own jobs', until all of them are known.
    const BESIDE: usize = 1_024 + 8;
    let looked = |types: usize| {
        let mut story = stories::Story::new();
        let jobs = (0..JOBS).map(|number| {
            let job = format!(r#"{{"type":"t{}"}}"#, number % types);
            serde_json::from_str(&job).unwrap()
        });
        story.act(Action::Submit(jobs.collect()));
        story.queue.begin_snapshot();
        let (mut all, mut written) = (0, Vec::new());
        loop {
            let before = shelves::looks();
            let Some(piece) = story.queue.snapshot_chunk(16 * 1024) else {
                break;
            };
            let looked = shelves::looks() - before;
            let lines = piece.iter().filter(|&&byte| byte == b'\n').count();
            assert!(
                looked <= 3 * lines + BESIDE,
                "{looked} looks for {lines} lines of {types} types"
            );
            all += looked;
            written.extend(piece);
        }
        assert_eq!(written, story.queue.encode());
        all
    };
    let few = looked(1);
    for types in [60, 600, JOBS] {
        let many = looked(types);
        assert!(
            many <= few + JOBS + types,
            "{few} looks with one type, {many} with {types}"
        );
    }
}

#[test]
fn a_page_of_many_queues_looks_at_what_is_on_it() {
    const QUEUES: usize = 3_000;
    let mut story = stories::Story::new();
    let jobs: Vec<String> = (0..3 * QUEUES)
        .map(|number| {
            let job_type = ["one", "other", "third"][number / QUEUES];
            let later = if number % 10 == 3 {
                r#","delay_ms":60000"#
            } else {
                ""
            };
            format!(
                r#"{{"queue":"q{}","type":"{job_type}"{later}}}"#,
                number % QUEUES
            )
        })
        .collect();
    let jobs = jobs.iter().map(|job| serde_json::from_str(job).unwrap());
    story.act(Action::Submit(jobs.collect()));
    let all = Filter::default();
    let state = |state| Filter {
        state: Some(state),
        ..Filter::default()
    };
    let filters = [
        (all, 100, 101),
        (state(State::Ready), 100, 101),
        (state(State::Scheduled), 100, 101),
        (state(State::Dead), 0, 0),
    ];
    for (filter, found, looked) in filters {
        for from in [
            PageStart::After(0),
            PageStart::After(4_000),
            PageStart::Before(u64::MAX),
        ] {
            let mut reading = PageReader::new(filter.clone(), from, 100, usize::MAX);
            assert!(!story.queue.read_on(&mut reading));
            assert_eq!(reading.looked(), looked, "{filter:?} {from:?}");
            assert_eq!(reading.into_page().jobs.len(), found);
        }
    }
    // Of one type in all queues others are passed over, a portion at a time.
    let third = Filter {
        job_type: Some(JobType::new("third").unwrap()),
        ..Filter::default()
    };
    let mut reading = PageReader::new(third, PageStart::After(0), 10, usize::MAX);
    for portion in 1..=3 {
        assert!(story.queue.read_on(&mut reading));
        assert_eq!(reading.looked(), portion * PageReader::PORTION as u64);
    }
    assert!(!story.queue.read_on(&mut reading));
    let page = reading.into_page();
    assert_eq!((page.jobs.len(), page.next), (10, Some(6_010)));
}

/// A property that never meets a case proves nothing about it.
#[test]
fn random_commands_reach_every_answer_and_event() {
    let mut reached = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        for _ in 0..COMMANDS {
            let command = generator.command(&queue);
            let (answer, events) = applied(&mut queue, command);
            reached.extend(events.iter().map(kind));
            reached.extend(kinds(&answer));
            generator.follow(&answer);
        }
    }
    // 23 kinds of event; 4 answers to a submit, 1 to a completion, 3 to a failure, 2 to a release, 2 to a cancel,
    // 1 each to a retry, to a move and to a forget; 3 refusals, and 3 more ways to lose a claim. A lease that ran out is no
    // matter of commands.
    assert_eq!(reached.len(), 44, "{reached:#?}");
}

/// Its first word.
fn kind(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    let end = text.find(|character: char| !character.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

/// What came of each item, in which way.
fn kinds(answer: &Answer) -> Vec<String> {
    fn of<T: std::fmt::Debug, E: std::fmt::Debug>(name: &str, items: &[Item<T, E>]) -> Vec<String> {
        let kind = |item: &Item<T, E>| match &item.outcome {
            Ok(done) => format!("{name}: {}", kind(done)),
            Err(why) => kind(why),
        };
        items.iter().map(kind).collect()
    }
    match answer {
        Answer::Submitted(jobs) => jobs
            .iter()
            .map(|job| format!("submitted: {:?}", job.status))
            .collect(),
        Answer::Completed(items) => of("completed", items),
        Answer::Failed(items) => of("failed", items),
        Answer::Released(items) => of("released", items),
        Answer::Cancelled(items) => of("cancelled", items),
        Answer::Retried(items) => of("retried", items),
        Answer::Moved(items) => of("moved", items),
        Answer::Forgotten(items) => of("forgotten", items),
        _ => Vec::new(),
    }
}

#[test]
fn a_replay_of_the_log_gives_the_same_answers_and_events_and_the_same_state() {
    for_seeds(|seed| {
        let mut generator = Generator::new(seed);
        let mut queue = Queue::new(seed);
        let mut log = Vec::new();
        let mut history = Vec::new();
        for _ in 0..COMMANDS {
            let command = generator.command(&queue);
            log.push(serde_json::to_string(&command).unwrap());
            let outcome = applied(&mut queue, command);
            generator.follow(&outcome.0);
            history.push(outcome);
        }
        // Another process: another seed for its tables.
        let mut replayed = Queue::new(!seed);
        for (line, outcome) in log.iter().zip(&history) {
            assert!(!line.contains('\n'));
            let again = applied(&mut replayed, serde_json::from_str(line).unwrap());
            assert_eq!(&again, outcome, "{line}");
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
            let outcome = applied(&mut queue, command.clone());
            assert_eq!(applied(&mut twin, command), outcome);
            generator.follow(&outcome.0);
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
            generator.follow(&applied(&mut queue, command).0);
        }
        assert!(compared > 3, "only {compared} snapshots were finished");
    });
}

#[test]
fn settings_and_schedules_come_in_pieces_like_jobs() {
    const PIECE_BYTES: usize = 16 * 1024;
    const PAYLOAD_BYTES: usize = 250 * 1024;
    let mut queue = Queue::new(1);
    let mut apply = |action| drop(applied(&mut queue, Command { at: 1, action }));
    for number in 0..40 {
        let payload = "x".repeat(PAYLOAD_BYTES);
        let spec = serde_json::from_value(serde_json::json!({
            "cron": "0 0 1 1 *", "job": {"queue": "q", "type": "t", "payload": payload},
        }));
        let name = ScheduleName::new(format!("s{number:02}")).unwrap();
        apply(Action::SetSchedule(name, Box::new(spec.unwrap()), Some(9)));
    }
    for number in 0..5_000 {
        apply(Action::Pause(QueueName::new(format!("q{number}")).unwrap()));
    }
    let expected = queue.encode();
    queue.begin_snapshot();
    let (mut taken, mut pieces) = (Vec::new(), 0);
    while let Some(piece) = queue.snapshot_chunk(PIECE_BYTES) {
        assert!(piece.len() < PIECE_BYTES + PAYLOAD_BYTES + 1_024);
        // What changes meanwhile is not in it.
        let name = QueueName::new(format!("later{pieces}")).unwrap();
        let action = Action::Pause(name);
        applied(&mut queue, Command { at: 1, action });
        taken.extend(piece);
        pieces += 1;
    }
    assert!(pieces > 40, "{pieces}");
    assert_eq!(text(&taken), text(&expected));
    assert_eq!(text(&restored(&taken, 1_000).encode()), text(&expected));
}

#[test]
fn a_snapshot_of_many_shelves_is_that_of_its_moment() {
    let mut queue = Queue::new(1);
    let submit = |from: u32, to: u32| {
        let jobs = from..to;
        let jobs = jobs.map(|number| {
            let submission = serde_json::from_value(serde_json::json!({
                "queue": format!("q{}", number % 7), "type": format!("t{number}"), "payload": null,
            }));
            submission.unwrap()
        });
        let action = Action::Submit(jobs.collect());
        Command { at: 1, action }
    };
    // More shelves than are looked at with one piece.
    applied(&mut queue, submit(0, 3_000));
    let expected = queue.encode();
    queue.begin_snapshot();
    let (mut taken, mut number) = (Vec::new(), 3_000);
    while let Some(piece) = queue.snapshot_chunk(500) {
        taken.extend(piece);
        // Jobs that come, and jobs that move to another shelf, the oldest first.
        applied(&mut queue, submit(number, number + 3));
        number += 3;
        let request = serde_json::from_value(serde_json::json!({
            "worker": "w", "max": 5, "lease_ms": 1_000, "nonce": 1,
        }));
        let action = Action::Claim(request.unwrap());
        applied(&mut queue, Command { at: 1, action });
    }
    assert_eq!(text(&taken), text(&expected));
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
