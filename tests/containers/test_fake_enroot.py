"""The stand-in for enroot says what the real one was heard to say; where the real one is here, it still says so."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import images, runtimes
from tests.containers.conftest import FAKES, needs

CAPTURED = Path(__file__).parents[1] / "captured" / "enroot"
CASES = sorted(path.stem for path in CAPTURED.glob("*.json") if json.loads(path.read_text())["argv"][0] == "env")


def heard(argv: list[str], places: dict[str, str], path: str) -> tuple[int, list[str], str]:
    """Exit code, lines of output in any order, errors."""
    env = {"PATH": path, "TERM": "dumb", "SECRET": "canary", "HOME": "/root"}
    done = subprocess.run([word.format(**places) for word in argv], cwd="/", env=env, capture_output=True, text=True, timeout=120)
    said = [done.stdout, done.stderr]
    for name, place in places.items():
        said = [text.replace(place, f"{{{name}}}") for text in said]
    return done.returncode, sorted(said[0].splitlines()), said[1]


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.long)], ids=["stand-in", "real"])
@pytest.mark.parametrize("case", CASES)
def test_it_says_what_the_real_one_said(case: str, real: bool, tmp_path: Path) -> None:
    needs("unshare", "mount")
    captured: dict[str, Any] = json.loads((CAPTURED / f"{case}.json").read_text())
    path = runtimes.path_of("enroot") if real else f"{FAKES}:{os.environ['PATH']}"
    if path is None:
        pytest.skip("enroot is not here: tests/runtimes/build-enroot.sh")
    image = runtimes.image_of("enroot", images.base_image()) if real else tmp_path / "image.sqsh"
    if not real:
        image.touch()
    (tmp_path / "rc").write_text('exec "$@"\n')
    said = heard(captured["argv"], {"place": str(tmp_path), "image": str(image)}, path)
    assert said == (captured["returncode"], sorted(captured["stdout"].splitlines()), captured["stderr"])
