"""Arithmetic on results: pure, no I/O.

A *result* is one cell of one round: a dictionary with `section`, `peer`, `round`, and either what was measured or
`error`. A *figure* is the median of the rounds, with the smallest and the largest.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Iterable, Optional

Result = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """The median of several rounds, the smallest and the largest."""

    median: float
    least: float
    most: float


def figure(values: Iterable[float]) -> Optional[Figure]:
    found = sorted(values)
    return Figure(statistics.median(found), found[0], found[-1]) if found else None


def derived(result: Result) -> Result:
    """A result with what can be computed from it: rates, and costs per job."""
    made = dict(result)
    jobs, seconds = result.get("jobs"), result.get("seconds")
    if jobs and seconds:
        made["per_second"] = jobs / seconds
        for name in ("server_cpu_seconds", "client_cpu_seconds"):
            if result.get(name) is not None:
                made[name.replace("_seconds", "_us_per_job")] = result[name] / jobs * 1e6
        for name in ("bytes", "counted"):
            if result.get(name) is not None:
                made[f"{name}_per_job"] = result[name] / jobs
        if result.get("asked"):
            made["kept_up"] = jobs / seconds / (result["asked"] / result["asked_seconds"])
    elif seconds:
        # Nothing was done: what it costs to be there.
        for name in ("server_cpu_seconds", "client_cpu_seconds"):
            if result.get(name) is not None:
                made[name.replace("_seconds", "_percent")] = result[name] / seconds * 100
    return made


def figures(results: Iterable[Result], section: str, peer: str, name: str) -> Optional[Figure]:
    """One figure of a table: `name` of that section and peer, over all rounds."""
    chosen = [derived(one) for one in results if one["section"] == section and one["peer"] == peer]
    return figure(one[name] for one in chosen if one.get(name) is not None)


def problem(results: Iterable[Result], section: str, peer: str) -> Optional[str]:
    """Why there is no figure, if a round said so."""
    chosen = (one for one in results if one["section"] == section and one["peer"] == peer)
    return next((one["error"] for one in chosen if one.get("error")), None)


def number(value: float) -> str:
    """Three digits that matter, and no more."""
    size = abs(value)
    if isinstance(value, int) and size < 1000:
        return str(value)
    if 0 < size < 0.1:
        return f"{value:.2g}"
    if size >= 1000:
        rounded = round(value, 2 - len(str(int(size))) + 1)
        return f"{rounded:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def shown(found: Optional[Figure], unit: str = "") -> str:
    """A figure as a cell: the median, and in brackets the range if there was more than one round."""
    if found is None:
        return "–"
    text = f"{number(found.median)}{unit}"
    if found.least == found.most:
        return text
    return f"{text} ({number(found.least)}–{number(found.most)})"
