//! The form with objects: lost answers, late requests, and leaders that wake up late.

use std::sync::Arc;
use std::time::Duration;

use tenure::log::{Config, Error, Log, Writer};
use tenure::store::Store;
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind};
use tenure::store::wrap::metered::Operation;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::suite::tiny;
use super::world::{Memo, World, lines, record, records};

fn faulty(world: &World, faults: Faults) -> (Arc<Faulty>, World) {
    let faulty = Arc::new(Faulty::new(world.store.clone(), faults, 1).unwrap());
    (faulty.clone(), world.through(faulty))
}

async fn until_hung(faulty: &Faulty) {
    while faulty.injected()[&Kind::Hung] == 0 {
        tokio::task::yield_now().await;
    }
}

/// Commits until so many snapshots were published, and returns the records.
async fn snapshots(log: Log, machine: Memo, count: u64) -> Vec<String> {
    let mut sent = Vec::new();
    let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
    let writer = tokio::spawn(writer.run());
    while handle.statistics().snapshots < count {
        let line = format!("{{\"filler\":{}}}", sent.len());
        handle.commit(line.clone()).await.unwrap();
        sent.push(line);
        tokio::task::yield_now().await;
    }
    handle.shutdown().await;
    writer.await.unwrap().unwrap();
    sent
}

#[tokio::test(start_paused = true)]
async fn whatever_becomes_of_the_request_a_record_is_committed_once() {
    for fault in [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Late(Duration::ZERO),
        Fault::Late(Duration::from_millis(15)),
        Fault::Late(Duration::from_secs(60)),
        Fault::Duplicate,
        Fault::Retry,
        Fault::Refuse,
        Fault::Delay(Duration::from_millis(30)),
        // Longer than an answer may take.
        Fault::Delay(Duration::from_secs(30)),
    ] {
        let world = World::memory();
        let (faulty, slow) = faulty(&world, Faults::default());
        // The term record suffers it, the origin, and a commit.
        faulty
            .script(Operation::Put, &world.key("origin"), fault.clone())
            .unwrap();
        faulty
            .script(Operation::Put, &world.place(1), fault.clone())
            .unwrap();
        faulty
            .script(Operation::Put, &world.place(3), fault.clone())
            .unwrap();
        let (mut log, _) = slow.lead(1, Config::default()).await.unwrap();
        for text in ["a", "b", "c"] {
            log.commit(&records(&[text])).await.unwrap();
        }
        faulty.settled().await;
        assert_eq!(
            world.replay().await.unwrap().records,
            lines(&["a", "b", "c"]),
            "{fault:?}"
        );
        let (log, _) = world.lead(2, Config::default()).await.unwrap();
        assert_eq!(log.takeover(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_settled_before_the_next_place_is_used() {
    let world = World::memory();
    let (faulty, slow) = faulty(&world, Faults::default());
    let (mut log, _) = slow.lead(1, Config::default()).await.unwrap();
    // Lost again and again, and the reading back fails too.
    for _ in 0..5 {
        faulty
            .script(Operation::Put, &world.place(2), Fault::LoseRequest)
            .unwrap();
        faulty
            .script(Operation::Get, &world.place(2), Fault::Refuse)
            .unwrap();
    }
    let mut commit = tokio::spawn(async move {
        let committed = log.commit(&records(&["a"])).await.unwrap();
        (log, committed)
    });
    tokio::select! {
        biased;
        _ = &mut commit => panic!("settled although nothing was written"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    assert!(world.store.get(&world.place(2)).await.unwrap().is_none());
    let (_, committed) = commit.await.unwrap();
    assert_eq!(committed.seq, 2);
    assert!(world.store.get(&world.place(3)).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_told_to_callers_and_leaves_the_log_open() {
    let world = World::memory();
    let (faulty, slow) = faulty(&world, Faults::default());
    let (mut log, _) = slow.lead(1, Config::default()).await.unwrap();
    faulty.set_outage(tenure::store::wrap::faulty::Outage::Refusing);
    let down = log.commit(&records(&["a"])).await;
    assert!(matches!(down, Err(Error::Store(_))), "{down:?}");
    faulty.set_outage(tenure::store::wrap::faulty::Outage::Over);
    log.commit(&records(&["b"])).await.unwrap();
    assert_eq!(world.replay().await.unwrap().records, lines(&["b"]));
}

/// The place where it would write next was written by others, snapshotted and cleaned up, all while it slept
/// between reading that the place is free and writing to it.
#[tokio::test]
async fn a_candidate_that_slept_through_a_snapshot_cannot_take_over() {
    let world = World::memory();
    let (mut old, _) = world.lead(1, Config::default()).await.unwrap();
    old.commit(&records(&["a"])).await.unwrap();
    let place = world.place(3);

    let (faulty, slow) = faulty(&world, Faults::default());
    faulty.script(Operation::Put, &place, Fault::Hang).unwrap();
    let sleeper = tokio::spawn(async move { slow.lead(2, Config::default()).await });
    until_hung(&faulty).await;
    for text in ["b", "c", "d"] {
        old.commit(&records(&[text])).await.unwrap();
    }
    let (log, machine) = world.lead(3, tiny()).await.unwrap();
    let sent = snapshots(log, machine, 2).await;
    assert!(
        world.store.get(&place).await.unwrap().is_none(),
        "cleaned up"
    );

    faulty.release();
    let woken = sleeper.await.unwrap();
    assert!(matches!(woken, Err(Error::Fenced)), "{woken:?}");
    let expected = [lines(&["a", "b", "c", "d"]), sent].concat();
    assert_eq!(world.replay().await.unwrap().records, expected);
}

#[tokio::test]
async fn a_leader_that_slept_through_clean_up_finds_the_term_record() {
    let world = World::memory();
    let mut sleepers = Vec::new();
    let mut expected = Vec::new();
    for term in 1..=3 {
        let (mut log, _) = world.lead(term, Config::default()).await.unwrap();
        for number in 0..term {
            let text = format!("{term}-{number}");
            log.commit(&[record(&text)]).await.unwrap();
            expected.extend(lines(&[&text]));
        }
        sleepers.push(log);
    }
    let (log, machine) = world.lead(4, tiny()).await.unwrap();
    expected.extend(snapshots(log, machine, 2).await);
    // Of the log behind the snapshots only the term records are left: 1, 3, 6, 10.
    let mut left = Vec::new();
    for seq in 1..=12 {
        if world.store.get(&world.place(seq)).await.unwrap().is_some() {
            left.push(seq);
        }
    }
    assert_eq!(left, [1, 3, 6, 10]);
    for log in &mut sleepers {
        let late = log.commit(&records(&["late"])).await;
        assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
    }
    assert_eq!(world.replay().await.unwrap().records, expected);
}

/// It was committed, everyone who took over has read it, and it is not there any more.
#[tokio::test]
async fn an_answer_that_was_lost_before_clean_up_is_still_answered_truthfully() {
    let world = World::memory();
    let (faulty, slow) = faulty(&world, Faults::default());
    let (mut log, _) = slow.lead(1, Config::default()).await.unwrap();
    faulty
        .script(Operation::Put, &world.place(2), Fault::LoseAnswer)
        .unwrap();
    faulty
        .script(Operation::Get, &world.place(2), Fault::Hang)
        .unwrap();
    let sleeper = tokio::spawn(async move {
        let committed = log.commit(&records(&["a"])).await;
        (committed, log)
    });
    until_hung(&faulty).await;
    let (log, machine) = world.lead(2, tiny()).await.unwrap();
    assert_eq!(machine.records, lines(&["a"]));
    let sent = snapshots(log, machine, 2).await;
    assert!(
        world.store.get(&world.place(2)).await.unwrap().is_none(),
        "cleaned up"
    );

    faulty.release();
    let (committed, mut log) = sleeper.await.unwrap();
    assert_eq!(committed.unwrap().first.0, 1);
    let late = log.commit(&records(&["late"])).await;
    assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
    let expected = [lines(&["a"]), sent].concat();
    assert_eq!(world.replay().await.unwrap().records, expected);
    let (_, machine) = world.lead(3, Config::default()).await.unwrap();
    assert_eq!(machine.records, expected);
}

#[tokio::test]
async fn a_commit_that_lands_late_is_replayed_by_whoever_takes_over() {
    let world = World::memory();
    let (mut old, _) = world.lead(1, Config::default()).await.unwrap();
    let (faulty, slow) = faulty(&world, Faults::default());
    // It has seen that place 2 is free when the commit arrives there.
    faulty
        .script(Operation::Put, &world.place(2), Fault::Hang)
        .unwrap();
    let candidate = tokio::spawn(async move { slow.lead(2, Config::default()).await });
    until_hung(&faulty).await;
    old.commit(&records(&["a"])).await.unwrap();
    old.commit(&records(&["b"])).await.unwrap();
    faulty.release();
    let (mut new, machine) = candidate.await.unwrap().unwrap();
    assert_eq!(machine.records, lines(&["a", "b"]));
    assert!(matches!(
        old.commit(&records(&["late"])).await,
        Err(Error::Fenced)
    ));
    new.commit(&records(&["c"])).await.unwrap();
    assert_eq!(
        world.replay().await.unwrap().records,
        lines(&["a", "b", "c"])
    );
}

#[tokio::test(start_paused = true)]
async fn recovery_reads_ahead() {
    let world = World::memory();
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    for number in 0..2_000 {
        log.commit(&[record(&number.to_string())]).await.unwrap();
    }
    let latency = Duration::from_millis(30);
    let faults = Faults {
        delayed: 1.0,
        delay: latency..=latency,
        ..Faults::default()
    };
    let (_, far) = faulty(&world, faults);
    let start = Instant::now();
    let (_, machine) = far.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records.len(), 2_000);
    // On the clock of the test, which only the latency moves: one by one it would be a minute.
    assert!(
        start.elapsed() < latency * 2_000 / 20,
        "{:?}",
        start.elapsed()
    );
}
