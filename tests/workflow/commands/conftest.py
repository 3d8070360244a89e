"""The command line run inside the test process, on storage and cache of the test's own."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.detection import SIGNS
from cluster.schedulers.slurm.answers import COLUMNS
from tests.workflow.report.builder import failed, make_record, write_records
from tests.workflow.study.studies import changed, write
from workflow.commands import main
from workflow.study.study import Study, load_study

FOREIGN = (*(variable for signs in SIGNS.values() for variable in signs.variables), "SLIPWAY_SITE")


class Said(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


class House:
    """A study and a site in a directory of their own."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.capsys = capsys
        self.patch = patch
        self.site = root / "here.yaml"
        self.site.write_text("storage: storage\ncache: {path: cache}\n")
        self.path = write(root, changed())

    def on_slurm(self, more: str = "") -> None:
        """Let the site be one with Slurm."""
        self.site.write_text(f"storage: storage\ncache: {{path: /local/slipway}}\nscheduler: slurm\ndevice: cpu\n{more}")

    def study(self, **changes: Any) -> Study:
        """Change the study; the new one."""
        self.path = write(self.root, changed(**changes))
        return self.load()

    def load(self) -> Study:
        """The study as it is now."""
        return load_study(self.path, str(self.site), {})

    def __call__(self, *words: str) -> Said:
        """`slipway WORDS` with our study and site."""
        self.capsys.readouterr()
        command = words[0] if words[0] not in ("dataset", "cache") else " ".join(words[:2])
        extra = ["--site", str(self.site)]
        if command in ("plan", "status", "submit", "run", "check-frameworks"):
            words = (words[0], str(self.path), *words[1:])
        elif command not in ("cache ls", "cache rm", "reap"):
            extra += ["--study", str(self.path)]
        code = main.run([*words, *extra])
        return Said(code, *self.capsys.readouterr())

    def json(self, *words: str) -> Any:
        """The same with --json, parsed."""
        said = self(*words, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    def record(self, run_id: str, status: str, attempt: int = 1, published: bool = True, **more: Any) -> Path:
        """An attempt on storage, as a supervisor leaves it; its directory."""
        study = self.load()
        run = next(run for run in study.runs if run.run_id == run_id)
        make = make_record if status == "ok" else partial(failed, status=status)
        write_records(study.results_dir, [make(run.cell.to_json(), run.repeat, attempt=attempt, study=study.name, **more)])
        if not published:
            study.record_path(run_id).unlink()
        directory = study.results_dir / "runs" / run_id / "attempts" / str(attempt)
        (directory / "logs").mkdir()
        return directory


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> House:
    """A house outside of any job."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    return House(tmp_path, capsys, monkeypatch)


@pytest.fixture
def tree() -> Callable[[Path], dict[str, int]]:
    """Every file below a directory with the time of its last change."""
    return lambda root: {str(path): path.lstat().st_mtime_ns for path in root.rglob("*")}


class Commands:
    """Commands of a scheduler, stand-ins on PATH; `script`: what was submitted."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        root.mkdir()
        monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")

    def command(self, name: str, does: str) -> None:
        (self.root / name).write_text(f"#!/bin/sh\n{does}\n")
        (self.root / name).chmod(0o755)

    @property
    def script(self) -> str | None:
        path = self.root / "script"
        return path.read_text() if path.exists() else None


class Queue(Commands):
    """Slurm's commands: what squeue shows, what sbatch was given."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, monkeypatch)
        self.command("sbatch", f"cat > {root}/script; echo 42")
        self.shows()

    def shows(self, *lines: str) -> None:
        (self.root / "queue").write_text("\n".join([*lines, ""]))
        self.command("squeue", f"cat {self.root}/queue")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(tmp_path / "slurm", monkeypatch)


def queued(**words: str) -> str:
    """Return a line of squeue."""
    return "".join({"restarts": "0", **words}.get(key, "N/A").ljust(width) for key, _, width in COLUMNS)
