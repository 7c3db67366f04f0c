"""Elections over HTTP, against a real server."""

from __future__ import annotations

import threading

from tenure import Client, NotLeading, clock
from tenure.election import Election

from .support import Claims, Cluster, eventually


class Elections(Claims):
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

    def only_one_of_two_leads_and_the_next_term_is_greater(self) -> None:
        first, second = (self.client.election("pair", name, ttl=60) for name in ("a", "b"))
        won, lost = first.elect(), second.elect()
        self.assertEqual((won.is_leader, lost.is_leader), (True, False))
        self.assertIsNone(lost.token)
        assert lost.leader is not None and won.term is not None
        self.assertEqual(lost.leader.node, "a")
        standing = first.standing()
        self.assertEqual(sorted(candidate.id for candidate in standing.candidates), ["a", "b"])
        first.unregister()
        again = second.elect()
        self.assertTrue(again.is_leader)
        assert again.term is not None
        self.assertGreater(again.term, won.term)

    def trust_is_shorter_than_the_ttl_and_counted_from_the_sending(self) -> None:
        election = self.client.election("trust", "a", ttl=60)
        before = clock.now()
        outcome = election.elect()
        self.assertTrue(outcome.is_leader)
        self.assertLess(outcome.trusted_until, before + 60)

    def leadership_ends_with_the_block_and_moves_on_at_once(self) -> None:
        with self.client.election("block", "a", ttl=60).leading() as leadership:
            leadership.check()
            first = leadership
        self.assertFalse(first.is_leader())
        with self.assertRaises(NotLeading):
            first.check()
        with self.client.election("block", "b", ttl=60).leading(timeout=50) as leadership:
            self.assertGreater(leadership.term, first.term)
            self.assertNotEqual(leadership.token, first.token)

    def at_no_time_do_two_lead(self) -> None:
        leading: list[str] = []
        overlaps: list[list[str]] = []
        lock = threading.Lock()

        def stand(name: str) -> None:
            for _ in range(3):
                with self.client.election("crowd", name, ttl=3).leading(timeout=300) as leadership:
                    with lock:
                        leading.append(name)
                        if len(leading) > 1:
                            overlaps.append(list(leading))
                    leadership.wait(0.05)
                    with lock:
                        leading.remove(name)

        threads = [threading.Thread(target=stand, args=(f"c{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(overlaps, [])

    def leadership_is_renewed_for_longer_than_its_ttl(self) -> None:
        with self.client.election("long", "a", ttl=6).leading() as leadership:
            started = clock.now()
            eventually(lambda: clock.now() > started + 8 or not leadership.is_leader(), "time to pass")
            self.assertTrue(leadership.is_leader())

    def whoever_waits_too_long_is_told(self) -> None:
        self.client.election("taken", "a", ttl=60).elect()
        with self.assertRaises(TimeoutError), self.client.election("taken", "b", ttl=60).leading(timeout=0.2):
            self.fail("b does not lead")

    def the_fencing_token_is_passed_on_as_text(self) -> None:
        outcome = Election(self.client, "token", "a", ttl=60).elect()
        self.assertTrue((outcome.token or "").endswith(f":{outcome.term}"), outcome.token)


class Partition(Claims):
    def leadership_ends_in_time_when_no_server_answers(self) -> None:
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        with Client(cluster.urls) as client, client.election("cut", "a", ttl=3).leading() as leadership:
            cluster.servers[0].pause()
            self.assertFalse(leadership.wait(60), "trust ends although no answer says so")
            cluster.servers[0].wake()
