"""The page says how to reproduce a study: its commands, taken from a page and run in a fresh clone, make the same cells."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from html import unescape
from pathlib import Path

import pytest

from workflow.report.collect import read_records
from workflow.report.files import RECORDS_FILE

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout: it is cloned"),
]
PROGRAM = """#!{python}
import sys
from importlib.metadata import entry_points
(found,) = entry_points(group="console_scripts", name="{name}")
sys.exit(found.load()())
"""
STUDY = """# What a page must give back: a comment, "quotes", $dollars and `ticks`.
study: tiny
datasets:
  noise: {source: synthetic, samples: 40, size: 32, channels: grey, shards: 2}   # small
base: {dataset: noise, model: lenet, batch_size: 4, steps: {warmup: 1, measured: 2}, repeats: 1, save_parameters: false}
axes:
  nodes: [1, 2]
baseline: {nodes: 1}
"""


def fresh_clone(place: Path) -> Path:
    """A clone with what `make` would install: the packages of the tests, and no line of another checkout."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
    venv.create(place / ".venv", symlinks=True)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(place / ".venv")}))
    (inside / "installed.pth").write_text(f"{place}\n{sysconfig.get_path('purelib')}\n")
    for name in ("snakemake", "slipway"):
        program = place / ".venv" / "bin" / name
        program.write_text(PROGRAM.format(python=place / ".venv" / "bin" / "python", name=name))
        program.chmod(0o755)
    (place / ".venv" / ".run").touch()
    return place


def commands(page: str) -> str:
    """All code of the section, in order."""
    section = page.split('<section id="reproduce"')[1].split("</section>")[0]
    return "\n".join(unescape(code) for code in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", section, re.DOTALL))


def shell(text: str, cwd: Path, home: Path) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    done = subprocess.run(["bash", "-e", "-c", text], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def test_the_commands_of_a_page_make_the_same_cells_in_a_fresh_clone(tmp_path: Path) -> None:
    first, second = fresh_clone(tmp_path / "first"), fresh_clone(tmp_path / "second")
    (first / "mine.yaml").write_text(STUDY)
    shell(". .venv/bin/activate\nsnakemake --profile profiles/local --configfile mine.yaml", first, tmp_path)
    results = first / "storage" / "results" / "tiny"
    assert (results / "study.yaml").read_text() == STUDY
    said = shell(commands((results / "report.html").read_text()), second, tmp_path)
    again = second / "storage" / "results" / "tiny"
    cells, cells_again = (json.loads((place / "study.json").read_text())["cells"] for place in (results, again))
    assert cells == cells_again
    assert (again / "study.yaml").read_text() == STUDY
    for place in (results, again):
        frame = read_records(place / RECORDS_FILE).frame
        assert frame["status"].to_list() == ["ok", "ok"]
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        assert frame["git_sha"].to_list() == [head] * 2
    assert "1 (baseline)" in said, "the commands end with the table"
    assert sys.prefix not in (again / "report.html").read_text()
