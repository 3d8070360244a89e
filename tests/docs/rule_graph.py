"""The rules and what each waits for, drawn from the rule files: `python -m tests.docs.rule_graph > docs/rules.svg`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILES: Final = (ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk")))
RULE: Final = re.compile(r"^rule (\w+):\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)
INPUT: Final = re.compile(r"^    input:\n((?:        .*\n)+)", re.MULTILINE)
MADE_BY: Final[Mapping[str, str | None]] = {
    "receipts_of": "dataset_shard",
    "dataset_of": "dataset",
    "staged": "stage",
    "images": "image",
    "receipts": "stage_train_push",
    "outdated": None,
    "records": None,
}
"""What the graph's lookups name -> the rule that makes it; None: it is there already."""
SAID: Final = {
    "dataset_plan": "lists the source once",
    "dataset_shard": "one job per shard",
    "dataset": "the manifest with all hashes",
    "stage": "storage -> all nodes of one job",
    "image": "pins and archives images",
    "stage_train_push": "one job per run, on its nodes",
    "collect": "one row per run",
    "tables": "speed-up, efficiency",
    "plots": "one per question",
    "page": "report.html",
    "all": "what `snakemake` makes",
}
OPTIONAL: Final = ("stage", "image")
"""Rules that most studies do without."""
WIDTH, HEIGHT, ACROSS, DOWN, EDGE = 206, 46, 226, 92, 20


def rules() -> dict[str, tuple[str, ...]]:
    """Rule -> the rules whose files it waits for."""
    found = {}
    for path in FILES:
        for name, body in RULE.findall(path.read_text(encoding="utf-8")):
            inputs = "".join(INPUT.findall(body))
            before = [MADE_BY[word] for word in re.findall(r"GRAPH\.(\w+)", inputs)] + re.findall(r"rules\.(\w+)\.output", inputs)
            found[name] = tuple(dict.fromkeys(rule for rule in before if rule is not None))
    return found


def local_rules() -> set[str]:
    """Those that run where Snakemake runs."""
    (names,) = re.findall(r"^localrules:\n((?:    \w+,\n)+)", FILES[0].read_text(encoding="utf-8"), re.MULTILINE)
    return set(re.findall(r"\w+", names))


def layers(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Each rule below all that it waits for, in the order of the files."""
    depth: dict[str, int] = {}

    def of(rule: str) -> int:
        if rule not in depth:
            depth[rule] = 1 + max((of(before) for before in graph[rule]), default=-1)
        return depth[rule]

    found: list[list[str]] = [[] for _ in range(1 + max(of(rule) for rule in graph))]
    for rule in graph:
        after = [depth[other] for other, before in graph.items() if rule in before]
        found[depth[rule] if graph[rule] or not after else min(after) - 1].append(rule)  # what waits for nothing stands above who needs it
    return found


def drawn(graph: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """(before, after), without what follows from the others."""

    def leads(first: str, last: str) -> bool:
        return any(before == first or (before not in OPTIONAL and leads(first, before)) for before in graph[last])

    return [
        (before, rule)
        for rule, befores in graph.items()
        for before in befores
        if not any(other != before and other not in OPTIONAL and leads(before, other) for other in befores)
    ]


def places(rows: Sequence[Sequence[str]], edges: Sequence[tuple[str, str]]) -> tuple[dict[str, tuple[float, float]], int]:
    """Upper left corner of each rule, and of the gap that an edge passes in a row, which is called by both; how many columns."""
    depth = {rule: line for line, row in enumerate(rows) for rule in row}
    wide = [list(row) for row in rows]
    for before, rule in edges:
        for line in range(depth[before] + 1, depth[rule]):
            wide[line].insert(len(wide[line]) // 2, f"{before} {rule} {line}")
    across = max(map(len, wide))
    at = {
        name: (EDGE + ((across - len(row)) / 2 + column) * ACROSS, float(EDGE + line * DOWN))
        for line, row in enumerate(wide)
        for column, name in enumerate(row)
    }
    return at, across


def curve(points: Sequence[tuple[float, float]]) -> str:
    """Down from point to point."""
    words = [f"M{points[0][0]:g},{points[0][1]:g}"]
    for (x1, y1), (x2, y2) in zip(points, points[1:], strict=False):
        middle = (y1 + y2) / 2
        words.append(f"C{x1:g},{middle:g} {x2:g},{middle:g} {x2:g},{y2:g}")
    return " ".join(words)


def picture() -> str:
    """The SVG."""
    graph, here = rules(), local_rules()
    rows, edges = layers(graph), drawn(graph)
    at, across = places(rows, edges)
    width, height = 2 * EDGE + across * ACROSS - (ACROSS - WIDTH), 2 * EDGE + (len(rows) - 1) * DOWN + HEIGHT + 34
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        "<title>The rules of Slipway, and what each waits for</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="to" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#555555"/>'
        "</marker></defs>",
    ]
    for before, rule in edges:
        gaps = [place for name, place in at.items() if name.startswith(f"{before} {rule} ")]
        points = [(x + WIDTH / 2, y + HEIGHT / 2) for x, y in gaps]
        points = [(at[before][0] + WIDTH / 2, at[before][1] + HEIGHT), *points, (at[rule][0] + WIDTH / 2, at[rule][1] - 2)]
        lines.append(f'<path d="{curve(points)}" fill="none" stroke="#555555" stroke-width="1.3" marker-end="url(#to)"/>')
    for rule in graph:
        x, y = at[rule]
        fill = "#e8f1e4" if rule in here else "#dfe9f7"
        dashes = ' stroke-dasharray="5 3"' if rule in OPTIONAL else ""
        lines += [
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}" stroke="#555555"{dashes}/>',
            f'<text x="{x + WIDTH / 2:g}" y="{y + 19:g}" text-anchor="middle" font-size="14" font-weight="bold">{rule}</text>',
            f'<text x="{x + WIDTH / 2:g}" y="{y + 36:g}" text-anchor="middle" font-size="12">{escape(SAID[rule])}</text>',
        ]
    y = height - EDGE
    for x, style, text in (
        (EDGE, 'fill="#e8f1e4"', "where Snakemake runs"),
        (EDGE + 190, 'fill="#dfe9f7"', "on the cluster's nodes"),
        (EDGE + 390, 'fill="none" stroke-dasharray="3 2"', "only where it is needed"),
    ):
        lines.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" {style} stroke="#555555"/>')
        lines.append(f'<text x="{x + 20}" y="{y}" font-size="12">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(picture())
