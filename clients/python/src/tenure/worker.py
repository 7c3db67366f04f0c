"""A worker: takes jobs, runs handlers in threads, and reports what came of them.

What is guaranteed
    Every claimed job is completed, failed or handed back, whatever its handler does; a handler that raises fails
    only its own job. Claims are renewed on a thread of their own, so a busy handler does not lose its job. No more
    jobs are claimed than there are free threads. Failovers are waited out.

What is not
    A job may run more than once: after a crash, or when a lease ran out. Handlers must be able to live with that;
    ``task.id`` and ``task.attempt`` help. Python cannot stop a thread: a handler that shall be cancellable looks at
    ``task.stopped`` now and then.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import traceback
import uuid
from types import FrameType
from typing import Any, Callable, Mapping, Optional, Sequence

from . import clock
from .backoff import Backoff as Waits
from .client import Client
from .errors import Lost, TenureError, Unavailable
from .trace import attached
from .types import Claimed, Json

__all__ = ["HandBack", "Permanent", "RetryIn", "Task", "Worker"]

log = logging.getLogger("tenure.worker")

#: The most claims of one heartbeat call, and of one poll: what a server accepts.
BATCH_MAX = 1_000

#: What is kept of an error: the end of it, which says most. The server cuts at 2 KiB.
ERROR_CHARACTERS_MAX = 2_000

Handler = Callable[["Task"], Any]


class RetryIn(Exception):
    """Raised by a handler: fail this attempt, and try again after so many seconds."""

    def __init__(self, seconds: float, message: str = "asked to be tried again later") -> None:
        super().__init__(message)
        self.seconds = seconds


class Permanent(Exception):
    """Raised by a handler: fail, and do not try again. The job is dead, kept, and can be retried by hand."""


class HandBack(Exception):
    """Raised by a handler that stops because ``task.stopped`` is set: another worker may start over at once.

    It costs the job no attempt. Raised without such a reason it is a failed attempt, or it could go on for ever.
    """


class Task:
    """One attempt at one job, as its handler sees it."""

    def __init__(self, claimed: Claimed, sent_at: float) -> None:
        self.claimed = claimed
        #: Set when the handler should end: cancelled, lost, or the worker is told to stop.
        self.stopped = threading.Event()
        #: Somebody cancelled the job. End, and return or raise as usual.
        self.cancelled = False
        #: The claim has ended, and another worker may have the job. What the handler returns is thrown away.
        self.lost = False
        self._progress: Json = None
        self._confirmed_at = sent_at
        self._ending = False

    @property
    def id(self) -> str:
        """The job's id."""
        return self.claimed.id

    @property
    def type(self) -> str:
        """The job's type."""
        return self.claimed.type

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self.claimed.queue

    @property
    def payload(self) -> Json:
        """What was submitted."""
        return self.claimed.payload

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.claimed.attempt

    @property
    def traceparent(self) -> Optional[str]:
        """The span that the job was submitted in, as W3C Trace Context writes it; None if there was none.

        With the package ``opentelemetry`` it is current while the handler runs: spans begun there are its children.
        """
        return self.claimed.traceparent

    @property
    def tracestate(self) -> Optional[str]:
        """What goes with that span."""
        return self.claimed.tracestate

    def progress(self, value: Json) -> None:
        """Shows how far the work is, with the next heartbeat. Any small JSON value."""
        self._progress = value

    def remaining(self) -> float:
        """Seconds until the lease is over unless a heartbeat gets through; counted from before it was sent."""
        return self._confirmed_at + self.claimed.lease_ms / 1000 - clock.now()

    def __repr__(self) -> str:
        return f"Task({self.type} {self.id}, attempt {self.attempt})"


class Worker:
    """Runs handlers for jobs.

    ``concurrency`` is how many jobs run at once, each in a thread. ``lease`` is how many seconds a job stays with
    this worker without a heartbeat; one is sent every third of it. ``drain`` is how many seconds running jobs get to
    finish when the worker is told to stop, before they are handed back. ``poll`` is how long one claim waits for a
    job: also the longest that an idle worker takes to stop.

    >>> worker = Worker(client, queues=["sums"], concurrency=4)
    >>> @worker.handles("sum")
    ... def add(task):
    ...     return sum(task.payload)
    >>> _ = client.submit("sum", [1, 2, 3], queue="sums", id="sum-1")
    >>> worker.run(until_idle=True)
    >>> client.job("sum-1").result
    6

    In a program, ``worker.run()`` returns after SIGTERM or Ctrl-C, when everything is finished or handed back.
    """

    def __init__(
        self,
        client: Client,
        *,
        queues: Sequence[str] = (),
        name: Optional[str] = None,
        concurrency: int = 8,
        lease: float = 30.0,
        drain: float = 20.0,
        poll: float = 5.0,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is at least 1")
        if lease <= 0 or drain < 0 or poll < 0:
            raise ValueError("lease, drain and poll are seconds")
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._client, self._queues = client, tuple(queues)
        self._concurrency, self._lease, self._drain, self._poll = concurrency, lease, drain, poll
        self._handlers: dict[str, Handler] = {}
        self._tasks: dict[str, Task] = {}  # by token: one job may be here twice, if its lease ran out
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._stop_now = threading.Event()

    def handles(self, type: str) -> Callable[[Handler], Handler]:
        """Makes a function the handler of a type. What it returns becomes the job's result.

        Raising an exception fails the attempt with its text; :class:`RetryIn`, :class:`Permanent` and
        :class:`HandBack` say more.
        """

        def register(handler: Handler) -> Handler:
            self._handlers[type] = handler
            return handler

        return register

    def stop(self, *, now: bool = False) -> None:
        """Tells :meth:`run` to end: it claims nothing more, lets jobs finish, and hands back what takes too long.

        With ``now`` they are handed back at once. May be called from any thread, and from a signal handler.
        """
        # Only sets flags: a signal handler that waited for a condition's lock could wait for itself.
        self._stop.set()
        if now:
            self._stop_now.set()

    def run(self, *, signals: bool = True, until_idle: bool = False) -> None:
        """Works until it is told to stop. On the main thread SIGTERM and SIGINT do that; a second one hurries it.

        ``until_idle`` ends it too, when there is no job to claim and none is running. Raises what a claim was
        refused with (a wrong token, say) after what was running is finished.
        """
        if not self._handlers:
            raise ValueError("no handler: register one with @worker.handles(TYPE)")
        replaced = self._take_signals() if signals else {}
        ended = threading.Event()
        beats = threading.Thread(target=self._beat, args=(ended,), name="tenure-heartbeats", daemon=True)
        beats.start()
        try:
            self._claim_until_stopped(until_idle)
        finally:
            try:
                self._finish()
            finally:
                ended.set()
                beats.join()
                for number, previous in replaced.items():
                    signal.signal(number, previous)

    # ------------------------------------------------------------------ taking jobs

    def _claim_until_stopped(self, until_idle: bool) -> None:
        waits = Waits(0.5, 10.0)
        while not self._stop.is_set():
            free = self._wait_for_room()
            if free == 0:
                continue
            # Seen before the claim is sent: a job that ends while it is answered may be ready again after it.
            ran_nothing = free == self._concurrency
            sent_at = clock.now()
            try:
                jobs = self._client.claim(
                    self.name,
                    queues=self._queues,
                    types=sorted(self._handlers),
                    max=min(free, BATCH_MAX),
                    lease=self._lease,
                    wait=0.0 if until_idle else self._poll,
                    stop=self._stop,
                )
            except Unavailable as problem:
                log.warning("no job can be claimed at the moment: %s", problem)
                self._stop.wait(waits.next())
                continue
            waits.reset()
            for claimed in jobs:
                self._start(Task(claimed, sent_at))
            if until_idle and not jobs:
                if ran_nothing:
                    return
                self._wait_for_an_end()

    def _wait_for_room(self) -> int:
        """How many more jobs may run; 0 if there was no room for a while."""
        with self._changed:
            if len(self._tasks) >= self._concurrency:
                # Not for ever: a signal handler only sets a flag, and wakes nobody up.
                self._changed.wait(0.5)
            return self._concurrency - len(self._tasks)

    def _wait_for_an_end(self) -> None:
        """Waits until a job has ended, or a moment: others may submit."""
        with self._changed:
            if self._tasks:
                self._changed.wait(0.5)

    def _start(self, task: Task) -> None:
        with self._changed:
            self._tasks[task.claimed.token] = task
        # Not of a pool, whose threads Python waits for when it exits: one that hangs would hold it up for ever.
        threading.Thread(target=self._work, args=(task,), name=f"tenure-{task.type}", daemon=True).start()

    # ------------------------------------------------------------------ doing them

    def _work(self, task: Task) -> None:
        try:
            self._report(task, self._attempt(task))
        except Lost as problem:
            log.warning("%r was no longer ours when it ended: %s", task, problem)
        except TenureError as problem:
            log.error("what came of %r could not be reported; its lease will run out: %s", task, problem)
        finally:
            with self._changed:
                self._tasks.pop(task.claimed.token, None)
                self._changed.notify_all()

    def _attempt(self, task: Task) -> Mapping[str, Any]:
        """Runs the handler. Returns what to report: a result, an error, or that the claim is handed back."""
        try:
            with attached(task.claimed):
                return {"result": self._handlers[task.type](task)}
        except RetryIn as request:
            return {"error": str(request), "retry_in": request.seconds}
        except Permanent as problem:
            return {"error": told(problem), "permanent": True}
        except HandBack:
            if task.stopped.is_set():
                return {"release": True}
            return {"error": "handed back by its handler", "retry_in": 0.0}
        except BaseException as problem:  # SystemExit too: it is this job's end, not the worker's
            log.warning("%r failed: %r", task, problem)
            return {"error": told(problem)}

    def _report(self, task: Task, outcome: Mapping[str, Any]) -> None:
        with self._changed:
            # Decided in one step with handing back: a claim is ended by one of the two.
            if task.lost:
                return
            task._ending = True
        # At least as long as the job would stay ours: giving up earlier would only have it done again.
        patience = max(self._client.timeout, self._lease)
        if "release" in outcome:
            self._client.release(task.claimed, timeout=patience)
            return
        if "error" in outcome:
            self._client.fail(
                task.claimed,
                outcome["error"],
                retry_in=outcome.get("retry_in"),
                permanent=outcome.get("permanent", False),
                timeout=patience,
            )
            return
        try:
            self._client.complete(task.claimed, result=outcome["result"], timeout=patience)
        except Lost:
            raise
        except TenureError as problem:
            if isinstance(problem, Unavailable):
                raise
            # A result that is too large, or no JSON: nothing was done, so the attempt can still be failed.
            self._client.fail(task.claimed, f"its result was refused: {problem}", timeout=patience)

    # ------------------------------------------------------------------ keeping them

    def _beat(self, ended: threading.Event) -> None:
        """Renews all claims every third of a lease, and passes on what the server says about them."""
        while not ended.wait(self._lease / 3):
            with self._changed:
                tasks = [task for task in self._tasks.values() if not task.lost]
            for start in range(0, len(tasks), BATCH_MAX):
                self._renew(tasks[start : start + BATCH_MAX])

    def _renew(self, tasks: Sequence[Task]) -> None:
        claims = [(task.claimed, task._progress) for task in tasks]
        sent_at = clock.now()
        try:
            answers = self._client.heartbeat_many(claims, timeout=self._lease / 3)
        except TenureError as problem:
            # The leases still stand, and the next round is not far.
            log.warning("claims could not be renewed: %s", problem)
            return
        except Exception:
            log.exception("claims could not be renewed")
            return
        for task, answer in zip(tasks, answers):
            if answer.status == "lost":
                # One that is just being reported is expected to be gone.
                if not task._ending:
                    task.lost = True
                    task.stopped.set()
                    log.warning("%r is no longer ours: %s", task, dict(answer.reason))
                continue
            task._confirmed_at = sent_at
            if answer.status == "cancelled" and not task.cancelled:
                task.cancelled = True
                task.stopped.set()

    # ------------------------------------------------------------------ stopping

    def _finish(self) -> None:
        """Waits for running jobs, then hands back those that take too long."""
        deadline = clock.now() + self._drain
        with self._changed:
            for task in self._tasks.values():
                task.stopped.set()
            while self._tasks and not self._stop_now.is_set():
                remaining = deadline - clock.now()
                if remaining <= 0:
                    break
                self._changed.wait(min(remaining, 0.5))
            left = [task for task in self._tasks.values() if not task._ending]
            for task in left:
                task.lost = True  # its thread reports nothing any more
        for task in left:
            self._hand_back(task)
        self._wait_for_reports(clock.now() + self._lease)

    def _hand_back(self, task: Task) -> None:
        try:
            self._client.release(task.claimed, timeout=self._lease)
            log.info("%r was handed back", task)
        except TenureError as problem:
            log.warning("%r could not be handed back; its lease will run out: %s", task, problem)

    def _wait_for_reports(self, deadline: float) -> None:
        """Waits for those that had ended and are being reported."""
        with self._changed:
            while any(task._ending for task in self._tasks.values()) and clock.now() < deadline:
                self._changed.wait(0.5)

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def handle(number: int, frame: Optional[FrameType]) -> None:
            self.stop(now=self._stop.is_set())

        return {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}


def told(problem: BaseException) -> str:
    """An exception as the text that people will read beside the job: what, then where."""
    what = "".join(traceback.format_exception_only(type(problem), problem)).strip()
    frames = traceback.extract_tb(problem.__traceback__)[-3:]
    where = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return (what[: ERROR_CHARACTERS_MAX - len(where)] + where)[:ERROR_CHARACTERS_MAX]
