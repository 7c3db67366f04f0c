"""Every call, against a real server."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from tenure import (
    Backoff,
    Client,
    Conflict,
    Invalid,
    Lost,
    NotAllowed,
    NotFound,
    Rate,
    Submission,
    WrongState,
)

from .support import Claims, Cluster, Server, binary, eventually


class Calls(Claims):
    cluster: Cluster
    client: Client

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster()
        cls.client = Client(cls.cluster.urls)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        cls.cluster.stop()

    def a_job_goes_from_submit_to_result(self) -> None:
        sent = {"text": "größer ☃ \u0000 \"quoted\"", "numbers": [1, 2.5, -(2**53)], "none": None}
        receipt = self.client.submit("round-trip", sent, queue="round", priority=7, max_attempts=3)
        self.assertEqual(receipt.status, "created")
        job = self.client.job(receipt.id)
        self.assertEqual((job.state, job.payload, job.priority, job.max_attempts), ("ready", sent, 7, 3))
        [claimed] = self.client.claim("w", queues=["round"], lease=60)
        self.assertEqual((claimed.id, claimed.payload, claimed.attempt), (receipt.id, sent, 1))
        self.client.complete(claimed, result={"ok": True})
        job = self.client.job(receipt.id)
        self.assertEqual((job.state, job.result, job.is_finished), ("completed", {"ok": True}, True))
        self.assertEqual(self.client.wait(receipt.id, timeout=1).state, "completed")

    def an_id_sent_twice_enqueues_once_and_other_content_conflicts(self) -> None:
        self.client.submit("once", 1, id="once-1", queue="once")
        self.assertEqual(self.client.submit("once", 1, id="once-1", queue="once").status, "duplicate")
        with self.assertRaises(Conflict):
            self.client.submit("once", 2, id="once-1", queue="once")
        self.assertEqual(self.client.queue("once").counts.ready, 1)

    def a_batch_has_a_receipt_for_each_job_in_order(self) -> None:
        jobs = [Submission("batch", n, id=f"batch-{n}", queue="batch") for n in range(50)]
        self.assertEqual([r.id for r in self.client.submit_many(jobs)], [f"batch-{n}" for n in range(50)])
        again = self.client.submit_many([*jobs[:2], Submission("batch", "other", id="batch-2", queue="batch")])
        self.assertEqual([r.status for r in again], ["duplicate", "duplicate", "conflict"])
        self.assertEqual(self.client.submit_many([]), [])

    def a_unique_key_names_the_job_that_holds_it(self) -> None:
        first = self.client.submit("unique", unique_key="user-7", queue="unique")
        second = self.client.submit("unique", unique_key="user-7", queue="unique")
        self.assertEqual((second.status, second.existing), ("duplicate", first.id))

    def jobs_are_listed_page_by_page_and_from_either_end(self) -> None:
        self.client.submit_many([Submission("page", n, queue="page") for n in range(120)])
        oldest = [job.payload for job in self.client.jobs(queue="page")]
        self.assertEqual(oldest, list(range(120)))
        newest = [job.payload for job in self.client.jobs(queue="page", newest=True)]
        self.assertEqual(newest, oldest[::-1])
        page = self.client.page(queue="page", limit=10)
        self.assertEqual(len(page.jobs), 10)
        following = self.client.page(queue="page", limit=10, after=page.next)
        self.assertEqual(following.jobs[0].payload, 10)
        self.assertEqual(list(self.client.jobs(queue="page", state="dead")), [])

    def a_delayed_job_is_scheduled_until_its_time(self) -> None:
        late = self.client.submit("late", delay=3600, queue="late")
        self.assertEqual(self.client.job(late.id).state, "scheduled")
        self.assertEqual(self.client.claim("w", queues=["late"]), [])
        self.assertEqual(self.client.retry(late.id).state, "ready")
        at = self.client.submit("late", run_at="2035-01-01T00:00:00Z", queue="late")
        self.assertEqual(self.client.job(at.id).run_at, 2051222400000)

    def a_long_poll_wakes_when_a_job_arrives(self) -> None:
        found: list[str] = []

        def wait() -> None:
            found.extend(job.id for job in self.client.claim("w", queues=["wake"], wait=60))

        waiter = threading.Thread(target=wait)
        waiter.start()
        started = time.monotonic()
        receipt = self.client.submit("wake", queue="wake")
        waiter.join(50)
        self.assertEqual(found, [receipt.id])
        self.assertLess(time.monotonic() - started, 50)

    def a_failed_job_is_tried_again_and_then_dead(self) -> None:
        receipt = self.client.submit(
            "fails", queue="fails", max_attempts=2, backoff=Backoff(first_ms=0, factor=1, jitter_percent=0)
        )
        for attempt in (1, 2):
            [claimed] = self.client.claim("w", queues=["fails"], wait=20)
            self.assertEqual(claimed.attempt, attempt)
            self.client.fail(claimed, f"no {attempt}", retry_in=0)
            self.client.fail(claimed, f"no {attempt}", retry_in=0)  # sent again: recognised by its words
        job = self.client.job(receipt.id)
        self.assertEqual((job.state, job.error), ("dead", "no 2"))
        self.assertEqual([r.id for r in self.client.retry_many(queue="fails")], [receipt.id])
        [claimed] = self.client.claim("w", queues=["fails"], wait=20)
        self.client.fail(claimed, "never", permanent=True)
        self.assertEqual(self.client.job(receipt.id).state, "dead")
        self.client.forget(receipt.id)
        self.assertTrue(self.client.job(receipt.id).remnant)
        self.assertEqual(list(self.client.jobs(queue="fails")), [])
        with self.assertRaises(NotFound):
            self.client.forget("never-was")

    def jobs_are_moved_to_another_queue(self) -> None:
        jobs = [self.client.submit("move", n, queue="wrong").id for n in range(2)]
        receipts = self.client.move([*jobs, "never-was"], "right")
        self.assertEqual([r.status for r in receipts], ["moved", "moved", "not_found"])
        self.assertEqual([job.id for job in self.client.jobs(queue="right")], jobs)
        with self.assertRaises(Invalid):
            self.client.move(jobs, "not a name")

    def a_claim_ends_once(self) -> None:
        self.client.submit("ends", queue="ends")
        [claimed] = self.client.claim("w", queues=["ends"])
        self.assertEqual(self.client.heartbeat(claimed, progress=50), "ok")
        self.assertEqual(self.client.job(claimed.id).progress, 50)
        self.client.complete(claimed)
        # Sent again, as after a lost answer: it is this very completion, and no other.
        self.client.complete(claimed)
        for code, end in (
            ("ended", lambda: self.client.fail(claimed, "late")),
            ("ended", lambda: self.client.heartbeat(claimed)),
        ):
            with self.assertRaises(Lost) as caught:
                end()
            self.assertEqual(caught.exception.reason["code"], code)
            self.assertFalse(caught.exception.resent)
        [status] = self.client.heartbeat_many([(claimed, None)])
        self.assertEqual(status.status, "lost")

    def a_claim_that_ran_out_is_lost_to_its_worker(self) -> None:
        receipt = self.client.submit("expires", queue="expires", backoff=Backoff(first_ms=0, factor=1))
        [late] = self.client.claim("slow", queues=["expires"], lease=0.2)
        [second] = self.client.claim("quick", queues=["expires"], wait=60)
        self.assertEqual(second.attempt, 2)
        with self.assertRaises(Lost) as caught:
            self.client.complete(late)
        self.assertEqual(caught.exception.reason["code"], "superseded")
        with self.assertRaises(Lost):
            self.client.fail(late, "late")
        self.client.complete(second)
        with self.assertRaises(Lost):
            self.client.complete(late)
        self.assertEqual(self.client.job(receipt.id).attempt, 2)

    def a_cancelled_running_job_is_told_with_the_heartbeat(self) -> None:
        receipt = self.client.submit("cancel", queue="cancel")
        [claimed] = self.client.claim("w", queues=["cancel"])
        self.assertTrue(self.client.cancel(receipt.id).cancel_requested)
        self.assertEqual(self.client.heartbeat(claimed), "cancelled")
        self.client.fail(claimed, "stopped")
        self.assertEqual(self.client.job(receipt.id).state, "cancelled")
        with self.assertRaises(WrongState):
            self.client.cancel(receipt.id)

    def a_paused_queue_hands_out_nothing(self) -> None:
        self.client.submit("paused", queue="paused")
        self.assertTrue(self.client.pause("paused").paused)
        self.assertEqual(self.client.claim("w", queues=["paused"]), [])
        self.assertFalse(self.client.resume("paused").paused)
        self.assertEqual(len(self.client.claim("w", queues=["paused"])), 1)

    def limits_hold_and_are_shown(self) -> None:
        queue = self.client.set_queue("limited", concurrency=2, rate=Rate(jobs=100, period_ms=1000, burst=50))
        self.assertEqual((queue.concurrency, queue.rate), (2, Rate(100, 1000, 50)))
        queue = self.client.change_queue("limited", concurrency=3)
        self.assertEqual((queue.concurrency, queue.rate), (3, Rate(100, 1000, 50)))
        queue = self.client.change_queue("limited", concurrency=2, rate=None)
        self.assertEqual((queue.concurrency, queue.rate), (2, None))
        self.client.submit_many([Submission("limited", queue="limited") for _ in range(5)])
        self.assertEqual(len(self.client.claim("w", queues=["limited"], max=5)), 2)
        self.assertIn("limited", [queue.name for queue in self.client.queues()])

    def a_schedule_submits_its_job_at_its_time(self) -> None:
        job = Submission("tick", {"n": 1}, queue="ticks")
        schedule = self.client.set_schedule("every-second", "* * * * * *", job)
        self.assertEqual((schedule.timezone, schedule.job["type"]), ("UTC", "tick"))
        eventually(lambda: list(self.client.jobs(queue="ticks")), "a job of the schedule")
        self.assertIsNotNone(self.client.schedule("every-second").last_at)
        self.assertTrue(self.client.pause_schedule("every-second").paused)
        self.assertIsNone(self.client.schedule("every-second").next_at)
        resumed = self.client.resume_schedule("every-second")
        self.assertFalse(resumed.paused)
        self.assertIsNotNone(resumed.next_at)
        with self.assertRaises(NotFound):
            self.client.pause_schedule("typo")
        self.client.delete_schedule("every-second")
        self.assertNotIn("every-second", [schedule.name for schedule in self.client.schedules()])

    def what_cannot_be_is_refused_and_the_field_is_named(self) -> None:
        with self.assertRaises(Invalid) as caught:
            self.client.set_schedule("bad", "every noon", Submission("x"))
        self.assertIn("cron", str(caught.exception))
        with self.assertRaises(Invalid):
            self.client.submit("a type with spaces")
        with self.assertRaises(Invalid):
            self.client.submit("x", "y" * 10_000_000)
        with self.assertRaises(NotFound):
            self.client.job("no-such-job")

    def statistics_and_the_cluster_are_shown(self) -> None:
        self.assertEqual(self.client.stats()["namespace"], self.client.cluster()["namespace"])
        self.assertEqual(self.client.cluster()["leader"]["node"], "node-1")


class Tokens(Claims):
    def a_token_reaches_as_far_as_its_scope(self) -> None:
        binary()
        with tempfile.TemporaryDirectory(prefix="tenure-python-") as folder:
            tokens = Path(folder) / "tokens"
            tokens.write_text("read reader-reader-reader\nworker worker-worker-worker\nadmin admin-admin-admin\n")
            tokens.chmod(0o600)
            server = Server(f"file:{folder}/data", "--tokens", str(tokens))
            try:
                server.ready()
                with Client(server.url, token="reader-reader-reader") as reader:
                    reader.queues()
                    with self.assertRaises(NotAllowed):
                        reader.submit("x")
                with Client(server.url, token="worker-worker-worker") as worker:
                    worker.submit("x")
                    with self.assertRaises(NotAllowed):
                        worker.pause("default")
                with Client(server.url, token="admin-admin-admin") as admin:
                    self.assertTrue(admin.pause("default").paused)
                with Client(server.url) as nobody, self.assertRaises(NotAllowed) as caught:
                    nobody.queues()
                self.assertEqual(caught.exception.code, "unauthorized")
            finally:
                server.stop()
