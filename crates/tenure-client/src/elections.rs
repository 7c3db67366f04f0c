//! Elections without a background loop: every call stands alone.
//!
//! A candidate belongs to the program that knows its secret. The client makes one for each candidate, sends it with every call about
//! it, and makes another when the candidate was withdrawn: so a withdrawal that arrives late, or twice, cannot end what was
//! begun after it. Clones of a client share their secrets. Two clients that use one id are two candidates.
//! All calls may be repeated, and are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Method;
use serde::de::IgnoredAny;
use tenure_api::{
    CandidateRequest, ElectAnswer, ElectRequest, Election, ElectionName, NodeId, Secret,
    WithdrawRequest,
};

use crate::client::Client;
use crate::clock;
use crate::error::Error;
use crate::transport::Call;

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// What the server answered.
    pub answer: ElectAnswer,
    until: clock::Moment,
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
        if self.answer.is_leader {
            self.until.saturating_sub(clock::now())
        } else {
            Duration::ZERO
        }
    }
}

impl Client {
    /// Makes `candidate` lead if nobody does, and says who leads otherwise. Nobody is pushed out. To go on
    /// leading, call again within the ttl.
    pub async fn elect(
        &self,
        election: &ElectionName,
        candidate: &NodeId,
        ttl: Option<Duration>,
    ) -> Result<Elected, Error> {
        let request = ElectRequest {
            candidate: candidate.clone(),
            ttl_ms: ttl.map(milliseconds),
            secret: Some(self.secrets.of(election, candidate)),
        };
        let path = ["v1", "elections", election.as_str(), "elect"];
        // Trust is counted from before the first try: which of them was answered is not known for sure.
        let started = clock::now();
        let answer: ElectAnswer = self.transport.call(&Call::post(&path, &request)?).await?;
        let until = started + Duration::from_millis(answer.valid_for_ms);
        Ok(Elected { answer, until })
    }

    /// Makes `id` a candidate, or says that it still is one.
    pub async fn register_candidate(
        &self,
        election: &ElectionName,
        id: &NodeId,
        ttl: Option<Duration>,
    ) -> Result<Election, Error> {
        let request = CandidateRequest {
            ttl_ms: ttl.map(milliseconds),
            secret: Some(self.secrets.of(election, id)),
        };
        let call = Call::put(&candidate_path(election, id), &request)?;
        self.transport.call(&call).await
    }

    /// Takes `id` off the list of candidates; if it leads, it no longer does. Only a candidate that this client, or a clone of
    /// it, has registered; for others nothing is done.
    pub async fn unregister_candidate(
        &self,
        election: &ElectionName,
        id: &NodeId,
    ) -> Result<(), Error> {
        // One that this client did not register is not its own to withdraw.
        let Some(secret) = self.secrets.leave(election, id) else {
            return Ok(());
        };
        let request = WithdrawRequest {
            secret: Some(secret.clone()),
            term: None,
        };
        let call = Call::new(Method::DELETE, &candidate_path(election, id)).with_body(&request)?;
        self.transport.call::<IgnoredAny>(&call).await?;
        self.secrets.left(election, id, &secret);
        Ok(())
    }

    /// Who leads and who stands, without taking part.
    pub async fn election(&self, election: &ElectionName) -> Result<Election, Error> {
        let call = Call::get(&["v1", "elections", election.as_str()]);
        self.transport.call(&call).await
    }

    /// Whether `candidate` leads as the store has it now. To act on it, use [`Client::elect`], which also
    /// says for how long.
    pub async fn leads(&self, election: &ElectionName, candidate: &NodeId) -> Result<bool, Error> {
        let path = ["v1", "elections", election.as_str(), "leader"];
        let call = Call::get(&path).with_query(&[("candidate", Some(candidate.to_string()))]);
        let answer: ElectAnswer = self.transport.call(&call).await?;
        Ok(answer.is_leader)
    }
}

fn candidate_path<'a>(election: &'a ElectionName, id: &'a NodeId) -> [&'a str; 5] {
    let election = election.as_str();
    ["v1", "elections", election, "candidates", id.as_str()]
}

/// The secrets of the candidates of a client.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Arc<Mutex<HashMap<(ElectionName, NodeId), Kept>>>);

struct Kept {
    secret: Secret,
    /// It was withdrawn, or may have been: the candidate comes back under another.
    is_leaving: bool,
}

/// Without what it keeps.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secrets")
    }
}

impl Secrets {
    /// The secret to stand with.
    fn of(&self, election: &ElectionName, id: &NodeId) -> Secret {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (election.clone(), id.clone());
        if let Some(kept) = all.get(&key).filter(|kept| !kept.is_leaving) {
            return kept.secret.clone();
        }
        let text = uuid::Uuid::new_v4().simple().to_string();
        let secret = Secret::new(text).expect("32 hexadecimal digits are a secret");
        let kept = Kept {
            secret: secret.clone(),
            is_leaving: false,
        };
        all.insert(key, kept);
        secret
    }

    /// The secret to withdraw with. It is not used to stand any more.
    fn leave(&self, election: &ElectionName, id: &NodeId) -> Option<Secret> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.get_mut(&(election.clone(), id.clone()))?;
        kept.is_leaving = true;
        Some(kept.secret.clone())
    }

    /// The candidate was withdrawn.
    fn left(&self, election: &ElectionName, id: &NodeId, secret: &Secret) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (election.clone(), id.clone());
        if all.get(&key).is_some_and(|kept| kept.secret == *secret) {
            all.remove(&key);
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
