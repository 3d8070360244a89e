"""A site whose scheduler's commands are not on this machine: said at once, with what to do, and nothing is left."""

from pathlib import Path

import pytest

from cluster.installation import FILES
from workflow.commands.main import run

TITLES = {"slurm": "Slurm", "pbs": "PBS", "sge": "Grid Engine", "lsf": "LSF"}
MORE = {"sge": "parallel_environment: mpi\n"}
COMMANDS = {"plan": ("plan", "{study}"), "run": ("run", "{study}"), "submit": ("submit", "{study}"), "session": ("session", "run")}
CASES = [*((scheduler, "plan") for scheduler in TITLES), *(("slurm", name) for name in COMMANDS if name != "plan")]


@pytest.mark.processes
@pytest.mark.parametrize(("scheduler", "name"), CASES)
def test_it_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheduler: str, name: str
) -> None:
    site = tmp_path / "site.yaml"
    more = MORE.get(scheduler, "")
    site.write_text(f"storage: {tmp_path}/s\ncache: {{path: {tmp_path}/c}}\nscheduler: {scheduler}\nengine: bare\ndevice: cpu\n{more}")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "nothing"))
    words = [word.format(study=FILES / "config" / "study.yaml") for word in COMMANDS[name]]
    assert run([*words, "--site", str(site), *(["--", "true"] if name == "session" else [])]) == 13
    said = capsys.readouterr().err
    assert f"{TITLES[scheduler]} has no command `" in said
    assert "scheduler: local" in said
    assert not list(tmp_path.rglob("*.log"))
    assert not (tmp_path / "s" / "sessions").exists()
