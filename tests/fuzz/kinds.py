"""Every kind of file, answer and event that others may have written: a whole sample of each, and what our readers do with it."""

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from blake3 import blake3

from base.calls import call_limited
from base.chunks import SCHEMA
from base.errors import DatasetError, SlipwayError
from base.jsonfile import canonical_json, parse_json
from base.process import CommandResult
from base.seal import publish_sealed, sealed_text
from cluster.gpus import listing
from cluster.load.readers import LOOK_FIELDS, look_of
from cluster.machine import cpu_model, memory_bytes, oom_counters, os_name, read_oom_kills
from cluster.schedulers.inside_job import reason_of
from cluster.schedulers.jobs import job_words
from cluster.schedulers.slurm import answers
from cluster.schedulers.slurm.answers import parse_partitions, parse_queue
from cluster.types import Allocation, Grant
from containers import reaping
from containers.engines.container_start import WatchdogConnection
from containers.engines.docker import _specifications
from containers.frameworks import check_supports
from containers.frameworks.spec import read_framework
from containers.images import commands, model
from containers.node_facts import memory_limit
from containers.rank_variables import fill
from data_prep.build.steps import read_dataset_file
from data_prep.cache import lock
from data_prep.cache.entries import ls
from data_prep.cache.layout import open_cache
from data_prep.cache.lock import Lock, live_leases
from data_prep.file_set import parse_file_set
from data_prep.manifest import manifest_as, parse_manifest, to_bytes
from data_prep.push import pending
from data_prep.push.copy import write_list
from data_prep.staging.chunk_journal import ChunkTable, Journal
from data_prep.tree.manifest import TreeLocation, parse_location
from extras.doctor.slurm import judge_partitions
from extras.remote import asking
from tests.extras.profile.test_layers import gpu
from tests.fuzz.running import Kind, run_cases
from tests.workflow.report.builder import make_cell, make_record, unsealed_bytes
from tests.workflow.run.cells import ended_note
from workflow.dag.storage_view import result_at
from workflow.report.profile.profile import profile_of
from workflow.report.profile.trace import trace_of
from workflow.run.images import image_of, read_pinned, references
from workflow.run.node.ranks import EventTail
from workflow.run.plan import allocation_request
from workflow.run.record.events import read_events
from workflow.run.record.machine_load import busy, load_of, others_seen, read_watched
from workflow.run.record.model import Load, Node
from workflow.run.record.outcome import Ending, RankEnd
from workflow.run.record.reading import read_record
from workflow.run.record.resume import resumable
from workflow.run.record.run_record import Measurements, join_measurements, measured
from workflow.run.record.walltime_budget import Budget, budget_of
from workflow.run.storage import lease
from workflow.run.storage.attempt import complete_delivered
from workflow.run.storage.results import records, results_of
from workflow.study.cell import Cell
from workflow.study.publishing import find_run, read_resolved
from workflow.study.site import local_site

FAKE: Final = Path(__file__).parents[1] / "workflow" / "run" / "fake"
CAPTURED: Final = Path(__file__).parents[1] / "captured"
DIGITS: Final = "0123456789abcdef" * 4


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def _lines(values: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _read_trace(content: bytes, _directory: Path) -> None:
    found = profile_of(trace_of(content, "trace.json"))
    assert found.step_ms >= 0
    assert found.idle.ms >= 0
    canonical_json(msgspec.to_builtins(found))


def _written(content: bytes, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _sample(*contents: bytes) -> Callable[[Path], tuple[bytes, ...]]:
    return lambda _directory: contents


def _captured(*names: str) -> Callable[[Path], tuple[bytes, ...]]:
    return _sample(*(json.loads((CAPTURED / f"{name}.json").read_text())["stdout"].encode() for name in names))


# -- the study


def _study_sample(_directory: Path) -> tuple[bytes, ...]:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2)]
    site = {
        "name": "s",
        "storage": "/s",
        "cache": {"path": "/c", "max_bytes": None},
        "engine": "docker",
        "scheduler": "local",
        "device": "cpu",
        "directives": [],
        "setup": [],
        "images": {"pytorch": "a:1"},
        "registry_credentials": None,
        "deadline_margin_s": 60.0,
        "walltime_s": 3600.0,
        "shared": "user",
        "storage_limit": {"bytes_per_s": 10**9, "readers": 2},
    }
    value = {
        "schema": "slipway.study/1",
        "study": "a-study",
        "baseline": {"nodes": 1},
        "limits": {"walltime_s": 600.0, "gpu_hours": None, "init_s": 30.0},
        "site": site,
        "cells": cells,
        "repeats": 1,
        "runs": [{"run_id": f"{cell['cell_id']}-r1", "cell_id": cell["cell_id"], "repeat": 1} for cell in cells],
        "history": [{"sha256": DIGITS, "time": "2026-01-02T03:04:05+00:00"}],
    }
    return (_json(value),)


def _read_study(content: bytes, directory: Path) -> None:

    _written(content, directory / "study.json")
    study = read_resolved(directory)
    for entry in study.runs[:3]:
        cell = find_run(study, entry.run_id).cell
        allocation_request(cell, study.cells, study.site)
        budget_of(study.site, study.limits)
        canonical_json(cell.to_json())
    try:
        references(study.site, study.cells)
    except SlipwayError as error:
        raise SlipwayError(f"study.json: {error}") from error  # of a framework that is not there


# -- datasets


def _read_tree_files(content: bytes, _directory: Path) -> None:
    found = parse_file_set(content, "manifest.json")
    ChunkTable(found.files).marks(())
    for file in found.files:
        TreeLocation(path="/tree").of(file).relative_to("/tree")


def _read_place(content: bytes, _directory: Path) -> None:
    parse_location(content, "place.json")


def _manifest_value() -> dict[str, Any]:
    shard = {"samples": 5, "bytes": 100, "chunk_bytes": 60, "chunks": ["0" * 32, "1" * 32], "blake3": DIGITS}
    return {
        "schema": "slipway.dataset/1",
        "format": "lmdb-0.9",
        "value": "caffe-datum",
        "key": "%08d",
        "name": "set",
        "encoding": "raw",
        "layout": "hwc",
        "channels": 3,
        "size": [8, 8],
        "resize": "squash",
        "classes": ["cat", "dog"],
        "splits": {split: {"samples": 5, "shards": [number], "class_counts": [2, 3]} for number, split in enumerate(("train", "test"))},
        "mean": [1.0, 2.0, 3],
        "std": [1.0, 2.0, 3],
        "mean_image": "A" * 1024,  # 8 x 8 x 3 zeros
        "samples": 10,
        "bytes": 200,
        "shards": [{"name": f"shard-0000{number}.lmdb", "split": split, **shard} for number, split in enumerate(("train", "test"))],
        "source": {"kind": "folder"},
        "rejected": [{"name": "a.jpg", "reason": "cut"}],
        "rejected_count": 1,
        "left_out_classes": [],
    }


def _read_manifest(content: bytes, _directory: Path) -> None:
    to_bytes(parse_manifest(content, "manifest.json"))


SINGLE: Final = {"schema": SCHEMA, "name": "a.tar.zst", "bytes": 9000, "chunk_bytes": 8192, "chunks": ["1" * 32, "2" * 32]}


def _read_single(content: bytes, _directory: Path) -> None:
    ChunkTable(parse_file_set(content, "a.tar.zst.chunks.json").files).span(0)


def _sequences_value() -> dict[str, Any]:
    """A manifest of token sequences."""
    shard = {"samples": 5, "tokens": 9, "length": 4, "rows": 3, "bytes": 100, "chunk_bytes": 60, "chunks": ["0" * 32, "1" * 32]}
    return {
        "schema": "slipway.sequences/1",
        "format": "lmdb-0.9",
        "value": "token-rows",
        "key": "%08d",
        "name": "set",
        "vocabulary": 4,
        "words": ["a", "b"],
        "id_bytes": 2,
        "end": 0,
        "lengths": [4, 8],
        "splits": {split: {"samples": 5, "tokens": 9, "shards": [number]} for number, split in enumerate(("train", "test"))},
        "samples": 10,
        "tokens": 18,
        "bytes": 200,
        "shards": [
            {"name": f"shard-0000{number}.lmdb", "split": split, "blake3": DIGITS, **shard}
            for number, split in enumerate(("train", "test"))
        ],
        "source": {"kind": "text"},
        "rejected": [{"name": "a.txt", "reason": "not UTF-8"}],
        "rejected_count": 1,
    }


def _read_sequences(content: bytes, _directory: Path) -> None:
    from data_prep.sequences.manifest import SequenceManifest, padding

    manifest = manifest_as(SequenceManifest, parse_json(content, "manifest.json", DatasetError), "manifest.json")
    ChunkTable(parse_file_set(content, "manifest.json").files).marks(())
    for split in manifest.splits:
        padding(manifest.groups(split))
    to_bytes(manifest)


def _read_dataset_file(content: bytes, directory: Path) -> None:
    _written(content, directory / "dataset.json")
    canonical_json(vars(read_dataset_file(directory)))


BUILT: Final = {"name": "set", "digest": DIGITS, "path": f"set-{DIGITS[:12]}", "samples": 10, "bytes": 200, "spec12": DIGITS[:12]}


# -- frameworks and images


def _read_framework(content: bytes, directory: Path) -> None:
    spec = read_framework(_written(content, directory / "fake" / "framework.yaml"))
    check_supports(spec, {"mode": spec.supports.modes[0] if spec.supports.modes else "train", "device": "site"})
    [fill(word, {"python": "python3", "folder": "/folder"}) for word in spec.command]
    canonical_json([spec.image, spec.python, spec.command, spec.packages, [sidecar.env for sidecar in spec.sidecars]])


IMAGE: Final = {
    "reference": "host:5000/a/b:1",
    "engine": "docker",
    "digest": f"sha256:{'1' * 64}",
    "image_id": f"sha256:{'2' * 64}",
    "platform": "linux/amd64",
    "size_bytes": 10**9,
    "form": "docker-archive",
    "source": "",
}
ARCHIVED: Final = {"schema": "slipway.image/1", "image": IMAGE, "file": "222222222222.tar.zst", "sha256": DIGITS, "bytes": 10**8}
PINNED: Final = {"engine": "docker", "images": {"pytorch": {"archive": "/s/images/222222222222.tar.zst", **ARCHIVED}}}


def _read_image_manifest(content: bytes, directory: Path) -> None:
    path = directory / "222222222222.tar.zst"
    _written(content, model.manifest_path(path))
    entry = model.read_manifest(path)
    model.check_platform(entry.image, "x86_64") if entry.image.platform == "linux/amd64" else None
    canonical_json(msgspec.to_builtins(entry))


def _read_pinned(content: bytes, directory: Path) -> None:
    path = _written(content, directory / "images-0123456789ab.json")
    canonical_json(msgspec.to_builtins(read_pinned(path)))
    image = image_of(str(path), "docker", "pytorch").image
    if image.image_id == IMAGE["image_id"]:
        model.check_same(image, {"n0": IMAGE["image_id"]})


INSPECTED: Final = [
    {
        "Id": f"sha256:{'2' * 64}",
        "RepoTags": ["a:1"],
        "RepoDigests": [f"a@sha256:{'1' * 64}"],
        "Os": "linux",
        "Architecture": "amd64",
        "Size": 10**9,
        "ManifestType": "application/vnd.oci.image.manifest.v1+json",
    }
]


def _read_inspected(content: bytes, _directory: Path) -> None:
    commands.parse_inspect(content.decode(errors="replace"), "a:1", "docker")


LABELS: Final = {
    "slipway.tag": "run-a1-x",
    "slipway.job": "slurm:12:0",
    "slipway.user": "1",
    "slipway.holder": json.dumps(
        {
            "scheduler": "slurm",
            "job_id": "12",
            "restart_count": 0,
            "host": "h",
            "pid": 1,
            "pid_start": 2,
            "boot_id": "b",
            "pid_namespace": "p",
        }
    ),
}


def _read_containers(content: bytes, _directory: Path) -> None:
    found = reaping.parse_containers("docker", content.decode(errors="replace"))
    for container in found:
        reaping._holder(container)
    reaping.plan_reap(found, lambda asked: [None for _ in asked], 1)


WORDS: Final = (
    {"type": "up", "pid": 1, "gpus": {"code": 0, "text": "GPU 0: A (UUID: GPU-1)"}},
    {"type": "started", "pids": [7, 8]},
    {"type": "ending", "text": "no beat"},
    {"type": "ended", "process": 0, "code": -9, "oom": True},
)


def _read_words(content: bytes, _directory: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(content[:100_000])
        theirs.shutdown(socket.SHUT_WR)
        link = WatchdogConnection(ours)
        while not link.ended:
            link.read()


def _read_cdi(content: bytes, directory: Path) -> None:
    _written(content, directory / "cdi" / "nvidia.yaml")
    _specifications(directory / "cdi")


# -- leases, caches, journals, notes


LEASE: Final = {
    "schema": "slipway.lease/1",
    "token": "0123456789abcdef",
    "attempt": 2,
    "since": 1795265087.5,
    "scheduler": "local",
    "job_id": "123",
    "restart_count": 0,
    "host": "h",
    "pid": 123,
    "pid_start": 456,
    "boot_id": "b",
    "pid_namespace": "pid:[4026531836]",
}


def _read_lease(content: bytes, directory: Path) -> None:
    from cluster.schedulers import describe_holder, holder_alive

    _written(content, directory / "lease.json")
    found = lease.read_lease(directory)
    if found is not None:
        canonical_json(found.to_json())
        lives = holder_alive(found.holder) if found.holder.scheduler == "local" else None
        lease._refusal(directory, found, lives, describe_holder)


CACHED: Final = {
    "run_id": "a-r1",
    "pid": 999_999,
    "start_time": 1,
    "boot_id": "b",
    "uid": 1,
    "job_id": "12",
    "scheduler": "slurm",
    "pid_namespace": "pid:[4026531836]",
}


def _read_cache_lease(content: bytes, directory: Path) -> None:
    name = f"set-{DIGITS[:12]}"
    cache = open_cache(directory / "cache")
    _written(content, cache.leases / name / "0123456789abcdef.json")
    for found in live_leases(cache, name):
        str(found).encode()


def _read_lock(content: bytes, directory: Path) -> None:
    cache = open_cache(directory / "cache-1")
    _written(content, cache.locks / "a.lock")
    with Lock(cache, "a", "stage") as lock_:
        lock.describe(lock_.holder()).encode()
        assert lock_.try_acquire()
        lock_.show(1, 2)


def _read_stamp(content: bytes, directory: Path) -> None:
    """The size of a dataset in the cache, and the note of an undelivered result in it."""
    cache = open_cache(directory / "cache-2")
    name = f"set-{DIGITS[:12]}"
    (cache.datasets / name).mkdir(exist_ok=True)
    _written(content, cache.used / f"{name}.json")
    _written(content, cache.runs / "run-a1-x" / "pending.json")
    for row in ls(cache.root):
        json.dumps([row.name, row.bytes, row.last_used, row.target])


def _read_pending(content: bytes, directory: Path) -> None:
    (directory / "run" / "out").mkdir(parents=True, exist_ok=True)
    _written(content, directory / "run" / "pending.json")
    with pending._taken(directory / "run") as taken:
        assert taken is not None
        pending._content(directory / "run", *taken)


def _ended_sample(directory: Path) -> tuple[bytes, ...]:
    """Beside the study that it is about."""
    study = json.loads(_study_sample(directory)[0])
    _written(_json(study), directory / "results" / "study.json")
    record = make_record(study["cells"][0])
    facts = {**record, "allocation": record, "earlier": None}
    times = {**record["time"], "run_s": record["run_s"], "steps_s": record["steps_s"]}
    end = RankEnd(ranks=(0,), host="h", exit_code=3, time=1.0)
    return (_json(ended_note(facts, Ending(status="error", reason="it ended", rank_end=end), times, [0])),)


def _read_ended(content: bytes, directory: Path) -> None:
    """A note that cannot be read makes no result; one that can be, makes one that its readers believe."""
    study = json.loads((directory / "results" / "study.json").read_bytes())
    run_dir = directory / "results" / "runs" / study["runs"][0]["run_id"]
    attempt = run_dir / "attempts" / "1"
    _written(content, attempt / "ended.json")
    entry = {"path": "ended.json", "bytes": len(content), "blake3": blake3(content).hexdigest()}
    write_list(attempt, "1", [entry])
    publish_sealed(attempt / "record.json", {"kind": "prevented", "status": "storage", "status_reason": "full", "files": []})
    if not complete_delivered(run_dir):
        assert read_record((attempt / "record.json").read_bytes()).kind == "result"


def _journal_sample(directory: Path) -> tuple[bytes, ...]:
    place = directory / "journal"
    place.mkdir(exist_ok=True)
    (place / "staging.journal").unlink(missing_ok=True)
    journal = Journal(place, 20)
    journal.add([0, 1, 2, 17])
    journal.close()
    return ((place / "staging.journal").read_bytes(),)


def _read_journal(content: bytes, directory: Path) -> None:
    (directory / "journal").mkdir(exist_ok=True)
    _written(content, directory / "journal" / "staging.journal")
    journal = Journal(directory / "journal", 20)
    journal.close()
    assert journal.done <= set(range(20))


REMOTE: Final = {
    asking.Hello: {"protocol": 1, "version": "0.1.0", "host": "login2", "program": "/tools/slipway"},
    asking.Have: {"protocol": 1, "place": "/s/studies/a-1/2", "there": False, "incoming": "/s/studies/a-1/.2.part-3"},
    asking.Results: {"protocol": 1, "results": "/s/results/a", "files": [{"name": "tables/a.csv", "bytes": 7, "blake3": DIGITS}]},
}


def _read_remote(content: bytes, _directory: Path) -> None:
    """The fields of an answer tell which question it is for."""
    result = CommandResult(argv=("slipway",), returncode=0, stdout=content.decode(errors="replace"), stderr="")
    for kind, sample in REMOTE.items():
        if list(sample)[1].encode() in content:
            asking.answer_of(kind, result, "gate")


# -- events and records


EVENTS: Final = (
    {
        "event": "run_start",
        "world_size": 1,
        "framework": "pytorch",
        "framework_version": "2",
        "parameters": 10,
        "provenance": {"a": [1, "b"]},
    },
    {"event": "phase", "phase": "train"},
    *(
        {"event": "step", "step": step, "seconds": 0.1, "input_s": 0.01, "measured": True, "samples": 8, "loss": 1.5, "monotonic_ns": step}
        for step in range(4)
    ),
    {"event": "warning", "message": "slow"},
    {"event": "eval", "split": "test", "loss": 0.1, "accuracy": 0.9, "samples": 10},
    {"event": "checkpoint", "file": "c", "bytes": 10, "step": 3, "resumable": True},
    {"event": "error", "kind": "oom", "message": "no", "time": 1.0},
    {"event": "run_stop", "norm": 1.0, "max_memory_allocated_bytes": 10, "train_s": 1.0, "window_wall_s": 0.4, "window_steps_s": 0.4},
)


def _look(t: float) -> dict[str, Any]:
    """What a watcher writes at that second."""
    told = dict.fromkeys(("idle", "steal", "interrupts", "own", "kernel", "faults", "swapped_in", "cpu_some", "io_full", "throttled"), t)
    gpu = {
        "uuid": "GPU-1",
        "mhz": 1.0,
        "max_mhz": 2.0,
        "reasons": 8,
        "celsius": None,
        "watts": 1.5,
        "busy_ratio": 1.0,
        "ecc_errors": 0,
        "others": 1,
    }
    return {"t": t, **told, "busiest": [["a of b", 0.5]], "available": 1 << 30, "gpus": [gpu]}


LOAD: Final = ({"schema": "slipway.load/1", "cores": 2}, *map(_look, (0.5, 1.0, 1.5, 2.0)))


def _read_load(content: bytes, directory: Path) -> None:
    watched = read_watched(_written(content, directory / "load-0.jsonl"))
    if watched is not None:
        load = msgspec.convert(msgspec.to_builtins(load_of(watched, (0.9, 1.6))), Load)
        node = Node(name="n", hostname="n", gpus=(), load=load)
        canonical_json([busy([node]), others_seen([node])])


def _read_events(content: bytes, directory: Path) -> None:
    path = _written(content, directory / "events-0.jsonl")
    canonical_json(msgspec.to_builtins(measured(read_events(directory, 1), 1, 8)))
    beats = EventTail(path, 0.0)
    beats.poll(1.0)
    beats.limit_s(1.0, 2.0)
    canonical_json([beats.phase, beats.step, beats.error, beats.checkpoint])


def _record_sample(_directory: Path) -> tuple[bytes, ...]:
    cell = make_cell()
    files = [{"path": "checkpoint.safetensors", "bytes": 10, "blake3": DIGITS}]
    record = make_record(cell, files=files, checkpoint={"step": 5, "bytes": 10}, status="preempted", kind="prevented")
    return (sealed_text(record), unsealed_bytes(record))


def _read_record(content: bytes, directory: Path) -> None:
    """What is done with a record besides the tables: the graph's look, the attempts to resume from."""
    path = _written(content, directory / f"{make_cell()['cell_id']}-r1" / "record.json")
    canonical_json(result_at(path))
    _written(content, path.parent / "attempts" / "1" / "record.json")
    results_of(path.parent)

    for earlier in resumable(records(path.parent, [1]), Cell.from_json(make_cell()), Budget(walltime_s=1e6, margin_s=1.0)):
        found = join_measurements(Measurements(training=earlier.training), earlier.performance, earlier.training, earlier.step)
        canonical_json(msgspec.to_builtins(found))


# -- answers of programs, and of the kernel


def _text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda content, _directory: read(content.decode(errors="replace"))


def _queue(text: str) -> None:
    for job in parse_queue(text):
        job_words(job, 0.0)
        reason_of(job, 0)


def _partitions(text: str) -> None:
    list(judge_partitions(parse_partitions(text), (), local_site(has_gpu=False)))


def _looks(text: str) -> None:
    for words in listing.parse_fields(text, LOOK_FIELDS):
        look_of(words)


def _gpus(text: str) -> None:
    listing.with_instances(listing.parse_gpus(text), listing.parse_instances(text))


def _files(readers: Mapping[str, Callable[[Path], object]]) -> Callable[[bytes, Path], object]:
    def read(content: bytes, directory: Path) -> None:
        path = _written(content, directory / "kernel")
        for one in readers.values():
            one(path)

    return read


NODE: Final = {
    "name": "n0",
    "hostname": "h",
    "address": "10.0.0.1",
    "interface": None,
    "cores": [0, 1],
    "gpus": ["GPU-1"],
    "gpu_models": ["H100"],
}
ALLOCATION: Final = {"scheduler": "slurm", "job_id": "8", "nodes": [NODE], "device": "cuda", "deadline": 1e9, "exclusive": True}
GRANT: Final = {"node": "n0", "hostname": "h", "address": "10.0.0.1", "cores": [0], "gpus": ["GPU-1"], "other_use": [["GPU-1", "used"]]}
CDI: Final = b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: GPU-1\n  containerEdits: {}\n"
KERNEL: Final = (
    b"MemTotal:       65536 kB\nMemFree: 3 kB\nmodel name\t: CPU\n",
    b'PRETTY_NAME="Debian"\nID=debian\n',
    b"0::/a/b\n4:memory:/slurm/job\n",
    b"low 0\noom 2\noom_kill 1\n",
)

TREE: Final = {
    "schema": "slipway.files/1", "name": "corpus", "bytes": 5000,
    "files": [
        {"name": "a/b", "bytes": 5000, "chunk_bytes": 4096, "chunks": [DIGITS[:32]] * 2},
        {"name": "c", "bytes": 0, "chunk_bytes": 4096, "chunks": []},
    ],
}  # fmt: skip
PLACE: Final = {"schema": "slipway.place/1", "path": "/nfs/corpus", "links": {"a": "b/c"}}

KINDS: Final[dict[str, Kind]] = {
    "study.json": Kind("json", _study_sample, _read_study, "study.json"),
    "manifest of a tree": Kind("json", _sample(_json(TREE)), _read_tree_files, "manifest.json"),
    "place of a tree": Kind("json", _sample(_json(PLACE)), _read_place, "place.json"),
    "dataset.json": Kind("json", _sample(_json(BUILT)), _read_dataset_file, "dataset.json"),
    "manifest": Kind("json", _sample(_json(_manifest_value())), _read_manifest, "manifest.json"),
    "chunks of a file": Kind("json", _sample(_json(SINGLE)), _read_single, "a.tar.zst.chunks.json"),
    "manifest of sequences": Kind("json", _sample(_json(_sequences_value())), _read_sequences, "manifest.json"),
    "framework.yaml": Kind("yaml", _sample((FAKE / "framework.yaml").read_bytes()), _read_framework, "framework"),
    "image manifest": Kind("json", _sample(_json(ARCHIVED)), _read_image_manifest, "222222222222.tar.zst"),
    "pinned images": Kind("json", _sample(_json(PINNED)), _read_pinned, "images-0123456789ab.json"),
    "image inspect": Kind("json", _sample(_json(INSPECTED)), _read_inspected, "'a:1'"),
    "container inspect": Kind(
        "lines", _sample(json.dumps({"id": "1f", "name": "/n", "labels": LABELS}).encode()), _read_containers, "docker"
    ),
    "words of a container": Kind("lines", _sample(_lines(WORDS)), _read_words, "first process"),
    "CDI specification": Kind("yaml", _sample(CDI), _read_cdi),
    "lease": Kind("json", _sample(_json(LEASE)), _read_lease, "lease.json"),
    "cache lease": Kind("json", _sample(_json(CACHED)), _read_cache_lease),
    "cache lock": Kind("json", _sample(_json({**CACHED, "what": "stage", "done": 1, "total": 2})), _read_lock),
    "cache stamp": Kind("json", _sample(_json({"bytes": 100, "target": "/s/a"})), _read_stamp),
    "pending.json": Kind(
        "json",
        _sample(_json({"schema": "slipway.pending/1", "out": "out", "target": "/s/a", "reason": "full"})),
        _read_pending,
        "pending.json",
    ),
    "ended.json": Kind("json", _ended_sample, _read_ended),
    "journal": Kind("text", _journal_sample, _read_journal),
    "events": Kind("lines", _sample(_lines(EVENTS)), _read_events),
    "load of a node": Kind("lines", _sample(_lines(LOAD)), _read_load),
    "nvidia-smi at work": Kind("text", _captured("nvidia-smi/load", "nvidia-smi/load-old-card"), _text(_looks)),
    "record": Kind("json", _record_sample, _read_record),
    "answers of a remote host": Kind("json", _sample(*map(_json, REMOTE.values())), _read_remote, "the answer of gate"),
    "scontrol show node": Kind("text", _captured("slurm-22.05/show-node"), _text(answers.parse_node_addresses)),
    "scontrol show partition": Kind("text", _captured("slurm-22.05/show-partition"), _text(_partitions)),
    "squeue": Kind("text", _captured("slurm-22.05/squeue-ours", "slurm-22.05/squeue-states"), _text(_queue)),
    "nvidia-smi": Kind("text", _captured("nvidia-smi/p100x8-query", "nvidia-smi/a100-mig-query"), _text(_gpus)),
    "nvidia-smi -L": Kind("text", _captured("nvidia-smi/a100-mig-list"), _text(listing.parse_instances)),
    "nvidia-smi apps": Kind("text", _captured("nvidia-smi/compute-apps"), _text(listing.parse_apps), "", (ValueError,)),
    "kernel files": Kind(
        "text",
        _sample(*KERNEL),
        _files({"a": cpu_model, "b": memory_bytes, "c": os_name, "d": oom_counters, "e": read_oom_kills, "f": memory_limit}),
    ),
    "trace of a profiler": Kind("json", _sample(gpu().text()), _read_trace, "trace.json"),
    "allocation": Kind(
        "json",
        _sample(_json(ALLOCATION)),
        lambda content, _: msgspec.json.decode(content, type=Allocation),
        "",
        (msgspec.DecodeError, ValueError),
    ),
    "grant": Kind(
        "json",
        _sample(_json(GRANT)),
        lambda content, _: msgspec.json.decode(content, type=Grant),
        "",
        (msgspec.DecodeError, ValueError),
    ),
}


def cases_of(name: str, directory: str, seed: int, count: int, timeout_s: float) -> dict[str, Any]:
    """run_cases() of the kind of this name, in a child. For base/calls.py: a process of the tests has threads and must not fork it."""
    found: dict[str, Any] = call_limited(f"{count} cases of {name}", run_cases, KINDS[name], directory, seed, count, timeout_s=timeout_s)
    return found
