"""The sections about elections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

from .election_peers import ElectionPeer
from .figures import Result
from .processes import PATIENCE_SECONDS, Failed, Server, drive, servers, tree
from .queue_peers import stop

HANDOVERS = 5
#: How many leaders die at once, each of its own election: all of them wait for the same time-out.
DEATHS = 3


class Candidate:
    """A process that prints a line when it leads."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder,
            env=servers.clean_environment(), start_new_session=True, preexec_fn=servers.die_with_parent(signal.SIGTERM),
        )
        self.led_at: float | None = None
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)

    def leads(self) -> bool:
        assert self.process.stdout
        if self.led_at is None and self.process.stdout.read():
            self.led_at = time.monotonic()
        return self.led_at is not None

    def kill(self) -> None:
        """At once, with every process that it has started, so that nobody cleans up."""
        for pid in tree([self.process.pid]):
            servers.send(signal.SIGKILL, pid)

    async def stop(self) -> None:
        servers.send(signal.SIGTERM, self.process.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(servers.exit_of(self.process), servers.STOP_SECONDS)
        self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


async def leader_of(candidates: list[Candidate], seconds: float) -> Candidate:
    """The first of these that leads."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for one in candidates:
            if one.leads():
                return one
            if one.process.poll() is not None:
                raise Failed(f"a candidate ended with {one.process.returncode}")
        await asyncio.sleep(0.0005)
    raise Failed(f"nobody leads after {seconds:.0f} s")


class Elections:
    """Measures hand-overs of one peer after the other; the rest of all at the same time, since it is mostly waiting."""

    def __init__(self, settings: Any, root: Path, also_remove: Callable[[str], None], note: Callable[[Result], None], counts: str) -> None:
        self.settings, self.root, self.also_remove, self.note = settings, root, also_remove, note
        self.counts = [int(word) for word in counts.split(",")]
        self.numbers = itertools.count(1)

    async def measure(self, peers: list[ElectionPeer], sections: list[str]) -> None:
        if "handover" in sections:
            for peer in peers:
                await self.on_a_server(peer, "handover", self.handover)
        for name, measure in (("steady", self.steady), ("failover", self.failover)):
            if name in sections:
                await asyncio.gather(*(self.on_a_server(peer, name, measure) for peer in peers))

    async def on_a_server(self, peer: ElectionPeer, section: str, measure: Callable[..., Any]) -> None:
        folder = self.root / f"election-{peer.name}-{next(self.numbers)}"
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)
        base = {"section": section, "peer": peer.name, "round": 1}
        try:
            server, address = await asyncio.wait_for(peer.start(folder, self.also_remove), PATIENCE_SECONDS * 2)
        except (servers.Failed, TimeoutError) as failed:
            self.note(base | {"error": f"its server did not start: {failed}"})
            return
        try:
            await measure(peer, server, address, folder)
        except (Failed, OSError, ValueError) as failed:
            self.note(base | {"error": str(failed)})
        finally:
            await stop(server.running)

    async def handover(self, peer: ElectionPeer, server: Server, address: str, folder: Path) -> None:
        election = f"e{next(self.numbers)}"
        running = [Candidate(peer.candidate(address, election, f"n{next(self.numbers)}"), folder)]
        try:
            leader = await leader_of(running, PATIENCE_SECONDS)
            for number in range(HANDOVERS):
                waiting = Candidate(peer.candidate(address, election, f"n{next(self.numbers)}"), folder)
                running.append(waiting)
                # Long enough to start and to stand, and at varying times between heartbeats.
                await asyncio.sleep(1.5 + number * 0.23)
                began = time.monotonic()
                servers.send(signal.SIGTERM, leader.process.pid)
                await leader_of([waiting], PATIENCE_SECONDS)
                assert waiting.led_at
                milliseconds = (waiting.led_at - began) * 1000
                self.note({"section": "handover", "peer": peer.name, "round": number + 1, "milliseconds": milliseconds})
                await leader.stop()
                running.remove(leader)
                leader = waiting
        finally:
            await asyncio.gather(*(one.stop() for one in running))

    async def failover(self, peer: ElectionPeer, server: Server, address: str, folder: Path) -> None:
        """Several leaders are killed at the same time."""
        elections = [f"e{next(self.numbers)}" for _ in range(DEATHS)]
        running: list[Candidate] = []
        try:
            pairs = []
            for election in elections:
                leader = Candidate(peer.candidate(address, election, "first"), folder)
                running.append(leader)
                await leader_of([leader], PATIENCE_SECONDS)
                waiting = Candidate(peer.candidate(address, election, "second"), folder)
                running.append(waiting)
                pairs.append((leader, waiting))
            await asyncio.sleep(4)
            began = time.monotonic()
            for leader, _ in pairs:
                leader.kill()
            for number, (_, waiting) in enumerate(pairs):
                await leader_of([waiting], peer.timeout_seconds * 2 + PATIENCE_SECONDS / 2)
                assert waiting.led_at
                made = {"failover_seconds": waiting.led_at - began, "timeout_seconds": peer.timeout_seconds}
                self.note({"section": "failover", "peer": peer.name, "round": number + 1, **made})
        finally:
            await asyncio.gather(*(one.stop() for one in running))

    async def steady(self, peer: ElectionPeer, server: Server, address: str, folder: Path) -> None:
        for count in self.counts:
            spec = {"url": address, "count": count, "seconds": self.settings.idle_seconds * 2, "patience": 30 + count / 20}
            base = {"section": f"steady@{count}", "peer": peer.name, "round": 1, "count": count}
            try:
                self.note(base | await drive(peer.holder, "hold", spec, server))
            except Failed as failed:
                self.note(base | {"error": str(failed)})
