"""Tenure: a durable job queue and elections, from Python.

:class:`Client` makes all calls to a cluster, through failovers. :class:`Worker` runs handlers for jobs.
:class:`Election` lets one of many programs lead at a time, and :class:`DatabaseElection` does so directly on your own
database. There are no dependencies.
"""

from __future__ import annotations

from .client import Client
from .direct import DatabaseElection
from .election import Election, Leadership
from .errors import (
    Conflict,
    EffectsDone,
    Full,
    Invalid,
    Lost,
    NotAllowed,
    NotFound,
    NotLeading,
    NoTransaction,
    NotTrusted,
    Overloaded,
    ServerError,
    TenureError,
    Unavailable,
    Unknown,
    WrongState,
)
from .events import Event
from .fencing import Fenced, fence
from .types import (
    Backoff,
    Candidate,
    Claim,
    Claimed,
    ClaimStatus,
    Counts,
    Job,
    Leader,
    Outcome,
    Page,
    Queue,
    Rate,
    Receipt,
    Schedule,
    Standing,
    Submission,
)
from .worker import HandBack, Permanent, RetryIn, Task, Worker

__all__ = [
    "Backoff",
    "Candidate",
    "Claim",
    "ClaimStatus",
    "Claimed",
    "Client",
    "Conflict",
    "Counts",
    "DatabaseElection",
    "EffectsDone",
    "Election",
    "Event",
    "Fenced",
    "Full",
    "HandBack",
    "Invalid",
    "Job",
    "Leader",
    "Leadership",
    "Lost",
    "NotAllowed",
    "NotFound",
    "NotLeading",
    "NotTrusted",
    "NoTransaction",
    "Outcome",
    "Overloaded",
    "Page",
    "Permanent",
    "Queue",
    "Rate",
    "Receipt",
    "RetryIn",
    "Schedule",
    "ServerError",
    "Standing",
    "Submission",
    "Task",
    "TenureError",
    "Unavailable",
    "Unknown",
    "Worker",
    "WrongState",
    "fence",
]

__version__ = "0.1.0"
