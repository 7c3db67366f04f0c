"""Combines calls that are made at the same time into batches.

The first call is sent at once, in the thread that makes it. Calls of other threads meanwhile become the next batch. So
a lone caller never waits for others, and many share requests and commits. There is no timer.

What is guaranteed
    Each caller gets its own answer. A batch is only a means of transport: a caller whose item was not simply done, or
    whose batch failed, makes its own call with the time that it has left. That is safe since only repeatable calls are
    batched. One bad item does not affect the others.

    A slow batch does not delay others for long: after ``PATIENCE`` seconds the next one is sent in parallel. Batches
    are bounded in number and bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Generic, Optional, Sequence, TypeVar

from . import clock
from .errors import TenureError, Unknown

__all__ = ["Together"]

#: The most items of a batch, and the most bytes that they may have together: by default, a broker accepts 1,000, and 1
#: MiB.
BATCH_MAX = 1_000
BATCH_BYTES_MAX = 512 * 1024

#: How long a batch may keep the next one waiting.
PATIENCE = 0.25

Done = TypeVar("Done")

#: Makes one call for all items, within a number of seconds. Returns one answer each, in order; None for one that was
#: not simply done.
SendAll = Callable[[Sequence[bytes], float], Sequence[Optional[Done]]]

#: Makes a caller's own call, within a number of seconds. Gets whether it was sent before, and may have been carried
#: out.
Alone = Callable[[float, bool], Done]


class Together(Generic[Done]):
    """Batches calls that are made at the same time."""

    def __init__(self, send_all: SendAll[Done]) -> None:
        self._send_all = send_all
        self._lock = threading.Lock()
        self._waiting: deque[_Call[Done]] = deque()
        self._sending = 0

    def call(self, item: bytes, timeout: float, alone: Alone[Done]) -> Done:
        """Makes a call for ``item``, with others or ``alone``."""
        call: _Call[Done] = _Call(item, clock.now() + timeout)
        with self._lock:
            self._waiting.append(call)
            leads = self._sending == 0
            self._sending += leads
        if not leads:
            call.woken.wait(min(PATIENCE, timeout))
            with self._lock:
                # It was promoted, or has waited long enough.
                leads = not call.is_taken
                if leads and not call.is_promoted:
                    self._sending += 1
                elif call.is_promoted and not leads:
                    # A call that had waited long enough was faster.
                    self._pass_on()
        while leads:
            done = self._send_next(call, alone)
            if done is not None:
                return done
            leads = not call.is_taken
            if leads:
                # Too many calls came before it to fit into the batch.
                with self._lock:
                    self._sending += 1
        # Its batch is under way in another thread, which has no more time than any call in it.
        call.ended.wait()
        if call.done is not None:
            return call.done
        left = max(0.001, call.deadline - clock.now())
        return alone(left, call.may_be_done)

    def _send_next(self, own: _Call[Done], alone: Alone[Done]) -> Optional[Done]:
        """Sends the waiting calls as one batch, and then wakes the next sender. Returns the answer of this thread's own
        call if it was the only one.
        """
        batch: list[_Call[Done]] = []
        try:
            with self._lock:
                batch = self._take()
            if batch == [own]:
                return alone(max(0.001, own.deadline - clock.now()), False)
            if len(batch) > 1:
                self._send(batch)
            return None
        finally:
            with self._lock:
                self._pass_on()
            for call in batch:
                call.ended.set()

    def _pass_on(self) -> None:
        self._sending -= 1
        if self._sending == 0 and self._waiting:
            self._sending += 1
            self._waiting[0].is_promoted = True
            self._waiting[0].woken.set()

    def _take(self) -> list[_Call[Done]]:
        batch: list[_Call[Done]] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MAX:
            size += len(self._waiting[0].item)
            if batch and size > BATCH_BYTES_MAX:
                break
            call = self._waiting.popleft()
            call.is_taken = True
            call.woken.set()
            batch.append(call)
        return batch

    def _send(self, batch: Sequence[_Call[Done]]) -> None:
        left = max(0.001, min(call.deadline for call in batch) - clock.now())
        try:
            answers = self._send_all([call.item for call in batch], left)
        except TenureError as problem:
            may_be_done = problem.resent or isinstance(problem, Unknown)
            for call in batch:
                call.may_be_done = may_be_done
            return
        except BaseException:
            for call in batch:
                call.may_be_done = True
            raise
        for call, done in zip(batch, answers):
            call.done = done


class _Call(Generic[Done]):
    __slots__ = ("item", "deadline", "woken", "ended", "is_taken", "is_promoted", "done", "may_be_done")

    def __init__(self, item: bytes, deadline: float) -> None:
        self.item = item
        self.deadline = deadline
        #: Set when it should send the next batch, or is in one.
        self.woken = threading.Event()
        #: Set when its batch has ended, or it was the only call in it.
        self.ended = threading.Event()
        self.is_taken = False
        self.is_promoted = False
        self.done: Optional[Done] = None
        #: Whether its batch got no answer, and may have been carried out.
        self.may_be_done = False
