"""A program that attacks its user's files from its output directory, whichever engine holds it."""

import json
from pathlib import Path

from tests.workflow.run.world import World

NAMES = (".rank-0.log.tail-0", ".rank-0.log.tail-1", "node-0.log", "cell.json", "record.json", ".x.part")
LINKS = {"logs/.rank-0.log.tail-0", "logs/.rank-0.log.tail-1", "logs/node-0.log", "cell.json", "record.json", "dangling", "folder"}


def links_lead_nowhere(world: World) -> None:
    """A run of it ends well, with all that a run has, and the files that its links name are as they were."""
    aim = world.path / "home"
    aim.mkdir()
    for name in NAMES:
        (aim / name).write_text(f"precious {name}")
    run_id = world.cell(do={"0": [1, "links"]}, aim=str(aim))
    world.ends(run_id)
    assert world.record(run_id)["status"] == "ok"
    assert {file.name: file.read_text() for file in aim.iterdir()} == {name: f"precious {name}" for name in NAMES}
    attempt = world.run_dir(run_id) / "attempts" / "1"
    assert json.loads((attempt / "cell.json").read_text())["run_id"] == run_id
    assert (attempt / "logs" / "node-0.log").is_file()
    assert (attempt / "logs" / "kept.log").is_file()
    refused = not_pushed(attempt)
    assert {path for path, reason in refused.items() if reason == "a symbolic link"} == LINKS
    assert "holes" in refused["sparse"]
    assert world.left() == []


def not_pushed(attempt: Path) -> dict[str, str]:
    """What was refused, with the reason."""
    (listed,) = attempt.glob("not-pushed-*.jsonl")
    return {entry["path"]: entry["reason"] for entry in map(json.loads, listed.read_text().splitlines())}


def a_pipe_freezes_nobody(world: World) -> None:
    """Its events have become a pipe that nobody writes to: an error like any other of a program."""
    run_id = world.cell(do={"0": [3, "pipe"]})
    log = world.ends(run_id)
    assert world.record(run_id)["status"] == "error"
    assert "events-0.jsonl cannot be read: it is a pipe" in log
    assert world.left() == []
