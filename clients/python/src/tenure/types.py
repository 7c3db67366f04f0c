"""The broker's answers, as plain immutable data.

Every class takes the JSON object of an answer in ``of`` and ignores fields that it does not know, so that it works with
newer brokers. Times ending in ``_at`` are milliseconds since 1970 on the broker's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

__all__ = [
    "Json",
    "Backoff",
    "Candidate",
    "Claim",
    "ClaimStatus",
    "Claimed",
    "Counts",
    "Job",
    "Leader",
    "Outcome",
    "Page",
    "Queue",
    "Rate",
    "Receipt",
    "Schedule",
    "Standing",
    "Submission",
    "Unreadable",
]

#: Any JSON value.
Json = Any


@dataclass(frozen=True)
class Unreadable:
    """Replaces a JSON value in an answer that Python cannot read. ``why`` says what is wrong."""

    why: str


def readable(body: Mapping[str, Json], *names: str) -> tuple[Mapping[str, Json], Optional[str]]:
    """An answer with None for unreadable values under these names, and what is wrong with them, if anything."""
    found = {name: body[name].why for name in names if isinstance(body.get(name), Unreadable)}
    if not found:
        return body, None
    why = "; ".join(f"{name}: {problem}" for name, problem in found.items())
    return {**body, **dict.fromkeys(found)}, why


@dataclass(frozen=True)
class Backoff:
    """How long a failed job waits: ``first_ms * factor**(attempt - 1)``, at most ``max_ms``, less jitter."""

    first_ms: int = 1_000
    factor: int = 2
    max_ms: int = 3_600_000
    jitter_percent: int = 20

    def body(self) -> dict[str, Json]:
        return dict(vars(self))


@dataclass(frozen=True)
class Submission:
    """A job to submit. Without an ``id`` the client makes one, so that sending it again is safe.

    >>> Submission("mail", {"to": "ada"}, delay_ms=500).body()
    {'type': 'mail', 'payload': {'to': 'ada'}, 'delay_ms': 500}
    """

    type: str
    payload: Json = None
    id: Optional[str] = None
    queue: Optional[str] = None
    priority: Optional[int] = None
    #: Milliseconds since 1970, or RFC 3339 text. At most one of this and ``delay_ms``.
    run_at: Optional[Union[int, str]] = None
    delay_ms: Optional[int] = None
    max_attempts: Optional[int] = None
    unique_key: Optional[str] = None
    group: Optional[str] = None
    backoff: Optional[Backoff] = None
    #: The span that it belongs to, in W3C Trace Context format; :mod:`tenure.trace` finds the current one.
    traceparent: Optional[str] = None
    tracestate: Optional[str] = None

    def body(self) -> dict[str, Json]:
        """The JSON object to send, without the fields that are None."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        if self.backoff is not None:
            said["backoff"] = self.backoff.body()
        return said


@dataclass(frozen=True)
class Receipt:
    """The outcome for one submitted job.

    ``status`` is ``"created"``, ``"duplicate"`` (this job already exists, or ``existing`` has the same unique key),
    ``"conflict"`` (another job has this id) or ``"full"``. The last two occur only in batches; a single submit raises
    instead.
    """

    id: str
    status: str
    existing: Optional[str] = None

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Receipt:
        return cls(str(body["id"]), str(body["status"]), body.get("existing"))


@dataclass(frozen=True)
class Job:
    """A job as the broker shows it. ``state`` is scheduled, ready, running, completed, cancelled or dead."""

    id: str
    queue: str
    type: str
    state: str
    payload: Json
    priority: int
    attempt: int
    max_attempts: int
    created_at: int
    run_at: int
    changed_at: int
    blocked: bool = False
    cancel_requested: bool = False
    unique_key: Optional[str] = None
    group: Optional[str] = None
    error: Optional[str] = None
    result: Json = None
    progress: Json = None
    worker: Optional[str] = None
    traceparent: Optional[str] = None
    tracestate: Optional[str] = None
    #: The job was deleted: only its id, queue, type, state, ``changed_at`` and result are left.
    remnant: bool = False
    #: What is wrong with the payload, result or progress if Python cannot read it; it is None then.
    unreadable: Optional[str] = None
    #: The whole answer, including fields that this class does not have.
    raw: Mapping[str, Json] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_finished(self) -> bool:
        """Whether it is completed, cancelled or dead."""
        return self.state in ("completed", "cancelled", "dead")

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Job:
        body, unreadable = readable(body, "payload", "result", "progress")
        return cls(
            id=body["id"],
            queue=body["queue"],
            type=body["type"],
            state=body["state"],
            payload=body.get("payload"),
            priority=body["priority"],
            attempt=body["attempt"],
            max_attempts=body["max_attempts"],
            created_at=body["created_at"],
            run_at=body["run_at"],
            changed_at=body["changed_at"],
            blocked=body.get("blocked", False),
            cancel_requested=body.get("cancel_requested", False),
            unique_key=body.get("unique_key"),
            group=body.get("group"),
            error=body.get("error"),
            result=body.get("result"),
            progress=body.get("progress"),
            worker=body.get("worker"),
            traceparent=body.get("traceparent"),
            tracestate=body.get("tracestate"),
            remnant=bool(body.get("remnant", False)),
            unreadable=unreadable,
            raw=body,
        )


@dataclass(frozen=True)
class Page:
    """Some jobs, and where the next page starts; ``next`` is None on the last one."""

    jobs: tuple[Job, ...]
    next: Optional[int]


@dataclass(frozen=True)
class Claim:
    """What is needed to end or renew a claim: the job, the token from the answer to the claim, and the attempt."""

    id: str
    token: str
    attempt: int


@dataclass(frozen=True)
class Claimed(Claim):
    """A job that a worker has taken."""

    queue: str
    type: str
    payload: Json
    max_attempts: int
    lease_ms: int
    priority: int
    created_at: int
    group: Optional[str] = None
    traceparent: Optional[str] = None
    tracestate: Optional[str] = None
    #: What is wrong with the job if Python cannot read it; its payload is None then. Fail such a job, as
    #: :class:`Worker` does.
    unreadable: Optional[str] = None

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Claimed:
        body, unreadable = readable(body, "payload")
        return cls(
            id=body["id"],
            queue=body["queue"],
            type=body["type"],
            payload=body.get("payload"),
            attempt=body["attempt"],
            max_attempts=body["max_attempts"],
            token=body["token"],
            lease_ms=body["lease_ms"],
            priority=body.get("priority", 0),
            created_at=body["created_at"],
            group=body.get("group"),
            traceparent=body.get("traceparent"),
            tracestate=body.get("tracestate"),
            unreadable=unreadable,
        )


@dataclass(frozen=True)
class ClaimStatus:
    """The outcome for one claim of a batch: ``"ok"``, ``"lost"`` with a reason, ``"cancelled"``, or ``"invalid"`` with a
    problem: then nothing was done about it. A heartbeat that is ``"ok"`` has a problem if its progress is not shown.
    """

    id: str
    status: str
    reason: Mapping[str, Json] = field(default_factory=dict)
    problem: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> ClaimStatus:
        problem = body.get("problem")
        reason = as_reason(body.get("reason"))
        return cls(body.get("id", ""), body["status"], reason, problem if isinstance(problem, Mapping) else {})


def as_reason(value: Json) -> Mapping[str, Json]:
    """A reason as an object with a ``code``, whether it was sent as one or as a word."""
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"code": value}


class Unchanged:
    """Marks a limit that stays unchanged."""

    def __repr__(self) -> str:
        return "unchanged"


@dataclass(frozen=True)
class Counts:
    """Jobs by state. ``blocked`` counts the ready jobs that wait for their turn in a group."""

    scheduled: int = 0
    ready: int = 0
    blocked: int = 0
    running: int = 0
    completed: int = 0
    cancelled: int = 0
    dead: int = 0

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Counts:
        return cls(**{name: int(body.get(name, 0)) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Rate:
    """``jobs`` per ``period_ms``, up to ``burst`` of them at once (``jobs`` if None)."""

    jobs: int
    period_ms: int
    burst: Optional[int] = None

    def body(self) -> dict[str, Json]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Queue:
    """A queue, its limits and its jobs by state."""

    name: str
    paused: bool
    counts: Counts
    concurrency: Optional[int] = None
    rate: Optional[Rate] = None
    oldest_ready_at: Optional[int] = None

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Queue:
        options: Mapping[str, Json] = body.get("options") or {}
        rate = options.get("rate")
        return cls(
            name=body["name"],
            paused=body["paused"],
            counts=Counts.of(body.get("counts") or {}),
            concurrency=options.get("concurrency"),
            rate=Rate(rate["jobs"], rate["period_ms"], rate.get("burst")) if rate else None,
            oldest_ready_at=body.get("oldest_ready_at"),
        )


@dataclass(frozen=True)
class Schedule:
    """A cron schedule. ``missed`` is ``"skip"``, ``"once"`` or ``{"all": N}``. A paused one has no ``next_at``."""

    name: str
    cron: str
    timezone: str
    job: Mapping[str, Json]
    missed: Json
    next_at: Optional[int] = None
    last_at: Optional[int] = None
    paused: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Schedule:
        return cls(
            name=body["name"],
            cron=body["cron"],
            timezone=body.get("timezone", "UTC"),
            job=body["job"],
            missed=body.get("missed", "once"),
            next_at=body.get("next_at"),
            last_at=body.get("last_at"),
            paused=body.get("paused", False),
        )


@dataclass(frozen=True)
class Leader:
    """Who leads an election."""

    node: str
    raw: Mapping[str, Json] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Optional[Mapping[str, Json]]) -> Optional[Leader]:
        return cls(body["node"], body) if body else None


@dataclass(frozen=True)
class Candidate:
    """A live candidate of an election, and how long it stays one without another call."""

    id: str
    ttl_ms: int


@dataclass(frozen=True)
class Outcome:
    """The result of :meth:`Election.elect`.

    ``trusted_until`` is how long the answer is valid: a time of :func:`tenure.clock.now`, counted from before the
    request was sent. ``asked_by`` names who asked this candidate to resign: it no longer leads, and
    :meth:`Election.unregister` lets the next candidate lead at once. ``reserved_for`` is the next leader, if there is
    no leader and a transfer was requested.
    """

    leader: Optional[Leader]
    is_leader: bool
    term: Optional[int]
    token: Optional[str]
    trusted_until: float
    asked_by: Optional[str] = None
    reserved_for: Optional[str] = None


@dataclass(frozen=True)
class Standing:
    """An election as stored: the leader, its term, and the candidates."""

    leader: Optional[Leader]
    term: Optional[int]
    candidates: tuple[Candidate, ...]
