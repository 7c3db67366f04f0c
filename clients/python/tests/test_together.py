"""Calls that are made at the same time share requests, and each gets its own answer."""

from __future__ import annotations

import threading
from typing import Callable, Optional, Sequence
from unittest import mock

from tenure import Client, Conflict, Invalid, Lost, Submission, Unavailable, Unknown
from tenure.together import BATCH_BYTES_MAX, BATCH_MAX, Together
from tenure.transport import Node

from .support import PATIENCE_SECONDS, Claims, Cluster, eventually


def at_once(count: int, act: Callable[[int], object]) -> list[object]:
    """Does something in many threads. Returns what each returned or raised."""
    done: list[object] = [None] * count

    def run(number: int) -> None:
        try:
            done[number] = act(number)
        except Exception as problem:
            done[number] = problem

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


class Road:
    """Sends batches, and keeps what was sent."""

    def __init__(self, fails: Optional[Exception] = None) -> None:
        self.batches: list[list[bytes]] = []
        self.alone: list[tuple[bytes, bool]] = []
        self.fails = fails
        self.calls: Together[str] = Together(self._send_all)

    def _send_all(self, items: Sequence[bytes], seconds: float) -> list[Optional[str]]:
        self.batches.append(list(items))
        if self.fails:
            raise self.fails
        return [None if item == b"odd" else f"together {item.decode()}" for item in items]

    def call(self, item: bytes) -> str:
        def alone(seconds: float, may_be_done: bool) -> str:
            self.alone.append((item, may_be_done))
            return f"alone {item.decode()}"

        return self.calls.call(item, PATIENCE_SECONDS, alone)

    def behind_another(self, *items: bytes) -> list[object]:
        """Makes these calls while another call is under way."""
        with self.calls._lock:
            self.calls._sending += 1
        done: list[object] = []
        callers = threading.Thread(target=lambda: done.extend(at_once(len(items), lambda number: self.call(items[number]))))
        callers.start()
        eventually(lambda: len(self.calls._waiting) == len(items), "all have called")
        with self.calls._lock:
            self.calls._pass_on()
        callers.join()
        return done


class Travelling(Claims):
    def a_lone_call_goes_alone_and_at_once(self) -> None:
        road = Road()
        self.assertEqual(road.call(b"1"), "alone 1")
        self.assertEqual(road.batches, [])
        self.assertEqual(road.alone, [(b"1", False)])

    def what_is_called_meanwhile_is_one_batch(self) -> None:
        road = Road()
        with mock.patch("tenure.together.PATIENCE", PATIENCE_SECONDS):
            done = road.behind_another(*(str(number).encode() for number in range(20)))
        self.assertEqual(done, [f"together {number}" for number in range(20)])
        self.assertEqual([sorted(batch) for batch in road.batches], [sorted(str(n).encode() for n in range(20))])

    def one_that_is_not_simply_done_is_sent_alone(self) -> None:
        road = Road()
        with mock.patch("tenure.together.PATIENCE", PATIENCE_SECONDS):
            done = road.behind_another(b"1", b"odd", b"2")
        self.assertEqual(done, ["together 1", "alone odd", "together 2"])
        self.assertEqual(road.alone, [(b"odd", False)])

    def a_batch_that_fails_is_told_by_each_and_whether_it_may_be_done(self) -> None:
        for problem, may_be_done in [(Invalid("no"), False), (Unavailable("away"), False), (Unknown("lost"), True)]:
            road = Road(problem)
            with mock.patch("tenure.together.PATIENCE", PATIENCE_SECONDS):
                done = road.behind_another(b"1", b"2")
            self.assertEqual(done, ["alone 1", "alone 2"])
            self.assertEqual(sorted(road.alone), [(b"1", may_be_done), (b"2", may_be_done)])

    def batches_are_bounded_in_number_and_bytes(self) -> None:
        road = Road()
        for item in [b"1"] * (BATCH_MAX + 1):
            road.calls._waiting.append(mock.Mock(item=item))
        self.assertEqual([len(road.calls._take()) for _ in range(3)], [BATCH_MAX, 1, 0])
        half = b"1" * (BATCH_BYTES_MAX // 2)
        for item in [half, half, b"1", half * 3, half]:
            road.calls._waiting.append(mock.Mock(item=item))
        self.assertEqual([len(road.calls._take()) for _ in range(5)], [2, 1, 1, 1, 0])

    def nobody_waits_for_long_for_a_batch_that_hangs(self) -> None:
        road = Road()
        with road.calls._lock:
            road.calls._sending += 1
        # No call ever passes its turn on.
        for done in at_once(3, lambda number: road.call(b"1")):
            self.assertIn(done, ("alone 1", "together 1"))
        self.assertEqual(road.calls._sending, 1)


class Sharing(Claims):
    """Against a real broker."""

    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.cluster.stop()

    def setUp(self) -> None:
        self.client = Client(self.cluster.urls[0])
        self.addCleanup(self.client.close)
        self.requests: list[str] = []
        exchange = Node.exchange

        def counted(node: Node, method: str, path: str, *rest: object) -> object:
            self.requests.append(path)
            return exchange(node, method, path, *rest)  # type: ignore[arg-type]

        counting = mock.patch.object(Node, "exchange", counted)
        counting.start()
        self.addCleanup(counting.stop)

    def many_threads_share_requests_and_each_has_its_own_answer(self) -> None:
        rounds = 10

        def submit(number: int) -> list[str]:
            return [self.client.submit("share", number, id=f"s-{number}-{again}").id for again in range(rounds)]

        done = at_once(32, submit)
        self.assertEqual(done, [[f"s-{number}-{again}" for again in range(rounds)] for number in range(32)])
        self.assertEqual(len(list(self.client.jobs(type="share"))), 32 * rounds)
        submits = self.requests.count("/v1/jobs")
        self.assertLess(submits, 32 * rounds / 2, "callers share requests")

    def a_bad_job_fails_alone(self) -> None:
        self.client.submit("mixed", 1, id="taken")
        deep = 1
        for _ in range(300):
            deep = [deep]  # type: ignore[assignment]

        def submit(number: int) -> object:
            if number % 8 == 3:
                return self.client.submit("no such type !", number)
            if number % 8 == 5:
                return self.client.submit("mixed", 2, id="taken")
            if number % 8 == 7:
                return self.client.submit("mixed", deep)
            return self.client.submit("mixed", number).status

        for number, done in enumerate(at_once(64, submit)):
            if number % 8 in (3, 7):
                self.assertIsInstance(done, Invalid, number)
            elif number % 8 == 5:
                self.assertIsInstance(done, Conflict, number)
            else:
                self.assertEqual(done, "created", number)

    def ends_share_requests_and_one_that_is_lost_is_told_so(self) -> None:
        self.client.submit_many([Submission("ends", number, id=f"e-{number}", queue="ends") for number in range(40)])
        claims = self.client.claim("worker-1", queues=["ends"], max=40)
        self.assertEqual(len(claims), 40)
        self.client.release(claims[0])
        self.client.complete(claims[1])

        def end(number: int) -> None:
            if number % 4 == 2:
                self.client.fail(claims[number], "it broke", permanent=True)
            else:
                self.client.complete(claims[number], result=number)

        done = at_once(40, end)
        self.assertIsInstance(done[0], Lost)
        # It was completed without a result before, so this end is a different one.
        self.assertIsInstance(done[1], Lost)
        self.assertEqual(done[2:], [None] * 38)
        for number, claim in enumerate(claims[2:], start=2):
            job = self.client.job(claim.id)
            expected = ("dead", None) if number % 4 == 2 else ("completed", number)
            self.assertEqual((job.state, job.result), expected)
        batches = self.requests.count("/v1/jobs/complete") + self.requests.count("/v1/jobs/fail")
        self.assertGreater(batches, 0, "ends share requests")
