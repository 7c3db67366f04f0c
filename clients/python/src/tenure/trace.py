"""The current trace of a program, if OpenTelemetry is installed.

It is optional: without the package ``opentelemetry`` there is no trace, and handlers run as usual.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Mapping

from .types import Claimed, Submission

__all__ = ["attached", "traced"]

try:
    from opentelemetry import context as _context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _context = None  # type: ignore[assignment,unused-ignore]


def traced(job: Submission) -> Submission:
    """Adds the current trace to a job, unless the job already has one, or there is none."""
    if job.traceparent is not None or _context is None:
        return job
    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    if "traceparent" not in found:
        return job
    return replace(job, traceparent=found["traceparent"], tracestate=found.get("tracestate") or None)


def attached(claimed: Claimed) -> AbstractContextManager[Any]:
    """A context in which new spans belong to the trace of a job."""
    if claimed.traceparent is None or _context is None:
        return nullcontext()
    headers = {"traceparent": claimed.traceparent, "tracestate": claimed.tracestate or ""}
    return _Attached(headers)


class _Attached(AbstractContextManager[None]):
    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def __enter__(self) -> None:
        self._token = _context.attach(TraceContextTextMapPropagator().extract(self._headers))

    def __exit__(self, *exception: object) -> None:
        _context.detach(self._token)
