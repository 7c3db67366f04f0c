//! Elections without a background loop: every call stands alone.
//!
//! Candidates are known by their id, so every program needs one of its own. All calls may be repeated, and
//! are.

use std::time::Duration;

use reqwest::Method;
use serde::de::IgnoredAny;
use tenure_core::api::{CandidateRequest, ElectAnswer, ElectRequest, Election};
use tenure_core::{Moment, Namespace, NodeId};

use crate::client::Client;
use crate::clock;
use crate::error::Error;
use crate::transport::Call;

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// What the server answered.
    pub answer: ElectAnswer,
    until: Moment,
}

impl Elected {
    /// Whether the candidate leads, now: false as soon as the time it was given is over. Ask right before
    /// each thing that only a leader may do, and pass [`ElectAnswer::token`] on to whatever can refuse an
    /// older leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the candidate may still act as the leader without another call; zero if it does not lead.
    /// Counted from before the call was sent, on a clock that goes on while the machine is suspended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.answer.is_leader {
            true => self.until.since(clock::now()),
            false => Duration::ZERO,
        }
    }
}

impl Client {
    /// Makes `candidate` lead if nobody does, and says who leads otherwise. Nobody is pushed out. To go on
    /// leading, call again within the ttl.
    pub async fn elect(
        &self,
        namespace: &Namespace,
        candidate: &NodeId,
        ttl: Option<Duration>,
    ) -> Result<Elected, Error> {
        let request = ElectRequest {
            candidate: candidate.clone(),
            ttl_ms: ttl.map(milliseconds),
        };
        let path = ["v1", "elections", namespace.as_str(), "elect"];
        // Trust is counted from before the first try: which of them was answered is not known for sure.
        let started = clock::now();
        let answer: ElectAnswer = self.transport.call(&Call::post(&path, &request)?).await?;
        let until = started + Duration::from_millis(answer.valid_for_ms);
        Ok(Elected { answer, until })
    }

    /// Makes `id` a candidate, or says that it still is one.
    pub async fn register_candidate(
        &self,
        namespace: &Namespace,
        id: &NodeId,
        ttl: Option<Duration>,
    ) -> Result<Election, Error> {
        let request = CandidateRequest {
            ttl_ms: ttl.map(milliseconds),
        };
        let call = Call::put(&candidate_path(namespace, id), &request)?;
        self.transport.call(&call).await
    }

    /// Takes `id` off the list of candidates; if it leads, it no longer does.
    pub async fn unregister_candidate(
        &self,
        namespace: &Namespace,
        id: &NodeId,
    ) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, &candidate_path(namespace, id));
        self.transport.call::<IgnoredAny>(&call).await.map(drop)
    }

    /// Who leads and who stands, without taking part.
    pub async fn election(&self, namespace: &Namespace) -> Result<Election, Error> {
        let call = Call::get(&["v1", "elections", namespace.as_str()]);
        self.transport.call(&call).await
    }

    /// Whether `candidate` leads as the store has it now. To act on it, use [`Client::elect`], which also
    /// says for how long.
    pub async fn leads(&self, namespace: &Namespace, candidate: &NodeId) -> Result<bool, Error> {
        let path = ["v1", "elections", namespace.as_str(), "leader"];
        let call = Call::get(&path).with_query(&[("candidate", Some(candidate.to_string()))]);
        let answer: ElectAnswer = self.transport.call(&call).await?;
        Ok(answer.is_leader)
    }
}

fn candidate_path<'a>(namespace: &'a Namespace, id: &'a NodeId) -> [&'a str; 5] {
    let namespace = namespace.as_str();
    ["v1", "elections", namespace, "candidates", id.as_str()]
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
