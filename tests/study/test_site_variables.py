"""`$NAME` in the paths of a site file: of storage where it is read, of the cache on the node where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError, StagingError
from base.userpath import expanded, expanded_path
from workflow.commands.caches import cache_here, caches_here
from workflow.doctor.checks import check_path_of_cache
from workflow.doctor.node import check_own_cache
from workflow.run.node.workdir import with_own_cache
from workflow.study.site import Site
from workflow.study.site_file import read_site

ENVIRON = {"USER": "ada", "TMPDIR": "/local/7", "EMPTY": ""}


def site(root: Path, storage: str, cache: str, scheduler: str = "slurm") -> Site:
    path = root / "here.yaml"
    path.write_text(f'storage: {storage}\ncache: {{path: "{cache}"}}\nscheduler: {scheduler}\ndevice: cpu\n')
    return read_site(path, ENVIRON)


def test_storage_is_what_it_is_where_it_is_read(tmp_path: Path) -> None:
    assert site(tmp_path, "/work/$USER/slipway", "/local").storage == Path("/work/ada/slipway")
    assert site(tmp_path, "$TMPDIR/x", "/local").storage == Path("/local/7/x")
    assert site(tmp_path, "below-${USER}", "/local").storage == tmp_path / "below-ada"


@pytest.mark.parametrize("name", ["NOWHERE", "EMPTY"])
def test_a_variable_that_is_not_set_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"here.yaml:1: storage: '/work/\${name}': \${name} is not set on "):
        site(tmp_path, f"/work/${name}", "/local")
    with pytest.raises(ConfigError, match=rf"here.yaml:2: cache.path: '/work/\${name}': \${name} is not set on "):
        site(tmp_path, "/work", f"/work/${name}", "local")


def test_the_cache_is_what_it_is_on_the_node(tmp_path: Path) -> None:
    found = site(tmp_path, "/work", "$SLURM_TMPDIR/$USER")
    assert Site.from_json(found.to_json()).cache.path == Path("$SLURM_TMPDIR/$USER")
    orders: dict[str, Any] = {"cache": str(found.cache.path), "image": {"archive": "a", "cache": str(found.cache.path)}, "tag": "t"}
    node = {"SLURM_TMPDIR": "/nvme/7", "USER": "ada"}
    assert with_own_cache(orders, node) == {"cache": "/nvme/7/ada", "image": {"archive": "a", "cache": "/nvme/7/ada"}, "tag": "t"}
    assert with_own_cache({"cache": "/local", "image": None}, {}) == {"cache": "/local", "image": None}
    with pytest.raises(StagingError, match=r"cache.path of the site file: '\$SLURM_TMPDIR/\$USER': \$SLURM_TMPDIR is not set on "):
        with_own_cache(orders, {"USER": "ada"})
    with pytest.raises(StagingError, match="is 'relative/ada' on .*, which does not begin with a /"):
        with_own_cache(orders, {"SLURM_TMPDIR": "relative", "USER": "ada"})


def test_this_machine_is_the_node_of_the_local_scheduler(tmp_path: Path) -> None:
    assert site(tmp_path, "/work", "$TMPDIR/cache", "local").cache.path == Path("/local/7/cache")
    assert site(tmp_path, "/work", "cache-$USER", "local").cache.path == tmp_path / "cache-ada"


def test_commands_look_where_the_node_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = site(tmp_path, "/work", "$SLURM_TMPDIR/cache")
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert caches_here(found) == []
    with pytest.raises(StagingError, match=r"cache.path of the site 'here': .*SLURM_TMPDIR is not set on .*; look on a node"):
        cache_here(found)
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    assert caches_here(found) == [tmp_path / "cache"]


def test_the_doctor_says_what_it_cannot_know_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    (note,) = check_path_of_cache(Path("$SLURM_TMPDIR/x"), Path("/work"), "slurm")
    assert (note.level, note.text) == ("note", "$SLURM_TMPDIR/x holds variables, which have their values on the nodes")
    (error,) = check_own_cache("$SLURM_TMPDIR/x", None, alone=False, private_tmp=False, group=False)
    assert error.level == "error"
    assert "$SLURM_TMPDIR is not set on " in error.text


def test_what_is_no_variable_stays() -> None:
    assert expanded("/a/$(x)/$1 $", {"1": "b"}) == "/a/$(x)/b $"
    assert expanded_path("/a/$USER/../b", {"USER": "x"}) == Path("/a/b")
