//! JSON in and out of the calls that have to be fast, as the server reads and writes it.

use tenure_api::strict;
use tenure_api::{
    ClaimAnswer, ClaimCall, ClaimRequest, Completion, Ends, Key, SubmitAnswer, SubmitRequest,
    SubmitStatus, Submitted,
};

use crate::queue::{World, claimed};
use crate::{count, report};

const ROUNDS: usize = 500;
const BATCH: usize = 100;

pub(crate) fn run() {
    let mut world = World::new();
    let single = SubmitRequest::Single(Box::new(world.submission()));
    let body = serde_json::to_vec(&single).unwrap();
    for _ in 0..ROUNDS {
        count(|| strict::from_slice::<SubmitRequest>(&body).unwrap());
    }
    report("json/submit in", ROUNDS);

    let jobs = (0..BATCH).map(|_| world.submission()).collect();
    let body = serde_json::to_vec(&SubmitRequest::Batch { jobs }).unwrap();
    count(|| strict::from_slice::<SubmitRequest>(&body).unwrap());
    report("json/submit in, per job of a batch", BATCH);

    let answer = SubmitAnswer {
        jobs: vec![Submitted {
            id: world.submission().id.unwrap(),
            status: SubmitStatus::Created,
            existing: None,
        }],
    };
    for _ in 0..ROUNDS {
        count(|| serde_json::to_vec(&answer).unwrap());
    }
    report("json/submit out", ROUNDS);
    claims();
}

fn claims() {
    let job = claimed();
    let call = ClaimCall {
        request: ClaimRequest::new(Key::new("worker-1").unwrap()),
        ends: Some(Ends {
            completed: vec![Completion {
                id: job.id.clone(),
                token: job.token,
                result: None,
            }],
            ..Ends::default()
        }),
    };
    let body = serde_json::to_vec(&call).unwrap();
    for _ in 0..ROUNDS {
        count(|| strict::from_slice::<ClaimCall>(&body).unwrap());
    }
    report("json/claim with an end in", ROUNDS);

    let answer = ClaimAnswer {
        jobs: vec![job],
        ends: None,
    };
    for _ in 0..ROUNDS {
        count(|| serde_json::to_vec(&answer).unwrap());
    }
    report("json/claim out", ROUNDS);
}
