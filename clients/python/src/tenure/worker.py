"""A worker: takes jobs, runs handlers in threads, and reports the results.

What is guaranteed
    Every claimed job is completed, failed or handed back, whatever its handler does. A handler that raises fails only
    its own job, and jobs do not affect each other: if one cannot be decoded, renewed or reported with the rest, it is
    handled alone. A separate thread renews the claims, so a busy handler does not lose its job. The worker claims no
    more jobs than it has free threads, and waits out failovers, broken answers and lost connections.

What is not
    A job may run more than once: after a crash, or when a lease expired. Handlers must cope with that; ``task.id`` and
    ``task.attempt`` help. Python cannot stop a thread: a handler that should be cancellable must check
    ``task.stopped`` now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from types import FrameType
from typing import Any, Awaitable, Callable, Mapping, NoReturn, Optional, Sequence

from . import clock
from .backoff import Backoff as Waits
from .client import SECONDS_MAX, Client
from .errors import EffectsDone, Invalid, Lost, NotAllowed, NotTrusted, ServerError, TenureError, Unavailable
from .trace import attached
from .types import Claimed, ClaimStatus, Json
from .wire import text_of, written

__all__ = ["HandBack", "Permanent", "RetryIn", "Task", "Worker"]

log = logging.getLogger("tenure.worker")

#: The most claims of one heartbeat call, and of one poll: what a server accepts.
BATCH_MAX = 1_000

#: How much of an error is kept: its end, which says most. The broker cuts errors at 2 KiB.
ERROR_CHARACTERS_MAX = 2_000

#: The largest progress, as JSON, that a broker accepts by default.
PROGRESS_BYTES_MAX = 16 * 1024

#: The HTTP status for a body that is too large.
TOO_LARGE = 413

Handler = Callable[["Task"], Any]

class RetryIn(Exception):
    """Raised by a handler: fail this attempt, and try again after this many seconds.

    >>> RetryIn(float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: RetryIn takes seconds between 0 and 315360000 (ten years), not nan
    """

    def __init__(self, seconds: float, message: str = "asked to be tried again later") -> None:
        super().__init__(message)
        # NaN is not between anything.
        if not 0 <= seconds <= SECONDS_MAX:
            raise ValueError(f"RetryIn takes seconds between 0 and {SECONDS_MAX:.0f} (ten years), not {seconds!r}")
        self.seconds = seconds


class Permanent(Exception):
    """Raised by a handler: fail, and do not try again. The job is dead. It is kept, and can be retried manually."""


class HandBack(Exception):
    """Raised by a handler that stops because ``task.stopped`` is set: another worker may start the job at once.

    It costs the job no attempt. If ``task.stopped`` is not set it counts as a failed attempt; otherwise a job could be
    handed back for ever.
    """


class Task:
    """One attempt at one job, as its handler sees it."""

    def __init__(self, claimed: Claimed, confirmed_at: float, is_certain: bool = True) -> None:
        self.claimed = claimed
        #: Set when the handler should end: the job was cancelled or lost, no heartbeat got through for a full lease, or
        #: the worker was told to stop.
        self.stopped = threading.Event()
        #: The job was cancelled. End, and return or raise as usual. The claim is renewed until the handler has ended.
        self.cancelled = False
        #: The claim has ended, and another worker may have the job. The handler's result is discarded.
        self.lost = False
        self._progress: Json = None
        self._confirmed_at = confirmed_at
        self._ending = False
        self._expired = False
        self._handed_back = False
        # Whether the handler may begin; decided once ``_decided`` is set.
        self._may_begin = is_certain
        self._decided = threading.Event()
        if is_certain:
            self._decided.set()

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
        """The span that the job was submitted in, in W3C Trace Context format; None if there was none.

        With the package ``opentelemetry`` it is current while the handler runs: spans started there are its children.
        """
        return self.claimed.traceparent

    @property
    def tracestate(self) -> Optional[str]:
        """The trace state of that span."""
        return self.claimed.tracestate

    def progress(self, value: Json) -> None:
        """Reports progress with the next heartbeat. ``value`` is any small JSON value; None reports nothing new.

        Raises :class:`Invalid` if it is not valid JSON, or has more than 16 KiB.
        """
        text = written(value)
        if len(text) > PROGRESS_BYTES_MAX:
            raise Invalid(f"progress has {len(text)} bytes; at most {PROGRESS_BYTES_MAX} are allowed", field="progress")
        # A copy, since the handler may change its value while a heartbeat is written.
        self._progress = json.loads(text)

    def remaining(self) -> float:
        """Seconds until the lease ends unless a heartbeat gets through.

        Counted from before the last one was sent; until the first one, from before the claim was.
        """
        return self._confirmed_at + self.claimed.lease_ms / 1000 - clock.now()

    def _confirm(self, sent_at: float) -> None:
        """A heartbeat that was sent at this time succeeded."""
        self._confirmed_at = sent_at
        if not self._decided.is_set():
            self._may_begin = True
            self._decided.set()

    def _stop(self) -> None:
        """Tells the handler to stop; one that has not begun never begins."""
        self.stopped.set()
        self._decided.set()

    def __repr__(self) -> str:
        return f"Task({self.type} {self.id}, attempt {self.attempt})"


class Worker:
    """Runs handlers for jobs.

    ``concurrency`` is how many jobs run at once, each in a thread. ``lease`` is how many seconds a job stays with
    this worker without a heartbeat; one is sent every third of it. ``drain`` is how many seconds running jobs get to
    finish when the worker is told to stop, before they are handed back. ``poll`` is how many seconds one claim waits for
    a job; an idle worker may take that long to stop.

    >>> worker = Worker(client, queues=["sums"], concurrency=4)
    >>> @worker.handles("sum")
    ... def add(task):
    ...     return sum(task.payload)
    >>> _ = client.submit("sum", [1, 2, 3], queue="sums", id="sum-1")
    >>> worker.run(until_idle=True)
    >>> client.job("sum-1").result
    6

    Callbacks report what happens to each job: ``on_claimed(task)`` before its handler begins, ``on_completed(task)``
    and ``on_failed(task, error)`` once the broker has noted the end of the attempt, and ``on_lost(task)`` once the
    handler of a job has ended that was lost meanwhile. They run in the job's thread. What they raise is logged, and
    changes nothing.

    In a program, ``worker.run()`` returns after SIGTERM or Ctrl-C, once every job is finished or handed back.
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
        on_claimed: Optional[Callable[[Task], object]] = None,
        on_completed: Optional[Callable[[Task], object]] = None,
        on_failed: Optional[Callable[[Task, str], object]] = None,
        on_lost: Optional[Callable[[Task], object]] = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        if not 0 < lease <= SECONDS_MAX or not 0 <= drain <= SECONDS_MAX or not 0 <= poll <= SECONDS_MAX:
            raise ValueError("lease, drain and poll must be valid times in seconds")
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._client, self._queues = client, tuple(queues)
        self._concurrency, self._lease, self._drain, self._poll = concurrency, lease, drain, poll
        self._on_claimed, self._on_completed, self._on_failed, self._on_lost = on_claimed, on_completed, on_failed, on_lost
        self._handlers: dict[str, Handler] = {}
        self._tasks: dict[str, Task] = {}  # by token: one job may be here twice, if its lease ran out
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._stop_now = threading.Event()
        self._beat_now = threading.Event()

    def handles(self, type: str) -> Callable[[Handler], Handler]:
        """Makes a function the handler of a job type. Its return value becomes the job's result.

        An ``async def`` function runs in its own event loop, in the job's thread.

        A return value that is not JSON, or too large for a result (16 KiB), is left out with a warning in the log, and
        the job is completed: the work was done.

        An exception fails the attempt, with its text as the error. See also :class:`RetryIn`, :class:`Permanent` and
        :class:`HandBack`.
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
        """Works until it is told to stop. On the main thread SIGTERM and SIGINT do that; a second signal stops it at once.

        With ``until_idle`` it also returns when there is no job to claim and none is running. If a claim is refused
        (because of a wrong token, for example), it raises the error once running jobs are finished. If a broker is
        unavailable, fails or gives an answer that makes no sense, the worker logs a warning and tries again.
        """
        if not self._handlers:
            raise ValueError("no handler: register one with @worker.handles(TYPE)")
        replaced = self._take_signals() if signals else {}
        ended = threading.Event()
        keepers = [
            threading.Thread(target=self._beat, args=(ended,), name="tenure-heartbeats", daemon=True),
            threading.Thread(target=self._watch, args=(ended,), name="tenure-leases", daemon=True),
        ]
        for keeper in keepers:
            keeper.start()
        try:
            self._claim_until_stopped(until_idle)
        finally:
            try:
                self._finish()
            finally:
                ended.set()
                self._beat_now.set()
                for keeper in keepers:
                    keeper.join()
                for number, previous in replaced.items():
                    signal.signal(number, previous)

    # ------------------------------------------------------------------ taking jobs

    def _claim_until_stopped(self, until_idle: bool) -> None:
        waits, shortages = Waits(0.5, 10.0), Waits(1.0, 30.0)
        while not self._stop.is_set():
            free = self._wait_for_room()
            if free == 0:
                continue
            # Read before the claim is sent: a job that ends during the claim may be ready again afterwards.
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
            except TenureError as problem:
                if not is_passing(problem):
                    raise
                log.warning("cannot claim jobs at the moment: %s", problem)
                self._stop.wait(waits.next())
                continue
            waits.reset()
            # Their leases began at some time after the claim was sent: it may have waited for a job, and this process
            # may have been stopped or suspended before it read the answer. If the leases may be nearly over, a
            # heartbeat first has to confirm that the claims are still ours.
            answered_at = clock.now()
            age = answered_at - sent_at
            is_certain = age <= self._lease * 2 / 3
            started = [self._start(Task(claimed, sent_at if is_certain else answered_at, is_certain)) for claimed in jobs]
            if jobs and age > self._lease / 3:
                # The next round would be too late.
                self._beat_now.set()
            if not all(started):
                # Others may have threads to spare; claiming jobs again at once would only repeat this.
                self._stop.wait(shortages.next())
            elif jobs:
                shortages.reset()
            if until_idle and not jobs:
                if ran_nothing:
                    return
                self._wait_for_an_end()

    def _wait_for_room(self) -> int:
        """Waits for room. Returns how many more jobs may run; 0 if there was no room for a while."""
        with self._changed:
            if len(self._tasks) >= self._concurrency:
                # With a timeout, since a signal handler only sets a flag and does not wake this thread.
                self._changed.wait(0.5)
            return self._concurrency - len(self._tasks)

    def _wait_for_an_end(self) -> None:
        """Waits until a job has ended, but only for a moment, since new jobs may be submitted."""
        with self._changed:
            if self._tasks:
                self._changed.wait(0.5)

    def _start(self, task: Task) -> bool:
        """Starts a thread for the job. Returns False and hands the job back if there is no thread."""
        with self._changed:
            self._tasks[task.claimed.token] = task
        try:
            # Not from a pool: Python waits for a pool's threads when it exits, and a hanging one would block that for
            # ever.
            threading.Thread(target=self._work, args=(task,), name=f"tenure-{task.type}", daemon=True).start()
            return True
        except (RuntimeError, MemoryError) as problem:
            log.error("cannot start a thread for %r: %s", task, problem)
            self._hand_back(task)
            with self._changed:
                self._tasks.pop(task.claimed.token, None)
            return False

    # ------------------------------------------------------------------ doing them

    def _work(self, task: Task) -> None:
        try:
            task._decided.wait()
            if task._may_begin:
                called(self._on_claimed, task)
            # A job whose handler never began is handed back without costing an attempt, unless it is lost.
            outcome = self._attempt(task) if task._may_begin else {"release": True}
            if self._report(task, outcome):
                self._tell_end(task, outcome)
            elif not task._handed_back:
                called(self._on_lost, task)
        except Lost as problem:
            log.warning("%r had been lost when it ended: %s", task, problem)
            called(self._on_lost, task)
        except TenureError as problem:
            log.error("could not report the result of %r; it runs again when its lease ends: %s", task, problem)
        except BaseException as problem:
            self._fail_unreported(task, problem)
        finally:
            with self._changed:
                self._tasks.pop(task.claimed.token, None)
                self._changed.notify_all()

    def _tell_end(self, task: Task, outcome: Mapping[str, Any]) -> None:
        if "error" in outcome:
            called(self._on_failed, task, outcome["error"])
        elif "result" in outcome:
            called(self._on_completed, task)

    def _fail_unreported(self, task: Task, problem: BaseException) -> None:
        """Fails an attempt whose outcome could not even be read: what a handler returns or raises is the user's code."""
        log.error("could not read the outcome of %r: %s", task, shown(problem))
        try:
            self._report(task, {"error": f"its outcome could not be read: {told(problem)}"[:ERROR_CHARACTERS_MAX]})
        except TenureError as refusal:
            log.error("could not report that %r failed; it runs again when its lease ends: %s", task, refusal)

    def _attempt(self, task: Task) -> Mapping[str, Any]:
        """Runs the handler. Returns what to report: a result, an error, or that the claim is handed back."""
        if task.claimed.unreadable is not None:
            # Every attempt would fail in the same way. The job is kept, with the reason.
            log.warning("cannot read %r: %s", task, task.claimed.unreadable)
            return {"error": f"the worker cannot read this job: {task.claimed.unreadable}", "permanent": True}
        try:
            return {"result": self._handled(task)}
        except EffectsDone as done:
            if done.job != task.id:
                log.warning("%r failed: %s", task, shown(done))
                return {"error": told(done)}
            log.debug("an earlier attempt at %r has done its work", task)
            return {"result": done.result}
        except RetryIn as request:
            return {"error": sendable(text_of(request) or told(request)), "retry_in": request.seconds}
        except Permanent as problem:
            return {"error": told(problem), "permanent": True}
        except HandBack:
            if task.stopped.is_set():
                return {"release": True}
            return {"error": "handed back by its handler", "retry_in": 0.0}
        except BaseException as problem:  # SystemExit too: it is this job's end, not the worker's
            log.warning("%r failed: %s", task, shown(problem))
            return {"error": told(problem)}

    def _handled(self, task: Task) -> Any:
        """What the handler returns. A child that it has forked ends when it leaves the handler: the job is its parent's."""
        owner = os.getpid()
        try:
            with attached(task.claimed):
                returned = self._handlers[task.type](task)
                if inspect.isawaitable(returned):
                    returned = asyncio.run(settled(returned))
        except BaseException as problem:
            if os.getpid() != owner:
                end_of_child(problem)
            raise
        if os.getpid() != owner:
            end_of_child(SystemExit())
        return returned

    def _report(self, task: Task, outcome: Mapping[str, Any]) -> bool:
        """Reports the outcome. Returns whether the broker accepted it; False if the claim had ended before."""
        with self._changed:
            # Decided under the same lock as handing back, so that only one of the two ends the claim.
            if task.lost:
                return False
            task._ending = True
        # At least as long as the job stays ours: stopping earlier would only cause it to be done again.
        patience = max(self._client.timeout, self._lease)
        give_up_at = clock.now() + patience
        waits = Waits(0.5, 10.0)
        while True:
            try:
                self._tell(task, outcome, max(0.001, give_up_at - clock.now()))
                return True
            except ServerError as problem:
                # The outcome is unknown, so send the same end again: the broker recognises it.
                pause = waits.next()
                if clock.now() + pause >= give_up_at:
                    raise
                log.warning("could not report the result of %r; trying again: %s", task, problem)
                time.sleep(pause)

    def _tell(self, task: Task, outcome: Mapping[str, Any], timeout: float) -> None:
        claim = task.claimed
        if "release" in outcome:
            return self._client.release(claim, timeout=timeout)
        if "result" in outcome:
            try:
                return self._complete(task, outcome["result"], timeout)
            except Lost as problem:
                if not is_completed(problem.reason):
                    raise
                # By the transaction of its handler, with another result: that one is kept.
                log.debug("%r was completed by its own transaction", task)
                return
        retry_in, permanent = outcome.get("retry_in"), outcome.get("permanent", False)
        try:
            self._client.fail(claim, outcome["error"], retry_in=retry_in, permanent=permanent, timeout=timeout)
        except Invalid as problem:
            # Nothing was done, so the attempt can still be failed.
            self._client.fail(claim, sendable(f"its failure was refused: {problem}"), timeout=timeout)

    def _complete(self, task: Task, result: Json, timeout: float) -> None:
        """Completes a job, without its result if that is refused: the work was done, and must not be done again."""
        claim = task.claimed
        refusal: TenureError
        try:
            return self._client.complete(claim, result=result, timeout=timeout / 2)
        except Invalid as problem:
            refusal = problem
        except Unavailable as problem:
            if problem.status != TOO_LARGE:
                return self._client.complete(claim, result=result, timeout=timeout / 2)
            # From a gateway, all this time: it does not let such a large body through.
            refusal = problem
        if result is not None:
            try:
                self._client.complete(claim, timeout=timeout)
                log.warning("%r was completed without its result, which was refused: %s", task, refusal)
                return
            except Invalid as problem:
                refusal = problem
        # Not tried again if the broker itself refused: it would refuse again.
        error = sendable(f"the work was done, but its end was refused: {refusal}")
        self._client.fail(claim, error, permanent=refusal.code is not None, timeout=timeout)

    # ------------------------------------------------------------------ keeping them

    def _beat(self, ended: threading.Event) -> None:
        """Renews all claims every third of a lease, and passes on what the server says about them."""
        while True:
            self._beat_now.wait(self._lease / 3)
            # Cleared before checking for the end, so that the signal for the end is not cleared.
            self._beat_now.clear()
            if ended.is_set():
                return
            with self._changed:
                tasks = [task for task in self._tasks.values() if not task.lost]
            for start in range(0, len(tasks), BATCH_MAX):
                try:
                    self._renew(tasks[start : start + BATCH_MAX])
                except TenureError as problem:
                    # The leases still last, and the next round comes soon.
                    log.warning("could not renew claims: %s", problem)
                except Exception:
                    log.exception("could not renew claims")

    def _renew(self, tasks: Sequence[Task]) -> None:
        try:
            return self._renew_together(tasks, [task._progress for task in tasks])
        except Invalid as problem:
            log.warning("a heartbeat was refused; renewing claims without progress: %s", problem)
        # Renew all leases without waiting to learn whose progress was bad.
        give_up_at = clock.now() + self._lease / 3
        try:
            self._renew_together(tasks, [None] * len(tasks))
            alone = [task for task in tasks if task._progress is not None]
        except Invalid:
            alone = list(tasks)
        for task in alone:
            if clock.now() >= give_up_at:
                return
            progress = task._progress
            try:
                self._renew_together([task], [progress])
            except Invalid as problem:
                log.warning("the progress of %r was refused and is not shown: %s", task, problem)
                if task._progress is progress:
                    task._progress = None

    def _renew_together(self, tasks: Sequence[Task], progress: Sequence[Json]) -> None:
        claims = [(task.claimed, shown) for task, shown in zip(tasks, progress)]
        sent_at = clock.now()
        answers = self._client.heartbeat_many(claims, timeout=self._lease / 3)
        for (task, shown), answer in zip(zip(tasks, progress), answers):
            if task._progress is shown:
                # The broker keeps it. Sending it with each heartbeat would only make them larger.
                task._progress = None
            self._heard(task, answer, sent_at)

    def _heard(self, task: Task, answer: ClaimStatus, sent_at: float) -> None:
        if answer.status == "lost" and is_completed(answer.reason):
            # By the transaction of its handler, by way of an outbox. Nobody else gets the job, so the handler may go on.
            task._confirm(sent_at)
            return
        if answer.status == "lost":
            # A claim that is just being reported is expected to be gone.
            if not task._ending:
                task.lost = True
                task._stop()
                log.warning("%r is lost: %s", task, dict(answer.reason))
            return
        if answer.status not in ("ok", "cancelled"):
            # It was not renewed, but the lease still lasts.
            log.warning("%r could not be renewed: %s", task, answer.problem.get("detail", answer.status))
            return
        if answer.problem:
            log.warning("the progress of %r was refused, and is not shown: %s", task, answer.problem.get("detail", ""))
        if answer.status == "cancelled" and not task.cancelled:
            task.cancelled = True
            task._stop()
        task._confirm(sent_at)

    def _watch(self, ended: threading.Event) -> None:
        """Stops handlers whose lease is over. Separate from the heartbeats, since one that hangs must not delay
        this."""
        while not ended.wait(min(self._lease / 10, 1.0)):
            with self._changed:
                tasks = [task for task in self._tasks.values() if not task._expired]
            for task in tasks:
                if task.remaining() <= 0:
                    # Not lost yet: what its handler returns is still reported, and the broker decides.
                    task._expired = True
                    task._stop()
                    log.warning("no heartbeat got through for a full lease: stopping %r", task)

    # ------------------------------------------------------------------ stopping

    def _finish(self) -> None:
        """Waits for running jobs, then hands back those that take too long."""
        deadline = clock.now() + self._drain
        with self._changed:
            for task in self._tasks.values():
                task._stop()
            while self._tasks and not self._stop_now.is_set():
                remaining = deadline - clock.now()
                if remaining <= 0:
                    break
                self._changed.wait(min(remaining, 0.5))
            left = [task for task in self._tasks.values() if not task._ending]
            for task in left:
                task._handed_back = not task.lost
                task.lost = True  # its thread reports nothing any more
        for task in left:
            self._hand_back(task)
        self._wait_for_reports(clock.now() + self._lease)

    def _hand_back(self, task: Task) -> None:
        try:
            self._client.release(task.claimed, timeout=self._lease)
            log.info("%r was handed back", task)
        except TenureError as problem:
            log.warning("could not hand back %r; it runs again when its lease ends: %s", task, problem)

    def _wait_for_reports(self, deadline: float) -> None:
        """Waits for jobs that have ended and are being reported."""
        with self._changed:
            while any(task._ending for task in self._tasks.values()) and clock.now() < deadline:
                self._changed.wait(0.5)

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def handle(number: int, frame: Optional[FrameType]) -> None:
            self.stop(now=self._stop.is_set())

        return {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}


def is_completed(reason: Mapping[str, Any]) -> bool:
    """Whether a claim is over since it has completed its job."""
    return reason.get("code") == "ended" and reason.get("ended_as") == "completed"


def end_of_child(problem: BaseException) -> NoReturn:
    """Ends a forked child as this exception ends a program."""
    code = problem.code if isinstance(problem, SystemExit) else problem
    if code is not None and not isinstance(code, int):
        traceback.print_exception(type(problem), problem, problem.__traceback__)
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def called(callback: Optional[Callable[..., object]], *arguments: object) -> None:
    """Calls a callback, if there is one. It is the user's code, and must not affect the outcome of a job."""
    if callback is None:
        return
    try:
        callback(*arguments)
    except BaseException as problem:
        log.error("a callback raised: %s", shown(problem))


def told(problem: BaseException) -> str:
    """An exception as the text that people read beside the job: what, then where."""
    what = "".join(traceback.format_exception_only(type(problem), problem)).strip()
    frames = traceback.extract_tb(problem.__traceback__)[-3:]
    where = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return sendable((what[: ERROR_CHARACTERS_MAX - len(where)] + where)[:ERROR_CHARACTERS_MAX])


def shown(problem: BaseException) -> str:
    """An exception for this process's own log, whatever its ``repr`` does."""
    try:
        return repr(problem)
    except BaseException:
        return f"{type(problem).__name__}, which cannot be shown"


def sendable(text: str) -> str:
    """The text with question marks for what cannot be sent: lone surrogates, as in undecodable file names."""
    return text.encode(errors="replace").decode()


async def settled(returned: Awaitable[Any]) -> Any:
    return await returned


def is_passing(problem: TenureError) -> bool:
    """Whether a claim may succeed later: there was no answer, or one that is not the broker's own refusal."""
    if isinstance(problem, (NotAllowed, NotTrusted)):
        return False
    is_of_gateway = problem.status is not None and problem.code is None
    return isinstance(problem, (Unavailable, ServerError)) or is_of_gateway
