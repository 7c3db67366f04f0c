"""The elections that are compared: how each is installed and started, and how a candidate is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .processes import Server, servers
from .queue_peers import Here, Packaged, Postgres, answers, stop
from .repository import ROOT

CLIENT = str(ROOT / "bench/clients/elections.py")
JAR = "/usr/share/java/zookeeper.jar"
KAZOO = servers.PyPI("kazoo", "2.11.0")


class Etcd(servers.Server):
    name = "etcd"
    source = servers.Debian("etcd-server etcd-client", "etcdctl etcd")

    async def start(self) -> None:
        self.port, peers = servers.free_port(), f"http://127.0.0.1:{servers.free_port()}"
        url = f"http://127.0.0.1:{self.port}"
        self.spawn(
            "etcd", "--data-dir", self.folder / "data", "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        )
        await self.ready(self.try_command, "etcdctl", "--endpoints", url, "endpoint", "health")


class JavaSource(Packaged):
    """ZooKeeper's package has no program on the path: it is there when its jar is."""

    def lacks(self) -> set[str]:
        return super().lacks() or (set() if Path(JAR).exists() else self.packages)


class ZooKeeper(servers.Server):
    name = "ZooKeeper"
    source = JavaSource("zookeeper default-jre-headless", "java")

    async def start(self) -> None:
        self.port = servers.free_port()
        config = self.folder / "zoo.cfg"
        config.write_text(servers.config_lines(f"""
            tickTime=2000; dataDir={self.folder}/data; clientPort={self.port}; clientPortAddress=127.0.0.1
            admin.enableServer=false; maxClientCnxns=0
        """))
        self.spawn("java", "-cp", JAR, "org.apache.zookeeper.server.ZooKeeperServerMain", config)
        await self.ready(answers, self.port)


@dataclass
class ElectionPeer:
    """A row of the tables about elections."""

    name: str
    label: str
    durability: str
    kinds: list[type]
    #: A candidate's command, which prints a line when it leads: from the address, the election and the candidate's name.
    candidate: Callable[[str, str, str], list[str]]
    #: The command that leads many elections; a driver.
    holder: list[str]
    #: After how long without a word the leader is taken for dead.
    timeout_seconds: float
    sources: list[Any] = field(default_factory=list)
    counts: str = "–"
    #: What to look for in a candidate's output; by default any line.
    leads: str = ""

    def driver(self) -> list[str]:
        return self.holder

    def version(self) -> str:
        return ", ".join(f"{'PostgreSQL' if kind is Postgres else kind.name} {kind.source.version()}" for kind in self.kinds) or "–"

    async def start(self, root: Path, also_remove: Callable[[str], None]) -> tuple[Server, str]:
        """The servers, and their address: a folder where there is no server."""
        running: list[Any] = []
        try:
            for kind in self.kinds:
                one = kind({})
                if not isinstance(one, Nothing):
                    running.append(one)
                    await one.bring_up(root, also_remove)
        except BaseException:
            await stop(running)
            raise
        if not running:
            return Server([]), f"file:{root}/store"
        last = running[-1]
        return Server(running), last.env.get("TENURE_TEST_POSTGRES") or f"127.0.0.1:{last.port}"


class Nothing(servers.Server):
    """No server: candidates share a folder."""

    name = "tenure"


def election_peers(binary: Path, drivers: Path) -> list[ElectionPeer]:
    none = type("Nothing", (Nothing,), {"source": Here(binary)})
    program = ["sh", "-c", "echo leads; exec sleep 3600"]

    def tenure(store: str, election: str, name: str) -> list[str]:
        return [str(binary), "run", "--store", store, "--namespace", election, "--node", name, "--", *program]

    def etcd(address: str, election: str, name: str) -> list[str]:
        return ["etcdctl", "--endpoints", f"http://{address}", "elect", election, name]

    python = KAZOO.path("python")
    holder = [str(drivers / "tenure-clients"), "elections"]
    return [
        ElectionPeer("tenure-file", "Tenure, file store", "fsync", [none], tenure, holder, 10),
        ElectionPeer("tenure-sql", "Tenure on PostgreSQL", "fsync and synchronous_commit on", [Postgres], tenure, holder, 10, [none.source]),
        ElectionPeer("etcd", "etcd, `etcdctl elect`", "fsync, one node", [Etcd], etcd, ["python3", CLIENT, "etcd"], 60),
        ElectionPeer(
            "zookeeper", "ZooKeeper, kazoo", "forceSync, its default; one node", [ZooKeeper],
            lambda address, election, name: [python, CLIENT, "zookeeper", "candidate", address, election], [python, CLIENT, "zookeeper"], 10, [KAZOO],
        ),
    ]
