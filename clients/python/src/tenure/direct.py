"""Elections directly on your own database, without a broker.

The same tables, records and rules as ``tenure elect`` and every other part of Tenure on PostgreSQL, MySQL, MariaDB and
SQLite: they are candidates of one election together.

What is guaranteed
    At most one candidate sees itself as leader at a time, as long as the rates of the hosts' clocks differ by less than a
    tenth. Trust counts from *before* a write was sent. Every term has a greater number than all terms before it, and the
    fence is raised before a term is led. Clocks of two hosts are never compared.

    A lease is taken only if it is vacant, or if the session of its holder has ended, or if that session was seen
    unchanged for its whole ttl, on one clock that cannot be set. A call notes what it saw in its own session, for a
    later call of the same candidate on the same host. With SQLite, processes of one host know how old a version is.

    Each write is one conditional statement in its own transaction. If the answer is lost, the row is read back.

What is not
    A program that is paused between asking and acting acts late: fence what it writes (:func:`tenure.fence`). Two programs
    that call :meth:`DatabaseElection.elect` under one name are one candidate, as with ``tenure elect``;
    :meth:`DatabaseElection.leading` is a new candidate each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import secrets
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import clock
from .database import Conflicted, Connection, Database, Object, Store
from .election import Candidacy, Leadership
from .errors import Invalid, NotFound, NotLeading, Unavailable, Unknown
from .records import (
    GLANCE_MAX,
    RESERVED_MAX,
    Fence,
    Holder,
    Lease,
    Session,
    Sighting,
    Unreadable,
    check_name,
    nonce,
    unique,
    wall_ms,
)
from .types import Candidate, Leader, Outcome, Standing

__all__ = ["DatabaseElection"]

log = logging.getLogger("tenure.election")

#: How often a write is tried against others, or an unknown answer settled, before the call fails.
_ATTEMPTS_MAX = 20
#: How long a call tries, in seconds, unless the protocol makes it wait. A ttl may be a day.
_CALL_MAX = 30.0
_TTL_MIN, _TTL_MAX = 0.2, 24 * 3600.0
#: How long a dead candidate is kept: this many times its ttl, and at least this many seconds.
_KEPT_TTLS, _KEPT_MIN = 10, 60.0
#: How often a lasting candidate looks for dead ones while its note is too young: at one call in this many.
_LOOKS_ONCE_IN = 16
#: How many sessions of others one look reads, and how many it removes.
_LOOKED_AT, _REMOVED_AT_ONCE = 4, 4
#: How many candidates with different secrets may have one name: each call of one reads all of them.
_STANDING_MAX = 8
#: How many sessions one candidate may have, for elections with different ttls. With more ttls, some share a session.
_TTLS_MAX = 4
#: The version of a session that does not exist.
_MISSING = "missing"
#: Prefix for versions of leases, so that they cannot be confused with versions of sessions.
_LEASE = "lease "


class DatabaseElection(Candidacy):
    """An election in your own database, in which this program is the candidate ``candidate``.

    ``database`` is SQLAlchemy's ``Engine``, or a function that returns a new connection of psycopg, PyMySQL, mysqlclient or
    sqlite3. The table ``tenure_objects`` is made at the first call if there is none. ``ttl`` is how many seconds a dead
    program keeps the leadership, from 0.2 seconds to a day.

    >>> import sqlite3, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "app.db")
    >>> election = DatabaseElection(lambda: sqlite3.connect(path), "reports", "web-1", ttl=60)
    >>> answer = election.elect()
    >>> answer.is_leader, answer.term
    (True, 1)
    >>> DatabaseElection(lambda: sqlite3.connect(path), "reports", "web-2", ttl=60).elect().leader.node
    'web-1'
    >>> election.unregister()

    A leader that stays calls :meth:`elect` again within its ttl, at best every third of it; :meth:`leading` does that
    in a thread.
    """

    def __init__(
        self, database: Any, name: str = "default", candidate: Optional[str] = None, *, ttl: float = 10.0,
        namespace: str = "default",
    ) -> None:  # fmt: skip
        if not isinstance(ttl, (int, float)) or not _TTL_MIN <= ttl <= _TTL_MAX:
            raise Invalid(f"ttl {ttl!r} is not between {_TTL_MIN} and {_TTL_MAX:.0f} seconds")
        super().__init__(check_name("the election name", name), candidate, ttl)
        if name.startswith("tenure."):
            raise Invalid(f"the election name {name!r} is reserved for Tenure's own elections; choose another name")
        check_name("the candidate", self.candidate)
        self.namespace = check_name("the namespace", namespace)
        self._database = database if isinstance(database, Database) else Database(database)
        self._secret_digest: Optional[str] = None
        # The versions that this object has seen, by key, and since when, on this process's clock.
        self._standing: Dict[Tuple[str, bool], Tuple[str, float]] = {}
        self._private: Optional[DatabaseElection] = None

    def elect(self, *, timeout: Optional[float] = None, connection: Optional[Connection] = None) -> Outcome:
        """Enters the election or renews the candidate, and leads if nobody else does.

        Returns at once if someone else leads. After the lease was deleted it waits for a ttl, as the protocol has to.

        With ``connection``, a connection, SQLAlchemy session or Django connection with an open transaction of your own,
        all of this is part of that transaction: nothing is committed here, and **the answer counts only once you have
        committed**. If you roll back, nothing has happened. The lease stays locked until then, so that it can be
        neither taken nor released: keep the transaction short. The driver's errors are passed on unchanged; roll back
        and try again. Raises :class:`Unavailable` where it would have to wait.
        """
        with self._opened(connection, makes=True) as store:
            return _Call(self, store, timeout).elect()

    def register(self, *, connection: Optional[Connection] = None) -> None:
        """Enters the election, or renews the candidate, without trying to lead."""
        with self._opened(connection, makes=True) as store:
            _Call(self, store).beat(None)

    def unregister(
        self, *, term: Optional[int] = None, timeout: Optional[float] = None, connection: Optional[Connection] = None
    ) -> None:
        """Withdraws from the election, after releasing the leadership if it leads. End the work that needs it first.

        With ``term``, only if it leads that term, otherwise :class:`NotLeading`: a late or repeated withdrawal does not
        affect a later term. ``connection`` is as in :meth:`elect`.
        """
        try:
            with self._opened(connection, makes=False) as store:
                if not _Call(self, store, timeout).withdraw(term):
                    raise NotLeading(f"{self.candidate} does not lead term {term} of {self.name}; nothing was changed")
        except NotFound:
            if term is not None:
                raise NotLeading(f"{self.candidate} does not lead term {term} of {self.name}") from None
        finally:
            if self._secret_digest is not None:
                # Entering again makes a new candidate, which a late withdrawal cannot end.
                self._secret_digest = _digest()

    def standing(self) -> Standing:
        """The leader, its term, and the candidates, as the store has them now. To act on it, use :meth:`elect`."""
        try:
            with self._opened(None, makes=False) as store:
                return _Call(self, store).standing()
        except NotFound:
            return Standing(None, None, ())

    @contextlib.contextmanager
    def leading(self, timeout: Optional[float] = None) -> Iterator[Leadership]:
        """Waits until this program leads, keeps the leadership while the block runs, and releases it at the end.

        Each of these blocks is a separate candidate: two programs with the same name exclude each other. Raises
        ``TimeoutError`` if another leads for ``timeout`` seconds.
        """
        if self._private is None:
            self._private = DatabaseElection(
                self._database, self.name, self.candidate, ttl=self.ttl, namespace=self.namespace
            )
            self._private._secret_digest = _digest()
        with Candidacy.leading(self._private, timeout) as leadership:
            yield leadership

    def leadership(self, outcome: Outcome) -> Leadership:
        """The term of an answer of :meth:`elect`, to check whether it is still valid and to fence a transaction.

        >>> import sqlite3, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "app.db")
        >>> election = DatabaseElection(lambda: sqlite3.connect(path), "reports", "web-1", ttl=60)
        >>> leadership = election.leadership(election.elect())
        >>> connection = sqlite3.connect(path)
        >>> with connection, fence(connection, leadership):
        ...     cursor = connection.execute("CREATE TABLE reports (term INTEGER)")
        >>> leadership.is_leader()
        True
        """
        if not outcome.is_leader or outcome.term is None or outcome.token is None:
            raise NotLeading(f"{self.candidate} does not lead {self.name}")
        leadership = Leadership(self.name, outcome.term, outcome.token)
        leadership._trust.extend(outcome.trusted_until, 0.0)
        return leadership

    def _opened(self, connection: Optional[Connection], *, makes: bool) -> ContextManager[Store]:
        if connection is None:
            return self._database.opened(makes=makes)
        return self._database.borrowed(connection, self.ttl)


def _digest() -> str:
    return hashlib.sha256(secrets.token_bytes(32)).hexdigest()


class _Standing(NamedTuple):
    """A session of a candidate, as stored."""

    session: Session
    version: str
    age: Optional[float]


class _Found:
    """The sessions of calls under one name: the caller's own, further ones of the caller, and the number of other live
    ones."""

    def __init__(self) -> None:
        self.own: Optional[_Standing] = None
        self.own_others: List[_Standing] = []
        self.others = 0


class _Trusted(NamedTuple):
    """A session as this call has written it, and until when it is trusted."""

    session: Session
    until: float


class _Seen(NamedTuple):
    """A lease, and when the look that showed it was begun."""

    lease: Lease
    version: str
    age: Optional[float]
    looked: float


class _Asked(Exception):
    """The caller holds the lease, and is asked to resign."""


class _Call:
    """One call: reads and writes in turn, until there is an answer."""

    def __init__(self, election: DatabaseElection, store: Store, timeout: Optional[float] = None) -> None:
        self.election, self.store = election, store
        self.name, self.node, self.ttl = election.name, election.candidate, election.ttl
        self.ttl_ms = round(election.ttl * 1000)
        # Derived from the ttl, as for every session.
        self.margin, self.grace, self.heartbeat = self.ttl / 10, self.ttl / 5, self.ttl * 0.3
        self.begun = clock.now()
        most = min(_CALL_MAX, self.ttl * 3)
        self.give_up = self.begun + (most if timeout is None else min(timeout, _CALL_MAX))
        self.writes = 0
        self.has_written_lease = False
        self.had_lease = False
        self.new_lineage = ""
        self.noted: Optional[Sighting] = None
        self.sighting: Optional[Sighting] = None

    # ------------------------------------------------------------------ the answer

    def elect(self) -> Outcome:
        found = self.find()
        if found.own is not None:
            seen = self.read_lease()
            if seen is not None:
                asked = self.asked(found.own, seen)
                if asked is not None:
                    return asked
        trusted = self.beat(found)
        self.noted = trusted.session.seen(self.name)
        try:
            won = self.compete(trusted)
        except _Asked:
            # It was asked to resign after the first look, and before it gets an answer.
            found, seen = self.find(), self.read_lease()
            answer = None if found.own is None or seen is None else self.asked(found.own, seen)
            if answer is None:
                raise self.contended() from None
            return answer
        if isinstance(won, Outcome):
            if self.sighting is not None:
                self.keep(self.sighting)
            return won
        trusted, seen, lineage = won
        me, lease = trusted.session.holder, seen.lease
        if self.has_written_lease and not self.still_stands(me):
            self.give_back(me, None)
            raise self.contended()
        until = min(trusted.until, seen.looked + self.ttl - self.margin)
        if clock.now() - self.begun >= self.heartbeat and not self.store.is_borrowed:
            until = self.renewed(trusted, lease, until)
        assert lease.holder is not None
        if lease.holder.ttl < self.ttl:
            # A term that was begun with a shorter ttl ends that much sooner after a request.
            until -= 0.9 * (self.ttl - lease.holder.ttl)
        is_leader = until > clock.now()
        leader = Leader(me.node, {"node": me.node, "incarnation": me.incarnation, "term": lease.term})
        token = f"{lineage}:{lease.term}" if is_leader else None
        return Outcome(leader, is_leader, lease.term, token, until)

    def renewed(self, trusted: _Trusted, lease: Lease, until: float) -> float:
        """Renews the trust of a caller that had to wait, so that it may act as long as one that led at once."""
        try:
            again = self.beat(None)
            seen = self.read_lease()
        except Unavailable:
            return until
        me = trusted.session.incarnation
        if again.session.incarnation != me or seen is None or not seen.lease.is_held_by(me):
            return until
        if seen.lease.term != lease.term or seen.lease.request is not None:
            return until
        return min(again.until, seen.looked + self.ttl - self.margin)

    def asked(self, own: _Standing, seen: _Seen) -> Optional[Outcome]:
        """The answer if the candidate leads and is asked to resign. Its session is not renewed for this election.

        Earlier answers are valid for less than a ttl after the request was written. When that time is over, the lease
        is released here. It cannot be released sooner: the caller acts on it until it has this answer.
        """
        lease, me = seen.lease, own.session.incarnation
        request = lease.request
        if request is None or not lease.is_held_by(me) or request.to is not None and request.to.incarnation == me:
            return None
        noted = own.session.seen(self.name)
        version = f"{_LEASE}{seen.version}"
        # Not by the age of the lease: that may count from before an earlier call of this candidate, which saw no request yet.
        stood = None if noted is None else noted.age(me, version, clock.host(), clock.now_ns())
        if own.age is not None and own.age >= own.session.ttl:
            self.withdraw(None)
        elif stood is not None and stood >= own.session.ttl:
            self.give_back(own.session.holder, lease.term)
        elif stood is None:
            sighting = self.sighted(me, version)
            if sighting is not None:
                # Once for each request: this renews the session as well.
                self.keep(sighting)
        return Outcome(None, False, None, None, 0.0, asked_by=request.by)

    def standing(self) -> Standing:
        seen = self.read_lease()
        candidates: List[Tuple[int, Candidate]] = []
        leader: Optional[Leader] = None
        for key, _ in self.store.list(self.key("nodes")):
            object = self.store.get(key)
            session = _session(object)
            if object is None or session is None or session.state != "alive" or not session.stands_in(self.name):
                continue
            # No lease is taken because of this, so a clock that can be set is good enough.
            if _shown(object.age, object) >= session.ttl:
                continue
            priority = session.record["stands"][self.name]
            candidates.append((-int(priority), Candidate(session.node, int(session.record["ttl_ms"]))))
            if seen is not None and seen.lease.is_held_by(session.incarnation):
                raw = {"node": session.node, "incarnation": session.incarnation, "term": seen.lease.term}
                leader = Leader(session.node, raw)
        term = None if seen is None or leader is None else seen.lease.term
        candidates.sort(key=lambda candidate: candidate[0])
        return Standing(leader, term, tuple(candidate for _, candidate in candidates))

    # ------------------------------------------------------------------ the lease

    def compete(self, trusted: _Trusted) -> Any:
        """Takes the lease if that is allowed, and raises the fence. An Outcome if another candidate leads, or should
        follow."""
        seen: Optional[_Seen] = None
        while True:
            self.check_time()
            try:
                if clock.now() + self.grace >= trusted.until:
                    trusted = self.renew(trusted)
                me = trusted.session.holder
                seen = seen or self.read_lease()
                has_no_fence = False
                if seen is None:
                    taken = self.begin(me)
                    if taken is None:
                        continue
                    seen, has_no_fence = taken
                elif not seen.lease.is_held_by(me.incarnation):
                    free = self.free(seen, me)
                    if isinstance(free, Outcome):
                        return free
                    lease = seen.lease.next(
                        writer=self.writer(me), reason=free, term=seen.lease.term + 1, holder=me
                    )
                    seen = self.write_lease(lease, seen.version)
                installed = self.install(trusted, seen, has_no_fence)
                if installed is not None:
                    return installed
            except Conflicted:
                pass
            except Unavailable as error:
                if self.store.is_borrowed or clock.now() >= self.give_up:
                    raise
                log.debug("trying again: %s", error)
                self.pause(min(self.heartbeat / 8, 5.0))
            # Someone else's write, or our own that landed: look.
            seen = None

    def begin(self, me: Holder) -> Optional[Tuple[_Seen, bool]]:
        """Creates a missing lease, with a term above the fence's; if there is no fence, a new lineage begins."""
        fence = self.read_fence()
        if fence is None:
            self.new_lineage = unique()
            lease = Lease(self.new_lineage, 1, self.writer(me), me, wall_ms())
            return self.write_lease(lease, None), True
        # The first leader may just have written both.
        if self.read_lease() is not None:
            return None
        log.error("the lease of %s is missing although term %s was led; continuing with a higher term", self.name, fence[0].term)
        lease = Lease(fence[0].lineage, fence[0].term + 1, self.writer(me), me, wall_ms())
        return self.write_lease(lease, None), False

    def free(self, seen: _Seen, me: Holder) -> Any:
        """The reason why the lease may be taken, for the history; or an Outcome with its holder."""
        lease = seen.lease
        candidate = lease.reserved_for
        if candidate is not None:
            if candidate.incarnation == me.incarnation:
                return "unknown"
            stood = self.stood_lease(seen, candidate.incarnation)
            if self.ended(candidate, me, is_reserved=True) is not None or stood >= min(candidate.ttl, RESERVED_MAX):
                return "unknown"
            return Outcome(None, False, None, None, 0.0, reserved_for=candidate.node)
        holder = lease.holder
        if holder is None:
            return "unknown"
        why = self.ended(holder, me)
        if why is not None:
            return why
        if lease.lapsing() and lease.request is not None:
            request, stood = lease.request, self.stood_lease(seen, holder.incarnation)
            # Other candidates leave it to the designated successor for a while.
            follows = request.to is None or request.to.incarnation == me.incarnation
            wait = holder.ttl if follows or request.to is None else holder.ttl + min(request.to.ttl, RESERVED_MAX)
            if stood >= wait:
                asked = f"asked to resign by {request.by}"
                if request.to is not None:
                    asked = f"asked by {request.by} to hand over to {request.to.node}"
                return f"{asked}, and its time was over"
        raw = {"node": holder.node, "incarnation": holder.incarnation, "term": lease.term}
        return Outcome(Leader(holder.node, raw), False, lease.term, None, 0.0)

    def ended(self, holder: Holder, me: Holder, is_reserved: bool = False) -> Optional[str]:
        """How the session of a holder ended, if it did: then its lease is free. Evicts it if it has not changed for its
        ttl."""
        key = self.session_key(holder)
        for _ in range(_ATTEMPTS_MAX):
            object = self.store.get(key)
            if object is None:
                if is_reserved:
                    return "its session was missing"
                # A borrowed transaction may see an old snapshot, from before the session was created.
                stood = None if self.store.is_borrowed else self.stood(holder.incarnation, _MISSING)
                return "its session was missing" if stood is not None and stood >= holder.ttl else None
            session = _session(object)
            if session is None:
                return None
            if session.state == "gone":
                return "lost its session" if session.record.get("lost") else "left"
            if session.state == "evicted":
                return "evicted"
            stood = object.age if object.age is not None else self.stood(holder.incarnation, object.version)
            if stood is None or stood < session.ttl:
                return None
            session.evict(me.node)
            try:
                self.store.put(key, session.encode(), object.version)
                return "evicted"
            except (Conflicted, Unknown):
                # A heartbeat or another observer was faster: read again.
                continue
        return None

    def install(self, trusted: _Trusted, seen: _Seen, has_no_fence: bool) -> Optional[Tuple[_Trusted, _Seen, str]]:
        """The lease is ours. Raises the fence; over another leader's term only when that one no longer leads.

        None if the lease has to be read again.
        """
        me, since = trusted.session.holder, clock.now()
        while True:
            if clock.now() >= since + self.ttl:
                # Let someone else try.
                self.give_back(me, None)
                raise self.contended()
            lease, term = seen.lease, seen.lease.term
            # There was no fence before the lease was ours. If there is one by now, it is not overwritten, and then it
            # is read.
            read = None if has_no_fence else self.read_fence()
            has_no_fence = False
            waits = 0.0
            if read is None:
                lineage, expected = lease.lineage, None
                if term > 1:
                    log.error("the fence of %s is missing although term %s was reached", self.name, term - 1)
                # With a history, the lease itself shows who led last, and that this term ended.
                if not lease.history and (self.had_lease_before(seen) or term > 1):
                    waits = self.ttl
            else:
                fence, expected = read
                lineage = fence.lineage
                if (fence.term, fence.holder.incarnation) == (term, me.incarnation):
                    break
                if fence.term >= term or fence.lineage != lease.lineage:
                    log.error("the lease of %s is at term %s but term %s was led; continuing above both", self.name, term, fence.term)
                    above = max(fence.term, term) + 1
                    climbed = lease.next(
                        writer=self.writer(me), reason="its number was already used", lineage=fence.lineage, term=above, holder=me
                    )
                    seen = self.write_lease(climbed, seen.version)
                    since = clock.now()
                    continue
                past = [(entry.get("term"), entry.get("incarnation")) for entry in lease.history]
                if fence.holder.incarnation != me.incarnation and (fence.term, fence.holder.incarnation) not in past:
                    # The lease was deleted or restored. The last leader gets a whole ttl to notice.
                    waits = max(self.ttl, fence.holder.ttl)
            if waits > 0:
                waited = self.wait_out(waits, trusted, seen)
                if waited is None:
                    return None
                trusted, seen = waited
                since = clock.now()
            try:
                self.store.put(self.key("fences", self.name), Fence(lineage, term, me).encode(), expected)
                break
            except (Conflicted, Unknown):
                # It may have been raised by us or by another: read it first.
                continue
        if clock.now() + self.grace >= min(trusted.until, seen.looked + self.ttl - self.margin):
            return None
        request = seen.lease.request
        if request is not None and (request.to is None or request.to.incarnation != me.incarnation):
            raise _Asked()
        return trusted, seen, lineage

    def had_lease_before(self, seen: _Seen) -> bool:
        """Whether this call saw a lease, and then neither lease nor fence."""
        return self.had_lease and seen.lease.lineage == self.new_lineage

    def wait_out(self, seconds: float, trusted: _Trusted, seen: _Seen) -> Optional[Tuple[_Trusted, _Seen]]:
        """Waits until another leader must have noticed that the lease is not its own. None if the lease is not ours any
        more."""
        if self.store.is_borrowed:
            raise Unavailable("the lease was deleted or restored, so a ttl has to pass: call elect without connection=")
        until = clock.now() + seconds
        self.give_up = max(self.give_up, until + _CALL_MAX)
        while clock.now() < until:
            self.pause(min(until - clock.now(), self.heartbeat / 2))
            try:
                if clock.now() + self.grace >= trusted.until:
                    trusted = self.renew(trusted)
                again = self.read_lease()
            except Unavailable as error:
                log.debug("trying again: %s", error)
                continue
            if again is None or not again.lease.is_held_by(trusted.session.incarnation) or again.lease.term != seen.lease.term:
                return None
            seen = again
        return trusted, seen

    def give_back(self, holder: Holder, term: Optional[int]) -> str:
        """Releases the lease if this session holds it, in the given term if there is one; or if it is reserved for this
        session and no term is given. ``"yes"``, ``"not held"`` or ``"other term"``."""
        given_back = "not held"
        give_up = clock.now() + min(_CALL_MAX, self.ttl)
        me = holder.incarnation
        while True:
            try:
                seen = self.read_lease()
                if seen is None:
                    return given_back
                lease, to = seen.lease, None
                reason = "resigned"
                if lease.is_held_by(me):
                    if term is not None and lease.term != term:
                        return "other term"
                    request = lease.request
                    if request is not None and request.to is None:
                        reason = f"resigned, asked by {request.by}"
                    elif request is not None and request.to is not None and request.to.incarnation != me:
                        to, reason = request.to, f"transferred to {request.to.node}"
                    given_back = "yes"
                elif lease.reserved_for is None or lease.reserved_for.incarnation != me or term is not None:
                    return given_back
                self.write_lease(lease.next(writer=self.writer(holder), reason=reason, reserved_for=to), seen.version)
                return given_back
            except Conflicted:
                pass
            except Unavailable:
                if self.store.is_borrowed or clock.now() >= give_up:
                    raise
                self.pause(min(self.heartbeat / 8, 5.0))
            if clock.now() >= give_up:
                raise self.contended()

    def withdraw(self, term: Optional[int]) -> bool:
        """Withdraws the candidate. False if it does not lead the given term."""
        found = self.find()
        if found.own is None:
            return term is None
        if not self.leave(found.own, term, term is not None):
            return False
        for other in found.own_others:
            self.leave(other, term, False)
        return True

    def leave(self, standing: _Standing, term: Optional[int], must_lead: bool) -> bool:
        """Takes one session out of the election. The lease is released first: the holder's session must not be gone
        while it may still act. If another call has written the session meanwhile, everything is done again, since that
        call may have taken the lease."""
        holder = standing.session.holder
        key = self.session_key(holder)
        led, sent = False, None
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            begun = clock.now()
            given_back = self.give_back(holder, term)
            led = led or given_back == "yes"
            if given_back == "other term" or must_lead and not led:
                return False
            session = standing.session.copy()
            if not session.stands_in(self.name):
                return True
            session.leave(self.name)
            self.mark(session)
            try:
                self.store.put(key, session.encode(), standing.version)
                return self.left(key, session)
            except Unknown:
                sent = session
            except Conflicted:
                pass
            object = self.store.get(key, locks=True)
            found = _session(object)
            if object is None or found is None:
                return True
            if sent is not None and sent.nonce == found.nonce:
                return self.left(key, sent)
            if found.state != "alive":
                return True
            standing = _Standing(found, object.version, object.age)
            self.wait_for_a_turn(begun, attempt)
        raise self.busy()

    def left(self, key: str, session: Session) -> bool:
        if session.state == "gone":
            # An incarnation is never used twice, so this is never written again. The next reader tries the deletion
            # again.
            with contextlib.suppress(Unavailable):
                self.store.delete(key)
        else:
            # Another look finds a call that renewed the session before, and takes the lease only now.
            self.give_back(session.holder, None)
        return True

    def still_stands(self, me: Holder) -> bool:
        """A concurrent withdrawal writes the session and then reads the lease; here the lease was written before the
        session is read. So one of them sees the other."""
        session = _session(self.store.get(self.session_key(me), locks=True))
        return session is not None and session.state == "alive" and session.stands_in(self.name)

    # ------------------------------------------------------------------ the session

    def beat(self, found: Optional[_Found]) -> _Trusted:
        """Renews the session, or creates one."""
        found = found or self.find()
        passed: Optional[Dict[str, Any]] = None
        if not self.store.is_borrowed and (found.own is None or self.is_due(found.own.session)):
            with contextlib.suppress(Unavailable):
                passed = self.sweep(None if found.own is None else found.own.session)
        if found.own is None and found.others >= _STANDING_MAX:
            # There may be room now.
            found = self.find()

        def stand(session: Session) -> None:
            session.stand(self.name)
            if passed is not None:
                session.record["passed"] = passed

        trusted = self.write(found, stand, creates=True)
        if trusted is None:
            raise self.busy()
        return trusted

    def renew(self, trusted: _Trusted) -> _Trusted:
        again = self.beat(None)
        if again.session.incarnation != trusted.session.incarnation:
            # Another call has created a second session: trust in one is not trust in the lease that the other holds.
            raise self.contended()
        return again

    def keep(self, sighting: Sighting) -> None:
        """Notes what this call saw of the leader, for the next one on this host."""

        def note(session: Session) -> None:
            # A session that was withdrawn meanwhile must not enter again because of a note.
            if session.stands_in(self.name):
                session.note(self.name, sighting)

        try:
            self.write(None, note, creates=False)
        except Unavailable as error:
            # The result of this call is certain; only a later one has to observe from the start.
            log.warning("could not record what was seen of the leader of %s: %s", self.name, error)

    def write(self, found: Optional[_Found], change: Callable[[Session], None], *, creates: bool) -> Optional[_Trusted]:
        """Changes the session exactly once, even if answers are lost. None if there is none and none should be
        created."""
        # A write of ours whose answer was lost is recognised by its nonce.
        lost: Optional[_Trusted] = None
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            begun = clock.now()
            found = found or self.find()
            own, others, found = found.own, found.others, None
            if own is not None and lost is not None:
                sent = lost.session
                if (own.session.incarnation, own.session.nonce) == (sent.incarnation, sent.nonce):
                    return lost
            expected: Optional[str] = None
            if own is not None:
                session, expected = own.session.copy(), own.version
            elif not creates:
                return lost
            elif others >= _STANDING_MAX:
                raise Unavailable(f"there are already {others} candidates called {self.node} with other secrets")
            elif lost is not None and lost.session.record["counter"] == 1:
                # With the same key as the write that may still be applied, so that at most one of them is.
                session = lost.session.copy()
                session.record["counter"] = 0
            else:
                session = Session.new(self.node, self.ttl_ms, self.election._secret_digest)
            self.mark(session)
            # Never shorter than the time for which an earlier call was told that it may act.
            session.record["ttl_ms"] = max(int(session.record["ttl_ms"]), self.ttl_ms)
            change(session)
            trusted = _Trusted(session, clock.now() + self.ttl - self.margin)
            try:
                self.store.put(self.session_key(session.holder), session.encode(), expected)
                return trusted
            except Conflicted:
                pass
            except Unknown:
                lost = trusted
            self.wait_for_a_turn(begun, attempt)
        raise self.busy()

    def find(self) -> _Found:
        """The session of the candidate that has not ended. An ended one is never revived: the process that ended it may
        be taking its lease, so the candidate starts again as a new incarnation."""
        found = _Found()
        own: List[Tuple[str, _Standing]] = []
        for key, _ in self.store.list(self.key("nodes", self.node)):
            object = self.store.get(key, locks=True)
            session = _session(object)
            if object is None or session is None or not session.is_one_shot:
                continue
            is_alive = session.state == "alive"
            standing = _Standing(session, object.version, object.age)
            if is_alive and session.record.get("secret_digest") == self.election._secret_digest:
                own.append((key, standing))
                continue
            if is_alive and _shown(standing.age, object) < session.ttl:
                found.others += 1
            self.tidy(key, standing, object.age)
        chosen = self.choose([standing.session for _, standing in own])
        for place, (key, standing) in enumerate(own):
            if place == chosen:
                found.own = standing
                continue
            found.others += int(standing.age is None or standing.age < standing.session.ttl)
            self.tidy(key, standing, standing.age)
            found.own_others.append(standing)
        return found

    def choose(self, own: List[Session]) -> Optional[int]:
        """The candidate's session for this election; None if it should get another one. The ttl of a session applies to
        all leases that it holds, so elections share a session only if they have the same ttl."""
        # An abandoned call may have created another session, even much later. That one holds nothing: the one that
        # leads counts.
        seen = self.read_lease() if len(own) > 1 else None
        places, ttls = range(len(own)), [int(session.record["ttl_ms"]) for session in own]
        leads = [place for place in places if seen and seen.lease.is_held_by(own[place].incarnation)]
        stands = [place for place in places if own[place].stands_in(self.name)]
        alike = [place for place in places if ttls[place] == self.ttl_ms]
        # The next longer ttl, or else the longest.
        nearest = sorted(places, key=lambda place: (ttls[place] < self.ttl_ms, abs(ttls[place] - self.ttl_ms)))
        found = leads + stands + alike + (nearest if len(own) >= _TTLS_MAX else [])
        return found[0] if found else None

    def mark(self, session: Session) -> None:
        """Makes this write different from every other."""
        session.record["counter"] = int(session.record["counter"]) + 1
        session.record["nonce"] = nonce()

    # ------------------------------------------------------------------ what others left behind

    def is_due(self, own: Session) -> bool:
        """Whether a lasting candidate should look for dead ones: when its note has become useful, and now and then."""
        age = _glance_age(own.record.get("passed"))
        if age is not None and age < _KEPT_MIN:
            return False
        return age is not None and age >= _kept(own.ttl) or random.randrange(_LOOKS_ONCE_IN) == 0

    def sweep(self, own: Optional[Session]) -> Optional[Dict[str, Any]]:
        """Removes some candidates that have been dead for long. Returns what the caller should note for later callers,
        if anything."""
        listed = [
            (key.rpartition("/")[2], key, version)
            for key, version in self.store.list(self.key("nodes"))
            if own is None or not key.endswith(f"/{own.incarnation}")
        ]
        # The listed versions are at least as old as this moment.
        host, at_ms, wall = clock.host(), -(-clock.now_ns() // 1_000_000), wall_ms()
        random.shuffle(listed)
        quiet: Dict[str, Tuple[str, float]] = {}

        def standing_since(passed: Any) -> None:
            age = _glance_age(passed)
            if age is not None and age >= _KEPT_MIN:
                for incarnation, key, version in listed:
                    if passed["versions"].get(incarnation) == version:
                        # If several have seen a version, the longest time counts.
                        quiet[key] = (version, max(age, quiet.get(key, ("", 0.0))[1]))

        own_age = None
        if own is not None:
            own_age = _glance_age(own.record.get("passed"))
            standing_since(own.record.get("passed"))
        for _, key, _ in listed[:_LOOKED_AT]:
            object = self.store.get(key)
            session = _session(object)
            if object is not None and session is not None and session.is_one_shot:
                standing_since(session.record.get("passed"))
                self.tidy(key, _Standing(session, object.version, object.age), object.age)
        dead = list(quiet.items())
        random.shuffle(dead)
        for key, (version, stood) in dead[:_REMOVED_AT_ONCE]:
            object = self.store.get(key)
            session = _session(object)
            if object is not None and session is not None and session.is_one_shot and object.version == version:
                self.tidy(key, _Standing(session, version, object.age), stood)
        if host is None or own is not None and own_age is not None and own_age < _kept(own.ttl):
            return None
        versions = dict(sorted((incarnation, version) for incarnation, _, version in listed[:GLANCE_MAX]))
        return {"clock": host, "at_ms": at_ms, "wall": wall, "versions": versions}

    def tidy(self, key: str, standing: _Standing, stood: Optional[float]) -> None:
        """Removes a dead candidate's session, if this version is old enough. A session that is gone has released
        everything before; one that was not heard from for long is evicted first, and deleted later."""
        if self.store.is_borrowed:
            return
        session = standing.session
        is_old = stood is not None and stood >= _kept(session.ttl)
        # Failures do not matter: a later call sees what is left.
        with contextlib.suppress(Conflicted, Unavailable):
            if session.state == "alive" and is_old:
                evicted = session.copy()
                evicted.evict(session.node)
                self.store.put(key, evicted.encode(), standing.version)
            elif session.state == "gone" or session.state == "evicted" and is_old:
                self.store.delete(key)

    # ------------------------------------------------------------------ small things

    def key(self, *names: str) -> str:
        return "/".join((self.election.namespace, *names))

    def session_key(self, holder: Holder) -> str:
        return self.key("nodes", holder.node, holder.incarnation)

    def writer(self, me: Holder) -> Dict[str, Any]:
        self.writes += 1
        return {"incarnation": me.incarnation, "counter": self.writes, "nonce": nonce()}

    def read_lease(self) -> Optional[_Seen]:
        looked = clock.now()
        object = self.store.get(self.key("elections", self.name), locks=True)
        if object is None:
            return None
        self.had_lease = True
        return _Seen(Lease.decode(object.value), object.version, object.age, looked)

    def write_lease(self, lease: Lease, expected: Optional[str]) -> _Seen:
        started = clock.now()
        self.has_written_lease = True
        version = self.store.put(self.key("elections", self.name), lease.encode(), expected)
        return _Seen(lease, version, None, started)

    def read_fence(self) -> Optional[Tuple[Fence, str]]:
        object = self.store.get(self.key("fences", self.name), locks=True)
        return None if object is None else (Fence.decode(object.value), object.version)

    def stood(self, incarnation: str, version: str) -> Optional[float]:
        """The minimum time for which a version has been there, from an earlier note; if there is none, it is noted
        now."""
        known, kind = self.election._standing, (incarnation, version.startswith(_LEASE))
        now = clock.now()
        noted, since = known.get(kind, (None, now))
        stood = now - since if noted == version else None
        if stood is None:
            # One leader matters at a time, and one lease.
            for other in [other for other in known if other[1] == kind[1]]:
                known.pop(other, None)
            known[kind] = (version, now)
        by_session = None
        if self.noted is not None:
            by_session = self.noted.age(incarnation, version, clock.host(), clock.now_ns())
        self.sighting = None
        if by_session is None and self.election._secret_digest is None:
            self.sighting = self.sighted(incarnation, version)
        found = [age for age in (stood, by_session) if age is not None]
        return max(found) if found else None

    def stood_lease(self, seen: _Seen, incarnation: str) -> float:
        """The same for a lease that is reserved, or whose holder was asked to resign. Then this is noted.

        An age counts from when a write was begun, which may be long before it became visible. A holder that read in
        between acts on what it saw, so ages are used only for reservations, on which nobody acts.
        """
        if seen.age is not None and seen.lease.reserved_for is not None:
            return seen.age
        return self.stood(incarnation, f"{_LEASE}{seen.version}") or 0.0

    def sighted(self, incarnation: str, version: str) -> Optional[Sighting]:
        host = clock.host()
        # Rounded up: nothing may look older than it is.
        return None if host is None else Sighting(incarnation, version, host, -(-clock.now_ns() // 1_000_000))

    def check_time(self) -> None:
        if clock.now() >= self.give_up:
            raise self.contended()

    def pause(self, seconds: float) -> None:
        # In short stretches: timers stand still while the machine is suspended.
        time.sleep(max(0.0, min(seconds, 0.5)))

    def wait_for_a_turn(self, begun: float, attempt: int) -> None:
        """Of many calls for one candidate, one succeeds at a time; each waits for a different number of turns."""
        if not self.store.is_borrowed:
            time.sleep(random.random() * min(1.0, (clock.now() - begun) * 2 * attempt))

    def contended(self) -> Unavailable:
        return Unavailable(f"the election {self.name} is contended, or its store too slow; try again")

    def busy(self) -> Unavailable:
        return Unavailable(f"other calls of {self.node} keep changing its session; try again")


def _session(object: Optional[Object]) -> Optional[Session]:
    """None if there is none, or if it cannot be read: then it belongs to no candidate."""
    if object is None:
        return None
    try:
        return Session.decode(object.value)
    except Unreadable:
        return None


def _shown(age: Optional[float], object: Object) -> float:
    """The age by the database's clock if there is no better one: only to show and to count, never a reason to take a
    lease."""
    return object.shown_age if age is None else age


def _kept(ttl: float) -> float:
    return max(ttl * _KEPT_TTLS, _KEPT_MIN)


def _glance_age(passed: Any) -> Optional[float]:
    """The minimum time since others were last seen. Copies of a virtual machine have one clock's name, so here the wall
    clock has to agree that the time has passed: it can only make a version look younger."""
    try:
        if passed is None or passed["clock"] != clock.host() or not isinstance(passed["versions"], dict):
            return None
        by_host = clock.now_ns() / 1e9 - passed["at_ms"] / 1000
        by_wall = (wall_ms() - passed["wall"]) / 1000
    except (TypeError, KeyError):
        return None
    return min(by_host, by_wall) if min(by_host, by_wall) >= 0 else None
