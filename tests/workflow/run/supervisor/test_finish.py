"""The end of a run whose record cannot be made; without a node program."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from base.errors import Defect
from tests.workflow.run.supervisor.made import RUN, running_attempt
from workflow.run.plan import Framework
from workflow.run.record.outcome import Ending
from workflow.run.storage.description import Work
from workflow.run.supervisor.finish import finish
from workflow.run.supervisor.preflight import Preflight

pytestmark = pytest.mark.processes

FRAMEWORK = Framework(name="fake", folder="/nowhere", launcher="ranks", command=("true",))
WORK = Work(framework=FRAMEWORK, dataset=None, train_samples=0, model=None, macs_by_length=(), image=None)


def test_a_defect_of_ours_in_the_record_is_said_and_not_tried_again_as_storage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    attempt = running_attempt(replace(RUN, run_dir=str(tmp_path / "runs" / "cell-r1")))
    attempt.preflight = cast(Preflight, SimpleNamespace(record=[1]))  # what no record can be made of
    assert finish(attempt, WORK, Ending(status="hang", reason="rank 0 hangs")) == Defect.exit_code
    assert "no record could be made of it: publish: AttributeError: 'list' object has no attribute 'findings': this" in caplog.text
    assert "in network_warnings" in caplog.text
    assert "; again in" not in caplog.text
    assert not list((tmp_path / "runs" / "cell-r1" / "attempts").iterdir())
