"""Writes the events of a training run without training.

`optimizer.fake` of the cell: {"do": {"<rank>": [step, action]}, "step_s", "sync", "save": "slow" or "linger",
"clock": how fast its clock goes,
"tells": what part of its steps' seconds it tells, "stamps": false where its steps tell no time of their end, "late": {"<rank>": seconds
that it begins later}, "hurry": a file, before whose creation the last 200 steps do not begin, and from which on steps take no time,
"aim": the directory that links are to lead to}.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CELL = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text())
FAKE = CELL["optimizer"].get("fake", {})
STARTED = time.monotonic()
EVENTS = Path(os.environ["SLIPWAY_OUT"], f"events-{RANK}.jsonl").open("w", buffering=1)  # noqa: SIM115 - until the end of the process


CLOCK = FAKE.get("clock", 1)


def emit(event, **fields):
    EVENTS.write(json.dumps({"event": event, "time": time.time(), "monotonic_ns": int(time.monotonic_ns() * CLOCK), **fields}) + "\n")


class Peers:
    """Every step ends for all at once, through rank 0; a peer that is gone is an error, as it is in a real framework."""

    def __init__(self):
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + ("TORCHELASTIC_RUN_ID" in os.environ))
        self.peers = []
        if WORLD == 1 or not FAKE.get("sync", True):
            return
        if RANK == 0:
            server = socket.create_server(address, backlog=WORLD)
            self.peers = [server.accept()[0] for _ in range(WORLD - 1)]
            return
        for _ in range(3000):  # on a busy machine rank 0 comes up much later
            try:
                self.peers = [socket.create_connection(address)]
                return
            except ConnectionRefusedError:
                time.sleep(0.02)
        sys.exit(f"no rank 0 at {address}")

    def wait(self):
        if RANK:
            self.peers and self.peers[0].sendall(b".")
        for peer in self.peers:
            if not peer.recv(1):
                raise ConnectionError("Connection closed by peer [127.0.0.1]")
        for peer in self.peers if RANK == 0 else []:
            peer.sendall(b".")


def end(code):
    os.write(2, b"about to fail\n")
    sys.exit(code)


def fail(kind, code, message):
    emit("error", kind=kind, message=message)
    sys.exit(code)


def throw():
    raise ValueError("the seed of all evil")


def leave_a_folder():
    folder = Path(os.environ["SLIPWAY_OUT"], ".folder.part")
    folder.mkdir()
    folder.joinpath("file").write_text("x" * 5000)
    folder.rename(folder.with_name("folder"))


def leave_much():
    with Path(os.environ["SLIPWAY_OUT"], "much").open("wb") as file:
        for _ in range(300):
            file.write(os.urandom(1 << 20))


def plant_links():
    """Where a node program writes, or wrote once, links to files of the user; then print so much that a log goes on in its tail."""
    out, aim = Path(os.environ["SLIPWAY_OUT"]), FAKE["aim"]
    out.joinpath("logs").mkdir(exist_ok=True)
    logs = ("logs/.rank-0.log.tail-0", "logs/.rank-0.log.tail-1", "logs/node-0.log")
    for name in (*logs, "cell.json", "record.json", ".x.part", "dangling"):
        out.joinpath(name).symlink_to(Path(aim, Path(name).name))
    out.joinpath("folder").symlink_to(aim)
    out.joinpath("logs", "kept.log").write_text("the program's own log\n")
    with out.joinpath("sparse").open("wb") as file:
        file.truncate(1 << 40)
    for _ in range(5200):
        os.write(1, b"attack " * 1000 + b"\n")


def take_names():
    """Each rank writes files under the same names, and in places where Slipway has files of its own."""
    out = Path(os.environ["SLIPWAY_OUT"])
    out.joinpath("logs").write_text(f"rank {RANK}")
    for name in ("profile.txt", "record.json/x", "cell.json/x", f"events-{1 - RANK}.jsonl"):
        path = out / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"rank {RANK}")


def plant_a_pipe():
    """In the place of our own events."""
    EVENTS.flush()
    path = Path(os.environ["SLIPWAY_OUT"], f"events-{RANK}.jsonl")
    path.unlink()
    os.mkfifo(path)


ACTIONS = {
    "orphan": lambda: os.kill(os.getppid(), signal.SIGKILL),  # its launcher goes, and it goes on
    "links": plant_links,
    "pipe": plant_a_pipe,
    "names": take_names,
    "nan": lambda: fail("nan", 42, "loss is nan at step 3"),
    "raise": throw,
    "child": lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True),  # a grandchild that nobody waits for
    "deaf": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "sleep": lambda: time.sleep(1000),
    "much": leave_much,  # that the push takes seconds
    "folder": leave_a_folder,
}


def wait_for_a_beat():
    """The node program reads the events after each: after two it has read what was there before the first."""
    beat = Path(os.environ["SLIPWAY_BEAT"])
    before = beat.stat().st_mtime_ns
    while beat.stat().st_mtime_ns == before:
        time.sleep(0.01)


def exchange(out):
    out.rename(out.with_name("moved"))
    out.symlink_to(out.with_name("moved"))


def fill(out):
    """The disk of the cache, to the last block."""
    with out.parents[2].joinpath("filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def tell_anew(out):
    """The same steps, three times as fast, in a file that nobody has seen while it ran."""
    path = out / f"events-{RANK}.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    begin = events[0]["monotonic_ns"]
    for event in events:
        event["monotonic_ns"] = begin + (event["monotonic_ns"] - begin) // 3
        if event["event"] == "step":
            event["seconds"] /= 3
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))


LAST = {
    "tell anew": tell_anew,
    "fill": fill,
    "truncate": lambda out: os.truncate(out / f"events-{RANK}.jsonl", 0),
    "remove": shutil.rmtree,
    "exchange": exchange,
}
"""What it does after run_stop: `optimizer.fake.last`."""


def save(step):
    """A checkpoint is JSON here; one that is "slow" is never done; after one of "linger" the process does not end by itself."""
    emit("phase", phase="checkpoint")
    out = Path(os.environ["SLIPWAY_OUT"])
    part = out / ".checkpoint.safetensors.part"
    part.write_text(json.dumps({"step": step, "cell": CELL["cell_id"], "seen": SEEN}))
    if FAKE.get("save") == "slow":
        time.sleep(1000)
    part.rename(out / "checkpoint.safetensors")
    emit("checkpoint", file="checkpoint.safetensors", bytes=(out / "checkpoint.safetensors").stat().st_size, step=step, resumable=True)
    if FAKE.get("save") == "linger":
        time.sleep(1000)
    os._exit(43)


def resume():
    if "SLIPWAY_CHECKPOINT" not in os.environ:
        given = CELL.get("parameters_file")
        if given and Path(os.environ["SLIPWAY_PARAMETERS"]).stat().st_size != given["bytes"]:
            raise ValueError(f"{os.environ['SLIPWAY_PARAMETERS']} is not the file that the cell names")
        return 0
    content = json.loads(Path(os.environ["SLIPWAY_CHECKPOINT"]).read_text())
    if content["cell"] != CELL["cell_id"]:
        raise ValueError(f"{os.environ['SLIPWAY_CHECKPOINT']} is a checkpoint of another cell")
    SEEN.extend(content["seen"])
    return content["step"]


def wait_to_hurry(left):
    """Wait, alive, before the last 200 steps until they take no time, or a checkpoint is wanted: a job that is cut off late must not find
    the run at its end."""
    while left == 200 and "hurry" in FAKE and not Path(FAKE["hurry"]).exists() and not os.access(os.environ["SLIPWAY_STOP"], os.F_OK):
        emit("phase", phase="train")
        time.sleep(0.1)


SEEN = []


def act(action):
    if action.startswith("exit"):
        end(int(action.split()[1]))
    elif action.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, action))
        time.sleep(0.2)
    else:
        ACTIONS[action]()


def main():
    emit("phase", phase="init")
    if Path("/slipway").exists():  # in a container, whose image has nothing but Python: the library directory is on the path
        assert importlib.util.find_spec("slipway_reader")
    else:
        import slipway_reader  # noqa: F401 - with all that it needs
    peers = Peers()
    provenance = {"torch_version": "0", "threads": int(os.environ["OMP_NUM_THREADS"]), "cpu_cores": sorted(os.sched_getaffinity(0))}
    emit(
        "run_start", rank=RANK, world_size=WORLD, framework="fake", framework_version="1", device=CELL["device"],
        parameters=CELL["model_parameters"],
        provenance=provenance,
    )  # fmt: skip
    time.sleep(FAKE.get("late", {}).get(str(RANK), 0))
    emit("phase", phase="warmup")
    steps = CELL["steps"]
    first = resume()
    total = steps.get("total") or steps["warmup"] + steps["measured"]
    for step in range(first, total):
        wait_to_hurry(total - step)
        if RANK == 0 and os.access(os.environ["SLIPWAY_STOP"], os.F_OK):
            save(step)
        SEEN.append(step)
        if step == first + steps["warmup"]:
            emit("phase", phase="train")
        when, action = FAKE.get("do", {}).get(str(RANK), [None, None])
        if step == when:
            act(action)
        begin = time.monotonic()
        if "hurry" not in FAKE or not Path(FAKE["hurry"]).exists():
            time.sleep(FAKE.get("step_s", 0.001))
        peers.wait()
        measured = first + steps["warmup"] <= step < first + steps["warmup"] + steps["measured"]
        emit(
            "step",
            step=step,
            measured=measured,
            seconds=(time.monotonic() - begin) * FAKE.get("tells", 1),
            **({} if FAKE.get("stamps", True) else {"monotonic_ns": None}),
            input_s=0.0,
            samples=CELL["batch_size"],
            loss=2.0 / (1 + step),
            loss_scope="local",
        )
    if RANK == 0:
        emit("eval", split="test", loss=0.5, accuracy=0.75, samples=4)
        Path(os.environ["SLIPWAY_OUT"], "parameters.safetensors").write_bytes(bytes(1000))
        assert list(range(total)) == SEEN, SEEN
    emit(
        "run_stop",
        steps=step + 1,
        parameters=CELL["model_parameters"],
        norm=1.5,
        checksum="a",
        max_memory_allocated_bytes=None,
        train_s=time.monotonic() - STARTED,
        eval_s=0.0,
    )
    if "last" in FAKE:
        for _ in range(2):
            wait_for_a_beat()
        LAST[FAKE["last"]](Path(os.environ["SLIPWAY_OUT"]))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        emit("error", kind="error", message=f"{type(error).__name__}: {error}")
        raise
