"""No content of one job, and no answer of a gateway, harms another job or the worker.

A real server refuses most of what is sent here, or never says it, so the double of the lost answers plays one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import unittest
from typing import Any, Callable, Optional
from unittest import mock

from tenure import Client, HandBack, Invalid, NotAllowed, RetryIn, Task, Unavailable, Worker, clock
from tenure.types import Unreadable
from tenure.wire import read

from .support import Claims, eventually
from .test_lost_answers import Double

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "7" * 5_000

HTML = b"<html><body>Service restarting</body></html>"


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def claimed(id: str, payload: str = "null", lease_ms: int = 30_000, extra: str = "") -> str:
    return (
        f'{{"id":"{id}","queue":"q","type":"t","attempt":1,"max_attempts":3,"token":"{id}-token","lease_ms":{lease_ms},'
        f'"created_at":1,"payload":{payload}{extra}}}'
    )


class Broker:
    """Answers the calls of a worker: one claim with these jobs, then none. ``reports`` is what the worker told it."""

    def __init__(self, *jobs: str) -> None:
        self.jobs = ",".join(jobs)
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.heartbeats: list[list[dict[str, Any]]] = []
        #: Asked before each answer; one that is not None is sent instead.
        self.instead: Callable[[str, bytes], Optional[bytes]] = lambda path, body: None

    def __call__(self, head: str, body: bytes) -> Optional[bytes]:
        path = head.split()[1]
        other = self.instead(path, body)
        if other is not None:
            return other
        if path == "/v1/jobs/claim":
            jobs, self.jobs = self.jobs, ""
            return http(200, f'{{"jobs":[{jobs}]}}'.encode())
        if path == "/v1/jobs/heartbeat":
            items = json.loads(body)["claims"]
            self.heartbeats.append(items)
            answers = [{"id": item["id"], "status": "ok"} for item in items]
            return http(200, json.dumps({"claims": answers}).encode())
        if path in ("/v1/jobs/complete", "/v1/jobs/fail"):
            items = json.loads(body)["claims"]
            for item in items:
                self.reports.append((f"{path.rpartition('/')[2]} {item['id']}", item))
            answers = [{"id": item["id"], "status": "ok"} for item in items]
            return http(200, json.dumps({"claims": answers}).encode())
        _, _, _, id, verb = path.split("/")
        self.reports.append((f"{verb} {id}", json.loads(body)))
        return http(200, b"{}")

    @property
    def ends(self) -> list[str]:
        return sorted(end for end, _ in self.reports)


class Isolation(Claims):
    def setUp(self) -> None:
        # Hides the warnings that these tests provoke.
        logging.getLogger("tenure").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("tenure").setLevel, logging.NOTSET)

    def _run(self, broker: Broker, handler: Callable[[Task], Any], timeout: float = 20, **options: Any) -> None:
        with Double(broker) as node, Client(node.url, timeout=timeout) as client:
            worker = Worker(client, concurrency=4, **options)
            worker.handles("t")(handler)
            worker.run(until_idle=True)

    def a_forked_child_that_leaves_the_handler_ends_and_reports_nothing(self) -> None:
        ways: dict[str, Callable[[], Any]] = {"returns": lambda: 7, "exits": lambda: sys.exit(3), "fails": lambda: 1 / 0}
        codes: dict[str, int] = {}
        here = os.getpid()

        def handler(task: Task) -> Any:
            child = os.fork()
            if child == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                return ways[task.id]()
            codes[task.id] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return "parent"

        for way in ways:
            broker = Broker(claimed(way))
            try:
                self._run(broker, handler)
            finally:
                if os.getpid() != here:
                    os._exit(99)
            self.assertEqual(broker.ends, [f"complete {way}"])
            self.assertEqual(broker.reports[0][1]["result"], "parent")
        self.assertEqual(codes, {"returns": 0, "exits": 3, "fails": 1})

    def a_payload_that_cannot_be_read_fails_only_its_own_job(self) -> None:
        for payload in (DEEP, LONG, f'{{"a":[1,"]}},{{",{LONG}]}}'):
            broker = Broker(claimed("first", "1"), claimed("poison", payload), claimed("last", '{"x":"},{"}'))
            seen: list[Any] = []
            self._run(broker, lambda task: seen.append(task.payload))
            self.assertEqual(broker.ends, ["complete first", "complete last", "fail poison"])
            self.assertCountEqual(seen, [1, {"x": "},{"}])
            told = dict(broker.reports)["fail poison"]
            self.assertTrue(told["permanent"])
            self.assertIn("cannot read this job", told["error"])

    def a_job_that_lacks_a_field_does_not_keep_the_others(self) -> None:
        broker = Broker('{"id":"odd"}', claimed("fine"))
        self._run(broker, lambda task: None)
        self.assertEqual(broker.ends, ["complete fine"])

    def jobs_beside_one_that_cannot_be_read_are_listed(self) -> None:
        job = (
            '{"id":"%s","queue":"q","type":"t","state":"ready","payload":%s,"priority":0,"attempt":0,"max_attempts":1,'
            '"created_at":1,"run_at":1,"changed_at":1}'
        )
        page = '{"jobs":[%s,%s]}' % (job % ("a", DEEP), job % ("b", "7"))
        with Double(lambda head, body: http(200, page.encode())) as node, Client(node.url) as client:
            first, second = client.jobs()
        self.assertIsNone(first.payload)
        self.assertIn("nested too deeply", first.unreadable or "")
        self.assertEqual((second.payload, second.unreadable), (7, None))

    def progress_is_checked_where_it_is_given(self) -> None:
        def handle(task: Task) -> str:
            for value in (object(), float("nan"), "x" * 20_000, "\ud800"):
                with self.assertRaises(Invalid):
                    task.progress(value)
            return "still here"

        broker = Broker(claimed("a"))
        self._run(broker, handle)
        self.assertEqual(dict(broker.reports)["complete a"]["result"], "still here")

    def progress_is_what_it_was_when_it_was_given(self) -> None:
        shown = {"done": 1}
        task = Task(None, 0.0)  # type: ignore[arg-type]
        task.progress(shown)
        shown["done"] = 2
        self.assertEqual(task._progress, {"done": 1})

    def a_refused_progress_costs_nobody_a_lease(self) -> None:
        broker = Broker(claimed("bad", lease_ms=600), claimed("good", lease_ms=600))

        def refuse(path: str, body: bytes) -> Optional[bytes]:
            if path == "/v1/jobs/heartbeat" and b"refused" in body:
                return http(422, b'{"code":"invalid_field","detail":"progress is refused"}')
            return None

        broker.instead = refuse

        def handle(task: Task) -> bool:
            task.progress("refused" if task.id == "bad" else "half")
            started = task._confirmed_at
            eventually(lambda: task._confirmed_at > started + 1.0 or task.stopped.is_set(), "renewals")
            return task.stopped.is_set()

        self._run(broker, handle, lease=0.6)
        self.assertEqual([(end, told.get("result")) for end, told in sorted(broker.reports, key=str)],
                         [("complete bad", False), ("complete good", False)])  # fmt: skip
        progress = [item.get("progress") for items in broker.heartbeats for item in items if item["id"] == "good"]
        self.assertEqual(progress.count("half"), 1)

    def each_claim_of_a_heartbeat_is_answered_on_its_own(self) -> None:
        broker = Broker(claimed("unshown", lease_ms=600), claimed("unread", lease_ms=600), claimed("good", lease_ms=600))
        problem = {"code": "invalid_field", "detail": "claims[0].progress has too many bytes"}

        def answer(path: str, body: bytes) -> Optional[bytes]:
            if path != "/v1/jobs/heartbeat":
                return None
            claims = []
            for item in json.loads(body)["claims"]:
                status = "invalid" if item["id"] == "unread" else "ok"
                refused = status == "invalid" or "progress" in item
                claims.append({"id": item["id"], "status": status, **({"problem": problem} if refused else {})})
            return http(200, json.dumps({"claims": claims}).encode())

        broker.instead = answer

        def handle(task: Task) -> bool:
            if task.id == "unshown":
                task.progress("refused")
            started = task._confirmed_at
            eventually(lambda: task._confirmed_at > started + 1.0 or task.stopped.is_set(), "renewals")
            return task.stopped.is_set()

        self._run(broker, handle, lease=0.6)
        self.assertEqual([(end, told.get("result")) for end, told in sorted(broker.reports, key=str)],
                         [("complete good", False), ("complete unread", True), ("complete unshown", False)])  # fmt: skip

    def a_claim_that_was_answered_long_ago_is_confirmed_before_its_handler_begins(self) -> None:
        """As when the machine was suspended while the claim was answered."""
        for status, ends in (("ok", ["complete a"]), ("cancelled", ["release a"]), ("lost", [])):
            ahead, now = [0.0], clock.now
            begun: list[Task] = []
            broker = Broker(claimed("a"))

            def answer(path: str, body: bytes, status: str = status, ahead: list[float] = ahead) -> Optional[bytes]:
                if path == "/v1/jobs/claim":
                    ahead[0] += 31.0
                if path != "/v1/jobs/heartbeat":
                    return None
                return http(200, json.dumps({"claims": [{"id": "a", "status": status}]}).encode())

            broker.instead = answer
            with mock.patch.object(clock, "now", lambda ahead=ahead, now=now: now() + ahead[0]):
                self._run(broker, begun.append, lease=30.0)
            self.assertEqual((len(begun), broker.ends), (int(status == "ok"), ends), status)

    def a_claim_that_cannot_be_confirmed_is_handed_back_unbegun(self) -> None:
        ahead, now = [0.0], clock.now
        begun: list[Task] = []
        broker = Broker(claimed("a"))

        def answer(path: str, body: bytes) -> Optional[bytes]:
            if path == "/v1/jobs/claim":
                ahead[0] += 31.0
            if path != "/v1/jobs/heartbeat":
                return None
            # A lease later, still no heartbeat was answered.
            ahead[0] += 31.0
            return http(500, HTML)

        broker.instead = answer
        with mock.patch.object(clock, "now", lambda: now() + ahead[0]):
            self._run(broker, begun.append, lease=30.0)
        self.assertEqual((begun, broker.ends), ([], ["release a"]))

    def a_broken_answer_does_not_end_the_worker(self) -> None:
        answers = [
            http(500, HTML),
            http(200, HTML),
            http(200, b'{"what":1}'),
            *(http(status, HTML) for status in (302, 400, 401, 403, 404, 409, 413, 422, 429, 451)),
            http(400, b'{"message":"no"}'),
            http(500, b'{"code":"internal","detail":"a bug"}'),
        ]
        for broken in answers:
            for call in ("claim", "complete"):
                broker = Broker(claimed("a"))
                left = [broken]

                def fail_once(path: str, body: bytes) -> Optional[bytes]:
                    # Whatever a gateway answers to a report, the job is not failed for it, nor completed without its result.
                    return left.pop() if path.endswith(f"/{call}") and left else None

                if call == "complete" and b"what" in broken:
                    continue
                broker.instead = fail_once
                self._run(broker, lambda task: "done", lease=20)
                self.assertEqual((broker.ends, left), (["complete a"], []), (call, broken))
                self.assertEqual(broker.reports[0][1]["result"], "done")

    def a_wrong_token_ends_the_worker(self) -> None:
        broker = Broker()
        broker.instead = lambda path, body: http(401, b'{"code":"unauthorized","detail":"who?"}')
        with self.assertRaises(NotAllowed):
            self._run(broker, print)

    def an_async_handler_runs_to_its_end(self) -> None:
        async def handle(task: Task) -> int:
            import asyncio

            await asyncio.sleep(0)
            if task.payload == "later":
                raise RetryIn(5)
            return int(task.payload) + 1

        broker = Broker(claimed("a", "41"), claimed("b", '"later"'))
        with Double(broker) as node, Client(node.url) as client:
            worker = Worker(client)
            worker.handles("t")(handle)
            worker.run(until_idle=True)
        reports = dict(broker.reports)
        self.assertEqual(reports["complete a"]["result"], 42)
        self.assertEqual(reports["fail b"]["retry_in_ms"], 5_000)

    def retry_in_takes_only_times(self) -> None:
        for seconds in (float("nan"), float("inf"), -1, -0.001, 1e12):
            with self.assertRaises(ValueError):
                RetryIn(seconds)
        self.assertEqual(RetryIn(0).seconds, 0)

    def a_failure_that_is_refused_is_still_reported(self) -> None:
        def handle(task: Task) -> None:
            later = RetryIn(1, "name \udc80 of a file")
            later.seconds = float("nan")
            raise later

        broker = Broker(claimed("a"))
        self._run(broker, handle)
        self.assertIn("its failure was refused", dict(broker.reports)["fail a"]["error"])

    def a_handler_is_told_to_stop_when_no_heartbeat_gets_through(self) -> None:
        broker = Broker(claimed("a", lease_ms=500))
        broker.instead = lambda path, body: http(503, b'{"code":"no_leader"}') if path.endswith("/heartbeat") else None
        seen = threading.Event()

        def handle(task: Task) -> None:
            if task.stopped.wait(60):
                seen.set()
                raise HandBack

        self._run(broker, handle, lease=0.5)
        self.assertTrue(seen.is_set())
        self.assertEqual(broker.ends, ["release a"])

    def _run_with_a_claim_that_takes(self, seconds: float, broker: Broker, handler: Callable[[Task], Any]) -> None:
        """Runs it with a lease of 60 s, and with time that passes all at once."""
        passed, now, instead = 0.0, clock.now, broker.instead

        def pass_time(path: str, body: bytes) -> Optional[bytes]:
            nonlocal passed
            passed = seconds if path == "/v1/jobs/claim" else passed
            return instead(path, body)

        broker.instead = pass_time
        with mock.patch.object(clock, "now", lambda: now() + passed):
            self._run(broker, handler, lease=60)

    def a_claim_that_waited_longer_than_its_lease_does_not_stop_its_handler(self) -> None:
        broker = Broker(claimed("a", lease_ms=60_000))
        # Confirmed once, and not renewed after that: the lease is long enough.
        ok, invalid = (
            http(200, b'{"claims":[{"id":"a","status":"%s","problem":{"detail":"not now"}}]}' % status)
            for status in (b"ok", b"invalid")
        )
        answers = [ok]
        broker.instead = lambda path, body: (answers.pop() if answers else invalid) if path.endswith("/heartbeat") else None
        # Leases are looked at once a second.
        self._run_with_a_claim_that_takes(90.0, broker, lambda task: task.stopped.wait(3.0))
        self.assertEqual(dict(broker.reports)["complete a"]["result"], False)

    def a_claim_whose_answer_may_be_old_is_renewed_at_once(self) -> None:
        broker = Broker(claimed("a", lease_ms=60_000))
        lost = http(200, b'{"claims":[{"id":"a","status":"lost","reason":{"code":"expired"}}]}')
        broker.instead = lambda path, body: lost if path.endswith("/heartbeat") else None
        stopped: list[bool] = []
        # Well before the next heartbeat would be due, after 20 s.
        self._run_with_a_claim_that_takes(25.0, broker, lambda task: stopped.append(task.stopped.wait(15)))
        self.assertEqual((stopped, broker.ends), ([True], []))

    def a_result_that_cannot_be_sent_is_left_out_and_the_job_is_completed(self) -> None:
        class Odd(dict):  # type: ignore[type-arg]
            def items(self) -> Any:
                raise KeyError("broken")

        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        results = {"set": {1}, "nan": float("nan"), "half": "\ud800", "deep": deep, "long": 10**5_000, "odd": Odd(a=1)}
        broker = Broker(*(claimed(id) for id in results))
        with self.assertLogs("tenure.worker", logging.WARNING) as told:
            self._run(broker, lambda task: results[task.id])
        self.assertEqual(broker.ends, sorted(f"complete {id}" for id in results))
        self.assertEqual([report for _, report in broker.reports if "result" in report], [])
        self.assertEqual(sum("without its result" in line for line in told.output), len(results))

    def a_result_that_is_refused_is_left_out_and_the_job_is_completed(self) -> None:
        refusals = [
            http(422, b'{"code":"invalid_field","detail":"result has too many bytes","field":"result"}'),
            http(413, HTML),
        ]
        for refusal in refusals:
            broker = Broker(claimed("a"))
            broker.instead = lambda path, body: refusal if b"large" in body else None
            with self.assertLogs("tenure.worker", logging.WARNING) as told:
                self._run(broker, lambda task: "large", timeout=4, lease=4)
            self.assertEqual([(end, "result" in report) for end, report in broker.reports], [("complete a", False)])
            self.assertIn("without its result", told.output[0])

    def a_completion_that_is_refused_without_its_result_too_is_not_done_again(self) -> None:
        broker = Broker(claimed("a"))
        refusal = http(422, b'{"code":"invalid_field","detail":"no"}')
        broker.instead = lambda path, body: refusal if path.endswith("/complete") else None
        self._run(broker, lambda task: "done")
        [(end, report)] = broker.reports
        self.assertEqual((end, report["permanent"]), ("fail a", True))
        self.assertIn("the work was done", report["error"])


class Reading(unittest.TestCase):
    def test_only_what_python_cannot_read_is_left_out(self) -> None:
        text = json.dumps({"a": ["x,]}", {"b": "\\\""}], "long": 0, "": None}).replace("0", LONG)
        value = read(text, 4)
        self.assertIsInstance(value.pop("long"), Unreadable)
        self.assertEqual(value, {"a": ["x,]}", {"b": "\\\""}], "": None})
        self.assertIsInstance(read(DEEP, 2)[0][0], Unreadable)

    def test_what_is_not_json_is_an_error(self) -> None:
        for text in ("<html>", "", "{", f"[{LONG}", f'{{"a":{LONG},"b":x}}', f'{{"a":{LONG},"b"}}'):
            with self.assertRaises(ValueError, msg=text[:20]):
                read(text, 4)

    def test_what_is_no_brokers_answer_is_asked_for_again(self) -> None:
        for status in (200, 401, 404):
            with Double(lambda head, body: http(status, HTML)) as node, Client(node.url, timeout=0.5) as client:
                with self.assertRaises(Unavailable) as raised:
                    client.queues()
                self.assertIn("not by a broker", str(raised.exception))
                self.assertGreater(len(node.requests), 1)
