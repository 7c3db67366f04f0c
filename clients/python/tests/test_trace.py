"""The trace of a job, from the submit to its handler."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Optional

from opentelemetry import trace

from tenure import Client, Invalid, Submission, Task, Worker
from tenure.trace import traced

from .support import Claims, Cluster

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def in_span(trace_id: int) -> trace.Span:
    """A span that somebody else has begun, such as a web framework."""
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(trace_id, 0x00F067AA0BA902B7, True, flags, trace.TraceState([("x", "1")]))
    return trace.NonRecordingSpan(context)


class Traces(Claims):
    cluster: Cluster
    client: Client

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster()
        cls.client = Client(cls.cluster.urls)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        cls.cluster.stop()

    def an_explicit_trace_reaches_the_handler(self) -> None:
        self.client.submit("t", id="explicit", queue="explicit", traceparent=PARENT, tracestate="x=1")
        self.assertEqual(self.client.job("explicit").traceparent, PARENT)
        self.assertEqual(self._handled("explicit"), [(PARENT, "x=1", PARENT[3:35])])
        with self.assertRaises(Invalid):
            self.client.submit("t", traceparent="00-no-no-no")

    def the_current_trace_is_taken_along(self) -> None:
        with trace.use_span(in_span(7)):
            self.client.submit("t", queue="current")
            self.client.submit_many([Submission("t", queue="current"), Submission("t", queue="current", traceparent=PARENT)])
        seven = f"{7:032x}"
        mine = (f"00-{seven}-00f067aa0ba902b7-01", "x=1", seven)
        self.assertEqual(self._handled("current"), [mine, mine, (PARENT, None, PARENT[3:35])])

    def without_a_trace_there_is_none(self) -> None:
        self.client.submit("t", queue="none")
        self.assertEqual(self._handled("none"), [(None, None, f"{0:032x}")])

    def _handled(self, queue: str) -> list[tuple[Optional[str], Optional[str], str]]:
        """What handlers saw: the job's trace, and the current one."""
        worker = Worker(self.client, queues=[queue], concurrency=1)
        seen: list[tuple[Optional[str], Optional[str], str]] = []

        @worker.handles("t")
        def handle(task: Task) -> None:
            current = trace.get_current_span().get_span_context().trace_id
            seen.append((task.traceparent, task.tracestate, f"{current:032x}"))

        worker.run(until_idle=True)
        return seen


class Apart(Claims):
    def a_job_that_names_its_trace_keeps_it(self) -> None:
        with trace.use_span(in_span(7)):
            self.assertEqual(traced(Submission("t", traceparent=PARENT)).tracestate, None)

    def nothing_needs_the_package(self) -> None:
        program = """
            import sys
            sys.modules["opentelemetry"] = None
            from tenure import Submission, Worker
            from tenure.trace import attached, traced
            assert traced(Submission("t")).traceparent is None
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
