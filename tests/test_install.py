"""What the Makefile installs with: it says where PyTorch comes from, and how large it is."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from install import packages, pins, pytorch
from install.__main__ import main

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
NVIDIA = {"metadata": {"name": "nvidia-cudnn-cu13", "version": "9"}, "download_info": {"url": "gone://nowhere", "archive_info": {}}}


def test_bare_make_says_what_there_is() -> None:
    alone = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}  # `make test` is a make above ours
    said = subprocess.run(["make"], cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    documented = {line.split()[0] for line in said.splitlines() if line and not line.startswith("make ")}
    assert documented == set(targets[1].split()) - {"lint", "types"}
    assert subprocess.run(["make", "help"], cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout == said


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which `pip.py` is what `python -m pip` starts."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_what_pip_says_is_shown_where_it_fails(stand_in: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.txt").write_text("# two\nnumpy==2.0 \\\n    --hash=sha256:0\nlmdb==3 --hash=sha256:1\n")
    (stand_in / "pip.py").write_text("import sys\nprint('ERROR: no room', sys.argv[1:])\nsys.exit(3)")
    words = ["-r", str(tmp_path / "some.txt")]
    assert packages.pip(words, "what it needs") == 3
    said = capfd.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"installing what it needs into .*: 2 packages", said.err.splitlines()[0])
    assert f"ERROR: no room {['--quiet', '--disable-pip-version-check', 'install', *words]}" in said.err
    assert said.err.endswith("pip has failed with exit code 3\n")
    (stand_in / "pip.py").write_text("")
    assert packages.pip(words, "what it needs") == 0
    assert re.fullmatch(r"installing [^\n]*: 2 packages\n  installed in \d+ s\n", capfd.readouterr().err)


def test_what_is_installed_is_named_only_where_it_is_told(stand_in: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (stand_in / "pip.py").write_text("import sys\nprint('asked', sys.argv[3:])\nsys.exit(4)")
    assert main(["packages", "--no-deps", "-e", "."]) == 4
    assert capfd.readouterr().err.startswith("asked ['install', '--no-deps', '-e', '.']\n")
    assert main(["packages", "--for", "the tests", "--no-deps", "x"]) == 4
    assert re.match(r"installing the tests into .*\nasked \['install', '--no-deps', 'x'\]\n", capfd.readouterr().err)


def test_the_makefile_asks_for_no_option_that_neither_we_nor_pip_have() -> None:
    """An option that is not ours goes to pip as it is."""
    lines = re.findall(r"\$\(INSTALL\) packages (.*)", (ROOT / "Makefile").read_text())
    options = {word for line in lines for word in shlex.split(line) if word.startswith("-")}
    assert options == {"--for", "-r", "--require-hashes", "--no-deps", "-e", "--no-build-isolation", "--config-settings"}


def test_the_pin_is_the_one_of_the_project() -> None:
    version, _ = pytorch.pinned(pytorch.PINS.read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["pytorch"] == [f"torch=={version}"]
    text = f"# a\ntorch==2.13.0 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\nother==1 --hash=sha256:{'c' * 64}\n"
    assert pytorch.pinned(text) == ("2.13.0", {"a" * 64, "b" * 64})
    with pytest.raises(SystemExit, match="expected a line torch==VERSION with hashes"):
        pytorch.pinned("numpy==2")


class Machine:
    """Where PyTorch is not installed; another Python may have one, and pip can fetch one. `said` and `asked` tell what was done."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(place))
        self.installed: str | None = None
        self.pins = place / "requirements-torch.txt"
        report = {"url": "https://nowhere/torch.whl", "archive_info": {"hashes": {"sha256": "a" * 64}}}
        self.report = {"install": [NVIDIA, {"metadata": {"name": "torch", "version": "2.13.0+cpu"}, "download_info": report}]}
        (place / "pip.py").write_text(
            "import json, pathlib, sys\nwords = sys.argv[1:]\n"
            f"with open({str(place / 'asked')!r}, 'a') as file: print(json.dumps(words[2:]), file=file)\n"
            f"if '--report' in words: pathlib.Path(words[words.index('--report') + 1]).write_text({json.dumps(self.report)!r})"
        )

    def pin(self, digest: str) -> None:
        self.pins.write_text(f"torch==2.13.0 \\\n    --hash=sha256:{digest * 64}\n")

    def torch(self, python: str, use: str, index: str | None) -> int:
        """What `make` calls, on this machine."""
        return pytorch.torch(python, use, index, pins=self.pins, installed=lambda: self.installed)

    def asked(self) -> list[list[str]]:
        """pip's words, without where the report goes."""
        file = self.place / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def python(self, version: str) -> str:
        """Another Python, whose PyTorch is of that version; none: it has none."""
        script = self.place / "python"
        answer = f"print({version!r}); print({str(self.place)!r})" if version else "raise SystemExit(1)"
        script.write_text(f"#!{sys.executable}\n{answer}\n")
        script.chmod(0o755)
        return str(script)

    def linked(self) -> str | None:
        file = self.place / pytorch.LINKED
        return file.read_text() if file.exists() else None


@pytest.fixture
def machine(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(stand_in, monkeypatch)
    made.pin("a")
    return made


def test_the_tested_pytorch_of_another_python_is_taken(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.place / "torch.py").write_text("")
    assert machine.torch(machine.python("2.13.0+cu130"), "auto", None) == 0
    assert machine.linked() == f"{machine.place}\n"
    assert machine.asked() == []
    assert "is used as it is; nothing is fetched" in capsys.readouterr().err


def test_one_that_cannot_be_imported_is_let_go(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.place / "torch.py").write_text("raise ImportError('made for another Python')")
    assert machine.torch(machine.python("2.13.0"), "auto", None) == 1
    assert machine.linked() is None
    assert "cannot be imported here: ImportError: made for another Python" in capsys.readouterr().err


def test_another_version_is_taken_when_asked_only(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.place / "torch.py").write_text("")
    assert machine.torch(machine.python("2.4.1"), "auto", None) == 0
    assert "is not taken: Slipway was tested with 2.13.0. TORCH=system takes it all the same" in capsys.readouterr().err
    assert machine.linked() is None
    assert len(machine.asked()) == 2
    assert machine.torch(machine.python("2.4.1"), "system", None) == 0
    assert machine.linked() is not None
    assert len(machine.asked()) == 2
    assert machine.torch(machine.python(""), "system", None) == 2


def test_what_is_fetched_is_checked_and_may_be_large(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.torch(machine.python(""), "auto", None) == 0
    said = capsys.readouterr().err
    assert "make demo TORCH_INDEX=URL" in said
    looked, fetched = machine.asked()
    assert "--dry-run" in looked
    assert fetched == ["--no-deps", "--require-hashes", "-r", str(machine.pins)]


def test_a_build_that_is_not_pinned_is_told_to_be_none(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.pin("b")
    assert machine.torch(machine.python(""), "auto", "cpu-index") == 0
    assert "torch 2.13.0+cpu is no build whose hash is pinned" in capsys.readouterr().err
    looked, fetched = machine.asked()
    assert looked[-3:] == ["--index-url", "cpu-index", "torch==2.13.0"]
    assert fetched == ["torch==2.13.0+cpu", "--index-url", "cpu-index"]


def test_an_older_pytorch_here_is_replaced_unless_it_is_to_stay(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.place / pytorch.LINKED).write_text("/usr/lib/somewhere\n")
    machine.installed = "2.12.1+cpu"
    assert machine.torch(machine.python(""), "system", None) == 0
    assert (machine.linked(), machine.asked()) == ("/usr/lib/somewhere\n", [])
    assert capsys.readouterr().err == "PyTorch 2.12.1+cpu is installed\n"
    assert machine.torch(machine.python(""), "auto", None) == 0
    said = capsys.readouterr().err
    assert said.startswith(
        "PyTorch 2.12.1+cpu is installed, and Slipway is tested with 2.13.0 now, which replaces it. TORCH=system keeps it\n"
    )
    assert (machine.linked(), len(machine.asked())) == (None, 2)
    machine.installed = "2.13.0+cpu"
    assert machine.torch(machine.python(""), "auto", None) == 0
    assert len(machine.asked()) == 2


def test_a_linked_pytorch_stays_where_no_other_can_be_fetched(machine: Machine) -> None:
    (machine.place / pytorch.LINKED).write_text("/usr/lib/somewhere\n")
    (machine.place / "pip.py").write_text("raise SystemExit(1)")
    machine.installed = "2.12.1"
    assert machine.torch(machine.python(""), "auto", None) == 1
    assert machine.linked() == "/usr/lib/somewhere\n"


def test_none_is_none(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.torch(machine.python("2.13.0"), "none", None) == 0
    assert (machine.linked(), machine.asked()) == (None, [])
    assert "an engine with containers" in capsys.readouterr().err


def report(**packages: str) -> dict[str, Any]:
    """What pip says: package -> version and the first letter of its hash."""
    rows = []
    for name, text in packages.items():
        version, letter = text.split()
        archive = {"archive_info": {"hashes": {"sha256": letter * 64}}}
        rows.append({"metadata": {"name": name, "version": version}, "download_info": archive})
    return {"install": rows}


def test_pins_are_all_builds_of_what_nothing_else_pins() -> None:
    both = [report(Jinja2="3.1 a", torch="2.13.0 b", triton="3 c"), report(torch="2.13.0 d", triton="3 c")]
    text = pins.text_of(both, pins.names("jinja2==3.1 \\\n    --hash=sha256:0\n"))
    hashes = {letter: f"    --hash=sha256:{letter * 64}" for letter in "bcd"}
    assert text.removeprefix(pins.HEAD) == (
        f'torch==2.13.0 \\\n{hashes["b"]} \\\n{hashes["d"]}\ntriton==3 ; sys_platform == "linux" \\\n{hashes["c"]}\n'
    )
    assert pytorch.pinned(text) == ("2.13.0", {"b" * 64, "d" * 64})
    with pytest.raises(ValueError, match="triton: 3 in one report, 4 in another"):
        pins.text_of([*both, report(triton="4 e")], set())


def test_nothing_is_pinned_twice() -> None:
    other = pins.names((ROOT / "requirements.txt").read_text())
    assert pins.names(pytorch.PINS.read_text()) & other == set()


def test_a_python_without_pip_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert packages.pip(["torch"]) == 1
    assert "has no pip" in capsys.readouterr().err
