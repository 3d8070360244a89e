"""Engines that act: bare everywhere; docker, podman, apptainer and enroot as root, each with a place of its own on this machine. For
apptainer and enroot a stand-in where the real one is not here."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from containers.engines import ENGINES, STORES, Engine, Process, get_engine
from containers.images.pinning import suffix_of
from containers.node_facts import limits_here
from containers.spec import EnginePlan
from tests import images, runtimes
from tests.containers.specs import HOST_ENV, make_place, spec
from tests.workflow.run.world import World

FAKES = Path(__file__).parent / "fake"
START_LIMIT_S = 90.0
NICE = ["nice", "-n", "19"]


def run(*argv: str) -> str:
    done = subprocess.run([*NICE, *argv], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{argv}: {done.stderr[-2000:]}"
    return done.stdout


def needs(*programs: str) -> None:
    """Skip where the real ones cannot run."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing or programs)}")


class Dockerd:
    """A daemon of our own below one directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.host = f"unix://{place}/sock"
        self.start()

    def start(self) -> None:
        places = [f"--data-root={self.place}/data", f"--exec-root={self.place}/exec", f"--pidfile={self.place}/pid", f"--host={self.host}"]
        network = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*NICE, "dockerd", *places, *network, "--exec-opt=native.cgroupdriver=cgroupfs", "--log-level=warn"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        give_up = time.monotonic() + START_LIMIT_S
        while subprocess.run(["docker", "--host", self.host, "version"], capture_output=True, check=False, timeout=60).returncode:
            assert self.process.poll() is None, (self.place / "log").read_text()[-2000:]
            assert time.monotonic() < give_up, "dockerd does not answer"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """With -9. Its containerd dies with it, and as long as nobody has buried that, the next dockerd would take it for alive."""
        self.send(signal.SIGKILL)
        self.process.wait(20)
        pid_file = self.place / "exec" / "containerd" / "containerd.pid"
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        pid_file.unlink(missing_ok=True)
        (self.place / "pid").unlink(missing_ok=True)

    def stop(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        self.process.wait(60)

    def remove(self) -> None:
        self.stop()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            where = line.split()[1]
            if where.startswith(f"{self.place}/"):
                subprocess.run(["umount", "-l", where], check=False, capture_output=True)
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    needs("dockerd", "docker")
    if (why := images.missing_here()) is not None:
        pytest.skip(why)
    archive = images.base_image()
    daemon = Dockerd(Path(tempfile.mkdtemp(prefix="slipway-dockerd-")))
    try:
        run("docker", "--host", daemon.host, "load", "--input", str(archive))
        yield daemon
    finally:
        daemon.remove()


@pytest.fixture(scope="session")
def podman_home() -> Iterator[dict[str, str]]:
    """Its environment: storage of its own, with locks of its own (those in shared memory are the machine's, whatever storage they are for:
    two podmans with a storage each would wait for each other), and runc, because crun refuses the mixed cgroups of some machines."""
    needs("podman", "runc")
    if (why := images.missing_here()) is not None:
        pytest.skip(why)
    place = Path(tempfile.mkdtemp(prefix="slipway-podman-"))
    (place / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n')
    own = f'lock_type = "file"\ntmp_dir = "{place}/tmp"\n'
    (place / "containers.conf").write_text(f'[engine]\n{own}runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n')
    env = {"CONTAINERS_STORAGE_CONF": f"{place}/storage.conf", "CONTAINERS_CONF": f"{place}/containers.conf"}
    try:
        subprocess.run(
            [*NICE, "podman", "load", "--input", str(images.base_image())], env={**os.environ, **env}, check=True, capture_output=True
        )
        yield env
    finally:
        subprocess.run(["podman", "system", "reset", "--force"], env={**os.environ, **env}, check=False, capture_output=True, timeout=120)
        shutil.rmtree(place, ignore_errors=True)


ACTING = [pytest.param(name, marks=[] if name == "bare" else [pytest.mark.slow]) for name in ENGINES]
REAL = ("apptainer", "enroot")
OF_ENROOT = (
    "test_a_run_of_two_nodes_and_four_ranks",
    "test_a_client_that_is_killed_is_named",
    "test_gpus_that_an_engine_cannot_hide_are_in_the_record",
)
"""Its whole runs that are not `long`: it is like apptainer in most."""
STAND_IN = "SLIPWAY_TEST_STAND_IN"
"""Set where the engine is one of FAKES."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of = item.callspec.params.get("acting") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
        if of == "enroot" and item.path.name in ("test_runs.py", "test_program_runs.py") and item.originalname not in OF_ENROOT:
            item.add_marker(pytest.mark.long)


IN_STORES = pytest.mark.parametrize("acting", list(STORES), indirect=True)
"""For tests of what only engines do whose containers are not processes of whoever starts them."""


@pytest.fixture(params=ACTING)
def acting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that can be started here; the others are skipped, with the reason."""
    name: str = request.param
    if name == "docker":
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("dockerd").host)
    elif name == "podman":
        for key, value in request.getfixturevalue("podman_home").items():
            monkeypatch.setenv(key, value)
    elif name == "pyxis":
        pytest.skip("is a step of a job of Slurm: tests/slurm/test_pyxis.py")
    elif name in REAL:
        path, own = runtimes.path_of(name), runtimes.environment(name)
        if path is None:
            path, own = f"{FAKES}:{os.environ['PATH']}", {STAND_IN: "yes"}
        needs("unshare", "mount", "chroot")
        for key, value in {"PATH": path, **own}.items():
            monkeypatch.setenv(key, value)
    return get_engine(name)


@pytest.fixture
def image(acting: Engine, tmp_path: Path) -> str:
    """What is on this machine for it."""
    if acting.NAME not in REAL:
        return images.BASE
    if STAND_IN in os.environ:
        file = tmp_path / f"image{suffix_of(acting.NAME)}"
        file.write_text("stands for this machine's own system\n")
        return str(file)
    if (why := images.missing_here()) is not None:
        pytest.skip(why)
    return str(runtimes.image_of(acting.NAME, images.base_image()))


Begin = Callable[..., list[Process]]


@pytest.fixture
def begin(acting: Engine, image: str, tmp_path: Path) -> Iterator[Begin]:
    """Start commands, each as a process of one container of the image. They are closed and it is removed in the end, twice."""
    make_place(tmp_path)
    plans: list[EnginePlan] = []
    processes: list[Process] = []

    def begin_all(*commands: tuple[str, ...], **changes: object) -> list[Process]:
        plans.append(acting.plan(spec(tmp_path, *commands, **{"image": image, "limits": limits_here(), **changes}), HOST_ENV))
        processes.extend(acting.start(plans[-1], index) for index in range(len(plans[-1].processes)))
        return processes

    yield begin_all
    for process in processes:
        process.close()
    for plan in (*plans, *plans):
        acting.remove(plan)


@pytest.fixture
def world(tmp_path: Path, acting: Engine, image: str) -> Iterator[World]:
    if acting.NAME == "bare":
        pytest.skip("tests/workflow/run is about bare")
    world = World(tmp_path)
    world.site |= {"engine": acting.NAME, "images": {"fake": image}}
    yield world
    world.close()
