"""The worker, against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

from tenure import Claimed, Client, HandBack, NotAllowed, Permanent, RetryIn, Submission, Task, Worker

from .support import Claims, Cluster, Server, binary, eventually


class Workers(Claims):
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

    def _running(self, worker: Worker) -> threading.Thread:
        thread = threading.Thread(target=worker.run)
        thread.start()

        def stop() -> None:
            worker.stop(now=True)
            thread.join()

        self.addCleanup(stop)
        return thread

    def every_job_is_done_once_by_many_threads(self) -> None:
        worker = Worker(self.client, queues=["many"], concurrency=8)
        done: list[int] = []

        @worker.handles("double")
        def handle(task: Task) -> int:
            done.append(task.payload)
            return int(task.payload) * 2

        receipts = self.client.submit_many([Submission("double", n, queue="many") for n in range(200)])
        worker.run(until_idle=True)
        self.assertEqual(sorted(done), list(range(200)))
        self.assertEqual([self.client.job(r.id).result for r in receipts[:5]], [0, 2, 4, 6, 8])

    def callbacks_hear_what_becomes_of_each_job(self) -> None:
        heard: list[tuple[str, ...]] = []

        def broken(task: Task) -> None:
            heard.append(("completed", task.id))
            raise RuntimeError("a callback that fails changes nothing")

        worker = Worker(
            self.client,
            queues=["heard"],
            concurrency=1,
            lease=3,
            on_claimed=lambda task: heard.append(("claimed", task.id)),
            on_completed=broken,
            on_failed=lambda task, error: heard.append(("failed", task.id, error.splitlines()[0])),
            on_lost=lambda task: heard.append(("lost", task.id)),
        )

        @worker.handles("heard")
        def handle(task: Task) -> None:
            if task.payload == "fails":
                raise Permanent("broken")
            if task.payload == "is lost":
                # Takes the job away, as an operator or an expired lease would.
                self.client.release(task.claimed)
                self.client.cancel(task.id)

        for what in ("works", "fails", "is lost"):
            self.client.submit("heard", what, queue="heard", id=f"heard-{what.replace(' ', '-')}")
        worker.run(until_idle=True)
        self.assertEqual(
            heard,
            [
                ("claimed", "heard-works"),
                ("completed", "heard-works"),
                ("claimed", "heard-fails"),
                ("failed", "heard-fails", "tenure.worker.Permanent: broken"),
                ("claimed", "heard-is-lost"),
                ("lost", "heard-is-lost"),
            ],
        )
        self.assertEqual(self.client.job("heard-works").state, "completed")

    def one_poll_takes_as_many_jobs_as_threads_are_free(self) -> None:
        together = threading.Barrier(6, timeout=100)
        worker = Worker(self.client, queues=["wide"], concurrency=6)
        # All six have to be running at once, or the barrier breaks and the jobs fail.
        worker.handles("meet")(lambda task: together.wait() >= 0)
        receipts = self.client.submit_many([Submission("meet", queue="wide", max_attempts=1) for _ in range(6)])
        worker.run(until_idle=True)
        self.assertEqual({self.client.job(r.id).state for r in receipts}, {"completed"})

    def what_a_handler_raises_decides_what_becomes_of_the_job(self) -> None:
        worker = Worker(self.client, queues=["raise"])

        @worker.handles("raise")
        def handle(task: Task) -> str:
            if task.attempt == 1:
                raise {"retry": RetryIn(0, "busy"), "dead": Permanent("hopeless"), "bug": KeyError("x")}[task.payload]
            return "second"

        ids = {what: self.client.submit("raise", what, queue="raise").id for what in ("retry", "dead", "bug")}
        worker.run(until_idle=True)
        jobs = {what: self.client.job(id) for what, id in ids.items()}
        self.assertEqual((jobs["retry"].state, jobs["retry"].result), ("completed", "second"))
        self.assertEqual(jobs["dead"].state, "dead")
        self.assertIn("hopeless", jobs["dead"].error or "")
        self.assertEqual(jobs["bug"].attempt, 1)
        self.assertIn("KeyError: 'x'", jobs["bug"].error or "")

    def an_exception_that_cannot_be_shown_fails_its_attempt(self) -> None:
        worker = Worker(self.client, queues=["mute"], lease=60)

        class Mute(Exception):
            def __str__(self) -> str:
                raise SystemExit("no text")

            __repr__ = __str__

        class Broken(dict[str, int]):
            def items(self) -> Any:
                raise Mute

        @worker.handles("mute")
        def handle(task: Task) -> Any:
            if task.payload == "result":
                return Broken(one=1)
            # Any, since a wrong type is not checked at run time.
            text: Any = Mute()
            raise {"retry": RetryIn(3600, text), "dead": Permanent(text), "bug": Mute()}[task.payload]

        expected = {"retry": "scheduled", "dead": "dead", "bug": "dead", "result": "completed"}
        ids = {
            what: self.client.submit("mute", what, queue="mute", max_attempts=2 if what == "retry" else 1).id
            for what in expected
        }
        with self.assertLogs("tenure.worker", "WARNING"):
            thread = self._running(worker)
            # Long before a lease ends.
            eventually(
                lambda: {what: self.client.job(id).state for what, id in ids.items()} == expected,
                "every attempt is reported",
            )
        self.assertTrue(thread.is_alive())
        for what in ("retry", "dead", "bug"):
            job = self.client.job(ids[what])
            self.assertEqual(job.attempt, 1, what)
            self.assertNotIn("the lease ran out", job.error or "the lease ran out", what)

    def a_result_that_cannot_be_kept_is_left_out_and_the_job_is_completed(self) -> None:
        worker = Worker(self.client, queues=["result"])
        deep: list[Any] = []
        for _ in range(500):
            deep = [deep]
        # The largest ones are more than a broker reads in a call.
        sizes = {"over": 16 * 1024 - 1, "huge": 1_000_000, "vast": 20_000_000}
        results: dict[str, Any] = {"odd": {1, 2}, "deep": deep, **{name: "x" * size for name, size in sizes.items()}}
        results["fits"] = "x" * (16 * 1024 - 2)
        worker.handles("result")(lambda task: results[task.payload])
        ids = {name: self.client.submit("result", name, queue="result").id for name in results}
        with self.assertLogs("tenure.worker", "WARNING") as told:
            worker.run(until_idle=True)
        jobs = {name: self.client.job(id) for name, id in ids.items()}
        self.assertEqual({name: (job.state, job.attempt) for name, job in jobs.items()}, dict.fromkeys(jobs, ("completed", 1)))
        self.assertEqual([name for name, job in jobs.items() if job.result is not None], ["fits"])
        self.assertEqual(sum("without its result" in line for line in told.output), len(results) - 1)

    def heartbeats_keep_a_job_longer_than_its_lease(self) -> None:
        worker = Worker(self.client, queues=["slow"], lease=1.5)
        attempts: list[int] = []
        renewed = threading.Event()

        @worker.handles("slow")
        def handle(task: Task) -> float:
            attempts.append(task.attempt)
            task.progress("half")
            started = task._confirmed_at
            # Three renewals are longer than the lease, whatever the machine is busy with.
            eventually(lambda: task._confirmed_at > started + 1.6, "renewals")
            renewed.set()
            return task.remaining()

        receipt = self.client.submit("slow", queue="slow")
        self._running(worker)
        job = self.client.wait(receipt.id, timeout=120)
        self.assertTrue(renewed.is_set())
        self.assertEqual((job.state, attempts), ("completed", [1]))

    def a_cancelled_job_stops_its_handler(self) -> None:
        worker = Worker(self.client, queues=["stop"], lease=1.5)
        started = threading.Event()

        @worker.handles("stop")
        def handle(task: Task) -> None:
            started.set()
            self.assertTrue(task.stopped.wait(100))
            if task.cancelled:
                raise HandBack

        receipt = self.client.submit("stop", queue="stop")
        self._running(worker)
        self.assertTrue(started.wait(100))
        self.client.cancel(receipt.id)
        self.assertEqual(self.client.wait(receipt.id, timeout=120).state, "cancelled")

    def a_cancelled_job_is_kept_until_its_handler_has_ended(self) -> None:
        worker = Worker(self.client, queues=["kept"], lease=1.5)
        told, cleaned = threading.Event(), threading.Event()
        self.addCleanup(cleaned.set)
        ran: list[int] = []

        @worker.handles("kept")
        def handle(task: Task) -> None:
            ran.append(task.payload)
            if task.payload == 1:
                self.assertTrue(task.stopped.wait(100))
                told.set()
                cleaned.wait(100)
                raise ValueError("cleaned up")

        jobs = [Submission("kept", n, queue="kept", group="g", unique_key=f"kept-{n}") for n in (1, 2)]
        first, second = self.client.submit_many(jobs)
        self._running(worker)
        eventually(lambda: ran == [1], "the first job runs")
        self.client.cancel(first.id)
        self.assertTrue(told.wait(100))
        time.sleep(4.0)  # far longer than the lease
        self.assertEqual(self.client.job(first.id).state, "running")
        self.assertEqual(ran, [1])
        cleaned.set()
        self.assertEqual(self.client.wait(first.id, timeout=120).state, "cancelled")
        self.assertEqual(self.client.wait(second.id, timeout=120).state, "completed")

    def jobs_without_a_thread_are_handed_back_together(self) -> None:
        worker = Worker(self.client, queues=["threads"], concurrency=8)
        ran: list[int] = []
        started: list[float] = []

        @worker.handles("threads")
        def handle(task: Task) -> None:
            ran.append(task.payload)

        class Scarce(threading.Thread):
            def start(self) -> None:
                if self.name == "tenure-threads":
                    started.append(time.monotonic())
                    if len(started) <= 8:
                        raise RuntimeError("can't start new thread")
                super().start()

        jobs = [Submission("threads", n, queue="threads", max_attempts=1) for n in range(8)]
        receipts = self.client.submit_many(jobs)
        with mock.patch("tenure.worker.threading.Thread", Scarce):
            self._running(worker)
            for receipt in receipts:
                job = self.client.wait(receipt.id, timeout=120)
                self.assertEqual((job.state, job.attempt), ("completed", 1))
        self.assertEqual(sorted(ran), list(range(8)))
        # One pause for all of them; with one each, the last would lose its lease.
        self.assertLess(started[7] - started[0], 3.5)

    def a_stopped_worker_hands_back_what_takes_too_long(self) -> None:
        worker = Worker(self.client, queues=["back"], drain=0.2, poll=0.2)
        started, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)

        @worker.handles("back")
        def handle(task: Task) -> None:
            started.set()
            released.wait(300)

        # On its last attempt: the end of a worker must not make the job dead.
        receipt = self.client.submit("back", queue="back", max_attempts=1)
        thread = self._running(worker)
        self.assertTrue(started.wait(100))
        worker.stop()
        thread.join(100)
        self.assertFalse(thread.is_alive())
        job = self.client.job(receipt.id)
        self.assertEqual((job.state, job.attempt, job.error), ("ready", 0, None))

    def a_handler_that_hands_its_job_back_costs_it_no_attempt_when_the_worker_stops(self) -> None:
        worker = Worker(self.client, queues=["kind"], poll=0.2)
        started = threading.Event()

        @worker.handles("kind")
        def handle(task: Task) -> None:
            started.set()
            task.stopped.wait(300)
            raise HandBack

        receipt = self.client.submit("kind", queue="kind", max_attempts=1)
        thread = self._running(worker)
        self.assertTrue(started.wait(100))
        worker.stop()
        thread.join(100)
        job = self.client.job(receipt.id)
        self.assertEqual((job.state, job.attempt), ("ready", 0))

    def a_job_cannot_be_handed_back_for_ever(self) -> None:
        worker = Worker(self.client, queues=["loop"])

        @worker.handles("loop")
        def handle(task: Task) -> None:
            raise HandBack

        receipt = self.client.submit("loop", queue="loop", max_attempts=2)
        worker.run(until_idle=True)
        job = self.client.job(receipt.id)
        self.assertEqual((job.state, job.attempt), ("dead", 2))

    def a_job_that_comes_back_while_nothing_is_claimed_is_not_left_behind(self) -> None:
        # It fails, and is ready again, after a claim found nothing and before the worker looks whether anything runs.
        nothing_claimed = threading.Event()

        class SlowToHear(Client):
            def claim(self, *arguments: Any, **options: Any) -> list[Claimed]:
                jobs = super().claim(*arguments, **options)
                if not jobs:
                    nothing_claimed.set()
                    eventually(lambda: not worker._tasks, "the job has ended")
                return jobs

        with SlowToHear(self.cluster.urls) as client:
            worker = Worker(client, queues=["again"])

            @worker.handles("again")
            def handle(task: Task) -> str:
                if task.attempt == 1:
                    nothing_claimed.wait(100)
                    raise RetryIn(0)
                return "done"

            receipt = client.submit("again", queue="again")
            worker.run(until_idle=True)
            self.assertEqual(client.job(receipt.id).result, "done")

    def sigterm_lets_running_jobs_finish(self) -> None:
        program = """
            import sys
            from tenure import Client, Worker
            worker = Worker(Client(sys.argv[1]), queues=["term"], poll=0.5, lease=60)

            @worker.handles("term")
            def handle(task):
                print("started", flush=True)
                task.stopped.wait()
                return "finished"

            worker.run()
            print("ended", flush=True)
        """
        receipt = self.client.submit("term", queue="term")
        environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parent.parent / "src"))
        command = [sys.executable, "-c", textwrap.dedent(program), self.cluster.urls[0]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            self.assertEqual(process.stdout.readline(), "started\n")
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=100)
        self.assertEqual((rest, process.returncode), ("ended\n", 0))
        self.assertEqual(self.client.job(receipt.id).result, "finished")

    def a_refused_claim_ends_the_worker_with_the_reason(self) -> None:
        binary()
        with tempfile.TemporaryDirectory(prefix="tenure-python-") as folder:
            tokens = Path(folder) / "tokens"
            tokens.write_text("read reader-reader-reader\n")
            tokens.chmod(0o600)
            server = Server(f"file:{folder}/data", "--tokens", str(tokens))
            try:
                server.ready()
                with Client(server.url, token="reader-reader-reader") as reader, self.assertRaises(NotAllowed):
                    worker = Worker(reader)
                    worker.handles("x")(print)
                    worker.run()
            finally:
                server.stop()

    def a_worker_without_handlers_says_so(self) -> None:
        with self.assertRaises(ValueError):
            Worker(self.client).run()
