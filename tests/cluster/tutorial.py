"""The scheduler of CONTRIBUTING.md as its reader would write it, and the four commands of its cluster."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from cluster import schedulers
from cluster.schedulers import SCHEDULERS

PAGE: Final = Path(__file__).parents[2] / "CONTRIBUTING.md"
FILE: Final = re.compile(r"^`toy/(\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND: Final = f'''#!{sys.executable}
"""The commands of Toy, whose jobs never start by themselves; its queue is a file beside it."""
import json, pathlib, subprocess, sys
queue = pathlib.Path(__file__).with_name("queue.json")
jobs = json.loads(queue.read_text()) if queue.exists() else []
what, *words = sys.argv[1:]
if what == "submit":
    text = sys.stdin.read()
    given = dict(line[7:].split(" ", 1) for line in text.splitlines() if line.startswith("#TOY --"))
    if int(given["nodes"]) > 4:
        sys.exit("no four nodes")
    job = dict(id=len(jobs) + 1, name=given["name"], state="queued", nodes="", comment=given.get("comment", ""), ended_by=None)
    jobs.append(job)
    print("job", job["id"])
elif what == "list":
    print(*(json.dumps(job) for job in jobs if not words or str(job["id"]) in words), sep="\\n", end="")
elif what == "cancel":
    for job in jobs:
        if str(job["id"]) in words:
            job.update(state="ended", ended_by="cancelled")
elif what == "on":
    sys.exit(subprocess.run(words[1:], env={{"TOY_NODE": words[0]}}).returncode)
queue.write_text(json.dumps(jobs))
'''


def files() -> dict[str, str]:
    return dict(FILE.findall(PAGE.read_text()))


@contextmanager
def installed(place: Path, *, command: bool = True) -> Iterator[None]:
    """The package `cluster.schedulers.toy`, and its command, below `place`, while this lasts."""
    package = place / "schedulers" / "toy"
    package.mkdir(parents=True)
    for name, text in files().items():
        (package / name).write_text(text)
    program = place / "bin" / "toy"
    program.parent.mkdir()
    program.write_text(COMMAND)
    program.chmod(0o755 if command else 0o644)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedulers, "__path__", [*schedulers.__path__, str(package.parent)])
        patch.setitem(SCHEDULERS, "toy", "cluster.schedulers.toy")
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        try:
            yield
        finally:
            for module in [name for name in sys.modules if name.startswith("cluster.schedulers.toy")]:
                del sys.modules[module]
            vars(schedulers).pop("toy", None)
