"""What the engines will execute, word by word; UPDATE_GOLDEN=1 writes the golden files anew."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from base.errors import UnsupportedRequest
from containers.engines import get_engine
from containers.engines.docker_podman import group_text, passwd_text
from containers.spec import ContainerPlan, User
from tests.containers.specs import HOST_ENV, USER, spec

GOLDEN = Path(__file__).parents[1] / "golden" / "containers"
PLACE = Path("/ssd/runs/run-a1-n0")
LABELS = (("slipway.job", "slurm:42:0"), ("slipway.user", "1234"))
LIMITS = (("memlock", -1), ("nofile", 65536), ("stack", 64 << 20))
CPU: dict[str, Any] = {"labels": LABELS, "limits": LIMITS, "memory_bytes": 64 << 30, "cores": (0, 1, 4), "shm_bytes": 32 << 30}
UUIDS = ("GPU-8f1a", "MIG-77c2")
CUDA = {**CPU, "device": "cuda", "gpus": UUIDS, "devices": ("/dev/infiniband",), "image_id": "sha256:beef"}
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{f"{engine}-cpu": (engine, CPU) for engine in ("docker", "podman", "apptainer", "enroot", "pyxis")},
    **{f"{engine}-cuda": (engine, CUDA) for engine in ("docker", "podman", "apptainer", "enroot")},
    "pyxis-cuda": ("pyxis", {**CUDA, "image_id": "slipway-u1234-0123456789ab-n7-c0ffee"}),
    "docker-cuda-cdi": ("docker", {**CUDA, "cdi": True}),
    "podman-rootless": ("podman", {**CUDA, "rootless": True}),
    **{f"{engine}-alone": (engine, {**CPU, "network": "none"}) for engine in ("docker", "podman", "apptainer", "enroot", "pyxis")},
    "docker-user": ("docker", {**CUDA, "rootless": True}),
}


def container(engine: str, **changes: Any) -> ContainerPlan:
    found = get_engine(engine).plan(spec(PLACE, name=PLACE.name, **changes), HOST_ENV).container
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_command_is_the_golden_one(case: str) -> None:
    engine, changes = CASES[case]
    text = "".join(f"{word}\n" for word in container(engine, **changes).run)
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "enroot", "pyxis"])
def test_a_secret_is_nowhere_and_the_ranks_environment_in_no_command(engine: str) -> None:
    plan = container(engine, **CUDA, env=(("SLIPWAY_MASTER_ADDR", "10.0.0.7"),))
    words = " ".join((*plan.run, *plan.remove, *plan.find))
    assert "canary" not in words + str(plan.files)
    assert "10.0.0.7" not in words
    assert "10.0.0.7" in dict(plan.files)["plan.json"]


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "enroot", "pyxis"])
def test_inside_no_number_of_a_gpu_of_the_host_is_left(engine: str) -> None:
    env = dict(get_engine(engine).plan(spec(PLACE, name=PLACE.name, **CUDA), HOST_ENV).processes[0].env)
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f1a,MIG-77c2"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "PATH" not in env, "the image's own"
    assert (env["HOME"], env["USER"], env["TMPDIR"]) == ("/tmp/home", "ada", "/tmp")


def test_a_place_that_enroot_s_command_line_cannot_carry_is_refused() -> None:
    for place in ("/ssd/a:b", "/ssd/a b"):
        with pytest.raises(UnsupportedRequest, match="must be a path without colon or space"):
            get_engine("enroot").plan(spec(Path(place)), {})


def test_a_step_of_pyxis_takes_nothing_of_the_node_program_s_own_step() -> None:
    own = {**HOST_ENV, "SLURMD_NODENAME": "n7", "SLURM_CPUS_ON_NODE": "12", "SLURM_MEM_PER_CPU": "100", "SLURM_CONF": "/c"}
    plan = get_engine("pyxis").plan(spec(PLACE, name=PLACE.name, **CUDA), own).container
    assert plan is not None
    before, step = plan.run[: plan.run.index("srun")], plan.run[plan.run.index("srun") :]
    unset = [word for word in before if word.startswith("--unset")]
    assert unset == ["--unset=SLURMD_NODENAME", "--unset=SLURM_CPUS_ON_NODE", "--unset=SLURM_MEM_PER_CPU"]
    assert {"--jobid=3", "--nodelist=n7", "--cpus-per-task=12", "--gres=gpu:2"} <= set(step)
    with pytest.raises(UnsupportedRequest, match="must be a path without colon or space"):
        get_engine("pyxis").plan(spec(Path("/ssd/a b")), {})


def test_the_watchdog_is_told_all_it_needs() -> None:
    plan = json.loads(dict(container("podman", **CUDA, deadline=17.5, umask=0o027).files)["plan.json"])
    processes = plan.pop("processes")
    assert plan == {
        "beat": "/slipway/beat",
        "beat_s": 20.0,
        "deadline": 17.5,
        "grace_s": 5.0,
        "home": "/tmp/home",
        "umask": 0o027,
        "list_gpus": True,
    }
    assert (processes[0]["argv"], processes[0]["cwd"]) == (["python3", "/slipway/program/program.py"], "/slipway/out")


@pytest.mark.parametrize("sign", [",", '"', "\n"])
def test_a_path_that_cannot_be_mounted_is_refused(sign: str) -> None:
    place = Path(f"/ssd/a{sign}b")
    with pytest.raises(UnsupportedRequest, match="absolute path without comma"):
        get_engine("docker").plan(spec(place), {})


def test_without_image_or_user_there_is_no_container() -> None:
    for engine, missing in (("docker", "image"), ("podman", "user"), ("apptainer", "image"), ("enroot", "image"), ("pyxis", "image")):
        with pytest.raises(UnsupportedRequest, match="only bare"):
            container(engine, **{missing: None})
    assert container("apptainer", user=None)


def test_the_user_has_a_name_and_groups() -> None:
    assert "ada:x:1234:1234::/tmp/home:/bin/sh\n" in passwd_text(USER)
    assert group_text(USER).splitlines()[2:] == ["ada:x:1234:", "gpu:x:55:ada", "cluster:x:77:ada"]
    root = User(uid=0, name="root", groups=((0, "root"),))
    assert passwd_text(root).count(":0:0:") == 1
    with pytest.raises(ValueError, match="groups"):
        dataclasses.replace(USER, groups=())
