"""Two servers, and the one that leads is killed: what clients, workers and leaders see."""

from __future__ import annotations

import threading
import time

from tenure import Client, Submission, Task, Worker

from .support import Claims, Cluster, Server, eventually


def leader_of(cluster: Cluster, client: Client) -> Server:
    def find() -> object:
        leader = client.cluster().get("leader")
        return leader and leader["node"]

    node = eventually(find, "a leader")
    return cluster.servers[int(str(node).rpartition("-")[2]) - 1]


class Failover(Claims):
    def setUp(self) -> None:
        self.cluster = Cluster(2, "--ttl", "3s")
        self.client = Client(self.cluster.urls, timeout=120)
        self.addCleanup(self.cluster.stop)
        self.addCleanup(self.client.close)

    def no_job_is_lost_when_the_leader_is_killed(self) -> None:
        worker = Worker(self.client, concurrency=4, lease=5)
        seen: list[int] = []
        worker.handles("count")(lambda task: seen.append(task.payload))
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            accepted = []
            for n in range(300):
                accepted.append(self.client.submit("count", n, id=f"count-{n}").id)
                if n == 100:
                    leader_of(self.cluster, self.client).kill()
            for id in accepted:
                self.assertEqual(self.client.wait(id, timeout=120).state, "completed")
        finally:
            worker.stop()
            thread.join()
        self.assertEqual(set(seen), set(range(300)))
        self.assertEqual(len(list(self.client.jobs(type="count"))), 300, "none is there twice")

    def a_running_job_survives_its_broker(self) -> None:
        worker = Worker(self.client, concurrency=1, lease=30)
        started, released = threading.Event(), threading.Event()

        @worker.handles("long")
        def handle(task: Task) -> str:
            started.set()
            released.wait(300)
            return f"attempt {task.attempt}"

        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            receipt = self.client.submit("long")
            self.assertTrue(started.wait(100))
            leader_of(self.cluster, self.client).kill()
            released.set()
            self.assertEqual(self.client.wait(receipt.id, timeout=120).result, "attempt 1")
        finally:
            released.set()
            worker.stop()
            thread.join()

    def a_standby_answers_for_the_leader(self) -> None:
        leader = leader_of(self.cluster, self.client)
        [standby] = [server for server in self.cluster.servers if server is not leader]
        with Client(standby.url) as client:
            receipts = client.submit_many([Submission("via-standby", n) for n in range(3)])
            self.assertEqual({client.job(receipt.id).state for receipt in receipts}, {"ready"})

    def a_leader_over_http_outlives_the_server_it_talks_to(self) -> None:
        with self.client.election("reports", "web-1", ttl=20).leading(timeout=100) as leadership:
            self.cluster.servers[0].kill()
            renewed_after = time.monotonic() + 1
            eventually(
                lambda: time.monotonic() > renewed_after and leadership.remaining() > 13.0,
                "a renewal by way of the other server",
            )
            self.assertTrue(leadership.is_leader())
