"""Conversion between Python and HTTP: names in paths, JSON in bodies, and the meaning of answers."""

from __future__ import annotations

import json
import re
from typing import Iterator, Mapping, Optional
from urllib.parse import quote

from .errors import (
    Conflict,
    Full,
    Invalid,
    Lost,
    NotAllowed,
    NotFound,
    Overloaded,
    ServerError,
    TenureError,
    Unavailable,
    Unknown,
    WrongState,
)
from .transport import Response
from .types import Json, Unreadable, as_reason

__all__ = ["as_object", "decoded", "listed", "quoted", "refusal", "seconds_of", "written"]

#: How deep into an answer to look for the unreadable value: ``schedules``, one of them, its ``job``, its ``payload``.
LEVELS = 4

#: The values that users wrote, which are readable as a whole or not at all.
WHOLE = ("payload", "result", "progress")


def quoted(name: str) -> str:
    """A name as one part of a path, quoted."""
    # The only names that keep a special meaning in a path after quoting.
    if name in ("", ".", ".."):
        raise Invalid(f"{name!r} is not a valid name")
    return quote(name, safe="")


def written(body: Json) -> bytes:
    """JSON text."""
    try:
        # NaN and infinities are not JSON, and the server would refuse them.
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except Exception as problem:  # whatever the methods of a value raise, or a dict that another thread changes
        reason = text_of(problem) or type(problem).__name__
        raise Invalid(f"this is not valid JSON: {reason}") from problem


def text_of(problem: BaseException) -> str:
    """The text of an exception; none if its own ``__str__``, which is the user's code, does not give any."""
    try:
        return str(problem)
    except BaseException:
        return ""


def decoded(response: Response) -> Json:
    """The JSON value of an answer; None if it is empty.

    A value that Python cannot read (nested too deeply, or a number with too many digits) comes back as an
    :class:`Unreadable` in its place, so that one job's payload does not make the rest of the answer unreadable.
    """
    if not response.body:
        return None
    try:
        return read(response.body.decode(), LEVELS)
    except ValueError as problem:
        # A gateway's page, for example one that asks for a password.
        raise Unknown(f"{response.status} was answered, but not by a broker", status=response.status) from problem


def read(text: str, levels: int) -> Json:
    """Reads JSON, part by part where the whole cannot be read. Raises ValueError if it is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as problem:
        # JSON, but beyond Python's limits: RecursionError for nesting, a plain ValueError for a number's digits.
        start = text.lstrip()[:1]
        if levels == 0 or start not in ("[", "{"):
            why = "it is nested too deeply" if isinstance(problem, RecursionError) else "it has a number that is too long"
            return Unreadable(f"Python cannot read this JSON: {why}")
    parts = split(text)
    if start == "[":
        return [read(part, levels - 1) for part in parts]
    members = (member(part) for part in parts)
    return {name: read(value, 0 if name in WHOLE else levels - 1) for name, value in members}


#: The tokens of JSON's structure; quoted text is skipped as a whole.
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]')


def split(text: str) -> Iterator[str]:
    """The items of a JSON array or the members of an object, as text. Does not recurse, however deep it is."""
    depth, start = 0, 0
    for found in TOKEN.finditer(text):
        token = found.group()
        if token in ("[", "{"):
            depth += 1
            if depth == 1:
                start = found.end()
        elif token in ("]", "}"):
            depth -= 1
            if depth == 0:
                last = text[start : found.start()]
                if last.strip():
                    yield last
                return
        elif token == "," and depth == 1:
            yield text[start : found.start()]
            start = found.end()
    raise ValueError("a bracket is not closed")


def member(text: str) -> tuple[str, str]:
    """The name and the value of one member of an object."""
    name, end = json.JSONDecoder().raw_decode(text.lstrip())
    value = text.lstrip()[end:].lstrip()
    if not isinstance(name, str) or not value.startswith(":"):
        raise ValueError("this is not a member of an object")
    return name, value[1:]


def as_object(body: Json) -> dict[str, Json]:
    """An answer that has to be an object."""
    if not isinstance(body, dict):
        raise ServerError("the answer is not a JSON object")
    return body


def listed(body: Json, name: str) -> list[dict[str, Json]]:
    """The objects that an answer lists under a name."""
    items = as_object(body).get(name)
    if not isinstance(items, list):
        raise ServerError(f"the answer has no list {name}")
    return [as_object(item) for item in items]


def seconds_of(retry_after: Optional[str]) -> float:
    """The seconds of a Retry-After header, within limits; dates are ignored."""
    if retry_after is None or not retry_after.strip().isdigit():
        return 0.0
    return min(float(retry_after), 30.0)


#: Errors by the stable code of the answer. Other codes are mapped by status.
BY_CODE: Mapping[str, type[TenureError]] = {
    "no_leader": Unavailable,
    "store_unavailable": Unavailable,
    "unknown_outcome": Unknown,
    "timeout": Unknown,
    "overloaded": Overloaded,
    "full": Full,
    "conflict": Conflict,
    "lost": Lost,
    "state": WrongState,
    "not_found": NotFound,
    "unauthorized": NotAllowed,
    "forbidden": NotAllowed,
}

#: For codes that this version does not know.
BY_STATUS: Mapping[int, type[TenureError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    408: Unknown,
    409: Conflict,
    429: Overloaded,
    502: Unknown,
    503: Unavailable,
    504: Unknown,
}

#: The media type of a broker's refusals.
PROBLEM = "application/problem+json"


def refusal(response: Response) -> TenureError:
    """The error that an answer stands for.

    A broker's own refusal has a code. Anything else comes from a gateway and says nothing about the call: it may have
    been passed on before, and sending it again may get an answer.
    """
    try:
        body = json.loads(response.body)
    except (ValueError, RecursionError):
        body = {}
    if not isinstance(body, dict):
        body = {}
    code = body.get("code")
    media_type = response.headers.get("content-type", PROBLEM).partition(";")[0].strip().lower()
    if not isinstance(code, str) or media_type != PROBLEM:
        return Unknown(f"{response.status} was answered, but not by a broker", status=response.status)
    fallback: type[TenureError] = Invalid if 400 <= response.status < 500 else ServerError
    kind = BY_CODE.get(code) or BY_STATUS.get(response.status, fallback)
    message = str(body.get("detail") or body.get("title") or f"the broker answered {response.status}")
    error = kind(message, code=code, status=response.status, hint=body.get("hint"), field=body.get("field"))
    if isinstance(error, Lost):
        error.reason = as_reason(body.get("reason"))
    return error
