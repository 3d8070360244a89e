"""What an outside observer finds after a round."""

from __future__ import annotations

import json
from collections import Counter

from tests.campaign.rounds import BIN, ROOT, Round, wait_for
from workflow.run.record.reading import validate_record


def missing(one: Round) -> list[str]:
    """Runs without a record."""
    study = json.loads((one.results / "study.json").read_text()) if (one.results / "study.json").exists() else None
    if study is None:
        return ["study.json"]
    expected = [f"{cell['cell_id']}-r1" for cell in study["cells"]]
    return [run for run in expected if not (one.results / "runs" / run / "record.json").exists()]


def attempts(one: Round) -> list[tuple[str, str]]:
    """Status and reason of all attempts."""
    records = [json.loads(path.read_text()) for path in sorted(one.results.glob("runs/*/attempts/[!.]*/record.json"))]
    return [(record["status"], record["status_reason"]) for record in records]


def look(one: Round, words: tuple[str, ...]) -> str:
    """What an outside observer finds wrong after the end."""
    try:
        wait_for("the last processes to end", lambda: not one.tagged(), 60)
    except TimeoutError:
        return f"processes are left: {one.tagged()}"
    wrong = []
    for node in one.lost:  # what it had is removed by the next run there, or by hand
        argv = [str(BIN / "slipway"), "reap", "--remove", "--site", str(one.cluster.site_file)]
        one.cluster.exec(node, argv, user=one.user, cwd=ROOT, check=True)
    for path in one.results.glob("runs/*/record.json"):
        record = json.loads(path.read_text())
        validate_record(record, str(path))
        if record["status"] != "ok" and not (record["status"] == "timeout" and "timeout" in words):
            wrong.append(f"{path.parent.name}: {record['status']}: {record['status_reason']}")
        if one.endless and record["status"] == "ok":
            wrong.append(f"{path.parent.name}: ok after a million steps")
    done = Counter(
        path.parts[-4] for path in one.results.glob("runs/*/attempts/[!.]*/record.json") if json.loads(path.read_text())["kind"] == "result"
    )
    wrong += [f"{run} was trained {count} times" for run, count in done.items() if count > 1]
    wrong += [f"an attempt says {status}: {why}" for status, why in attempts(one) if status not in ("ok", *words)]
    wrong += [f"left: {path}" for path in one.results.rglob("*") if ".part-" in path.name or path.name.startswith((".lease", "lease"))]
    for node in one.cluster.nodes:
        found = one.cluster.exec(
            node, ["find", "/local/slipway/runs", "/local/slipway/leases", "-mindepth", "1", "-type", "f"]
        ).stdout.split()
        wrong += [f"left on {node}: {path}" for path in found]
    return "; ".join(wrong)
