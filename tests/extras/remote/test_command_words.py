"""The words behind `slipway remote HOST VERB`, and what the cluster's words become here."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from base.errors import ConfigError
from extras.remote.command import Relay
from extras.remote.command_words import parse_typed
from workflow.commands.main import run
from workflow.study.publishing import are_versions, version_dir


def test_the_study_is_found_among_the_options_of_the_cluster() -> None:
    typed = parse_typed("gate", "submit", ["--nodes", "4", "a/s.yaml", "--wait", "--site", "gpu.yaml"])
    assert typed.study == Path("a/s.yaml")
    assert typed.site == "gpu.yaml"
    assert typed.out == Path("a/results/s")
    assert typed.for_cluster("gate", "/far/s.yaml", "gpu.yaml") == ["submit", "/far/s.yaml", "--site", "gpu.yaml", "--nodes", "4", "--wait"]


def test_a_run_is_no_study() -> None:
    typed = parse_typed("gate", "logs", ["lenet", "--study=s.yaml", "-f"])
    assert typed.follows
    assert typed.for_cluster("gate", "/far/s.yaml", None) == ["logs", "--study", "/far/s.yaml", "lenet", "-f"]


@pytest.mark.parametrize(("words", "expected"), [([], False), (["--show"], True), (["frameworks"], True), (["--strict"], False)])
def test_a_table_that_is_printed_brings_nothing_down(words: list[str], expected: bool) -> None:
    assert parse_typed("gate", "tables", ["s.yaml", *words]).makes_results is not expected


@pytest.mark.parametrize("words", [[], ["lenet"], ["s.yaml", "--site"]])
def test_a_study_or_a_value_that_is_missing_is_named(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"study file is missing|no value"):
        parse_typed("gate", "plan", words)


def test_commands_are_those_of_the_laptop() -> None:
    relay = Relay(host="me@login", there="/far/studies/x/s.yaml", here="my study/s.yaml")
    said = "follow it: slipway status /far/studies/x/s.yaml"
    assert relay.as_typed_here(said) == "follow it: slipway remote me@login status 'my study/s.yaml'"
    assert relay.as_typed_here("/far/studies/x/s.yaml:3: wrong") == "my study/s.yaml:3: wrong"
    assert relay.as_typed_here("slipway doctor, \x1b[2J") == "slipway doctor, \N{REPLACEMENT CHARACTER}[2J"
    relay = Relay(host="gate", there=None, here="")
    assert relay.as_typed_here("`slipway session stop run-1` ends it") == "`slipway remote gate session stop run-1` ends it"


def test_lines_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    relay = Relay(host="h", there="/far", here="here")
    for part in (b"one\ntw", b"o\n\xc3", b"\xbc"):
        relay.out(part)
    relay.err(b"error\n")
    relay.end()
    said = capsys.readouterr()
    assert said.out == "one\ntwo\n\u00fc\n"
    assert said.err == "error\n"


def test_versions_of_one_file_are_the_same_file() -> None:
    first, second = (str(version_dir(Path("/s"), "tiny-0123456789ab", digit * 32) / "s.yaml") for digit in "ab")
    assert are_versions(first, second)
    assert not are_versions(first, second.replace("tiny", "other"))
    assert not are_versions(first, second.replace("s.yaml", "t.yaml"))
    assert not are_versions("/a/s.yaml", "/b/s.yaml")


def test_words_of_a_session_go_on_and_its_command_is_left_alone() -> None:
    words = ["run", "--gpus", "2", "--study=a/s.yaml", "--site", "big", "--", "python", "x.py", "--site", "y", "--login", "z"]
    typed = parse_typed("gate", "session", words)
    assert (typed.study, typed.site) == (Path("a/s.yaml"), "big")
    expected = ["session", "run", "--study", "/far/s.yaml", "--site", "big", "--login", "gate", "--gpus", "2", *words[6:]]
    assert typed.for_cluster("gate", "/far/s.yaml", "big") == expected
    assert parse_typed("gate", "session", ["stop", "notebook-1"]).for_cluster("gate", None, None) == ["session", "stop", "notebook-1"]
    assert parse_typed("gate", "session", ["ls", "--login", "g2"]).for_cluster("gate", None, None) == ["session", "ls", "--login", "g2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "nothing"),
        (["notbook"], "notebook"),
        (["shell", "--gpus", "1"], "ssh -t gate slipway session shell --gpus 1"),
        (["ls", "--site"], "no value"),
    ],
)
def test_a_session_that_cannot_be_is_told_what_to_type(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_typed("gate", "session", words)


def test_the_dashes_before_a_command_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []

    def taken(host: str, verb: str, words: Sequence[str], *_: object) -> int:
        found.extend((host, verb, list(words)))
        return 0

    monkeypatch.setattr("extras.remote.command.run_verb", taken)
    assert run(["remote", "gate", "session", "run", "--gpus", "1", "--", "python", "-m", "x", "--slipway", "y"]) == 0
    assert found == ["gate", "session", ["run", "--gpus", "1", "--", "python", "-m", "x", "--slipway", "y"]]
