"""Whole runs in containers: supervisor, node program, engine, watchdog, ranks. What is left is looked for from outside."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from cluster import processes
from containers.engines import STORES, Engine
from containers.engines.docker_podman import remove_argv
from containers.program_folder import look_at
from containers.spec import TAG
from tests.cluster import smi
from tests.containers.conftest import Dockerd
from tests.minicluster.gpus import STAND_INS
from tests.workflow.run.hostile import a_pipe_freezes_nobody, links_lead_nowhere
from tests.workflow.run.test_programs import LOOP, program
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import ROOT, World

pytestmark = pytest.mark.slow
FOREIGN = "slipway-test-foreign"


def containers(engine: str) -> list[str]:
    """Names of all with our label, in whatever state."""
    if engine not in STORES:
        return []
    argv = [engine, "ps", "--all", "--filter", f"label={TAG}", "--format", "{{.Names}}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def wait_until_clean(world: World, engine: str) -> None:
    """Until nothing of ours is left: no container, no process. How long that takes: tests.endings."""
    world.wait_for(lambda: not containers(engine) and not ranks(world))


def ranks(world: World) -> list[int]:
    """Processes in containers of this world: their work directory names it."""
    return [pid for pid in pids_of("program.py") if str(world.path) in mounts_of(pid)]


def pids_of(word: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=False).stdout.split()
    return [int(pid) for pid in found]


def mounts_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return ""


@pytest.fixture
def foreign(acting: Engine) -> Iterator[None]:
    """Somebody else's container, which stays alive whatever we do."""
    if acting.NAME not in ("docker", "podman"):
        yield
        return
    image = "slipway-test/base:bookworm"
    argv = [acting.NAME, "run", "--detach", "--rm", "--network", "host", "--ulimit", "nofile=1000:1000", "--ulimit", "nproc=1000:1000"]
    subprocess.run([*argv, "--name", FOREIGN, image, "sleep", "600"], check=True, capture_output=True, timeout=120)
    try:
        yield
        running = [acting.NAME, "ps", "--filter", f"name={FOREIGN}", "--format", "{{.Names}}"]
        assert subprocess.run(running, capture_output=True, text=True, check=True, timeout=60).stdout.split() == [FOREIGN]
    finally:
        subprocess.run(remove_argv(acting.NAME, FOREIGN), check=False, capture_output=True, timeout=60)


def test_a_run_of_two_nodes_and_four_ranks(world: World, acting: Engine, foreign: None) -> None:
    """Whose ranks see the file of parameters that the cell names: the program compares its size."""
    run_id = world.cell(2, 2)
    given = world.path / "start.safetensors"
    given.write_bytes(b"numbers")
    world.cells[-1]["parameters"] = given.name
    world.cells[-1]["parameters_file"] = {"path": str(given), "bytes": 7, "blake3": blake3(b"numbers").hexdigest()}
    world.write()
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    assert (record["status"], record["engine"]) == ("ok", acting.NAME), record["status_reason"]
    assert containers(acting.NAME) == []
    assert world.left() == []
    attempt = world.run_dir(run_id) / "attempts" / "1"
    assert {path.stat().st_uid for path in attempt.rglob("*")} == {os.geteuid()}


def test_a_pinned_image_is_what_runs_and_the_record_says_so(world: World, acting: Engine, image: str) -> None:
    run_id = world.cell(2, 1)
    done = subprocess.run(world.image_argv(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert world.images is not None
    (entry,) = json.loads(world.images.read_text())["images"].values()
    world.site["images"]["fake"] = "moved/elsewhere:1"  # the id is what is started
    world.write()
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    validate_record(record)
    named = {key: record["provenance"][key] for key in ("image", "image_digest", "image_id")}
    assert named == {"image": image, "image_digest": entry["image"]["digest"], "image_id": entry["image"]["image_id"]}
    assert all(node["image_s"] is not None and node["gpus_seen"] is None for node in record["nodes"])
    assert world.left() == []


def test_a_program_of_the_study_runs_in_its_own_image_from_a_copy_of_its_folder(world: World, acting: Engine, image: str) -> None:
    (world.path / "tokenizer").write_text("words")
    mounts = [{"source": str(world.path / name), "target": f"/mine/{name}", "writable": name == "notes"} for name in ("tokenizer", "notes")]
    (world.path / "notes").mkdir()
    step = (
        "open('/mine/notes/of-%s' % run.rank, 'w').write(open('/mine/tokenizer').read()); assert not os.access('/mine/tokenizer', os.W_OK)"
    )
    run_id = program(world, LOOP.format(step=step), nodes=2, each=2, image=image, mounts=mounts)
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    validate_record(record)
    assert (record["status"], record["engine"]) == ("ok", acting.NAME)
    assert record["provenance"]["program_digest"] == look_at(world.path / "train").digest
    said = (world.run_dir(run_id) / "attempts" / "1" / "logs" / "rank-3.log").read_text()
    assert said == "['/slipway/data', '8', '2'] 8 yes {'fast': True, 'width': 8}\n"
    assert {path.name: path.read_text() for path in (world.path / "notes").iterdir()} == {f"of-{rank}": "words" for rank in range(4)}
    assert world.left() == []


def test_a_command_that_the_image_has_not_is_a_result(world: World, acting: Engine, image: str) -> None:
    run_id = program(world, "", command=["no-such-trainer"], image=image)
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    assert (record["status"], record["kind"]) == ("error", "result")
    assert "'no-such-trainer' cannot be started" in record["status_reason"]
    assert f"the image {image!r} does not have it" in record["status_reason"]
    assert world.left() == []


def test_an_archive_that_is_gone_is_named_and_nothing_starts(world: World, acting: Engine) -> None:
    run_id = world.cell()
    assert subprocess.run(world.image_argv(), cwd=ROOT, check=False, timeout=300).returncode == 0
    for path in (world.storage / "images").iterdir():
        path.unlink()
    code, log = world.run(run_id)
    assert code == 19, log
    assert "load the image on local-0" in log
    assert ".json cannot be read: No such file" in log
    wait_until_clean(world, acting.NAME)


@pytest.mark.parametrize(
    ("action", "status"),
    [("exit 7", "error"), ("nan", "nan"), ("child", "ok"), ("SIGSTOP", "hang")],
    ids=["error", "nan", "child", "frozen"],
)
def test_ends_are_what_they_are_without_a_container(world: World, acting: Engine, action: Any, status: str) -> None:
    world.shorter |= {"rank_silence_s": 2.0, "node_silence_s": 20.0}
    run_id = world.cell(1, 2, do={"1": [3, action]})
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    assert record["status"] == status, log
    wait_until_clean(world, acting.NAME)
    assert world.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("victim", ["workflow.run.supervisor", "workflow.run.node"])
def test_whoever_is_killed_nothing_is_left(world: World, acting: Engine, foreign: None, victim: str, number: int) -> None:
    run_id = world.cell(1, 2, measured=100000, step_s=0.02)
    process = world.start(run_id)
    world.wait_for(lambda: world.steps(run_id) > 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    for pid in world.pids(victim):
        os.kill(pid, number)
    process.communicate(timeout=60)
    wait_until_clean(world, acting.NAME)


BETWEEN = """#!{python}
import os, signal, subprocess, sys
if sys.argv[1] != "run":
    os.execv({client!r}, [{client!r}, *sys.argv[1:]])
subprocess.run([{client!r}, "create", *(word for word in sys.argv[2:] if not word.startswith("--sig-proxy"))], check=True)
signal.pause()
"""


def test_a_container_that_was_only_created_goes_with_the_next_start_of_any_run(
    world: World, acting: Engine, foreign: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node program and client are killed between the client's `create` and its `start`."""
    client = shutil.which(acting.NAME)
    if acting.NAME not in STORES or client is None:
        pytest.skip("has no containers that outlive a job")
    run_id, another = world.cell(), world.cell(measured=7)
    shim = world.path / "bin" / acting.NAME
    shim.parent.mkdir()
    shim.write_text(BETWEEN.format(python=sys.executable, client=client))
    shim.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
        process = world.start(run_id)
    world.wait_for(lambda: containers(acting.NAME) or process.poll() is not None)
    while pids := world.processes():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    log = process.communicate()[1]
    (created,) = containers(acting.NAME)
    state = subprocess.run([acting.NAME, "inspect", "--format", "{{.State.Status}}", created], capture_output=True, text=True, check=True)
    assert state.stdout.strip() == "created", log
    code, log = world.run(another)
    assert code == 0, log
    assert f"removed the container {created}: job local:" in log
    assert containers(acting.NAME) == []


def test_a_client_that_is_killed_is_named(world: World, acting: Engine, foreign: None) -> None:
    run_id = world.cell(1, 2, measured=100000, step_s=0.02)
    process = world.start(run_id)
    world.wait_for(lambda: world.steps(run_id) > 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    (client,) = clients(world)
    servers = servers_of(client)
    assert bool(servers) is (acting.NAME not in STORES), "the image is a file, which a process of the client's serves"
    os.kill(client, signal.SIGKILL)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 16, log
    assert f"the client of {acting.NAME} that held it was killed" in log
    wait_until_clean(world, acting.NAME)
    world.wait_for(lambda: not any(processes.state_of(server) for server in servers))


def servers_of(client: int) -> list[int]:
    """Processes that serve the file of an image: squashfuse, which is not in the client's group, but in its session."""
    found = []
    for pid in pids_of("squashfuse"):
        with contextlib.suppress(ProcessLookupError):
            found += [pid] if os.getsid(pid) == client else []
    return found


def clients(world: World) -> list[int]:
    """Of engines: they begin sessions below a node program, whatever they call themselves (`Apptainer runtime parent: ...`).
    So does podman's conmon, which holds the container and is none."""
    nodes = world.pids("workflow.run.node")
    children = [state.pid for state in processes.all_processes() if state.parent in nodes]
    begun = [pid for pid in children if os.getsid(pid) == pid and pid not in nodes]
    return [pid for pid in begun if Path(f"/proc/{pid}/comm").read_text().strip() != "conmon"]


def test_a_daemon_that_is_killed_and_comes_back_is_named(tmp_path: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", dockerd.host)
    world = World(tmp_path)
    world.site |= {"engine": "docker", "images": {"fake": "slipway-test/base:bookworm"}}
    try:
        run_id = world.cell(1, 2, measured=100000, step_s=0.02)
        process = world.start(run_id)
        world.wait_for(lambda: world.steps(run_id) > 2)
        dockerd.kill()
        _, log = process.communicate(timeout=60)
        assert process.returncode == 16, log
        assert "daemon restarted" in log
        assert dockerd.host in log
        assert ranks(world) == []
        dockerd.start()
        wait_until_clean(world, "docker")
    finally:
        world.close()


def test_a_daemon_that_hangs_is_named_within_its_limit(tmp_path: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", dockerd.host)
    world = World(tmp_path)
    world.site |= {"engine": "docker", "images": {"fake": "slipway-test/base:bookworm"}}
    dockerd.send(signal.SIGSTOP)
    try:
        run_id = world.cell(1, 1)
        code, log = world.run(run_id)
    finally:
        dockerd.send(signal.SIGCONT)
        world.close()
    assert code == 16, log
    assert "does not answer: it had not ended after" in log
    wait_until_clean(world, "docker")


def test_gpus_that_an_engine_cannot_hide_are_in_the_record(
    world: World, acting: Engine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the eight of this machine is granted, and the container shows all. The others may be taken by who asks no variable."""
    if acting.NAME in STORES:
        pytest.skip("shows what was granted and nothing else")
    place = tmp_path / "bin"
    place.mkdir()
    smi.install(place, ["p100x8-query", "p100x8-list", "compute-apps"])
    shutil.copy(STAND_INS / "nvidia-container-cli", place)
    gpus = [line.split("UUID: ")[1].rstrip(")") for line in smi.answer("p100x8-list").splitlines()]
    for name, value in {"PATH": f"{place}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": gpus[2]}.items():
        monkeypatch.setenv(name, value)
    run_id = program(world, LOOP.format(step=f"assert os.environ['CUDA_VISIBLE_DEVICES'] == {gpus[2]!r}"), image=image)
    world.cells[0]["device"] = "cuda"
    world.write()
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    validate_record(record)
    assert record["status"] == "ok", log
    (node,) = record["nodes"]
    assert ([gpu["uuid"] for gpu in node["gpus"]], node["gpus_seen"]) == ([gpus[2]], gpus)
    beyond = ", ".join(uuid for uuid in gpus if uuid != gpus[2])
    told = f"local-0: the container shows 7 GPUs beyond the 1 granted ({beyond}): only CUDA_VISIBLE_DEVICES, by UUID, keeps the ranks"
    assert any(warning.startswith(told) for warning in record["warnings"]), record["warnings"]
    assert told in log


def test_links_that_a_container_plants_lead_nowhere_on_the_host(world: World) -> None:
    links_lead_nowhere(world)


def test_a_pipe_that_a_container_plants_freezes_nobody(world: World) -> None:
    a_pipe_freezes_nobody(world)
