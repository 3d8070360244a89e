"""The rules: what they import and start exists, they say what happens and what they ask for, and their picture is theirs."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.rule_graph import FILES, RULE, SAID, picture, rules
from tests.docs.test_docs import ROOT, read
from tests.workflow.dag.test_slurm_jobs import JOBS, graph

TEXT = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
IMPORTS = re.findall(r"^from ((?:base|cluster|containers|data_prep|workflow)[\w.]*) import (.*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("module", "names"), IMPORTS)
def test_what_rules_import_is_there(module: str, names: str) -> None:
    found = importlib.import_module(module)
    for name in names.split(","):
        assert hasattr(found, name.split(" as ")[0].strip()), f"{module}: {name}"


def test_what_rules_start_is_there() -> None:
    started = re.findall(r"\{PY\} ([\w.]+)", TEXT)
    assert len(started) > 3
    assert not [module for module in started if importlib.util.find_spec(module) is None]


def body_of(rule: str) -> str:
    return dict(RULE.findall(TEXT))[rule]


def test_every_rule_says_what_happens() -> None:
    for rule in rules():
        assert rule == "all" or "    message:\n" in body_of(rule), rule


@pytest.mark.processes
def test_resources_are_written_out(tmp_path: Path) -> None:
    asked = "gpus_per_node: 4\ncpus_per_node: 8\ndirectives: [--x]\naccount: a\nqos: q\nconstraint: c\nparallel_environment: mpi 8\n"
    site = f"storage: storage\nscheduler: slurm\nqueue: main\n{asked}cache: {{path: cache}}\n"
    found = graph(tmp_path, JOBS, site)
    for rule, resources in (("stage_train_push", found.run_resources), ("dataset_shard", found.shard_resources)):
        written = re.findall(r"^        (\w+)=(?:SHARD_)?JOB\.get\(\"(\w+)\"\)", body_of(rule), re.MULTILINE)
        assert sorted(written) == sorted((name, name) for name in resources), rule


def test_the_picture_is_that_of_the_rules_and_names_each() -> None:
    assert read("docs/rules.svg") == picture(), "python -m tests.docs.rule_graph > docs/rules.svg"
    assert set(SAID) == set(rules())
    assert all(f">{rule}</text>" in read("docs/rules.svg") for rule in rules())
    assert "](rules.svg)" in read("docs/structure.md")


@pytest.mark.slow
def test_the_picture_is_what_snakemake_says(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).parent / "snakemake"), "--profile", str(ROOT / "profiles" / "local"), "-s", str(ROOT / "Snakefile")]
    (tmp_path / "site.yaml").write_text("{storage: storage, cache: {path: cache}}\n")
    argv += ["--configfile", str(ROOT / "config" / "study.yaml"), "--config", f"site={tmp_path / 'site.yaml'}", "--rulegraph"]
    done = subprocess.run([*argv, "-d", str(tmp_path)], capture_output=True, text=True, check=True, timeout=120)
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', done.stdout))
    edges = {(names[one], names[two]) for one, two in re.findall(r"(\d+) -> (\d+)", done.stdout)}
    assert len(edges) > 5
    assert edges <= {(before, rule) for rule, befores in rules().items() for before in befores}
