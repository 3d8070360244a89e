"""Datasets and caches by hand: build, info, verify, stage, ls, rm, reap --push, without snakemake."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.commands.conftest import House
from workflow.commands import main
from workflow.study.publishing import publish_resolved

pytestmark = pytest.mark.processes

NOISE = {"source": "synthetic", "samples": 30, "classes": 3, "size": 8, "channels": "grey", "shards": 2, "splits": {"test": 0.2}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Storage with the dataset built: a build starts processes, so once."""
    from data_prep.build.dataset import build_dataset
    from data_prep.spec import parse_spec

    storage = tmp_path_factory.mktemp("storage")
    build_dataset(parse_spec(NOISE, storage), "noise", storage / "datasets", 1)
    return storage


@pytest.fixture
def noise(house: House, built: Path) -> House:
    """A house whose dataset is built."""
    house.study(datasets={"digits": None, "noise": NOISE}, base={"dataset": "noise"}, axes={"model": ["resnet18"], "batch_size": [4]})
    shutil.copytree(built, house.root / "storage")
    return house


def test_the_copy_list_of_a_built_dataset(noise: House) -> None:
    plan = noise.json("plan", "--cell", noise.load().cells[0].cell_id)
    root = Path(plan["dataset"]["root"])
    assert {copy["path"]: copy["bytes"] for copy in plan["copies"]} == {
        f"shard-0000{index}.lmdb/data.mdb": (root / f"shard-0000{index}.lmdb" / "data.mdb").stat().st_size for index in (0, 1)
    }
    assert noise("plan").out.count(" built ") == 1
    stage = plan["nodes"][0]["stage"]
    assert stage[stage.index("--source") + 1] == str(root)


def test_info_and_verify(noise: House) -> None:
    info = noise.json("dataset", "info", "noise")
    assert (info["samples"], info["classes"], sorted(info["splits"])) == (30, [*info["classes"]], ["test", "train"])
    out = noise("dataset", "info", "noise").out
    assert "noise: 30 samples" in out
    assert "images  8x8, 1 channel, raw, hwc" in out
    text = out.partition("  source\n")[2].partition("\n\n")[0]
    assert yaml.safe_load(text) == info["source"]
    said = noise("dataset", "verify", info["root"])
    assert said.code == 0
    assert "every chunk is what the manifest in" in said.out
    data = Path(info["root"]) / "shard-00000.lmdb" / "data.mdb"
    data.chmod(0o600)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    said = noise("dataset", "verify", "noise")
    assert said.code == 15
    assert "shard-00000.lmdb: chunk 0 of 1 differs" in said.err


def test_token_sequences_are_built_told_and_verified(house: House) -> None:
    """Too small a dataset for processes of its own, so quick. What no cell reads is built when it is named."""
    (house.root / "text").mkdir()
    (house.root / "text" / "a.txt").write_text("the cat\nsat\n" * 40)
    (house.root / "text" / "b.txt").write_bytes(b"")
    text = {"source": "text", "path": "text", "documents": "line", "buckets": [4, 9], "shards": 4}
    keys: dict[str, Any] = {"base": {"dataset": "words", "batch_size": 8}, "axes": {"model": ["gpt2-tiny", "lstm"]}}
    house.study(datasets={"digits": None, "words": {**text, "strict": True}}, **keys)
    said = house("dataset", "build")
    assert said.code == 20
    assert "1 entry of the source cannot be used:\n  b.txt: zero bytes" in said.err
    house.study(datasets={"digits": None, "words": text, "other": text}, **keys)
    said = house("dataset", "build")
    assert said.code == 0, said.err
    assert "words: 80 samples" in said.out
    assert "other" not in said.out
    assert "dataset words: 80 samples in" in said.err
    assert "was built before" not in said.out
    assert "other: 80 samples" in house("dataset", "build", "other").out
    assert "; it was built before, and its source was not looked at: `--fresh` builds it anew" in house("dataset", "build").out
    info = house.json("dataset", "info", "words")
    assert (info["vocabulary"], info["lengths"], info["samples"], info["tokens"]) == (257, [4, 9], 80, 40 * (7 + 3))
    out = house("dataset", "info", "words").out
    assert "words: 80 sequences, 400 tokens to learn" in out
    assert "padding of train in all: 23.1%" in out
    assert "b.txt: zero bytes" in out
    said = house("dataset", "verify", "words")
    assert said.code == 0
    assert "80 samples" in said.out
    house.study(datasets={"digits": None, "words": text}, base={"dataset": "words"}, axes={"model": ["lstm"], "batch_size": [40]})
    said = house("plan")
    assert said.code != 0
    assert "a global batch of 80 is more than the 36 training samples of words" in said.err


def test_stage_list_remove(noise: House) -> None:
    assert noise("dataset", "stage", "noise").code == 0
    assert noise("dataset", "stage", "noise", "--node", "1").code == 0
    said = noise("dataset", "stage", "noise")
    assert "was there already, " in said.out
    assert "of it hashed anew" in said.out
    caches = noise.json("cache", "ls")
    assert [Path(cache["cache"]).name for cache in caches] == ["local-0", "local-1"]
    name = caches[0]["entries"][0]["name"]
    assert name.startswith("noise-")
    assert name in noise("cache", "ls").out
    said = noise("cache", "rm", "noisy")
    assert said.code == 15
    assert f"there: {name}" in said.err
    said = noise("cache", "rm", name)
    assert said.code == 0
    assert said.out.count("removed") == 2
    assert [cache["entries"] for cache in noise.json("cache", "ls")] == [[], []]


def test_a_dataset_without_a_study_that_names_it(tmp_path: Path, house: House) -> None:
    house.patch.chdir(tmp_path)
    assert main.run(["dataset", "info", "foo"]) != 0
    assert "the dataset 'foo': no study is named, and config/study.yaml is not here" in house.capsys.readouterr().err


def test_a_dataset_that_is_not_built_or_not_there(house: House) -> None:
    said = house("dataset", "info", "digits")
    assert said.code == 20
    assert f"`slipway dataset build digits --study {house.path} --site {house.site}` builds it" in said.err
    said = house("dataset", "verify", "digit")
    assert said.code == 10
    assert "valid: digits" in said.err
    assert house("dataset", "info", f"{house.root}/nothing").code == 20
    assert house("dataset", "build", "digit").code == 10


def test_nodes_of_a_cluster_are_machines(noise: House) -> None:
    noise.site.write_text("storage: storage\ncache: {path: c}\nscheduler: slurm\ndevice: cpu\n")
    assert noise("dataset", "stage", "noise", "--node", "1").code == 10


def test_waiting_results_are_shown_and_delivered(house: House) -> None:
    study = house.load()
    publish_resolved(study)
    target = study.results_dir / "runs" / study.runs[0].run_id / "attempts" / "1"
    target.parent.mkdir(parents=True)
    work = house.root / "cache" / "local-0" / "runs" / "x-r1-a1-abcdef01"
    (work / "out").mkdir(parents=True)
    (work / "out" / "events-0.jsonl").write_text("{}\n")
    note = {"schema": "slipway.pending/1", "out": "out", "target": str(target), "reason": "storage was full"}
    (work / "pending.json").write_text(json.dumps(note))
    assert "not delivered to" in house("cache", "ls").out
    asked = house("reap").out
    where = f"this node's cache {house.root}/cache (site {house.site})"
    assert f"1 result waits in {where}; `slipway reap --push --site {house.site}` delivers\n" in asked
    assert "docker" not in asked  # the site's engine is bare
    assert f"what is not delivered: `slipway reap --push --site {house.site}`\n" in house("cache", "ls").out
    said = house("reap", "--push")
    assert said.code == 0, said.err
    assert "1 of 1 waiting result delivered" in said.out
    assert (target / "events-0.jsonl").is_file()
    assert not work.exists()
    (work / "out").mkdir(parents=True)
    note["target"] = str(house.root / "home" / "autostart" / "1")
    (work / "pending.json").write_text(json.dumps(note))
    said = house("reap", "--push")
    assert (said.code, "which is no attempt of a run below" in said.err) == (18, True)
    assert not (house.root / "home").exists()


def test_where_nothing_is_cached_or_waits_it_is_said_of_which_cache(house: House) -> None:
    assert "nothing is cached" in house("cache", "ls").out
    said = house("reap", "--push")
    assert said.code == 0
    assert (
        f"no result waits in this node's cache {house.root}/cache (site {house.site}); that of another site: --site NAME_OR_PATH\n"
        in said.out
    )
    assert "0 of 0" not in said.out


def test_a_result_that_cannot_be_delivered_waits_on(house: House) -> None:
    work = house.root / "cache" / "local-0" / "runs" / "x-r1-a1-abcdef01"
    (work / "out").mkdir(parents=True)
    (work / "pending.json").write_text("{}")
    said = house("reap", "--push")
    assert said.code == 18
    assert "1 result still waits on this node" in said.err
    assert work.exists()
