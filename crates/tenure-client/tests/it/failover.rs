//! Two servers on one store: callers and workers go on when the leader leaves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_client::{
    CancellationToken, Client, Error, Failure, Job, Listing, NewJob, State, Worker,
};
use tenure_server::{Handle, Server};
use tokio::time::{Instant, sleep};

use crate::support::{Broker, PATIENCE, client, config, store_in};

struct Pair {
    first: Handle,
    second: Handle,
    client: Client,
    _folder: tempfile::TempDir,
}

async fn pair() -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let first = Server::start(config(&store)).await.unwrap();
    let second = Server::start(config(&store)).await.unwrap();
    Pair {
        client: client([first.url(), second.url()]),
        first,
        second,
        _folder: folder,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn submits_go_on_when_the_leader_leaves() {
    let Pair {
        first,
        second,
        client,
        _folder,
    } = pair().await;
    let stopped = Arc::new(AtomicUsize::new(0));
    let submitting = tokio::spawn({
        let (client, stopped) = (client.clone(), stopped.clone());
        async move {
            let mut ids = BTreeSet::new();
            // Until a good many were accepted after the leader had left.
            let mut after = 0;
            while after < 20 {
                let submitted = client
                    .submit(NewJob::new("mail", &ids.len()))
                    .await
                    .unwrap();
                ids.insert(submitted.id);
                after += usize::from(stopped.load(Ordering::Relaxed) > 0);
            }
            ids
        }
    });
    sleep(Duration::from_millis(300)).await;
    let (leader, other) = if first.is_serving() {
        (first, second)
    } else {
        (second, first)
    };
    leader.stop().await;
    stopped.store(1, Ordering::Relaxed);
    let ids = submitting.await.unwrap();
    let mut found = BTreeSet::new();
    let mut listing = Listing::new().limit(1_000);
    loop {
        let page = client.jobs(&listing).await.unwrap();
        found.extend(page.jobs.into_iter().map(|job| job.id));
        match page.next {
            Some(next) => listing = listing.from(next),
            None => break,
        }
    }
    assert_eq!(found, ids, "each once, and nothing else");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_when_the_leader_leaves() {
    let Pair {
        first,
        second,
        client,
        _folder,
    } = pair().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let worker = Worker::builder(client.clone())
        .handle("mail", move |job: Job<u32>| {
            let runs = counted.clone();
            async move {
                runs.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(20)).await;
                Ok::<u32, Failure>(job.payload)
            }
        })
        .concurrency(4)
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { worker.run(stop).await.unwrap() }
    });
    let jobs = (0..200_u32).map(|number| NewJob::new("mail", &number));
    client.submit_all(jobs).await.unwrap();
    while runs.load(Ordering::Relaxed) < 20 {
        sleep(Duration::from_millis(5)).await;
    }
    let (leader, other) = if first.is_serving() {
        (first, second)
    } else {
        (second, first)
    };
    leader.stop().await;
    let give_up = Instant::now() + PATIENCE;
    loop {
        let completed = Listing::new().state(State::Completed).limit(1_000);
        let done = client.jobs(&completed).await.unwrap().jobs.len();
        if done == 200 {
            break;
        }
        assert!(Instant::now() < give_up, "{done} of 200 are done");
        sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    let summary = working.await.unwrap();
    assert_eq!((summary.completed, summary.failed), (200, 0), "{summary:?}");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_there_is_passed_over() {
    let pair = pair().await;
    let nobody = "http://127.0.0.1:9".to_owned();
    let client = client([nobody, pair.second.url().to_owned()]);
    client.submit(NewJob::new("mail", &1)).await.unwrap();
    let started = Instant::now();
    client.queues().await.unwrap();
    assert!(
        started.elapsed() < PATIENCE,
        "the node that answered is asked first"
    );
}

/// A server whose certificate nobody signed but itself.
async fn untrusted(folder: &std::path::Path) -> Handle {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let tls = tenure_server::Tls {
        certificate: folder.join("certificate.pem"),
        key: folder.join("key.pem"),
        authority: None,
    };
    std::fs::write(&tls.certificate, made.cert.pem()).unwrap();
    std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    let mut config = config("memory:");
    config.tls = Some(tls);
    Server::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_trusted_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = untrusted(folder.path()).await;
    let long = PATIENCE * 2;
    let client = Client::builder([server.url()]).deadline(long).build();
    let error = client
        .unwrap()
        .submit(NewJob::new("t", &1))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Untrusted(_)), "{error:?}");
    assert!(!error.is_temporary() && error.hint().is_some());

    // One that is trusted answers all the same.
    let trusted = Broker::start().await;
    let urls = [server.url(), trusted.handle.url()];
    let client = Client::builder(urls).deadline(long).build().unwrap();
    client.submit(NewJob::new("t", &1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_one_that_leaves_is_no_dead_end() {
    let Pair {
        first,
        second,
        _folder,
        ..
    } = pair().await;
    let client = Client::builder([first.url()])
        .deadline(PATIENCE)
        .build()
        .unwrap();
    client.submit(NewJob::new("mail", &1)).await.unwrap();
    let give_up = Instant::now() + PATIENCE;
    while client.nodes().len() < 2 {
        assert!(Instant::now() < give_up, "the other broker is not known");
        sleep(Duration::from_millis(10)).await;
    }
    first.stop().await;
    let submitted = client.submit(NewJob::new("mail", &2)).await.unwrap();
    assert_eq!(client.job(&submitted.id).await.unwrap().state, State::Ready);
    second.stop().await;
}
