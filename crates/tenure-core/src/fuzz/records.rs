//! Stored records: what can be read can be written, and reads back as the same.

use std::fmt::Debug;

use tenure_fuzz::{Fuzz, corpus};

use crate::cluster::{Assignments, Drains};
use crate::election::{Fence, Lease};
use crate::{RecordError, session};

fn reads_back<T: PartialEq + Debug>(
    kind: &str,
    decode: fn(&[u8]) -> Result<T, RecordError>,
    encode: fn(&T) -> Vec<u8>,
) {
    for record in corpus(kind) {
        decode(record.as_bytes()).expect("what a release wrote is read by every later one");
    }
    Fuzz::new(kind, corpus(kind)).run(|input| match decode(input) {
        Ok(record) => {
            let again = decode(&encode(&record)).expect("what was written can be read");
            assert_eq!(again, record);
        }
        Err(error) => assert!(error.to_string().len() < 1_000, "{error}"),
    });
}

#[test]
fn a_session_reads_back() {
    reads_back("session", session::Record::decode, session::Record::encode);
}

#[test]
fn a_lease_reads_back() {
    reads_back("lease", Lease::decode, Lease::encode);
}

#[test]
fn a_fence_reads_back() {
    reads_back("fence", Fence::decode, Fence::encode);
}

#[test]
fn assignments_read_back() {
    reads_back("assignments", Assignments::decode, Assignments::encode);
}

#[test]
fn drains_read_back() {
    reads_back("drains", Drains::decode, Drains::encode);
}
