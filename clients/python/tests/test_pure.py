"""Tests that need no server: waits, trust, what is sent, and the meaning of answers."""

from __future__ import annotations

import contextlib
import doctest
import http.server
import json
import os
import threading
import unittest
from typing import Any

from tenure import Backoff, Invalid, Job, Lost, Rate, Submission, Unavailable, Unknown, backoff, clock, election, types
from tenure.client import Client, with_id
from tenure.election import Leadership, Trust
from tenure.errors import Conflict, Full, NotAllowed, NotFound, Overloaded, ServerError, WrongState
from tenure.transport import Node, Response
from tenure.wire import quoted, refusal, seconds_of, written
from tenure.worker import told

from .support import Claims


def problem(status: int, **body: Any) -> Response:
    return Response(status, {"content-type": "application/problem+json"}, json.dumps(body).encode())


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the path, on a connection that it keeps."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Forks(Claims):
    def a_forked_child_shares_no_connection_with_its_parent(self) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        node = Node(f"http://127.0.0.1:{server.server_address[1]}")
        node.exchange("GET", "/first", None, 5)
        kept = node._idle[0].sock
        child = os.fork()
        if child == 0:
            # Nothing of the test's own may run here.
            mine = False
            with contextlib.suppress(BaseException):
                mine = node.exchange("GET", "/child", None, 5).body == b"/child"
                mine = mine and all(connection.sock is not kept for connection in node._idle)
            os._exit(int(not mine))
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        self.assertEqual(node.exchange("GET", "/parent", None, 5).body, b"/parent")
        self.assertIs(node._idle[0].sock, kept)
        node.close()
        server.shutdown()
        server.server_close()


class Waits(Claims):
    def a_wait_doubles_to_its_bound_and_keeps_half_for_chance(self) -> None:
        longest = backoff.Backoff(0.1, 1.0, chance=lambda: 1.0)
        self.assertEqual([round(longest.next(), 3) for _ in range(6)], [0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
        shortest = backoff.Backoff(0.1, 1.0, chance=lambda: 0.0)
        self.assertEqual([round(shortest.next(), 3) for _ in range(3)], [0.05, 0.1, 0.2])

    def a_wait_starts_over_after_a_success(self) -> None:
        waits = backoff.Backoff(0.1, 1.0, chance=lambda: 1.0)
        for _ in range(2000):
            waits.next()
        waits.reset()
        self.assertEqual(waits.next(), 0.1)

    def only_a_number_of_seconds_is_a_retry_after(self) -> None:
        self.assertEqual(seconds_of("3"), 3.0)
        self.assertEqual(seconds_of("86400"), 30.0)
        for text in (None, "", "soon", "-1", "Sun, 06 Nov 1994 08:49:37 GMT"):
            self.assertEqual(seconds_of(text), 0.0)


class TrustWindow(Claims):
    def setUp(self) -> None:
        self.time = 1000.0
        self.trust = Trust(now=lambda: self.time)

    def trust_counts_from_before_the_request_was_sent(self) -> None:
        sent_at = self.time
        self.time += 4.0  # a slow answer
        self.trust.extend(sent_at, valid_for=5.0)
        self.assertEqual(self.trust.remaining(), 1.0)

    def an_answer_that_took_longer_than_it_is_valid_gives_no_trust(self) -> None:
        sent_at = self.time
        self.time += 6.0
        self.trust.extend(sent_at, valid_for=5.0)
        self.assertEqual(self.trust.remaining(), 0.0)

    def trust_that_was_seen_to_end_never_comes_back(self) -> None:
        self.trust.extend(self.time, 5.0)
        self.time += 5.0
        self.assertEqual(self.trust.remaining(), 0.0)
        self.trust.extend(self.time, 5.0)
        self.assertEqual(self.trust.remaining(), 0.0)

    def trust_that_ended_unseen_never_comes_back_either(self) -> None:
        self.trust.extend(self.time, 5.0)
        self.time += 5.0
        self.trust.extend(self.time - 0.1, 5.0)
        self.assertEqual(self.trust.remaining(), 0.0)

    def an_older_answer_does_not_shorten_trust(self) -> None:
        self.trust.extend(self.time + 1, 5.0)
        self.trust.extend(self.time, 5.0)
        self.assertEqual(self.trust.remaining(), 6.0)

    def nobody_leads_before_an_answer(self) -> None:
        self.assertEqual(self.trust.remaining(), 0.0)
        self.assertFalse(Leadership("reports", 1, "1").is_leader())

    def waiting_ends_when_leadership_does(self) -> None:
        leadership = Leadership("reports", 1, "1")
        leadership._trust.extend(clock.now(), 0.05)
        self.assertFalse(leadership.wait(60))

    def waiting_ends_in_time_while_leadership_goes_on(self) -> None:
        leadership = Leadership("reports", 1, "1")
        leadership._trust.extend(clock.now(), 3600)
        self.assertTrue(leadership.wait(0.01))


class Answers(Claims):
    def the_code_decides_and_then_the_status(self) -> None:
        for response, kind in [
            (problem(503, code="no_leader"), Unavailable),
            (problem(503, code="unknown_outcome"), Unknown),
            (problem(503, code="store_unavailable"), Unavailable),
            (problem(429, code="overloaded"), Overloaded),
            (problem(429, code="full"), Full),
            (problem(409, code="conflict"), Conflict),
            (problem(409, code="lost"), Lost),
            (problem(409, code="state"), WrongState),
            (problem(401, code="unauthorized"), NotAllowed),
            (problem(403, code="forbidden"), NotAllowed),
            (problem(422, code="invalid_field", field="cron"), Invalid),
            (problem(413, code="too_large"), Invalid),
            (problem(500, code="internal"), ServerError),
            (problem(418, code="new_word"), Invalid),
        ]:
            self.assertIs(type(refusal(response)), kind, response)

    def what_a_gateway_answers_is_no_refusal(self) -> None:
        other = {"content-type": "application/json"}
        for status in (302, 400, 401, 403, 404, 405, 408, 409, 413, 421, 422, 429, 431, 451, 500, 502, 503, 504):
            for headers, body in [
                ({}, b""),
                ({}, b"<html>bad gateway</html>"),
                ({}, b"[1]"),
                (other, b'{"message":"no"}'),
                (other, b'{"code":"not_found","message":"no such route"}'),
                ({}, b'{"code":404,"detail":"no such route"}'),
            ]:
                error = refusal(Response(status, headers, body))
                self.assertIs(type(error), Unknown, (status, body))
                self.assertEqual((error.status, error.code), (status, None))
        own = {"content-type": "Application/Problem+JSON; charset=utf-8"}
        self.assertIs(type(refusal(Response(404, own, b'{"code":"not_found"}'))), NotFound)

    def an_error_says_what_the_server_said(self) -> None:
        error = refusal(problem(422, code="invalid_field", detail="jobs[0].cron is empty", field="cron", hint="say when"))
        self.assertEqual((error.code, error.status, error.field), ("invalid_field", 422, "cron"))
        self.assertEqual(str(error), "jobs[0].cron is empty (hint: say when)")

    def a_lost_claim_has_a_reason(self) -> None:
        for reason in ({"code": "expired"}, "expired"):
            error = refusal(problem(409, code="lost", reason=reason))
            assert isinstance(error, Lost)
            self.assertEqual(error.reason["code"], "expired")

    def fields_of_a_newer_server_are_kept_and_ignored(self) -> None:
        body = {
            "id": "a", "queue": "q", "type": "t", "state": "dead", "priority": 0, "attempt": 1, "max_attempts": 1,
            "created_at": 1, "run_at": 1, "changed_at": 2, "payload": [1], "brand_new": 7,
        }  # fmt: skip
        job = Job.of(body)
        self.assertTrue(job.is_finished)
        self.assertEqual(job.raw["brand_new"], 7)


class Requests(Claims):
    def an_id_is_made_before_anything_is_sent(self) -> None:
        job = with_id(Submission("mail"))
        self.assertIsNotNone(job.id)
        self.assertEqual(with_id(job).id, job.id)
        self.assertEqual(with_id(Submission("mail", id="own")).id, "own")

    def only_what_was_said_is_sent(self) -> None:
        self.assertEqual(Submission("mail").body(), {"type": "mail"})
        self.assertEqual(Submission("mail", backoff=Backoff(factor=1)).body()["backoff"]["factor"], 1)
        self.assertEqual(Rate(5, 1000).body(), {"jobs": 5, "period_ms": 1000})

    def what_is_no_json_is_refused_here(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        for body in (float("nan"), object(), "\ud800", loop, {1, 2}):
            with self.assertRaises(Invalid):
                written(body)

    def a_name_stays_one_part_of_the_path(self) -> None:
        self.assertEqual(quoted("a/../b?c#d e"), "a%2F..%2Fb%3Fc%23d%20e")
        for name in ("", ".", ".."):
            with self.assertRaises(Invalid):
                quoted(name)

    def a_token_is_neither_shown_nor_sent_when_it_is_broken(self) -> None:
        for token in ("secret\r\nX: y", "sécret"):
            with self.assertRaises(ValueError) as caught:
                Client("http://127.0.0.1:1", token=token)
            self.assertNotIn("cret", str(caught.exception))
        client = Client("http://127.0.0.1:1,http://127.0.0.1:2", token="secret")
        self.assertNotIn("secret", repr(client) + repr(vars(client)))

    def an_address_that_cannot_be_one_is_refused(self) -> None:
        for url in ("127.0.0.1:8080", "ftp://host", "http://", "http://user:word@host", "http://host/?x=1"):
            with self.assertRaises(ValueError):
                Node(url)
        with self.assertRaises(ValueError):
            Client([])


class Errors(Claims):
    def a_handlers_error_is_told_shortly_with_its_place(self) -> None:
        try:
            raise ValueError("x" * 10_000)
        except ValueError as caught:
            text = told(caught)
        self.assertTrue(text.startswith("ValueError: xxx"))
        self.assertIn("test_pure.py", text)
        self.assertLessEqual(len(text), 2000)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: Any) -> unittest.TestSuite:
    # The examples of modules that need no server; test_docstrings has the others.
    tests.addTests(doctest.DocTestSuite(types))
    tests.addTests(doctest.DocTestSuite(backoff))
    finder = doctest.DocTestFinder()
    for name in ("Trust",):
        for example in finder.find(getattr(election, name), name, globs=vars(election).copy()):
            if example.examples:
                tests.addTest(doctest.DocTestCase(example))
    return tests
