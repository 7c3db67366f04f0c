"""One HTTP exchange with one node, on connections that are kept open.

Guarantees: an exchange ends as an answer, as :class:`NotSent` (no byte of the request was sent, so nothing was done), as
:class:`NotTrusted` (the same, and trying again would not help), or as :class:`AnswerLost` (it may have been done).
Nothing is ever repeated here: only the caller knows whether that is safe. No redirect is followed and no proxy is used,
so the token goes only to the configured brokers.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Optional
from urllib.parse import urlsplit

from .errors import NotTrusted

__all__ = ["AnswerLost", "Node", "NotSent", "Response", "Stream"]

#: How long a connection may take to open.
CONNECT_SECONDS = 5.0

#: The largest explanation of a refusal that is read.
PROBLEM_BYTES_MAX = 1 << 20

#: How many connections to one node are kept for the next call.
IDLE_MAX = 32


class NotSent(Exception):
    """The node could not be reached: nothing was sent, so nothing was done."""


class AnswerLost(Exception):
    """The connection broke, or time was up, after something was sent: it may have been done."""


@dataclass(frozen=True)
class Response:
    """An answer: status, headers with lower-case names, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream:
    """A streamed answer: its lines, as they come."""

    def __init__(self, url: str, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._url, self._connection, self._answer = url, connection, answer

    def refusal(self) -> Optional[Response]:
        """The node's refusal, if it does not send a stream."""
        if self._answer.status == 200:
            return None
        try:
            body = self._answer.read(PROBLEM_BYTES_MAX)
        except (OSError, http.client.HTTPException) as problem:
            raise AnswerLost(f"{self._url} gave no answer: {describe(problem)}") from problem
        headers = {name.lower(): value for name, value in self._answer.getheaders()}
        return Response(self._answer.status, headers, body)

    def lines(self, most: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
        """Its lines, until the node ends them or ``is_over``. None is longer than ``most``."""
        while not is_over():
            try:
                line = self._answer.readline(most + 1)
            except (OSError, http.client.HTTPException) as problem:
                raise AnswerLost(f"{self._url} broke off: {describe(problem)}") from problem
            if not line.endswith(b"\n"):
                # The end, or a line that is too long to be one of ours.
                return
            yield line

    def close(self) -> None:
        """Closes the stream."""
        self._connection.close()


class Node:
    """One node's address, and the connections to it. May be used by many threads at once."""

    def __init__(self, url: str, token: Optional[str] = None, tls: Optional[ssl.SSLContext] = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a broker; use a URL such as http://127.0.0.1:8080")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("a broker's URL may have only a host, a port and a path; pass the token as token=")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = {"Accept": "application/json", "User-Agent": "tenure-python/0.1"}
        if token is not None:
            # http.client would refuse it too, but with the token in the message.
            if not token.isascii() or not token.isprintable():
                raise ValueError("the token contains characters that cannot be sent in a header")
            self._headers["Authorization"] = f"Bearer {token}"
        self._owner = os.getpid()
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Node({self.url!r})"

    def exchange(
        self,
        method: str,
        path: str,
        body: Optional[bytes],
        timeout: float,
        hold: int = 0,
        name: Optional[str] = None,
    ) -> Response:
        """Sends one request and reads its answer, within ``timeout`` seconds of silence.

        A broker without a leader may hold the request for ``hold`` seconds. It recognises a repeated request by
        ``name``.
        """
        connection = self._kept() or self._open(timeout)
        try:
            assert connection.sock is not None
            connection.sock.settimeout(timeout)
            headers = dict(self._headers)
            headers["Prefer"] = f"wait={hold}"
            if body is not None:
                headers["Content-Type"] = "application/json"
            if name is not None:
                headers["Idempotency-Key"] = name
            try:
                connection.request(method, self._path + path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                # A node that refuses a large body answers and hangs up before it has read all of it.
                pass
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise AnswerLost(f"{self.url} gave no answer: {describe(problem)}") from problem
        except BaseException:
            # The exchange is incomplete: the next one would read this one's answer.
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._keep(connection)
        return Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)

    def stream(self, path: str, silence: float, last_id: Optional[str]) -> Stream:
        """Requests a streamed answer, on a separate connection that may be silent for ``silence`` seconds."""
        connection = self._open(silence)
        try:
            assert connection.sock is not None
            connection.sock.settimeout(silence)
            headers = {**self._headers, "Accept": "text/event-stream, application/json"}
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            connection.request("GET", self._path + path, None, headers)
            return Stream(self.url, connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise AnswerLost(f"{self.url} gave no answer: {describe(problem)}") from problem
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Closes the connections that are not in use."""
        self._leave_the_parents()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _open(self, timeout: float) -> http.client.HTTPConnection:
        seconds = min(timeout, CONNECT_SECONDS)
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as problem:
            connection.close()
            raise NotTrusted(
                f"the certificate of {self.url} is not valid: {problem.verify_message}",
                hint="pass tls= a context that trusts the authority, or fix the certificate",
            ) from problem
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise NotSent(f"cannot reach {self.url}: {describe(problem)}") from problem
        return connection

    def _leave_the_parents(self) -> None:
        """In a forked child: two processes with one connection would read each other's answers."""
        if os.getpid() != self._owner:
            # A new lock too: a thread of the parent may have held the old one.
            self._owner, self._idle, self._lock = os.getpid(), [], threading.Lock()

    def _kept(self) -> Optional[http.client.HTTPConnection]:
        self._leave_the_parents()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            # A node that stopped has closed it. Noticed before anything is sent, so the outcome is not in doubt.
            if connection.sock is not None and not is_readable(connection.sock):
                return connection
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


def is_readable(sock: socket.socket) -> bool:
    """Whether there is something to read: on a connection without an open request, its end."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def describe(problem: BaseException) -> str:
    """A line for people, even for exceptions without a message."""
    return str(problem) or type(problem).__name__
