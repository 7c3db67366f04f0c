"""Elections over HTTP: one of many programs leads at a time.

What is guaranteed
    ``is_leader()`` is never true in two candidates of one election at the same time, as long as the rates of their
    hosts' clocks differ by less than a tenth. An answer is valid for as long as it said, counted from *before* the
    request was sent, on a clock that counts time spent suspended if there is one. A slow answer never makes leadership
    last longer. Every term has a greater number than all terms before it.

What is not
    A program that is paused between calling ``is_leader()`` and acting acts late. Send ``token`` to everything that the
    work writes to, and let the receiver refuse a smaller one. A candidate belongs to the object that made it: two
    programs under one name are two candidates.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Callable, Iterator, Optional

from . import clock
from .errors import Conflict, Invalid, NotAllowed, NotFound, NotLeading, NotTrusted, TenureError
from .types import Candidate, Json, Leader, Outcome, Standing
from .wire import quoted

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Candidacy", "Election", "Leadership"]

log = logging.getLogger("tenure.election")


class Trust:
    """Until when leadership is trusted. Once it has been seen to be over, it stays over.

    >>> time = [100.0]
    >>> trust = Trust(now=lambda: time[0])
    >>> trust.extend(sent_at=99.0, valid_for=5.0)
    >>> trust.remaining()
    4.0
    >>> time[0] = 104.0
    >>> trust.remaining()
    0.0
    >>> trust.extend(sent_at=103.9, valid_for=5.0)
    >>> trust.remaining()
    0.0
    """

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        self._now = now
        self._owner = os.getpid()
        self._until: Optional[float] = None
        self._over = False
        self._lock = threading.Lock()

    def extend(self, sent_at: float, valid_for: float) -> None:
        """A request sent at ``sent_at`` was answered: leadership is valid for ``valid_for`` seconds."""
        with self._lock:
            if self._until is not None and self._now() >= self._until:
                self._over = True
            # An answer that overtook a later one must not shorten what that one confirmed.
            self._until = max(self._until or 0.0, sent_at + valid_for)

    def end(self) -> None:
        """Leadership is over, whatever the clock says."""
        with self._lock:
            self._over = True

    def remaining(self) -> float:
        """Seconds left; 0 when it is over."""
        if os.getpid() != self._owner:
            # A forked child does not hear when its parent stops leading. The lock may be held by a thread that it lacks.
            return 0.0
        with self._lock:
            if self._over or self._until is None:
                return 0.0
            left = self._until - self._now()
            if left <= 0:
                self._over = True
            return max(0.0, left)


class Leadership:
    """One term of this program: from :meth:`Election.leading`.

    ``term`` is its number, and ``token`` is the fencing token to send along. In a forked child it is over.
    """

    def __init__(self, election: str, term: int, token: str) -> None:
        self.term, self.token = term, token
        self._election = election
        self._trust = Trust()
        self._ended = threading.Event()

    def is_leader(self) -> bool:
        """Whether this program leads right now. Once False, always False for this object. Makes no request."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """For how many more seconds it leads at least without another answer; 0 when it is over."""
        left = self._trust.remaining()
        if left <= 0:
            self._ended.set()
        return left

    def check(self) -> None:
        """Raises :class:`NotLeading` unless this program leads right now."""
        if not self.is_leader():
            raise NotLeading(f"term {self.term} of {self._election} is over")

    def wait(self, seconds: float) -> bool:
        """Sleeps, at most until leadership ends. Returns whether this program still leads."""
        wake_at = clock.now() + seconds
        while True:
            left = self.remaining()
            pause = min(wake_at - clock.now(), left)
            if left <= 0 or pause <= 0:
                return left > 0
            # Trust may be renewed meanwhile; then this wakes early and looks again.
            self._ended.wait(pause)

    def __repr__(self) -> str:
        return f"Leadership(election={self._election!r}, term={self.term})"


class Candidacy:
    """A one-shot candidate: what elections over HTTP and those directly on a database share."""

    def __init__(self, name: str, candidate: Optional[str], ttl: float) -> None:
        if ttl <= 0:
            raise ValueError("ttl must be more than 0 seconds")
        self.name = name
        self.candidate = candidate or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.ttl = ttl
        # A candidate that was asked to resign leaves the next term to others until then.
        self._stands_from = 0.0

    def elect(self, *, timeout: Optional[float] = None) -> Outcome:
        """Enters the election or renews the candidate, and leads if nobody else does."""
        raise NotImplementedError

    def unregister(self, *, timeout: Optional[float] = None) -> None:
        """Withdraws from the election, and releases the leadership if it leads."""
        raise NotImplementedError

    @contextlib.contextmanager
    def leading(self, timeout: Optional[float] = None) -> Iterator[Leadership]:
        """Waits until this program leads, keeps the leadership while the block runs, and releases it at the end.

        Check ``leadership.is_leader()`` in the block: leadership can end before the block does. Raises
        ``TimeoutError`` if another program leads for ``timeout`` seconds.
        """
        ended = threading.Event()
        keeper: Optional[threading.Thread] = None
        owner = os.getpid()
        leadership: Optional[Leadership] = None
        try:
            leadership = self._win(timeout)
            keeper = threading.Thread(
                target=self._keep, args=(leadership, ended), name=f"tenure-{self.name}", daemon=True
            )
            keeper.start()
            yield leadership
        finally:
            # A forked child that leaves the block must not release what its parent leads.
            if os.getpid() == owner:
                ended.set()
                # Stop the keeper first: its next call after the resignation would enter the election again.
                if keeper is not None:
                    keeper.join()
                self._leave(leadership)

    def _leave(self, leadership: Optional[Leadership]) -> None:
        if leadership is not None:
            leadership._trust.end()
            leadership._ended.set()
        try:
            self.unregister(timeout=self.ttl)
        except TenureError as problem:
            log.warning("could not withdraw from %s; the candidate expires after its ttl: %s", self.name, problem)

    def _win(self, timeout: Optional[float]) -> Leadership:
        give_up_at = None if timeout is None else clock.now() + timeout
        while True:
            stands_back = self._stands_from - clock.now()
            if stands_back > 0:
                if give_up_at is not None and give_up_at < self._stands_from:
                    time.sleep(max(0.0, give_up_at - clock.now()))
                    raise TimeoutError(f"{self.candidate} was asked to resign and stays out of {self.name} for now")
                time.sleep(stands_back)
            sent_at = clock.now()
            try:
                outcome = self.elect()
                if outcome.asked_by is not None:
                    # Releases what an earlier block led and could not release.
                    self.unregister()
                elif outcome.is_leader:
                    leadership = Leadership(self.name, outcome.term or 0, outcome.token or "")
                    leadership._trust.extend(sent_at, outcome.trusted_until - sent_at)
                    if leadership.is_leader():
                        return leadership
            except TenureError as problem:
                if not is_passing(problem):
                    raise
                log.warning("cannot take part in %s at the moment: %s", self.name, problem)
            pause = self.ttl * 0.3
            if give_up_at is not None:
                remaining = give_up_at - clock.now()
                if remaining <= 0:
                    raise TimeoutError(f"{self.candidate} does not lead {self.name} yet")
                pause = min(pause, remaining)
            time.sleep(pause)

    def _keep(self, leadership: Leadership, ended: threading.Event) -> None:
        """Renews the leadership until the block ends or it is lost."""
        while not ended.wait(self.ttl * 0.3):
            try:
                outcome = self.elect(timeout=self.ttl * 0.3)
            except TenureError as problem:
                # Trust stays unchanged: the next attempt comes soon, and the clock ends trust in time.
                log.warning("could not renew the leadership of %s: %s", self.name, problem)
                continue
            except Exception:
                log.exception("could not renew the leadership of %s", self.name)
                continue
            if not outcome.is_leader or outcome.term != leadership.term:
                leadership._trust.end()
                leadership._ended.set()
                if outcome.asked_by is not None:
                    self._stands_from = clock.now() + self.ttl
                    log.info("%s asked this program to resign the leadership of %s", outcome.asked_by, self.name)
                    return
                log.warning("the leadership of %s was lost in term %s", self.name, leadership.term)
                return
            leadership._trust.extend(outcome.trusted_until, 0.0)
            if not leadership.is_leader():
                return


class Election(Candidacy):
    """An election in which this program is the candidate ``candidate``.

    ``ttl`` is how many seconds a dead program keeps the leadership: a shorter ttl means faster takeover, and more
    requests to the store.

    >>> election = client.election("reports", "web-1")
    >>> with election.leading() as leadership:
    ...     leadership.is_leader(), leadership.term
    (True, 1)

    ``leading()`` waits until this program leads. A separate thread renews the leadership while the block runs, and it is
    released at the end of the block. A leader that runs for ever::

        while True:
            with election.leading() as leadership:
                while leadership.wait(60):
                    make_report(fence=leadership.token)
    """

    def __init__(self, client: Client, name: str, candidate: Optional[str] = None, *, ttl: float = 10.0) -> None:
        super().__init__(name, candidate, ttl)
        self._client = client
        self._path = f"/v1/elections/{quoted(name)}"
        self._own = f"{self._path}/candidates/{quoted(self.candidate)}"
        # Proves that the candidate is this one. Changed after each withdrawal, so that a late or repeated withdrawal
        # cannot end a later candidacy.
        self._secret_of, self._secret_kept = os.getpid(), secrets.token_hex(16)

    @property
    def _secret(self) -> str:
        # A forked child is another candidate: it must not withdraw its parent.
        if os.getpid() != self._secret_of:
            self._secret_of, self._secret_kept = os.getpid(), secrets.token_hex(16)
        return self._secret_kept

    def elect(self, *, timeout: Optional[float] = None) -> Outcome:
        """Enters the election or renews the candidate, and leads if nobody else does.

        >>> client.election("nightly", "host-1").elect().is_leader
        True
        >>> client.election("nightly", "host-2").elect().leader.node
        'host-1'
        """
        # Taken before the first of possibly several sendings: a time earlier than the answered sending is safe.
        sent_at = clock.now()
        body = {"candidate": self.candidate, "ttl_ms": round(self.ttl * 1000), "secret": self._secret}
        answer = self._client._call(
            "POST", f"{self._path}/elect", body, timeout=self.ttl if timeout is None else timeout
        ).body
        valid_for = float(answer.get("valid_for_ms") or 0) / 1000
        token: Json = answer.get("token")
        return Outcome(
            leader=Leader.of(answer.get("leader")),
            is_leader=bool(answer["is_leader"]) and valid_for > 0,
            term=answer.get("term"),
            token=None if token is None else str(token),
            trusted_until=sent_at + valid_for,
            asked_by=answer.get("asked_by"),
            reserved_for=answer.get("reserved_for"),
        )

    def register(self) -> None:
        """Enters the election without trying to lead."""
        self._client._call("PUT", self._own, {"ttl_ms": round(self.ttl * 1000), "secret": self._secret})

    def unregister(self, *, timeout: Optional[float] = None) -> None:
        """Withdraws from the election, and releases the leadership if it leads.

        If this fails, the candidate expires after its ttl. Entering again is always safe: it is a new candidate.
        """
        secret, self._secret_kept = self._secret, secrets.token_hex(16)
        self._client._call("DELETE", self._own, {"secret": secret}, timeout=timeout)

    def standing(self) -> Standing:
        """The leader, its term, and the candidates."""
        body = self._client._call("GET", self._path).body
        return Standing(
            leader=Leader.of(body.get("leader")),
            term=body.get("term"),
            candidates=tuple(Candidate(item["id"], item["ttl_ms"]) for item in body.get("candidates", [])),
        )


def is_passing(problem: TenureError) -> bool:
    """Whether waiting may help: the nodes are unavailable, or the election is contended."""
    return not isinstance(problem, (Conflict, Invalid, NotAllowed, NotFound, NotTrusted))
