"""Events, followed through failovers."""

from __future__ import annotations

from tenure import Client, Invalid
from tenure.events import Parser

from .support import Claims, Cluster


class Events(Claims):
    def jobs_nodes_and_a_killed_leader_are_told(self) -> None:
        cluster = Cluster(1, "--ttl", "3s")
        try:
            client = Client(cluster.urls)
            events = client.events(["job", "leader", "node"])
            self.assertEqual(next(events).name, "reset")
            first = next(events)
            self.assertEqual((first.name, first["election"], first.initial), ("leader_elected", "tenure.queue", True))
            self.assertEqual(first["node"], "node-1")
            cluster.start("node-2").ready()
            self.assertEqual(next(one for one in events if one.get("node") == "node-2").name, "node_joined")
            receipt = client.submit("told", 1)
            told = next(one for one in events if one.name == "submitted")
            self.assertEqual(told["id"], receipt.id)
            self.assertGreater(told.at, 1e9)
            # The only given broker is gone: the client continues with the other, and reports that it may have missed
            # something.
            client = Client([server.url for server in cluster.servers])
            events.close()
            events = client.events(["job", "leader"])
            self.assertEqual([next(events).name, next(events)["node"]], ["reset", "node-1"])
            cluster.servers[0].kill()
            again = [next(events) for _ in range(2)]
            while again[-1].name != "leader_elected" or again[-1]["node"] != "node-2":
                again.append(next(events))
            self.assertIn("reset", [one.name for one in again])
            client.submit("told", 2)
            self.assertEqual(next(one for one in events if one.name == "submitted").initial, False)
            events.close()
            client.close()
        finally:
            cluster.stop()

    def a_kind_that_does_not_exist_is_refused(self) -> None:
        cluster = Cluster()
        try:
            with Client(cluster.urls) as client, self.assertRaises(Invalid):
                next(client.events(["nodes"]))
        finally:
            cluster.stop()


class Lines(Claims):
    def the_last_whole_event_is_what_is_gone_on_behind(self) -> None:
        parser = Parser()
        lines = b"id: q1\ndata: {\"event\":\"ready\",\"at\":1500}\n\n:\nid: q2\n\nid: q3\ndata: {\"ev"
        events = [parser.line(line) for line in lines.splitlines(keepends=True)]
        [event] = [event for event in events if event is not None]
        self.assertEqual((event.name, event.at, parser.last_id), ("ready", 1.5, "q2"))
        parser.begin()
        for line in (b"data: no json\n", b"id: \xc3\xa4\n", b"\n", b"data: 7\n", b"\n"):
            self.assertIsNone(parser.line(line))
        self.assertEqual(parser.last_id, "q2")
