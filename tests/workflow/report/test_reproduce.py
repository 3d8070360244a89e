"""How to reproduce: what the page says of study file, site and commit. The commands run in tests/workflow/test_reproduce.py."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, make_cell, make_record
from workflow.report.analysis import Analysis
from workflow.report.page import page
from workflow.report.provenance import Block
from workflow.report.reproduce import reproduction
from workflow.study.site_file import read_site

STUDIES = (
    "# a comment\nstudy: x   # and another\n",
    "no newline at the end",
    "END_OF_FILE\nEND_OF_FILE_\n$(touch hacked) `touch hacked` $HOME \\ ' \" \n",
    "größe: 日本\n\ttab\n",
    "</code></pre><script>alert(1)</script>&amp;\n",
)
SITE = """
storage: storage
cache: {path: /local/cache, max_bytes: 1TB, check: 7s}
engine: docker
scheduler: slurm
queue: gpu
account: abc
directives: ["--exclusive"]
device: cuda
gpus_per_node: 8
cpus_per_node: 96
memory_per_node: 1510GiB
walltime: 2d
deadline_margin: 90s
share_nodes: true
setup: [module load cuda, "export HF_TOKEN=geheim123"]
images: {pytorch: "registry.example/pytorch:2"}
nodes_may_pull: true
network_interface: ib0
storage_limit: {bytes_per_s: 2GB, readers: 4}
foreign_gpu: refuse
shared: group
"""


def analysis(place: Path, **record: Any) -> Analysis:
    return collected(place, [make_record(make_cell(), 1, **record)], repeats=1)


def with_site(place: Path, site: dict[str, Any], **record: Any) -> Analysis:
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect

    analysis(place, **record)
    content = json.loads((place / "study.json").read_text())
    (place / "study.json").write_text(json.dumps({**content, "site": site}))
    return analyse(collect([place]))


def block(blocks: tuple[Block, ...], title: str) -> Block:
    return next(one for one in blocks if one.title.startswith(title))


@pytest.mark.processes
@pytest.mark.parametrize("typed", STUDIES)
def test_the_study_file_comes_back_as_it_was_typed(tmp_path: Path, typed: str) -> None:
    place = tmp_path / "digits"
    found = analysis(place)
    (place / "study.yaml").write_text(typed)
    text = page(found, {})
    assert text.count("<script") == 2
    codes = [html.unescape(code) for code in re.findall(r"<pre><code>(.*?)</code></pre>", text, re.DOTALL)]
    (code,) = [code for code in codes if code.startswith("cat > study.yaml")]
    subprocess.run(["bash", "-e", "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "study.yaml").read_text() == (typed if typed.endswith("\n") else f"{typed}\n")
    assert not (tmp_path / "hacked").exists()


def test_without_a_stored_file_the_page_says_so(tmp_path: Path) -> None:
    found = analysis(tmp_path / "digits")
    (tmp_path / "digits" / "study.yaml").unlink()
    assert "The study file was not stored" in page(found, {})


def test_a_link_in_the_place_of_the_stored_file_shows_nothing_of_the_readers(tmp_path: Path) -> None:
    """The results may be another's, who cannot read what the reader can."""
    found = analysis(tmp_path / "digits")
    (tmp_path / "private").write_text("my own words")
    (tmp_path / "digits" / "study.yaml").unlink()
    (tmp_path / "digits" / "study.yaml").symlink_to(tmp_path / "private")
    assert "my own words" not in page(found, {})


@pytest.mark.processes
def test_the_site_comes_back_with_storage_of_its_own_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "alps.yaml").write_text(SITE)
    site = read_site(tmp_path / "alps.yaml")
    blocks = reproduction(with_site(tmp_path / "digits", site.to_json()))
    code = block(blocks, "The site").code
    assert "geheim123" not in code
    assert "What looked like a secret in it is ***" in block(blocks, "The site").text
    again = tmp_path / "clone"
    again.mkdir()
    subprocess.run(["bash", "-e", "-c", code], cwd=again, check=True)
    read = read_site(again / "site.yaml").to_json()
    hidden = ["module load cuda", "export HF_TOKEN=***"]
    assert read == {**site.to_json(), "name": "site", "storage": str(again / ".slipway" / "storage"), "setup": hidden}
    assert block(blocks, "Runs").code.startswith("slipway submit study.yaml --site site.yaml --wait\n")


def test_the_device_comes_back_also_where_it_was_the_default_of_another_scheduler(tmp_path: Path) -> None:
    (tmp_path / "alps.yaml").write_text("storage: s\ncache: {path: c}\nscheduler: slurm\ndevice: cpu\n")
    code = block(reproduction(with_site(tmp_path / "digits", read_site(tmp_path / "alps.yaml").to_json())), "The site").code
    assert "\ndevice: cpu\n" in code


def test_the_built_in_site_needs_no_file(tmp_path: Path) -> None:
    site = {
        "name": "local",
        "storage": "/home/x/.slipway/storage",
        "cache": {"path": "/c", "max_bytes": None},
        "device": "cpu",
        "queue": None,
    }
    blocks = reproduction(with_site(tmp_path / "digits", site))
    assert not [one for one in blocks if one.title.startswith("The site")]
    assert block(blocks, "Runs").code.startswith("slipway run study.yaml --site local\n")


@pytest.mark.parametrize(
    ("provenance", "code", "words"),
    [
        ({}, "git checkout --quiet ced9e06\nmake", "In a fresh clone"),
        ({"provenance.git_dirty": True}, "git checkout", "changes that are in no commit"),
        ({"provenance.git_sha": None}, "make", "installed version 0.1.0"),
        ({"provenance.git_sha": "x; rm -rf /"}, "git checkout --quiet 'x; rm -rf /'\n", "In a fresh clone"),
    ],
)
def test_the_commit_is_told_as_far_as_it_is_known(tmp_path: Path, provenance: dict[str, Any], code: str, words: str) -> None:
    found = block(reproduction(analysis(tmp_path / "digits", **provenance)), "Slipway as it was")
    assert found.code.startswith(code)
    assert words in found.text


def test_two_studies_have_files_of_their_own(tmp_path: Path) -> None:
    from tests.workflow.report.builder import write_records, write_study
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect

    places = [tmp_path / name for name in ("alpha", "omega")]
    for place in places:
        record = {**make_record(make_cell(), 1), "study": place.name}
        write_records(write_study(place, [make_cell()], repeats=1, study=place.name), [record])
    codes = "\n".join(one.code for one in reproduction(analyse(collect(places))))
    assert all(f"cat > study{number}.yaml" in codes and f"slipway run study{number}.yaml" in codes for number in (1, 2))
