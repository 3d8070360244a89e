"""What Snakemake is told: which runs are done, which attempt is wanted, what is asked for by name, and what is refused before anything."""

import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from base.errors import ConfigError, ContainerError, SchedulerOutputError, StorageError
from base.seal import sealed_text
from cluster.holder import holder_of
from tests.workflow.report.builder import failed, make_record
from tests.workflow.study.studies import changed, write
from workflow.commands.snakemake_hooks import advice_lines, closing_lines
from workflow.dag.execution import Mode
from workflow.dag.graph import Graph, watch_deadline
from workflow.dag.refusals import load_graph
from workflow.run.storage.lease import new_lease
from workflow.study.next_command import command
from workflow.study.paths import run_dir
from workflow.study.publishing import publish_resolved
from workflow.study.series import train_words, words_of
from workflow.study.study import load_study

pytestmark = pytest.mark.processes

SITE = "storage: storage\ncache: {path: cache}\ndevice: cpu\n"
UNSEEN = f"{SITE}setup: ['true']\n"
"""A site whose setup may bring the engine, so that nobody asks the engine of this machine."""


class Place:
    """A study, its site and its records in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "here.yaml"
        self.site.write_text(SITE)
        self.study = write(root, changed())

    def graph(self, files: Sequence[Path] | None = None, mode: Mode | None = None, **config: Any) -> Graph:
        """The graph as `snakemake --configfile FILE --config KEY=VALUE` loads it now."""
        chosen = [self.study] if files is None else files
        return load_graph({"site": str(self.site), **config}, chosen, self.root, {}, mode)

    def plan(self) -> Graph:
        """The same without a look at storage."""
        return Graph(load_study(self.study, str(self.site), {}), retry_failed=False)

    def record(self, run_id: str, content: dict[str, Any] | str) -> None:
        """The published record of a run."""
        study = self.plan().study
        run = study.run(run_id)
        path = study.record_path(run_id)
        path.parent.mkdir(parents=True)
        if isinstance(content, dict):
            make = make_record if content.get("status") == "ok" else failed
            content = sealed_text(make(run.cell.to_json(), run.repeat, **{"study": study.name, **content})).decode()
        path.write_text(content)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def of(run_id: str) -> SimpleNamespace:
    """Snakemake's wildcards of a run's job; with `.after-3` of a retry's."""
    return SimpleNamespace(run=run_id)


def run_ids(graph: Graph) -> list[str]:
    return [run.run_id for run in graph.study.runs]


OK: dict[str, Any] = {"status": "ok", "result_number": 2}
OOM: dict[str, Any] = {"status": "oom", "result_number": 3}


RECORDS: dict[str, tuple[dict[str, Any] | str | None, str | None, str | None]] = {
    "no record": (None, "", ""),
    "ok": (OK, None, None),
    "failed": (OOM, None, ".after-3"),
    "torn": ('{"status": "ok", "resu', None, ""),
    "another thing": ("[]", None, ""),
    "without its number": ({**OK, "result_number": None}, None, ""),
    "a number": ({**OK, "performance.step_s.p50": -5}, None, ""),
    "another run's": ({**OK, "run_id": "another-r1"}, None, ""),
    "another cell's": ({**OK, "cell.cell_id": "another"}, None, ""),
}
"""Kind -> the record of a run, and the ends of what is asked for it, without and with `retry=failed`; None: nothing is."""


def test_what_is_asked_of_runs(place: Place) -> None:
    write(place.root, changed(base={"repeats": 3}))
    kinds = dict(zip(run_ids(place.plan()), RECORDS, strict=False))
    for run_id, kind in kinds.items():
        if (record := RECORDS[kind][0]) is not None:
            place.record(run_id, record)
    for asked, graph in enumerate((place.graph(), place.graph(retry="failed")), 1):
        found = {kinds.get(name.partition(".after")[0], "no record"): name for name in graph.requested}
        assert found.keys() == {kind for kind, row in RECORDS.items() if row[asked] is not None}
        ends = {kind: name.rpartition("-r")[2].lstrip("123") for kind, name in found.items()}
        assert ends == {kind: RECORDS[kind][asked] for kind in ends}
        assert len(graph.receipts) == len(graph.study.runs)
        assert graph.records == [str(graph.study.record_path(run_id)) for run_id, kind in kinds.items() if RECORDS[kind][asked] is None]


def test_a_prevented_attempt_leaves_what_is_asked_as_it_is(place: Place) -> None:
    graph = place.plan()
    run_id = run_ids(graph)[0]
    attempt = graph.study.record_path(run_id).parent / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "record.json").write_text(json.dumps({"status": "storage", "kind": "prevented", "result_number": None}))
    assert place.graph(retry="failed").receipts[0] == f"{graph.receipts_dir}/{run_id}"
    assert run_id in {run.run_id for run in place.graph().runs_to_make}


def test_a_run_that_is_done_has_a_receipt_and_one_of_a_result_that_is_gone_is_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.root)
    done, failed, gone = run_ids(place.plan())[:3]
    place.record(done, OK)
    place.record(failed, OOM)
    graph = place.graph()
    directory = Path(graph.receipts_dir)
    directory.mkdir(parents=True)
    true = {done, f"{done}.after-1", failed, f"{failed}.after-2"}
    for name in true - {f"{failed}.after-2"} | {gone, f"{gone}.after-1", f"{failed}.after-3", "strange"}:
        (directory / name).touch()
    graph.see_storage(before_runs=True)
    assert {path.name for path in directory.iterdir()} == true
    assert graph.receipts[:3] == [f"{graph.receipts_dir}/{name}" for name in (f"{done}.after-1", f"{failed}.after-2", gone)]


def test_a_place_where_no_receipt_can_be_written_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.root)
    place.record(run_ids(place.plan())[0], OK)
    Path(".snakemake").write_text("a file is in the way")
    with pytest.raises(StorageError, match=r"cannot be written: \.snakemake"):
        place.graph(mode=Mode())


def test_two_studies_with_the_same_cells_have_receipts_of_their_own(place: Place) -> None:
    before = place.plan().receipts_dir
    place.site.write_text(SITE.replace("storage: storage", "storage: elsewhere"))
    assert place.plan().receipts_dir != before


def test_a_finished_run_depends_on_no_dataset_that_is_missing(place: Place) -> None:
    first, failed, missing = run_ids(place.plan())[:3]
    place.record(first, OK)
    place.record(failed, OOM)
    graph = place.graph()
    manifest = f"{graph.study.build_dir('digits')}/dataset.json"
    assert [graph.dataset_of(of(run_id)) for run_id in (first, failed, missing)] == [[], [], manifest]
    assert graph.dataset_of_runs(of(missing)) == manifest
    again = place.graph(retry="failed")
    assert [again.dataset_of(of(run_id)) for run_id in (first, f"{failed}.after-3", missing)] == [[], manifest, manifest]
    Path(manifest).parent.mkdir(parents=True)
    Path(manifest).touch()
    graph.see_storage(before_runs=False)
    assert [graph.dataset_of(of(run_id)) for run_id in (first, failed, missing)] == [manifest] * 3
    assert graph.dataset_of_runs == manifest


def test_a_finished_run_without_a_dataset_depends_on_none(place: Place) -> None:
    (place.root / "train").mkdir()
    program = {"folder": "train", "command": ["true"], "launcher": "ranks"}
    write(place.root, changed(datasets=None, programs={"own": program}, base={"dataset": None, "program": "own"}, axes={"model": None}))
    first, missing = run_ids(place.plan())[:2]
    place.record(first, OK)
    graph = place.graph()
    assert [graph.dataset_of(of(run_id)) for run_id in (first, missing)] == [[], []]
    assert list(graph.dataset_of_runs) == []


def test_runs_start_in_the_order_of_the_study_and_data_before_them(place: Place) -> None:
    graph = place.plan()
    priorities = [graph.priority_of(of(run_id)) for run_id in run_ids(graph)]
    assert priorities == list(range(8, 0, -1))
    assert graph.data_priority > max(priorities)


def test_the_closing_line_counts_what_is_there_at_the_end(place: Place) -> None:
    graph = place.plan()
    first, failed, torn = run_ids(graph)[:3]
    again = f"slipway run {place.study} --site {place.site}"
    report = f"report: {graph.results_dir}/report.html"
    assert closing_lines(graph) == ["small: 0 of 8 runs have a result", f"8 runs have no result; go on: {again}"]
    place.record(first, OK)
    place.record(failed, OOM)
    place.record(torn, "{")
    assert closing_lines(graph)[:2] == ["small: 3 of 8 runs have a result, 2 of them failed (1 oom, 1 unreadable)", report]
    assert advice_lines(graph) == [
        f"2 runs failed, as the table says; again: {again.replace(' --site', ' --retry failed --site')}",
        f"5 runs have no result; go on: {again}",
    ]


def test_what_waits_on_nodes_is_to_be_delivered_before_the_study_goes_on(place: Place) -> None:
    graph = place.plan()
    first, second = run_ids(graph)[:2]
    place.record(first, OK)
    logs = Path(graph.results_dir, "logs")
    logs.mkdir()
    for run_id in (first, second):
        (logs / f"{run_id}.log").write_text("10:00:02 run ERROR push: storage is full: free room or quota\n")
    assert advice_lines(graph) == [
        f"first deliver what nodes have of 1 run, there: slipway reap --push --site {place.site}",
        f"7 runs have no result; go on: slipway run {place.study} --site {place.site}",
    ]
    assert closing_lines(graph)[2:] == advice_lines(graph)
    place.record(second, OK)
    assert "reap" not in "\n".join(closing_lines(graph))


def test_runs_that_another_start_has_are_told_apart(place: Place) -> None:
    graph = place.plan()
    first, second, dead = run_ids(graph)[:3]
    again = f"slipway run {place.study} --site {place.site}"
    lease = new_lease(holder_of(os.getpid(), "local", str(os.getpid()), 0), 2)
    gone = new_lease(dataclasses.replace(lease.holder, pid=2**22 + 1), 1)
    for run_id, one in ((first, lease), (dead, gone)):
        (path := run_dir(Path(graph.results_dir), run_id)).mkdir(parents=True)
        (path / "lease.json").write_text(json.dumps(one.to_json()))
    who = f"{first}, attempt 2: process {os.getpid()} on {os.uname().nodename}; end it there (kill {os.getpid()})"
    assert advice_lines(graph) == [
        f"1 run is at work in another start: {who}; when that has ended, go on: {again}",
        f"7 runs have no result; go on: {again}",
    ]
    place.record(second, OK)
    assert graph.unmet([first, second, f"{second}.after-9", f"{dead}.after-3"]) == [first, second, dead]


def test_how_runs_stand_is_not_known_where_storage_does_not_answer(place: Place) -> None:
    graph = place.plan()
    graph.storage_s = 0.0  # no interpreter starts in no time
    assert "\n".join(closing_lines(graph)).startswith("small: how its runs stand is not known: ")
    assert "no answer within 0 s" in "\n".join(closing_lines(graph))
    (line,) = advice_lines(graph)
    assert line.startswith("small: how its runs stand is not known: ")


def test_what_is_to_be_typed_again_is_whole_and_quoted(tmp_path: Path) -> None:
    odd = tmp_path / "a b"
    odd.mkdir()
    place = Place(odd)
    assert command(place.plan().study, "submit") == f"slipway submit '{place.study}' --site '{place.site}'"
    chosen_by_variable = load_graph({}, [place.study], odd, {"SLIPWAY_SITE": str(place.site)}).study
    assert command(chosen_by_variable, "run", "--retry", "failed") == f"slipway run '{place.study}' --retry failed --site '{place.site}'"
    assert command(load_graph({"site": "local"}, [place.study], odd, {}).study) == f"slipway run '{place.study}' --site local"


def test_a_run_in_words_says_what_tells_it_from_the_others(place: Place) -> None:
    study = place.plan().study
    words = words_of(study.cells, study.site, study.repeats)
    assert {words(run) for run in study.runs} == {
        f"lenet, batch {batch}, {nodes}, repeat {repeat}" for batch in (32, 64) for nodes in ("1 node", "2 nodes") for repeat in (1, 2)
    }
    place.study = write(place.root, changed(base={"repeats": 1}, axes={"nodes": None, "gpus_per_node": [2], "precision": ["fp32", "bf16"]}))
    study = place.plan().study
    words = words_of(study.cells, study.site, study.repeats)
    assert "lenet, bf16, batch 32, 1 node x 2 processes" in {words(run) for run in study.runs}


def test_a_run_says_what_it_stages_and_what_trains_on_what(place: Place) -> None:
    graph = place.plan()
    descriptions = {run.cell.nodes: f"{graph.descriptions:{run.run_id}}" for run in graph.study.runs}
    assert "stage digits -> local disk of 1 node; train" in descriptions[1]
    assert "stage digits -> local disks of 2 nodes; train with bare pytorch on 2 x 1 process; push" in descriptions[2]
    on_gpus = dataclasses.replace(graph.study.site, device="cuda", engine="docker")
    cell = dataclasses.replace(graph.study.runs[0].cell, nodes=2, gpus_per_node=8, mode="infer")
    assert train_words(cell, on_gpus) == "infer with docker pytorch on 2 x 8 GPUs"


def test_files_of_a_dataset(place: Place) -> None:
    graph = place.plan()
    build_dir = graph.study.build_dir("digits")
    dataset = SimpleNamespace(dataset=build_dir.name)
    assert graph.name_of(dataset) == "digits"
    assert json.loads(graph.spec_of(dataset)) == graph.study.datasets["digits"].to_json()
    assert graph.receipts_of(dataset) == [f"{build_dir}/shard-{index:05d}.json" for index in range(4)]


def test_runs_in_containers_wait_for_one_file_that_is_named_by_what_is_wanted(place: Place) -> None:
    graph = place.graph()
    assert (graph.images, graph.images_option, graph.images_file) == ([], "", None), "bare runs wait for none"
    place.site.write_text(f"{UNSEEN}engine: docker\n")
    first, failed, missing = run_ids(graph)[:3]
    place.record(first, OK)
    place.record(failed, OOM)
    graph = place.graph()
    file = graph.images_file
    assert file is not None
    assert file.startswith(f"{graph.results_dir}/images-")
    assert [graph.images(of(run_id)) for run_id in (first, failed, missing)] == [[], [], file]
    assert place.graph(retry="failed").images(of(failed)) == file
    assert graph.images_option == f" --images {file}"
    place.site.write_text(f"{UNSEEN}engine: docker\nimages: {{pytorch: other/torch:2}}\n")
    other = place.plan().images_file
    place.site.write_text(f"{UNSEEN}engine: podman\n")
    assert len({file, other, place.plan().images_file}) == 3


def test_before_runs_start_the_archives_they_load_are_looked_for(place: Place) -> None:
    place.site.write_text(f"{UNSEEN}engine: apptainer\nimages: {{pytorch: {place.root}/torch.sif}}\n")
    graph = place.graph()
    graph.start("local")
    assert graph.images_file is not None
    image = {"reference": "t.sif", "engine": "apptainer", "digest": f"sha256:{'a' * 64}", "image_id": f"sha256:{'a' * 64}"}
    image |= {"platform": "linux/amd64", "size_bytes": 1, "form": "sif", "source": f"{place.root}/t.sif"}
    entry = {
        "archive": f"{place.root}/storage/images/{'a' * 12}.sif",
        "image": image,
        "file": f"{'a' * 12}.sif",
        "sha256": "a" * 64,
        "bytes": 1,
    }
    Path(graph.images_file).write_text(json.dumps({"engine": "apptainer", "images": {"pytorch": entry}}))
    with pytest.raises(ContainerError, match=r"its archive .*aaa.sif is not on storage any more"):
        graph.start("local")
    for run_id in run_ids(graph):
        place.record(run_id, OK)
    place.graph().start("local")


def test_the_digest_is_of_the_resolved_study(place: Place) -> None:
    before = place.plan().digest
    place.study = write(place.root, changed(base={"repeats": 3}))
    assert place.plan().digest != before
    place.study = write(place.root, changed(base={"repeats": 2}))
    assert place.plan().digest == before


def test_a_run_has_this_machine_for_itself(place: Place) -> None:
    assert place.plan().run_threads(2) == 2
    assert place.plan().run_threads(None) == 1


def test_without_a_file_it_is_the_study_of_the_checkout(place: Place) -> None:
    (place.root / "config").mkdir()
    place.study.rename(place.root / "config" / "study.yaml")
    assert place.graph(files=[]).study.name == "small"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sites": "x"}, "--config sites=...: unknown key 'sites'; valid: adopt, profile, retry, site; did you mean 'site'?"),
        ({"nodes": 4}, "What to run stands in the study file"),
        ({"retry": "wrong"}, "--config retry=wrong: found 'wrong', valid: failed"),
        ({"retry": True}, "--config retry=True"),
        ({"adopt": "maybe"}, "adopt=maybe: found 'maybe', valid: yes"),
    ],
)
def test_wrong_config_is_refused(place: Place, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place.graph(**config)
    assert words in str(caught.value)


def test_one_study_at_a_time(place: Place) -> None:
    with pytest.raises(ConfigError, match="--configfile named 2 files: .*study.yaml, .*study.yaml"):
        place.graph(files=[place.study, place.study])


def test_a_source_that_is_not_there_is_refused_before_anything_starts(place: Place) -> None:
    text = place.study.read_text()
    place.study.write_text(text.replace('"sklearn-digits"', '"folder",\n "path": "nowhere"', 1))
    line = place.study.read_text().splitlines().index(' "path": "nowhere",') + 1
    with pytest.raises(
        ConfigError, match=rf"study\.yaml:{line}: datasets\.\w+\.path: .*/nowhere does not exist on this machine; give the source's path"
    ):
        place.graph()


# Tables are of the study as it is, or of another version, whoever made them: told by what lies beside them.


MADE_S = 4_000_000_000  # later than any study.json of the test


@pytest.fixture
def tables(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """records.parquet of a study that has run."""
    monkeypatch.chdir(place.root)
    graph = place.graph()
    publish_resolved(graph.study)
    made = Path(graph.results_dir, "records.parquet")
    made.touch()
    os.utime(made, (MADE_S, MADE_S))
    return made


def outdated(place: Place, mode: Mode | None = Mode(), **changes: Any) -> list[str]:  # noqa: B008 - a value
    write(place.root, changed(**changes))
    return place.graph(mode=mode).outdated


def test_after_another_baseline_tables_depend_on_a_new_file(place: Place, tables: Path) -> None:
    assert outdated(place) == []
    (found,) = outdated(place, baseline={"nodes": 2})
    assert found == f"{place.plan().outdated_dir}/{MADE_S * 10**9}"
    assert Path(found).exists()
    assert tables.exists()
    assert outdated(place, None, baseline={"nodes": 2}) == [], "who makes no tables does not look"
    tables.unlink()
    assert outdated(place, baseline={"nodes": 2}) == [], "Snakemake makes what is missing"


def test_a_start_that_came_to_no_tables(place: Place, tables: Path) -> None:
    os.utime(tables, (1, 1))
    assert len(outdated(place)) == 1


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"history": []}'])
def test_a_study_json_that_tells_nothing(place: Place, tables: Path, content: str | None) -> None:
    file = tables.parent / "study.json"
    file.unlink() if content is None else file.write_text(content)
    assert len(outdated(place)) == 1


@pytest.mark.parametrize(
    ("end", "ended", "said"),
    [
        (lambda *_: time.time() + 5, True, r"the job ends in -?\d+ s: no more runs are started in it"),
        (lambda *_: None, False, ""),
        (lambda *_: raise_it(SchedulerOutputError("squeue printed 'x'")), False, "the end of this job is not known: squeue printed 'x'"),
    ],
    ids=["soon", "never", "not known"],
)
def test_no_more_runs_are_started_in_a_job_that_ends_soon(end: Any, ended: bool, said: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        watch_deadline(SimpleNamespace(end_of_job=end), {}, 60.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * ended
    assert len(caplog.messages) == bool(said)
    assert all(re.match(said, message) for message in caplog.messages)


def raise_it(error: Exception) -> None:
    raise error
