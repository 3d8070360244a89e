"""The rules: what they import and start exists, they say what happens and what they ask for, and structure.md has them all."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, read
from tests.workflow.dag.test_slurm_jobs import JOBS, graph

FILES = (ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk")))
RULE = re.compile(r"^rule (\w+):\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)
IN_DOCS = re.compile(r"^\| `(\w+)` \| (`\w+`(?:, `\w+`)*|nothing) \| .* \|$", re.MULTILINE)
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
    for rule, _ in RULE.findall(TEXT):
        assert rule == "all" or "    message:\n" in body_of(rule), rule


@pytest.mark.processes
def test_resources_are_written_out(tmp_path: Path) -> None:
    asked = "gpus_per_node: 4\ncpus_per_node: 8\ndirectives: [--x]\naccount: a\nqos: q\nconstraint: c\nparallel_environment: mpi 8\n"
    site = f"storage: storage\nscheduler: slurm\nqueue: main\n{asked}cache: {{path: cache}}\n"
    found = graph(tmp_path, JOBS, site)
    for rule, resources in (("stage_train_push", found.run_resources), ("dataset_shard", found.shard_resources)):
        written = re.findall(r"^        (\w+)=(?:SHARD_)?JOB\.get\(\"(\w+)\"\)", body_of(rule), re.MULTILINE)
        assert sorted(written) == sorted((name, name) for name in resources), rule


def test_the_docs_name_each_rule() -> None:
    assert [rule for rule, _ in IN_DOCS.findall(read("docs/developers/structure.md"))] == [rule for rule, _ in RULE.findall(TEXT)]


@pytest.mark.slow
def test_what_a_rule_waits_for_by_the_docs_is_what_snakemake_says(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).parent / "snakemake"), "--profile", str(ROOT / "profiles" / "local"), "-s", str(ROOT / "Snakefile")]
    (tmp_path / "site.yaml").write_text("{storage: storage, cache: {path: cache}}\n")
    argv += ["--configfile", str(ROOT / "config" / "study.yaml"), "--config", f"site={tmp_path / 'site.yaml'}", "--rulegraph"]
    done = subprocess.run([*argv, "-d", str(tmp_path)], capture_output=True, text=True, check=True, timeout=120)
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', done.stdout))
    edges = {(names[one], names[two]) for one, two in re.findall(r"(\d+) -> (\d+)", done.stdout)}
    told = {
        (before, rule)
        for rule, befores in IN_DOCS.findall(read("docs/developers/structure.md"))
        for before in re.findall(r"`(\w+)`", befores)
    }
    assert edges == {edge for edge in told if not {"stage", "image"} & set(edge)}  # this study has neither rule
