"""Answers of nvidia-smi for tests, kept in tests/captured/nvidia-smi, and an nvidia-smi on PATH that gives them."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.builders import write_command

CAPTURED = Path(__file__).parents[1] / "captured" / "nvidia-smi"


def answer(name: str) -> str:
    return str(json.loads((CAPTURED / f"{name}.json").read_text())["stdout"])


def install(directory: Path, names: Iterable[str]) -> None:
    """An executable `nvidia-smi` in `directory`, which answers each of these cases' argv, and refuses any other."""
    branches = []
    for name in names:
        case = json.loads((CAPTURED / f"{name}.json").read_text())
        branches.append(f"{shlex.quote(' '.join(case['argv'][1:]))}) printf %s {shlex.quote(case['stdout'])}; exit {case['returncode']} ;;")
    write_command(
        directory / "nvidia-smi", "\n".join(['case "$*" in', *branches, '*) echo "not asked for in this test: $*"; exit 2 ;;', "esac"])
    )
