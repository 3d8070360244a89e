"""The plan: what runs, what it needs and costs, how it scales; and that it writes nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import ConfigError
from containers.program_folder import look_at
from tests.workflow.commands.conftest import House
from workflow.dag.cell_needs import PastRun, estimate_of, most_hours_on, past_runs, refuse_over_budget, requirements_of
from workflow.study.publishing import publish_resolved
from workflow.study.study import Study

Tree = Callable[[Path], dict[str, int]]
SYNTHETIC = {"source": "synthetic", "samples": 4096, "size": [48, 64], "shards": 2}


@pytest.mark.processes
def test_a_plan_names_runs_and_writes_nothing(house: House, tree: Tree) -> None:
    before = tree(house.root)
    said = house("plan")
    assert said.code == 0, said.err
    assert tree(house.root) == before
    assert "small: 4 cells x 2 repeats = 8 runs" in said.out
    assert "runs: 8 missing; 8 to run" in said.out
    assert "digits   1797     " in said.out
    assert "cost, at most: 6.0 process hours on the CPU: 8 runs x walltime 30m00s x processes (limit: 100 GPU hours)" in said.out
    assert f"cost, estimated: not known: no run like these has a result in {house.root}/storage yet" in said.out
    assert "differs by" not in said.out


@pytest.mark.processes
def test_cells_whose_ids_differ_in_digits_only_say_by_what(house: House) -> None:
    house.study(axes={"seed": [0, 1], "strategy": ["ddp", "fsdp2"]})
    told = re.findall(r"^lenet-digits-b\d+-n\d-g1-[0-9a-f]{10} +(\S.*?)  ", house("plan").out, re.MULTILINE)
    assert sorted(told) == sorted(f"seed {seed}, strategy {word}" for seed in (0, 1) for word in ("ddp", "fsdp2") for _ in range(4))


@pytest.mark.processes
def test_the_plan_for_programs(house: House) -> None:
    study = house.load()
    first = study.runs[0].run_id
    house.record(first, "ok")
    house.record(study.runs[1].run_id, "oom", status_reason="rank 0 ran out of memory")
    plan = house.json("plan")
    assert plan["runs"]["done"] == plan["runs"]["failed"] == 1
    assert plan["runs"]["to_run"] == [run.run_id for run in study.runs[2:]]
    assert plan["site"]["name"] == "here"
    assert plan["gpu_hours"] == {"planned": 0.0, "limit": 100.0}
    assert plan["datasets"][0]["bytes_are"] == "estimated"
    assert all(cell["memory_bytes"] > 1 << 20 for cell in plan["cells"])
    assert plan["notes"] == []


@pytest.mark.processes
def test_too_many_gpu_hours_are_refused(house: House) -> None:
    house.site.write_text("storage: storage\ncache: {path: cache}\nscheduler: slurm\n")
    house.study(base={"device": "cuda"}, limits={"walltime": "1h", "gpu_hours": 11})
    said = house("plan")
    assert said.code == 10
    assert "cost, at most: 12.0 GPU hours: 8 runs x walltime 1h00m x processes (limit: 11 GPU hours)" in said.out
    assert "limits.gpu_hours: the 8 missing runs may take 12.0 GPU hours" in said.err
    assert "at most 11" in said.err
    house.record(house.load().runs[0].run_id, "ok")
    assert "limits.gpu_hours" not in house("plan").err


def test_hours_are_of_processes_on_the_cpu(house: House) -> None:
    study = house.study(base={"gpus_per_node": 2}, limits={"walltime": "30m", "gpu_hours": 0})
    assert most_hours_on("cuda", study, study.runs) == 0
    assert most_hours_on("cpu", study, study.runs) == 2 * 2 * (2 + 4) * 0.5
    refuse_over_budget(study, study.runs)


@pytest.mark.processes
def test_bytes_of_a_dataset_that_is_not_built(house: House) -> None:
    study = house.study(datasets={"digits": None, "noise": SYNTHETIC}, base={"dataset": "noise"})
    needs = requirements_of(study, "noise")
    assert (needs.samples, needs.bytes_are, needs.shape) == (4096, "estimated", (3, (48, 64), 10))
    assert needs.bytes is not None
    assert 4096 * 48 * 64 * 3 < needs.bytes < 1.5 * 4096 * 48 * 64 * 3
    (house.root / "photos").mkdir()
    study = house.study(datasets={"digits": {"source": "folder", "path": "photos", "size": 32}})
    assert requirements_of(study, "digits").bytes_are == "unknown until built"
    assert "unknown until built" in house("plan").out


@pytest.mark.processes
def test_hours_that_storage_needs(house: House) -> None:
    house.site.write_text("storage: s\ncache: {path: c}\nstorage_limit: {bytes_per_s: 100kB}\n")
    plan = house.json("plan")
    assert plan["datasets"][0]["seconds_to_read"] == pytest.approx(plan["datasets"][0]["bytes"] / 100_000)
    assert "to each of 2 nodes, about 19.0 s from storage" in house("plan").out
    house.site.write_text("storage: s\ncache: {path: c}\nstorage_limit: {bytes_per_s: 1GB}\n")
    assert "from storage" not in house("plan").out


@pytest.mark.processes
def test_one_of_each_has_its_grammar(house: House) -> None:
    house.study(base={"repeats": 1}, axes={"batch_size": [32], "nodes": [1]})
    out = house("plan").out
    assert "small: 1 cell x 1 repeat = 1 run  (" in out
    assert " to one node\n" in out


@pytest.mark.processes
def test_cells_without_a_baseline_are_noted(house: House) -> None:
    cells = [{"model": "lenet", "nodes": nodes, "batch_size": batch} for nodes, batch in [(1, 32), (2, 16), (4, 32), (4, 9)]]
    house.study(
        axes=None,
        include=[*cells, {"model": "alexnet", "batch_size": 8, "nodes": 2}],
        datasets={"digits": {"source": "sklearn-digits", "size": 224, "shards": 4}},
    )
    out = house("plan").out
    assert "1 cell has no baseline cell (the nearest one differs in model (lenet there, alexnet here)): speed-up is null" in out
    assert "1 cell has neither the batch nor the global batch of a baseline cell: speed-up is null" in out
    house.study(baseline={"nodes": 1, "batch_size": 32})
    assert "speed-up is null" not in house("plan").out


def test_one_cell_in_full(house: House, tree: Tree) -> None:
    before = tree(house.root)
    study = house.load()
    cell = next(cell for cell in study.cells if cell.nodes == 2)
    plan = house.json("plan", "--cell", cell.cell_id)
    said = house("plan", "--cell", cell.cell_id[:20])
    assert said.code == 0, said.err
    assert tree(house.root) == before
    assert plan["supervisor"][1:6] == ["-P", "-m", "workflow.run.supervisor", "--results", str(study.results_dir)]
    assert [node["name"] for node in plan["nodes"]] == ["local-0", "local-1"]
    assert [node["cache"] for node in plan["nodes"]] == [f"{house.root}/cache/local-{index}" for index in (0, 1)]
    process = plan["nodes"][1]["container"]["processes"][0]
    assert (process["env"]["RANK"], process["env"]["WORLD_SIZE"]) == ("1", "2")
    assert process["argv"][-1].endswith("pytorch/program.py")
    assert plan["cell_json"]["model_parameters"] == 656_080
    assert plan["copies"] is None
    assert "  bytes_are: estimated\ncopies: -\n" in said.out
    assert "RANK=1" in said.out


def own_program(house: House, folder: Path | None) -> str:
    """A study with a program of its own; its cell of two nodes."""
    (house.root / "tokenizer").mkdir(exist_ok=True)
    serve = {"name": "server", "where": "head", "command": ["{python}", "-m", "serve", "{head}", "{port.echo}"], "env": {"ROLE": "server"}}
    program = {
        **({} if folder is None else {"folder": str(folder)}),
        "command": ["{python}", "-m", "train", "--data", "{data}", "--width", "{args.width}", "--echo", "{port.echo}", "--name", "a b"],
        "image": "my/image:7",
        "mounts": [{"source": str(house.root / "tokenizer"), "target": "/tokenizer"}],
        "env": {"TOKENIZERS_PARALLELISM": "false"},
        "sidecars": [serve],
        "version": 2,
    }
    house.site.write_text(f"{house.site.read_text()}engine: docker\n")
    base = {"dataset": "digits", "program": "gpt", "args": {"width": 512}, "steps": {"warmup": 1, "measured": 5}}
    study = house.study(programs={"gpt": program}, base=base, axes={"model": None, "batch_size": [8]})
    return next(cell.cell_id for cell in study.cells if cell.nodes == 2)


def test_a_cell_of_a_program_of_the_study_shows_every_word(house: House) -> None:
    folder = house.root / "train"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    cell = own_program(house, folder)
    plan, said = house.json("plan", "--cell", cell), house("plan", "--cell", cell).out
    taken = look_at(folder)
    assert plan["program"] == {"name": "gpt", "folder": str(folder), "digest": taken.digest, "files": 1, "bytes": 9}
    assert f"program:\n  name: gpt\n  folder: {folder}\n  digest: {taken.digest}\n" in said
    head, other = (node["container"] for node in plan["nodes"])
    assert [process["name"] for process in head["processes"]] == ["sidecar-server-0", "rank-0"]
    sidecar, first = head["processes"]
    assert sidecar["argv"] == ["python3", "-m", "serve", "127.0.0.1", "0"]
    assert (sidecar["env"]["ROLE"], sidecar["env"]["SLIPWAY_SIDECAR"]) == ("server", "server")
    (second,) = other["processes"]
    for rank, process in enumerate((first, second)):
        assert f"--node-rank={rank}" in process["argv"]
        assert process["argv"][-8:] == ["--data", "/slipway/data", "--width", "512", "--echo", "0", "--name", "a b"]
        assert (process["env"]["TOKENIZERS_PARALLELISM"], process["env"]["SLIPWAY_ARG_WIDTH"]) == ("false", "512")
    assert f"--mount type=bind,source={house.root}/tokenizer,target=/tokenizer,readonly" in said
    assert "--width 512 --echo 0 --name 'a b'" in said
    for words in ("ROLE=server ", "TOKENIZERS_PARALLELISM=false ", "SLIPWAY_ARG_WIDTH=512 ", "version: 2", "my/image:7"):
        assert words in said
    (folder / "train.py").write_text("print(2)\n")
    assert house.json("plan", "--cell", cell)["program"]["digest"] == look_at(folder).digest != taken.digest


def test_a_cell_of_a_program_without_a_folder_says_so(house: House) -> None:
    cell = own_program(house, None)
    assert house.json("plan", "--cell", cell)["program"] == {"name": "gpt", "folder": None}
    assert "program:\n  name: gpt\n  folder: -\n" in house("plan", "--cell", cell).out


def test_an_unknown_cell_has_an_answer(house: House) -> None:
    said = house("plan", "--cell", "lenet-digits-b23-n1-g1")
    assert said.code == 10
    assert "has no cell 'lenet-digits-b23-n1-g1'; valid: lenet-digits-b32" in said.err
    assert "did you mean" in said.err


@pytest.mark.processes
def test_of_many_cells_the_first_are_listed(house: House) -> None:
    house.study(base={"repeats": 20}, axes={"batch_size": list(range(1, 31)), "nodes": list(range(1, 4))})
    said = house("plan")
    assert said.code == 0, said.err
    assert "small: 90 cells x 20 repeats = 1,800 runs" in said.out
    assert "... and 30 more cells; --json lists all" in said.out


@pytest.mark.parametrize("engine", ["docker", "enroot"])
def test_a_cell_in_a_container_shows_the_whole_command(house: House, engine: str) -> None:
    house.site.write_text(f"{house.site.read_text()}engine: {engine}\nimages: {{pytorch: my/image:7}}\n")
    cell = house.load().cells[0]
    container = house.json("plan", "--cell", cell.cell_id)["nodes"][0]["container"]
    assert engine in container["run"][:12]
    assert "my/image:7" in container["run"]
    assert container["processes"][0]["argv"] == ["python3", "/slipway/program/program.py"]
    said = house("plan", "--cell", cell.cell_id).out
    assert f" {engine} " in said
    assert "SLIPWAY_OUT=/slipway/out" in said


def test_an_engine_that_is_part_of_a_scheduler_is_refused_without_it(house: House) -> None:
    house.site.write_text(f"{house.site.read_text()}engine: pyxis\nimages: {{pytorch: my/image:7}}\n")
    said = house("plan")
    assert said.code == 11
    assert "engine pyxis is part of the scheduler slurm, whose steps become containers; found scheduler: local" in said.err


@pytest.mark.processes
def test_commands_to_type_are_quoted_and_keep_the_site(house: House) -> None:
    folder = house.root / "a b"
    folder.mkdir()
    house.path = house.path.rename(folder / "study.yaml")
    cell = house.load().cells[0].cell_id
    assert f"\n  slipway plan '{folder}/study.yaml' --cell {cell} --site {house.site}\n" in house("plan").out
    house.record(house.load().runs[0].run_id, "ok")
    assert f"logs: slipway logs RUN --study '{folder}/study.yaml' --site {house.site}\n" in house("status").out
    said = house("submit")
    assert said.code == 11, "this machine has no queue"
    assert f"`slipway run '{folder}/study.yaml' --site {house.site}` runs the study" in said.err


# What the plan says a study will take: a bound, which the limit is checked against, and an estimate by what runs took before.


SLURM = "storage: storage\ncache: {path: cache}\nscheduler: slurm\ngpus_per_node: 8\n"


def past(study: Study, nodes: int, batch_size: int, run_s: float, training_s: float, device: str = "cpu") -> PastRun:
    """A run of one of the study's cells."""
    cell = next(cell for cell in study.cells if (cell.nodes, cell.batch_size) == (nodes, batch_size))
    return PastRun(cell=cell, device=device, run_s=run_s, training_s=training_s)


def test_above_the_limit_is_said_which_walltime_fits(house: House) -> None:
    house.site.write_text(SLURM)
    study = house.study(limits={"walltime": "30m", "gpu_hours": 2})
    with pytest.raises(ConfigError, match=r"may take 6\.0 GPU hours .*; valid: at most 2\. Raise the limit, exclude cells, .* to 10m, in"):
        refuse_over_budget(study, study.runs)
    study = house.study(limits={"walltime": "10m", "gpu_hours": 2})
    refuse_over_budget(study, study.runs)


def test_a_cell_that_ran_takes_what_its_runs_took(house: House) -> None:
    study = house.load()
    pasts = [past(study, 1, 32, 10, 4), past(study, 1, 32, 20, 4), past(study, 2, 32, 999, 4), past(study, 1, 32, 500, 4, "cuda")]
    found = estimate_of(pasts[0].cell, "cpu", pasts)
    assert found is not None
    assert (found.seconds, found.from_cell) == (15, pasts[0].cell.cell_id)


def test_another_size_is_scaled_by_its_work_and_the_nearest_counts(house: House) -> None:
    study = house.load()
    target = past(study, 2, 64, 0, 0).cell
    near, far = past(study, 2, 32, 10, 4), past(study, 1, 32, 1000, 900)
    found = estimate_of(target, "cpu", [far, near])
    assert found is not None
    assert found.seconds == pytest.approx(6 + 4 * 2)
    assert found.from_cell == near.cell.cell_id
    assert estimate_of(target, "cuda", [far, near]) is None


def test_what_is_not_alike_says_nothing(house: House) -> None:
    before = past(house.load(), 1, 32, 10, 4)
    for base in ({"mode": "infer"}, {"precision": "bf16"}, {"layout": "nhwc"}, {"epochs": 2}):
        assert estimate_of(house.study(base=base).cells[0], "cpu", [before]) is None
    assert estimate_of(house.study(base={"seed": 3}).cells[0], "cpu", [before]) is not None


@pytest.mark.processes
def test_records_of_all_studies_on_the_storage_count(house: House) -> None:
    other = house.study(study="other", axes={"nodes": [1]})
    publish_resolved(other)
    good, failed, torn = (run for run in other.runs if run.cell.batch_size == 32 or run.repeat == 1)
    house.record(good.run_id, "ok")
    house.record(failed.run_id, "oom")
    other.record_path(torn.run_id).parent.mkdir(parents=True)
    other.record_path(torn.run_id).write_text("{")
    (other.results_dir.parent / "broken").mkdir()
    (other.results_dir.parent / "broken" / "study.json").write_text("[]")
    study = house.study(study="small")
    assert [found.cell.cell_id for found in past_runs(study.site.storage, study.cells)] == [good.cell.cell_id]
    out = house("plan").out
    assert "8 runs x walltime 30m00s" in out
    own = sum(run.cell.cell_id == good.cell.cell_id for run in study.runs)
    assert f"{own} runs by earlier runs of their cells, {len(study.runs) - own} runs by the work of cells of other sizes" in out
    plan = house.json("plan")
    assert (plan["estimate"]["own"], plan["estimate"]["scaled"], plan["estimate"]["unknown"]) == (own, len(study.runs) - own, 0)
    assert plan["gpu_hours"] == {"planned": 0.0, "limit": 100.0}
    assert all(cell["estimate"]["from_cell"] == good.cell.cell_id for cell in plan["cells"])


@pytest.mark.processes
def test_a_finished_study_costs_nothing(house: House) -> None:
    for run in house.load().runs:
        house.record(run.run_id, "ok")
    assert "cost: nothing is left to run" in house("plan").out


@pytest.mark.processes
def test_more_nodes_are_predicted_from_the_results(house: House, tree: Tree) -> None:
    assert house("plan", "--predict", "8").code == 19, "there are no results"
    study = house.study(axes={"dataset": ["digits"], "nodes": [1, 2]})
    publish_resolved(study)
    for run in study.runs:
        house.record(run.run_id, "ok", step_s=0.2 + 0.1 * (1 - 1 / run.cell.nodes), scheduler="slurm")
    before = tree(house.root)
    near, far, *_ = house.json("plan", "--predict", "4,16", "--samples", "3600000")["rows"]
    rate = 4 * int(near["batch"].split()[-1]) / (0.2 + 0.1 * 3 / 4)
    assert near["rate_per_s"] == pytest.approx(rate)
    assert near["hours"] == pytest.approx(1000 / rate)
    assert (far["rate_per_s"], far["note"]) == (None, "16 nodes are more than 4 times the 2 that were measured")
    for samples in ("nan", "inf", "0"):
        assert house("plan", "--predict", "4", "--samples", samples).code == 10
    said = house("plan", "--predict", "4")
    assert said.out.startswith("What more nodes would bring\n")
    assert tree(house.root) == before, "nothing is written"


@pytest.mark.parametrize("words", ["", "0", "-4", "four", "4,,8", "1e3", "12345678", "\N{ARABIC-INDIC DIGIT FOUR}"])
def test_what_is_no_number_of_processes_is_refused(house: House, words: str) -> None:
    said = house("plan", f"--predict={words}")
    assert said.code == 10, said.err
    assert "is no number of GPUs or processes; valid: such as 16,32" in said.err
