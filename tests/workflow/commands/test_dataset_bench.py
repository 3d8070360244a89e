"""`slipway dataset bench`: what is printed beside what networks need, and where the needs come from."""

from pathlib import Path

import numpy as np
import pytest

from base.errors import ConfigError
from data_prep.manifest import manifest_digest, read_manifest
from tests.data_prep.reader.small import image_dataset
from tests.workflow.commands.conftest import House
from workflow.commands.dataset_bench import parse_pass_size, parse_rate
from workflow.study.publishing import publish_resolved

QUICK = ("--repeats", "2", "--seconds", "0.2", "--threads", "2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    return image_dataset(tmp_path / "node", [(random.integers(0, 256, (48, 48, 3), dtype=np.uint8), 0) for _ in range(30)])


def test_published_rates_where_no_run_was_measured(house: House, root: Path) -> None:
    said = house("dataset", "bench", str(root), *QUICK)
    assert said.code == 0, said.err
    for words in ("samples, shuffled", "the reader, one process", "resnet50 on A100", "Supply: samples, shuffled, "):
        assert words in said.out
    found = house.json("dataset", "bench", str(root), *QUICK)
    assert found["root"] == str(root)
    assert found["sample_bytes"] == read_manifest(root).bytes / 30
    assert {(rate["access"], len(rate["samples_per_s"])) for rate in found["rates"]} == {(way, 2) for way in ("random", "reader")}
    assert len(found["needs"]["rows"]) == 3


def test_given_rates(house: House, root: Path) -> None:
    found = house.json("dataset", "bench", str(root), *QUICK, "--rate", "alexnet=0.001", "--rate", "lenet=1e9")
    assert [row["model"] for row in found["needs"]["rows"]] == ["alexnet", "lenet"]
    assert "enough for 8 GPUs" in found["needs"]["rows"][0]["verdict"]
    assert "too slow for one GPU" in found["needs"]["rows"][1]["verdict"]


def test_measured_rates_of_the_study(house: House, root: Path) -> None:
    """Only those on this dataset, wherever it lies; with the samples of this place."""
    study = house.load()
    digest = manifest_digest(root)
    for number, run in enumerate(study.runs):
        house.record(run.run_id, "ok", **({} if number else {"dataset.digest": digest}))
    publish_resolved(study)
    found = house.json("dataset", "bench", str(root), *QUICK)
    (row,) = found["needs"]["rows"]
    assert row["basis"].startswith("measured")
    assert row["sample_bytes"] == read_manifest(root).bytes / 30


@pytest.mark.parametrize("text", ["920", "=920", "resnet50=", "resnet50=fast", "resnet50=0", "resnet50=-1", "resnet50=nan", "resnet50=inf"])
def test_wrong_rates(text: str) -> None:
    with pytest.raises(ConfigError, match="valid: a name and samples per second"):
        parse_rate(text)


def test_a_rate_has_a_name() -> None:
    assert parse_rate("my=net=9.5") == ("my=net", 9.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [("lots", "--size: 'lots' is not a size: write a number with its unit"), ("0", "at least one byte"), ("0.4", "at least")],
)
def test_wrong_sizes_of_a_pass(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_pass_size(text)


def test_the_size_of_a_pass_has_a_unit() -> None:
    assert parse_pass_size("4MB") == 4_000_000
