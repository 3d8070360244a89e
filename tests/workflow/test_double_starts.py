"""A few double starts; `python -m tests.workflow.double_starts` counts many."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workflow.double_starts import LIMIT_S, SITE, Place, snakemakes, supervisors
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("retry", [False, True])
def test_of_two_supervisors_at_once_one_trains(tmp_path: Path, retry: bool) -> None:
    world = World(tmp_path)
    try:
        assert supervisors(world, retry, delay_s=0) == []
    finally:
        world.close()


@pytest.mark.long
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("retry", [False, True])
def test_of_two_snakemakes_at_once_each_run_is_trained_by_one(tmp_path: Path, two: bool, retry: bool) -> None:
    place = Place(tmp_path, retry)
    assert snakemakes(place, two, retry, delay_s=0) == [], (tmp_path / "output").read_text()


STUDY = """
study: two
programs:
  waits: {folder: program, command: [sh, "{folder}/waits.sh"], launcher: single, events: none}
base: {program: waits, dataset: none, batch_size: 1, repeats: 2}
axes: {nodes: [1]}
"""


def test_of_two_commands_at_once_both_end_with_all_results_and_the_report(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "site.yaml").write_text(SITE)
    (tmp_path / "program").mkdir()
    go_on, results = tmp_path / "go-on", tmp_path / "storage" / "results" / "two"
    (tmp_path / "program" / "waits.sh").write_text(f"until test -e {go_on}; do sleep 0.1; done\n")

    def start(name: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "workflow.commands.main", "run", str(tmp_path / "study.yaml"), "--site", str(tmp_path / "site.yaml")]
        with (tmp_path / name).open("xb") as output:
            return subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_for(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, said()
            time.sleep(0.05)

    def said() -> str:
        return "".join((tmp_path / name).read_text() for name in ("first", "second") if (tmp_path / name).exists())

    first = start("first")
    wait_for(lambda: "train: 1 rank starts" in "".join(log.read_text() for log in results.glob("logs/waits-*-r1.log")))
    second = start("second")
    told = " is running already, attempt 1 of this run"
    wait_for(lambda: told in (tmp_path / "second").read_text())
    go_on.touch()
    assert [process.wait(LIMIT_S) for process in (first, second)] == [0, 0], said()
    for name in ("first", "second"):
        assert "2 of 2 runs ok" in (tmp_path / name).read_text()
    assert len(list(results.glob("runs/*/attempts/[!.]*/record.json"))) == 2, "each run was made once"
    (log,) = results.glob("logs/waits-*-r1.log")
    assert "push: the result goes to storage" in log.read_text(), "the second Snakemake has removed it, and its writer goes on in a new one"
    made = (results / "report.html").stat().st_mtime_ns
    assert made > max(path.stat().st_mtime_ns for path in results.glob("runs/*/record.json"))
