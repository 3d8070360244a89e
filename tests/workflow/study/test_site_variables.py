"""`$NAME` in the paths of a site file: of storage where it is read, of the cache on the node where it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import ConfigError, StagingError
from base.userpath import expanded, expanded_path
from cluster.types import Allocation, Node
from extras.doctor.storage import check_cache, check_cache_path
from extras.doctor.types import Context
from tests.workflow.run.cells import DOCUMENT
from workflow.commands.plan import _cache_notes
from workflow.run.link.commands import Image, Plan, RanksPlan
from workflow.run.node.caches import cache_here, caches_here
from workflow.run.node.workdir import with_own_cache
from workflow.run.plan import Framework
from workflow.study.site import Site
from workflow.study.site_file import read_site

ENVIRON = {"USER": "ada", "TMPDIR": "/local/7", "EMPTY": ""}


def site(root: Path, storage: str, cache: str, scheduler: str = "slurm") -> Site:
    path = root / "here.yaml"
    path.write_text(f'storage: {storage}\ncache: {{path: "{cache}"}}\nscheduler: {scheduler}\ndevice: cpu\n')
    return read_site(path, ENVIRON)


def test_storage_is_what_it_is_where_it_is_read(tmp_path: Path) -> None:
    assert site(tmp_path, "/work/$USER/slipway", "/local").storage == Path("/work/ada/slipway")
    assert site(tmp_path, "$TMPDIR/x", "/local", "local").storage == Path("/local/7/x")
    assert site(tmp_path, "below-${USER}", "/local").storage == tmp_path / "below-ada"


@pytest.mark.parametrize("name", ["NOWHERE", "EMPTY"])
def test_a_variable_that_is_not_set_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"here.yaml:1: storage: '/work/\${name}': \${name} is not set on "):
        site(tmp_path, f"/work/${name}", "/local")
    with pytest.raises(ConfigError, match=rf"here.yaml:2: cache.path: '/work/\${name}': \${name} is not set on "):
        site(tmp_path, "/work", f"/work/${name}", "local")


@pytest.mark.parametrize("name", ["TMPDIR", "SLURM_TMPDIR", "PBS_JOBDIR", "LSB_JOBID", "JOB_ID", "HOSTNAME"])
def test_storage_is_the_same_for_all_jobs(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"here.yaml:1: storage: \${name} has another value in each job or on each machine"):
        site(tmp_path, f"/work/${name}", "/local")


@pytest.mark.parametrize("text", ["/a/${TMPDIR:-/tmp}", "/a/$(hostname)", "/a/$1", "/a/$$", "/a/${", "/a$"])
def test_no_other_form_of_a_shell_is_read(tmp_path: Path, text: str) -> None:
    """Nor taken as it stands: a directory of the name `${TMPDIR:-` would be made."""
    words = r"holds a \$ that begins neither \$NAME nor \$\{NAME\}"
    with pytest.raises(ConfigError, match="here.yaml:1: storage: .* " + words):
        site(tmp_path, text, "/local")
    for scheduler in ("slurm", "local"):
        with pytest.raises(ConfigError, match="here.yaml:2: cache.path: .* " + words):
            site(tmp_path, "/work", text, scheduler)


def test_a_plan_says_that_a_cache_goes_away_with_its_job(tmp_path: Path) -> None:
    (note,) = _cache_notes(site(tmp_path, "/work", "/scratch/${PBS_JOBDIR}/x"))
    assert "goes away with the job ($PBS_JOBDIR is the job's own): nothing is kept between jobs" in note
    assert not [*_cache_notes(site(tmp_path, "/work", "/scratch/$USER"))]
    assert not [*_cache_notes(site(tmp_path, "/work", "$TMPDIR/x", "local"))]


FRAMEWORK = Framework(name="f", folder="/f", launcher="ranks", command=("{python}",))


def make_plan(cache: str, ranks: RanksPlan | None) -> Plan:
    node = Node(name="n0", hostname="h", address="127.0.0.1")
    allocation = Allocation(scheduler="slurm", job_id="1", nodes=(node,), device="cpu", exclusive=True)
    names = {
        "tag": "t",
        "run_id": "r",
        "run_dir": "/r",
        "source": "/s",
        "cache": cache,
        "cache_place": "here.yaml:2" if "$" in cache else None,
    }
    limits = {"cache_max_bytes": None, "bytes_per_s": None}
    return Plan(allocation=allocation, group=False, ranks=ranks, **names, **limits)  # type: ignore[arg-type]


def test_the_cache_is_what_it_is_on_the_node(tmp_path: Path) -> None:
    found = site(tmp_path, "/work", "$SLURM_TMPDIR/$USER")
    assert Site.from_json(found.to_json()).cache.path == Path("$SLURM_TMPDIR/$USER")
    image = Image(archive="a", cache=str(found.cache.path), may_pull=False, credentials=None)
    plan = make_plan(str(found.cache.path), RanksPlan(framework=FRAMEWORK, cell=DOCUMENT, engine="bare", image=image, beat_s=60, init_s=60))
    own = with_own_cache(plan, {"SLURM_TMPDIR": "/nvme/7", "USER": "ada"})
    assert own.ranks is not None
    assert own.ranks.image == Image(archive="a", cache="/nvme/7/ada", may_pull=False, credentials=None)
    assert (own.cache, own.tag) == ("/nvme/7/ada", "t")
    assert with_own_cache(make_plan("/local", None), {}) == make_plan("/local", None)
    with pytest.raises(StagingError, match=r"^here.yaml:2: cache.path: '\$SLURM_TMPDIR/\$USER': \$SLURM_TMPDIR is not set on "):
        with_own_cache(plan, {"USER": "ada"})
    with pytest.raises(StagingError, match="is 'relative/ada' on .*, which does not begin with a /"):
        with_own_cache(plan, {"SLURM_TMPDIR": "relative", "USER": "ada"})


def test_this_machine_is_the_node_of_the_local_scheduler(tmp_path: Path) -> None:
    assert site(tmp_path, "/work", "$TMPDIR/cache", "local").cache.path == Path("/local/7/cache")
    assert site(tmp_path, "/work", "cache-$USER", "local").cache.path == tmp_path / "cache-ada"
    (folder := tmp_path / "a $b").mkdir()
    here = site(folder, "work", "cache", "local")
    assert (here.cache.path, here.cache.place) == (folder / "cache", None)
    assert cache_here(here) == folder / "cache"


def test_commands_look_where_the_node_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = site(tmp_path, "/work", "$SLURM_TMPDIR/cache")
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert caches_here(found) == []
    with pytest.raises(StagingError, match=r"here.yaml:2: cache.path: .*SLURM_TMPDIR is not set on .*; look on a node"):
        cache_here(found)
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    assert caches_here(found) == [tmp_path / "cache"]


def test_the_doctor_says_what_it_cannot_know_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    context = Context(site=site(tmp_path, "/work", "$SLURM_TMPDIR/x"), place="login", hostname="h", scheduler="slurm")
    (note,) = check_cache_path(context)
    assert (note.level, note.text) == ("note", "$SLURM_TMPDIR/x holds variables, which have their values on the nodes")
    (error,) = check_cache(replace(context, place="node"))
    assert error.level == "error"
    assert "$SLURM_TMPDIR is not set on " in error.text


def test_a_path_is_made_plain() -> None:
    assert expanded("/a/${x}b$y", {"x": "1", "y": "$z"}) == "/a/1b$z"
    assert expanded_path("/a/$USER/../b", {"USER": "x"}) == Path("/a/b")
