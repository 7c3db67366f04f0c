"""Helpers for tests: claims as names, and real servers that are started and killed."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Optional

#: Generous: the machine may be busy with other tests.
PATIENCE_SECONDS = 120.0


class Claims(unittest.TestCase):
    """Tests without a ``test_`` in front: every public method of a subclass is a claim."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        kept = {"setUp", "tearDown", "setUpClass", "tearDownClass"}
        for name, value in list(vars(cls).items()):
            if callable(value) and not name.startswith("_") and name not in kept:
                setattr(cls, f"test_{name}", value)


_held: list[int] = []


def free_port() -> int:
    """A free port, reserved until this process ends by the lock that the project's other tests use as well."""
    folder = os.path.join(tempfile.gettempdir(), f"tenure-ports-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    while True:
        # Below the ports that the kernel gives to outgoing connections, which do not use the lock.
        port = random.randrange(10000, 32768)
        lock = os.open(os.path.join(folder, str(port)), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)
        return port


def eventually(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Calls a function again and again until it returns something true."""
    give_up_at = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.05)


def binary() -> Optional[str]:
    """The server's binary. Without one the test is skipped, or fails if nothing may be skipped."""
    path = os.environ.get("TENURE_TEST_BINARY")
    if path:
        return path
    reason = "needs the server: set TENURE_TEST_BINARY to the tenure binary, or run scripts/test"
    if os.environ.get("TENURE_TEST_REQUIRE") == "all":
        raise AssertionError(reason)
    print(f"skipped: {reason}", file=sys.stderr)
    raise unittest.SkipTest(reason)


class Server:
    """One `tenure serve` on a free port."""

    def __init__(self, store: str, *arguments: str, token: Optional[str] = None) -> None:
        program = binary()
        assert program is not None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile("w+")
        command = [program, "serve", "--store", store, "--listen", f"127.0.0.1:{self.port}", *arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=kept)

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]

    def answers(self, path: str) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.log()}")
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                return int(response.status) == 200
        except (OSError, urllib.error.URLError):
            return False

    def ready(self) -> Server:
        eventually(lambda: self.answers("/readyz"), f"ready:\n{self.log()}")
        return self

    def kill(self) -> None:
        """Kills it like `kill -9`, so that it cannot clean up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stops it like an operator. Returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        return self._process.returncode


class Cluster:
    """Servers on one folder, removed at the end."""

    def __init__(self, nodes: int = 1, *arguments: str) -> None:
        binary()
        self._folder = tempfile.TemporaryDirectory(prefix="tenure-python-")
        self._arguments = arguments
        self.store = f"file:{Path(self._folder.name) / 'data'}"
        self.servers: list[Server] = []
        for number in range(nodes):
            self.start(f"node-{number + 1}")
        for server in self.servers:
            server.ready()

    def start(self, node: str) -> Server:
        server = Server(self.store, "--node", node, *self._arguments)
        self.servers.append(server)
        return server

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
        self._folder.cleanup()
