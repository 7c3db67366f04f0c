"""Elections over HTTP, against a real server."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from unittest import mock

from tenure import Client, NotAllowed, NotLeading, clock
from tenure.election import Election

from .support import Claims, Cluster, binary, eventually


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

    def a_withdrawal_that_comes_again_ends_no_later_term(self) -> None:
        election = self.client.election("again", "a", ttl=60)
        sent: list[tuple[str, str, object]] = []
        call = self.client._call

        def noted(method: str, path: str, body: object = None, **rest: object) -> object:
            sent.append((method, path, body))
            return call(method, path, body, **rest)  # type: ignore[arg-type]

        with mock.patch.object(self.client, "_call", noted):
            for _ in range(2):
                with election.leading():
                    pass
            with election.leading() as third:
                for method, path, body in [one for one in sent if one[0] == "DELETE"]:
                    with contextlib.suppress(NotAllowed):
                        call(method, path, body)
                outcome = election.elect()
                self.assertEqual((outcome.is_leader, outcome.term), (True, third.term))

    def two_objects_under_one_name_are_two_candidates(self) -> None:
        first, second = (self.client.election("namesakes", "a", ttl=60) for _ in range(2))
        self.assertEqual((first.elect().is_leader, second.elect().is_leader), (True, False))
        second.unregister()
        self.assertTrue(first.elect().is_leader)

    def the_command_line_and_this_client_exclude_each_other(self) -> None:
        def by_command_line(*arguments: str) -> int:
            program = binary()
            assert program is not None
            command = [program, "elect", "--store", self.cluster.store, "--election", "both", "--node", "cli", *arguments]
            return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode

        election = self.client.election("both", "python", ttl=60)
        self.assertTrue(election.elect().is_leader)
        self.assertEqual(by_command_line(), 1)
        election.unregister()
        self.assertEqual(by_command_line(), 0)
        self.assertFalse(election.elect().is_leader)
        self.assertEqual(by_command_line("--release"), 0)
        self.assertTrue(election.elect().is_leader)

    def a_leader_that_is_asked_to_resign_gives_up_and_leaves_the_next_term_to_others(self) -> None:
        program = binary()
        assert program is not None
        election = self.client.election("asked", "a", ttl=3)
        other = self.client.election("asked", "b", ttl=3)
        with election.leading() as leadership:
            asked = [program, "resign", "--store", self.cluster.store, "--election", "asked", "--wait", "0s"]
            subprocess.run(asked, stdout=subprocess.DEVNULL, check=True)
            eventually(lambda: not leadership.is_leader(), "the end of its term")
        with self.assertRaises(TimeoutError), election.leading(timeout=0.1):
            self.fail("it leaves the next term to others")
        with other.leading(timeout=60) as next_one:
            self.assertGreater(next_one.term, leadership.term)

    def candidates_leave_nothing_behind(self) -> None:
        for _ in range(5):
            with self.client.election("clean", ttl=60).leading():
                pass
        self.assertEqual(self.client.election("clean").standing().candidates, ())

    def the_fencing_token_is_passed_on_as_text(self) -> None:
        outcome = Election(self.client, "token", "a", ttl=60).elect()
        self.assertTrue((outcome.token or "").endswith(f":{outcome.term}"), outcome.token)


class Partition(Claims):
    def leadership_ends_in_time_when_no_server_answers(self) -> None:
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        with Client(cluster.urls) as client, client.election("cut", "a", ttl=3).leading() as leadership:
            cluster.servers[0].pause()
            # What was answered was sent before, and trust counts from that.
            paused = clock.now()
            led_at = paused
            while leadership.is_leader() and clock.now() < paused + 60:
                self.assertLess(led_at, paused + 3, "trust ends although no answer says so")
                # Read first: that it is slow must not make it look late.
                looked_at = clock.now()
                if leadership.is_leader():
                    led_at = looked_at
                leadership.wait(0.01)
            self.assertFalse(leadership.is_leader())
            self.assertLess(led_at, paused + 3)
            cluster.servers[0].wake()
