//! Documents of the HTTP interface, with readable times, for `--json`.
//!
//! Over HTTP a time is a number of milliseconds since 1970, in fields such as `created_at`. Every other document of this
//! command has RFC 3339. So these have both: the fields as a broker sends them, and `times` with each of them as text.

use std::collections::BTreeMap;

use serde::Serialize;
use tenure::core::Wall;
use tenure_client::api;

use crate::times::rfc3339;

/// A document with times.
pub(crate) trait Timed: Serialize {
    /// The times by name, in milliseconds since 1970.
    fn times(&self) -> Vec<(&'static str, Option<u64>)>;
}

/// A document with its times as text.
#[derive(Debug, Serialize)]
pub(crate) struct WithTimes<'a, T> {
    #[serde(flatten)]
    document: &'a T,
    times: BTreeMap<&'static str, Option<String>>,
}

impl<'a, T: Timed> WithTimes<'a, T> {
    pub(crate) fn of(document: &'a T) -> Self {
        let times = document.times().into_iter();
        Self {
            document,
            times: times
                .map(|(name, at)| (name, at.map(|at| rfc3339(Wall(at)))))
                .collect(),
        }
    }

    pub(crate) fn all(documents: &'a [T]) -> Vec<Self> {
        documents.iter().map(Self::of).collect()
    }
}

impl Timed for api::Job {
    fn times(&self) -> Vec<(&'static str, Option<u64>)> {
        vec![
            ("created_at", Some(self.created_at)),
            ("run_at", Some(self.run_at)),
            ("changed_at", Some(self.changed_at)),
        ]
    }
}

impl Timed for api::Queue {
    fn times(&self) -> Vec<(&'static str, Option<u64>)> {
        vec![("oldest_ready_at", self.oldest_ready_at)]
    }
}

impl Timed for api::QueueTime {
    fn times(&self) -> Vec<(&'static str, Option<u64>)> {
        vec![("now", Some(self.now_ms)), ("wall", Some(self.wall_ms))]
    }
}

impl Timed for api::Schedule {
    fn times(&self) -> Vec<(&'static str, Option<u64>)> {
        vec![("next_at", self.next_at), ("last_at", self.last_at)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_as_the_broker_sent_it_with_its_times_as_text() {
        let sent = r#"{"id":"a","queue":"q","type":"t","state":"ready","payload":{"created_at":1,"n":1.0},"sequence":1,"priority":0,"attempt":0,"max_attempts":20,"created_at":1767225600000,"run_at":1767225601000,"changed_at":1767225602999}"#;
        let job: api::Job = serde_json::from_str(sent).unwrap();
        let shown = serde_json::to_string(&WithTimes::of(&job)).unwrap();
        let times = r#""times":{"changed_at":"2026-01-01T00:00:02Z","created_at":"2026-01-01T00:00:00Z","run_at":"2026-01-01T00:00:01Z"}"#;
        let whole = format!("{},{times}}}", sent.strip_suffix('}').unwrap());
        assert_eq!(shown, whole);
    }

    #[test]
    fn what_has_not_happened_has_no_time() {
        let sent = r#"{"name":"s","cron":"@daily","timezone":"UTC","job":{"type":"t"},"missed":"once","next_at":1767225600000,"last_at":null,"paused":false}"#;
        let schedule: api::Schedule = serde_json::from_str(sent).unwrap();
        let shown = serde_json::to_value(WithTimes::of(&schedule)).unwrap();
        let times = serde_json::json!({"next_at": "2026-01-01T00:00:00Z", "last_at": null});
        assert_eq!(shown["times"], times);
    }
}
