"""Bars, in the style of scripts/make-plot."""

from __future__ import annotations

from html import escape

from .figures import Figure, number
from .repository import load

ROW, TOP, LEFT, WIDTH = 26, 44, 210, 520


def bars(title: str, rows: list[tuple[str, Figure, bool]]) -> str:
    """One bar for each row: a label, a figure, and whether it is ours. A line shows the range of the rounds."""
    style = load("scripts/make-plot").STYLE
    most = max(found.most for _, found, _ in rows) or 1.0
    parts = [f'<text x="20" y="26" class="title">{escape(title)}</text>']
    for index, (label, found, is_ours) in enumerate(rows):
        top = TOP + index * ROW
        middle, kind = top + ROW / 2, "first" if is_ours else "second"
        length, least, end = (WIDTH * value / most for value in (found.median, found.least, found.most))
        parts.append(f'<text x="{LEFT - 10}" y="{middle + 4:.1f}" class="end">{escape(label)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top + 5}" width="{max(length, 1):.1f}" height="{ROW - 10}" class="bar {kind}"/>')
        if end > least:
            parts.append(f'<path d="M{LEFT + least:.1f} {middle:.1f}H{LEFT + end:.1f}" class="range"/>')
        parts.append(f'<text x="{LEFT + max(end, length) + 8:.1f}" y="{middle + 4:.1f}" class="label {kind}">{number(found.median)}</text>')
    height = TOP + len(rows) * ROW + 16
    said = "; ".join(f"{label} {number(found.median)}" for label, found, _ in rows)
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 {height}" role="img" aria-label="{escape(f'{title}: {said}', quote=True)}">
<style>
{style}
.bar.first {{ fill: #3b6fd4 }} .bar.second {{ fill: #b5487f; opacity: .55 }} .range {{ stroke: #1f2328; stroke-width: 1.5 }}
</style>
<rect width="100%" height="100%" rx="8" fill="#ffffff"/>
{body}
</svg>
"""
