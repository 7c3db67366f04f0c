//! Records the spans and log lines of one test, while other tests run in the same process.

use tracing::{Dispatch, Subscriber};

/// Records on the current thread until it is dropped.
#[must_use]
pub struct Recording {
    _guard: tracing::subscriber::DefaultGuard,
    _second: Dispatch,
}

impl Recording {
    /// Starts to record.
    pub fn start(subscriber: impl Subscriber + Send + Sync) -> Self {
        // With only one subscriber, `tracing` decides whether a span or a line is wanted on the thread that reaches
        // it first, and keeps the answer for all threads. That thread may belong to another test, which records
        // nothing. With two subscribers, it asks both.
        let second = Dispatch::new(tracing_subscriber::registry());
        let guard = tracing::subscriber::set_default(subscriber);
        // Another thread may just have marked something as unwanted.
        tracing::callsite::rebuild_interest_cache();
        Self {
            _guard: guard,
            _second: second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Recording;

    #[test]
    fn a_span_that_another_thread_met_first_is_recorded() {
        let met = || tracing::info_span!("met").is_disabled();
        let recording = Recording::start(tracing_subscriber::registry());
        assert!(std::thread::spawn(met).join().is_ok());
        assert!(!met());
        drop(recording);
    }
}
