"""False alarms of `slipway lint-table` in tables that hold, and changed numbers that it misses.

    python -m benchmarks.lint_table [--seeds 300] [--changed 60]

It makes tables of five kinds in five forms, each by a seed, and changes each number of some of them alone. What is understood, holds and
is found in files tells `slipway lint-table FILE...` itself.
"""

import argparse
import random
import tempfile
from pathlib import Path

from tests.extras.lint_table.tables import FORMS, TABLES
from tests.extras.lint_table.test_mutations import findings, mutations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--changed", type=int, default=60)
    given = parser.parse_args()
    alarms = total = missed = 0
    with tempfile.TemporaryDirectory() as directory:
        for kind, seed in ((kind, seed) for kind in TABLES for seed in range(given.seeds)):
            form, table = list(FORMS)[seed % len(FORMS)], TABLES[kind](seed)
            alarms += bool(findings(table, Path(directory), form))
            for other, rules, _ in mutations(table, random.Random(seed)) if seed < given.changed else ():
                total += 1
                missed += not {one.rule for one in findings(other, Path(directory), form)} & rules
    print(f"{given.seeds * len(TABLES)} tables that hold: {alarms} with a finding; {total} changed numbers: {missed} without")


if __name__ == "__main__":
    main()
