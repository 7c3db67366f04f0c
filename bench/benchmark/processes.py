"""What processes cost, from /proc; and drivers, the programs that put load on a peer.

A driver is started as `COMMAND SECTION SPEC`. It prepares, prints `{"ready": true}`, waits for a line, measures, prints what
it has measured, and waits for another line before it closes its connections and ends. In these two pauses the harness
reads what server and driver have used, so that neither start-up nor clean-up is counted.

SPEC is JSON. All have `url`, `queue`, `payload_bytes` and `seconds`, and further:

    submit    callers, batch            preload   jobs            workoff   concurrency, preload (jobs)
    pickup    samples, gap_ms           open      rate            churn     callers, batch
    idle      –

`preload_seconds` is the longest that filling a queue may take; what went in by then is what is worked off.
The answer has `jobs` and `seconds`; latencies as `p50_ms` and `p99_ms`, from submit to handler as `pick_up_p50_ms` and so on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

from .repository import load

servers = load("scripts/with-servers")
TICKS = os.sysconf("SC_CLK_TCK")
# The longest time that anything may take besides what it measures.
PATIENCE_SECONDS = 30.0


class Failed(Exception):
    """Why there is no figure."""


def tree(roots: Iterable[int]) -> set[int]:
    """These processes and all below them."""
    return {pid for root in roots for pid in servers.with_descendants(root)}


def processor_seconds(pids: Iterable[int]) -> float:
    """What these processes have used, and their children that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def memory_bytes(pids: Iterable[int]) -> int:
    """Their share of memory: what several of them map is counted once in all (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
            total += int(found[1]) * 1024 if found else 0
    return total


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take on disk."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def bytes_through(port: int) -> Optional[int]:
    """What has gone through the open connections of a server on this port, both ways; None without `ss`."""
    if not shutil.which("ss"):
        return None
    found = subprocess.run(["ss", "-tinHO", "state", "established", f"sport = :{port}"], capture_output=True, text=True, check=False)
    return sum(int(count) for count in re.findall(r"\bbytes_(?:sent|received):(\d+)", found.stdout))


class Server:
    """What runs for a peer, as the measurements see it."""

    def __init__(self, running: list[Any], counter: Optional[Callable[[], Optional[float]]] = None) -> None:
        self.running, self.counter = running, counter

    def pids(self) -> set[int]:
        return tree(process.pid for one in self.running for process in one.processes)

    def seen(self) -> dict[str, Optional[float]]:
        """What has been used so far."""
        counted = None
        if self.counter:
            with contextlib.suppress(OSError, ValueError, IndexError, subprocess.SubprocessError):
                counted = self.counter()
        port = self.running[-1].port if self.running else 0
        return {
            "server_cpu_seconds": processor_seconds(self.pids()) if self.running else None,
            "bytes": bytes_through(port) if port else None,
            "counted": counted,
        }


async def drive(
    command: list[str], section: str, spec: dict[str, Any], server: Server, env: Optional[dict[str, str]] = None,
    beside: Optional[Callable[[], Any]] = None,
) -> dict[str, Any]:
    """Runs a driver, and returns its answer with what it cost. It never takes longer than its time and half a minute."""
    limit = spec["seconds"] + PATIENCE_SECONDS + spec.get("patience", 0)
    with tempfile.TemporaryFile("w+") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, section, json.dumps(spec), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True, env=servers.clean_environment() | (env or {}), limit=1 << 20,
            preexec_fn=servers.die_with_parent(signal.SIGKILL),
        )
        try:
            return await asyncio.wait_for(conversation(process, server, beside), limit)
        except TimeoutError:
            raise Failed(f"not done after {limit:.0f} s") from None
        except Failed as failed:
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            chosen = next((line for line in lines if re.search(r"error", line, re.I)), lines[-1] if lines else "")
            raise Failed(f"{failed}: {chosen}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def conversation(process: asyncio.subprocess.Process, server: Server, beside: Optional[Callable[[], Any]]) -> dict[str, Any]:
    assert process.stdin and process.stdout

    async def said() -> dict[str, Any]:
        line = await process.stdout.readline()
        if not line:
            raise Failed("the driver ended")
        return json.loads(line)

    def used() -> dict[str, Optional[float]]:
        return {"client_cpu_seconds": processor_seconds(tree([process.pid])), **server.seen()}

    await said()
    if beside:
        await asyncio.to_thread(beside)
    before = await asyncio.to_thread(used)
    process.stdin.write(b"go\n")
    await process.stdin.drain()
    answer = await said()
    after = await asyncio.to_thread(used)
    process.stdin.write(b"end\n")
    with contextlib.suppress(TimeoutError, ConnectionError):
        await process.stdin.drain()
        # A worker that failed is told of last.
        if await asyncio.wait_for(process.wait(), 5):
            raise Failed("the driver failed after it had measured")
    for name, value in after.items():
        if value is not None and before[name] is not None:
            answer[name] = value - before[name]
    return answer
