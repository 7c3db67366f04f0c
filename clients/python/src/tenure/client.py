"""The client: every call of the HTTP API, to any broker that answers.

What is guaranteed
    A call is repeated, on the next broker, until one answers or its time is up: through failovers, restarts and
    overload. That is safe because no call does harm when it is repeated: submits carry ids that were made before they
    were first sent, a claim's token works once, and all other calls state the result they want, not what to add.

What is not
    If the answer to a claim is lost, its jobs wait. They run again when their lease ends.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any, Callable, Generator, Iterable, Iterator, Mapping, Optional, Sequence, Union
from urllib.parse import urlencode

from . import clock
from .backoff import Backoff as Waits
from .discovery import LOOK_SECONDS, brokers
from .election import Election
from .errors import Invalid, Lost, NotFound, NotTrusted, Overloaded, Unavailable, Unknown, WrongState
from .events import Event, follow
from .together import Together
from .trace import traced
from .transport import AnswerLost, Node, NotSent
from .types import (
    Backoff,
    Claim,
    Claimed,
    ClaimStatus,
    Job,
    Json,
    Page,
    Queue,
    Rate,
    Receipt,
    Schedule,
    Submission,
    Unchanged,
)
from .wire import as_object, decoded, listed, quoted, refusal, seconds_of, written

__all__ = ["Client"]

log = logging.getLogger("tenure.client")

#: Marks a value that should stay unchanged, where None means something else.
UNCHANGED = Unchanged()

#: The longest delay that a broker accepts: ten years.
SECONDS_MAX = 10 * 365 * 24 * 3600.0

#: Added to how long a call may wait on the server, before silence counts as a lost answer.
REQUEST_SECONDS = 10.0

HOLD_MARGIN_SECONDS = 2.0


@dataclass(frozen=True)
class Answer:
    """The answer to a call."""

    body: Json
    #: Whether an earlier sending got no answer, and may have been carried out.
    resent: bool


class Client:
    """A client of one or more brokers of a cluster. It is safe to use from many threads.

    ``urls`` is one address or several, separated by commas or as a list. The default is ``TENURE_SERVER``, or else
    ``http://127.0.0.1:8080``. Any broker answers any call, so one address is enough: that broker names the others, and
    the client continues with them when it is gone. Give several if the first may be down when the program starts. With
    ``discover=False`` only the brokers that you name are called. ``token`` is the bearer token; the default is
    ``TENURE_API_TOKEN``, if it is set. ``timeout`` is how many seconds to keep trying a call, including failovers.

    Calls of :meth:`submit`, :meth:`complete` and :meth:`fail` that threads make at the same time share requests and
    commits. Each gets its own answer, and a call that is made alone is sent at once.

    >>> client = Client(url)
    >>> receipt = client.submit("mail", {"to": "ada@example.com"})
    >>> receipt.status
    'created'
    >>> client.job(receipt.id).state
    'ready'
    >>> client.close()
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str], None] = None,
        *,
        token: Optional[str] = None,
        timeout: float = 60.0,
        tls: Optional[ssl.SSLContext] = None,
        discover: bool = True,
    ) -> None:
        if urls is None:
            urls = os.environ.get("TENURE_SERVER") or "http://127.0.0.1:8080"
        if isinstance(urls, str):
            urls = [url.strip() for url in urls.split(",") if url.strip()]
        if not urls:
            raise ValueError("give the address of at least one broker")
        if token is None:
            token = os.environ.get("TENURE_API_TOKEN") or None
        self.timeout = timeout
        self._nodes = [Node(url, token, tls) for url in urls]
        self._given = tuple(self._nodes)
        self._node: Callable[[str], Node] = lambda url: Node(url, token, tls)
        self._place = 0
        self._lock = threading.Lock()
        self._discovers = discover
        self._looks_at = clock.now()
        self._looking: Optional[threading.Thread] = None
        self._submits: Together[Receipt] = Together(self._submit_together)
        self._completions: Together[str] = Together(lambda items, seconds: self._end_together("complete", items, seconds))
        self._failures: Together[str] = Together(lambda items, seconds: self._end_together("fail", items, seconds))

    def __repr__(self) -> str:
        return f"Client({[node.url for node in self._nodes]!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections. The client can still be used."""
        for node in self._nodes:
            node.close()

    # ------------------------------------------------------------------ jobs

    def submit(
        self,
        type: str,
        payload: Json = None,
        *,
        id: Optional[str] = None,
        queue: Optional[str] = None,
        priority: Optional[int] = None,
        run_at: Union[int, str, None] = None,
        delay: Optional[float] = None,
        max_attempts: Optional[int] = None,
        unique_key: Optional[str] = None,
        group: Optional[str] = None,
        backoff: Optional[Backoff] = None,
        traceparent: Optional[str] = None,
        tracestate: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Receipt:
        """Submits one job; when this returns, the job is durable.

        ``delay`` is in seconds. Give your own ``id`` if the program may be restarted before it gets the answer:
        submitting the same id again does not add a second job.

        >>> first = client.submit("report", {"day": "2026-03-02"}, id="report-2026-03-02")
        >>> client.submit("report", {"day": "2026-03-02"}, id="report-2026-03-02").status
        'duplicate'

        The job belongs to the span ``traceparent`` (W3C Trace Context), or to the current span if the package
        ``opentelemetry`` is installed. Its worker finds the span in ``task.traceparent``.

        Raises :class:`Conflict` if a job with this id and different content exists, :class:`Full` if there are too many
        jobs, and :class:`Unknown` if the job may or may not have been added.
        """
        job = Submission(
            type=type,
            payload=payload,
            id=id,
            queue=queue,
            priority=priority,
            run_at=run_at,
            delay_ms=None if delay is None else milliseconds(delay),
            max_attempts=max_attempts,
            unique_key=unique_key,
            group=group,
            backoff=backoff,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        body = with_id(traced(job)).body()
        alone = lambda seconds, may_be_done: self._submit(body, seconds, may_be_done)[0]
        return self._submits.call(written(body), self.timeout if timeout is None else timeout, alone)

    def _submit_together(self, jobs: Sequence[bytes], timeout: float) -> list[Optional[Receipt]]:
        answer = self._call("POST", "/v1/jobs", together("jobs", jobs), timeout=timeout)
        receipts = [Receipt.of(item) for item in listed(answer.body, "jobs")]
        return [receipt if receipt.status in ("created", "duplicate") else None for receipt in receipts]

    def submit_many(self, jobs: Iterable[Submission], *, timeout: Optional[float] = None) -> list[Receipt]:
        """Submits jobs in one call and one commit; one receipt each, in order.

        At most 1,000 at a time, and 1 MiB together, unless the broker is configured differently.

        >>> [r.status for r in client.submit_many([Submission("mail", n) for n in range(3)])]
        ['created', 'created', 'created']
        """
        bodies = [with_id(traced(job)).body() for job in jobs]
        if not bodies:
            return []
        return self._submit({"jobs": bodies}, timeout)

    def _submit(self, body: dict[str, Json], timeout: Optional[float], resent: bool = False) -> list[Receipt]:
        try:
            answer = self._call("POST", "/v1/jobs", body, timeout=timeout, resent=resent)
        except Unknown as problem:
            problem.ids = tuple(job["id"] for job in body.get("jobs", [body]))
            raise
        return [Receipt.of(item) for item in listed(answer.body, "jobs")]

    def job(self, id: str) -> Job:
        """One job. Raises :class:`NotFound` if there is no such job, or it was deleted."""
        return Job.of(self._call("GET", f"/v1/jobs/{quoted(id)}").body)

    def page(
        self,
        *,
        state: Optional[str] = None,
        queue: Optional[str] = None,
        type: Optional[str] = None,
        search: Optional[str] = None,
        limit: Optional[int] = None,
        after: Optional[int] = None,
        before: Optional[int] = None,
        newest: bool = False,
    ) -> Page:
        """One page of jobs, oldest first, or newest first with ``newest`` or ``before``.

        A page ends at about 4 MiB, so it may have fewer jobs than ``limit`` and still a ``next``. ``search`` is any part
        of a job's texts, in lower or upper case. A broker searches a limited number of jobs at a time, so such a page
        may even be empty.
        """
        query = {"state": state, "queue": queue, "type": type, "search": search, "limit": limit}
        query.update(after=after, before=before)
        if newest:
            query["order"] = "newest"
        body = self._call("GET", "/v1/jobs", query=query).body
        return Page(tuple(Job.of(job) for job in listed(body, "jobs")), body.get("next"))

    def jobs(
        self,
        *,
        state: Optional[str] = None,
        queue: Optional[str] = None,
        type: Optional[str] = None,
        search: Optional[str] = None,
        newest: bool = False,
    ) -> Iterator[Job]:
        """All jobs that match, page by page. Jobs that are added or deleted meanwhile do not shift the pages.

        >>> [job.type for job in client.jobs(state="dead")]
        []
        """
        place: Optional[int] = None
        while True:
            page = self.page(
                state=state,
                queue=queue,
                type=type,
                search=search,
                newest=newest,
                after=None if newest else place,
                before=place if newest else None,
            )
            yield from page.jobs
            if page.next is None:
                return
            place = page.next

    def wait(self, id: str, *, timeout: Optional[float] = None) -> Job:
        """Waits until a job is finished and returns it. Raises ``TimeoutError`` when time is up.

        Polls, at intervals of up to two seconds.
        """
        deadline = None if timeout is None else clock.now() + timeout
        waits = Waits(0.02, 2.0)
        while True:
            job = self.job(id)
            if job.is_finished:
                return job
            pause = waits.next()
            if deadline is not None:
                remaining = deadline - clock.now()
                if remaining <= 0:
                    raise TimeoutError(f"job {id} is still {job.state}")
                pause = min(pause, remaining)
            time.sleep(pause)

    def cancel(self, id: str) -> Job:
        """Cancels a job. A running job is only marked: its worker learns of it with its next heartbeat."""
        return self._change(id, "cancel")

    def retry(self, id: str) -> Job:
        """Runs a dead or cancelled job again from its first attempt, or a scheduled one now."""
        return self._change(id, "retry")

    def _change(self, id: str, verb: str) -> Job:
        try:
            return Job.of(self._call("POST", f"/v1/jobs/{quoted(id)}/{verb}", {}).body)
        except WrongState as problem:
            # The sending whose answer was lost has done it: the job is in the requested state.
            if not problem.resent:
                raise
            return self.job(id)

    def retry_many(
        self, *, state: str = "dead", queue: Optional[str] = None, type: Optional[str] = None, limit: Optional[int] = None
    ) -> list[Receipt]:
        """Retries all jobs that match, by default dead ones; one receipt each."""
        wanted = {"state": state, "queue": queue, "type": type, "limit": limit}
        body = {name: value for name, value in wanted.items() if value is not None}
        return [Receipt.of(item) for item in listed(self._call("POST", "/v1/jobs/retry", body).body, "jobs")]

    def move(self, ids: Iterable[str], queue: str) -> list[Receipt]:
        """Moves jobs that are neither running nor completed to another queue, where each keeps its turn; one receipt each."""
        body = {"ids": list(ids), "queue": queue}
        return [Receipt.of(item) for item in listed(self._call("POST", "/v1/jobs/move", body).body, "jobs")]

    def forget(self, id: str) -> None:
        """Deletes a finished job before its retention time is over.

        Its id stays behind for up to an hour, with its result: a submit that is repeated is still a duplicate.
        """
        try:
            self._call("DELETE", f"/v1/jobs/{quoted(id)}")
        except NotFound as problem:
            if not problem.resent:
                raise

    # ------------------------------------------------------------------ claims

    def claim(
        self,
        worker: str,
        *,
        queues: Sequence[str] = (),
        types: Sequence[str] = (),
        max: int = 1,
        lease: float = 30.0,
        wait: float = 0.0,
        timeout: Optional[float] = None,
        stop: Optional[threading.Event] = None,
    ) -> list[Claimed]:
        """Takes up to ``max`` jobs, waiting up to ``wait`` seconds for the first. :class:`Worker` does this for you.

        Each is yours for ``lease`` seconds, and again from every heartbeat on. If no broker answers and ``stop`` is
        set, the call is not repeated. A repeated call is the same claim: jobs of a lost answer come with the next one.
        A job whose payload Python cannot read has ``unreadable`` set; the others are not affected.

        >>> _ = client.submit("sum", [1, 2], queue="sums")
        >>> [claimed] = client.claim("worker-1", queues=["sums"])
        >>> client.complete(claimed, result=sum(claimed.payload))
        >>> client.job(claimed.id).result
        3
        """
        body: dict[str, Json] = {
            "worker": worker,
            "max": max,
            "lease_ms": milliseconds(lease),
            "wait_ms": milliseconds(wait),
        }
        if queues:
            body["queues"] = list(queues)
        if types:
            body["types"] = list(types)
        answer = self._call(
            "POST", "/v1/jobs/claim", body, timeout=timeout, waits=wait, stop=stop, name=str(uuid.uuid4())
        )
        return list(readable_claims(listed(answer.body, "jobs")))

    def heartbeat(self, claim: Claim, *, progress: Json = None, timeout: Optional[float] = None) -> str:
        """Renews a claim. Returns ``"ok"``, or ``"cancelled"``: then stop, and fail or complete as usual.

        Raises :class:`Lost` if the claim has ended.
        """
        body = {"token": claim.token}
        if progress is not None:
            body["progress"] = progress
        answer = self._call("POST", f"/v1/jobs/{quoted(claim.id)}/heartbeat", body, timeout=timeout)
        return str(answer.body["status"])

    def heartbeat_many(
        self, claims: Iterable[tuple[Claim, Json]], *, timeout: Optional[float] = None
    ) -> list[ClaimStatus]:
        """Renews claims, each with its progress or None, in one call. One answer each, in order."""
        items = []
        for claim, progress in claims:
            item = {"id": claim.id, "token": claim.token}
            if progress is not None:
                item["progress"] = progress
            items.append(item)
        answer = self._call("POST", "/v1/jobs/heartbeat", {"claims": items}, timeout=timeout)
        return [ClaimStatus.of(item) for item in listed(answer.body, "claims")]

    def complete(self, claim: Claim, *, result: Json = None, timeout: Optional[float] = None) -> None:
        """Completes a claim. Raises :class:`Lost` if the claim had already ended in another way.

        Repeated if its answer is lost: the broker answers the same completion as it did the first time. An older broker does
        not; then the completion is recognised by reading the job back: no attempt was started after this one.
        """
        body = {"token": claim.token}
        if result is not None:
            body["result"] = result
        try:
            self._end(self._completions, claim, "complete", body, timeout)
        except Lost as lost:
            if lost.reason.get("state") != "completed" or not self._has_completed(claim):
                raise

    def fail(
        self,
        claim: Claim,
        error: str,
        *,
        retry_in: Optional[float] = None,
        permanent: bool = False,
        timeout: Optional[float] = None,
    ) -> None:
        """Fails a claim: the job is tried again after its back-off (or ``retry_in`` seconds).

        The job is dead at once if ``permanent``, or if this was its last attempt. Raises :class:`Lost` if the claim had
        already ended in another way; a failure that is already recorded is recognised by its error.
        """
        body: dict[str, Json] = {"token": claim.token, "error": error}
        if retry_in is not None:
            body["retry_in_ms"] = milliseconds(retry_in)
        if permanent:
            body["permanent"] = True
        try:
            self._end(self._failures, claim, "fail", body, timeout)
        except Lost as lost:
            if lost.ended_otherwise or not self._has_failed(claim, error):
                raise

    def _end(
        self, calls: Together[str], claim: Claim, verb: str, body: dict[str, Json], timeout: Optional[float]
    ) -> None:
        def alone(seconds: float, may_be_done: bool) -> str:
            self._call("POST", f"/v1/jobs/{quoted(claim.id)}/{verb}", body, timeout=seconds, resent=may_be_done)
            return "ok"

        calls.call(written({"id": claim.id, **body}), self.timeout if timeout is None else timeout, alone)

    def _end_together(self, verb: str, claims: Sequence[bytes], timeout: float) -> list[Optional[str]]:
        """Ends claims. For a claim whose end was not simply done, a separate call determines the outcome: ends can be
        repeated."""
        answer = self._call("POST", f"/v1/jobs/{verb}", together("claims", claims), timeout=timeout)
        statuses = [ClaimStatus.of(item).status for item in listed(answer.body, "claims")]
        return [status if status == "ok" else None for status in statuses]

    def release(self, claim: Claim, *, timeout: Optional[float] = None) -> None:
        """Hands a claim back as if it had never been made: the attempt does not count, and any worker may claim the job at once.

        If the job was to be cancelled, it is cancelled instead. Raises :class:`Lost` if the claim had already ended in
        another way; a release that is already recorded is recognised by the number of the job's attempt.

        >>> _ = client.submit("sum", [1, 2], queue="later")
        >>> [claimed] = client.claim("worker-1", queues=["later"])
        >>> client.release(claimed)
        >>> client.job(claimed.id).attempt
        0
        """
        try:
            self._call("POST", f"/v1/jobs/{quoted(claim.id)}/release", {"token": claim.token}, timeout=timeout)
        except Lost as lost:
            if lost.ended_otherwise or not self._has_released(claim):
                raise

    def _has_completed(self, claim: Claim) -> bool:
        # If no later attempt was started, only the holder of this attempt's token can have completed it.
        try:
            job = self.job(claim.id)
        except NotFound:
            return False
        return job.state == "completed" and job.attempt == claim.attempt

    def _has_failed(self, claim: Claim, error: str) -> bool:
        # Two attempts may fail with the same text; even then the job is in the requested state.
        try:
            job = self.job(claim.id)
        except NotFound:
            return False
        # The server cuts long errors.
        is_ours = bool(job.error) and error.startswith(job.error or "")
        if job.state == "running":
            return is_ours and job.attempt == claim.attempt + 1
        return is_ours and job.state != "completed" and job.attempt == claim.attempt

    def _has_released(self, claim: Claim) -> bool:
        # Only the holder of this attempt's token can have released it: the attempt is still to come, or another claim
        # has it.
        try:
            job = self.job(claim.id)
        except NotFound:
            return False
        if job.state in ("running", "cancelled") and job.attempt == claim.attempt:
            return True
        return job.attempt + 1 == claim.attempt

    # ------------------------------------------------------------------ queues, schedules, the rest

    def queues(self) -> list[Queue]:
        """All queues."""
        return [Queue.of(item) for item in self._named("queues")]

    def queue(self, name: str) -> Queue:
        """One queue."""
        return Queue.of(self._call("GET", f"/v1/queues/{quoted(name)}").body)

    def change_queue(
        self,
        name: str,
        *,
        concurrency: Union[int, None, Unchanged] = UNCHANGED,
        rate: Union[Rate, None, Unchanged] = UNCHANGED,
    ) -> Queue:
        """Changes some of a queue's limits; None takes one away. Limits that are not given stay as they are, even if
        others change them at the same time.

        >>> client.change_queue("mail", concurrency=5).concurrency
        5
        """
        body: dict[str, Json] = {}
        if not isinstance(concurrency, Unchanged):
            body["concurrency"] = concurrency
        if not isinstance(rate, Unchanged):
            body["rate"] = None if rate is None else rate.body()
        return Queue.of(self._call("PATCH", f"/v1/queues/{quoted(name)}", body).body)

    def set_queue(self, name: str, *, concurrency: Optional[int] = None, rate: Optional[Rate] = None) -> Queue:
        """Sets all limits of a queue: those that you leave out become unlimited.

        >>> client.set_queue("mail", concurrency=10, rate=Rate(jobs=100, period_ms=60_000)).concurrency
        10
        """
        body: dict[str, Json] = {}
        if concurrency is not None:
            body["concurrency"] = concurrency
        if rate is not None:
            body["rate"] = rate.body()
        return Queue.of(self._call("PUT", f"/v1/queues/{quoted(name)}", body).body)

    def pause(self, queue: str) -> Queue:
        """Pauses a queue: no job of it can be claimed. Running jobs continue."""
        return Queue.of(self._call("POST", f"/v1/queues/{quoted(queue)}/pause", {}).body)

    def resume(self, queue: str) -> Queue:
        """Resumes a paused queue: its jobs can be claimed again."""
        return Queue.of(self._call("POST", f"/v1/queues/{quoted(queue)}/resume", {}).body)

    def schedules(self) -> list[Schedule]:
        """All schedules."""
        return [Schedule.of(item) for item in self._named("schedules")]

    def _named(self, kind: str) -> list[dict[str, Json]]:
        """Lists what has names, one page after the other."""
        items: list[dict[str, Json]] = []
        path = f"/v1/{kind}"
        while True:
            body = as_object(self._call("GET", path).body)
            items += listed(body, kind)
            after = body.get("next")
            if not isinstance(after, str):
                return items
            path = f"/v1/{kind}?after={quoted(after)}"

    def schedule(self, name: str) -> Schedule:
        """One schedule."""
        return Schedule.of(self._call("GET", f"/v1/schedules/{quoted(name)}").body)

    def set_schedule(
        self,
        name: str,
        cron: str,
        job: Submission,
        *,
        timezone: str = "UTC",
        missed: Json = None,
        run_on_start: bool = False,
    ) -> Schedule:
        """Creates or replaces a schedule: ``job`` is submitted at every slot of ``cron``.

        ``cron`` has five fields, or six with seconds first. ``missed`` decides what happens to slots that passed while
        no broker led: ``"skip"``, ``"once"`` (the default: only the latest runs), or ``{"all": 10}``. With
        ``run_on_start`` a job is also submitted now, if this creates or changes the schedule.

        >>> client.set_schedule("nightly", "0 3 * * *", Submission("report"), timezone="Europe/Berlin").timezone
        'Europe/Berlin'
        """
        body: dict[str, Json] = {"cron": cron, "timezone": timezone, "job": job.body()}
        if missed is not None:
            body["missed"] = missed
        if run_on_start:
            body["run_on_start"] = True
        return Schedule.of(self._call("PUT", f"/v1/schedules/{quoted(name)}", body).body)

    def pause_schedule(self, name: str) -> Schedule:
        """Pauses a schedule: it submits no jobs until it is resumed, even if it is set again meanwhile."""
        return Schedule.of(self._call("POST", f"/v1/schedules/{quoted(name)}/pause", {}).body)

    def resume_schedule(self, name: str) -> Schedule:
        """Resumes a paused schedule with its next slot. Slots that fell into the pause are skipped."""
        return Schedule.of(self._call("POST", f"/v1/schedules/{quoted(name)}/resume", {}).body)

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule. Its jobs are kept."""
        self._call("DELETE", f"/v1/schedules/{quoted(name)}")

    def stats(self) -> dict[str, Json]:
        """Counts, rates, and statistics of the log and the store, as the broker returns them."""
        return as_object(self._call("GET", "/v1/stats").body)

    def time(self) -> dict[str, Json]:
        """The queue's time (``now_ms``), the broker's clock (``wall_ms``), and whether the queue follows it (``clock``)."""
        return as_object(self._call("GET", "/v1/time").body)

    def set_time(self, to: Union[int, str, None] = None) -> dict[str, Json]:
        """Sets the queue's time, forward or back, after a clock was wrong. Needs an admin token.

        ``to`` is milliseconds since 1970, or RFC 3339 text; the default is the time on the broker's clock.
        """
        return as_object(self._call("PUT", "/v1/time", {} if to is None else {"to": to}).body)

    def workers(self) -> list[dict[str, Json]]:
        """The workers that run jobs or wait for some, and what each runs, as the broker returns them."""
        return listed(self._call("GET", "/v1/workers").body, "workers")

    def cluster(self) -> dict[str, Json]:
        """The leader, the nodes and the daemons, as the broker returns them."""
        return as_object(self._call("GET", "/v1/cluster").body)

    def events(
        self,
        kinds: Optional[Sequence[str]] = None,
        *,
        queue: Optional[str] = None,
        stop: Optional[threading.Event] = None,
    ) -> Generator[Event, None, None]:
        """Follows what happens, through failovers, until ``stop`` is set or the iterator is closed.

        ``kinds`` are any of ``"job"``, ``"queue"``, ``"schedule"`` (the default), ``"leader"``, ``"node"`` and
        ``"daemon"``. The first event is a ``reset``, and another one follows if events were missed: then read again
        what you keep. ``stop`` is checked whenever the broker sends something: within ten seconds.

        >>> events = client.events(["leader", "node"])
        >>> next(events).name, next(events).name
        ('reset', 'leader_elected')
        >>> events.close()
        """
        return follow(self, kinds, queue, stop)

    def resign(self) -> None:
        """Asks the leading broker to hand over to another one."""
        self._call("POST", "/v1/leader/resign", {})

    def transfer(self, node: str) -> None:
        """Asks the leading broker to hand over to the broker ``node``."""
        self._call("POST", "/v1/leader/transfer", {"node": node})

    def election(self, name: str, candidate: Optional[str] = None, *, ttl: float = 10.0) -> Election:
        """An election in which this program is a candidate. See :class:`Election`."""
        return Election(self, name, candidate, ttl=ttl)

    # ------------------------------------------------------------------ one call, until it is answered

    def _call(
        self,
        method: str,
        path: str,
        body: Union[Json, bytes] = None,
        *,
        query: Optional[Mapping[str, Any]] = None,
        timeout: Optional[float] = None,
        waits: float = 0.0,
        stop: Optional[threading.Event] = None,
        name: Optional[str] = None,
        resent: bool = False,
    ) -> Answer:
        """Sends a call until a node answers it, its time is up, or ``stop`` is set between two tries.

        Nodes take turns; between rounds there is a pause. ``waits`` is how long the broker may wait on purpose, and
        ``resent`` says that the call was sent before, and may have been carried out. A body of bytes is JSON text
        already.
        """
        if query:
            said = {name: value for name, value in query.items() if value is not None}
            path = f"{path}?{urlencode(said)}" if said else path
        content = body if body is None or isinstance(body, bytes) else written(body)
        deadline = clock.now() + waits + (self.timeout if timeout is None else timeout)
        pauses = Waits()
        tries, mistrusted = 0, 0
        while True:
            place = self._place
            seconds = max(0.001, min(waits + REQUEST_SECONDS, deadline - clock.now()))
            # A broker without a leader holds the call for this long, and answers before this client stops waiting.
            hold = max(0, int(seconds - waits - HOLD_MARGIN_SECONDS))
            retry_after = 0.0
            problem: Exception
            try:
                nodes = self._nodes
                node = nodes[place % len(nodes)]
                if waits > 0:
                    # This may be the first call, and its broker may die before it answers.
                    self._look(node)
                response = node.exchange(method, path, content, seconds, hold, name)
                # A node on the way may have sent it twice, too.
                resent = resent or "tenure-repeated" in response.headers
                if response.status < 300:
                    self._look(node)
                    return Answer(decoded(response), resent)
                problem = refusal(response)
                problem.resent = resent
                if not isinstance(problem, Unavailable):
                    raise problem
                resent = resent or isinstance(problem, Unknown)
                if response.status == 429:
                    retry_after = seconds_of(response.headers.get("retry-after"))
            except Unknown as failure:
                problem = failure
                resent = True
            except NotTrusted as failure:
                problem = failure
            except NotSent as failure:
                problem = failure
            except AnswerLost as failure:
                problem = failure
                resent = True
            tries += 1
            mistrusted = mistrusted + 1 if isinstance(problem, NotTrusted) else 0
            if mistrusted == len(self._nodes) and not resent:
                # Waiting does not fix a certificate.
                raise problem
            self._leave(place)
            pause = max(pauses.next(), retry_after) if tries % len(self._nodes) == 0 else 0.0
            if clock.now() + pause >= deadline or (stop is not None and stop.wait(pause)):
                raise given_up(method, path, problem, resent, tries) from problem
            if stop is None:
                time.sleep(pause)

    def _turn(self) -> tuple[int, Node]:
        """The node whose turn it is."""
        nodes, place = self._nodes, self._place
        return place, nodes[place % len(nodes)]

    def _count(self) -> int:
        return len(self._nodes)

    def _leave(self, place: int) -> None:
        """Switches to the next node, unless another thread has done so already."""
        with self._lock:
            if self._place == place:
                self._place = (place + 1) % len(self._nodes)

    def _look(self, node: Node) -> None:
        """Sometimes asks a broker for the others, while the caller continues."""
        now = clock.now()
        if not self._discovers or now < self._looks_at:
            return
        with self._lock:
            if now < self._looks_at:
                return
            self._looks_at = now + LOOK_SECONDS
        # A daemon: a program may end meanwhile.
        self._looking = threading.Thread(target=self._find, args=(node,), name="tenure-discovery", daemon=True)
        self._looking.start()

    def _find(self, node: Node) -> None:
        try:
            response = node.exchange("GET", "/v1/cluster", None, REQUEST_SECONDS)
            if response.status != 200:
                return
            found = brokers(as_object(decoded(response)), [one.url for one in self._given])
        except Exception as problem:  # it was only a look: what is known stays
            log.debug("cannot ask %s for the other brokers: %r", node.url, problem)
            return
        with self._lock:
            known = {one.url: one for one in self._nodes[len(self._given) :]}
            self._nodes = [*self._given, *(known.get(url) or self._node(url) for url in found)]
            self._place %= len(self._nodes)


def readable_claims(items: Sequence[Mapping[str, Json]]) -> Iterator[Claimed]:
    """The jobs of a claim, read one by one, so that a bad one does not affect the others."""
    for item in items:
        try:
            yield Claimed.of(item)
        except (KeyError, TypeError) as problem:
            # Without these fields its end cannot be reported either.
            log.warning("cannot read a claimed job; it runs again when its lease ends: %r", problem)


def together(name: str, items: Sequence[bytes]) -> bytes:
    """A body with these items, each of which is JSON text."""
    return b'{"' + name.encode() + b'":[' + b",".join(items) + b"]}"


def with_id(job: Submission) -> Submission:
    """The job with an id that is made before anything is sent, which makes sending twice safe."""
    return job if job.id is not None else replace(job, id=str(uuid.uuid4()))


def milliseconds(seconds: float) -> int:
    """Whole milliseconds. NaN, infinity and negative times are the caller's mistake."""
    if not 0 <= seconds <= SECONDS_MAX:
        raise Invalid(f"{seconds!r} is not a valid time in seconds: it must be between 0 and {SECONDS_MAX:.0f} (ten years)")
    return round(seconds * 1000)


def given_up(method: str, path: str, problem: Exception, resent: bool, tries: int) -> Unavailable:
    """The error of a call whose time is up."""
    where = f"{method} {path.partition('?')[0]}"
    times = "1 try" if tries == 1 else f"{tries} tries"
    code = getattr(problem, "code", None)
    status = getattr(problem, "status", None)
    if resent and method != "GET":
        return Unknown(
            f"{where} may or may not have been carried out, after {times}: {problem}",
            code=code,
            status=status,
            hint="send it again with the same ids",
        )
    kind = Overloaded if isinstance(problem, Overloaded) else Unavailable
    return kind(f"{where} was not carried out, after {times}: {problem}", code=code, status=status)
