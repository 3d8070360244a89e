"""Who makes an environment of a framework: one at a time, and what was begun never looks complete."""

import sys
from pathlib import Path

import pytest

from base.errors import ConfigError
from containers import frameworks
from containers.frameworks import load_framework
from containers.frameworks.own_python import made_anew, main

HOME = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("package==1\n")
    return path


def test_what_was_begun_does_not_look_complete(tmp_path: Path, pins: Path) -> None:
    place = tmp_path / "frameworks" / "jax"
    with made_anew(place, pins):
        place.mkdir()
    assert (place / pins.name).read_bytes() == pins.read_bytes()
    with pytest.raises(KeyboardInterrupt), made_anew(place, pins):
        raise KeyboardInterrupt  # before the old one is removed
    assert not (place / pins.name).exists()


def test_two_do_not_make_one_environment(tmp_path: Path, pins: Path) -> None:
    place = tmp_path / "frameworks" / "jax"
    with made_anew(place, pins):
        place.mkdir()
        with pytest.raises(ConfigError, match="another `make framework` is at work"), made_anew(place, pins):
            pytest.fail("both were let in")
    assert (place / pins.name).exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, pins: Path) -> None:
    (tmp_path / "frameworks").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be made"), made_anew(tmp_path / "frameworks" / "jax", pins):
        pytest.fail("there is no such place")


@pytest.mark.parametrize(("name", "words"), [("caffe", "`pip install slipway-cluster-historic` brings it"), ("cafe", "is not known")])
def test_a_framework_that_is_not_here_is_told_with_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    """As in an installation without historic/."""
    monkeypatch.setattr(frameworks, "framework_folders", dict)
    monkeypatch.setattr("sys.argv", ["environment", name])
    load_framework.cache_clear()
    assert main() == 10
    assert words in capsys.readouterr().err
