"""`slipway gpus` with an nvidia-smi on PATH that answers from tests/captured/nvidia-smi."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.detection import SIGNS
from tests.cluster.smi import install
from tests.workflow.commands.conftest import Said
from workflow.commands import main

pytestmark = pytest.mark.processes

VARIABLES = (*(variable for signs in SIGNS.values() for variable in signs.variables), "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME")
STEP = {"SLURM_JOB_ID": "17", "SLURM_STEP_GPUS": "1,3", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "1,3"}

Gpus = Callable[..., Said]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gpus:
    """`slipway gpus WORDS` in an environment, with the given answers of nvidia-smi."""

    def call(*words: str, environ: dict[str, str] | None = None, answers: str = "p100x8-query p100x8-list compute-apps") -> Said:
        for name in (*VARIABLES, *(name for name in os.environ if name.startswith(("SLURM_", "SGE_HGR_")))):
            monkeypatch.delenv(name, raising=False)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        if answers:
            install(tmp_path, answers.split())
        monkeypatch.setenv("PATH", str(tmp_path))
        capsys.readouterr()
        code = main.run(["gpus", *words])
        return Said(code, *capsys.readouterr())

    return call


def test_outside_of_a_job_all_are_ours(gpus: Gpus) -> None:
    said = gpus()
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == f"{os.uname().nodename}: 8 GPUs"
    assert lines[1].split() == ["bus", "uuid", "model", "granted", "used", "by"]
    assert lines[3].startswith("07:00.0  GPU-1c3b7a5e-9d21-4f60-8e07-5a1f0c27d9e1  Tesla P100-SXM2-16GB  yes      process 41207 ")
    assert sum(" yes " in line for line in lines) == 8


@pytest.mark.parametrize("environ", [STEP, {"CUDA_VISIBLE_DEVICES": "1,3"}], ids=["slurm", "no job"])
def test_those_that_were_granted_are_marked(gpus: Gpus, environ: dict[str, str]) -> None:
    said = gpus(environ=environ)
    assert said.code == 0, said.err
    assert [line.split()[0] for line in said.out.splitlines() if " yes " in line] == ["07:00.0", "0B:00.0"]


def test_it_explains_step_by_step(gpus: Gpus) -> None:
    said = gpus("--explain", environ=STEP | {"SLURMD_NODENAME": "gpu07"})
    assert said.code == 0, said.err
    steps = said.out.split("\n\n")[1].splitlines()
    assert steps[0] == "1. scheduler: slurm"
    assert steps[1] == "2. SLURM_STEP_GPUS='1,3': numbers that count all GPUs of the node in PCI order"
    assert steps[-1].endswith("at 07:00.0, GPU-3c3b7a5e-9d21-4f60-8e0b-5a1f0c27d9e3 at 0B:00.0")
    assert "srun --overlap slipway gpus --explain" in gpus("--explain", environ=STEP).out


def test_it_says_the_same_to_programs(gpus: Gpus) -> None:
    said = gpus("--json", environ=STEP, answers="p100x8-other-order-query p100x8-other-order-list compute-apps")
    value = json.loads(said.out)
    assert (value["scheduler"], value["rule"], value["refusal"]) == ("slurm", "numbers", None)
    assert [gpu["bus_id"] for gpu in value["gpus"] if gpu["granted"]] == ["00000000:07:00.0", "00000000:0B:00.0"]
    assert value["granted"] == [gpu["uuid"] for gpu in value["gpus"] if gpu["granted"]]
    assert [process["pid"] for process in value["gpus"][1]["processes"]] == [41207, 41300]


def test_what_cannot_be_decided_is_shown_and_is_14(gpus: Gpus) -> None:
    said = gpus("--explain", environ={"SLURM_JOB_ID": "17"})
    assert said.code == 14
    assert said.out.count("not known") == 8
    assert "refused: nothing says which of the 8 GPUs" in said.out
    assert said.err.startswith("slipway: nothing says which of the 8 GPUs")
    value = json.loads(gpus("--json", environ={"SLURM_JOB_ID": "17"}).out)
    assert {gpu["granted"] for gpu in value["gpus"]} == {None}


def test_mig_instances_are_listed_in_place_of_their_gpu(gpus: Gpus) -> None:
    said = gpus(answers="a100-mig-query a100-mig-list compute-apps-not-supported", environ={"LSB_JOBID": "1", "CUDA_VISIBLE_DEVICES": "1"})
    assert said.code == 14
    assert said.out.startswith(f"{os.uname().nodename}: 4 MIG instances\n")
    assert "divided by MIG" in said.err


def test_without_gpus_it_says_so(gpus: Gpus) -> None:
    for answers in ("", "no-devices"):
        said = gpus("--explain", answers=answers)
        assert said.code == 0, said.err
        assert "no GPUs show here" in said.out
        assert said.out.splitlines()[-1].endswith("granted: 0 GPUs: none")


def test_silence_about_processes_is_no_error(gpus: Gpus) -> None:
    said = gpus(answers="p100x8-query p100x8-list")
    assert said.code == 0, said.err
    assert "who uses them is not known" in said.out
