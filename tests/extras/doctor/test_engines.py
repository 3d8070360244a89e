"""What `slipway doctor` says of engines."""

from dataclasses import replace
from pathlib import Path

import pytest

from extras.doctor import engines
from extras.doctor.engines import Engine, judge_engines
from extras.doctor.types import Context, worst
from workflow.study.site import local_site


@pytest.mark.parametrize(
    ("wanted", "found", "level", "words"),
    [
        ("bare", {}, "ok", "no engine that can be used"),
        ("docker", {"docker": Engine(version="20.10.24")}, "ok", "docker 20.10.24 can be used"),
        ("docker", {"docker": Engine(version=None, trouble="permission denied")}, "error", "permission denied"),
        ("apptainer", {"podman": Engine(version="4.3.1")}, "error", "not on PATH"),
        ("bare", {"docker": Engine(version=None, trouble="no daemon")}, "note", "cannot be used: no daemon"),
    ],
)
def test_engines(wanted: str, found: dict[str, Engine], level: str, words: str) -> None:
    findings = list(judge_engines(found, wanted))
    assert worst(findings) == level
    assert any(words in finding.text for finding in findings), findings


@pytest.mark.processes
@pytest.mark.parametrize(
    ("says", "here"), [("Options provided by plugins:\n      --container-image=PATH\n", True), ("Usage: srun\n", False)]
)
def test_an_engine_that_is_an_option_of_srun_is_here_where_srun_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, here: bool
) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/sh\nif [ "$1" = --help ]; then printf "%s" "{says}"; else echo slurm-wlm 22.05.8; fi\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    context = Context(site=replace(local_site(has_gpu=False), engine="pyxis"), place="alone", hostname="h", scheduler="local")
    (found, *_) = engines.check_engines(context)
    assert (found.level == "ok") is here
    assert ("tells no option --container-image" in found.text) is not here
