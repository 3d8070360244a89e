"""The Python that an older framework needs: where it is looked for, and what is said where it is not."""

import sys
from pathlib import Path

import pytest
from slipway_historic.install_environment import _show, find_interpreter

from base.errors import ConfigError

pytestmark = pytest.mark.processes


def python(path: Path, version: str) -> str:
    """A program that answers as an interpreter of this version; one without a version fails as pyenv's shims do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\nprintf {version}\n" if version else "#!/bin/sh\necho 'pyenv: python3.8: command not found' >&2\nexit 127\n"
    )
    path.chmod(0o755)
    return str(path)


def found(tmp_path: Path, given: str | None = None) -> str:
    path = ":".join(map(str, (tmp_path / "first", tmp_path / "bin")))
    return find_interpreter("mxnet", "3.8", given, {"PATH": path, "HOME": str(tmp_path)})


def test_the_first_one_that_answers_is_taken(tmp_path: Path) -> None:
    of_pyenv = tmp_path / ".pyenv" / "versions"
    python(of_pyenv / "3.8.9" / "bin" / "python3.8", "3.8")
    newest = python(of_pyenv / "3.8.18" / "bin" / "python3.8", "3.8")
    python(tmp_path / "first" / "python3.8", "")
    assert found(tmp_path) == newest
    on_path = python(tmp_path / "bin" / "python3.8", "3.8")
    assert found(tmp_path) == on_path
    given = python(tmp_path / "mine", "3.8")
    assert found(tmp_path, given) == given


def test_what_was_looked_at_is_said(tmp_path: Path) -> None:
    python(tmp_path / "bin" / "python3.8", "3.9")
    shim = python(tmp_path / "first" / "python3.8", "")
    with pytest.raises(ConfigError) as error:
        found(tmp_path)
    message = str(error.value)
    assert f"framework 'mxnet' needs Python 3.8, and none that works is on PATH or in {tmp_path / '.pyenv' / 'versions'}" in message
    assert f"{shim}: it ended with 127: pyenv: python3.8: command not found" in message
    assert f"{tmp_path / 'bin' / 'python3.8'}: it is Python 3.9" in message
    assert "make framework NAME=mxnet PYTHON=/path/to/python3.8" in message


def test_one_that_was_given_and_does_not_fit_is_not_replaced(tmp_path: Path) -> None:
    python(tmp_path / "bin" / "python3.8", "3.8")
    for given, words in ((python(tmp_path / "mine", "3.11"), "it is Python 3.11"), ("/nowhere", "cannot be started: No such file")):
        with pytest.raises(ConfigError, match=rf"PYTHON={given} is none: .*{words}"):
            found(tmp_path, given)


def test_a_program_that_prepares_an_environment_finds_what_the_trainers_import() -> None:
    """As that of Theano, which compiles a network: it makes the trainer, and so imports the reader."""
    _show([sys.executable, "-c", "import slipway_program.trainer, slipway_historic_program.theano_flags"], "")
