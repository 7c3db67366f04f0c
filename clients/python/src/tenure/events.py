"""Live events about jobs, queues, schedules, leaders, nodes and daemons.

What is guaranteed
    Events come in order. When the connection breaks, the next one continues after the last event that was yielded, on
    any broker that answers. If that is impossible (another broker leads now, or the program was away for too long),
    there is an event ``reset``: what was read before may be out of date.

What is not
    Steps that came and went between two looks of the broker may be left out. There are no events from before the first
    connection, except the present state: those events of leaders, nodes and daemons have ``initial`` set.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generator, Mapping, Optional, Sequence
from urllib.parse import urlencode

from .backoff import Backoff as Waits
from .errors import NotTrusted, Unavailable
from .transport import AnswerLost, NotSent
from .types import Json
from .wire import refusal

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Event", "follow"]

#: How long a stream may be silent. The broker sends a sign of life more often than this.
SILENCE_SECONDS = 60.0

#: The longest event that is read, and the longest id that is sent back.
EVENT_BYTES_MAX = 1 << 20
ID_LENGTH_MAX = 200


@dataclass(frozen=True)
class Event:
    """One thing that happened. ``name`` says what happened, such as ``"node_joined"``; ``fields`` has everything that
    the broker sent about it."""

    name: str
    #: Seconds since 1970 on the broker's clock; 0 in a ``reset``.
    at: float
    #: Whether it describes the state when the stream began.
    initial: bool = False
    fields: Mapping[str, Json] = field(default_factory=dict)

    @staticmethod
    def of(body: Mapping[str, Json]) -> Event:
        at = body.get("at")
        return Event(
            name=str(body["event"]),
            at=at / 1000 if isinstance(at, (int, float)) else 0.0,
            initial=body.get("initial") is True,
            fields=body,
        )

    def __getitem__(self, name: str) -> Json:
        return self.fields[name]

    def get(self, name: str) -> Json:
        """A field, such as ``"node"`` or ``"job"``; None if the event has none of that name."""
        return self.fields.get(name)


class Parser:
    """Parses server-sent events from lines."""

    def __init__(self) -> None:
        self.last_id: Optional[str] = None
        self._data: list[str] = []
        self._id: Optional[str] = None

    def begin(self) -> None:
        """Starts a new stream: an event that was cut off comes again."""
        self._data, self._id = [], None

    def line(self, line: bytes) -> Optional[Event]:
        """Takes a line. Returns the event that it completes, if it does."""
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data":
                self._data.append(value)
            elif name == "id" and len(value) <= ID_LENGTH_MAX and value.isascii() and value.isprintable():
                self._id = value
            return None
        if self._id is not None:
            self.last_id = self._id
        data = "\n".join(self._data)
        self.begin()
        if not data:
            return None
        try:
            return Event.of(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError):
            # Events that this version cannot read are skipped.
            return None


def follow(
    client: Client,
    kinds: Optional[Sequence[str]],
    queue: Optional[str],
    stop: Optional[threading.Event],
) -> Generator[Event, None, None]:
    """Yields events until ``stop`` is set. See :meth:`Client.events`."""
    query = {"kinds": ",".join(kinds) if kinds is not None else None, "queue": queue}
    said = {name: value for name, value in query.items() if value is not None}
    path = f"/v1/events?{urlencode(said)}" if said else "/v1/events"
    parser, waits = Parser(), Waits()
    mistrusted = 0
    known: Optional[str] = None
    while stop is None or not stop.is_set():
        place, node = client._turn()
        try:
            stream = node.stream(path, SILENCE_SECONDS, known)
        except NotTrusted:
            mistrusted += 1
            if mistrusted == client._count():
                raise
            stream = None
        except (NotSent, AnswerLost):
            stream = None
        if stream is not None:
            mistrusted = 0
            try:
                refused = stream.refusal()
                if refused is None:
                    if known is None:
                        known = ""
                        yield Event("reset", 0.0)
                    parser.begin()
                    for line in stream.lines(EVENT_BYTES_MAX, lambda: stop is not None and stop.is_set()):
                        waits = Waits()
                        event = parser.line(line)
                        known = parser.last_id or known
                        if event is not None:
                            yield event
                else:
                    problem = refusal(refused)
                    if not isinstance(problem, Unavailable):
                        raise problem
            except AnswerLost:
                pass
            finally:
                stream.close()
        client._leave(place)
        pause = waits.next()
        if stop is not None and stop.wait(pause):
            return
        if stop is None:
            threading.Event().wait(pause)
