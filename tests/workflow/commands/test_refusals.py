"""What cannot run is refused before anything starts: by `slipway plan` and by Snakemake with the same sentence and the same exit code."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import SlipwayError
from tests.nobody import as_nobody
from tests.workflow.commands.conftest import House
from workflow.dag.refusals import load_graph, why_unusable

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
SITE = "cache: {path: cache}\n"
PHOTOS = {"digits": {"source": "folder", "path": "photos", "size": 32}}


def _below_a_file(house: House) -> None:
    (house.root / "file").write_text("")
    house.site.write_text(f"{SITE}storage: file/storage\n")


def _gpus(house: House) -> None:
    house.site.write_text(f"{SITE}storage: storage\ndevice: cuda\n")


def _without(*modules: str) -> Callable[[House], object]:
    """An environment in which these modules are not installed."""

    def change(house: House) -> None:
        for module in modules:
            house.patch.setitem(sys.modules, module, None)

    return change


def _program(**keys: object) -> Callable[[House], object]:
    def change(house: House) -> None:
        (house.root / "program").mkdir()
        (house.root / "program" / "train.py").write_text("")
        program = {"folder": "program", "command": ["{python}", "{folder}/train.py"], "launcher": "ranks", **keys}
        house.study(programs={"walk": program}, base={"program": "walk"}, axes={"model": None})

    return change


def _site(text: str, **datasets: object) -> Callable[[House], object]:
    def change(house: House) -> None:
        house.site.write_text(text)
        house.study(datasets=datasets)

    return change


LARGE = {"source": "synthetic", "size": 8192, "samples": 10**9}
CASES: dict[str, tuple[Callable[[House], object], int, str]] = {
    "missing source": (lambda house: house.study(datasets=PHOTOS), 10, "datasets.digits.path: "),
    "large batch": (
        lambda house: house.study(axes={"batch_size": [900]}),
        10,
        "cannot run: a global batch of 1800 is more than the 1797 samples",
    ),
    "no torch": (_without("torch"), 10, "framework 'pytorch' needs torch, which is not installed in "),
    "no report": (_without("polars", "scipy"), 11, "tables, plots and report need polars, scipy, not installed in "),
    "no package": (
        _program(packages=["numpy", "no-such-package==1"]),
        10,
        "lacks packages that the program 'walk' needs: no-such-package==1",
    ),
    "no command": (_program(command=["no-such-command"]), 10, "'no-such-command', the command of the program 'walk', is not on the PATH"),
    "no mpirun": (_program(launcher="mpirun"), 10, "'walk' is started by mpirun, which is not on the PATH"),
    "no interpreter": (_program(python="/nowhere/python"), 10, "/nowhere/python, the `python` of the program 'walk', is not there"),
    "small cache": (
        _site(f"{SITE.replace('}', ', max_bytes: 2 TB}')}storage: s\n", digits=LARGE),
        15,
        " TB (estimated), and cache.max_bytes of the site 'here' is 2.0 TB: no node could hold it",
    ),
    "no GPU": (_gpus, 14, "device: cuda was asked, and "),
    "no engine": (
        lambda house: house.site.write_text(f"{SITE}storage: s\nengine: docker\n"),
        16,
        "site here: engine docker cannot be used: docker is not on this machine's PATH; start it, or choose another engine",
    ),
    "below a file": (_below_a_file, 22, "cannot be used: "),
}


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose nvidia-smi is not there."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_refused_as_snakemake_is(house: House, case: str) -> None:
    change, code, words = CASES[case]
    change(house)
    with pytest.raises(SlipwayError) as caught:
        load_graph({"site": str(house.site)}, [house.path], ROOT, os.environ)
    said = house("plan")
    assert (said.code, caught.value.exit_code) == (code, code)
    assert words in said.err
    assert said.err.startswith(f"slipway: {caught.value}\n"), "the plan may add that the scheduler cannot be asked"
    assert ("small: " in said.out) == (case != "missing source"), "which is refused before the plan is printed"


def test_finished_runs_are_not_looked_at(house: House) -> None:
    study = house.study(axes={"batch_size": [900], "nodes": [1, 2]})
    for run in study.runs:
        if run.cell.nodes == 2:
            house.record(run.run_id, "error")
    assert house("plan").code == 0


def test_a_batch_that_is_refused_names_its_cells(house: House) -> None:
    study = house.study(axes={"batch_size": [899]})
    cell = next(cell for cell in study.cells if cell.nodes == 2)
    said = house("plan")
    assert "1 cell cannot run" in said.err
    assert said.err.rstrip().endswith(cell.cell_id)


def test_a_directory_of_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert as_nobody(tmp_path, lambda: why_unusable(Path(), to_write=True)) == ". cannot be written by you, or is mounted read-only"


def test_status_of_storage_that_cannot_be(house: House) -> None:
    there = house.load().results_dir
    assert f"small on site here\nno results of this study at the storage of site here: {there} is not there\n" in house("status").out
    assert not there.exists()
    there.mkdir(parents=True)
    assert f"small on site here\nresults: {there}\n" in house("status").out
    assert house.json("status")["site"] == "here"
    _below_a_file(house)
    said = house("status")
    assert said.code == 22
    assert f"storage {house.root}/file/storage of the site 'here' cannot be used: {house.root}/file is not a directory" in said.err


@pytest.mark.slow
def test_snakemake_itself_says_the_sentence_and_ends_with_the_code(house: House) -> None:
    change, code, words = CASES["large batch"]
    change(house)
    argv = [sys.executable, "-m", "snakemake", "-s", f"{ROOT}/Snakefile", "--profile", f"{ROOT}/profiles/local", "-d", str(house.root)]
    done = subprocess.run(
        [*argv, "--configfile", str(house.path), "--config", f"site={house.site}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert house("plan").err.removeprefix("slipway: ") == done.stderr.partition("snakemake: ")[2]


@pytest.mark.parametrize(("profile", "scheduler"), [("slurm-allocation", "local"), ("local", "slurm")])
def test_a_profile_that_does_not_fit_the_site_is_refused_and_leaves_nothing(house: House, profile: str, scheduler: str) -> None:
    house.site.write_text(f"{SITE}storage: storage\nscheduler: {scheduler}\n")
    said = house("run", "--profile", profile)
    assert said.code == 10
    assert f"and the site 'here' says scheduler: {scheduler}; " in said.err
    assert not (house.root / "storage").exists()


@pytest.mark.usefixtures("no_gpus")
def test_plan_run_and_submit_name_all_faults_alike(house: House) -> None:
    """A study with five faults on a site whose scheduler is not here."""
    house.site.write_text("storage: s\ncache: {path: cache, max_bytes: 2 TB}\nscheduler: slurm\ndevice: cpu\n")
    house.study(datasets={"digits": LARGE}, axes={"batch_size": [9 * 10**8]})
    _without("torch", "polars", "scipy")(house)
    said = {command: house(command).err.splitlines() for command in ("plan", "run", "submit")}
    found = {command: [line for line in lines if not line.startswith("site ")] for command, lines in said.items()}
    faults = "tables, plots and report need", "needs torch", "cache.max_bytes of", "cannot run: a global batch", "Slurm has no command"
    for words in faults:
        assert any(words in line for line in found["plan"]), (words, found["plan"])
    assert found["run"] == found["submit"] == found["plan"]
