"""A storage that does not answer any more holds up nobody who has a time limit. The storage is an ext4 that is frozen: whoever writes to it
waits uninterruptibly, and cannot be killed."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from base.errors import SlipwayError
from base.process import run
from tests.data_prep.staging.disks import Disk, ext4
from tests.workflow.study.studies import changed, write
from workflow.commands.snakemake_hooks import after_failure, closing_lines
from workflow.dag.refusals import load_graph

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0


@contextmanager
def still_frozen(disk: Disk, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """What is done within must come back while the storage is frozen; if it does not, it is thawed, and the test fails."""
    thaw = threading.Event()
    with disk.frozen():
        watchdog = threading.Timer(patience_s, lambda: (thaw.set(), os.system(f"fsfreeze --unfreeze {disk.place}")))  # noqa: S605
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
        assert not thaw.is_set(), "it waited for the storage"


def test_a_command_that_cannot_be_killed_is_not_waited_for(tmp_path: Path) -> None:
    with ext4(tmp_path) as disk, still_frozen(disk), pytest.raises(SlipwayError, match=r"did not end within 0\.5 s"):
        run(["touch", str(disk.place / "x")], timeout_s=0.5)


def test_the_report_after_a_failure_is_bounded(tmp_path: Path) -> None:
    with ext4(tmp_path) as disk:
        site = tmp_path / "here.yaml"
        site.write_text(f"storage: {disk.place}\ncache: {{path: cache}}\ndevice: cpu\n")
        graph = load_graph({"site": str(site)}, [write(tmp_path, changed())], tmp_path, {})
        graph.storage_s = 5.0
        with still_frozen(disk):
            said = after_failure(graph)
            closing_lines(graph)  # what a frozen ext4 can still read, it reads: only that it comes back is sure
    assert said == "study.json of small: no answer within 5 s; the storage behind it hangs, or is very slow"
