"""What `slipway lint-table` finds: false alarms in tables that hold, changed numbers that it misses, and the findings in files.

    python -m benchmarks.lint_table [--seeds 300] [--changed 60]
    python -m benchmarks.lint_table --files DIR

The first makes tables of five kinds in six forms, each by a seed, and changes each number of some of them alone. The second counts what
is understood, holds and is found in all Markdown, CSV and HTML files below a directory, and prints each finding to be looked at.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from base.errors import ConfigError
from extras.lint_table.columns import understand
from extras.lint_table.ratios import meanings
from extras.lint_table.reading import read_tables
from extras.lint_table.rules import check_table
from tests.extras.lint_table.tables import FORMS, TABLES
from tests.extras.lint_table.test_mutations import findings, mutations


def made(seeds: int, changed: int) -> str:
    alarms = total = missed = 0
    with tempfile.TemporaryDirectory() as directory:
        for kind, seed in ((kind, seed) for kind in TABLES for seed in range(seeds)):
            form, table = list(FORMS)[seed % len(FORMS)], TABLES[kind](seed)
            alarms += bool(findings(table, Path(directory), form))
            for other, rules, _ in mutations(table, random.Random(seed)) if seed < changed else ():
                total += 1
                missed += not {one.rule for one in findings(other, Path(directory), form)} & rules
    return f"{seeds * len(TABLES)} tables that hold: {alarms} with a finding; {total} changed numbers: {missed} without"


def read(directory: Path) -> str:
    rules: Counter[str] = Counter()
    tables = understood = holds = fails = 0
    for path in sorted(path for path in directory.rglob("*") if path.suffix in (".md", ".csv", ".html") and path.is_file()):
        try:
            found = [understand(table) for table in read_tables(path)]
        except ConfigError as error:
            print(error)
            continue
        for table in found:
            meant = meanings(table)
            tables, understood = tables + 1, understood + bool(meant)
            holds, fails = holds + sum(len(one.holds) for one in meant), fails + sum(len(one.fails) for one in meant)
            for one in check_table(table, meant):
                rules[one.rule] += 1
                print(one)
    counts = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
    return (
        f"{tables} tables, {understood} with numbers that are understood: {holds} hold, {fails} do not; {rules.total()} findings: {counts}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--changed", type=int, default=60)
    parser.add_argument("--files", type=Path)
    given = parser.parse_args()
    print(read(given.files) if given.files else made(given.seeds, given.changed))


if __name__ == "__main__":
    main()
