"""`slipway tables` and `slipway report` on records as they are; the tables themselves are tested in tests/workflow/report."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.models.facts import NETWORKS
from tests.workflow.commands.conftest import House
from tests.workflow.commands.test_status_logs import hold
from workflow.commands import main
from workflow.report import outputs
from workflow.report.files import EVIDENCE, TABLE_NAMES
from workflow.study.publishing import publish_resolved, read_resolved

pytestmark = pytest.mark.processes

Tree = Callable[[Path], dict[str, int]]
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("words", [["tables"], ["tables", "--show"], ["report"], ["verify"]])
def test_reading_a_study_that_never_ran_makes_no_directory(house: House, words: list[str], tree: Tree) -> None:
    before = tree(house.root)
    said = house(*words)
    assert said.code == 19
    assert f"no results of this study at the storage of site here: {house.load().results_dir} is not there" in said.err
    assert f"`slipway run {house.path} --site {house.site}` runs it" in said.err
    assert tree(house.root) == before


def test_tables_of_a_study_of_which_no_run_has_ended(house: House) -> None:
    study = house.load()
    publish_resolved(study)
    said = house("tables")
    assert said.code == 0, said.err
    assert f"small: 0 of 8 runs ok, 8 missing\ntables: {study.results_dir}/tables\n" in said.out
    assert (study.results_dir / "tables" / "speedup.csv").is_file()
    assert (study.results_dir / "records.parquet").is_file()
    assert read_resolved(study.results_dir).study == "small"
    said = house("tables", "--strict")
    assert said.code == 19
    assert "with --strict every run must be ok" in said.err


def test_showing_writes_nothing(house: House, tree: Tree) -> None:
    study = house.load()
    said = house("tables", "--show")
    assert said.code == 19
    assert not study.results_dir.exists()
    publish_resolved(study)
    house.study(baseline={"nodes": 2})
    before = tree(house.root)
    said = house("tables", "--show")
    assert said.code == 0, said.err
    assert "speed-up (efficiency) relative to nodes: 1" in said.out
    assert "0 of 8 runs ok, 8 missing" in said.out
    assert house("tables", str(study.results_dir), "--show", "--strict").code == 19
    assert tree(house.root) == before
    (study.results_dir / "report.html").write_text("")
    assert f"report: {study.results_dir}/report.html" in house("tables", "--show").out.replace("\n", "")


def test_a_study_is_named_as_its_siblings_name_it(house: House) -> None:
    study = house.load()
    publish_resolved(study)
    options = ["--site", str(house.site)]
    house.patch.setattr(outputs, "write_plots", lambda *_: {})  # which take ten seconds
    for words in (["tables"], ["report"], ["verify"]):
        main.run([*words, str(house.path), *options])
        said = house.capsys.readouterr()
        assert f"{study.name}: " in said.out, said.err
    assert "speed-up" in (study.results_dir / "report.html").read_text().lower()
    assert main.run(["tables", str(house.path), "scaling", *options]) == 0
    assert house.capsys.readouterr().out.startswith("Every comparison\n")
    assert main.run(["tables", str(house.path), str(study.results_dir), *options]) == 10
    assert "one study file, or results directories" in house.capsys.readouterr().err


def test_the_speed_up_for_programs(house: House, tree: Tree) -> None:
    study = house.load()
    for run in study.runs[:3]:
        house.record(run.run_id, "ok")
    publish_resolved(study)
    before = tree(house.root)
    found = house.json("tables")
    assert tree(house.root) == before
    assert (found["study"], found["runs"], found["ends"]) == ("small", 8, {"ok": 3, "missing": 5})
    assert found["baseline"] == "nodes: 1"
    assert found["report"] is None
    assert len(found["speedup"]) >= 1
    marks = {mark for row in found["speedup"] for marks in row["marks"].values() for mark in marks}
    assert marks == set(found["marks"])
    assert marks
    said = house("tables", "--json", "--strict")
    assert said.code == 19
    assert json.loads(said.out) == found


def test_tables_of_directories_need_no_study(house: House) -> None:
    study = house.load()
    publish_resolved(study)
    house.path = house.root / "gone.yaml"
    out = house.root / "elsewhere"
    said = house("tables", str(study.results_dir), "--out", str(out))
    assert said.code == 0, said.err
    assert (out / "tables" / "times.md").is_file()
    said = house("tables", str(house.root / "nothing"))
    assert said.code == 19
    assert "Traceback" not in said.err


def test_a_changed_study_is_resolved_anew_unless_it_runs(house: House) -> None:
    study = house.load()
    publish_resolved(study)
    house.study(baseline={"nodes": 2})
    house("tables")
    assert read_resolved(study.results_dir).baseline == {"nodes": 2}
    hold(house, study.runs[0].run_id)
    house.study(baseline={"nodes": 1})
    house("tables")
    assert read_resolved(study.results_dir).baseline == {"nodes": 2}


def test_where_the_libraries_are_missing(house: House) -> None:
    publish_resolved(house.load())
    house.patch.setitem(sys.modules, "polars", None)
    said = house("tables")
    assert said.code == 11
    assert said.err.startswith(f"slipway: tables, plots and report need polars, not installed in {sys.prefix}: ")
    assert "slipway[" not in said.err


LOADED = """
import sys
sys.modules["polars"] = None
from workflow.commands.main import COMMANDS, DeferredCommand
for found in COMMANDS:
    for one in [found] if isinstance(found, DeferredCommand) else found.commands.values():
        one.load()
"""


def test_every_command_is_there_without_the_libraries_of_tables() -> None:
    """As on compute nodes, which have none of them: who needs them says so when it is called."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize(("command", "changes"), [("report", {}), ("tables", {"baseline": {"nodes": 2}})])
def test_who_may_only_read_the_results_writes_tables_elsewhere(house: House, command: str, changes: dict[str, object]) -> None:
    study = house.load()
    house.record(study.runs[0].run_id, "ok")
    publish_resolved(study)
    house.study(**changes)
    before = (study.results_dir / "study.json").read_bytes()
    read_only = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    words = [command, str(house.path), "--site", str(house.site), "--out", str(house.root / "out")]
    argv = ["unshare", "--mount", "bash", "-c", read_only, str(study.site.storage), sys.executable, "-m", "workflow.commands.main", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "small: 1 of 8 runs ok" in done.stdout
    assert ("Read-only file system; tables show the study as it was when it last ran there" in done.stderr) == bool(changes)
    assert (house.root / "out" / "tables" / "speedup.csv").is_file()
    assert (study.results_dir / "study.json").read_bytes() == before
    if command == "report":
        assert f"report: {house.root}/out/report.html" in done.stdout
        assert json.loads((house.root / "out" / "plots" / "efficiency.vl.json").read_text())


def test_a_table_is_printed_by_its_name(house: House, tree: Tree) -> None:
    study = house.load()
    for run in study.runs[:3]:
        house.record(run.run_id, "ok")
    publish_resolved(study)
    before = tree(house.root)
    said = house("tables", "frameworks")
    assert said.code == 0, said.err
    assert said.out.startswith("Frameworks, networks and sizes\nModel  ")
    assert "missing" in said.out
    assert [row["model"] for row in house.json("tables", "dlbench", str(study.results_dir))["rows"]]
    assert house("tables", "failures", "--strict").code == 19
    assert tree(house.root) == before
    said = house("tables", "frameworks", "--out", str(house.root / "one"))
    assert {path.name for path in (house.root / "one" / "tables").iterdir()} == {
        f"frameworks.{kind}" for kind in ("csv", "md", "tex", "html")
    }


def test_facts_of_frameworks_need_no_study(house: House) -> None:
    main.run(["tables", "framework-facts", "--json"])
    found = json.loads(house.capsys.readouterr().out)
    assert {"pytorch", "jax"} <= {row["framework"] for row in found["rows"]}
    main.run(["tables", "framework-facts"])
    parts = dict(part.split("\n", 1) for part in house.capsys.readouterr().out.split("\n\n"))
    assert "\njax " in parts["Verified: what a test of ours ran"]
    assert "\ntorch7 " not in parts["Verified: what a test of ours ran"]
    assert "\ntorch7 " in parts["Never run by a test of ours"]
    assert "\ntorch7 " in parts["Claimed: what the sources say, and we have not tried"]
    assert main.run(["tables", "framework-facts", "results"]) == 10
    assert "tells of all frameworks, and of no study; found results" in house.capsys.readouterr().err


def test_facts_of_networks_need_no_study_and_may_be_of_some(house: House) -> None:
    assert main.run(["tables", "model-facts", "--json"]) == 0
    assert [row["model"] for row in json.loads(house.capsys.readouterr().out)["rows"]] == list(NETWORKS)
    assert main.run(["tables", "model-facts", "resnet152", "resnet152-v1", "--json"]) == 0
    found = json.loads(house.capsys.readouterr().out)["rows"]
    assert [(row["model"], round(row["macs"] / 1e6)) for row in found] == [("resnet152", 11514), ("resnet152-v1", 11282)]
    assert main.run(["tables", "convolutions", "alexnet"]) == 0
    assert "192→384, 3×3 on 13×13" in house.capsys.readouterr().out
    assert main.run(["tables", "model-facts", "alexnt"]) == 10
    assert "'alexnt' is no network, and no file or directory here; valid: alexnet, " in house.capsys.readouterr().err
    assert main.run(["tables", "model-facts", "results/nowhere"]) == 19
    assert "results/nowhere is not a directory" in house.capsys.readouterr().err


def test_the_help_names_every_table(house: House) -> None:
    assert main.run(["tables", "--help"]) == 0
    assert set(TABLE_NAMES) <= set(re.findall(r"[\w-]+", house.capsys.readouterr().out))


@pytest.mark.parametrize("word", ["speedupp", "qqqq"])
def test_an_unknown_name_of_a_table_lists_the_tables(house: House, word: str) -> None:
    """Whether it resembles a name or not; a path is still a path."""
    assert main.run(["tables", word]) == 10
    assert (
        f"{word!r} is no table, and no file or directory here; valid: {', '.join(sorted((*TABLE_NAMES, EVIDENCE)))}"
        in house.capsys.readouterr().err
    )
    assert main.run(["tables", "study.yaml", word]) == 10, "it is the word that was wrong"
    assert f"{word!r} is no table" in house.capsys.readouterr().err
    assert main.run(["tables", f"results/{word}"]) == 19
    assert f"results/{word} is not a directory" in house.capsys.readouterr().err


def test_the_page_for_an_application_is_html(house: House, tree: Tree) -> None:
    study = house.study(axes={"dataset": ["digits"], "nodes": [1, 2]})
    publish_resolved(study)
    for run in study.runs:
        house.record(run.run_id, "ok", step_s=0.2 + 0.1 * (1 - 1 / run.cell.nodes))
    before = tree(house.root)
    assert "How far it scales" in house.json("tables", "scaling-evidence")["sections"]
    assert house("tables", "scaling-evidence", "--samples", "0").code == 10
    assert "Hours: of 3,600,000 samples" in house("tables", "prediction", "--samples", "3.6e6").out
    assert tree(house.root) == before
    said = house("tables", "scaling-evidence", "--samples", "3.6e6")
    assert said.code == 0, said.err
    page = study.results_dir / "tables" / "scaling-evidence.html"
    assert said.out == f"scaling-evidence: {page}\n"
    assert "3,600,000 samples take" in page.read_text("utf-8")
    other = house.root / "elsewhere"
    assert house("tables", "scaling-evidence", "--out", str(other)).code == 0
    assert sorted(path.name for path in (other / "tables").iterdir()) == ["scaling-evidence.html"]
