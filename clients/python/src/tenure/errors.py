"""The errors, named by what the caller can do about them.

========================  =====================================================================
error                     what to do
========================  =====================================================================
:class:`Unavailable`      nothing was done: try again later
:class:`Unknown`          it may have been done: send the same call again, with the same ids
:class:`Overloaded`       nothing was done: send less, or later
:class:`Full`             nothing was done: delete finished jobs, or raise ``jobs_max``
:class:`Invalid`          correct the request; the message names the field
:class:`NotAllowed`       use another token
:class:`NotTrusted`       trust the brokers' authority, or fix their certificates
:class:`NotFound`         there is no such thing, or it was deleted
:class:`Conflict`         another job has this id: use a new id, or send the same content
:class:`WrongState`       look at the job again: its state does not allow this
:class:`Lost`             stop the work: this claim is no longer yours
:class:`NotLeading`       stop the work: leadership has ended
:class:`EffectsDone`      complete the job: an earlier attempt has committed its effects
:class:`NoTransaction`    begin a transaction before the fence
:class:`ServerError`      report it
========================  =====================================================================
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

__all__ = [
    "TenureError",
    "Unavailable",
    "Unknown",
    "Overloaded",
    "Full",
    "Invalid",
    "NotAllowed",
    "NotTrusted",
    "NotFound",
    "Conflict",
    "WrongState",
    "Lost",
    "NotLeading",
    "EffectsDone",
    "NoTransaction",
    "ServerError",
]


class TenureError(Exception):
    """The base class of all errors that this package raises.

    ``code`` is the stable code of the broker's answer (``"no_leader"``, ``"invalid_field"``), if there was one.
    ``status`` is the HTTP status, and ``hint`` is the broker's suggestion. ``resent`` is true if the call was sent
    before and got no answer: that earlier call may be why this one failed.
    """

    resent: bool = False

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        status: Optional[int] = None,
        hint: Optional[str] = None,
        field: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.hint, self.field = code, status, hint, field

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (hint: {self.hint})" if self.hint else text


class Unavailable(TenureError):
    """No broker could serve the call in time, and none has carried it out."""


class Unknown(Unavailable):
    """An answer was lost: the call may have been carried out, or may still be.

    Sending it again is safe. :meth:`Client.submit` makes ids before it sends, and ``error.ids`` has them.
    """

    ids: tuple[str, ...] = ()


class Overloaded(Unavailable):
    """The broker turned the call away until the time was up. Nothing was done."""


class Full(TenureError):
    """There are as many jobs as the settings allow. Nothing was done."""


class Invalid(TenureError):
    """The request is not valid. If one field is wrong, ``field`` names it."""


class NotAllowed(TenureError):
    """The token is missing, unknown, or does not allow this call."""


class NotTrusted(TenureError):
    """No broker has a valid certificate, so nothing was sent. Trying again would not help."""


class NotFound(TenureError):
    """There is no such job, queue, schedule or election, or it was deleted; or a database lacks a table of Tenure."""


class Conflict(TenureError):
    """A job with this id and different content exists."""


class WrongState(TenureError):
    """The job's state does not allow this."""


class Lost(TenureError):
    """The claim has ended: it expired, another worker has the job, or the job is finished.

    ``reason`` is the broker's reason: ``{"code": "expired"}``, ``{"code": "superseded", "attempt": 2}``, or
    ``{"code": "ended", "ended_as": "failed"}`` if this claim was ended before, in another way than was asked for now.
    """

    reason: Mapping[str, Any] = {}

    @property
    def ended_otherwise(self) -> bool:
        """Whether the broker knows that this claim was ended before, in another way."""
        return self.reason.get("code") == "ended"


class NotLeading(TenureError):
    """Leadership has ended, or could not be confirmed in time."""


class EffectsDone(TenureError):
    """An earlier attempt at the job has committed its effects. Complete the job without doing them again.

    A :class:`Worker` does so when this leaves the handler of the job. ``result`` is what that attempt told
    :meth:`~tenure.fencing.Fenced.complete`; None if it did not. ``job`` is the job's id.
    """

    def __init__(self, message: str, result: Any = None, job: Optional[str] = None) -> None:
        super().__init__(message)
        self.result, self.job = result, job


class NoTransaction(TenureError):
    """The connection has no open transaction, so the fence would not hold anything."""

    def __init__(self) -> None:
        super().__init__("a fence needs a transaction, and none is open on this connection")


class ServerError(TenureError):
    """The broker failed, or gave an answer that this client does not understand."""
