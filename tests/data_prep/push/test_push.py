import json
import os
from pathlib import Path
from typing import Any

import pytest

from base.calls import call_limited
from base.errors import PushError, StorageError
from base.publish import part_path
from base.untrusted import directory
from data_prep.cache.entries import ls
from data_prep.push import Naming, deliver_pending, keep_pending, publish_checked_files, push_files
from data_prep.push.copy import MAX_FILES, list_files
from tests.data_prep.tree.corpus import contents


def anywhere(_target: Path) -> None:
    """A result may go wherever its note says."""


def result(out: Path, text: str = "1") -> Path:
    """A small result of one node."""
    (out / "logs").mkdir(parents=True)
    (out / "events-0.jsonl").write_text(f'{{"step": {text}}}\n' * 100)
    (out / "logs" / "rank-0.log").write_text("hello\n")
    (out / "parameters.safetensors").write_bytes(bytes(range(256)) * 100)
    return out


def test_a_result_arrives_whole_and_is_named_last(tmp_path: Path) -> None:
    out, target = result(tmp_path / "out"), tmp_path / "results" / "runs" / "r1" / "attempts" / "1"
    part = part_path(target)
    files = push_files(out, part)
    assert [file["path"] for file in files] == ["events-0.jsonl", "logs/rank-0.log", "parameters.safetensors"]
    assert all(len(file["blake3"]) == 64 and file["bytes"] == (out / file["path"]).stat().st_size for file in files)
    assert not target.exists()
    assert publish_checked_files(part, files, target)
    assert contents(target) == contents(out)
    assert [path.name for path in target.parent.iterdir()] == ["1"]


def test_files_beyond_the_limit_of_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.push.copy.MAX_LOOKED_AT", 3)
    for number in range(5):
        (tmp_path / f"{number}").touch()
    with directory(tmp_path) as root:
        listing = list_files(root)
    assert len(listing.files) == 3
    assert "more than 3 names" in listing.refused[-1]["reason"]


@pytest.mark.processes
def test_both_steps_run_in_a_limited_child(tmp_path: Path) -> None:
    out, target = result(tmp_path / "out"), tmp_path / "1"
    part = part_path(target)
    files = call_limited("push", push_files, out, part, timeout_s=30)
    assert call_limited("publish", publish_checked_files, part, files, target, timeout_s=30) is True
    assert contents(target) == contents(out)


@pytest.mark.processes
def test_the_same_again_is_fine_and_something_else_is_refused(tmp_path: Path) -> None:
    out, target = result(tmp_path / "out"), tmp_path / "1"
    for expected in (True, False):
        part = part_path(target)
        assert publish_checked_files(part, push_files(out, part), target) is expected
        assert not part.exists()
    before = contents(target)
    other = result(tmp_path / "other", "2")
    part = part_path(target)
    with pytest.raises(
        PushError, match=r"exists with another content, digest [0-9a-f]{12}, this result has [0-9a-f]{12}: events-0.jsonl has"
    ):
        publish_checked_files(part, push_files(other, part), target)
    with pytest.raises(PushError, match="another content"):
        call_limited("publish", publish_checked_files, part, push_files(other, part), target, timeout_s=30)
    assert contents(target) == before
    assert contents(part) == contents(other)


def test_several_nodes_push_into_one_directory(tmp_path: Path) -> None:
    target = tmp_path / "1"
    part = part_path(target)
    outs = [result(tmp_path / f"out-{node}") for node in range(2)]
    for node, out in enumerate(outs):
        for name in ("events-0.jsonl", "parameters.safetensors", "logs/rank-0.log"):
            (out / name).rename(out / name.replace("parameters", f"parameters-{node}").replace("-0.", f"-{node}."))
    files = [file for out in outs for file in push_files(out, part)]
    (part / "record.json").write_text("{}")  # lists the files, so it cannot be in the list
    assert publish_checked_files(part, files, target)
    assert contents(target) == contents(outs[0]) | contents(outs[1]) | {"record.json": b"{}"}


def test_two_nodes_with_one_name_are_found_out(tmp_path: Path) -> None:
    part = part_path(tmp_path / "1")
    files = push_files(result(tmp_path / "a", "1"), part) + push_files(result(tmp_path / "b", "2"), part)
    with pytest.raises(PushError, match=r"two nodes pushed different files 'events-0.jsonl'"):
        publish_checked_files(part, files, tmp_path / "1")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("flip", r"events-0.jsonl has 1200 bytes, blake3 [0-9a-f]{12}, expected 1200"),
        ("cut", r"events-0.jsonl has 5 bytes"),
        ("remove", r"events-0.jsonl is missing"),
        ("add", r"stranger was not sent"),
        ("link", r"Too many levels of symbolic links|not a regular file"),
        ("pipe", r"not a regular file"),
    ],
)
def test_what_storage_changed_is_not_published(tmp_path: Path, damage: str, message: str) -> None:
    target = tmp_path / "1"
    part = part_path(target)
    files = push_files(result(tmp_path / "out"), part)
    path = part / "events-0.jsonl"
    if damage == "flip":
        path.write_bytes(b"}" + path.read_bytes()[1:])
    elif damage == "cut":
        os.truncate(path, 5)
    elif damage == "remove":
        path.unlink()
    elif damage == "add":
        (part / "stranger").write_text("")
    elif damage == "link":
        (part / "stranger").symlink_to("/etc/passwd")
    else:
        os.mkfifo(part / "stranger")
    with pytest.raises((PushError, StorageError), match=message):
        publish_checked_files(part, files, target)
    assert not target.exists()


def test_a_second_push_into_the_same_part_repairs_the_first(tmp_path: Path) -> None:
    target = tmp_path / "1"
    part = part_path(target)
    out = result(tmp_path / "out")
    push_files(out, part)
    (part / "events-0.jsonl").write_text("torn by a kill, and longer than it should be" * 100)
    (part / ".record.json.part-0123456789ab").write_text("torn too")
    left_over = part_path(target)
    left_over.mkdir()
    assert publish_checked_files(part, push_files(out, part), target)
    assert contents(target) == contents(out)
    assert not left_over.exists()


def test_links_and_special_files_are_listed_and_not_followed(tmp_path: Path) -> None:
    out = result(tmp_path / "out")
    (out / "secret").symlink_to("/etc/shadow")
    (out / "folder").symlink_to("/etc")
    os.mkfifo(out / "pipe")
    (out / "new\nline").write_text("")
    (out / os.fsdecode(b"latin-\xe9")).write_text("")
    part = part_path(tmp_path / "1")
    files = push_files(out, part)
    names = [file["path"] for file in files if file["path"].startswith("not-pushed-")]
    assert len(names) == 1
    listed = {entry["path"]: entry["reason"] for entry in map(json.loads, (part / names[0]).read_text().splitlines())}
    assert listed == {
        "secret": "a symbolic link",
        "folder": "a symbolic link",
        "pipe": "a pipe",
        "new\\nline": "its name holds control characters or is not UTF-8",
        "latin-\\udce9": "its name holds control characters or is not UTF-8",
    }
    assert publish_checked_files(part, files, tmp_path / "1")
    assert len(contents(tmp_path / "1")) == 4


def test_a_flooded_log_keeps_head_and_tail_and_nothing_else_is_cut(tmp_path: Path) -> None:
    out = result(tmp_path / "out")
    lines = [f"line {number:06d}\n" for number in range(1000)]
    for name in ("logs/rank-0.log", "logs/strace", "node.log", "events-1.jsonl"):
        (out / name).write_text("".join(lines))
    (out / "logs" / "one-line.log").write_bytes(b"x" * 5000)
    part = part_path(tmp_path / "1")
    files = push_files(out, part, log_bytes=1000)
    for name in ("logs/rank-0.log", "logs/strace", "node.log"):
        found = (part / name).read_text().splitlines(keepends=True)
        assert found[0] == lines[0]
        assert found[-1] == lines[-1]
        marks = [line for line in found if line not in lines]
        left_out = 12 * 1000 - sum(len(line) for line in found if line in lines)
        assert marks == [f"[slipway: {left_out} bytes left out here]\n"]
        assert 900 < (part / name).stat().st_size < 1060
    assert (part / "events-1.jsonl").read_text() == "".join(lines)
    assert (part / "logs" / "one-line.log").read_bytes().count(b"x") == 1000 + 0
    assert publish_checked_files(part, files, tmp_path / "1")


def wait_on_node(cache: Path, name: str, target: Path, text: str = "1") -> Path:
    run_dir = cache / "runs" / name
    result(run_dir / "out", text)
    keep_pending(run_dir, target, "storage was full")
    return run_dir


@pytest.mark.processes
def test_waiting_results_are_shown_and_delivered(tmp_path: Path) -> None:
    cache, target = tmp_path / "cache", tmp_path / "results" / "attempts" / "2"
    expected = contents(wait_on_node(cache, "run-r1-a2-0011aabb", target) / "out")
    rows = ls(cache)
    assert [(row.name, row.kind, row.target) for row in rows] == [("run-r1-a2-0011aabb", "result", str(target))]
    assert rows[0].bytes > 25_000
    deliveries = deliver_pending(cache, anywhere)
    assert [(delivery.delivered, delivery.target, delivery.message) for delivery in deliveries] == [(True, target, "delivered")]
    assert contents(target) == expected
    assert ls(cache) == []
    assert deliver_pending(cache, anywhere) == []


@pytest.mark.processes
def test_a_result_whose_name_is_taken_goes_beside_it(tmp_path: Path) -> None:
    cache, target = tmp_path / "cache", tmp_path / "attempts" / "2"
    for name, text in (("r1-a2-first", "1"), ("r1-a2-second", "2")):
        expected = contents(wait_on_node(cache, name, target, text) / "out")
        delivery = deliver_pending(cache, anywhere)[0]
        assert contents(delivery.target) == expected
    assert delivery.target == target.with_name("2.lost-r1-a2-second")
    assert delivery.message == "delivered beside another result"


@pytest.mark.processes
def test_what_another_may_have_written_is_not_delivered(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number, name in enumerate(("note", "directory", "open-note", "open-directory", "link", "linked", "pipe"), 1):
        wait_on_node(cache, name, tmp_path / "attempts" / str(number))
    (cache / "runs" / "open-note" / "pending.json").chmod(0o666)
    (cache / "runs" / "open-directory").chmod(0o770)
    link = cache / "runs" / "link" / "pending.json"
    link.rename(tmp_path / "note.json")
    link.symlink_to(tmp_path / "note.json")
    (cache / "runs" / "linked").rename(tmp_path / "elsewhere")
    (cache / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    pipe = cache / "runs" / "pipe" / "pending.json"
    pipe.unlink()
    os.mkfifo(pipe)
    delivered = {"note", "directory"}
    if os.geteuid() == 0:
        os.chown(cache / "runs" / "note" / "pending.json", 65534, 65534)
        os.chown(cache / "runs" / "directory", 65534, 65534)
        delivered = set()
    assert {delivery.run_dir.name for delivery in deliver_pending(cache, anywhere)} == delivered


@pytest.mark.processes
def test_a_result_goes_only_where_the_caller_wants_it(tmp_path: Path) -> None:
    def nowhere(target: Path) -> None:
        raise PushError(f"{target} is no place for it")

    waiting = wait_on_node(tmp_path / "cache", "planted", tmp_path / "home" / "autostart" / "1")
    (delivery,) = deliver_pending(tmp_path / "cache", nowhere)
    assert (delivery.delivered, delivery.message) == (False, f"{tmp_path}/home/autostart/1 is no place for it")
    assert not (tmp_path / "home").exists()
    assert waiting.exists()


@pytest.mark.processes
def test_a_result_waits_until_its_record_is_made(tmp_path: Path) -> None:
    """So a kill, or storage that hangs, between delivery and record loses neither: the next delivery finds all of it there."""
    cache, target = tmp_path / "cache", tmp_path / "1"
    waiting = wait_on_node(cache, "one", target)

    def record(found: Path) -> None:
        assert found == target
        raise StorageError("it hangs")

    (delivery,) = deliver_pending(cache, anywhere, record=record)
    assert (delivery.delivered, delivery.message) == (False, "it hangs")
    assert (waiting / "pending.json").exists()
    (target / "record.json").write_text("{}")  # made before the kill
    (delivery,) = deliver_pending(cache, anywhere)
    assert (delivery.delivered, delivery.target) == (True, target)
    assert not waiting.exists()


@pytest.mark.processes
def test_what_cannot_be_delivered_stays_and_is_reported(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "file").write_text("")
    stuck = wait_on_node(cache, "stuck", tmp_path / "file" / "attempts" / "1")
    escaped = wait_on_node(cache, "escaped", tmp_path / "1")
    (escaped / "pending.json").write_text(json.dumps({"out": "../../..", "target": str(tmp_path / "1")}))
    long = wait_on_node(cache, "long", tmp_path / "1")
    (long / "pending.json").write_text(json.dumps({"out": "x" * 1000, "target": str(tmp_path / "1")}))
    torn = wait_on_node(cache, "torn", tmp_path / "1")
    (torn / "pending.json").write_text("{")
    good = wait_on_node(cache, "vanished", tmp_path / "2")
    found = {delivery.run_dir: delivery for delivery in deliver_pending(cache, anywhere)}
    assert {path.name: delivery.delivered for path, delivery in found.items()} == {
        "stuck": False,
        "escaped": False,
        "long": False,
        "torn": False,
        "vanished": True,
    }
    assert "Not a directory" in found[stuck].message
    assert "out: expected the name of a file, found '../../..'" in found[escaped].message
    assert "out: expected the name of a file" in found[long].message
    assert "not valid JSON" in found[torn].message
    assert found[torn].message.endswith("move the result by hand")
    assert not good.exists()
    assert contents(stuck / "out")
    assert not (tmp_path / "1").exists()


def refused(part: Path, files: list[dict[str, Any]]) -> dict[str, str]:
    """What was not pushed, with the reason."""
    names = [file["path"] for file in files if file["path"].startswith("not-pushed-")]
    return {entry["path"]: entry["reason"] for name in names for entry in map(json.loads, (part / name).read_text().splitlines())}


def test_what_we_wrote_comes_from_beside_and_its_names_are_not_the_program_s(tmp_path: Path) -> None:
    out, own, part = result(tmp_path / "out"), tmp_path / "own", part_path(tmp_path / "1")
    (own / "logs").mkdir(parents=True)
    ours = {"cell.json", "logs/rank-0.log", "logs/node-0.log", "logs/sidecar-my-server-0.log"}
    refused_names = {"cell.json", "record.json", "logs/node-1.log", "logs/rank-12-15.log", "logs/sidecar-my-server-0.log"}
    for name in ours:
        (own / name).write_text("ours")
    for name in (*refused_names, "logs/mine.log"):
        (out / name).write_text("the program's")
    files = push_files(out, part, own_dir=own)
    assert publish_checked_files(part, files, tmp_path / "1")
    found = contents(tmp_path / "1")
    assert {name for name, text in found.items() if text == b"ours"} == ours
    assert {name for name, text in found.items() if text == b"the program's"} == {"logs/mine.log"}
    assert set(refused(tmp_path / "1", files)) == {*refused_names, "logs/rank-0.log"}


def test_more_files_than_a_record_takes_are_refused_and_what_is_named_comes_first(tmp_path: Path) -> None:
    out, part = tmp_path / "out", part_path(tmp_path / "1")
    out.mkdir()
    for number in range(200):
        (out / f"junk-{number}").touch()
    (out / "events-7.jsonl").write_text("{}\n")
    files = push_files(out, part, naming=Naming(first=("events-7.jsonl", "parameters.safetensors")), most=5)
    assert len(files) == 6
    assert "events-7.jsonl" in {file["path"] for file in files}
    assert set(refused(part, files).values()) == {"one too many: 5 files with paths of 524 bytes together are pushed"}


@pytest.mark.parametrize("nodes", [1, 4])
def test_paths_are_as_long_together_as_a_record_takes(tmp_path: Path, nodes: int) -> None:
    out = tmp_path.joinpath("out", *["d" * 250] * 6)
    out.mkdir(parents=True)
    for number in range(700):
        (out / f"{number:0250d}").touch()
    with directory(tmp_path / "out") as root:
        listing = list_files(root, most=MAX_FILES // nodes)
    assert len(listing.files) == (1 << 20) // nodes // len(json.dumps(listing.files[0].path)) < 700
    assert len(listing.files) + len(listing.refused) == 700


def test_a_file_of_holes_is_refused_and_one_with_some_is_not(tmp_path: Path) -> None:
    out, part = result(tmp_path / "out"), part_path(tmp_path / "1")
    for name, size in (("giant", 1 << 42), ("small", 1 << 20)):
        with (out / name).open("wb") as file:
            file.write(b"begin")
            file.truncate(size)
    files = push_files(out, part)
    assert "with holes" in refused(part, files)["giant"]
    assert next(file["bytes"] for file in files if file["path"] == "small") == 1 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a file of another's")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    out, part = result(tmp_path / "out"), part_path(tmp_path / "1")
    os.chown(out / "events-0.jsonl", 65534, 65534)
    assert refused(part, push_files(out, part)) == {"events-0.jsonl": "of uid 65534, not this user's"}


@pytest.mark.processes
def test_what_may_not_be_read_is_listed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else: root reads everything")
    out = tmp_path / "out"
    for path in ("events-0.jsonl", "shut/a", "names only/b", "names only/c", "deep/shut/d", "no entry/logs/e"):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text("x")
    (out / "secret").write_text("x")
    for path in [out, *out.rglob("*")]:
        os.chown(path, 65534, 65534)
    modes = {"secret": 0o000, "shut": 0o000, "names only": 0o400, "deep/shut": 0o000, "no entry/logs": 0o100}
    for name, mode in modes.items():
        (out / name).chmod(mode)

    def look() -> list[Any]:
        os.setuid(65534)
        found = list_files(root, ["events-0.jsonl", "names only/b"])
        return [[entry.path for entry in found.files], list(found.refused)]

    with directory(out) as root:
        files, left_out = call_limited("look", look, timeout_s=20)
    assert files == ["events-0.jsonl"]
    assert {entry["path"]: entry["reason"] for entry in left_out} == {
        "secret": "Permission denied",
        "names only/b": "Permission denied: it was not looked into",
        "names only/c": "Permission denied: it was not looked into",
        **dict.fromkeys(("shut", "deep/shut", "no entry/logs"), "Permission denied: it was not looked into"),
    }


def test_an_output_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    part = part_path(tmp_path / "1")
    result(tmp_path / "home")
    (tmp_path / "out").symlink_to(tmp_path / "home")
    files = push_files(tmp_path / "out", part)
    assert refused(part, files) == {"out": "it is a symbolic link"}
    assert len(files) == 1


@pytest.mark.processes
def test_a_result_of_an_earlier_version_is_delivered_with_its_record(tmp_path: Path) -> None:
    run_dir = tmp_path / "cache" / "runs" / "old"
    result(run_dir / "out")
    (run_dir / "out" / "record.json").write_text("{}")
    note = {"schema": "slipway.pending/1", "out": "out", "target": str(tmp_path / "1"), "reason": "storage was full"}
    (run_dir / "pending.json").write_text(json.dumps(note))
    (delivery,) = deliver_pending(tmp_path / "cache", anywhere)
    assert delivery.delivered, delivery.message
    assert (tmp_path / "1" / "record.json").read_text() == "{}"
    assert (tmp_path / "1" / "logs" / "rank-0.log").is_file()


@pytest.mark.processes
def test_a_result_waits_with_what_we_wrote_beside_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "cache" / "runs" / "new"
    result(run_dir / "out")
    (run_dir / "own").mkdir()
    (run_dir / "own" / "record.json").write_text("{}")
    keep_pending(run_dir, tmp_path / "1", "storage was full", own="own")
    (delivery,) = deliver_pending(tmp_path / "cache", anywhere)
    assert delivery.delivered, delivery.message
    assert (tmp_path / "1" / "record.json").read_text() == "{}"


@pytest.mark.parametrize("where", ["out", "own"])
def test_a_note_that_leads_out_by_a_link_delivers_nothing(tmp_path: Path, where: str) -> None:
    run_dir = tmp_path / "cache" / "runs" / "new"
    result(run_dir / "out")
    (run_dir / "own").mkdir()
    keep_pending(run_dir, tmp_path / "1", "storage was full", own="own")
    (run_dir / where).rename(tmp_path / "moved")
    (run_dir / where).symlink_to(tmp_path / "moved")
    (delivery,) = deliver_pending(tmp_path / "cache", anywhere)
    assert not delivery.delivered
    assert not (tmp_path / "1").exists()


def test_files_of_the_same_name_on_two_nodes_lie_side_by_side(tmp_path: Path) -> None:
    part = part_path(tmp_path / "1")
    files = []
    for node, below in enumerate((None, "of-node-1")):
        out, own = tmp_path / f"out-{node}", tmp_path / f"own-{node}"
        for name in ("events-0.jsonl", "events-1.jsonl", "profile.txt", "kept/x.log", f"of-node-{node}/y"):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(f"{name} of node {node}\n")
        (own / "logs").mkdir(parents=True)
        (own / "logs" / f"node-{node}.log").write_text("log\n")
        files += push_files(out, part, own_dir=own, naming=Naming((f"events-{node}.jsonl",), below))
    assert refused(part, files) == {
        "events-1.jsonl": "events of a rank that is not on this node",
        "of-node-0/y": "Slipway itself writes a file of this name",
        "events-0.jsonl": "events of a rank that is not on this node",
        "of-node-1/y": "Slipway itself writes a file of this name",
    }
    assert publish_checked_files(part, files, tmp_path / "1")
    there = contents(tmp_path / "1")
    for name in ("profile.txt", "kept/x.log"):
        assert (there[name], there[f"of-node-1/{name}"]) == tuple(f"{name} of node {node}\n".encode() for node in range(2))
    assert there["events-1.jsonl"] == b"events-1.jsonl of node 1\n"


@pytest.mark.parametrize("name", ["logs", "cell.json/x", "record.json/x", "logs/node-0.log/x", "ended.json/x/y", "n" * 256])
def test_no_name_that_a_program_gives_keeps_its_result_from_storage(tmp_path: Path, name: str) -> None:
    out, own, part = tmp_path / "out", tmp_path / "own", part_path(tmp_path / "1")
    (own / "logs").mkdir(parents=True)
    (own / "logs" / "node-0.log").write_text("ours")
    (own / "cell.json").write_text("{}")
    out.mkdir()
    (out / "good").write_text("good")
    if len(name) < 256:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
        naming = Naming()
    else:  # too long on storage only
        naming, name = Naming(first=("good",), below=name), "x"
        (out / name).write_text("x")
    files = push_files(out, part, own_dir=own, naming=naming)
    assert list(refused(part, files)) == [name]
    (part / "record.json").write_text("{}")
    assert publish_checked_files(part, files, tmp_path / "1")
    assert contents(tmp_path / "1")["good"] == b"good"


@pytest.mark.processes
def test_a_result_that_waits_keeps_its_names(tmp_path: Path) -> None:
    run_dir = tmp_path / "cache" / "runs" / "new"
    result(run_dir / "out")
    keep_pending(run_dir, tmp_path / "1.node-1", "storage was full", naming=Naming(first=("events-0.jsonl",), below="of-node-1"))
    (delivery,) = deliver_pending(tmp_path / "cache", anywhere)
    assert delivery.delivered, delivery.message
    assert (tmp_path / "1.node-1" / "events-0.jsonl").is_file()
    assert (tmp_path / "1.node-1" / "of-node-1" / "logs" / "rank-0.log").is_file()
