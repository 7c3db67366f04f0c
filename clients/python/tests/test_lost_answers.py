"""What the client does when a node is unavailable, slow, overloaded, or breaks off before it answers.

A real server cannot be made to lose exactly this answer, so a small double of one is scripted here.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from pathlib import Path
from typing import Callable, Optional
from unittest import mock

from tenure import (
    Claim,
    Client,
    Full,
    Invalid,
    Lost,
    NotFound,
    NotTrusted,
    Overloaded,
    Unavailable,
    Unknown,
    WrongState,
)

from .support import PATIENCE_SECONDS, Claims, free_port

#: What the double does with a request: an answer, or None to break off after reading all of it.
Act = Callable[[str, bytes], Optional[bytes]]


def answer(status: int, body: object = None, *headers: str) -> Act:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *headers]
    return lambda head, request: "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def broken_off(head: str, request: bytes) -> Optional[bytes]:
    return None


class Double:
    """A node that does what it is told, request by request, and then the last thing for ever."""

    def __init__(self, *acts: Act, tls: Optional[ssl.SSLContext] = None) -> None:
        self._tls = tls
        self.requests: list[tuple[str, bytes]] = []
        #: The name of each request, if it had one.
        self.names: list[Optional[str]] = []
        self._acts = list(acts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                return
        with connection, connection.makefile("rb") as reader:
            try:
                while line := reader.readline():
                    length, named = 0, None
                    while (header := reader.readline().strip()) != b"":
                        name, _, value = header.partition(b":")
                        length = int(value) if name.lower() == b"content-length" else length
                        named = value.decode().strip() if name.lower() == b"idempotency-key" else named
                    body = reader.read(length)
                    if line.startswith(b"GET /v1/cluster"):
                        # It knows no other brokers. Clients sometimes ask for them, which is not counted here.
                        connection.sendall(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")
                        continue
                    self.requests.append((line.decode().strip(), body))
                    self.names.append(named)
                    act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
                    reply = act(line.decode(), body)
                    if reply is None:
                        return
                    connection.sendall(reply)
            except OSError:
                return

    def __enter__(self) -> Double:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


CREATED = answer(201, {"jobs": [{"id": "a", "status": "created"}]})
NO_LEADER = answer(503, {"code": "no_leader", "detail": "nobody leads"}, "Retry-After: 1")
JOB = {
    "id": "a", "queue": "q", "type": "t", "state": "cancelled", "priority": 0, "attempt": 1, "max_attempts": 1,
    "created_at": 1, "run_at": 1, "changed_at": 2,
}  # fmt: skip


#: Signed by itself and valid until 2120. Nothing is protected by this key.
TLS = Path(__file__).parent / "tls"


def certified() -> ssl.SSLContext:
    """What a node with that certificate needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return context


class Certificates(Claims):
    def one_that_does_not_verify_is_told_at_once(self) -> None:
        with Double(CREATED, tls=certified()) as node, Client(node.url, timeout=PATIENCE_SECONDS) as client:
            with self.assertRaises(NotTrusted) as caught:
                client.submit("mail")
        self.assertIn(f"the certificate of {node.url} is not valid", str(caught.exception))
        self.assertFalse(caught.exception.resent)
        self.assertEqual(node.requests, [])

    def one_that_does_not_verify_does_not_keep_others_from_answering(self) -> None:
        with Double(CREATED, tls=certified()) as untrusted, Double(CREATED) as node:
            with Client([untrusted.url, node.url], timeout=PATIENCE_SECONDS) as client:
                self.assertEqual(client.submit("mail").status, "created")

    def one_that_is_trusted_is_enough(self) -> None:
        tls = ssl.create_default_context(cafile=TLS / "certificate.pem")
        with Double(CREATED, tls=certified()) as node, Client(node.url, tls=tls) as client:
            self.assertEqual(client.submit("mail").status, "created")


class LostAnswers(Claims):
    def a_lost_submit_is_sent_again_with_the_same_id(self) -> None:
        with Double(broken_off, CREATED) as node, Client(node.url) as client:
            client.submit("mail", {"n": 1})
            first, second = (json.loads(body) for _, body in node.requests)
        self.assertEqual(first, second)
        self.assertTrue(first["id"])

    def a_lost_claim_is_sent_again_by_the_same_name(self) -> None:
        with Double(broken_off, answer(200, {"jobs": []})) as node, Client(node.url) as client:
            client.claim("worker-1")
            client.claim("worker-1")
            first, second, other = node.names
        self.assertTrue(first)
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def a_submit_that_stays_unanswered_is_unknown_and_names_its_ids(self) -> None:
        with Double(broken_off) as node, Client(node.url, timeout=0.3) as client:
            with self.assertRaises(Unknown) as caught:
                client.submit("mail")
            self.assertEqual(caught.exception.ids, (json.loads(node.requests[0][1])["id"],))

    def a_node_that_cannot_be_reached_has_done_nothing(self) -> None:
        with Client(f"http://127.0.0.1:{free_port()}", timeout=0.3) as client:
            with self.assertRaises(Unavailable) as caught:
                client.submit("mail")
        self.assertNotIsInstance(caught.exception, Unknown)

    def a_read_is_never_unknown(self) -> None:
        with Double(broken_off) as node, Client(node.url, timeout=0.3) as client:
            with self.assertRaises(Unavailable) as caught:
                client.job("a")
        self.assertNotIsInstance(caught.exception, Unknown)

    def an_unknown_outcome_of_the_server_stays_unknown(self) -> None:
        unknown = answer(503, {"code": "unknown_outcome"})
        with Double(unknown, NO_LEADER) as node, Client(node.url, timeout=0.3) as client:
            with self.assertRaises(Unknown):
                client.submit("mail")

    def the_next_node_is_asked_when_one_has_no_leader_or_is_away(self) -> None:
        with Double(NO_LEADER) as first, Double(CREATED) as second:
            urls = [first.url, f"http://127.0.0.1:{free_port()}", second.url]
            with Client(urls) as client:
                client.submit("mail")
                client.submit("mail")
            self.assertEqual(len(first.requests), 1, "the node that answered is asked first from then on")
            self.assertEqual(len(second.requests), 2)

    def a_closed_idle_connection_costs_no_doubt(self) -> None:
        with Double(CREATED, answer(404, {"code": "not_found"})) as node, Client(node.url) as client:
            client.submit("mail")
            for connection in node._open:
                connection.shutdown(socket.SHUT_RDWR)
            with self.assertRaises(NotFound) as caught:
                client.forget("a")
            self.assertFalse(caught.exception.resent, "found closed before anything was sent")

    def overload_is_waited_out_and_told_apart(self) -> None:
        busy = answer(429, {"code": "overloaded"}, "Retry-After: 0")
        with Double(busy, CREATED) as node, Client(node.url) as client:
            self.assertEqual(client.submit("mail").status, "created")
        with Double(busy) as node, Client(node.url, timeout=0.3) as client:
            with self.assertRaises(Overloaded):
                client.submit("mail")

    def what_the_server_refuses_is_not_sent_again(self) -> None:
        for status, code, kind in [(429, "full", Full), (422, "invalid_field", Invalid), (404, "not_found", NotFound)]:
            with Double(answer(status, {"code": code})) as node, Client(node.url) as client:
                with self.assertRaises(kind):
                    client.submit("mail")
                self.assertEqual(len(node.requests), 1)

    def a_completion_whose_first_answer_was_lost_is_recognised(self) -> None:
        lost = answer(409, {"code": "lost", "reason": {"code": "not_running", "state": "completed"}})
        ours = answer(200, {**JOB, "state": "completed", "attempt": 3})
        with Double(broken_off, lost, ours) as node, Client(node.url) as client:
            client.complete(Claim("a", "1-1", attempt=3))
        with Double(broken_off, lost, ours) as node, Client(node.url) as client:
            with self.assertRaises(Lost):
                client.complete(Claim("a", "1-1", attempt=2))  # a later attempt completed it

    def a_failure_whose_first_answer_was_lost_is_recognised_by_its_words(self) -> None:
        lost = answer(409, {"code": "lost", "reason": {"code": "not_running", "state": "dead"}})
        ours = answer(200, {**JOB, "state": "dead", "attempt": 3, "error": "no disk"})
        with Double(broken_off, lost, ours) as node, Client(node.url) as client:
            client.fail(Claim("a", "1-1", attempt=3), "no disk left, and more that was cut")
        with Double(broken_off, lost, ours) as node, Client(node.url) as client:
            with self.assertRaises(Lost):
                client.fail(Claim("a", "1-1", attempt=3), "another error")

    def a_claim_that_ended_in_another_way_is_not_taken_for_this_end(self) -> None:
        reason = {"code": "ended", "ended_as": "failed"}
        lost = answer(409, {"code": "lost", "reason": reason})
        # The job looks as if this had been done: the error is the same, and so is the attempt.
        failed = answer(200, {**JOB, "state": "scheduled", "attempt": 3, "error": "no disk"})
        ready = answer(200, {**JOB, "state": "ready", "attempt": 2})
        claim = Claim("a", "1-1", attempt=3)
        ends: list[tuple[Act, Callable[[Client], object]]] = [
            (failed, lambda client: client.fail(claim, "no disk", permanent=True)),
            (ready, lambda client: client.release(claim)),
            (ready, lambda client: client.complete(claim)),
        ]
        for job, end in ends:
            with Double(lost, job) as node, Client(node.url) as client:
                with self.assertRaises(Lost) as caught:
                    end(client)
                self.assertEqual(caught.exception.reason, reason)

    def a_release_whose_first_answer_was_lost_is_recognised_by_the_attempt(self) -> None:
        lost = answer(409, {"code": "lost", "reason": {"code": "not_running", "state": "ready"}})
        for state, attempt in [("ready", 2), ("running", 3), ("cancelled", 3)]:
            ours = answer(200, {**JOB, "state": state, "attempt": attempt})
            with Double(broken_off, lost, ours) as node, Client(node.url) as client:
                client.release(Claim("a", "1-1", attempt=3))
        for state, attempt in [("ready", 3), ("running", 4), ("completed", 3), ("dead", 3)]:
            other = answer(200, {**JOB, "state": state, "attempt": attempt})
            with Double(broken_off, lost, other) as node, Client(node.url) as client:
                with self.assertRaises(Lost):
                    client.release(Claim("a", "1-1", attempt=3))

    def a_cancel_whose_first_answer_was_lost_is_no_error(self) -> None:
        state = answer(409, {"code": "state"})
        with Double(broken_off, state, answer(200, JOB)) as node, Client(node.url) as client:
            self.assertEqual(client.cancel("a").state, "cancelled")
        with Double(state) as node, Client(node.url) as client:
            with self.assertRaises(WrongState):
                client.cancel("a")

    def a_forget_whose_first_answer_was_lost_is_no_error(self) -> None:
        gone = answer(404, {"code": "not_found"})
        with Double(broken_off, gone) as node, Client(node.url) as client:
            client.forget("a")
        with Double(gone) as node, Client(node.url) as client:
            with self.assertRaises(NotFound):
                client.forget("a")


class Trust(Claims):
    def trust_counts_from_before_the_request_whatever_the_answer_took(self) -> None:
        time = [1000.0]
        won = answer(200, {"leader": {"node": "a"}, "is_leader": True, "term": 7, "token": "l:7", "valid_for_ms": 9000})

        def slowly(head: str, request: bytes) -> Optional[bytes]:
            time[0] += 4.0
            return won(head, request)

        with mock.patch("tenure.clock.now", lambda: time[0]):
            with Double(slowly) as node, Client(node.url) as client:
                outcome = client.election("reports", "a").elect()
            self.assertEqual((outcome.is_leader, outcome.term, outcome.token), (True, 7, "l:7"))
            self.assertEqual(outcome.trusted_until, 1009.0)

    def a_lost_answer_does_not_move_the_start_of_trust(self) -> None:
        time = [1000.0]
        won = answer(200, {"leader": {"node": "a"}, "is_leader": True, "term": 7, "token": "l:7", "valid_for_ms": 9000})

        def lost(head: str, request: bytes) -> Optional[bytes]:
            time[0] += 4.0
            return None

        with mock.patch("tenure.clock.now", lambda: time[0]):
            with Double(lost, won) as node, Client(node.url) as client:
                self.assertEqual(client.election("reports", "a").elect().trusted_until, 1009.0)
