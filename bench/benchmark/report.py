"""Tables and plots from results: pure, no I/O but for the files that are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from . import plot
from .figures import Figure, Result, figures, number, problem, shown

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"


class Column(NamedTuple):
    """One column of a section's table: its heading, the value of a result, and a unit."""

    heading: str
    value: str
    unit: str = ""


class Section(NamedTuple):
    """How a section is shown."""

    name: str
    title: str
    says: str
    columns: list[Column]
    plotted: Optional[Column] = None


COST = [
    Column("server µs/job", "server_cpu_us_per_job"),
    Column("client µs/job", "client_cpu_us_per_job"),
    Column("bytes/job", "bytes_per_job"),
    Column("requests/job", "counted_per_job"),
]
RATE = Column("jobs/s", "per_second")

SECTIONS = [
    Section(
        "submit", "Submit, one job per call",
        "64 callers; each sends its next job when the last one is acknowledged. p50 and p99 are those of a call.",
        [RATE, Column("p50 ms", "p50_ms"), Column("p99 ms", "p99_ms"), *COST], RATE,
    ),
    Section(
        "batch", "Submit, 1,000 jobs per call",
        "Four callers, in the call that each peer has for many jobs.",
        [RATE, Column("p50 ms", "p50_ms"), Column("p99 ms", "p99_ms"), *COST], RATE,
    ),
    Section(
        "workoff-64", "Work off a queue, concurrency 64",
        "A queue that is full; handlers that do nothing; from the start of the workers to the last job that was reported done.",
        [RATE, *COST], RATE,
    ),
    Section(
        "workoff-512", "Work off a queue, concurrency 512",
        "The same with 512 jobs at once.",
        [RATE, *COST], RATE,
    ),
    Section(
        "pickup", "Pick-up by an idle worker",
        "One job at a time: from before its submit is sent to the start of its handler.",
        [Column("p50 ms", "pick_up_p50_ms"), Column("p99 ms", "pick_up_p99_ms"), *COST[:2]],
        Column("p50 ms", "pick_up_p50_ms"),
    ),
    Section(
        "open", "Arrivals that do not wait",
        "Submits start on time, however slow the answers are, and 64 workers take the jobs. *Kept up* is how many of the "
        "arrivals were acknowledged in the time.",
        [
            Column("kept up", "kept_up"), Column("submit p50 ms", "p50_ms"), Column("submit p99 ms", "p99_ms"),
            Column("pick-up p50 ms", "pick_up_p50_ms"), Column("pick-up p99 ms", "pick_up_p99_ms"), *COST[:2],
        ],
        Column("submit p99 ms", "p99_ms"),
    ),
    Section(
        "depth", "Depth, and what a waiting job takes",
        "What the server's processes hold in memory (their share of shared pages, PSS) and on disk for each job that waits, "
        "and single submits and work-off (64) with so many jobs in the queue.",
        [
            Column("jobs waiting", "depth"), Column("memory bytes/job", "memory_per_job"), Column("disk bytes/job", "disk_per_job"),
            Column("submits/s", "deep_submits_per_second"), Column("worked off/s", "deep_done_per_second"),
        ],
    ),
    Section(
        "idle", "Idle",
        "Processor time of one core while an idle worker with 16 slots waits for jobs.",
        [Column("server %", "server_cpu_percent"), Column("client %", "client_cpu_percent")],
    ),
    Section(
        "xmin", "A transaction that is held open beside the queue",
        "Jobs go in and out as fast as they can while another session of the database holds a transaction with a snapshot, "
        "as a long report does: jobs per second in the first and in the last quarter of the time.",
        [
            Column("first quarter, none held", "free_first"), Column("last quarter, none held", "free_last"),
            Column("first quarter, held", "held_first"), Column("last quarter, held", "held_last"),
        ],
    ),
    Section(
        "handover", "Elections: hand-over",
        "The leader is told to stop (SIGTERM) while another candidate waits: from the signal until the other one says that it "
        "leads. For Tenure that includes the start of the program it runs.",
        [Column("ms", "milliseconds")],
        Column("ms", "milliseconds"),
    ),
    Section(
        "failover", "Elections: the leader dies",
        "kill -9 on the leader and all of its processes, with the time-outs that each comes with: until another candidate leads.",
        [Column("seconds", "failover_seconds"), Column("time-out", "timeout_seconds")],
    ),
    Section(
        "steady", "Elections: what it costs to lead",
        "One process leads so many elections: processor time of one core while nothing happens.",
        [
            Column("elections", "count"), Column("server %", "server_cpu_percent"), Column("client %", "client_cpu_percent"),
            Column("until all were led, s", "all_led_seconds"),
        ],
    ),
]


def table(results: list[Result], section: Section, peers: dict[str, str]) -> list[str]:
    """The Markdown table of one section; nothing if it was not run."""
    here = [one for one in results if one["section"] == section.name or one["section"].startswith(f"{section.name}@")]
    if not here:
        return []
    wanted = [column for column in section.columns if any(figures(here, one["section"], one["peer"], column.value) for one in here)]
    lines = [f"| | {' | '.join(column.heading for column in wanted)} |", f"| --- |{' ---: |' * len(wanted)}"]
    for peer, label in peers.items():
        for name in dict.fromkeys(one["section"] for one in here if one["peer"] == peer):
            cells = [cell(figures(here, name, peer, column.value), column) for column in wanted]
            said = problem(here, name, peer)
            if said and all(one == "–" for one in cells):
                cells = [f"not measured: {escaped(said)}", *[""] * (len(wanted) - 1)]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return [f"### {section.title}", "", section.says, "", *lines, ""]


def cell(found: Optional[Figure], column: Column) -> str:
    return shown(found, column.unit)


def escaped(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:160]


def ahead(results: list[Result], peers: dict[str, str]) -> list[str]:
    """Where a peer has the better median than the best row of Tenure, in plain words."""
    lines = []
    for section in SECTIONS:
        if not section.plotted:
            continue
        medians = {
            peer: found.median for peer in peers if (found := figures(results, section.name, peer, section.plotted.value))
        }
        ours = {peer: value for peer, value in medians.items() if is_ours(peer)}
        if not ours or len(ours) == len(medians):
            continue
        more_is_better = section.plotted is RATE
        best = (max if more_is_better else min)(ours, key=lambda peer: ours[peer])
        better = [
            (peer, value) for peer, value in medians.items()
            if not is_ours(peer) and (value > ours[best] if more_is_better else value < ours[best])
        ]
        said = ", ".join(f"{peers[peer]} ({number(value)})" for peer, value in better)
        unit = section.plotted.heading
        mine = f"{peers[best]}: {number(ours[best])} {unit}"
        lines.append(f"- {section.title}: {said} ahead of {mine}." if better else f"- {section.title}: nobody ahead of {mine}.")
    return lines


def is_ours(peer: str) -> bool:
    return peer.startswith("tenure")


def document(run: dict[str, Any], images: str) -> str:
    """All of a run, as Markdown. `images` is the folder of the plots, as the document names it."""
    peers, results = run["peers"], run["results"]
    lines = [f"Measured on {run['when']}, in {run['minutes']:.0f} minutes.", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {escaped(text) if name != 'command' else f'`{text}`'} |" for name, text in run["machine"].items()), ""]
    lines += ["Each figure is the median of the rounds, with the smallest and the largest in brackets.", ""]
    if was_busy(run):
        lines += [
            "**The machine was busy with other work.** Seconds and latencies are far from what a quiet one would show, and each fsync waited "
            "for others. Processor time per job, requests, bytes, and the order of the rows say more.", "",
        ]
    said = ahead(results, peers)
    if said:
        lines += ["### Who is ahead", "", "Of the best row of Tenure, by the medians of this run:", "", *said, ""]
    for section in SECTIONS:
        made = table(results, section, peers)
        lines += made
        if made and section.plotted and has_plot(results, section, peers):
            lines += [f"![{section.title}: {section.plotted.heading}]({images}/bench-{section.name}.svg)", ""]
    lines += ["### Versions and durability", "", "| | version | what an acknowledgement means | requests counted as |", "| --- | --- | --- | --- |"]
    for peer, label in peers.items():
        about = run["about"][peer]
        lines.append(f"| {label} | {escaped(about['version'])} | {escaped(about['durability'])} | {escaped(about['counts'])} |")
    lines.append("")
    if run["left_out"]:
        lines += ["Left out:", "", *(f"- {name}: {escaped(reason)}" for name, reason in run["left_out"].items()), ""]
    return "\n".join(lines)


def was_busy(run: dict[str, Any]) -> bool:
    """Whether other work waited for the processors when the run began."""
    return float(run["machine"].get("load when it began", 0)) > run.get("cores", 1)


def bars(results: list[Result], section: Section, peers: dict[str, str]) -> list[tuple[str, Figure, bool]]:
    assert section.plotted
    found = [(peer, figures(results, section.name, peer, section.plotted.value)) for peer in peers]
    return [(peers[peer], one, is_ours(peer)) for peer, one in found if one]


def has_plot(results: list[Result], section: Section, peers: dict[str, str]) -> bool:
    return bool(section.plotted) and len(bars(results, section, peers)) > 1


def plots(run: dict[str, Any]) -> dict[str, str]:
    """The plots, by the names of their files."""
    peers, results = run["peers"], run["results"]
    return {
        f"bench-{section.name}.svg": plot.bars(f"{section.title}: {section.plotted.heading}", bars(results, section, peers))
        for section in SECTIONS
        if section.plotted and has_plot(results, section, peers)
    }


def between_markers(text: str, new: str) -> str:
    """`text` with what is between the markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{new.strip()}\n\n{END}{after}"


def write(run: dict[str, Any], page: Optional[Path], folder: Path, say: Callable[[str], None]) -> None:
    """Writes report and plots into `folder`; with `page` also into that page, and the plots beside it in docs/images."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(document(run, "."))
    for name, text in plots(run).items():
        (folder / name).write_text(text)
    say(f"{folder / 'report.md'}")
    if page:
        images = page.parent / "docs/images"
        for old in images.glob("bench-*.svg"):
            old.unlink()
        for name, text in plots(run).items():
            (images / name).write_text(text)
        page.write_text(between_markers(page.read_text(), document(run, "docs/images")))
        say(f"{page}")
