"""`slipway run`: which words are ours, what Snakemake is given, and what is understood of what it says."""

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError, StorageError, error_of_exit
from cluster.installation import PROFILES, SNAKEFILE
from workflow.commands.run import (
    CommandLine,
    child_argv,
    failed_rules,
    parse_words,
    profile_name,
    profile_path,
    snakemake_error,
)
from workflow.study.site import local_site


def sort(text: str, **ours: str | None) -> CommandLine:
    return parse_words(text.split(), ours)


@pytest.mark.parametrize(
    ("text", "study", "config", "rest"),
    [
        ("", None, {}, ""),
        ("a.yaml", "a.yaml", {}, ""),
        ("a.yaml -n --cores 2", "a.yaml", {}, "-n --cores 2"),
        ("--cores 2 -k", None, {}, "--cores 2 -k"),
        ("--configfile a.yaml -n", "a.yaml", {}, "-n"),
        ("a.yaml --config site=x --config retry=failed", "a.yaml", {"site": "x", "retry": "failed"}, ""),
        ("a.yaml -C site=x retry=failed -n", "a.yaml", {"site": "x", "retry": "failed"}, "-n"),
        ("a.yaml --config=site=x -n", "a.yaml", {"site": "x"}, "-n"),
        ("a.yaml --config site=x target", "a.yaml", None, ""),
        ("a.yaml results/report.html", "a.yaml", {}, "results/report.html"),
        ("--workflow-profile=own.yaml", None, {}, "--workflow-profile=own.yaml"),
        ("a.yaml -j 4 --set-threads a=1 b=2 -R x", "a.yaml", {}, "-j 4 --set-threads a=1 b=2 -R x"),
    ],
)
def test_words_are_ours_or_snakemakes(text: str, study: str | None, config: dict[str, str] | None, rest: str) -> None:
    if config is None:
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            sort(text)
        return
    found = sort(text)
    assert (found.study, dict(found.config), " ".join(found.rest)) == (study, config, rest)


def test_our_options_and_config_are_one() -> None:
    assert sort("a.yaml --config retry=failed", site="here.yaml").config == {"retry": "failed", "site": "here.yaml"}
    assert sort("a.yaml --config site=x", site="x").config == {"site": "x"}
    with pytest.raises(ConfigError, match="site was given twice, as 'x' and as 'y'"):
        sort("a.yaml --config site=x", site="y")


@pytest.mark.parametrize(
    "text",
    [
        "--cores 2 b.yaml",
        "-n b.yaml",
        "-kp b.yaml",
        "--keep-going b.yaml",
        "a.yaml --configfile b.yaml",
        "a.yaml b.yaml",
        "a.yaml -n b.yaml",
        "--configfile a.yaml b.yaml",
    ],
)
def test_a_study_that_cannot_be_told_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"the study comes first: slipway run b.yaml|one study at a time"):
        sort(text)


def test_who_only_looks_and_who_runs() -> None:
    assert sort("a.yaml --report=x.html").looks
    assert sort("a.yaml --unlock").looks
    assert not sort("a.yaml --cores 2").looks
    assert sort("a.yaml -n").dry
    assert not sort("a.yaml -k").dry
    assert sort("a.yaml -np").dry
    assert sort("a.yaml -pn").dry
    assert not sort("a.yaml -jn").dry
    assert sort("a.yaml --lp").looks


def test_the_profile_fits_the_site() -> None:
    local: Any = local_site(False)
    slurm = type(local).from_json({**local.to_json(), "scheduler": "slurm"})
    assert profile_name(local, {}) == "local"
    assert profile_name(slurm, {}) == "slurm"
    assert profile_name(slurm, {"SLURM_JOB_ID": "7"}) == "slurm-allocation"


def test_a_profile_is_one_of_ours_or_a_directory(tmp_path: Path) -> None:
    assert profile_path("local") == str(PROFILES / "local")
    assert profile_path(str(tmp_path)) == str(tmp_path)
    with pytest.raises(ConfigError, match="valid: local, .*slurm, slurm-allocation"):
        profile_path("locall")


def test_every_path_is_absolute_and_config_comes_once(tmp_path: Path) -> None:
    assert SNAKEFILE.is_file()
    words = CommandLine(config={"site": "/s.yaml", "retry": "failed"}, rest=("-k", "target"))
    argv = child_argv(profile_path("local"), Path("a.yaml"), tmp_path, words, {})
    assert argv[1:4] == ("-P", "-m", "snakemake")
    assert argv[argv.index("--configfile") + 1] == str(Path("a.yaml").absolute())
    assert argv[argv.index("--directory") + 1] == str(tmp_path)
    assert argv[-5:] == ("-k", "target", "--config", "site=/s.yaml", "retry=failed")
    own = child_argv("p", Path("a.yaml"), tmp_path, CommandLine(rest=("-d", "x")), {})
    assert "--directory" not in own


def test_inside_of_a_job_its_nodes_are_shared_out(tmp_path: Path) -> None:
    path = profile_path("slurm-allocation")
    argv = child_argv(path, Path("a.yaml"), tmp_path, CommandLine(), {"SLURM_JOB_NUM_NODES": "4"})
    assert argv[argv.index("--resources") + 1] == "nodes=4"
    assert argv[argv.index("--resources") + 2].startswith("--"), "a target would be one more of its values"


def test_files_that_snakemake_writes_are_the_users(tmp_path: Path) -> None:
    here = Path().absolute()
    assert sort("a.yaml --report x.html -k").rest == ("-k", f"--report={here}/x.html")
    assert sort("a.yaml --archive=a.tar").rest == (f"--archive={here}/a.tar",)
    assert sort("a.yaml --report -k").rest == ("-k", f"--report={here}/report.html")
    with pytest.raises(ConfigError, match="the report of the study itself"):
        child_argv("p", Path("a.yaml"), tmp_path, sort(f"a.yaml --report {tmp_path}/report.html"), {})


def test_an_error_of_ours_keeps_its_class_through_snakemake() -> None:
    assert error_of_exit(22, ConfigError) is StorageError
    assert error_of_exit(1, ConfigError) is ConfigError
    assert error_of_exit(99, ConfigError) is ConfigError


TRACEBACK = """Using profile x
Traceback (most recent call last):

  File "snakemake/cli.py", line 38, in load
    obj = open(path)

FileNotFoundError: [Errno 2] No such file or directory: 'nosuch.yaml'

"""


USAGE = "usage: x\n  [targets ...]\n__main__.py: error: unrecognized arguments: --nosuch\n"
CORES = "Error parsing number of cores (--cores, -c): must be integer or 'all'."


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (TRACEBACK, "FileNotFoundError: [Errno 2] No such file or directory: 'nosuch.yaml'"),
        (USAGE, "unrecognized arguments: --nosuch"),
        (f"Error: {CORES}\n", f"Error: {CORES}"),
        ("x\n\nBuilding DAG of jobs...\nMissingRuleException:\nNo rule.\n", "Building DAG of jobs...\nMissingRuleException:\nNo rule."),
        ("Using profile x\nsnakemake: study.yaml:3: found 4\n", "study.yaml:3: found 4"),
    ],
    ids=["traceback", "usage", "cli", "rule", "refused"],
)
def test_its_errors_are_found_among_its_words(log: str, said: str) -> None:
    assert snakemake_error(log) == said


def test_the_rules_that_failed_are_named_once() -> None:
    assert failed_rules("Error in rule plots:\n x\nError in rule plots:\nError in rule page:\n") == ["plots", "page"]
