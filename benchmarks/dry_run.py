"""What planning costs: `snakemake -n` of many runs against a plain one-rule Snakefile of as many jobs, `slipway plan`, `slipway --help`.

    python -m benchmarks.dry_run [--runs 10000] [--repeats 5]

The two Snakefiles take turns, so that a drifting machine touches both; medians and the median of the pairwise ratios are printed, of wall
time and of processor time, children included: the latter says more on a machine that others use.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent

PLAIN = """
RUNS = [f"run{{index:05d}}" for index in range({runs})]
rule all:
    input: expand("out/{{run}}/record.json", run=RUNS)
rule train:
    output: "out/{{run}}/record.json"
    shell: "touch {{output}}"
"""

STUDY = """
study: many
datasets:
  noise: {{source: synthetic, size: 32, channels: grey, shards: 2}}
base: {{framework: pytorch, dataset: noise, steps: {{warmup: 1, measured: 2}}, repeats: {repeats}}}
axes:
  model: [lenet, resnet18]
  batch_size: {batches}
  nodes: [1, 2]
baseline: {{nodes: 1}}
limits: {{walltime: 1m, gpu_hours: 100000}}
"""


def seconds(argv: list[str], cwd: Path) -> tuple[float, float]:
    """Wall and processor time of one command, which must succeed."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, "SLIPWAY_SITE": str(cwd / "site.yaml")}
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "plain.smk").write_text(PLAIN.format(runs=arguments.runs))
        (place / "study.yaml").write_text(STUDY.format(repeats=arguments.runs // 40, batches=list(range(1, 11))))
        (place / "site.yaml").write_text("{storage: storage, cache: {path: cache}, engine: bare, scheduler: local}\n")
        snakemake = [str(BIN / "snakemake"), "-n", "-q", "--cores", "2"]
        plain = [*snakemake, "-s", "plain.smk"]
        ours = [*snakemake, "-s", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles" / "local"), "--configfile", "study.yaml"]
        plan = [str(BIN / "slipway"), "plan", "study.yaml"]
        usage = [str(BIN / "slipway"), "--help"]
        rows = [[seconds(argv, place) for argv in (plain, ours, plan, usage)] for _ in range(arguments.repeats)]
    for number, kind in enumerate(("wall", "processor")):
        medians = [statistics.median(each[number] for each in column) for column in zip(*rows, strict=True)]
        ratio = statistics.median(row[1][number] / row[0][number] for row in rows)
        print(f"{kind} time: snakemake -n, {arguments.runs} runs: plain {medians[0]:.2f} s, Slipway {medians[1]:.2f} s, ratio {ratio:.2f}")
        print(f"  slipway plan: {medians[2]:.2f} s; slipway --help: {medians[3]:.3f} s; median of {arguments.repeats}")


if __name__ == "__main__":
    main()
