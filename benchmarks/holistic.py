"""The breakdown of traces by `slipway profile` against that of HolisticTraceAnalysis.

    python -m benchmarks.holistic [--environment DIR] [--no-install] [FILE ...]

HolisticTraceAnalysis 0.5 is no dependency of Slipway (104 packages, 500 MB). It is installed into DIR, an environment of its own, unless it
is there; where it cannot be, or with --no-install, nothing is compared, which is said. FILE: traces of torch.profiler of one rank, the
captured ones by default. Printed for each: how many figures were compared (temporal breakdown, idle time of each stream by its cause,
types of kernels and what of them overlaps), and those that differ by more than 1 % and a microsecond. Exit code 1 where there are such.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any, Final

from workflow.report.profile.profile import profile_of
from workflow.report.profile.trace import read_trace

PACKAGE: Final = "HolisticTraceAnalysis==0.5.0"
CAPTURED: Final = Path(__file__).parents[1] / "tests" / "captured" / "gpu"
MAX_APART: Final = 0.01
ROUNDING_MS: Final = 0.001
THEIRS: Final = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
temporal = trace.get_temporal_breakdown(visualize=False).to_dict("records")
idle = trace.get_idle_time_breakdown(ranks=[0], visualize=False)[0].to_dict("records")
kinds = trace.get_gpu_kernel_breakdown(visualize=False)[0].to_dict("records")
print(json.dumps({"temporal": temporal, "idle": idle, "kinds": kinds}, default=str))
"""


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "slipway-holistic")
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(CAPTURED.glob("*.json.gz")))
    options = parser.parse_args()
    python = options.environment / "bin" / "python"
    if problem := _installed(python, options.environment, may_install=not options.no_install):
        print(f"nothing is compared: {PACKAGE} is not in {options.environment}: {problem}")
        return 0
    apart = 0
    for file in options.files:
        ours, theirs = _ours(file), _theirs(python, file)
        names = sorted(ours.keys() | theirs.keys())
        differ = [name for name in names if _differs(ours.get(name, 0.0), theirs.get(name, 0.0))]
        print(f"{file.name}: {len(names)} figures, {len(differ)} differ")
        for name in differ:
            print(f"  {name}: {ours.get(name, 0.0):.3f} ms, HolisticTraceAnalysis {theirs.get(name, 0.0):.3f} ms")
        apart += len(differ)
    return int(apart > 0)


def _installed(python: Path, environment: Path, *, may_install: bool) -> str:
    """Make sure that the package is in the environment; return why it is not."""
    if subprocess.run([python, "-c", "import hta"], capture_output=True).returncode == 0 if python.exists() else False:
        return ""
    if not may_install:
        return "--no-install"
    venv.create(environment, with_pip=True)
    done = subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def _theirs(python: Path, file: Path) -> dict[str, float]:
    """Return the figures of HolisticTraceAnalysis, in ms."""
    done = subprocess.run(
        [python, "-c", THEIRS, str(file.absolute())], capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"}
    )
    if done.returncode:
        sys.exit(f"{file}: HolisticTraceAnalysis failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.strip().splitlines()[-1])
    figures = {name.removesuffix("_time(us)"): value for row in found["temporal"] for name, value in row.items() if name.endswith("(us)")}
    figures |= {f"stream {row['stream']} {row['idle_category']}": row["idle_time"] for row in found["idle"]}
    figures |= {row["kernel_type"].lower().replace(" overlapping ", "_"): row["sum"] for row in found["kinds"]}
    return {name: float(value) / 1000 for name, value in figures.items()}


def _ours(file: Path) -> dict[str, float]:
    """Return the same figures by `slipway profile`, in ms."""
    found = profile_of(read_trace(file)).breakdown
    if found is None:
        sys.exit(f"{file}: a trace without kernels")
    temporal = found.temporal
    figures = {"idle": temporal.idle_ms, "compute": temporal.compute_ms, "non_compute": temporal.non_compute_ms}
    figures["kernel"] = temporal.kernel_time_ms
    for one in found.idle:
        for cause in ("host_wait", "kernel_wait", "other"):
            figures[f"stream {one.stream} {cause}"] = getattr(one, f"{cause}_ms")
    for name in found.kernels.__struct_fields__:
        if name.endswith("_ms"):
            figures[name.removesuffix("_ms")] = getattr(found.kernels, name)
    return figures


def _differs(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) > max(ROUNDING_MS, MAX_APART * max(abs(ours), abs(theirs)))


if __name__ == "__main__":
    sys.exit(main())
