"""Between Python and HTTP: names in paths, JSON in bodies, and what an answer stands for."""

from __future__ import annotations

import json
from typing import Mapping, Optional
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
from .types import Json, as_reason

__all__ = ["as_object", "decoded", "quoted", "refusal", "seconds_of", "written"]


def quoted(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    # The only names that quoting leaves with a meaning of their own in a path.
    if name in ("", ".", ".."):
        raise Invalid(f"{name!r} is no name")
    return quote(name, safe="")


def written(body: Json) -> bytes:
    """JSON text."""
    try:
        # NaN and infinities are no JSON, and the server would refuse them.
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise Invalid(f"this cannot be written as JSON: {problem}") from problem


def decoded(response: Response) -> Json:
    """What an answer says; None if it is empty."""
    if not response.body:
        return None
    try:
        return json.loads(response.body)
    except ValueError as problem:
        raise ServerError("the answer is no JSON", status=response.status) from problem


def as_object(body: Json) -> dict[str, Json]:
    """An answer that has to be an object."""
    if not isinstance(body, dict):
        raise ServerError("the answer is no JSON object")
    return body


def seconds_of(retry_after: Optional[str]) -> float:
    """What a Retry-After header asks for, within reason; a date is not looked at."""
    if retry_after is None or not retry_after.strip().isdigit():
        return 0.0
    return min(float(retry_after), 30.0)


#: By the stable code of the answer. What is not here goes by its status.
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

#: Gateways answer these too, and may have passed the call on before.
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


def refusal(response: Response) -> TenureError:
    """The error that an answer stands for."""
    try:
        body = json.loads(response.body)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    code = body.get("code")
    fallback = Invalid if 400 <= response.status < 500 else ServerError
    kind = BY_CODE.get(str(code)) or BY_STATUS.get(response.status, fallback)
    message = str(body.get("detail") or body.get("title") or f"the server answered {response.status}")
    error = kind(message, code=code, status=response.status, hint=body.get("hint"), field=body.get("field"))
    if isinstance(error, Lost):
        error.reason = as_reason(body.get("reason"))
    return error
