//! Group commit: one write at a time, and an answer for everyone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::log::{Config, Error, Handle, Machine, Position, Record, Writer};
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind, Outage};
use tenure::store::wrap::metered::Operation;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::world::{Memo, World, lines};

struct Running {
    world: World,
    faulty: Arc<Faulty>,
    handle: Handle<Memo>,
    writer: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
}

async fn running(config: Config, faults: Faults) -> Running {
    let world = World::memory();
    let faulty = Arc::new(Faulty::new(world.store.clone(), Faults::default(), 1).unwrap());
    let (log, machine) = world.through(faulty.clone()).lead(1, config).await.unwrap();
    faulty.set_faults(faults).unwrap();
    let stop = CancellationToken::new();
    let (handle, writer) = Writer::new(log, machine, stop.clone());
    let writer = tokio::spawn(writer.run());
    Running {
        world,
        faulty,
        handle,
        writer,
        stop,
    }
}

fn send(handle: &Handle<Memo>, text: &str) -> JoinHandle<Result<u64, Error>> {
    let (handle, line) = (handle.clone(), lines(&[text]).remove(0));
    tokio::spawn(async move {
        handle
            .commit(line)
            .await
            .map(|answered| answered.position.0)
    })
}

async fn answer(caller: JoinHandle<Result<u64, Error>>) -> Result<u64, Error> {
    let answered = timeout(Duration::from_secs(3600), caller).await;
    answered.expect("every caller gets an answer").unwrap()
}

async fn until_hung(faulty: &Faulty, count: u64) {
    while faulty.injected()[&Kind::Hung] < count {
        yield_now().await;
    }
}

fn latency(milliseconds: u64) -> Faults {
    let delay = Duration::from_millis(milliseconds);
    Faults {
        delayed: 1.0,
        delay: delay..=delay,
        ..Faults::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_arrives_while_a_commit_is_in_flight_is_the_next_batch() {
    let running = running(Config::default(), latency(30)).await;
    // Independent arrivals, one every millisecond, 30 per commit.
    let mut callers = Vec::new();
    for number in 0..2_000 {
        let handle = running.handle.clone();
        callers.push(tokio::spawn(async move {
            let started = Instant::now();
            handle.commit(format!("{number}")).await.unwrap();
            started.elapsed()
        }));
        sleep(Duration::from_millis(1)).await;
    }
    let mut waits = Vec::new();
    for caller in callers {
        waits.push(caller.await.unwrap());
    }
    let statistics = running.handle.statistics();
    assert_eq!((statistics.records, statistics.in_flight_max), (2_000, 1));
    assert!((60..=70).contains(&statistics.commits), "{statistics:?}");
    // One commit may be in flight, then comes one's own; timers have ticks of a millisecond.
    let longest = waits.into_iter().max().unwrap();
    assert!(longest <= Duration::from_millis(65), "{longest:?}");
    assert_eq!(running.world.replay().await.unwrap().records.len(), 2_000);
}

#[tokio::test(start_paused = true)]
async fn batches_are_bounded_in_bytes_and_records() {
    let config = Config {
        batch_bytes_max: 100,
        batch_records_max: 4,
        ..Config::default()
    };
    let running = running(config, Faults::default()).await;
    running.faulty.set_outage(Outage::Hanging);
    // Three of 40 bytes do not fit together, ten of 2 do.
    let wide = "x".repeat(39);
    let texts: Vec<String> = (0..10)
        .map(|number| {
            if number < 3 {
                wide.clone()
            } else {
                number.to_string()
            }
        })
        .collect();
    let callers: Vec<_> = texts
        .iter()
        .map(|text| {
            let (handle, text) = (running.handle.clone(), text.clone());
            tokio::spawn(async move { handle.commit(text).await })
        })
        .collect();
    yield_now().await;
    running.faulty.set_outage(Outage::Over);
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    // 2 wide; 1 wide and 3; 4.
    assert_eq!(running.handle.statistics().commits, 3);
    let error = running.handle.commit("x".repeat(100)).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    running.handle.commit("x".repeat(99)).await.unwrap();
    for bad in ["", "a\nb", "a\0b"] {
        let error = running.handle.commit(bad).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[tokio::test]
async fn beyond_the_backlog_callers_are_turned_away() {
    let config = Config {
        backlog_records_max: 3,
        ..Config::default()
    };
    let running = running(config, Faults::default()).await;
    running.faulty.set_outage(Outage::Hanging);
    let first = send(&running.handle, "in flight");
    until_hung(&running.faulty, 1).await;
    let waiting: Vec<_> = ["a", "b", "c"]
        .map(|text| send(&running.handle, text))
        .into();
    while running.handle.statistics().waiting < 3 {
        yield_now().await;
    }
    let error = answer(send(&running.handle, "d")).await.unwrap_err();
    assert!(
        matches!(error, Error::Overloaded { records: 3, .. }),
        "{error:?}"
    );
    assert_eq!(running.handle.statistics().turned_away, 1);
    running.faulty.set_outage(Outage::Over);
    answer(first).await.unwrap();
    for caller in waiting {
        answer(caller).await.unwrap();
    }
    answer(send(&running.handle, "e")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_interval_spaces_commits_out() {
    let config = Config {
        commit_interval: Duration::from_secs(1),
        ..Config::default()
    };
    let running = running(config, Faults::default()).await;
    let started = Instant::now();
    answer(send(&running.handle, "at once")).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(10));
    for round in 1..=3 {
        let callers: Vec<_> = ["a", "b", "c"]
            .map(|text| send(&running.handle, text))
            .into();
        for caller in callers {
            answer(caller).await.unwrap();
        }
        let elapsed = started.elapsed().as_millis();
        assert!(
            (round * 1000..round * 1000 + 50).contains(&elapsed),
            "{elapsed}"
        );
    }
    assert_eq!(running.handle.statistics().commits, 4);
}

#[tokio::test]
async fn a_caller_that_goes_away_loses_nothing() {
    let running = running(Config::default(), Faults::default()).await;
    running.faulty.set_outage(Outage::Hanging);
    let in_flight = send(&running.handle, "a");
    until_hung(&running.faulty, 1).await;
    let waiting = send(&running.handle, "b");
    while running.handle.statistics().waiting < 1 {
        yield_now().await;
    }
    in_flight.abort();
    waiting.abort();
    running.faulty.set_outage(Outage::Over);
    assert_eq!(answer(send(&running.handle, "c")).await.unwrap(), 3);
    assert_eq!(
        running.world.replay().await.unwrap().records,
        lines(&["a", "b", "c"])
    );
}

#[tokio::test]
async fn shutdown_commits_what_was_taken_and_takes_no_more() {
    let running = running(Config::default(), Faults::default()).await;
    running.faulty.set_outage(Outage::Hanging);
    let first = send(&running.handle, "a");
    until_hung(&running.faulty, 1).await;
    let second = send(&running.handle, "b");
    while running.handle.statistics().waiting < 1 {
        yield_now().await;
    }
    let handle = running.handle.clone();
    let shutdown = tokio::spawn(async move { handle.shutdown().await });
    yield_now().await;
    let late = answer(send(&running.handle, "late")).await.unwrap_err();
    assert!(matches!(late, Error::Stopped), "{late:?}");
    running.faulty.set_outage(Outage::Over);
    assert_eq!(answer(first).await.unwrap(), 1);
    assert_eq!(answer(second).await.unwrap(), 2);
    shutdown.await.unwrap();
    running.writer.await.unwrap().unwrap();
    assert_eq!(
        running.world.replay().await.unwrap().records,
        lines(&["a", "b"])
    );
}

#[tokio::test]
async fn the_writer_ends_with_its_last_handle() {
    let Running {
        world,
        handle,
        writer,
        ..
    } = running(Config::default(), Faults::default()).await;
    answer(send(&handle, "a")).await.unwrap();
    drop(handle.clone());
    answer(send(&handle, "b")).await.unwrap();
    drop(handle);
    writer.await.unwrap().unwrap();
    assert_eq!(world.replay().await.unwrap().records, lines(&["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn when_leadership_ends_everyone_is_told_what_is_known() {
    let running = running(Config::default(), Faults::default()).await;
    running.faulty.set_outage(Outage::Hanging);
    let in_flight = send(&running.handle, "a");
    until_hung(&running.faulty, 1).await;
    let waiting = send(&running.handle, "b");
    yield_now().await;
    running.stop.cancel();
    let error = answer(in_flight).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    let error = answer(waiting).await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    let ended = running.writer.await.unwrap();
    assert!(matches!(ended, Err(Error::Unknown { .. })), "{ended:?}");
    let error = answer(send(&running.handle, "c")).await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn the_commit_in_flight_may_end_when_leadership_does() {
    let running = running(Config::default(), latency(30)).await;
    let in_flight = send(&running.handle, "a");
    sleep(Duration::from_millis(10)).await;
    let waiting = send(&running.handle, "b");
    yield_now().await;
    running.stop.cancel();
    assert_eq!(answer(in_flight).await.unwrap(), 1);
    let error = answer(waiting).await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    running.writer.await.unwrap().unwrap();
    assert_eq!(running.world.replay().await.unwrap().records, lines(&["a"]));
}

#[tokio::test]
async fn a_replaced_leader_answers_everyone_and_ends() {
    let running = running(Config::default(), Faults::default()).await;
    answer(send(&running.handle, "a")).await.unwrap();
    running.faulty.set_outage(Outage::Hanging);
    let in_flight = send(&running.handle, "b");
    until_hung(&running.faulty, 1).await;
    let waiting = send(&running.handle, "c");
    while running.handle.statistics().waiting < 1 {
        yield_now().await;
    }
    running.world.lead(2, Config::default()).await.unwrap();
    running.faulty.set_outage(Outage::Over);
    let error = answer(in_flight).await.unwrap_err();
    assert!(matches!(error, Error::Fenced), "{error:?}");
    let error = answer(waiting).await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    let ended = running.writer.await.unwrap();
    assert!(matches!(ended, Err(Error::Fenced)), "{ended:?}");
    assert_eq!(running.world.replay().await.unwrap().records, lines(&["a"]));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_failed_is_told_and_the_next_one_is_committed() {
    let config = Config {
        patience: Duration::from_millis(500),
        ..Config::default()
    };
    let running = running(config, Faults::default()).await;
    running.faulty.set_outage(Outage::Refusing);
    let callers: Vec<_> = ["a", "b"].map(|text| send(&running.handle, text)).into();
    for caller in callers {
        let error = answer(caller).await.unwrap_err();
        assert!(
            matches!(error, Error::Store(_)) && error.is_not_applied(),
            "{error:?}"
        );
    }
    running.faulty.set_outage(Outage::Over);
    assert_eq!(answer(send(&running.handle, "c")).await.unwrap(), 1);
    assert_eq!(running.world.replay().await.unwrap().records, lines(&["c"]));
}

#[tokio::test]
async fn a_writer_that_is_aborted_leaves_nobody_waiting() {
    let running = running(Config::default(), Faults::default()).await;
    running.faulty.set_outage(Outage::Hanging);
    let in_flight = send(&running.handle, "a");
    until_hung(&running.faulty, 1).await;
    let waiting = send(&running.handle, "b");
    while running.handle.statistics().waiting < 1 {
        yield_now().await;
    }
    running.writer.abort();
    let error = answer(in_flight).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    let error = answer(waiting).await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    running.handle.shutdown().await;
}

/// Panics at one record.
struct Fragile;

impl Machine for Fragile {
    type Command = Record;
    type Answer = ();
    type Error = Infallible;
    fn apply(&mut self, _: Position, record: Record) {
        assert_ne!(record.as_ref(), b"\"poison\"");
    }
    fn replay(&mut self, _: Position, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }
    fn reset(&mut self) {}
    fn restore(&mut self, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }
    fn begin_snapshot(&mut self) {}
    fn snapshot_chunk(&mut self, _: usize) -> Option<Bytes> {
        None
    }
}

#[tokio::test]
async fn a_machine_that_panics_leaves_nobody_waiting() {
    let world = World::memory();
    let (log, _) = world.lead(1, Config::default()).await.unwrap();
    let (handle, writer) = Writer::new(log, Fragile, CancellationToken::new());
    let writer = tokio::spawn(writer.run());
    handle.commit("1").await.unwrap();
    // It is committed; what the machine would have said is not known.
    let error = handle.commit("\"poison\"").await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(writer.await.unwrap_err().is_panic());
    let error = handle.commit("2").await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    assert!(
        handle.read(|_| ()).is_err(),
        "half a record may have been applied"
    );
}

#[tokio::test]
async fn reading_shows_what_is_committed_and_nothing_else() {
    let running = running(Config::default(), Faults::default()).await;
    answer(send(&running.handle, "a")).await.unwrap();
    let place = running.world.place(3);
    running
        .faulty
        .script(Operation::Put, &place, Fault::Hang)
        .unwrap();
    let caller = send(&running.handle, "b");
    until_hung(&running.faulty, 1).await;
    let records = || {
        running
            .handle
            .read(|machine| machine.records.clone())
            .unwrap()
    };
    assert_eq!(records(), lines(&["a"]));
    running.faulty.release();
    answer(caller).await.unwrap();
    assert_eq!(records(), lines(&["a", "b"]));
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_with_every_reason() {
    let world = World::memory();
    let config = Config {
        batch_bytes_max: 9 * 1024 * 1024,
        batch_records_max: 0,
        segment_bytes_max: 0,
        request_timeout: Duration::ZERO,
        ..Config::default()
    };
    let error = world.lead(1, config).await.unwrap_err();
    let text = error.to_string();
    for name in [
        "batch_bytes_max",
        "batch_records_max",
        "segment_bytes_max",
        "request_timeout",
    ] {
        assert!(text.contains(name), "{text}");
    }
}
