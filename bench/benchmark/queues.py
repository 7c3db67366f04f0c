"""The sections about queues: what is asked of each peer, and for how long."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .figures import Result
from .processes import Failed, PATIENCE_SECONDS, Server, drive, folder_bytes, memory_bytes, servers, tree
from .queue_peers import Peer, stop

PAYLOAD_BYTES = 100
#: In this order on one server, so that what waits in a queue when a section ends is in nobody's way.
REPEATED = ["pickup", "open", "workoff-64", "workoff-512", "submit", "batch"]
#: Measured in the first round only: they take long, and vary little.
ONCE = ["idle", "depth", "xmin"]


@dataclass
class Settings:
    """How much is done."""

    seconds: float = 1.5
    rounds: int = 3
    jobs: int = 20_000
    preload_seconds: int = 4
    samples: int = 120
    rate: int = 1_000
    depths: list[int] = field(default_factory=lambda: [100_000])
    callers: int = 64
    batch: int = 1_000
    held_seconds: float = 5.0
    idle_seconds: float = 3.0


class Queues:
    """Measures peers, cell by cell. Every cell has a bounded time, and ends as a figure or as the reason why not."""

    def __init__(self, settings: Settings, root: Path, also_remove: Callable[[str], None], note: Callable[[Result], None]) -> None:
        self.settings, self.root, self.also_remove, self.note = settings, root, also_remove, note
        self.numbers = itertools.count(1)

    async def round(self, peer: Peer, sections: list[str], number: int) -> None:
        """One round of one peer: a new server, and the sections on it, one after the other."""
        repeated = [name for name in REPEATED if name in sections]
        once = [name for name in ONCE if name in sections and number == 1]
        if repeated or "idle" in once:
            first = [*(["idle"] if "idle" in once else []), *repeated]
            await self.on_a_server(peer, first, number, self.plain)
        if "depth" in once:
            for depth in self.settings.depths:
                await self.on_a_server(peer, [f"depth@{depth}"], number, self.depth)
        if "xmin" in once and peer.is_sql():
            await self.on_a_server(peer, ["xmin"], number, self.held)

    async def on_a_server(self, peer: Peer, names: list[str], number: int, measure: Callable[..., Any]) -> None:
        able = [name for name in names if name.partition("@")[0] not in peer.cannot]
        for name in set(names) - set(able):
            self.note({"section": name, "peer": peer.name, "round": number, "error": peer.cannot[name.partition("@")[0]]})
        if not able:
            return
        folder = self.root / f"{peer.name}-{next(self.numbers)}"
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)
        result: Result = {}
        try:
            server = await asyncio.wait_for(peer.start(folder, self.also_remove), PATIENCE_SECONDS * 2)
        except (servers.Failed, TimeoutError) as failed:
            for name in able:
                self.note({"section": name, "peer": peer.name, "round": number, "error": f"its server did not start: {failed}"})
            return
        try:
            for name in able:
                result = {"section": name, "peer": peer.name, "round": number}
                try:
                    result |= await measure(peer, server, name, folder)
                except (Failed, OSError, ValueError, subprocess.SubprocessError) as failed:
                    result["error"] = str(failed)
                self.note(result)
                if any(one.died() for one in server.running):
                    break
        finally:
            await stop(server.running)
            await asyncio.to_thread(servers.shutil.rmtree, folder, ignore_errors=True)

    async def drive(self, peer: Peer, server: Server, section: str, queue: str, beside: Any = None, **spec: Any) -> Result:
        settings = self.settings
        known = {name: value() if callable(value) else value for name, value in peer.spec.items()}
        base = {"url": peer.url(server.running), "queue": queue, "payload_bytes": PAYLOAD_BYTES, "seconds": settings.seconds, "preload_seconds": settings.preload_seconds}
        return await drive(peer.command(), section, base | known | spec, server, peer.env(), beside)

    async def plain(self, peer: Peer, server: Server, name: str, folder: Path) -> Result:
        settings, queue = self.settings, f"q{next(self.numbers)}"
        if name == "submit":
            return await self.drive(peer, server, "submit", queue, callers=settings.callers, batch=1)
        if name == "batch":
            return await self.drive(peer, server, "submit", queue, callers=4, batch=settings.batch)
        if name == "pickup":
            return await self.drive(peer, server, "pickup", queue, samples=settings.samples, gap_ms=5, seconds=settings.seconds * 2)
        if name == "open":
            asked = {"asked_seconds": settings.seconds}
            return asked | await self.drive(peer, server, "open", queue, rate=settings.rate)
        if name == "idle":
            return await self.drive(peer, server, "idle", queue, seconds=settings.idle_seconds)
        concurrency = int(name.partition("-")[2])
        wanted = {"concurrency": concurrency, "preload": settings.jobs, "patience": settings.preload_seconds}
        made = await self.drive(peer, server, "workoff", queue, seconds=settings.seconds * 2, **wanted)
        if not made["jobs"]:
            raise Failed(f"no job was done within {settings.seconds * 2:g} s")
        return made

    async def depth(self, peer: Peer, server: Server, name: str, folder: Path) -> Result:
        """Fills a queue, looks at the server, and uses the queue while it is so deep."""
        depth, settings, queue = int(name.partition("@")[2]), self.settings, f"q{next(self.numbers)}"
        # A few jobs first, so that what every queue needs is there.
        await self.drive(peer, server, "preload", queue, jobs=1_000)
        # Where jobs are rows, the memory is the database's own, of a fixed size.
        holds_jobs = not isinstance(server.running[-1], servers.Postgres)
        before = memory_of(server), await asyncio.to_thread(folder_bytes, folder)
        allowed = max(15, depth // 10_000)
        filled = await self.drive(peer, server, "preload", queue, jobs=depth, preload_seconds=allowed, patience=allowed)
        if filled["jobs"] < depth:
            raise Failed(f"only {filled['jobs']:,} jobs went in within {allowed} s")
        after = memory_of(server), await asyncio.to_thread(folder_bytes, folder)
        submits = await self.drive(peer, server, "submit", queue, callers=settings.callers, batch=1, seconds=settings.seconds / 2)
        done = await self.drive(peer, server, "workoff", queue, concurrency=64, preload=0, seconds=settings.seconds)
        return {
            "depth": depth,
            "memory_per_job": (after[0] - before[0]) / depth if holds_jobs else None,
            "disk_per_job": (after[1] - before[1]) / depth,
            "deep_submits_per_second": submits["jobs"] / submits["seconds"],
            "deep_done_per_second": done["jobs"] / done["seconds"] if done["seconds"] else 0,
        }

    async def held(self, peer: Peer, server: Server, name: str, folder: Path) -> Result:
        """Jobs in and out as fast as they can, without and with a transaction that another session holds."""
        settings = self.settings
        wanted = {"callers": 2, "batch": 100, "seconds": settings.held_seconds}
        free = await self.drive(peer, server, "churn", f"q{next(self.numbers)}", **wanted)
        made = {"free_first": free["first_per_second"], "free_last": free["last_per_second"]}
        holder: list[subprocess.Popen[str]] = []
        try:
            beside = lambda: holder.append(hold_a_snapshot(server.running[0]))
            held = await self.drive(peer, server, "churn", f"q{next(self.numbers)}", beside, **wanted)
        finally:
            for process in holder:
                process.kill()
                process.wait()
        return made | {"held_first": held["first_per_second"], "held_last": held["last_per_second"]}


def memory_of(server: Server) -> int:
    """Of the server that clients talk to, without the database that it may use."""
    return memory_bytes(tree(process.pid for process in server.running[-1].processes))


def hold_a_snapshot(postgres: Any) -> subprocess.Popen[str]:
    """A session that keeps a snapshot until it is killed, or this process ends and with it the session's input."""
    command = [postgres.source.path("psql"), "-h", "127.0.0.1", "-p", str(postgres.port), "-U", "postgres", "-d", "tenure", "-XAtq"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    process.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'held' FROM pg_class LIMIT 1;\n")
    process.stdin.flush()
    if process.stdout.readline().strip() != "held":
        process.kill()
        raise Failed("no transaction could be held")
    return process
