"""Storage under a name that a shell would take apart: a dataset is built there and a run is started, by the rules themselves."""

from pathlib import Path

import pytest

from tests.workflow.test_identity import Checkout

pytestmark = pytest.mark.slow
ODD = "a b [a]*? `touch pwned` 'q' & ;x"


def test_a_storage_path_reaches_every_rule_as_it_is(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    for name in ("a", "b", "a b a"):  # what an unquoted blank or pattern would find instead
        (tmp_path / name).mkdir()
    site = tmp_path / "site.yaml"
    site.write_text(f'storage: "{ODD}"\ncache: {{path: "cache {ODD}"}}\n')
    checkout.snakemake("--config", f"site={site}")
    assert len(list((tmp_path / ODD / "datasets").glob("noise-*/manifest.json"))) == 1
    assert len((tmp_path / ODD / "results" / "identity" / "started").read_text().split()) == 2
    assert not list(tmp_path.rglob("pwned"))
    assert not [path for name in ("a", "b", "a b a") for path in (tmp_path / name).iterdir()]
