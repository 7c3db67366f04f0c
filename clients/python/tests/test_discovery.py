"""A client that was given one broker, which dies."""

from __future__ import annotations

import threading

from tenure import Client, Worker
from tenure.discovery import brokers

from .support import Claims, Cluster, eventually


def cluster_of(*addresses: str) -> dict[str, object]:
    nodes = [{"node": f"n{n}", "state": "alive", "address": address} for n, address in enumerate(addresses)]
    candidates = [node["node"] for node in nodes]
    return {"elections": [{"name": "tenure.queue", "candidates": candidates}], "nodes": nodes}


class Discovery(Claims):
    def only_living_brokers_that_can_be_reached_are_used(self) -> None:
        local = ["http://127.0.0.1:8080"]
        seen = cluster_of("http://127.0.0.1:8080", "http://127.0.0.1:8081", "http://10.0.0.5:80")
        self.assertEqual(brokers(seen, local), ["http://127.0.0.1:8081", "http://10.0.0.5:80"])
        self.assertEqual(brokers(seen, ["http://broker"]), ["http://10.0.0.5:80"])
        self.assertEqual(brokers(seen, ["https://broker"]), [], "a token that went by TLS goes nowhere else")
        self.assertEqual(brokers(cluster_of("https://b:1"), ["https://broker"]), ["https://b:1"])
        dead = cluster_of("http://127.0.0.1:8081")
        dead["nodes"][0]["state"] = "evicted"  # type: ignore[index]
        self.assertEqual(brokers(dead, local), [])
        daemon = cluster_of("http://127.0.0.1:8081")
        daemon["elections"] = [{"name": "tenure.cluster", "candidates": ["n0"]}]
        self.assertEqual(brokers(daemon, local), [], "who cannot serve the queue is no broker")
        for nonsense in ({}, {"nodes": 3, "elections": [1]}, {"nodes": [{}], "elections": [{"name": "tenure.queue"}]}):
            self.assertEqual(brokers(nonsense, local), [])
        self.assertEqual(len(brokers(cluster_of(*(f"http://h:{n}" for n in range(1, 99))), local)), 16)

    def a_list_of_one_that_dies_is_no_dead_end(self) -> None:
        cluster = Cluster(2, "--ttl", "3s")
        self.addCleanup(cluster.stop)
        client = Client(cluster.urls[0], timeout=120)
        self.addCleanup(client.close)
        worker = Worker(client, concurrency=2, lease=5)
        worker.handles("count")(lambda task: task.payload)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            client.submit("count", 1)
            eventually(lambda: cluster.urls[1] in repr(client), "the other broker is known")
            cluster.servers[0].kill()
            receipt = client.submit("count", 2)
            self.assertEqual(client.wait(receipt.id, timeout=120).result, 2)
        finally:
            worker.stop()
            thread.join()
