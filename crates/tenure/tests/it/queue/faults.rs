//! Answers that are lost, at every step: each submit is stored once, and each claim goes to one worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::core::queue::{Claimed, State, SubmitStatus};
use tenure::queue::{Config, Error, Options};
use tenure::store::Key;
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Fault, Faults, Faulty};
use tenure::store::wrap::metered::Operation;
use tokio::task::JoinSet;

use super::stage::{claim, done, id, ids, job, node_on, open, open_with, worker};
use crate::support::{PATIENCE, namespace};

#[tokio::test]
async fn whatever_happens_to_a_commit_it_happens_once() {
    let faults = [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Late(Duration::from_millis(50)),
        Fault::Duplicate,
        Fault::Retry,
        Fault::Refuse,
    ];
    for fault in faults {
        let namespace = namespace();
        let store = Faulty::new(Arc::new(Memory::new()), Faults::default(), 1).unwrap();
        let store = Arc::new(store);
        let node = node_on(store.clone(), &namespace, "a", PATIENCE, None).await;
        let queue = open(&node).await;
        // The term record has place 1; a submit, a claim and a completion follow.
        for seq in 2..=4 {
            let place = Key::new(format!("{namespace}/queue/log/{seq:020}")).unwrap();
            store.script(Operation::Put, &place, fault.clone()).unwrap();
        }
        let submitted = queue.submit(vec![job("a")]).await.unwrap();
        let created = SubmitStatus::Created;
        assert_eq!(submitted[0].status, created, "{fault:?}");
        let claimed = claim(&queue, worker("w")).await;
        assert_eq!(
            (ids(&claimed), claimed[0].attempt),
            (vec!["a"], 1),
            "{fault:?}"
        );
        let completed = queue.complete(vec![done(&claimed[0])]).await.unwrap();
        assert_eq!(completed[0].outcome, Ok(()), "{fault:?}");
        store.settled().await;
        node.shutdown().await;
    }
}

/// Everything at once, and callers that do what they are told: send it again.
#[tokio::test]
async fn chaos_loses_nothing_and_doubles_nothing() {
    let namespace = namespace();
    let memory = Arc::new(Memory::new());
    let store = Arc::new(Faulty::new(memory.clone(), Faults::default(), 7).unwrap());
    let node = node_on(store.clone(), &namespace, "a", PATIENCE, None).await;
    let options = Options {
        log: Config {
            patience: Duration::from_millis(50),
            request_timeout: Duration::from_millis(200),
            snapshot_bytes_min: 4_096,
            ..Config::default()
        },
        ..Options::default()
    };
    let queue = open_with(&node, options).await;
    let faults = Faults {
        answer_lost: 0.1,
        request_lost: 0.05,
        refused: 0.05,
        ..Faults::default()
    };
    store.set_faults(faults).unwrap();
    let ran: Arc<Mutex<BTreeMap<String, Vec<u32>>>> = Arc::default();
    let mut callers = JoinSet::new();
    for caller in 0..4 {
        let (queue, ran) = (queue.clone(), ran.clone());
        callers.spawn(async move {
            for number in 0..25 {
                let name = format!("{caller}-{number}");
                while let Err(error) = queue.submit(vec![job(&name)]).await {
                    again(&error).await;
                }
                let mut short = worker(&caller.to_string());
                short.lease_ms = 500;
                let jobs = match queue.claim(short.waiting(Duration::from_secs(1))).await {
                    Ok(jobs) => jobs,
                    Err(error) => {
                        again(&error).await;
                        continue;
                    }
                };
                for job in jobs {
                    note(&ran, &job);
                    while let Err(error) = queue.complete(vec![done(&job)]).await {
                        again(&error).await;
                    }
                }
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    store.set_faults(Faults::default()).unwrap();
    store.settled().await;
    // Every job is there, and no attempt was handed out twice.
    super::stage::served(&queue).await;
    for caller in 0..4 {
        for number in 0..25 {
            let name = format!("{caller}-{number}");
            let job = queue.job(&id(&name)).unwrap();
            let job = job.unwrap_or_else(|| panic!("{name} is lost"));
            let attempts = ran.lock().unwrap().get(&name).cloned().unwrap_or_default();
            assert!(
                attempts.len() <= job.attempt as usize,
                "{name}: {attempts:?}"
            );
            assert!(attempts.is_sorted_by(|a, b| a < b), "{name}: {attempts:?}");
            assert_ne!(job.state, State::Dead);
        }
    }
    let counts = queue.queue(&job("a").queue).unwrap().unwrap().counts;
    let all = counts.scheduled + counts.ready + counts.running + counts.completed;
    assert_eq!(all, 100, "{counts:?}");
    node.shutdown().await;
}

fn note(ran: &Mutex<BTreeMap<String, Vec<u32>>>, job: &Claimed) {
    let mut ran = ran.lock().unwrap();
    ran.entry(job.id.to_string()).or_default().push(job.attempt);
}

/// What an error tells a caller to do: send it again, after a moment.
async fn again(error: &Error) {
    assert!(
        !matches!(error, Error::Invalid { .. } | Error::Corrupt { .. }),
        "{error:?}"
    );
    tokio::time::sleep(Duration::from_millis(10)).await;
}
