//! A leader with a bug that no test on a good day finds, and a test that does.
//!
//! Both leaders pay salaries into a ledger, and both ask whether they lead before they do. The naive one takes the
//! answer for a promise. Between the answer and the payment its process may be stopped: by the kernel, a
//! debugger, a machine that is moved. When it goes on, another leader has paid, and it pays as well. The fenced
//! one gives its token along, and the ledger refuses a token that is older than one it has seen.
//!
//! ```text
//! cargo run -p tenure --example naive_leader
//! ```

#![allow(clippy::print_stdout, reason = "this is what the example does")]

use std::sync::Mutex;
use std::time::Duration;

use tenure::core::election::Term;
use tenure::testing::{Host, Scene};
use tenure::{Leadership, Receiver};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Where the leader writes, outside of Tenure.
#[derive(Default)]
struct Ledger {
    entries: Mutex<Vec<Term>>,
    receiver: Receiver,
}

impl Ledger {
    fn pay(&self, term: Term) {
        self.entries.lock().expect("nobody panics").push(term);
    }

    /// What must hold: once a new leader has paid, no old one does.
    fn is_in_order(&self) -> bool {
        self.entries.lock().expect("nobody panics").is_sorted()
    }
}

/// Asks, and acts on the answer.
async fn naive(leadership: &Leadership, host: &Host, ledger: &Ledger) {
    if leadership.check().is_ok() {
        host.awake().await; // the process is stopped here, in one run of many
        ledger.pay(leadership.term());
    }
}

/// Asks, and lets the ledger judge.
async fn fenced(leadership: &Leadership, host: &Host, ledger: &Ledger) {
    if leadership.check().is_ok() {
        host.awake().await;
        if ledger.receiver.accept(leadership.token()).is_ok() {
            ledger.pay(leadership.term());
        }
    }
}

type Disturbance = (&'static str, fn(&Host));

/// What happens to the leader in the middle of a payment.
const DISTURBANCES: [Disturbance; 4] = [
    ("nothing happens", |_| {}),
    ("its storage is cut off", Host::cut),
    ("the answers of its storage are lost", Host::lose_answers),
    ("its process is stopped", Host::pause),
];

/// One story: `a` leads and pays, is disturbed, and goes on when `b` has led for a while.
async fn story(seed: u64, disturb: fn(&Host), is_fenced: bool) -> Result<bool> {
    let scene = Scene::new(seed);
    let (a, b) = (scene.host("a").await?, scene.host("b").await?);
    let first = a.node().join("payroll").await?.elected().await?;
    let election = b.node().join("payroll").await?;
    let ledger = Ledger::default();
    let pay = async |leadership: &Leadership, host: &Host| {
        if is_fenced {
            fenced(leadership, host, &ledger).await;
        } else {
            naive(leadership, host, &ledger).await;
        }
    };
    disturb(&a);
    let meanwhile = async {
        scene.pass(Duration::from_secs(30)).await;
        if let Some(second) = election.leadership() {
            pay(&second, &b).await;
        }
        a.mend();
        scene.pass(Duration::from_secs(5)).await;
    };
    tokio::join!(pay(&first, &a), meanwhile);
    Ok(ledger.is_in_order())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut found = 0;
    for (seed, (words, disturb)) in (1..).zip(DISTURBANCES) {
        let naive = story(seed, disturb, false).await?;
        let fenced = story(seed, disturb, true).await?;
        println!(
            "{words}: naive {}, fenced {}",
            verdict(naive),
            verdict(fenced)
        );
        assert!(fenced, "the fenced leader is right, whatever happens");
        found += usize::from(!naive);
    }
    assert_eq!(found, 1, "the naive leader has one bug, and it is found");
    Ok(())
}

fn verdict(is_in_order: bool) -> &'static str {
    if is_in_order {
        "pays once"
    } else {
        "PAYS AFTER ITS SUCCESSOR"
    }
}
