"""`mounts` and `env` of a site: for all of its containers, behind what a program says itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from base.errors import ConfigError
from workflow.run.plan import Framework, at_site
from workflow.study.site import Site
from workflow.study.site_file import read_site


def site(root: Path, keys: str, engine: str = "docker", scheduler: str = "slurm") -> Site:
    path = root / "here.yaml"
    path.write_text(f"storage: /work\ncache: {{path: /local}}\nscheduler: {scheduler}\ndevice: cpu\nengine: {engine}\n{keys}\n")
    return read_site(path, {"USER": "ada", "TMPDIR": "/local/7"})


def test_they_are_read_relative_to_the_file_and_by_target(tmp_path: Path) -> None:
    found = site(tmp_path, "mounts: [{source: lib, target: /z, writable: true}, {source: /s/$USER, target: /a}]\nenv: {B: '1', A: ''}")
    assert found.mounts == (("/s/ada", "/a", False), (str(tmp_path / "lib"), "/z", True))
    assert found.env == (("A", ""), ("B", "1"))
    assert Site.from_json(found.to_json()) == found


def test_what_a_program_says_itself_holds(tmp_path: Path) -> None:
    found = site(tmp_path, "mounts: [{source: /s, target: /a}, {source: /t, target: /a/b}]\nenv: {A: site, B: site}")
    program = Framework(
        name="f", folder="/f", launcher="ranks", command=("x",), mounts=(("/own", "/a", True),), variables=(("A", "own"), ("C", "own"))
    )
    both = at_site(program, found)
    assert both.mounts == (("/own", "/a", True), ("/t", "/a/b", False))
    assert both.variables == (("A", "own"), ("B", "site"), ("C", "own"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("mounts: [{source: /s, target: /slipway/data}]", r"here.yaml:6: mounts\[0\].target: found .*/slipway/data.* or of Slipway's"),
        ("mounts: [{source: /s, target: /}]", r"mounts\[0\].target: found"),
        ("mounts: [{source: /s, target: /a}, {source: /t, target: /a}]", r"mounts\[1\].target: found '/a' a second time"),
        ("mounts: [{source: $NOWHERE/s, target: /a}]", r"mounts\[0\].source: .*\$NOWHERE is not set on "),
        ("mounts: [{source: $TMPDIR/s, target: /a}]", r"mounts\[0\].source: \$TMPDIR has another value in each job"),
        ("env: {SLIPWAY_OUT: x}", "env.SLIPWAY_OUT: found .*none that Slipway sets itself"),
        ("env: {A: 1}", "env.A: found the whole number 1"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, keys: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        site(tmp_path, keys)


def test_without_a_container_nothing_is_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\].target: found '/a', and engine bare has no container, in which /s could be"):
        site(tmp_path, "mounts: [{source: /s, target: /a}]", "bare")
    assert site(tmp_path, "mounts: [{source: /s, target: /s}]\nenv: {A: b}", "bare").mounts == (("/s", "/s", False),)
