"""Sessions, leases and fences as stored: byte for byte what every other part of Tenure writes.

Each is one line of JSON with a format number in front. A record that this version cannot read is :class:`Unreadable`;
it is never overwritten. Unknown fields in the session of another process are kept unchanged.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, Union

from . import clock
from .errors import Invalid, ServerError

__all__ = ["Fence", "Holder", "Lease", "Request", "Session", "Sighting", "Unreadable", "check_name", "nonce", "wall_ms"]

FORMAT = 1
#: How many past terms a lease remembers.
HISTORY_MAX = 20
#: The longest time for which a lease is reserved, in seconds.
RESERVED_MAX = 30.0
#: The label of a one-shot caller's session, which no process keeps.
ONE_SHOT = "tenure.one-shot"
#: The priority of a candidate that does not say.
PRIORITY_DEFAULT = 100
#: How many sessions a glance notes.
GLANCE_MAX = 8

_NAME = re.compile(r"[A-Za-z0-9_:@+=-][A-Za-z0-9_:@+=.-]{0,199}")
_ORDER = (
    "format", "node", "incarnation", "counter", "nonce", "ttl_ms", "state", "joined_at",
    "address", "nudge", "labels", "secret_digest", "stands", "seen", "passed", "trouble", "lost", "rules", "cluster",
)  # fmt: skip
#: The largest value of numbers that only grow.
_GROWING_MAX = (2**64 - 1) // 2

Json = Dict[str, Any]


class Unreadable(ServerError):
    """A stored record that this version cannot read."""


def check_name(kind: str, text: str) -> str:
    """Checks a name, since names become parts of keys.

    >>> check_name("the election name", "a/b")
    Traceback (most recent call last):
      ...
    tenure.errors.Invalid: the election name 'a/b' cannot be used; use 1 to 200 of the characters A-Z a-z 0-9 - _ . : @ + =, not starting with a dot
    """
    if not isinstance(text, str) or _NAME.fullmatch(text) is None:
        raise Invalid(
            f"{kind} {str(text)[:40]!r} cannot be used; use 1 to 200 of the characters A-Z a-z 0-9 - _ . : @ + =, "
            "not starting with a dot"
        )
    return text


def unique() -> str:
    """A unique id: 128 random bits in hexadecimal digits."""
    return f"{secrets.randbits(128):032x}"


def nonce() -> str:
    """Marks one write. Mixed with the time, since a copy of a virtual machine may continue with the same random
    numbers."""
    return f"{(secrets.randbits(128) ^ clock.now_ns()) or 1:032x}"


def wall_ms() -> int:
    """The time of day, for people."""
    return max(0, time.time_ns() // 1_000_000)


def encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def decode(value: bytes) -> Json:
    try:
        record = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"cannot read the record: {str(error)[:200]}") from None
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise Unreadable("cannot read the record: it has no format")
    if record["format"] != FORMAT:
        raise Unreadable(f"the record has format {record['format']}, but this version reads format {FORMAT}")
    return record


def _field(record: Mapping[str, Any], name: str, kind: Union[Type[Any], Tuple[Type[Any], ...]]) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) and kind is int:
        raise Unreadable(f"cannot read the record: {name} is missing or not valid")
    return value


def _number(record: Mapping[str, Any], name: str) -> int:
    value: int = _field(record, name, int)
    if not 0 <= value < 2**64:
        raise Unreadable(f"cannot read the record: {name} is out of range")
    return value


def _growing(record: Mapping[str, Any], name: str) -> int:
    value = _number(record, name)
    if value > _GROWING_MAX:
        raise Unreadable(f"cannot read the record: {value} is too large")
    return value


def _id(record: Mapping[str, Any], name: str) -> str:
    text = _field(record, name, str)
    if re.fullmatch(r"[0-9A-Fa-f]{1,32}", text) is None:
        raise Unreadable(f"cannot read the record: {name} is not an id")
    return f"{int(text, 16):032x}"


def _name(record: Mapping[str, Any], name: str) -> str:
    text: str = _field(record, name, str)
    if _NAME.fullmatch(text) is None:
        raise Unreadable(f"cannot read the record: {name} is not a name")
    return text


@dataclass(frozen=True)
class Holder:
    """Who holds something: enough to watch its session, even if the session object is missing."""

    node: str
    incarnation: str
    ttl_ms: int

    @property
    def ttl(self) -> float:
        return self.ttl_ms / 1000

    def fields(self) -> Json:
        return {"node": self.node, "incarnation": self.incarnation, "ttl_ms": self.ttl_ms}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Holder:
        return cls(_name(record, "node"), _id(record, "incarnation"), _number(record, "ttl_ms"))


@dataclass(frozen=True)
class Sighting:
    """One version of a session or a lease, as it was seen; ``at_ms`` is by the clock that cannot be set, rounded up."""

    incarnation: str
    version: str
    clock: str
    at_ms: int

    def fields(self) -> Json:
        return {"incarnation": self.incarnation, "version": self.version, "clock": self.clock, "at_ms": self.at_ms}

    def age(self, incarnation: str, version: str, host: Optional[str], now_ns: int) -> Optional[float]:
        """The minimum time for which this version has been there, in seconds.

        >>> seen = Sighting("a", "7", "c", 1000)
        >>> seen.age("a", "7", "c", 3_000_000_000), seen.age("a", "8", "c", 3_000_000_000), seen.age("a", "7", "d", 3_000_000_000)
        (2.0, None, None)
        """
        if host is None or (self.incarnation, self.version, self.clock) != (incarnation, version, host):
            return None
        passed = now_ns - self.at_ms * 1_000_000
        return passed / 1e9 if passed >= 0 else None


class Session:
    """A session, at ``<namespace>/nodes/<node>/<incarnation>``: the record as it was read, to be changed and written."""

    def __init__(self, record: Json) -> None:
        self.record = record

    @classmethod
    def decode(cls, value: bytes) -> Session:
        record = decode(value)
        for name, read in (("node", _name), ("incarnation", _id), ("counter", _number), ("ttl_ms", _number)):
            record[name] = read(record, name)
        _number(record, "joined_at")
        if "nonce" in record:
            record["nonce"] = _id(record, "nonce")
        state = record.get("state")
        if state not in ("alive", "gone"):
            _name(_field(_field(record, "state", dict), "evicted", dict), "by")
        for name in ("labels", "stands", "seen"):
            if name in record:
                _field(record, name, dict)
        return cls(record)

    @classmethod
    def new(cls, node: str, ttl_ms: int, secret_digest: Optional[str]) -> Session:
        record: Json = {"node": node, "incarnation": unique(), "counter": 0, "ttl_ms": ttl_ms, "state": "alive"}
        record.update(joined_at=wall_ms(), labels={ONE_SHOT: "true"})
        if secret_digest is not None:
            record["secret_digest"] = secret_digest
        return cls(record)

    def copy(self) -> Session:
        return Session(json.loads(json.dumps(self.record)))

    def encode(self) -> bytes:
        """Encodes the fields in the same order as all writers; empty ones are left out.

        >>> record = Session.new("a", 5, None).record
        >>> record.update(incarnation="1", stands={"b": 100, "a": 1}, seen={}, joined_at=7, nonce="2")
        >>> Session(record).encode().decode()
        '{"format":1,"node":"a","incarnation":"1","counter":0,"nonce":"2","ttl_ms":5,"state":"alive","joined_at":7,"labels":{"tenure.one-shot":"true"},"stands":{"a":1,"b":100}}'
        """
        record = dict(self.record)
        for name in ("labels", "stands", "seen"):
            fields = record.pop(name, None)
            if fields:
                record[name] = dict(sorted(fields.items()))
        known = {name: record.pop(name) for name in _ORDER if name in record}
        known.pop("format", None)
        return encode({**known, **record})

    @property
    def node(self) -> str:
        return str(self.record["node"])

    @property
    def incarnation(self) -> str:
        return str(self.record["incarnation"])

    @property
    def nonce(self) -> Optional[str]:
        return self.record.get("nonce")

    @property
    def ttl(self) -> float:
        return float(self.record["ttl_ms"]) / 1000

    @property
    def state(self) -> str:
        """``alive``, ``gone`` or ``evicted``."""
        state = self.record["state"]
        return "evicted" if isinstance(state, dict) else str(state)

    @property
    def is_one_shot(self) -> bool:
        return ONE_SHOT in self.record.get("labels", {})

    @property
    def holder(self) -> Holder:
        return Holder(self.node, self.incarnation, int(self.record["ttl_ms"]))

    def stands_in(self, election: str) -> bool:
        return election in self.record.get("stands", {})

    def stand(self, election: str) -> None:
        self.record.setdefault("stands", {})[election] = PRIORITY_DEFAULT

    def leave(self, election: str) -> None:
        """Leaves an election. A session that is a candidate nowhere is gone."""
        for name in ("stands", "seen"):
            self.record.get(name, {}).pop(election, None)
        if not self.record.get("stands"):
            self.record["state"] = "gone"

    def evict(self, by: str) -> None:
        self.record["state"] = {"evicted": {"by": by}}

    def seen(self, election: str) -> Optional[Sighting]:
        noted = self.record.get("seen", {}).get(election)
        try:
            return Sighting(noted["incarnation"], noted["version"], noted["clock"], int(noted["at_ms"]))
        except (TypeError, KeyError, ValueError):
            return None

    def note(self, election: str, sighting: Sighting) -> None:
        self.record.setdefault("seen", {})[election] = sighting.fields()


@dataclass(frozen=True)
class Request:
    """A request to the holder of a lease: to resign, or to let another lead."""

    by: str
    to: Optional[Holder] = None
    lapses: bool = False

    def fields(self) -> Json:
        kind = "resign" if self.to is None else {"transfer": {"to": self.to.fields()}}
        return {"kind": kind, "by": self.by, **({"lapses": True} if self.lapses else {})}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Request:
        kind = _field(record, "kind", (str, dict))
        to = None
        if kind != "resign":
            to = Holder.of(_field(_field(kind, "transfer", dict), "to", dict))
        return cls(_name(record, "by"), to, bool(record.get("lapses", False)))


@dataclass(frozen=True)
class Lease:
    """The lease of an election, at ``<namespace>/elections/<name>``."""

    lineage: str
    term: int
    writer: Json
    holder: Optional[Holder] = None
    since: int = 0
    reserved_for: Optional[Holder] = None
    request: Optional[Request] = None
    history: Tuple[Json, ...] = ()

    @classmethod
    def decode(cls, value: bytes) -> Lease:
        record = decode(value)
        state = record.get("state")
        holder, since, reserved_for = None, 0, None
        if isinstance(state, dict) and "held" in state:
            held = _field(state, "held", dict)
            holder, since = Holder.of(_field(held, "holder", dict)), _number(held, "since")
        elif isinstance(state, dict) and "reserved" in state:
            reserved_for = Holder.of(_field(_field(state, "reserved", dict), "candidate", dict))
        elif state != "vacant":
            raise Unreadable("cannot read the record: state is missing or not valid")
        request = record.get("request")
        history: List[Json] = record.get("history", [])
        if not isinstance(history, list):
            raise Unreadable("cannot read the record: history is not a list")
        for past in history:
            _growing(past, "term"), _id(past, "incarnation"), _name(past, "node")
        writer = _field(record, "writer", dict)
        _id(writer, "incarnation"), _number(writer, "counter")
        return cls(
            _id(record, "lineage"), _growing(record, "term"), writer, holder, since, reserved_for,
            None if request is None else Request.of(request), tuple(history),
        )  # fmt: skip

    def encode(self) -> bytes:
        state: Any = "vacant"
        if self.holder is not None:
            state = {"held": {"holder": self.holder.fields(), "since": self.since}}
        elif self.reserved_for is not None:
            state = {"reserved": {"candidate": self.reserved_for.fields()}}
        fields: Json = {"lineage": self.lineage, "term": self.term, "state": state}
        if self.request is not None:
            fields["request"] = self.request.fields()
        if self.history:
            fields["history"] = list(self.history)
        return encode({**fields, "writer": self.writer})

    def lapsing(self) -> bool:
        """Whether a request ends the holder's term without an answer, once it is as old as the holder's ttl."""
        if self.holder is None or self.request is None or not self.request.lapses:
            return False
        return self.request.to is None or self.request.to.incarnation != self.holder.incarnation

    def is_held_by(self, incarnation: str) -> bool:
        return self.holder is not None and self.holder.incarnation == incarnation

    def next(
        self, *, writer: Json, reason: str, lineage: Optional[str] = None, term: Optional[int] = None,
        holder: Optional[Holder] = None, reserved_for: Optional[Holder] = None,
    ) -> Lease:  # fmt: skip
        """The next lease: with another state and no request, and if there was a term, with that term in the history."""
        now, history = wall_ms(), self.history
        if self.holder is not None:
            past = {
                "term": self.term, "node": self.holder.node, "incarnation": self.holder.incarnation,
                "since": self.since, "until": now, "reason": reason,
            }  # fmt: skip
            history = (*history, past)[-HISTORY_MAX:]
        return replace(
            self, lineage=lineage or self.lineage, term=self.term if term is None else term, writer=writer,
            holder=holder, since=now if holder is not None else 0, reserved_for=reserved_for, request=None, history=history,
        )  # fmt: skip


@dataclass(frozen=True)
class Fence:
    """The fence of an election, at ``<namespace>/fences/<name>``: the highest term that was ever installed."""

    lineage: str
    term: int
    holder: Holder

    @classmethod
    def decode(cls, value: bytes) -> Fence:
        record = decode(value)
        return cls(_id(record, "lineage"), _growing(record, "term"), Holder.of(_field(record, "holder", dict)))

    def encode(self) -> bytes:
        return encode({"lineage": self.lineage, "term": self.term, "holder": self.holder.fields()})
