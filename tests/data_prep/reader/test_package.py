"""The reader as a program sees it: alone on the path, old syntax, and workers that end with their parent."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_prep.reader.small import image_dataset

READER = Path(__file__).parents[3] / "data_prep" / "reader"
MODULES = sorted(READER.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_syntax_is_that_of_python_3_6(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in imports if node.module == "__future__"]  # annotations came with 3.7
    newer = {"dataclasses", "functools", "importlib.metadata", "importlib.resources", "contextvars"}
    assert not [node for node in imports if node.module in newer]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_numpy_and_itself_are_imported(path: Path) -> None:
    allowed = {"numpy"} | set(sys.stdlib_module_names) | ({"torch"} if path.stem == "torch" else set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            assert node.module.split(".")[0] in allowed


@pytest.mark.processes
@pytest.mark.parametrize("left_out", ["nothing", "libpixels.so"])
def test_it_works_under_its_name_on_a_programs_path(tmp_path: Path, left_out: str) -> None:
    """Also where nothing is compiled for the machine."""
    import numpy as np

    root = image_dataset(tmp_path, [(np.full((2, 2, 3), index, np.uint8), index) for index in range(4)])
    shutil.copytree(READER, tmp_path / "lib" / "slipway_reader", ignore=shutil.ignore_patterns(left_out))
    program = "import slipway_reader, sys; print(slipway_reader.open_dataset(sys.argv[1]).split('train').read(3)[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, root],
        env={"PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.processes
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(READER)!r})\n"
        "import parent_process as module\n"
        "reader, writer = os.pipe()\n"
        "worker = os.fork()\n"
        "if worker == 0:\n"
        "    module.die_with_parent(os.getppid())\n"
        "    os.write(writer, b'x')\n"
        "    signal.pause()\n"
        "os.read(reader, 1)\n"
        "print(worker, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        handle = os.pidfd_open(worker)
        process.send_signal(signal.SIGKILL)
        import select

        assert select.select([handle], [], [], 10)[0]
        os.close(handle)


@pytest.mark.processes
def test_a_worker_that_lost_its_parent_already_ends() -> None:
    from data_prep.reader import die_with_parent

    child = os.fork()
    if child == 0:
        die_with_parent(os.getpid())  # anything that is not our parent
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
