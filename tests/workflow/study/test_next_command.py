"""What messages propose to type is whole."""

from pathlib import Path

import pytest

from workflow.study.next_command import completed

STUDY = Path("my study.yaml")


@pytest.mark.parametrize(
    ("proposed", "whole"),
    [
        ("reap --push", "reap --push --site here.yaml"),
        ("cache ls", "cache ls --site here.yaml"),
        ("status", "status 'my study.yaml' --site here.yaml"),
        ("run STUDY --retry failed", "run 'my study.yaml' --retry failed --site here.yaml"),
        ("run --adopt", "run 'my study.yaml' --adopt --site here.yaml"),
        ("dataset build digits", "dataset build digits --study 'my study.yaml' --site here.yaml"),
        ("session stop shell-1", "session stop shell-1 --study 'my study.yaml' --site here.yaml"),
        ("dataset verify /nfs/x", "dataset verify /nfs/x --site here.yaml"),
        ("run other.yaml --site there", "run other.yaml --site there"),
        ("doctor --write-site NAME", "doctor --write-site NAME"),
        ("init DIR", "init DIR"),
        ("it's odd", "it's odd"),
    ],
)
def test_a_command_gets_the_site_and_the_study_it_lacks(proposed: str, whole: str) -> None:
    assert completed(f"do `slipway {proposed}` now", "here.yaml", STUDY) == f"do `slipway {whole}` now"


def test_what_nobody_chose_is_not_named() -> None:
    text = "free room, then `slipway reap --push`; or `snakemake -n`"
    assert completed(text, None) == text
    assert completed("`slipway plan` lists them", None, STUDY) == "`slipway plan 'my study.yaml'` lists them"
