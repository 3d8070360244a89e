"""Programs of a study, from the supervisor to the record: a script that uses slipway_events, and those that do what they should not."""

from typing import Any

import pytest

from containers.program_folder import look_at
from data_prep.build.dataset import build_dataset
from tests.data_prep.tree.corpus import SIZES, plant, spec_of
from tests.workflow.run.test_resume import cut_off, short_jobs
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import World
from workflow.run.record.rate import NOT_COMPARED
from workflow.run.record.resume import OTHER_PROGRAM

pytestmark = pytest.mark.slow

LOOP = """
import os, sys
import slipway_events
run = slipway_events.start(framework="mine", parameters=3)
for batch in run.steps([[1, 2], [3, 4]], samples=len):
    {step}
    run.loss(1.0)
print(sys.argv[1:], os.environ["SLIPWAY_ARG_WIDTH"], os.environ["MINE"], run.args)
"""


def program(world: World, text: str, *, nodes: int = 1, each: int = 1, **keys: Any) -> str:
    """A run of a script with this text; `keys`: of its program."""
    folder = world.path / "train"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    run_id = world.cell(nodes, each)
    command = ["{python}", "{folder}/train.py", "{data}", "{args.width}", "{batch_size}"]
    resolved = {"name": "gpt", "folder": str(folder), "command": command, "launcher": "ranks", "python": "python3"}
    resolved |= {"env": {"MINE": "yes"}, "mounts": [], "version": 1, "checkpoint": False, **keys}
    world.cells[-1].update({"framework": "gpt", "model": "gpt", "program": resolved, "args": {"width": 8, "fast": True}})
    world.write()
    return run_id


@pytest.mark.parametrize(("launcher", "nodes", "each"), [("ranks", 2, 2), ("single", 1, 1)])
def test_a_script_of_one_s_own(world: World, launcher: str, nodes: int, each: int) -> None:
    world.site |= {"env": [["MINE", "the site's"], ["THEIRS", "site"]], "mounts": [[str(world.path), str(world.path), False]]}
    run_id = program(
        world, "import os; print(os.environ['THEIRS'])\n" + LOOP.format(step="pass"), nodes=nodes, each=each, launcher=launcher
    )
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"]) == ("ok", None)
    assert record["provenance"]["site_env"] == {"MINE": "the site's", "THEIRS": "site"}
    assert record["provenance"]["site_mounts"] == [{"source": str(world.path), "target": str(world.path), "writable": False}]
    assert record["performance"]["num_measured_steps"] == 6
    assert record["performance"]["samples"] == 6 * 2 * nodes * each
    assert record["training"]["parameters"] == 3
    assert record["cell"]["args"] == {"width": 8, "fast": True}
    assert record["provenance"]["framework"] == "mine"
    digest = record["provenance"]["program_digest"]
    assert digest == look_at(world.path / "train").digest == look_at(world.results / "programs" / digest).digest
    assert not [line for line in record["warnings"] if line.startswith("network: ")]
    log = next((world.run_dir(run_id) / "attempts" / "1" / "logs").glob("rank-0*.log")).read_text()
    assert "'8', '2'] 8 yes {'fast': True, 'width': 8}" in log
    assert str(world.cache) in log
    assert "site\n" in log, "a variable of the site's; of MINE it has the program's own value"


def test_a_program_that_counts_tokens(world: World) -> None:
    text = LOOP.format(step="pass").replace("samples=len", "tokens=lambda batch: 100 + run.rank")
    run_id = program(world, text, nodes=2, unit="tokens")
    log = world.ends(run_id)
    record = world.record(run_id)
    assert record["cell"]["program"]["unit"] == "tokens"
    found = record["performance"]
    assert (found["samples"], found["tokens"]) == (6 * 2 * 2, 6 * (100 + 101))
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["window_s"])
    assert "tokens/s over 6 steps" in log
    assert "samples/s" not in log


ENDPOINTS = """
import json, os, socket, time
import slipway_events
config = json.loads(os.environ["TF_CONFIG"])
places = [worker.rsplit(":", 1) for worker in config["cluster"]["worker"]]
index = config["task"]["index"]
assert index == int(os.environ["RANK"])
server = socket.create_server((places[index][0], int(places[index][1])))
for host, port in places:
    for _ in range(1000):
        try:
            socket.create_connection((host, int(port))).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    server.accept()
run = slipway_events.start(framework="mine", parameters=3)
for batch in run.steps([[1, 2]], samples=len):
    run.loss(1.0)
"""


def test_each_rank_listens_where_all_were_told_that_it_does(world: World) -> None:
    run_id = program(world, ENDPOINTS, nodes=2, each=2, env_from=["tf_config"])
    world.cells[-1]["steps"] = {"warmup": 0, "measured": 1}
    world.write()
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"]) == ("ok", None)


def test_the_name_of_a_network_of_ours_is_a_promise(world: World) -> None:
    run_id = program(world, LOOP.format(step="pass"))
    world.cells[-1]["model"] = "lenet"
    world.write()
    record = ended(world, run_id)
    assert record["status"] == "error"
    assert "the program trained another network: lenet has 426571 parameters here, and rank 0 tells of 3" in record["status_reason"]


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (LOOP.format(step="raise MemoryError('all of it')"), "oom", "all of it"),
        (LOOP.format(step="run.loss(float('inf')); continue"), "nan", "the loss of step 0 is inf"),
        (
            "import os; open(os.environ['SLIPWAY_OUT'] + '/events-0.jsonl', 'w').write('step 1\\n{}\\n')",
            "error",
            "and reported no step: in its events file 2 lines are no events: let slipway_events write it",
        ),
    ],
    ids=["memory", "loss", "rubbish"],
)
def test_a_script_that_fails_is_a_row_with_its_reason(world: World, text: str, status: str, words: str) -> None:
    record = ended(world, program(world, text))
    assert record["status"] == status
    assert words in record["status_reason"]


CHANGES_ITSELF = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
assert not any(os.stat(path).st_mode & 0o222 for path in (here, __file__)), "who is not root could write here"
for path in (here, __file__):
    os.chmod(path, 0o755)
open(os.path.join(here, "cache.json"), "w").write("{}")
os.path.exists(os.path.join(here, "old.txt")) and os.remove(os.path.join(here, "old.txt"))
open(__file__, "a").write("raise SystemExit('of the run before')")
"""


def test_a_program_that_changes_its_folder_leaves_the_next_run_with_what_it_was(world: World) -> None:
    records = []
    for run_id in [program(world, CHANGES_ITSELF + LOOP.format(step="pass"), nodes=nodes) for nodes in (1, 2)]:
        (world.path / "train" / "old.txt").write_text("stays")
        records.append(ended(world, run_id))
    assert [record["status_reason"] for record in records] == [None, None]
    assert len({record["provenance"]["program_digest"] for record in records}) == 1


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "interpreter": ({"python": "/nowhere/python"}, "/nowhere/python, the `python` of the program 'gpt', is not there: it must be on all"),
    "command": ({"command": ["{folder}/run.sh"], "launcher": "torchrun"}, "'{folder}/run.sh', the command of the program 'gpt', is not"),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_no_node_has_is_named_before_the_ranks_start_and_is_a_result(world: World, what: str) -> None:
    keys, words = MISSING[what]
    record = ended(world, program(world, LOOP.format(step="pass"), nodes=2, **keys))
    assert (record["status"], record["kind"]) == ("error", "result")
    assert words in record["status_reason"]
    assert record["status_reason"].endswith(" (on all nodes)")
    assert record["failed_rank"] is None
    staged = list(world.cache.glob("local-*/datasets/*"))
    assert len(staged) == (2 if what == "command" else 0), "what needs no copy of the program's folder is looked at before staging"
    assert not list((world.run_dir(record["run_id"]) / "attempts" / "1" / "logs").glob("rank-*"))


def test_a_run_whose_attempts_had_different_programs_says_so(world: World) -> None:
    text = """
import os, sys, time
import slipway_events
run = slipway_events.start(framework="mine", parameters=3)
if run.resume_from:
    run.resume(int(open(run.resume_from).read()))
for batch in run.steps([[1, 2]], samples=len):
    if run.checkpoint_wanted:
        path = os.path.join(os.environ["SLIPWAY_OUT"], "checkpoint.safetensors")
        with open(path, "w") as file:
            file.write(str(run.step))
        run.checkpoint(path, run.step)
        sys.exit(43)
    time.sleep(0 if run.resume_from else 0.02)
    run.loss(1.0)
"""
    run_id = program(world, text, checkpoint=True)
    world.cells[-1]["steps"] = {"warmup": 2, "measured": 998, "total": 1000}
    short_jobs(world)
    cut_off(world, run_id)
    world.job_s = None
    (world.path / "train" / "train.py").write_text(text.replace("0.02", "0.03"))
    world.write()
    record = ended(world, run_id)
    assert record["resumed_from"]["attempt"] == record["attempt"] - 1
    assert [OTHER_PROGRAM in line for line in record["warnings"]].count(True) == 1


def test_a_run_without_a_dataset_stages_nothing(world: World) -> None:
    text = LOOP.format(step="assert 'SLIPWAY_DATA' not in os.environ")
    run_id = program(world, text, nodes=2, command=["{python}", "{folder}/train.py", "{data}"])
    world.cells[-1].update({"dataset": "none", "dataset_spec": {"source": "none"}})
    world.write()
    record = ended(world, run_id)
    assert (record["status"], record["dataset"]) == ("ok", None)
    assert [node["stage"] for node in record["nodes"]] == [None, None]
    assert record["performance"]["num_measured_steps"] == 6
    log = next((world.run_dir(run_id) / "attempts" / "1" / "logs").glob("rank-0*.log")).read_text()
    assert "['{data}'] 8 yes" in log
    assert not [path for cache in world.cache.iterdir() for path in (cache / "datasets").iterdir()]


def with_tree(world: World, text: str, nodes: int, **keys: Any) -> str:
    """A run of a script with a tree of files as its dataset."""
    run_id = program(world, text, nodes=nodes, **keys)
    spec = spec_of(plant(world.path / "tree"))
    world.cells[-1].update({"dataset": "corpus", "dataset_spec": spec.to_json()})
    world.write()
    build_dataset(spec, "corpus", world.storage / "datasets", 1)
    return run_id


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_gets_a_tree_of_files_as_it_is(world: World, nodes: int) -> None:
    text = "import os; assert os.environ['SLIPWAY_DATA'] == __import__('sys').argv[1]\n" + LOOP.format(
        step="assert open(sys.argv[1] + '/a/part-0.tar', 'rb').read(1) and not os.path.exists(sys.argv[1] + '/place.json')"
    )
    record = ended(world, with_tree(world, text, nodes))
    total = sum(SIZES.values())
    assert (record["status"], record["status_reason"]) == ("ok", None)
    assert (record["dataset"]["name"], record["dataset"]["samples"], record["dataset"]["bytes"]) == ("corpus", None, total)
    staged = [node["stage"] for node in record["nodes"]]
    assert sum(one["storage_bytes"] for one in staged) == total
    assert [one["hit"] for one in staged] == [False] * nodes


def test_a_tree_that_changed_after_it_was_hashed_ends_the_run_with_the_file(world: World) -> None:
    run_id = with_tree(world, LOOP.format(step="pass"), 2)
    (world.path / "tree" / "z").write_bytes(b"another")
    log = world.ends(run_id, 15)
    assert f"{world.path}/tree/z has 7 bytes, its manifest says {SIZES['z']}; the tree" in log
    assert "`slipway dataset build corpus --fresh`" in log
    assert world.left() == []


ALONE = """
import torch
import slipway_events
torch.manual_seed(0)
network = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
run = slipway_events.start({model})
for batch in run.steps([torch.ones(2, 2) * (1 + run.rank)], samples=len):
    optimizer.zero_grad()
    loss = network(batch).square().mean()
    loss.backward()
    optimizer.step()
    run.loss(loss)
"""


@pytest.mark.parametrize("model", ["model=network", ""])
def test_ranks_that_train_alone_are_found_by_their_parameters_or_counted(world: World, model: str) -> None:
    record = ended(world, program(world, ALONE.format(model=model), nodes=2))
    assert record["status"] == "ok"
    apart = "rank 1 ended with other parameters than the other one: the replicas of the network have come apart"
    assert [apart in record["warnings"], NOT_COMPARED in record["warnings"]] == [bool(model), not model]


LINES = """
import os, time
for step in range(1, 9):
    time.sleep(0.1 if os.environ["RANK"] == "0" else 0.35)
    print("step", step, flush=True)
"""


def test_a_rank_of_half_the_speed_whose_output_nobody_reads_is_found_by_its_end(world: World) -> None:
    events = {"log": {"step": r"^step (?P<step>\d+)", "every": 1, "ranks": "first"}}
    record = ended(world, program(world, LINES, nodes=2, events=events))
    assert (record["status"], record["training"]["late_ranks"]) == ("ok", [1])
    assert any("the rate is that of rank 0 alone" in warning for warning in record["warnings"])


def test_an_expression_that_takes_for_ever_ends_the_run_as_a_hang(world: World) -> None:
    world.limits["init_s"] = world.shorter["rank_silence_s"] = 4.0  # in which it has to come to its output
    events = {"log": {"step": r"^(a+)+(?P<step>\d)$", "every": 1, "ranks": "first"}}
    record = ended(world, program(world, "print('a' * 60, flush=True)", events=events))
    assert record["status"] == "hang"
    assert "in phase output, limit 4 s" in record["status_reason"]
