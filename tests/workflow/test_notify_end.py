"""A study tells of its end also where plain Snakemake was typed."""

from pathlib import Path

import pytest

from tests.workflow.dag.test_notify import server
from tests.workflow.test_identity import Checkout

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_plain_snakemake_tells_of_the_end_once(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    hook = tmp_path / "hook"
    with server() as (url, told):
        hook.write_text(url)
        hook.chmod(0o600)
        checkout.study.write_text(f"{checkout.study.read_text()}\nnotify: {{webhook_file: {hook}, when: [end]}}\n")
        done = checkout.typed("--profile", "profiles/local")
        assert done.returncode == 0, done.stderr
    (only,) = told
    assert only["text"].startswith("*identity: 2 of 2 runs have a result")
