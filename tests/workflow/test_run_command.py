"""`slipway run` with the real Snakemake, in a copy of the checkout whose supervisor only writes a record; typed in any directory."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.base.test_frozen import still_frozen
from tests.data_prep.staging.disks import ext4
from tests.workflow.dag.test_notify import server
from tests.workflow.test_identity import STUDY, Checkout
from workflow.report.collect import read_records

pytestmark = pytest.mark.slow
ODD = "a b [a]*? `touch pwned` 'q' & ;x"
WAITS = """
import signal, sys, time
from pathlib import Path
print("10:00:00 run INFO train: step 5 of 60", file=sys.stderr, flush=True)
Path(sys.argv[sys.argv.index("--results") + 1], "waits").touch()
signal.signal(signal.SIGINT, lambda *_: sys.exit(26))
while True:
    time.sleep(1)
"""


class Typed:
    """`slipway run`, typed in a directory that has nothing to do with the study."""

    def __init__(self, root: Path) -> None:
        self.checkout = Checkout(root)
        self.away = root / "away"
        self.away.mkdir()
        self.environ = {**os.environ, "PYTHONPATH": str(self.checkout.root)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "workflow.commands.main", "run", str(self.checkout.study), *words]
        return subprocess.Popen(
            argv, cwd=self.away, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )

    def __call__(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    return Typed(tmp_path)


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "not within 120 s"
        time.sleep(0.05)


def test_from_the_first_start_to_new_tables_of_an_edited_study(typed: Typed, tmp_path: Path) -> None:
    checkout = typed.checkout
    code, out, err = typed("-n")
    assert (code, err) == (0, "")
    assert "identity: 2 runs of 2 would run" in out
    assert "  lenet, batch 8, 2 nodes  (" in out
    code, out, err = typed("-n", "--until", "dataset")
    assert code == 0, err
    assert "dataset_plan" in out + err
    assert "stage_train_push" not in out + err
    assert not checkout.results.exists()

    code, out, err = typed()
    assert code == 0, out + err
    assert "identity: 2 runs to do of 2; snakemake's log: " in err
    assert "snakemake has ended; the table is made from the records" in err
    assert "done: lenet, batch 8, 1 node, in " in err
    assert "failed: lenet, batch 8, 2 nodes: error: " in err
    assert "Error in rule" not in err + out
    again = f"1 run failed, as the table says; again: slipway run {checkout.study} --retry failed"
    report = f"report: {checkout.results}/report.html"
    for words in ("of 2 runs ok, ", report, again):
        assert words in out
    assert not list(typed.away.iterdir())
    login = [json.loads(path.read_text())["steps_s"]["login"] for path in checkout.results.glob("runs/*/record.json")]
    assert len(login) == 2
    assert len(set(login)) == 1, "of one start"
    assert login[0] > 0

    code, out, err = typed()
    assert code == 0
    assert "identity: 0 runs to do of 2" in err
    for words in ("identity: speed-up", report, again):
        assert words in out
    direct = checkout.typed("--profile", "profiles/local")
    for words in ("Nothing to be done", "identity: speed-up", report, again):
        assert words in direct.stdout + direct.stderr

    def baseline() -> object:
        return read_records(checkout.results / "records.parquet").sources[0].baseline

    before = checkout.records()
    checkout.study.write_text(STUDY.replace("baseline: {nodes: 1}", "baseline: {nodes: 2}"))
    code, out, err = typed()
    assert (code, baseline()) == (0, {"nodes": 2}), out + err
    (hook := tmp_path / "hook").touch(0o600)
    checkout.study.write_text(f"{STUDY}\nnotify: {{webhook_file: {hook}, when: [end]}}\n")
    dry = checkout.typed("--profile", "profiles/local", "-n")
    assert "report: records of all runs -> records.parquet" in dry.stdout, dry.stderr
    assert baseline() == {"nodes": 2}
    page = checkout.results / "report.html"
    made = page.stat().st_mtime_ns
    with server() as (url, told):
        hook.write_text(url)
        checkout.typed("--profile", "profiles/local")
    assert [one["text"].startswith("*identity: 2 of 2 runs have a result") for one in told] == [True], "it tells of its end once"
    assert baseline() == {"nodes": 1}, "plain Snakemake makes new tables where `slipway run` made the old ones"
    assert page.stat().st_mtime_ns > made
    assert (len(checkout.started()), checkout.records()) == (2, before)

    shutil.rmtree(checkout.root / ".snakemake")
    drawn = checkout.typed("--profile", "profiles/local", "--dag").stdout
    assert len(re.findall(r'label = "stage_train_push', drawn)) == 2, "finished runs are in Snakemake's graph"
    assert len(re.findall(r'label = "dataset_shard', drawn)) == 2, "each run comes from its dataset"
    of_snakemake = tmp_path / "snakemake.html"
    assert checkout.typed("--profile", "profiles/local", "--report", str(of_snakemake)).returncode == 0
    assert "stage_train_push" in of_snakemake.read_text()


def test_several_config_lose_nothing_and_a_storage_path_reaches_every_rule_as_it_is(typed: Typed, tmp_path: Path) -> None:
    for name in ("a", "b", "a b a"):  # what an unquoted blank or pattern would find instead
        (tmp_path / name).mkdir()
    site = tmp_path / "my site.yaml"
    site.write_text(f'storage: "{ODD}"\ncache: {{path: "cache {ODD}"}}\n')
    code, out, err = typed("--config", f"site={site}", "--cores", "2")
    assert code == 0, out + err
    assert len(list((tmp_path / ODD / "datasets").glob("noise-*/manifest.json"))) == 1
    results = tmp_path / ODD / "results" / "identity"
    assert f"again: slipway run {typed.checkout.study} --retry failed --site '{site}'" in out
    code, out, err = typed("--config", f"site={site}", "--config", "retry=failed")
    assert code == 0, out + err
    assert "identity: 1 run to do of 2" in err
    assert len((results / "started").read_text().split()) == 3
    assert not typed.checkout.results.exists()
    assert not list(tmp_path.rglob("pwned"))
    assert not [path for name in ("a", "b", "a b a") for path in (tmp_path / name).iterdir()]


def test_ctrl_c_ends_the_runs_and_says_how_to_go_on(typed: Typed, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    typed.environ["TMPDIR"] = str(scratch)
    (typed.checkout.root / "workflow" / "run" / "supervisor" / "__main__.py").write_text(WAITS)
    process = typed.start()
    wait_for((typed.checkout.results / "waits").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 26, out + err
    assert "SIGINT: the runs are ended" in err
    assert f"2 runs have no result; go on: slipway run {typed.checkout.study}" in out
    assert "ended by SIGINT; snakemake's log: " in err
    assert "Traceback" not in out + err
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_storage_that_is_frozen_at_its_start_is_an_error_within_the_limit(typed: Typed, tmp_path: Path) -> None:
    with ext4(tmp_path) as disk:
        site = tmp_path / "frozen.yaml"
        site.write_text(f"storage: {disk.place}\ncache: {{path: cache}}\n")
        with still_frozen(disk, 180), (tmp_path / "err").open("wb") as err:
            argv = [sys.executable, "-m", "workflow.commands.main", "run", str(typed.checkout.study), "--site", str(site)]
            code = subprocess.run(argv, cwd=typed.away, env=typed.environ, stderr=err, stdout=err, check=False, timeout=170).returncode
        said = (tmp_path / "err").read_text()
    assert code == 22, said
    assert "the results of identity: no answer within 60 s; the storage behind it hangs" in said


def test_killed_it_leaves_nothing_running(typed: Typed) -> None:
    (typed.checkout.root / "workflow" / "run" / "supervisor" / "__main__.py").write_text(WAITS)
    process = typed.start()
    wait_for((typed.checkout.results / "waits").exists, process)
    (command,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    children = [command, *Path(f"/proc/{command}/task/{command}/children").read_text().split()]
    watched = {os.pidfd_open(int(child)): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    assert any(b"snakemake" in words for words in watched.values())
    process.kill()
    process.communicate(timeout=60)

    for descriptor, words in watched.items():
        assert select.select([descriptor], [], [], 60)[0], f"{words!r} outlived the command that started it"
        os.close(descriptor)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a process of others that has just ended
            if f"--results\0{typed.checkout.results}".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)  # what stands for a supervisor here watches no parent


@pytest.fixture(scope="module")
def nothing_done(tmp_path_factory: pytest.TempPathFactory) -> Typed:
    return Typed(tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--nosuch",), 2, "snakemake does not accept this: unrecognized arguments: --nosuch"),
        (("nosuchtarget",), 10, "MissingRuleException: No rule to produce nosuchtarget"),
        (("--cores", "0"), 10, "snakemake: --cores 0: no run could ever start; valid: 1 or more"),
    ],
    ids=["option", "target", "no cores"],
)
def test_what_snakemake_refuses_is_a_sentence(nothing_done: Typed, words: tuple[str, ...], code: int, said: str) -> None:
    found, out, err = nothing_done(*words)
    assert (found, out) == (code, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert "the table is made" not in err
    if code != 2:
        assert Path(err.rpartition("; snakemake's log: ")[2].strip()).is_file()
