"""Images without an engine: what is decided, what is read, what is written, what is said when it cannot be done."""

import dataclasses
import errno
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from base.chunks import CHUNK_BYTES, chunks_path
from base.errors import ConfigError, ContainerError, DigestMismatch, NotEnoughSpace, RecordError, StorageError, UnsupportedRequest
from cluster import processes
from containers.frameworks import load_framework
from containers.images import commands, pinning
from containers.images.archiving import archive
from containers.images.build import build, build_argv
from containers.images.last_use import last_used, locked, mark_used
from containers.images.loading import Bringing, image_to_start, load, loaded_id
from containers.images.model import MACHINES, PinnedImage, check_same, manifest_path, read_manifest
from containers.images.pinning import pin
from containers.images.reaping import LoadedImage, find_images, parse_images, plan_reap_images, reap_images, remove_image
from containers.images.streams import feed_decompressed, free_bytes, require, save_compressed
from containers.images.streams import hash_file as hash_archive
from data_prep.file_set import parse_file_set
from data_prep.hashing import hash_file
from tests.minicluster.waiting import wait_until

HERE = MACHINES[platform.machine()]
ID, OTHER, MANIFEST = (f"sha256:{digit * 64}" for digit in "abc")
DOCKER = {"Id": ID, "RepoTags": ["a/b:1"], "RepoDigests": [], "Architecture": "amd64", "Os": "linux", "Size": 141936359}
PODMAN = {
    "Id": "a" * 64,
    "Digest": MANIFEST,
    "RepoDigests": [f"localhost/a/b@{MANIFEST}"],
    "Architecture": "arm64",
    "Os": "linux",
    "Size": 147846327,
    "ManifestType": "application/vnd.docker.distribution.manifest.v2+json",
}


def image(**changes: Any) -> PinnedImage:
    values = {"reference": "site/pytorch:2", "engine": "docker", "digest": MANIFEST, "image_id": ID}
    return PinnedImage(**{**values, "platform": "linux/amd64", "size_bytes": 1000, **changes})


def test_docker_and_podman_describe_an_image() -> None:
    found = commands.parse_inspect(json.dumps([DOCKER]), "a/b:1", "docker")
    assert (found.image_id, found.digest, found.platform, found.form) == (ID, ID, "linux/amd64", "docker-archive")
    found = commands.parse_inspect(json.dumps([PODMAN]), "a/b:1", "podman")
    assert (found.image_id, found.digest, found.platform, found.size_bytes) == (ID, ID, "linux/arm64", 147846327)
    oci = {**PODMAN, "ManifestType": "application/vnd.oci.image.manifest.v1+json"}
    assert commands.parse_inspect(json.dumps([oci]), "a/b:1", "podman").form == "oci-archive"


@pytest.mark.parametrize("answer", ["", "[]", "{}", "[{}]", json.dumps([{**DOCKER, "Id": "abc"}]), json.dumps([{**DOCKER, "Size": None}])])
def test_an_answer_of_another_kind_is_an_error_that_shows_it(answer: str) -> None:
    with pytest.raises(ContainerError, match="cannot be read"):
        commands.parse_inspect(answer, "a/b:1", "docker")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("host:5000/a/b:1", f"host:5000/a/b@{MANIFEST}"),
        ("host:5000/a/b", f"host:5000/a/b@{MANIFEST}"),
        ("b:1", f"b@{MANIFEST}"),
        (f"b@{MANIFEST}", f"b@{MANIFEST}"),
    ],
)
def test_the_digest_is_that_of_the_repository_asked_for(reference: str, expected: str) -> None:
    name = expected.partition("@")[0]
    known = [f"mirror/else@{OTHER}", expected if "/" in name else f"docker.io/library/{expected}"]
    found = commands.parse_inspect(json.dumps([{**DOCKER, "RepoDigests": known}]), reference, "docker")
    assert found.digest == MANIFEST


def test_argv() -> None:
    assert commands.pull_argv("docker", "a:1", Path("/d/config.json")) == ["docker", "--config", "/d", "pull", "--quiet", "a:1"]
    assert commands.pull_argv("podman", "a:1", Path("/f")) == ["podman", "pull", "--quiet", "--authfile", "/f", "a:1"]
    assert commands.save_argv(image()) == ["docker", "save", "a" * 64]
    assert commands.save_argv(image(engine="podman")) == ["podman", "save", "--format", "docker-archive", "a" * 64]
    argv = build_argv("docker", "pytorch", "t:1", "base:1", "http://127.0.0.1:9/")
    assert "BASE=base:1" in argv
    assert "PIP=--no-index --find-links http://127.0.0.1:9/" in argv
    assert argv[-1].endswith("frameworks/pytorch")
    assert "--build-arg" not in build_argv("podman", "pytorch", "t:1", None, None)


def test_a_reference_or_an_engine_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for reference in ("", "-v/:/host", "a b", "a\nb"):
        with pytest.raises(ConfigError, match="image: found"):
            pin(reference, "docker")
    with pytest.raises(UnsupportedRequest, match="did you mean 'podman'"):
        pin("a:1", "podmann")
    with pytest.raises(ConfigError, match="docker login"):
        pin("a:1", "docker", credentials=tmp_path / "none.json")
    (tmp_path / "auth.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"from a file config.json alone: '.*/auth.json' has another name"):
        pin("a:1", "docker", credentials=tmp_path / "auth.json")


def test_every_node_must_have_the_same_image() -> None:
    check_same(image(), {"n1": ID, "n2": ID})
    with pytest.raises(ContainerError, match=f"n2: {OTHER}; n3: no image"):
        check_same(image(), {"n1": ID, "n2": OTHER, "n3": ""})
    with pytest.raises(ContainerError, match="no node answered"):
        check_same(image(), {})


def test_reaping_takes_the_longest_unused_first() -> None:
    day = 86400.0
    used = {"a": 9 * day, "b": None, "c": 3 * day, "d": 10 * day}
    images = [LoadedImage(short=name, handle=name, bytes=10, used=when) for name, when in used.items()]
    names = [[found.short for found in plan_reap_images(images, 11 * day, *words)] for words in ((), (20 * day,), (0.0,))]
    assert names == [["b", "c"], [], ["b", "c", "a", "d"]]


def test_lists_of_both_engines_are_read() -> None:
    text = "slipway-loaded/u0 5fd6c9bce8e8 142MB\nlocalhost/slipway-loaded/u0 0123456789ab 1.5 GB\n"
    assert parse_images(text, "docker") == [
        ("5fd6c9bce8e8", "slipway-loaded/u0:5fd6c9bce8e8", 142_000_000),
        ("0123456789ab", "localhost/slipway-loaded/u0:0123456789ab", 1_500_000_000),
    ]
    with pytest.raises(ContainerError, match="cannot be read"):
        parse_images("REPOSITORY\n", "docker")


def test_room_is_asked_for_before_the_first_byte(tmp_path: Path) -> None:
    require({tmp_path / "not" / "there": 1}, "load")
    with pytest.raises(NotEnoughSpace, match=r"load: \d+ bytes .* are needed, .* free in .*make room there"):
        require({tmp_path: free_bytes(tmp_path) // 2, tmp_path / "beside": free_bytes(tmp_path) // 2 + (1 << 30)}, "load")


@pytest.mark.processes
def test_bytes_through_a_command(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    (tmp_path / "content").write_bytes(content)
    with (tmp_path / "packed").open("wb") as file:
        save_compressed(["cat", str(tmp_path / "content")], file)
    with zstandard.open(tmp_path / "packed") as file:
        assert file.read() == content
    feed_decompressed(tmp_path / "packed", ["cp", "/dev/stdin", str(tmp_path / "again")])
    assert (tmp_path / "again").read_bytes() == content


@pytest.mark.processes
def test_commands_that_fail_or_hang_are_named(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(zstandard.compress(bytes(1 << 20)))
    failing, hanging = ["sh", "-c", "echo no room >&2; exit 3"], ["sh", "-c", "exec tail -f /dev/null"]
    with (tmp_path / "target").open("wb") as file:
        with pytest.raises(ContainerError, match=r"ended with 3\nno room"):
            save_compressed(failing, file)
        with pytest.raises(ContainerError, match="did not end within 0.05 s and was killed"):
            save_compressed(hanging, file, limit_s=0.05)
        with pytest.raises(ContainerError, match="cannot be started"):
            save_compressed([str(tmp_path / "none")], file)
    with pytest.raises(ContainerError, match=r"ended with 3\nno room"):
        feed_decompressed(tmp_path / "packed", failing)
    with pytest.raises(ContainerError, match="did not end within 0.05 s and was killed"):
        feed_decompressed(tmp_path / "packed", hanging, limit_s=0.05)
    (tmp_path / "packed").write_bytes(b"no zstd")
    with pytest.raises(ContainerError, match="not what zstd writes"):
        feed_decompressed(tmp_path / "packed", ["cat"])


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_fills_is_an_os_error_for_the_caller() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left") as found:
        save_compressed(["head", "-c", "3000000", "/dev/urandom"], full)
    assert found.value.errno == errno.ENOSPC


# With apptainer the image is a file, so the whole way can be gone without an engine. `apptainer build` is a stand-in.


@pytest.fixture
def sif(tmp_path: Path) -> Path:
    path = tmp_path / "image.sif"
    path.write_bytes(b"squashfs" * 1000)
    return path


@pytest.fixture
def path(sif: Path, tmp_path: Path) -> Path:
    """Its archive."""
    return archive(pin(str(sif), "apptainer"), tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize(("engine", "form", "other"), [("apptainer", "sif", "enroot"), ("enroot", "sqsh", "apptainer")])
def test_a_file_is_pinned_archived_and_loaded_by_its_content(
    tmp_path: Path, sif: Path, cache: Path, engine: str, form: str, other: str
) -> None:
    file = sif.rename(tmp_path / f"image.{form}")
    pinned = pin(str(file), engine)
    assert (pinned.image_id, pinned.form) == ("sha256:" + hashlib.sha256(file.read_bytes()).hexdigest(), form)
    path = archive(pinned, tmp_path / "storage")
    assert path == tmp_path / "storage" / "images" / f"{pinned.short}.{form}"
    before = path.stat().st_mtime_ns
    assert archive(pinned, tmp_path / "storage") == path
    assert path.stat().st_mtime_ns == before
    entry = read_manifest(path)
    assert loaded_id(entry, engine, cache) == ""
    assert load(path, engine, cache) == pinned.image_id == loaded_id(entry, engine, cache)
    assert Path(image_to_start(entry, engine, cache)).read_bytes() == file.read_bytes()
    assert [one.short for one in find_images(engine, cache, 0)] == [pinned.short]
    assert find_images(other, cache, 0) == ()
    path.unlink()
    assert load(path, engine, cache) == pinned.image_id, "storage is read only where the image is not here"


@pytest.mark.parametrize("damage", ["cut", "flip", "grow"])
def test_a_damaged_archive_is_found_before_it_is_loaded(tmp_path: Path, sif: Path, path: Path, cache: Path, damage: str) -> None:
    content = path.read_bytes()
    changed = {"cut": content[:-1], "flip": content[:9] + b"\0" + content[10:], "grow": content + b"\0"}[damage]
    path.write_bytes(changed)
    with pytest.raises(DigestMismatch, match="cut or changed on storage; remove both, and archive the image again"):
        load(path, "apptainer", cache)
    assert sorted(found.name.partition(".")[2] for found in (cache / "images").iterdir()) == ["lock"]
    path.unlink()
    archive(pin(str(sif), "apptainer"), tmp_path)
    load(path, "apptainer", cache)


def test_a_file_in_the_cache_that_has_changed_is_brought_again(sif: Path, path: Path, cache: Path) -> None:
    load(path, "apptainer", cache)
    entry, here = read_manifest(path), cache / "images" / path.name
    changed = here.read_bytes()[:-1] + b"\0"
    here.unlink()  # the archive on the same disk is the same file
    here.write_bytes(changed)
    assert loaded_id(entry, "apptainer", cache) == "", "of the same size"
    load(path, "apptainer", cache)
    assert here.read_bytes() == sif.read_bytes()
    os.utime(here)
    assert loaded_id(entry, "apptainer", cache) == entry.image.image_id, "written to, and the same"


@pytest.mark.parametrize(
    ("reference", "uri"),
    [
        ("pytorch/pytorch:2.7", "docker://pytorch/pytorch:2.7"),
        ("ghcr.io/group/image:1", "docker://ghcr.io#group/image:1"),
        ("localhost:5000/image", "docker://localhost:5000#image"),
        ("dockerd://slipway/pytorch:1", "dockerd://slipway/pytorch:1"),
        ("docker://user@host#image:1", "docker://user@host#image:1"),
    ],
)
def test_enroot_is_told_a_registry_in_its_own_way(tmp_path: Path, reference: str, uri: str) -> None:
    assert pinning.enroot_uri(reference) == uri
    argv = pinning.enroot_import_argv(tmp_path / "image.sqsh", reference, Path("mine"))
    settings = [f"ENROOT_{name}_PATH={tmp_path}" for name in ("RUNTIME", "CONFIG")]
    assert argv == ["env", *settings, "enroot", "import", "--output", f"{tmp_path}/image.sqsh", uri]
    assert (tmp_path / ".credentials").readlink() == Path("mine").absolute()


def test_what_docker_save_has_written_is_not_for_enroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ContainerError, match=r"enroot reads no archive of `docker save`; load it \(`podman load --input /a/b.tar`"):
        pin("docker-archive:/a/b.tar", "enroot")


def test_an_archive_without_its_manifest_is_not_there(tmp_path: Path, sif: Path) -> None:
    pinned = pin(str(sif), "apptainer")
    path = archive(pinned, tmp_path)
    manifest_path(path).unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        load(path, "apptainer", tmp_path / "cache")
    archive(pinned, tmp_path)
    value = json.loads(manifest_path(path).read_text())
    for wrong in (
        {},
        {**value, "file": "../../etc/passwd"},
        {**value, "sha256": "x"},
        {**value, "image": {**value["image"], "form": "zip"}},
    ):
        manifest_path(path).write_text(json.dumps(wrong))
        with pytest.raises(RecordError):
            read_manifest(path)


def test_a_sif_that_changed_after_it_was_pinned_is_not_archived(tmp_path: Path, sif: Path) -> None:
    pinned = pin(str(sif), "apptainer")
    sif.write_bytes(b"another")
    with pytest.raises(ContainerError, match="not the file any more"):
        archive(pinned, tmp_path / "storage")
    assert list((tmp_path / "storage" / "images").iterdir()) == []


@pytest.mark.processes
def test_a_sif_is_built_once_from_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    refuse = "[ $3 != docker://site/none:1 ] || { echo FATAL: denied >&2; exit 255; }"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{refuse}\necho "$3 $$" > "$2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    first = pin("site/pytorch:2", "apptainer")
    assert pin("site/pytorch:2", "apptainer") == first
    assert (tmp_path / "calls").read_text().count("build") == 1
    with pytest.raises(ContainerError, match="denied"):
        pin("site/none:1", "apptainer")
    argv = pinning.apptainer_build_argv(Path("o.sif"), "oras://a/b", Path("auth.json"))
    assert argv == ["apptainer", "build", "--authfile", "auth.json", "o.sif", "oras://a/b"]


def test_sifs_in_the_cache_are_reaped_by_their_last_use(path: Path, cache: Path) -> None:
    before = int(time.time())
    load(path, "apptainer", cache)
    found = find_images("apptainer", cache, 0)
    assert [(one.short, one.bytes) for one in found] == [(path.stem, 8000)]
    assert before <= (found[0].used or 0) <= time.time()
    assert reap_images("apptainer", cache, act=True) == []
    assert [why for _, why in reap_images("apptainer", cache, act=False, unused_s=-1.0)] == [None]
    with locked(cache / "images" / f"{path.stem}.lock", "load", 0.0):
        assert ["holds" in (why or "") for _, why in reap_images("apptainer", cache, act=True, unused_s=-1.0)] == [True]
    assert [why for _, why in reap_images("apptainer", cache, act=True, unused_s=-1.0)] == [None]
    assert find_images("apptainer", cache, 0) == ()


def test_an_image_that_a_run_loads_while_images_are_listed_stays(path: Path, cache: Path) -> None:
    load(path, "apptainer", cache)
    (listed,) = find_images("apptainer", cache, 0)
    load(path, "apptainer", cache)
    assert remove_image(listed, "apptainer", cache) == "a run has loaded it since it was listed"
    (listed,) = find_images("apptainer", cache, 0)
    assert remove_image(listed, "apptainer", cache) is None


def test_parts_of_killed_archivers_go_and_those_of_living_ones_stay(tmp_path: Path, sif: Path) -> None:
    directory = tmp_path / "storage" / "images"
    directory.mkdir(parents=True)
    for name, age_s in (("dead", 6 * 3600), ("living", 60)):
        part = directory / f".0123456789ab.tar.zst.part-{name}"
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age_s,) * 2)
    path = archive(pin(str(sif), "apptainer"), tmp_path / "storage")
    left = sorted(found.name for found in directory.iterdir())
    assert left == [".0123456789ab.tar.zst.part-living", path.name, chunks_path(path).name, manifest_path(path).name]


def test_an_archive_has_the_list_of_chunks_by_which_nodes_pass_it_on(tmp_path: Path) -> None:
    content = random.Random(3).randbytes(2 * CHUNK_BYTES + 7)
    (tmp_path / "image.sif").write_bytes(content)
    path = archive(pin(str(tmp_path / "image.sif"), "apptainer"), tmp_path)
    listed = chunks_path(path).read_text()
    hashes = hash_file(path)
    (file,) = parse_file_set(listed.encode(), "the list").files
    assert (file.path, file.bytes, file.chunk_bytes, file.chunks) == (path.name, len(content), CHUNK_BYTES, hashes.chunks)


def test_what_others_have_brought_is_loaded_and_storage_is_not_read(tmp_path: Path, sif: Path, path: Path, cache: Path) -> None:
    brought = tmp_path / "brought.sif"
    brought.write_bytes(sif.read_bytes())
    path.write_bytes(b"not what it was")
    asked: list[int] = []

    def bring(num_bytes: int) -> Path:
        asked.append(num_bytes)
        return brought

    load(path, "apptainer", cache, bringing=Bringing(bring=bring))
    assert asked == [8000]
    assert (cache / "images" / path.name).read_bytes() == sif.read_bytes()
    load(path, "apptainer", cache, bringing=Bringing(bring=bring))
    assert asked == [8000], "it is here"
    brought.unlink()
    assert (cache / "images" / path.name).read_bytes() == sif.read_bytes()


def test_nobody_waits_at_the_lock_of_a_load_whose_archive_has_not_come(path: Path, cache: Path) -> None:
    here = []

    def bring(_bytes: int) -> Path:
        load(path, "apptainer", cache, limit_s=0.0)  # another run of this node, while the other nodes keep this one waiting
        here.append((cache / "images" / path.name).stat().st_ino)
        return path

    load(path, "apptainer", cache, bringing=Bringing(bring=bring))
    assert [(cache / "images" / path.name).stat().st_ino] == here, "it looked again when it had the lock"


def test_what_others_have_brought_is_what_was_pinned(sif: Path, path: Path, cache: Path) -> None:
    """Whoever can write beside the archive can make a list of chunks that fits another one; the manifest is of the moment of pinning."""
    for other in (bytes(sif.stat().st_size), b"shorter"):
        path.write_bytes(other)
        chunks_path(path).write_text(json.dumps(hash_archive(path).chunk_list(path.name)))
        with pytest.raises(DigestMismatch, match="it was cut or changed on storage"):
            load(path, "apptainer", cache, bringing=Bringing(bring=lambda _bytes: path))
        assert loaded_id(read_manifest(path), "apptainer", cache) == ""


def test_a_load_that_waits_for_another_says_so(path: Path, cache: Path) -> None:
    waits: list[bool] = []
    holder = rf"process {os.getpid()} \(load the same, since [-0-9: ]+\) of this node holds {cache}/images/"
    with locked(cache / "images" / f"{path.stem}.lock", "load the same", 0.0), pytest.raises(ContainerError, match=holder):
        load(path, "apptainer", cache, limit_s=0.0, bringing=Bringing(wait=lambda: waits.append(True), bring=lambda _bytes: path))
    assert waits == [True]


@pytest.mark.processes
def test_a_load_whose_node_program_goes_while_it_waits_reads_nothing(path: Path, cache: Path) -> None:
    argv = [sys.executable, "-m", "containers.images", "--engine", "apptainer", "--archive", path, "--cache", cache]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    asked, answer = map(json.loads, done.stdout.splitlines())
    assert asked == {"wants": 8000}
    assert answer["error"] == ["ContainerError", "the node program that asked for the image has gone"]
    assert [found.suffix for found in (cache / "images").iterdir()] == [".lock"]


def test_a_cache_or_a_storage_that_is_anothers_is_named(tmp_path: Path, sif: Path) -> None:
    pinned = pin(str(sif), "apptainer")
    (tmp_path / "storage").write_text("a file, no directory")
    with pytest.raises(StorageError, match="archive image .* on storage: Not a directory"):
        archive(pinned, tmp_path / "storage")
    path = archive(pinned, tmp_path)
    (tmp_path / "cache").write_text("a file, no directory")
    with pytest.raises(ContainerError, match="the lock .*lock cannot be made: Not a directory"):
        load(path, "apptainer", tmp_path / "cache")


@pytest.mark.processes
def test_a_client_that_is_asked_dies_with_whoever_asked(tmp_path: Path) -> None:
    """A pull that its killed load had left behind would go on for an hour, and hold the job's node."""
    file = tmp_path / "pid"
    code = f"from containers.engines.container_start import call; call(['sh', '-c', 'echo $$ > {file}; exec tail -f /dev/null'], 600.0)"
    asking = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: file.exists() and bool(file.read_text().strip()), 30.0, "it runs")
        client = processes.state_of(int(file.read_text()))
        assert client is not None
    finally:
        asking.kill()
        asking.wait()
    wait_until(lambda: not processes.is_alive(client.pid, client.start), 30.0, "it has gone")


def test_a_torn_mark_counts_as_none(tmp_path: Path) -> None:
    mark_used(tmp_path, image(), "docker")
    assert last_used(tmp_path, image().short, "docker") is not None
    for mark in tmp_path.glob("*.json"):
        mark.write_text("{")
    assert last_used(tmp_path, image().short, "docker") is None


def test_a_manifest_of_another_machine_is_refused(tmp_path: Path, sif: Path) -> None:
    other = dataclasses.replace(pin(str(sif), "apptainer"), platform="linux/" + ("arm64" if platform.machine() == "x86_64" else "amd64"))
    with pytest.raises(ContainerError, match=r"is for linux/\w+, the node is .* name an image for linux/"):
        load(archive(other, tmp_path), "apptainer", tmp_path / "cache")


@pytest.mark.processes
def test_a_build_that_cannot_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerError, match="podman, which is not on PATH; ENGINE=docker or ENGINE=podman"):
        build("podman", "pytorch")
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "docker").chmod(0o755)
    with pytest.raises(ConfigError, match=r"found no \*.whl"):
        build("docker", "pytorch", wheels=tmp_path)
    with pytest.raises(ContainerError, match=r"ended with 7, see above; without a registry .* WHEELS="):
        build("docker", "pytorch")


def test_the_dockerfile_takes_another_base_and_needs_no_root_to_run() -> None:
    text = (load_framework("pytorch").folder / "Dockerfile").read_text()
    assert "ARG BASE=docker.io/nvidia/cuda:" in text, "podman knows no short names"
    assert "FROM ${BASE}" in text
    assert "torch==2.13.0" in text
    assert "ARG TORCH=" + next(word for word in load_framework("pytorch").packages if word.startswith("torch")) in text
