//! One trace from the span that a job is submitted in to that of its handler.

use std::sync::{Arc, Mutex};

use opentelemetry::trace::{SpanId, Status, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tenure_client::{CancellationToken, Failure, Job, NewJob, State, Worker, current_span};
use tenure_testkit::recording::Recording;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::support::{Broker, PATIENCE};

/// Keeps what has ended.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(spans);
        Ok(())
    }
}

// On one thread: what records spans is set for that.
#[tokio::test]
async fn a_handler_runs_in_the_trace_of_its_submit() {
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(kept.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    let subscriber = tracing_subscriber::registry().with(layer);
    let _recording = Recording::start(subscriber);

    let broker = Broker::start().await;
    let (said, mut heard) = mpsc::unbounded_channel();
    let handler = move |job: Job<bool>| {
        let said = said.clone();
        async move {
            said.send((job.traceparent, current_span())).unwrap();
            if job.payload {
                Ok(())
            } else {
                Err(Failure::permanent("no"))
            }
        }
    };
    let worker = Worker::builder(broker.client.clone()).handle("t", handler);
    let worker = worker.name("tests").build().unwrap();
    let stop = CancellationToken::new();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { worker.run(stop).await }
    });

    let span = tracing::info_span!("order");
    for (ends_well, state) in [(true, State::Completed), (false, State::Dead)] {
        let submitted = async {
            let current = current_span().unwrap().0;
            let job = NewJob::new("t", &ends_well);
            (broker.client.submit(job).await.unwrap().id, current)
        };
        let (id, submitter) = submitted.instrument(span.clone()).await;
        let (carried, handling) = timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
        assert_eq!(carried, Some(submitter));
        let (handling, _) = handling.expect("the handler runs in a span");
        assert_eq!(handling.trace_id(), submitter.trace_id());
        assert_ne!(handling.span_id(), submitter.span_id());
        let job = broker.reaches(&id, state).await;
        assert_eq!(job.traceparent, Some(submitter));

        let spans = kept.0.lock().unwrap().clone();
        let id = SpanId::from_bytes(handling.span_id());
        let found = spans.iter().find(|span| span.span_context.span_id() == id);
        let found = found.expect("its span has ended");
        assert_eq!(found.name, "process t");
        assert_eq!(
            found.parent_span_id,
            SpanId::from_bytes(submitter.span_id())
        );
        let failed = Status::Error {
            description: "no".into(),
        };
        assert_eq!(found.status == failed, !ends_well, "{:?}", found.status);
    }
    // Another trace can be named, and outside of a span there is none.
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (job, carried) in [
        (NewJob::new("t", &true).traceparent(parent), Some(parent)),
        (NewJob::new("t", &true), None),
    ] {
        broker.client.submit(job).await.unwrap();
        let (found, _) = timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
        assert_eq!(found.map(|found| found.to_string()).as_deref(), carried);
    }
    stop.cancel();
    working.await.unwrap().unwrap();
}
