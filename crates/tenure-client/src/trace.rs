//! Between the spans of this program and the trace context that travels with jobs.
//!
//! Spans are those of `tracing`. With the feature `opentelemetry` they are connected: a job that is submitted
//! takes the current span along, and the span of its handler has that one for a parent. A program that has no
//! OpenTelemetry layer has no current span, and nothing is sent.

use tenure_api::{Claimed, Submission, Traceparent, Tracestate};
use tracing::Span;

use crate::worker::Returned;

/// The current span as it travels. None if nobody records one, or without the feature `opentelemetry`.
#[must_use]
pub fn current_span() -> Option<(Traceparent, Option<Tracestate>)> {
    #[cfg(feature = "opentelemetry")]
    return connected::current_span();
    #[cfg(not(feature = "opentelemetry"))]
    None
}

/// Puts a job into the current trace, unless it is in another.
pub(crate) fn add_current(job: &mut Submission) {
    if job.traceparent.is_none()
        && let Some((parent, state)) = current_span()
    {
        job.traceparent = Some(parent);
        job.tracestate = state;
    }
}

/// The span that a handler runs in.
pub(crate) fn span_of(claimed: &Claimed) -> Span {
    let span = tracing::info_span!(
        parent: None,
        "job",
        otel.name = format_args!("process {}", claimed.job_type),
        otel.kind = "consumer",
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
        messaging.system = "tenure",
        messaging.operation.type = "process",
        messaging.destination.name = %claimed.queue,
        messaging.message.id = %claimed.id,
        tenure.job.type = %claimed.job_type,
        tenure.job.attempt = claimed.attempt,
    );
    #[cfg(feature = "opentelemetry")]
    connected::set_parent(&span, claimed);
    span
}

/// Marks the current span, which is the handler's, if it has failed.
pub(crate) fn note_failure(returned: &Returned) {
    if let Err(failure) = returned {
        let span = Span::current();
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", failure.message.as_str());
    }
}

#[cfg(feature = "opentelemetry")]
mod connected {
    use opentelemetry::Context;
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    };
    use tenure_api::{Claimed, Traceparent, Tracestate};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    pub(super) fn current_span() -> Option<(Traceparent, Option<Tracestate>)> {
        // The span of `tracing`, or one that was begun without it.
        let mut current = Span::current().context();
        if !current.span().span_context().is_valid() {
            current = Context::current();
        }
        let span = current.span();
        let span = span.span_context();
        let parent = Traceparent::new(
            span.trace_id().to_bytes(),
            span.span_id().to_bytes(),
            span.trace_flags().to_u8(),
        );
        let state = || Tracestate::shortened(&span.trace_state().header());
        parent.map(|parent| (parent, state()))
    }

    pub(super) fn set_parent(span: &Span, claimed: &Claimed) {
        let Some(parent) = claimed.traceparent else {
            return;
        };
        let state = claimed.tracestate.as_ref();
        let state = state.and_then(|state| state.as_str().parse::<TraceState>().ok());
        let remote = SpanContext::new(
            TraceId::from_bytes(parent.trace_id()),
            SpanId::from_bytes(parent.span_id()),
            TraceFlags::new(parent.flags()),
            true,
            state.unwrap_or_default(),
        );
        // Only a span that nobody records refuses it.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }
}
