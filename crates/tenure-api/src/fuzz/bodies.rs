//! The bodies and queries of the HTTP interface, as types: what can be read reads back as the same.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_fuzz::{Fuzz, corpus};

use crate::*;

fn reads_back<T: Serialize + DeserializeOwned + Debug>(input: &[u8]) {
    let read = serde_json::from_slice::<T>(input);
    let strictly = strict::from_slice::<T>(input);
    let Ok(value) = read else {
        assert!(strictly.is_err());
        return;
    };
    if let Ok(same) = strictly {
        assert_eq!(format!("{same:?}"), format!("{value:?}"));
    }
    let text = serde_json::to_string(&value).unwrap();
    let again: T = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}, which was {value:?}"));
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
}

#[test]
fn requests_read_back() {
    Fuzz::new("requests", corpus("requests")).run(|input| {
        reads_back::<SubmitRequest>(input);
        reads_back::<ClaimRequest>(input);
        reads_back::<ClaimCall>(input);
        reads_back::<HeartbeatRequest>(input);
        reads_back::<CompleteRequest>(input);
        reads_back::<FailRequest>(input);
        reads_back::<ReleaseRequest>(input);
        reads_back::<RetryRequest>(input);
        reads_back::<MoveRequest>(input);
        reads_back::<JobsQuery>(input);
        reads_back::<EventsQuery>(input);
        reads_back::<ElectionQuery>(input);
        reads_back::<ElectRequest>(input);
        reads_back::<CandidateRequest>(input);
        reads_back::<ResignRequest>(input);
        reads_back::<TransferRequest>(input);
        reads_back::<QueueOptions>(input);
        reads_back::<Settings>(input);
        reads_back::<ScheduleSpec>(input);
    });
}

#[test]
fn answers_read_back() {
    Fuzz::new("answers", corpus("answers")).run(|input| {
        reads_back::<SubmitAnswer>(input);
        reads_back::<ClaimAnswer>(input);
        reads_back::<ClaimsAnswer>(input);
        reads_back::<JobsAnswer>(input);
        reads_back::<Job>(input);
        reads_back::<RetryAnswer>(input);
        reads_back::<MoveAnswer>(input);
        reads_back::<QueuesAnswer>(input);
        reads_back::<Queue>(input);
        reads_back::<SchedulesAnswer>(input);
        reads_back::<Schedule>(input);
        reads_back::<Settings>(input);
        reads_back::<Stats>(input);
        reads_back::<Cluster>(input);
        reads_back::<Plan>(input);
        reads_back::<Election>(input);
        reads_back::<ElectAnswer>(input);
        reads_back::<Event>(input);
        reads_back::<Problem>(input);
    });
}
