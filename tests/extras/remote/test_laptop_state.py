"""The settings of a host, and the token of a submission, as the laptop keeps them."""

from pathlib import Path

import pytest

from base.errors import ConfigError
from extras.remote.laptop_state import Settings, read_settings, settings_file, submission, write_settings


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_settings_are_read_as_they_were_written() -> None:
    assert read_settings("me@gate") is None
    settings = Settings(slipway="/nfs/slipway", site="big")
    assert write_settings("me@gate", settings) == settings_file("me@gate")
    assert read_settings("me@gate") == settings


def test_settings_of_a_version_with_another_way_to_the_host_are_read() -> None:
    file = settings_file("gate")
    file.parent.mkdir(parents=True)
    file.write_text('{"slipway": "/s", "site": null, "transport": "paramiko"}')
    assert read_settings("gate") == Settings(slipway="/s")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "slipway"),
        ('{"slipway": 1}', "slipway"),
        ('{"slipway": "/s", "sit": "x"}', "sit"),
        ("[", "gate.json"),
    ],
)
def test_settings_that_are_wrong_are_named(text: str, words: str) -> None:
    file = settings_file("gate")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as found:
        read_settings("gate")
    assert "gate.json" in str(found.value)


def test_the_same_submission_has_the_same_token_until_it_is_closed() -> None:
    first, other = submission("gate", "s.yaml"), submission("gate", "t.yaml")
    assert submission("gate", "s.yaml").token == first.token != other.token
    first.close()
    assert submission("gate", "s.yaml").token != first.token
