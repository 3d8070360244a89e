"""What every engine must keep to; a new one is a line in ENGINES and is tested here. Acting is slow for all but bare: see conftest.py."""

import dataclasses
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from base.errors import ContainerError, TrainingFailed, UnsupportedRequest
from containers.engines import ENGINES, Engine, bare, get_engine, in_container
from containers.spec import ContainerSpec
from tests.containers.conftest import Begin
from tests.containers.specs import HOST_ENV, ended, output, spec


def without_data(wanted: ContainerSpec) -> ContainerSpec:
    return dataclasses.replace(wanted, paths=dataclasses.replace(wanted.paths, data=None))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return get_engine(request.param)


def test_it_is_listed_under_its_own_name(engine: Engine) -> None:
    assert get_engine(engine.NAME) is engine


def test_a_plan_is_a_value(engine: Engine, tmp_path: Path) -> None:
    wanted = spec(tmp_path)
    plan = engine.plan(wanted, HOST_ENV)
    assert plan == engine.plan(wanted, HOST_ENV)
    assert plan.engine == engine.NAME
    assert [process.ranks for process in plan.processes] == [(0,)]
    hash(plan)


def test_nothing_of_the_users_environment_comes_along_but_what_is_allowed(engine: Engine, tmp_path: Path) -> None:
    env = dict(engine.plan(spec(tmp_path), HOST_ENV).processes[0].env)
    assert "canary" not in env.values()
    assert not {"AWS_SECRET_ACCESS_KEY", "SLURM_JOB_ID"} & set(env)
    assert env["NCCL_DEBUG"] == "INFO"
    assert env["A"] == "b"
    assert env["RANK"] == "0"


def test_the_variables_of_the_contract_are_there(engine: Engine, tmp_path: Path) -> None:
    env = dict(engine.plan(spec(tmp_path), HOST_ENV).processes[0].env)
    assert {"SLIPWAY_CELL", "SLIPWAY_DATA", "SLIPWAY_LIB", "SLIPWAY_BEAT", "SLIPWAY_OUT"} <= set(env)
    assert env["PYTHONPATH"] == env["SLIPWAY_LIB"]
    assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_without_a_dataset_there_is_no_place_of_data(engine: Engine, tmp_path: Path) -> None:
    """No variable, no mount, and nothing that `{data}` stands for."""
    with_data = spec(tmp_path, ("{python}", "{data}"))
    plans = [engine.plan(wanted, HOST_ENV) for wanted in (with_data, without_data(with_data))]
    words = [" ".join(() if plan.container is None else plan.container.run) for plan in plans]
    for plan, told, has_data in zip(plans, words, (True, False), strict=True):
        assert ("SLIPWAY_DATA" in dict(plan.processes[0].env)) is has_data
        assert (plan.processes[0].argv[1] != "{data}") is has_data
        assert ("/slipway/data" in told) is (has_data and in_container(engine.NAME))


def test_exactly_the_granted_gpus_by_uuid(engine: Engine, tmp_path: Path) -> None:
    env = dict(engine.plan(spec(tmp_path, device="cuda", gpus=("GPU-a", "GPU-b")), HOST_ENV).processes[0].env)
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


@pytest.mark.processes
def test_code_and_output_come_back(begin: Begin) -> None:
    (process,) = begin(("sh", "-c", "echo to you; echo $RANK $PWD $SLIPWAY_OUT >&2; exit 7"))
    text = output(process).decode()
    assert ended(process) == 7
    assert not process.oom_kill
    rank, here, out = text.splitlines()[1].split()
    assert text.startswith("to you\n")
    assert rank == "0"
    assert here == out


@pytest.mark.processes
def test_a_signal_reaches_the_process_and_its_group(begin: Begin) -> None:
    (process,) = begin(("sh", "-c", "sleep 100 & echo up; wait"))
    assert output(process, lambda said: b"up\n" in said) == b"up\n"
    process.signal(signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    assert select.select([process.output_fd], [], [], 20)[0]
    assert os.read(process.output_fd, 100) == b"", "the sleep in the background still holds the pipe"
    process.signal(signal.SIGTERM)  # nothing is there, nothing happens


@pytest.mark.processes
def test_a_command_that_is_not_there_is_an_error(begin: Begin) -> None:
    with pytest.raises((ContainerError, TrainingFailed), match=r"rank-0.*/nowhere/python"):
        ended(begin(("/nowhere/python",))[0])


def test_bare_fills_in_its_own_interpreter(tmp_path: Path) -> None:
    plan = bare.plan(spec(tmp_path), HOST_ENV)
    assert plan.processes[0].argv == (sys.executable, f"{tmp_path}/folder/program.py")
    assert plan.processes[0].cwd == str(tmp_path / "out")
    of_image = dataclasses.replace(spec(tmp_path), python="/opt/conda/bin/python")
    assert bare.plan(of_image, HOST_ENV).processes[0].argv[0] == sys.executable
    assert bare.plan(dataclasses.replace(of_image, bare_python="/mine/python"), HOST_ENV).processes[0].argv[0] == "/mine/python"


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UnsupportedRequest, match=f"'bear' is not here yet; valid: {', '.join(sorted(ENGINES))}"):
        get_engine("bear")


@pytest.mark.parametrize(
    ("commands", "changes", "words"),
    [
        (((),), {}, "must not be empty"),
        ((("a\nb",),), {}, "newline"),
        ((("a\0b",),), {}, "zero byte"),
        ((), {"device": "cuda"}, "no gpus"),
    ],
)
def test_a_specification_that_cannot_be_is_refused(tmp_path: Path, commands: Any, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec(tmp_path, *commands, **changes)


def test_a_rank_is_named_once(tmp_path: Path) -> None:
    once = spec(tmp_path).processes[0]
    with pytest.raises(ValueError, match="twice"):
        ContainerSpec(name="x", image=None, python="p", processes=(once, once), paths=spec(tmp_path).paths, device="cpu", gpus=(), cores=())
