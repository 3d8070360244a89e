"""`slipway profile` on a study that was run before: the profiles are made, verified and shown, and what was measured stays as it is."""

import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from base.process import CODE_ROOT
from tests.workflow.test_examples import EXAMPLES, SITE

pytestmark = pytest.mark.slow
RATES = ("speedup", "times", "scaling", "budget", "hours", "failures")
PROGRAM = yaml.safe_load(EXAMPLES["ddp"].read_text())["programs"]["classifier"]
LENET = ["conv1", "pool1", "conv2", "pool2", "flatten", "fc1", "relu1", "fc2"]


def slipway(place: Path, verb: str, *words: str) -> str:
    argv = [sys.executable, "-m", "workflow.commands.main", verb, str(place / "study.yaml"), "--site", str(place / "site.yaml"), *words]
    done = subprocess.run(argv, cwd=place, env={**os.environ, "PYTHONPATH": str(CODE_ROOT)}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kept(results: Path) -> dict[str, bytes]:
    """What the measured runs left, and the tables of them."""
    records = {path.parent.name: path.read_bytes() for path in results.glob("runs/*/record.json") if "-profile-" not in path.parent.name}
    return records | {name: (results / "tables" / f"{name}.csv").read_bytes() for name in RATES}


def test_profiles_are_made_beside_what_was_measured(tmp_path: Path) -> None:
    study = {
        "study": "profiled",
        "datasets": {"digits": {"source": "sklearn-digits", "size": 32, "shards": 2}},
        "programs": {"mine": {**PROGRAM, "folder": str(EXAMPLES["ddp"].parent / "train")}},
        "base": {"dataset": "digits", "batch_size": 16, "gpus_per_node": 2, "repeats": 1, "steps": {"warmup": 1, "measured": 5}},
        "include": [{"model": "lenet"}, {"program": "mine", "args": {"width": 64}}],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    (tmp_path / "site.yaml").write_text(SITE)
    results = tmp_path / "storage" / "results" / "profiled"
    slipway(tmp_path, "run")
    before = kept(results)
    shown = slipway(tmp_path, "profile")
    assert kept(results) == before, "no number of the measured runs is another one now"
    assert "Where a step goes" in shown

    found: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for row in csv.DictReader((results / "tables" / "layers.csv").read_text().splitlines()):
        found[row["model"]].append(row)
    assert set(found) == {"lenet", "mine"}
    assert [row["layer"] for row in found["lenet"]][: len(LENET)] == LENET
    for rows in found.values():
        share = {row["layer"]: float(row["share"]) for row in rows}
        assert share.pop("step") == 1
        assert sum(share.values()) == pytest.approx(1, abs=1e-5)
        assert sum(float(row["backward_ms"] or 0) > 0 for row in rows) >= 3
        assert {"optimizer", "communication"} <= share.keys()
    profiles = json.loads(slipway(tmp_path, "profile", "--json"))
    assert len(profiles) == 2
    for told in profiles.values():
        assert (told["profile"]["steps"], told["exchange"]["ranks"], told["exchange"]["steps"]) == (5, 2, 9)
    assert "all is what was written" in slipway(tmp_path, "verify")
    slipway(tmp_path, "tables")  # of the study as it is typed, without the key
    assert (results / "tables" / "layers.csv").stat().st_size > 1000, "profiles stay where the study does not ask for them"
