"""The site: lookup order, every key, and what runs the job must be what the site says."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from base.errors import ConfigError, RecordError, StagingError
from base.humanize import expanded, expanded_path
from base.process import CODE_ROOT
from cluster.detection import scheduler_of
from extras.doctor.storage import check_cache, check_cache_path
from extras.doctor.types import Context
from tests.workflow.run.cells import DOCUMENT
from tests.workflow.run.link.test_messages import PLAN
from workflow.run.link.commands import Image, Plan, RanksPlan
from workflow.run.node.caches import cache_here, caches_here
from workflow.run.node.workdir import with_own_cache
from workflow.run.plan import Framework, at_site
from workflow.study import site_file
from workflow.study.site import Cache, Prices, Site, StorageLimit, device_of, local_site, refuse_other_scheduler
from workflow.study.site_file import load_site, read_site, site_beside

FULL = """
storage: ../shared
cache: {path: /local/ssd, max_bytes: 3TB, check: 20s}
engine: podman
scheduler: slurm
queue: gpu
account: me
qos: high
constraint: a100
directives: ["--reservation=x"]
device: cuda
gpus_per_node: 8
cpus_per_node: 64
memory_per_node: 500GiB
walltime: 1d12h
deadline_margin: 90s
share_nodes: true
setup: [module load cuda]
images: {pytorch: /images/p.sif}
network_interface: ib0
storage_limit: {bytes_per_s: 5GB, readers: 16}
foreign_gpu: refuse
shared: group
prices: {currency: EUR, gpu_hour: 2, kwh: 0.31}
"""


def test_every_key(tmp_path: Path) -> None:
    path = tmp_path / "sites" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(FULL)
    site = read_site(path)
    assert site == Site(
        name="mine",
        storage=tmp_path / "shared",
        cache=Cache(path=Path("/local/ssd"), max_bytes=3 * 10**12, check_s=20.0),
        engine="podman",
        scheduler="slurm",
        queue="gpu",
        account="me",
        qos="high",
        constraint="a100",
        directives=("--reservation=x",),
        device="cuda",
        gpus_per_node=8,
        cpus_per_node=64,
        memory_per_node_bytes=500 * 2**30,
        walltime_s=36 * 3600.0,
        deadline_margin_s=90.0,
        share_nodes=True,
        setup=("module load cuda",),
        images={"pytorch": "/images/p.sif"},
        network_interface="ib0",
        storage_limit=StorageLimit(bytes_per_s=5 * 10**9, readers=16),
        foreign_gpu="refuse",
        shared="group",
        prices=Prices(currency="EUR", gpu_hour=2.0, kwh=0.31),
    )
    assert Site.from_json(json.loads(json.dumps(site.to_json()))) == site


@pytest.mark.parametrize(
    ("line", "meant"),
    [("#SBATCH --reservation=x", "--reservation=x"), ("#PBS -P p", "-P p"), ("#$ -l exclusive=true", "-l exclusive=true")],
)
def test_a_directive_has_no_marker(tmp_path: Path, line: str, meant: str) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(f"storage: s\ncache: {{path: c}}\nscheduler: slurm\ndirectives: ['--exclusive', '{line}']\n")
    with pytest.raises(
        ConfigError, match=re.escape(f"{path}:4: directives[1]: found the text {line!r}; valid: a directive without its")
    ) as found:
        read_site(path)
    assert repr(meant) in str(found.value)


def test_defaults(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("storage: s\ncache: {path: c}\ndevice: cpu\n")
    site = read_site(path)
    assert site == Site(name="small", storage=tmp_path / "s", cache=Cache(path=tmp_path / "c"), device="cpu")
    assert (site.scheduler, site.engine, site.deadline_margin_s, site.shared, site.foreign_gpu) == (
        "local",
        "bare",
        120.0,
        "user",
        "record",
    )
    assert Site.from_json(site.to_json()) == site
    path.write_text("storage: s\ncache: {path: c}\nscheduler: lsf\n")
    assert read_site(path).device == "cuda", "a cluster has GPUs unless it says otherwise"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cache: {path: c}", ["storage", "missing"]),
        ("storage: s", ["cache", "missing"]),
        ("storage: s\ncache: {}", ["2: cache.path", "missing"]),
        ("storage: s\ncache: {path: c}\nprices: {gpu_hour: 2}", ["3: prices.currency", "missing"]),
        ("storage: s\ncache: {path: c}\nprices: {currency: EUR, kwh: .nan}", ["3: prices.kwh"]),
        ("storage: s\ncache: {path: c}\nprices: {currency: EUR, node_hour: '2'}", ["3: prices.node_hour", "'2'"]),
        ("storage: s\ncache: {path: c}\nprices: {currency: EUR, gpu_hours: 2}", ["3: prices.gpu_hours", "gpu_hour"]),
        ("storage: ~nosuchuser/x\ncache: {path: c}", ["1: storage", "~nosuchuser has no home directory"]),
        ("storage: s\ncache: {path: ~nosuchuser/x}", ["2: cache.path", "~nosuchuser"]),
        ('storage: "s\\ud800"\ncache: {path: c}', ["1", "character"]),
        ("storage: 's{run}'\ncache: {path: c}", ["1: storage", "brace", "wildcard"]),
        ("storage: s\ncache: c", ["2: cache", "mapping"]),
        ("storage: s\ncache: {path: c, max_bytes: 100}", ["cache.max_bytes", "whole number 100", "20GiB"]),
        ("storage: s\ncache: {path: c, max_bytes: lots}", ["cache.max_bytes", "'lots'"]),
        ("storage: s\ncache: {path: c, max_bytes: 0GB}", ["cache.max_bytes", "more than nothing"]),
        ("storage: s\ncache: {path: c}\nscheduler: slrum", ["3: scheduler", "did you mean 'slurm'"]),
        ("storage: s\ncache: {path: c}\nengine: singularity", ["3: engine", "apptainer"]),
        ("storage: s\ncache: {path: c}\npartition: gpu", ["3: partition", "queue"]),
        ("storage: s\ncache: {path: c}\nqueues: gpu", ["3: queues", "did you mean 'queue'"]),
        ("storage: s\ncache: {path: c}\naxes: {}", ["3: axes", "study file"]),
        ('storage: s\ncache: {path: c}\nqueue: "a\\nb"', ["3: queue", "one line"]),
        ("storage: s\ncache: {path: c}\nsetup: module load x", ["3: setup", "a list"]),
        ("storage: s\ncache: {path: c}\nwalltime: 86400", ["walltime", "86400s"]),
        ("storage: s\ncache: {path: c}\nimages: {a/b: x}", ["images.a/b", "a name"]),
    ],
)
def test_wrong_sites(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_site(path)
    for word in [f"{path}:", *words]:
        assert word in str(caught.value)


def test_lookup_order(tmp_path: Path) -> None:
    directories = [tmp_path]
    load = partial(load_site, directories=lambda: directories)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"storage: {name}\ncache: {{path: c}}\n")
    assert load(None, {}).name == "local"
    assert load("local", {"SLIPWAY_SITE": "one"}).name == "local"
    assert load("one", {"SLIPWAY_SITE": "two"}).storage == tmp_path / "one"
    assert load(None, {"SLIPWAY_SITE": "two"}).storage == tmp_path / "two"
    assert load(str(tmp_path / "two.yaml"), {}).storage == tmp_path / "two"
    (tmp_path / "default.yaml").write_text("storage: d\ncache: {path: c}\n")
    assert load(None, {}).name == "default"
    assert load(None, {"SLIPWAY_SITE": "one"}).name == "one"
    nearer = tmp_path / "nearer"
    directories.insert(0, nearer)
    assert load("one", {}).storage == tmp_path / "one"
    nearer.mkdir()
    (nearer / "one.yaml").write_text("storage: one\ncache: {path: c}\n")
    assert load("one", {}).storage == nearer / "one"
    assert load("two", {}).storage == tmp_path / "two"
    with pytest.raises(
        ConfigError, match=rf"no such site in {nearer}, {tmp_path} \(a path must end in .yaml\); valid: default, local, one, two"
    ):
        load("three", {})
    assert load("local", {}) == local_site(site_file._sees_gpu())
    with pytest.raises(ConfigError, match="the site asked for is 'tow'.*did you mean 'two'"):
        load("tow", {})
    with pytest.raises(ConfigError, match=r"\$SLIPWAY_SITE is '../one'|cannot be read"):
        load(None, {"SLIPWAY_SITE": "../one"})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(str(tmp_path / "three.yaml"), {})


def test_the_site_beside_a_study(tmp_path: Path) -> None:
    beside_it = partial(site_beside, directories=lambda: [tmp_path / "sites"])
    study = tmp_path / "study.yaml"
    assert beside_it(study, None, {}) is None
    beside = tmp_path / "site.yaml"
    beside.write_text("storage: here\ncache: {path: c}\n")
    assert beside_it(study, None, {}) == beside
    assert beside_it(beside, None, {}) is None
    assert beside_it(study, "local", {}) is None
    assert beside_it(study, None, {"SLIPWAY_SITE": "local"}) is None
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "default.yaml").write_text("storage: d\ncache: {path: c}\n")
    assert beside_it(study, None, {}) is None


def test_a_site_beside_a_study_that_others_can_write_is_never_taken_unasked(tmp_path: Path) -> None:
    """Its `setup` would be executed."""
    beside_it = partial(site_beside, directories=lambda: [tmp_path / "sites"])
    study, beside = tmp_path / "study.yaml", tmp_path / "site.yaml"
    beside.write_text("storage: here\ncache: {path: c}\n")
    beside.chmod(0o666)
    with pytest.raises(ConfigError, match=r"site\.yaml \(of uid .*mode 0666\), beside the study, is not yours alone.*--site "):
        beside_it(study, None, {})
    assert beside_it(study, str(beside), {}) is None
    beside.chmod(0o600)
    assert beside_it(study, None, {}) == beside
    tmp_path.chmod(0o777)  # where anybody could put another file in its place, also after this look
    with pytest.raises(ConfigError, match=r"mode 0777\), in which the study lies, can be written by others"):
        beside_it(study, None, {})
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to("/nowhere/site.yaml"), os.mkfifo, os.mkdir], ids=["link", "pipe", "directory"]
)
def test_what_is_no_file_beside_a_study_is_not_passed_over(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A link to a site on storage that is away would else mean the site `local`."""
    beside_it = partial(site_beside, directories=lambda: [tmp_path / "sites"])
    make(tmp_path / "site.yaml")
    with pytest.raises(ConfigError, match=r"site\.yaml, beside the study, is not a regular file.*--site local"):
        beside_it(tmp_path / "study.yaml", None, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_site_beside_a_study_of_another_user_is_never_taken_unasked(tmp_path: Path) -> None:
    beside_it = partial(site_beside, directories=lambda: [tmp_path / "sites"])
    (tmp_path / "site.yaml").write_text("storage: here\ncache: {path: c}\n")
    os.chown(tmp_path / "site.yaml", 2001, -1)
    with pytest.raises(ConfigError, match="of uid 2001"):
        beside_it(tmp_path / "study.yaml", None, {})


def test_the_built_in_site_has_its_results_beside_the_study(tmp_path: Path) -> None:
    assert load_site("local", {}, folder=tmp_path).storage == tmp_path / "storage"
    assert load_site(None, {}, lambda: [tmp_path / "sites"], folder=tmp_path).storage == tmp_path / "storage"
    site = local_site(has_gpu=False)
    assert site.storage == CODE_ROOT / ".slipway" / "storage", "without a study"
    assert site.cache.path == CODE_ROOT / ".slipway" / "cache"
    assert (site.scheduler, site.engine, site.device) == ("local", "bare", "cpu")
    assert local_site(has_gpu=True).device == "cuda"


@pytest.mark.parametrize(
    ("environ", "scheduler"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "slurm"),
        ({"LSB_JOBID": "7"}, "lsf"),
        ({"PBS_JOBID": "7"}, "pbs"),
        ({"JOB_ID": "7", "SGE_ROOT": "/sge"}, "sge"),
        ({"JOB_ID": "7"}, None),
        ({"SLURM_JOB_ID": ""}, None),
    ],
)
def test_the_scheduler_that_runs_us(environ: dict[str, str], scheduler: str | None) -> None:
    assert scheduler_of(environ) == scheduler
    for name in ("local", "slurm", "lsf", "pbs", "sge"):
        site = Site(name="s", storage=Path("/s"), cache=Cache(path=Path("/c")), scheduler=name)
        if scheduler in (None, name):
            refuse_other_scheduler(site, environ)
        else:
            with pytest.raises(ConfigError, match=f"scheduler: {name}, but this process runs inside an allocation of {scheduler}"):
                refuse_other_scheduler(site, environ)


def test_a_cell_may_choose_its_device() -> None:
    site = local_site(has_gpu=False)
    assert [device_of(device, site) for device in ("site", "cpu", "cuda")] == ["cpu", "cpu", "cuda"]


def test_a_site_that_is_none() -> None:
    with pytest.raises(RecordError, match="the site in study.json"):
        Site.from_json({"name": "x"})


# `$NAME` in the paths of a site file: of storage where it is read, of the cache on the node where it is used.


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


FRAMEWORK = Framework(name="f", folder="/f", launcher="ranks", command=("{python}",))


def make_plan(cache: str, ranks: RanksPlan | None) -> Plan:
    return structs.replace(PLAN, cache=cache, cache_place="here.yaml:2" if "$" in cache else None, ranks=ranks)


def test_the_cache_is_what_it_is_on_the_node(tmp_path: Path) -> None:
    found = site(tmp_path, "/work", "$SLURM_TMPDIR/$USER")
    assert Site.from_json(found.to_json()).cache.path == Path("$SLURM_TMPDIR/$USER")
    image = Image(archive="a", cache=str(found.cache.path))
    plan = make_plan(str(found.cache.path), RanksPlan(framework=FRAMEWORK, cell=DOCUMENT, engine="bare", image=image, beat_s=60, init_s=60))
    own = with_own_cache(plan, {"SLURM_TMPDIR": "/nvme/7", "USER": "ada"})
    assert own.ranks is not None
    assert own.ranks.image == Image(archive="a", cache="/nvme/7/ada")
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


# `mounts` and `env` of a site: for all of its containers, behind what a program says itself.


def site_with_mounts(root: Path, keys: str, engine: str = "docker") -> Site:
    path = root / "here.yaml"
    path.write_text(f"storage: /work\ncache: {{path: /local}}\nscheduler: slurm\ndevice: cpu\nengine: {engine}\n{keys}\n")
    return read_site(path, {"USER": "ada", "TMPDIR": "/local/7"})


def test_they_are_read_relative_to_the_file_and_by_target(tmp_path: Path) -> None:
    found = site_with_mounts(
        tmp_path, "mounts: [{source: lib, target: /z, writable: true}, {source: /s/$USER, target: /a}]\nenv: {B: '1', A: ''}"
    )
    assert found.mounts == (("/s/ada", "/a", False), (str(tmp_path / "lib"), "/z", True))
    assert found.env == (("A", ""), ("B", "1"))
    assert Site.from_json(found.to_json()) == found


def test_what_a_program_says_itself_holds(tmp_path: Path) -> None:
    found = site_with_mounts(tmp_path, "mounts: [{source: /s, target: /a}, {source: /t, target: /a/b}]\nenv: {A: site, B: site}")
    program = Framework(
        name="f", folder="/f", launcher="ranks", command=("x",), mounts=(("/own", "/a", True),), variables=(("A", "own"), ("C", "own"))
    )
    both = at_site(program, found)
    assert both.mounts == (("/own", "/a", True), ("/t", "/a/b", False))
    assert both.variables == (("A", "own"), ("B", "site"), ("C", "own"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("mounts: [{source: /s, target: /slipway/data}]", r"here.yaml:6: mounts\[0\].target: found .*/slipway/data.* or of Slipway's"),
        ("mounts: [{source: /s, target: /}]", r"mounts\[0\].target: found"),
        ("mounts: [{source: /s, target: /a}, {source: /t, target: /a}]", r"mounts\[1\].target: found '/a' a second time"),
        ("mounts: [{source: $NOWHERE/s, target: /a}]", r"mounts\[0\].source: .*\$NOWHERE is not set on "),
        ("mounts: [{source: $TMPDIR/s, target: /a}]", r"mounts\[0\].source: \$TMPDIR has another value in each job"),
        ("env: {SLIPWAY_OUT: x}", "env.SLIPWAY_OUT: found .*none that Slipway sets itself"),
        ("env: {A: 1}", "env.A: found the whole number 1"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, keys: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        site_with_mounts(tmp_path, keys)


def test_without_a_container_nothing_is_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\].target: found '/a', and engine bare has no container, in which /s could be"):
        site_with_mounts(tmp_path, "mounts: [{source: /s, target: /a}]", "bare")
    assert site_with_mounts(tmp_path, "mounts: [{source: /s, target: /s}]\nenv: {A: b}", "bare").mounts == (("/s", "/s", False),)
